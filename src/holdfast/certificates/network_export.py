"""Export of a traced network for `holdfast-check`: weights as safetensors, a graph of ONNX operators.

The checker reads this description of models that are not ONNX files. Its operators have ONNX's semantics;
operators without an exact counterpart are refused with `UnsupportedLayer`.
"""

import json
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from holdfast.bounding.graph.fusion import single_input_network
from holdfast.errors import UnsupportedLayer
from holdfast.network import Network
from holdfast.network.trace import as_plain_module, convert_graph

aten = torch.ops.aten
LARGEST_MATRIX = 2**22  # Entries of the matrix of an affine map (16 MiB in float32; chosen by hand).
GRAPH = "holdfast-graph"  # The key of the graph in the metadata of the safetensors file.

# Operators that only rearrange elements. Applied to the indices of the elements, they return where each
# element goes.
MOVES = {
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.numpy_T.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.narrow.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
    aten.unsqueeze.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.expand.default,
    aten.flip.default,
    aten.index_select.default,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.chunk.default,
    aten.unbind.int,
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
    aten.channel_shuffle.default,
}
# Operators that return their input in evaluation mode.
KEEPS = {
    aten.clone.default,
    aten.contiguous.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten._to_copy.default,
}
# Operators of which only the shape of their input matters: their values are constants.
SHAPED = {
    aten.ones_like.default,
    aten.zeros_like.default,
    aten.full_like.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
}
PLAIN = {
    aten.relu.default: "Relu",
    aten.sigmoid.default: "Sigmoid",
    aten.tanh.default: "Tanh",
    aten.abs.default: "Abs",
    aten.neg.default: "Neg",
    aten.exp.default: "Exp",
    aten.log.default: "Log",
    aten.sqrt.default: "Sqrt",
    aten.reciprocal.default: "Reciprocal",
    aten.erf.default: "Erf",
}
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
ARITHMETIC = {
    aten.add.Tensor: "Add",
    aten.add.Scalar: "Add",
    aten.sub.Tensor: "Sub",
    aten.sub.Scalar: "Sub",
    aten.mul.Tensor: "Mul",
    aten.mul.Scalar: "Mul",
    aten.div.Tensor: "Div",
    aten.div.Scalar: "Div",
    aten.maximum.default: "Max",
    aten.minimum.default: "Min",
}


@dataclass(frozen=True)
class Named:
    """A value that depends on the input: its name, and its value at one input, for its shape."""

    name: str
    value: Tensor


@dataclass
class Description:
    """The nodes and constants written until now."""

    nodes: list[dict[str, Any]] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)

    def constant(self, value: Tensor | float) -> str:
        """Store a constant, in float32 where that is exact; a Python number counts as float64."""
        tensor = (
            torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64).detach().cpu()
        )
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            tensor = tensor.double()
            tensor = tensor.float() if bool((tensor.float().double() == tensor).all()) else tensor
        name = f"w{len(self.constants)}"
        self.constants[name] = tensor.contiguous()
        return name

    def add_constant(self, value: "Named | Tensor | float") -> str:
        return value.name if isinstance(value, Named) else self.constant(value)

    def put(
        self, op: str, given: "Sequence[Named | Tensor | float | None]", outputs: int = 1, **options: Any
    ) -> list[str]:
        """Append a node and return the names of its outputs; None is an omitted input."""
        names = [f"v{len(self.nodes)}_{place}" for place in range(outputs)]
        inputs = ["" if value is None else self.add_constant(value) for value in given]
        self.nodes.append({"op": op, "in": inputs, "out": names, **({"with": options} if options else {})})
        return names

    def one(
        self, op: str, given: "Sequence[Named | Tensor | float | None]", value: Tensor, **options: Any
    ) -> Named:
        """Append a node with one output."""
        return Named(self.put(op, given, **options)[0], value)

    def add_gather(self, source: Named, index: Tensor, value: Tensor) -> Named:
        """Select elements of `source`: index holds its element number for every element of the result."""
        if torch.equal(index.flatten(), torch.arange(source.value.numel())):
            return self.one("Reshape", [source], value, shape=list(index.shape))
        flat = self.one("Reshape", [source], source.value.flatten(), shape=[-1])
        return self.one("Gather", [flat, index], value, axis=0)


def describe_network(net: Network, example: Tensor) -> bytes:
    """The network for inputs of this shape as the bytes of a file.

    Raises UnsupportedLayer with the name of an operator that cannot be exported.
    """
    one = single_input_network(net, example)
    module = convert_graph(
        as_plain_module(one.program(example)), dtype=torch.float64, device=torch.device("cpu")
    )
    point = example[:1].detach().cpu().double()
    description, known = Description(), dict[fx.Node, Any]()
    output: Any = None
    with torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known[node] = Named("input", point)
            elif node.op == "get_attr":
                known[node] = _attribute(module, str(node.target))
            elif node.op == "output":
                output = fx.node.map_arg(node.args[0], lambda n: known[n])
            else:
                known[node] = _written(
                    description,
                    node,
                    *(fx.node.map_arg(part, lambda n: known[n]) for part in (node.args, node.kwargs)),
                )
    while isinstance(output, tuple | list):
        output = output[0]
    if not isinstance(output, Named):
        raise UnsupportedLayer(
            f"{net.name}: its output does not depend on its input, so there is nothing to prove."
        )
    graph = {"input": "input", "shape": list(point.shape), "output": output.name, "nodes": description.nodes}
    from safetensors.torch import save  # imported here, since it is not installed everywhere

    return bytes(save(description.constants, {GRAPH: json.dumps(graph, separators=(",", ":"))}))


def _attribute(module: fx.GraphModule, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _plain(value: Any) -> Any:
    return fx.node.map_aggregate(value, lambda v: v.value if isinstance(v, Named) else v)


def _written(description: Description, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Append a node; returns its value, plain if it does not depend on the input."""
    target: Any = node.target
    known: list[Named] = []
    fx.node.map_aggregate((args, kwargs), lambda v: known.append(v) if isinstance(v, Named) else v)
    if target is operator.getitem and not isinstance(args[0], Named):
        return args[0][args[1]]
    try:
        value = target(*_plain(args), **_plain(kwargs))
    except RuntimeError as error:
        raise UnsupportedLayer(
            f"{node.name}: {target} cannot be computed in float64, so bounds of this network have no "
            f"certificate ({error})."
        ) from error
    first = value[0] if isinstance(value, tuple | list) and value else value
    if not known or not isinstance(first, Tensor) or target in SHAPED:
        return value
    if target in KEEPS:
        return Named(args[0].name, value)
    if target in MOVES and isinstance(args[0], Named) and len(known) == 1:
        numbers = torch.arange(args[0].value.numel()).reshape(args[0].value.shape)
        index = target(numbers, *args[1:], **kwargs)
        if isinstance(value, Tensor):
            return description.add_gather(args[0], index, value)
        return tuple(description.add_gather(args[0], i, v) for i, v in zip(index, value, strict=True))
    handler = HANDLERS.get(target)
    if handler is not None:
        exported = handler(description, value, *args, **kwargs)
        if exported is not None:
            return exported
    raise UnsupportedLayer(
        f"{node.name}: {target} cannot be exported for holdfast-check, so bounds of this network have no "
        f"certificate."
    )


Handler = Callable[..., Any]
HANDLERS: dict[Any, Handler] = {}


def handles(*targets: Any) -> Callable[[Handler], Handler]:
    def keep(function: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(targets, function))
        return function

    return keep


for _target, _op in PLAIN.items():
    HANDLERS[_target] = lambda d, value, x, op=_op: d.one(op, [x], value)
for _target, _op in ARITHMETIC.items():
    HANDLERS[_target] = lambda d, value, a, b, op=_op, alpha=1: (
        d.one(op, [a, b], value) if alpha == 1 else None
    )


@handles(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(d: Description, value: Tensor, a: Any, b: Any, alpha: float = 1) -> Named | None:
    return d.one("Sub", [b, a], value) if alpha == 1 else None


@handles(aten.linear.default)
def _linear(d: Description, value: Tensor, x: Any, weight: Any, bias: Any = None) -> Named | None:
    if not isinstance(x, Named) or isinstance(weight, Named) or isinstance(bias, Named):
        return None
    return d.one("Gemm", [x, weight.T, *([] if bias is None else [bias])], value)


@handles(aten.addmm.default)
def _addmm(d: Description, value: Tensor, bias: Any, x: Any, weight: Any) -> Named | None:
    return _linear(d, value, x, weight.T, bias) if not isinstance(weight, Named) else None


@handles(aten.mm.default, aten.matmul.default)
def _matmul(d: Description, value: Tensor, x: Any, weight: Any) -> Named | None:
    if isinstance(x, Named) and isinstance(weight, Named):
        return d.one("MatMul", [x, weight], value) if min(x.value.dim(), weight.value.dim()) >= 2 else None
    return (
        d.one("MatMul", [x, weight], value) if not isinstance(weight, Named) and weight.dim() == 2 else None
    )


@handles(aten.leaky_relu.default)
def _leaky_relu(d: Description, value: Tensor, x: Named, slope: float = 0.01) -> Named:
    return d.one("LeakyRelu", [x], value, alpha=float(slope))


@handles(aten.hardtanh.default)
def _hardtanh(d: Description, value: Tensor, x: Named, low: float = -1.0, high: float = 1.0) -> Named:
    return d.one("Clip", [x], value, min=float(low), max=float(high))


@handles(aten.relu6.default)
def _relu6(d: Description, value: Tensor, x: Named) -> Named:
    return d.one("Clip", [x], value, min=0.0, max=6.0)


@handles(aten.clamp.default)
def _clamp(
    d: Description, value: Tensor, x: Named, min: float | None = None, max: float | None = None
) -> Named:
    ends = {name: float(end) for name, end in (("min", min), ("max", max)) if end is not None}
    return d.one("Clip", [x], value, **ends)


@handles(aten.clamp_min.default)
def _clamp_min(d: Description, value: Tensor, x: Named, low: float) -> Named:
    return d.one("Clip", [x], value, min=float(low))


@handles(aten.softmax.int, aten._softmax.default)
def _softmax(d: Description, value: Tensor, x: Named, axis: int, *_: Any) -> Named:
    return d.one("Softmax", [x], value, axis=axis)


@handles(aten.log_softmax.int, aten._log_softmax.default)
def _log_softmax(d: Description, value: Tensor, x: Named, axis: int, *_: Any) -> Named:
    return d.one("LogSoftmax", [x], value, axis=axis)


@handles(aten.cat.default)
def _cat(d: Description, value: Tensor, parts: Sequence[Any], axis: int = 0) -> Named:
    return d.one("Concat", list(parts), value, axis=axis)


@handles(aten.stack.default)
def _stack(d: Description, value: Tensor, parts: Sequence[Any], axis: int = 0) -> Named:
    axis %= value.dim()
    each = [
        d.one("Unsqueeze", [part], value, axes=[axis]) if isinstance(part, Named) else part.unsqueeze(axis)
        for part in parts
    ]
    return d.one("Concat", each, value, axis=axis)


def _over(axes: Sequence[int] | None) -> dict[str, list[int]]:
    """The axes of a reduction; none are all of them, in torch as in ONNX."""
    return {"axes": list(axes)} if axes else {}


@handles(aten.mean.dim)
def _mean(
    d: Description, value: Tensor, x: Named, axes: Sequence[int] | None, keep: bool = False, **_: Any
) -> Named:
    return d.one("ReduceMean", [x], value, **_over(axes), keepdims=int(keep))


@handles(aten.sum.dim_IntList)
def _sum(
    d: Description, value: Tensor, x: Named, axes: Sequence[int] | None, keep: bool = False, **_: Any
) -> Named:
    return d.one("ReduceSum", [x], value, **_over(axes), keepdims=int(keep))


def _pairs(value: int | Sequence[int], many: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * many if len(values) == 1 else values


@handles(
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv1d.padding,
    aten.conv2d.padding,
    aten.convolution.default,
)
def _conv(
    d: Description,
    value: Tensor,
    x: Named,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    *rest: Any,
) -> Named | None:
    many = weight.dim() - 2
    if len(rest) > 1 and rest[0]:
        return None  # transposed convolutions are not supported
    groups = rest[-1] if rest else 1
    if isinstance(padding, str):
        if padding != "valid" and any(size % 2 == 0 for size in weight.shape[2:]):
            return None
        padding = [
            0 if padding == "valid" else (k - 1) // 2 * h
            for k, h in zip(weight.shape[2:], _pairs(dilation, many), strict=True)
        ]
    return d.one(
        "Conv",
        [x, weight, *([] if bias is None else [bias])],
        value,
        strides=_pairs(stride, many),
        pads=_pairs(padding, many) * 2,
        dilations=_pairs(dilation, many),
        group=groups,
    )


@handles(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def _transposed_convolution(d: Description, value: Tensor, x: Named, *rest: Any) -> Named | None:
    """The convolution as a matrix: row i is its value at the i-th unit vector, without the bias. Each entry is a
    single weight or zero, so the matrix is exact.
    """
    if any(isinstance(part, Named) for part in rest) or x.value.numel() * value.numel() > LARGEST_MATRIX:
        return None
    target, zero = TRANSPOSED[x.value.dim() - 2], x.value.new_zeros(x.value.shape)
    linear = (rest[0], None, *rest[2:])  # Without the bias, so that no rounding of a sum enters the matrix.
    units = torch.eye(x.value.numel(), dtype=x.value.dtype).reshape(-1, *x.value.shape[1:])
    matrix = torch.cat([target(unit[None], *linear).flatten()[None] for unit in units])
    offset = target(zero, *rest).flatten()
    flat = d.one("Reshape", [x], x.value.reshape(1, -1), shape=[1, -1])
    made = d.one("Gemm", [flat, matrix, offset], value.reshape(1, -1))
    return d.one("Reshape", [made], value, shape=list(value.shape))


# Transposed convolutions by the number of axes of space.
TRANSPOSED = {
    1: aten.conv_transpose1d.default,
    2: aten.conv_transpose2d.input,
    3: aten.conv_transpose3d.input,
}


@handles(aten.silu.default)
def _silu(d: Description, value: Tensor, x: Named) -> Named:
    """x sigmoid(x), which the checker reads as one function of x."""
    return d.one("Mul", [x, d.one("Sigmoid", [x], x.value.sigmoid())], value)


@handles(aten.gelu.default)
def _gelu(d: Description, value: Tensor, x: Named, approximate: str = "none") -> Named:
    return d.one("Gelu", [x], value, approximate=approximate)


@handles(aten.elu.default)
def _elu(
    d: Description, value: Tensor, x: Named, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0
) -> Named | None:
    if inner != 1:
        return None
    made = d.one("Elu", [x], value, alpha=float(alpha))
    return made if scale == 1 else d.one("Mul", [made, float(scale)], value)


@handles(aten.selu.default)
def _selu(d: Description, value: Tensor, x: Named) -> Named:
    return d.one("Mul", [d.one("Elu", [x], value, alpha=SELU_ALPHA), SELU_SCALE], value)


@handles(aten.softplus.default)
def _softplus(
    d: Description, value: Tensor, x: Named, beta: float = 1.0, threshold: float = 20.0
) -> Named | None:
    """The checker's softplus is that of torch with its usual threshold."""
    if beta <= 0 or threshold != 20:
        return None
    if beta == 1:
        return d.one("Softplus", [x], value)
    made = d.one("Softplus", [d.one("Mul", [x, float(beta)], x.value * beta)], value)
    return d.one("Div", [made, float(beta)], value)


@handles(aten.celu.default)
def _celu(d: Description, value: Tensor, x: Named, alpha: float = 1.0) -> Named:
    """alpha elu(x / alpha)."""
    bent = d.one("Elu", [d.one("Div", [x, float(alpha)], x.value / alpha)], value)
    return d.one("Mul", [bent, float(alpha)], value)


@handles(aten.log_sigmoid.default)
def _log_sigmoid(d: Description, value: Tensor, x: Named) -> Named:
    """-log(1 + exp(-x))."""
    return d.one("Neg", [d.one("Softplus", [d.one("Neg", [x], -x.value)], -value)], value)


@handles(aten.glu.default)
def _glu(d: Description, value: Tensor, x: Named, axis: int = -1) -> Named:
    """The first half times the sigmoid of the second."""
    numbers = torch.arange(x.value.numel()).reshape(x.value.shape)
    first, second = (
        d.add_gather(x, index, part)
        for index, part in zip(numbers.chunk(2, axis), x.value.chunk(2, axis), strict=True)
    )
    return d.one("Mul", [first, d.one("Sigmoid", [second], second.value.sigmoid())], value)


@handles(aten.rms_norm.default)
def _rms_norm(
    d: Description,
    value: Tensor,
    x: Named,
    shape: Sequence[int],
    weight: Any = None,
    epsilon: float | None = None,
) -> Named | None:
    """x / sqrt(mean of x^2 + epsilon) weight; without epsilon torch takes that of the type it computes in."""
    if isinstance(weight, Named) or epsilon is None:
        return None
    axes = list(range(value.dim() - len(shape), value.dim()))
    square = d.one("Mul", [x, x], x.value**2)
    mean = x.value.pow(2).mean(axes, keepdim=True)
    means = d.one("ReduceMean", [square], mean, axes=axes, keepdims=1)
    root = d.one("Sqrt", [d.one("Add", [means, float(epsilon)], mean + epsilon)], (mean + epsilon).sqrt())
    normal = d.one("Div", [x, root], x.value / root.value)
    return normal if weight is None else d.one("Mul", [normal, weight], value)


@handles(aten.rsqrt.default)
def _rsqrt(d: Description, value: Tensor, x: Named) -> Named:
    return d.one("Reciprocal", [d.one("Sqrt", [x], x.value.sqrt())], value)


@handles(aten.layer_norm.default, aten.native_layer_norm.default)
def _layer_norm(
    d: Description, value: Any, x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, *rest: Any
) -> Any:
    if not isinstance(x, Named) or isinstance(weight, Named) or isinstance(bias, Named):
        return None
    first = value if isinstance(value, Tensor) else value[0]
    one = torch.ones(tuple(shape), dtype=torch.float64)
    given = [x, one if weight is None else weight, 0 * one if bias is None else bias]
    epsilon = float(rest[0]) if rest else 1e-5
    made = d.one("LayerNormalization", given, first, axis=first.dim() - len(shape), epsilon=epsilon)
    return made if isinstance(value, Tensor) else (made, *value[1:])


@handles(aten.bmm.default)
def _batched_product(d: Description, value: Tensor, a: Any, b: Any) -> Any:
    return _matmul(d, value, a, b)


@handles(aten.scaled_dot_product_attention.default)
def _attention(
    d: Description,
    value: Tensor,
    query: Any,
    key: Any,
    of: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Named | None:
    """softmax(q k' scale + mask) v; masks that exclude positions are not exported."""
    parts = (query, key, of)
    if not all(isinstance(part, Named) for part in parts) or dropout or is_causal or enable_gqa:
        return None
    if isinstance(mask, Named) or (
        mask is not None and not bool(torch.isfinite(mask).all() & (mask.dtype != torch.bool))
    ):
        return None
    factor = 1 / math.sqrt(query.value.shape[-1]) if scale is None else scale
    axes = [*range(key.value.dim() - 2), key.value.dim() - 1, key.value.dim() - 2]
    turned = d.one("Transpose", [key], key.value.transpose(-1, -2), perm=axes)
    scores = d.one("MatMul", [query, turned], query.value @ turned.value)
    scaled = d.one("Mul", [scores, float(factor)], scores.value * factor)
    if mask is not None:
        scaled = d.one("Add", [scaled, mask], scaled.value + mask)
    shares = d.one("Softmax", [scaled], scaled.value.softmax(-1), axis=-1)
    return d.one("MatMul", [shares, of], value)


@handles(aten.pow.Tensor_Scalar, aten.square.default)
def _power(d: Description, value: Tensor, x: Named, exponent: float = 2) -> Named | None:
    """x multiplied by itself, for exponents 2 to 4."""
    if exponent not in (2, 3, 4):
        return None
    power = x
    for number in range(2, int(exponent) + 1):
        power = d.one("Mul", [x, power], x.value**number)
    return power


@handles(aten.prelu.default)
def _prelu(d: Description, value: Tensor, x: Named, weight: Any) -> Named | None:
    """A leaky ReLU if all channels share one slope, else slope x + (1 - slope) relu(x)."""
    if isinstance(weight, Named):
        return None
    if weight.numel() == 1:
        return d.one("LeakyRelu", [x], value, alpha=float(weight))
    slopes = weight.double().reshape(-1, *(1 for _ in value.shape[2:]))
    line = d.one("Mul", [x, slopes], x.value * slopes)
    above = d.one("Mul", [d.one("Relu", [x], x.value.relu()), 1 - slopes], value - line.value)
    return d.one("Add", [line, above], value)


@handles(aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)
def _upsample_nearest(d: Description, value: Tensor, x: Named, *rest: Any) -> Named | None:
    """Repeat elements: where each goes is found with the numbers of the elements."""
    target = {3: aten.upsample_nearest1d.vec, 4: aten.upsample_nearest2d.vec, 5: aten.upsample_nearest3d.vec}
    numbers = torch.arange(x.value.numel(), dtype=torch.float64).reshape(x.value.shape)
    return d.add_gather(x, target[x.value.dim()](numbers, *rest).long(), value)


@handles(aten.hardsigmoid.default)
def _hardsigmoid(d: Description, value: Tensor, x: Named) -> Named:
    """min(max(x + 3, 0), 6) / 6."""
    moved = d.one("Add", [x, 3.0], x.value + 3)
    cut = d.one("Clip", [moved], moved.value.clamp(0, 6), min=0.0, max=6.0)
    return d.one("Div", [cut, 6.0], value)


@handles(aten.hardswish.default)
def _hardswish(d: Description, value: Tensor, x: Named) -> Named:
    return d.one("Mul", [x, _hardsigmoid(d, torch.nn.functional.hardsigmoid(x.value), x)], value)


@handles(aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default)
def _batch_norm(
    d: Description, value: Any, x: Named, weight: Any, bias: Any, mean: Tensor, variance: Tensor, *rest: Any
) -> Any:
    epsilon = float(rest[2] if len(rest) > 2 else rest[1])
    one, zero = torch.ones_like(mean), torch.zeros_like(mean)
    given = [x, one if weight is None else weight, zero if bias is None else bias, mean, variance]
    first = value if isinstance(value, Tensor) else value[0]
    made = d.one("BatchNormalization", given, first, epsilon=epsilon)
    return made if isinstance(value, Tensor) else (made, *value[1:])


@handles(aten.avg_pool1d.default, aten.avg_pool2d.default)
def _avg_pool(
    d: Description,
    value: Tensor,
    x: Named,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    pads: bool = True,
    divisor: Any = None,
) -> Named | None:
    many = value.dim() - 2
    if ceil or divisor is not None or (not pads and any(_pairs(padding, many))):
        return None
    kernel = _pairs(kernel, many)
    strides = _pairs(stride, many) if not isinstance(stride, Sequence) or stride else kernel
    return d.one(
        "AveragePool",
        [x],
        value,
        kernel_shape=kernel,
        strides=strides,
        pads=_pairs(padding, many) * 2,
        count_include_pad=1,
    )


@handles(aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default)
def _adaptive(d: Description, value: Tensor, x: Named, size: Any) -> Named | None:
    sizes = x.value.shape[2:]
    if any(before % after for before, after in zip(sizes, value.shape[2:], strict=True)):
        return None
    kernel = [before // after for before, after in zip(sizes, value.shape[2:], strict=True)]
    return d.one("AveragePool", [x], value, kernel_shape=kernel, strides=kernel)


@handles(aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool2d_with_indices.default)
def _max_pool(
    d: Description,
    value: Any,
    x: Named,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Any:
    first = value if isinstance(value, Tensor) else value[0]
    many = first.dim() - 2
    if ceil:
        return None
    kernel = _pairs(kernel, many)
    strides = _pairs(stride, many) if not isinstance(stride, Sequence) or stride else kernel
    options = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": _pairs(padding, many) * 2,
        "dilations": _pairs(dilation, many),
    }
    made = d.one("MaxPool", [x], first, **options)
    return made if isinstance(value, Tensor) else (made, *value[1:])


# The order of the gates of torch's cells in ONNX: i f g o -> i o f g, r z n -> z r n.
CELLS = {
    aten.lstm.input: ("LSTM", [0, 3, 1, 2]),
    aten.gru.input: ("GRU", [1, 0, 2]),
    aten.rnn_tanh.input: ("RNN", [0]),
}


class RecurrentArguments(NamedTuple):
    """The arguments of aten's recurrent layers after the states, in their order."""

    parameters: Sequence[Any]
    biases: bool
    layers: int
    rate: float
    training: bool
    bidirectional: bool
    batch_first: bool


def _recurrent(
    d: Description, value: Any, op: str, order: list[int], x: Any, states: Any, given: RecurrentArguments
) -> Any:
    """One node for each layer of an LSTM, GRU or RNN; the last states are concatenated over the layers."""
    parameters, biases, layers = given.parameters, given.biases, given.layers
    if (
        not isinstance(x, Named)
        or any(isinstance(s, Named) or bool(s.any()) for s in states)
        or (given.training and given.rate)
    ):
        return None
    many, each = 2 if given.bidirectional else 1, 4 if biases else 2
    if len(parameters) != each * layers * many:
        return None  # LSTMs with projections are not supported
    hidden = parameters[1].shape[1]

    def order_gates(weight: Tensor) -> Tensor:
        return weight.reshape(len(order), hidden, *weight.shape[1:])[order].reshape(weight.shape)

    frames, lasts = x, []
    if given.batch_first:
        frames = d.one("Transpose", [x], x.value.transpose(0, 1), perm=[1, 0, 2])
    for layer in range(layers):
        own = [
            [order_gates(w) for w in parameters[k * each : (k + 1) * each]]
            for k in range(layer * many, (layer + 1) * many)
        ]
        w, r = (torch.stack([weights[place] for weights in own]) for place in (0, 1))
        b = torch.stack(
            [torch.cat(weights[2:]) if biases else w.new_zeros(2 * len(order) * hidden) for weights in own]
        )
        options = {"hidden_size": hidden, "direction": "bidirectional" if given.bidirectional else "forward"}
        options |= {"linear_before_reset": 1} if op == "GRU" else {}
        names = d.put(op, [frames, w, r, b], outputs=3 if op == "LSTM" else 2, **options)
        shape = (frames.value.shape[0], 1, many * hidden)
        together = d.one("Transpose", [Named(names[0], w)], w, perm=[0, 2, 1, 3])
        frames = d.one("Reshape", [together], x.value.new_zeros(shape), shape=list(shape))
        lasts.append(names[1:])
    outputs = (
        d.one("Transpose", [frames], value[0], perm=[1, 0, 2])
        if given.batch_first
        else Named(frames.name, value[0])
    )
    ends = []
    for place, whole in enumerate(value[1:]):
        named = [Named(names[place], whole) for names in lasts]
        ends.append(named[0] if layers == 1 else d.one("Concat", named, whole, axis=0))
    return (outputs, *(Named(end.name, whole) for end, whole in zip(ends, value[1:], strict=True)))


@handles(aten.lstm.input)
def _lstm(d: Description, value: Any, x: Any, states: Any, *rest: Any) -> Any:
    return _recurrent(d, value, *CELLS[aten.lstm.input], x, states, RecurrentArguments(*rest))


@handles(aten.gru.input)
def _gru(d: Description, value: Any, x: Any, state: Any, *rest: Any) -> Any:
    return _recurrent(d, value, *CELLS[aten.gru.input], x, [state], RecurrentArguments(*rest))


@handles(aten.rnn_tanh.input)
def _rnn(d: Description, value: Any, x: Any, state: Any, *rest: Any) -> Any:
    return _recurrent(d, value, *CELLS[aten.rnn_tanh.input], x, [state], RecurrentArguments(*rest))
