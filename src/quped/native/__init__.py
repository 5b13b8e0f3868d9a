"""Kernels in C++ for what PyTorch does slowly: compiled on the user's machine when first needed, and never required."""

from quped.native import codebook
from quped.native.conv_pool import conv_pool, reusing

__all__ = ["codebook", "conv_pool", "reusing"]
