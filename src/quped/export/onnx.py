"""A network as an ONNX file that holds packed weights, and unpacks them by standard operators.

PyTorch's exporter folds BatchNorm into weights, which then are more than a few values.
So the quantized weights enter it as inputs of the graph, and each input is replaced by a call of a local function.
Runtimes evaluate the function once, when they load the file: arithmetic and memory stay those of float32.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from quped.errors import ModelFileError
from quped.export.packed import PackedModel, PackedTensor, write_file
from quped.export.verify import check_scores, enough
from quped.models.select import network_name
from quped.quant.packing import pack

if TYPE_CHECKING:
    import onnx

Packed = Mapping[str, PackedTensor]

OPSET = 18
IR_VERSION = 8
"""The first one that has local functions."""
DOMAIN = "quped"
PRIVATE = {"doc_string", "metadata_props", "value_info"}
"""What the exporter adds for debugging: among other things, paths of the user's machine."""
ROOT = "network."
"""What the exporter puts before the names of a network's tensors."""


def write_onnx(module: nn.Module, model: PackedModel, inputs: tuple[Tensor, ...], path: Path) -> str:
    """Write a network as an ONNX file; return how it was verified.

    `model` holds the weights of `module`, with which the file must agree on the batch `inputs`.
    """
    require_onnx()
    inputs = (enough(inputs[0]),) if len(inputs) == 1 else inputs
    content = onnx_model(module, model.packed, inputs).SerializeToString(deterministic=True)
    with torch.no_grad():
        expected = module(*inputs)
    check_weights(content, model.packed, path)
    got = compute(content, inputs)
    if got is not None:
        check_scores(str(path), got, expected)
    write_file(path, content)
    if got is None:
        return "weights read again; not run: no onnxruntime here"
    return f"run on {len(expected):,} inputs: same classes"


def require_onnx() -> None:
    """Raise if the packages are missing that write ONNX files."""
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            raise ModelFileError(f"ONNX files need the package {package}, which is missing: pip install 'quped[onnx]'.")


class WithWeights(nn.Module):
    """A network that takes some of its weights as inputs."""

    def __init__(self, network: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        self._names = names

    def forward(self, weights: Sequence[Tensor], *inputs: Tensor) -> Any:
        """Run the network with these weights in place of its own."""
        return torch.func.functional_call(self.network, dict(zip(self._names, weights, strict=True)), inputs)


def onnx_model(module: nn.Module, packed: Packed, inputs: tuple[Tensor, ...]) -> "onnx.ModelProto":
    """Return the network as ONNX."""
    params = dict(module.named_parameters())
    data = ["input"] if len(inputs) == 1 else [f"input_{i}" for i in range(len(inputs))]
    automatic = tuple({0: torch.export.Dim.AUTO} if part.dim() else None for part in inputs)
    try:
        with quietly():
            program = torch.onnx.export(
                WithWeights(module, list(packed)).eval(),
                ([params[name].detach() for name in packed], *inputs),
                input_names=[*packed, *data],
                output_names=["scores"],
                dynamic_shapes=([None] * len(packed), automatic),
                opset_version=OPSET,
                dynamo=True,
                optimize=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # whatever a user's module does when it is traced
        reason = str(error).strip().partition("\n")[0]
        raise ModelFileError(f"PyTorch cannot export {network_name(module)} to ONNX: {reason}") from error
    assert program is not None
    model = program.model_proto
    model.ir_version = IR_VERSION
    tidy(model)
    rename(model.graph)
    name_batch(model.graph)
    replace_inputs(model, packed)
    return model


@contextmanager
def quietly() -> Iterator[None]:
    """Keep back what the exporter says of packages that are not needed here, and of its own future."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def tidy(message: Any) -> None:
    """Remove what is for debugging from a message of the format, and from all messages within."""
    for field, value in message.ListFields():
        if field.name in PRIVATE:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for part in value if hasattr(value, "__len__") else [value]:
                tidy(part)


def rename(graph: "onnx.GraphProto") -> None:
    """Give the tensors of a graph, and of those within, the names that the network has for them."""
    for tensor in graph.initializer:
        tensor.name = tensor.name.removeprefix(ROOT)
    for node in graph.node:
        node.ClearField("name")
        node.input[:] = [name.removeprefix(ROOT) for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                rename(attribute.g)


def name_batch(graph: "onnx.GraphProto") -> None:
    """Call the number of samples in a batch by its name, where the exporter has a letter for it."""
    letter = graph.output[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if letter and dim.dim_param == letter:
                dim.dim_param = "batch"


def replace_inputs(model: "onnx.ModelProto", weights: Packed) -> None:
    """Replace the inputs of a graph that are weights by packed weights, and calls that unpack them."""
    from onnx import helper, numpy_helper

    graph = model.graph
    rest = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(rest)
    calls = []
    for name, weight in weights.items():
        bits = width(weight)
        tensors = {f"{name}.packed": pack(weight.indices, bits), f"{name}.centers": weight.centers}
        graph.initializer.extend(numpy_helper.from_array(t.numpy(), key) for key, t in tensors.items())
        calls.append(helper.make_node(f"Unpack{bits}", list(tensors), [name], domain=DOMAIN, shape=weight.shape))
    for node in reversed(calls):
        graph.node.insert(0, node)
    widths = sorted({width(weight) for weight in weights.values()})
    model.functions.extend(unpack_function(bits) for bits in widths)
    if widths:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def width(weight: PackedTensor) -> int:
    """Return the bits of a stored code: 1, 2, 4 or 8, so that none crosses a byte."""
    return 1 << (weight.bits - 1).bit_length()


def unpack_function(bits: int) -> "onnx.FunctionProto":
    """Return the function that makes a tensor of its packed codes and its centers `[groups, m]`.

    Integer arithmetic alone: more runtimes have it than have operators on bits.
    """
    from onnx import AttributeProto, TensorProto, helper

    def constant(name: str, kind: int, values: Sequence[int], *dims: int) -> "onnx.NodeProto":
        return helper.make_node("Constant", [], [name], value=helper.make_tensor("", kind, dims, values))

    shape = helper.make_node("Constant", [], ["shape"])
    shape.attribute.append(AttributeProto(name="value_ints", ref_attr_name="shape", type=AttributeProto.INTS))
    divisors = [2**shift for shift in range(0, 8, bits)]
    nodes = [
        shape,
        constant("divisors", TensorProto.INT32, divisors, 1, len(divisors)),
        constant("base", TensorProto.INT32, [2**bits]),
        constant("column", TensorProto.INT64, [-1, 1], 2),
        constant("flat", TensorProto.INT64, [-1], 1),
        constant("zero", TensorProto.INT64, [0], 1),
        helper.make_node("Cast", ["packed"], ["bytes"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["bytes", "column"], ["rows"]),
        helper.make_node("Div", ["rows", "divisors"], ["shifted"]),
        helper.make_node("Mod", ["shifted", "base"], ["parts"]),
        helper.make_node("Reshape", ["parts", "flat"], ["padded"]),
        helper.make_node("ReduceProd", ["shape"], ["count"], keepdims=1),
        helper.make_node("Slice", ["padded", "zero", "count"], ["codes"]),
        helper.make_node("Shape", ["centers"], ["groups"], end=1),
        helper.make_node("Concat", ["groups", "flat"], ["grouped"], axis=0),
        helper.make_node("Reshape", ["codes", "grouped"], ["indices"]),
        helper.make_node("GatherElements", ["centers", "indices"], ["values"], axis=1),
        helper.make_node("Reshape", ["values", "shape"], ["weight"]),
    ]
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_function(DOMAIN, f"Unpack{bits}", ["packed", "centers"], ["weight"], nodes, opset, ["shape"])


def check_weights(content: bytes, weights: Packed, path: Path) -> None:
    """Raise unless a file, read again, is valid and holds the quantized weights of a network."""
    import onnx

    model = onnx.load_model_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    calls = {node.output[0]: node for node in model.graph.node if node.domain == DOMAIN}
    if calls.keys() != weights.keys():
        raise ModelFileError(f"{path} would hold other weights than the network has. Nothing was written.")
    for name, call in calls.items():
        packed, centers = (stored[key] for key in call.input)
        bits = int(call.op_type.removeprefix("Unpack"))
        codes = np.unpackbits(packed, bitorder="little").reshape(-1, bits) @ (1 << np.arange(bits))
        shape = tuple(call.attribute[0].ints)
        rows = codes[: np.prod(shape)].reshape(len(centers), -1)
        weight = np.take_along_axis(centers, rows, axis=1).reshape(shape)
        if weight.tobytes() != weights[name].values().numpy().tobytes():
            raise ModelFileError(f"{path} would hold another {name} than the network has. Nothing was written.")


def compute(content: bytes, inputs: tuple[Tensor, ...]) -> Tensor | None:
    """Return the scores that a file gives to a batch; None without onnxruntime."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    feeds = {slot.name: part.numpy() for slot, part in zip(session.get_inputs(), inputs, strict=True)}
    return torch.from_numpy(session.run(["scores"], feeds)[0])
