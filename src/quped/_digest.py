"""A digest of tensors: the same whatever file they came from, another one if a single bit differs."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all tensors with their names, types and shapes."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        sha.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()
