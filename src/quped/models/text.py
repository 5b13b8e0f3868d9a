"""A bag-of-words text classifier."""

from collections.abc import Sequence

from torch import Tensor, nn

from quped.errors import NetworkError


class TextClassifier(nn.Module):
    """The mean of the words' embeddings, then one linear layer.

    There is no layer between the first and the last, so the rule "all but the first and the last" would quantize
    nothing; the embedding, nearly all of the memory, is quantized.
    """

    name = "text"
    quantized = ("embedding.weight",)

    def __init__(self, vocabulary: int, classes: int, dim: int = 64) -> None:
        """Build the network for token ids below `vocabulary`."""
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary, dim, mode="mean")
        self.linear = nn.Linear(dim, classes)
        nn.init.uniform_(self.embedding.weight, -0.5, 0.5)

    def forward(self, tokens: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Return the logits of texts given as concatenated `tokens` and the `offsets` where each text begins."""
        logits: Tensor = self.linear(self.embedding(tokens, offsets))
        return logits


def text(input_shape: Sequence[int], classes: int, dim: int = 64) -> TextClassifier:
    """TextClassifier for texts whose vocabulary has `input_shape[0]` words."""
    if len(input_shape) != 1:
        raise NetworkError(f"The network text takes texts, not inputs of shape {tuple(input_shape)}: use cnn1 or mlp.")
    return TextClassifier(input_shape[0], classes, dim)
