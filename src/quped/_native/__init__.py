"""Kernels in C++ for what PyTorch does slowly: compiled on the user's machine when first needed, and never required."""

from quped._native import codebook
from quped._native.conv_pool import conv_pool, reusing

__all__ = ["codebook", "conv_pool", "reusing"]
