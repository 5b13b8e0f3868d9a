"""Convolution, 2x2 max pooling and ReLU as one operation; `conv_pool.cpp` says what makes it fast."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ctypes import c_int64
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from quped._native.build import library
from quped._transform import transformed

WIDEST = 1024
"""Channels times filters, above which PyTorch's matrix products are faster than this kernel."""

MOST_PIXELS = 64 * 64
"""Of an image that surely fits into the processor's cache."""

Strides = c_int64 * 4
SIGNATURES = (("forward", "npppppp"), ("backward", "nppppppppp"))


Kept = tuple[tuple[Tensor, ...], list[int]]
"""The last arguments without a gradient, then the result; and the version of each, which a change in place raises."""

_memory = ContextVar[dict["Kernel", Kept] | None]("memory", default=None)


@contextmanager
def reusing() -> Iterator[None]:
    """Keep the last result of each layer within the block, in which tensors are changed by PyTorch alone.

    In a client's step x and Q_c(x) have the same first layer and see the same batch: one pass serves for all.
    """
    token = _memory.set({})
    try:
        yield
    finally:
        _memory.reset(token)


@dataclass(frozen=True, eq=False)
class Kernel:
    """What was compiled for one layer."""

    forward: Callable[..., None]
    backward: Callable[..., None]
    rows: int
    columns: int
    """Size of a pooled image."""

    def __call__(self, *arguments: Tensor) -> Tensor:
        """Compute, or return the last result if it is kept and these are the last arguments."""
        memory = _memory.get()
        inference = torch.is_inference_mode_enabled() or any(a.is_inference() for a in arguments)
        if memory is None or inference or any(a.requires_grad for a in arguments):
            return differentiable(*arguments, self)
        if self in memory:
            kept, versions = memory[self]
            same = all(a is b for a, b in zip(arguments, kept, strict=False))
            if same and versions == [tensor._version for tensor in kept]:
                return kept[-1]
        y = differentiable(*arguments, self)
        kept = (*arguments, y)
        memory[self] = kept, [tensor._version for tensor in kept]
        return y


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    """Return relu(max_pool2d(conv2d(x, weight, bias, padding=padding), 2))."""
    exported = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
    if not transformed() and not exported:
        alike = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (x, weight, bias))
        if alike and x.dim() == 4 and bias.shape == weight.shape[:1]:
            kernel = compiled(tuple(x.shape[1:]), tuple(weight.shape), padding)
            if kernel is not None:
                return kernel(x, weight, bias)
        # Convolutions are faster with the channels last; `contiguous` would leave images with one channel as they are.
        x = torch.empty_like(x, memory_format=torch.channels_last).copy_(x)
    # Before ReLU, pooling leaves it a quarter of the work.
    return functional.relu(functional.max_pool2d(functional.conv2d(x, weight, bias, padding=padding), 2))


@cache
def compiled(image: tuple[int, ...], weight: tuple[int, ...], padding: int) -> Kernel | None:
    """Return the kernel for images and weights of these shapes; None where it does not pay or cannot be compiled."""
    channels, height, width = image
    filters, channels_too, size, size_too = weight
    rows, columns = ((side + 2 * padding - size + 1) // 2 for side in (height, width))
    fits = channels == channels_too and size == size_too and min(rows, columns) > 0
    if not fits or channels * filters > WIDEST or height * width > MOST_PIXELS:
        return None
    constants = {"CHANNELS": channels, "FILTERS": filters, "HEIGHT": height, "WIDTH": width}
    found = library("conv_pool", (*constants.items(), ("KERNEL", size), ("PADDING", padding)), SIGNATURES)
    if found is None:
        return None
    return Kernel(found.forward, found.backward, rows, columns)


class ConvPool(Function):
    """The operation with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, kernel: Kernel) -> Tensor:
        """Compute, and remember which pixel was the largest if a gradient may be asked for."""
        weight, bias = weight.contiguous(), bias.contiguous()
        y = x.new_empty(len(x), kernel.rows, kernel.columns, len(weight))
        which = torch.empty_like(y, dtype=torch.uint8) if any(ctx.needs_input_grad) else None
        marks = 0 if which is None else which.data_ptr()
        pointers = weight.data_ptr(), bias.data_ptr(), y.data_ptr(), marks
        kernel.forward(len(x), x.data_ptr(), Strides(*x.stride()), *pointers)
        ctx.kernel = kernel
        ctx.save_for_backward(x, weight, which)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        """Return the gradients by x, if that is needed, weight and bias."""
        x, weight, which = ctx.saved_tensors
        dx = x.new_empty(len(x), *x.shape[2:], x.shape[1]) if ctx.needs_input_grad[0] else None
        dw, db = torch.empty_like(weight), weight.new_empty(len(weight))
        given = x.data_ptr(), Strides(*x.stride()), weight.data_ptr(), which.data_ptr()
        wanted = 0 if dx is None else dx.data_ptr(), dw.data_ptr(), db.data_ptr()
        ctx.kernel.backward(len(x), *given, dy.data_ptr(), Strides(*dy.stride()), *wanted)
        return None if dx is None else dx.permute(0, 3, 1, 2), dw, db, None


differentiable = cast(Callable[..., Tensor], ConvPool.apply)
