"""Quantized tensors as bytes: the indices of their centers packed with few bits each, and back."""

import numpy as np
import torch
from torch import Tensor

from quped.errors import InvalidValueError
from quped.quant.quantizer import Codebook
from quped.quant.sizes import index_bits, index_bytes

PATTERNS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""For floating-point numbers of so many bytes, the integers that show their bits."""


def pack(indices: Tensor, bits: int) -> Tensor:
    """Return indices below 2^bits as bytes, in row-major order, the lowest bits first; spare bits at the end are 0."""
    columns = indices.cpu().numpy().astype(np.uint8).reshape(-1, 1)
    return torch.from_numpy(np.packbits(np.unpackbits(columns, 1, bits, "little"), None, "little"))


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the first `count` indices of packed bytes: the inverse of `pack`."""
    stream = np.unpackbits(packed.numpy(), bitorder="little")
    if len(stream) != 8 * index_bytes(count, bits):
        raise InvalidValueError(
            f"{count} indices of {bits} bits take {index_bytes(count, bits)} bytes, not {len(packed)}."
        )
    if stream[count * bits :].any():
        raise InvalidValueError("The spare bits after the last index are not 0.")
    rows = stream[: count * bits].reshape(count, bits)
    return torch.from_numpy(np.packbits(rows, 1, "little").reshape(-1))


def codebook_of(values: Tensor, bits: int) -> Codebook:
    """Return the codebook of a tensor with at most 2^bits values in all, or else in each output channel.

    Values are told apart by their bit patterns, so that 0.0 and -0.0 both come back.
    """
    whole = exact_codebook(values.reshape(1, -1))
    if index_bits(whole.centers) <= bits:
        return whole
    channels = exact_codebook(values.reshape(values.shape[0], -1)) if values.dim() > 1 else whole
    if index_bits(channels.centers) <= bits:
        return channels
    raise InvalidValueError(
        f"it has {whole.centers.shape[1]} different values, and {bits} bits allow {2**bits}: quantize it before, or "
        "give it more bits."
    )


def exact_codebook(rows: Tensor) -> Codebook:
    """Return the codebook of a tensor `[groups, n]` with all the values of each group, however many these are."""
    books = [exact_row(row) for row in rows.detach()]
    m = max(len(centers) for centers, _ in books)
    # A group with fewer values than another one repeats its last.
    centers = torch.stack([torch.cat([c, c[-1:].expand(m - len(c))]) for c, _ in books])
    return Codebook(centers, torch.stack([indices for _, indices in books]))


def exact_row(row: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct values of a group, ascending, and the index of each weight's value."""
    if not row.is_floating_point() or not bool(row.isfinite().all()):
        raise InvalidValueError("it holds values that are not finite numbers.")
    whole = row.cpu().contiguous().view(PATTERNS[row.element_size()]).numpy()
    patterns, indices = np.unique(whole, return_inverse=True)
    centers, order = torch.from_numpy(patterns).view(row.dtype).sort(stable=True)
    return centers, order.argsort()[torch.from_numpy(indices)]
