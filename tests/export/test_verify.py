"""When an export is right."""

import pytest
import torch

from quped.errors import ModelFileError
from quped.export.verify import check_scores, enough

EXPECTED = torch.tensor([[1.0, 2.0, 3.0], [200.0, -5.0, 0.0]])


def test_scores_may_differ_by_rounding() -> None:
    check_scores("it", EXPECTED, EXPECTED)
    check_scores("it", EXPECTED * (1 + 5e-5), EXPECTED)
    tie = torch.tensor([[1.0, 1.0 + 1e-7]])
    check_scores("it", tie.flip(1), tie)


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (EXPECTED + torch.tensor([[0.0, 0.0, 1e-3], [0.0, 0.0, 0.0]]), "differ by 0.0003, and 0 of 2"),
        (torch.tensor([[1.0, 2.0, 3.0], [200.0, torch.nan, 0.0]]), "differ by inf"),
        (EXPECTED.flip(1), "2 of 2 inputs get another class"),
        (EXPECTED[:1], r"shape \(1, 3\) instead of \(2, 3\)"),
    ],
)
def test_other_scores_are_refused(got: torch.Tensor, words: str) -> None:
    with pytest.raises(ModelFileError, match=rf"it .*{words}"):
        check_scores("it", got, EXPECTED)


def test_a_near_tie_is_no_licence() -> None:
    close = torch.tensor([[1.0, 1.00005]])
    with pytest.raises(ModelFileError, match="1 of 1"):
        check_scores("it", close.flip(1), close)


def test_few_samples_are_joined_by_noisy_copies() -> None:
    few, many, words = torch.randn(5, 2), torch.randn(70, 2), torch.arange(5)
    assert enough(many) is many
    assert enough(words) is words
    assert torch.equal(enough(few)[:5], few)
    assert len({tuple(row) for row in enough(few).tolist()}) == 64
    assert enough(torch.ones(1, 1)).isfinite().all()
