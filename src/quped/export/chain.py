"""A network as a chain of plain stages: what the C file and the page can compute.

Every stage takes an image `[channels, height, width]` and returns one.
It convolves, scales and shifts each channel, applies ReLU, and pools: each of these is optional, the order is fixed.
A linear layer is a convolution whose kernel is as large as its image, `[1, 1, inputs]`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from quped.errors import NetworkError
from quped.models import CNN, CNN1D, MLP
from quped.models.cnn import ConvPool
from quped.models.select import network_name

Pair = tuple[int, int]
Image = tuple[int, int, int]
"""Channels, height and width."""

PLAIN = (
    *(nn.Conv2d, ConvPool, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU, nn.Flatten, nn.Dropout, nn.Dropout2d),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity),
)
"""Layers of a chain: these very classes, since a subclass may have a forward pass of its own."""


@dataclass(frozen=True)
class Conv:
    """A convolution, or a linear layer."""

    weight: str
    """The name of the parameter."""
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


@dataclass(frozen=True)
class Norm:
    """BatchNorm in evaluation mode: the names of its tensors."""

    mean: str
    var: str
    eps: float
    weight: str | None = None
    bias: str | None = None


@dataclass(frozen=True)
class Pool:
    """Pooling; pixels outside of the image do not count."""

    kind: Literal["max", "mean"]
    size: Pair
    stride: Pair
    padding: Pair = (0, 0)


@dataclass(frozen=True)
class Stage:
    """One step of the chain."""

    input: Image
    between: Image
    """The image before pooling."""
    output: Image
    conv: Conv | None = None
    bias: str | None = None
    norm: Norm | None = None
    relu: bool = False
    pool: Pool | None = None

    def affine(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Return the factor and the summand of each channel, float32; None for 1 and 0."""
        if self.norm is None:
            return None, None if self.bias is None else tensors[self.bias].float()
        mean, var = tensors[self.norm.mean].double(), tensors[self.norm.var].double()
        scale = (var + self.norm.eps).rsqrt()
        if self.norm.weight is not None:
            scale = scale * tensors[self.norm.weight].double()
        shift = ((0 if self.bias is None else tensors[self.bias].double()) - mean) * scale
        if self.norm.bias is not None:
            shift = shift + tensors[self.norm.bias].double()
        return scale.float(), shift.float()

    def __call__(self, images: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Compute the stage for a batch: the reference that the other languages must agree with."""
        x = images.reshape(-1, *self.input)
        if self.conv is not None:
            weight = tensors[self.conv.weight].reshape(self.between[0], -1, *self.conv.kernel)
            c = self.conv
            x = functional.conv2d(x, weight, None, c.stride, c.padding, c.dilation, c.groups)
        scale, shift = self.affine(tensors)
        x = x if scale is None else x * scale.view(-1, 1, 1)
        x = x if shift is None else x + shift.view(-1, 1, 1)
        x = x.relu() if self.relu else x
        if self.pool is None:
            return x
        size, stride, padding = self.pool.size, self.pool.stride, self.pool.padding
        if self.pool.kind == "max":
            return functional.max_pool2d(x, size, stride, padding)
        return functional.avg_pool2d(x, size, stride, padding, count_include_pad=False)


def run(stages: Sequence[Stage], tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Return the scores of a batch."""
    for stage in stages:
        inputs = stage(inputs, tensors)
    return inputs.flatten(1)


def chain(module: nn.Module, input_shape: Sequence[int]) -> list[Stage]:
    """Return the stages of a network for one input of this shape, or raise an error that names what does not fit."""
    names = {id(t): name for name, t in (*module.named_parameters(), *module.named_buffers())}
    stages: list[Stage] = []
    shape = tuple(input_shape)
    for name, layer in layers(module):
        try:
            shape = append(stages, layer, shape, names)
        except UnfitLayerError as reason:
            what = f"layer '{name}' ({type(layer).__name__})" if name else f"network {network_name(module)}"
            raise NetworkError(
                f"The {what} cannot be written as C or as a page: {reason}. Both take chains (nn.Sequential) of plain "
                "layers. ONNX takes every network."
            ) from None
    if not stages:
        raise NetworkError(f"The network {network_name(module)} has no layers to export.")
    return stages


class UnfitLayerError(Exception):
    """Why a layer cannot be part of a chain."""


def layers(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the plain layers of a network in the order of its forward pass."""
    if type(module) is MLP:
        yield name, nn.Flatten()
    if type(module) in (nn.Sequential, CNN, CNN1D, MLP):
        for key, child in module._modules.items():  # `named_children` would leave out a layer that is there twice
            if child is not None:
                yield from layers(child, f"{name}.{key}".lstrip("."))
    else:
        yield name, module


def append(stages: list[Stage], layer: nn.Module, shape: tuple[int, ...], names: Mapping[int, str]) -> tuple[int, ...]:
    """Add a layer to the chain, to its last stage where that can compute it; return the shape behind it."""
    demand(type(layer) in PLAIN, f"it is not one of {', '.join(kind.__name__ for kind in PLAIN)}")
    if isinstance(layer, nn.Dropout | nn.Dropout2d | nn.Identity):
        return shape
    if isinstance(layer, nn.Flatten):
        demand((layer.start_dim, layer.end_dim) in ((1, -1), (1, len(shape))), "it flattens a part of its input")
        return (math.prod(shape),)
    if isinstance(layer, nn.ReLU):
        return add_relu(stages, shape)
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return add_norm(stages, layer, shape, names)
    if isinstance(layer, nn.Linear):
        demand(shape == (layer.in_features,), f"its input has the shape {shape}: put nn.Flatten() before it")
        conv = Conv(names[id(layer.weight)], (1, layer.in_features))
        output = layer.out_features, 1, 1
        stages.append(Stage((1, 1, layer.in_features), output, output, conv, named(layer.bias, names)))
        return (layer.out_features,)
    demand(len(shape) == 3, f"it takes images, and its input has the shape {shape}")
    image = shape[0], shape[1], shape[2]
    if isinstance(layer, ConvPool):
        conv = Conv(names[id(layer.weight)], pair(layer.weight.shape[2:]), padding=pair(layer.padding))
        image = add_conv(stages, image, layer.weight, conv, named(layer.bias, names))
        return add_relu(stages, add_pool(stages, image, Pool("max", (2, 2), (2, 2))))
    if isinstance(layer, nn.Conv2d):
        demand(layer.padding_mode == "zeros", f"it pads with '{layer.padding_mode}' instead of zeros")
        kernel, stride, dilation = pair(layer.kernel_size), pair(layer.stride), pair(layer.dilation)
        conv = Conv(names[id(layer.weight)], kernel, stride, padding_of(layer), dilation, layer.groups)
        return add_conv(stages, image, layer.weight, conv, named(layer.bias, names))
    return add_pool(stages, image, pool_of(layer, image))


def add_conv(stages: list[Stage], image: Image, weight: Tensor, conv: Conv, bias: str | None) -> Image:
    """Begin a stage with a convolution."""
    demand(image[0] == weight.shape[1] * conv.groups, f"its input has the shape {image}")
    rows, columns = (
        (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for side, padding, dilation, kernel, stride in zip(
            image[1:], conv.padding, conv.dilation, conv.kernel, conv.stride, strict=True
        )
    )
    output = weight.shape[0], rows, columns
    demand(min(rows, columns) > 0, f"its input {image} is smaller than its kernel")
    stages.append(Stage(image, output, output, conv, bias))
    return output


def add_norm(
    stages: list[Stage], layer: nn.BatchNorm1d | nn.BatchNorm2d, shape: tuple[int, ...], names: Mapping[int, str]
) -> tuple[int, ...]:
    """Put BatchNorm behind the convolution that ends there, or into a stage of its own."""
    if layer.running_mean is None or layer.running_var is None:
        raise UnfitLayerError("it keeps no statistics")
    fits = len(shape) == (3 if isinstance(layer, nn.BatchNorm2d) else 1) and shape[0] == layer.num_features
    demand(fits, f"its input has the shape {shape}")
    norm = Norm(
        names[id(layer.running_mean)],
        names[id(layer.running_var)],
        layer.eps,
        named(layer.weight, names),
        named(layer.bias, names),
    )
    image = image_of(shape)
    last = stages[-1] if stages else None
    if last is not None and last.conv and last.output == image and not (last.norm or last.relu or last.pool):
        stages[-1] = replace(last, norm=norm)
    else:
        stages.append(Stage(image, image, image, norm=norm))
    return shape


def add_relu(stages: list[Stage], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Let the last stage apply ReLU; before its pooling if that is of the maximum, where the order does not matter."""
    last = stages[-1] if stages else None
    if last is not None and (last.pool is None or last.pool.kind == "max"):
        stages[-1] = replace(last, relu=True)
    else:
        image = image_of(shape)
        stages.append(Stage(image, image, image, relu=True))
    return shape


def add_pool(stages: list[Stage], image: Image, pool: Pool) -> Image:
    """Let the last stage pool, unless windows overlap: each of its pixels would be computed several times."""
    rows, columns = (
        (side + 2 * padding - size) // stride + 1
        for side, padding, size, stride in zip(image[1:], pool.padding, pool.size, pool.stride, strict=True)
    )
    demand(min(rows, columns) > 0, f"its input {image} is smaller than its window")
    output = image[0], rows, columns
    last = stages[-1] if stages else None
    apart = all(stride >= size for stride, size in zip(pool.stride, pool.size, strict=True))
    if last is not None and last.pool is None and last.output == image and apart:
        stages[-1] = replace(last, output=output, pool=pool)
    else:
        stages.append(Stage(image, image, output, pool=pool))
    return output


def pool_of(layer: nn.Module, image: Image) -> Pool:
    """Return what a pooling layer does with an image."""
    if isinstance(layer, nn.MaxPool2d):
        demand(pair(layer.dilation) == (1, 1) and not layer.return_indices, "it dilates, or returns indices")
        pool = Pool("max", pair(layer.kernel_size), pair(layer.stride), pair(layer.padding))
    elif isinstance(layer, nn.AvgPool2d):
        pool = Pool("mean", pair(layer.kernel_size), pair(layer.stride), pair(layer.padding))
        demand(layer.divisor_override is None, "it has a divisor of its own")
        demand(pool.padding == (0, 0) or not layer.count_include_pad, "it counts padded pixels")
    else:
        assert isinstance(layer, nn.AdaptiveAvgPool2d)
        wanted = layer.output_size if isinstance(layer.output_size, tuple) else (layer.output_size,) * 2
        rows, columns = (side if want is None else want for side, want in zip(image[1:], wanted, strict=True))
        demand(image[1] % rows == 0 and image[2] % columns == 0, f"its windows on an image of {image} differ in size")
        size = image[1] // rows, image[2] // columns
        return Pool("mean", size, size)
    demand(not layer.ceil_mode, "it has ceil_mode")
    return pool


def padding_of(layer: nn.Conv2d) -> Pair:
    """Return the padding of a convolution, in numbers."""
    if layer.padding == "valid":
        return 0, 0
    if layer.padding == "same":
        total = [d * (k - 1) for d, k in zip(pair(layer.dilation), pair(layer.kernel_size), strict=True)]
        demand(all(side % 2 == 0 for side in total), "it pads one side more than the other")
        return total[0] // 2, total[1] // 2
    return pair(layer.padding)


def pair(value: object) -> Pair:
    """Return an option of a layer for both directions: a number, or one for each."""
    if isinstance(value, int):
        return value, value
    assert isinstance(value, tuple)
    return int(value[0]), int(value[1])


def image_of(shape: tuple[int, ...]) -> Image:
    """Return an input as an image: a feature is a channel of one pixel."""
    demand(len(shape) in (1, 3), f"its input has the shape {shape}")
    return (shape[0], 1, 1) if len(shape) == 1 else (shape[0], shape[1], shape[2])


def named(tensor: Tensor | None, names: Mapping[int, str]) -> str | None:
    """Return the name of a tensor that a layer may have."""
    return None if tensor is None else names[id(tensor)]


def demand(ok: bool, reason: str) -> None:
    """Raise unless a layer is as a chain needs it."""
    if not ok:
        raise UnfitLayerError(reason)
