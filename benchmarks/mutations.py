"""Damage packed files at random, ten thousand times: each must be refused, or read as it was.

PYTHONPATH=tests python benchmarks/mutations.py
"""

import random

from helpers.mutations import mutated
from helpers.quantized_nets import Everything, quantize_at_random, same_bits

from quped.errors import QupedError
from quped.export import PackedModel, from_bytes, to_bytes

MUTATIONS = 10_000


def main() -> None:
    """Count the refused and the correctly read files; any other outcome is an error."""
    rng, refused = random.Random(0), 0
    for i in range(MUTATIONS):
        if i % 100 == 0:  # another model
            module = Everything()
            centers = {"conv.weight": 2 ** rng.randint(1, 8), "middle.weight": 3}
            books = quantize_at_random(module, centers, per_channel=bool(rng.randint(0, 1)), seed=i)
            model = PackedModel.of(module, books)
            raw, state = to_bytes(model), model.state()
        try:
            again = from_bytes(mutated(raw, rng), "it").state()
        except QupedError:
            refused += 1
        else:
            assert again.keys() == state.keys()
            assert all(same_bits(again[name], tensor) for name, tensor in state.items())
    print(f"{refused:,} of {MUTATIONS:,} damaged files were refused, and the others read correctly.")


if __name__ == "__main__":
    main()
