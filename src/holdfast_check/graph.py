"""What a model's graph means: ONNX's operators, one function each, as steps. Batches hold one input."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected
from holdfast_check.functions import RELU, Pieces, Product
from holdfast_check.steps import Applied, Builder, Program, View

Value = View | Array  # what depends on the input, and what does not


@dataclass(frozen=True)
class Node:
    op: str
    inputs: tuple[str, ...]  # "" for one that is left out
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Graph:
    """A model as its file says it."""

    input: str
    input_shape: tuple[int, ...]  # with the batch axis, of one
    output: str
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]


Operator = Callable[[Builder, Node, list[Any]], Any]
OPERATORS: dict[str, Operator] = {}
MOVING = {"Identity", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Gather"}


def operator(*names: str) -> Callable[[Operator], Operator]:
    def keep(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return keep


def program(graph: Graph) -> Program:
    """The steps of a graph; Rejected where it has an operator that is not known here."""
    from holdfast_check import recurrent  # noqa: F401  registers LSTM, GRU and RNN

    builder = Builder(graph.input_shape)
    values: dict[str, Value] = {**graph.constants, graph.input: builder.input}
    ranked: set[str] = set()  # values of which only the order is known: those of a softmax stand in for what it makes of them
    for node in graph.nodes:
        if ranked.intersection(node.inputs):
            if node.op not in MOVING:
                raise Rejected(f"{node.op} reads what a softmax makes; this checker knows a softmax as the last step only")
            ranked.update(node.outputs)
        if node.op not in OPERATORS:
            raise Rejected(f"operator {node.op} is not known to this checker")
        missing = [name for name in node.inputs if name and name not in values]
        if missing:
            raise Rejected(f"{node.op} reads {missing[0]}, which nothing has made")
        try:
            made = OPERATORS[node.op](builder, node, [values[name] if name else None for name in node.inputs])
        except (ValueError, IndexError, TypeError, KeyError, AssertionError, ZeroDivisionError, MemoryError) as error:
            raise Rejected(f"{node.op}, which makes {node.outputs[0]}, cannot be read: {error}") from error
        if node.op in ("Softmax", "LogSoftmax"):
            ranked.update(node.outputs)
        values.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False))
    output = values.get(graph.output)
    if not isinstance(output, View):
        raise Rejected("the output does not depend on the input")
    return Program(graph.input_shape, builder.steps, output, graph.output in ranked)


def _ints(value: Any) -> list[int]:
    return [int(number) for number in np.ravel(value)]


def _moved(value: Value, move: Callable[[Array], Array]) -> Value:
    """Elements in other places; of a constant too. What is padded in is zero."""
    return View(value.step, move(value.index)) if isinstance(value, View) else move(value)


def _view(value: Value) -> View:
    assert isinstance(value, View), "two constants: arithmetic among constants is for whoever wrote the model"
    return value


@operator("Identity", "Dropout", "Cast")
def identity(builder: Builder, node: Node, given: list[Any]) -> Value:
    """To another kind of number only where that changes none: the network is one over real numbers."""
    if node.op == "Cast" and isinstance(given[0], View):
        assert node.attributes["to"] in (1, 11), "a cast of what depends on the input"
    value: Value = given[0]
    return value


@operator("Constant")
def constant(builder: Builder, node: Node, given: list[Any]) -> Value:
    [(_, value)] = node.attributes.items()
    return np.asarray(value)


@operator("Shape")
def shape(builder: Builder, node: Node, given: list[Any]) -> Value:
    return np.array(given[0].shape, dtype=np.int64)


@operator("ConstantOfShape")
def constant_of_shape(builder: Builder, node: Node, given: list[Any]) -> Value:
    return np.full(_ints(given[0]), np.ravel(node.attributes.get("value", [0.0]))[0])


@operator("Reshape", "Flatten")
def reshape(builder: Builder, node: Node, given: list[Any]) -> Value:
    old = given[0].shape
    if node.op == "Flatten":
        axis = int(node.attributes.get("axis", 1))
        new = [int(np.prod(old[:axis])), int(np.prod(old[axis:]))]
    else:
        wanted = node.attributes["shape"] if "shape" in node.attributes else given[1]
        new = [old[i] if size == 0 else size for i, size in enumerate(_ints(wanted))]
    return _moved(given[0], lambda v: v.reshape(new))


@operator("Transpose")
def transpose(builder: Builder, node: Node, given: list[Any]) -> Value:
    return _moved(given[0], lambda v: v.transpose(_ints(node.attributes["perm"]) if "perm" in node.attributes else None))


@operator("Squeeze", "Unsqueeze")
def squeeze(builder: Builder, node: Node, given: list[Any]) -> Value:
    axes = _ints(node.attributes["axes"] if "axes" in node.attributes else given[1]) if len(given) > 1 or node.attributes else None
    if node.op == "Squeeze":
        return _moved(given[0], lambda v: v.squeeze(None if axes is None else tuple(axes)))
    return _moved(given[0], lambda v: np.expand_dims(v, tuple(axes or ())))


@operator("Slice")
def slice_(builder: Builder, node: Node, given: list[Any]) -> Value:
    names = ("starts", "ends", "axes", "steps")
    parts = [node.attributes.get(name) for name in names] if len(given) == 1 else [*given[1:], None, None][:4]
    starts, ends = _ints(parts[0]), _ints(parts[1])
    axes = range(len(starts)) if parts[2] is None else _ints(parts[2])
    steps = [1] * len(starts) if parts[3] is None else _ints(parts[3])
    where = [slice(None)] * len(given[0].shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        where[axis] = slice(start, None if step < 0 and end < -(2**31) else end, step)
    return _moved(given[0], lambda v: v[tuple(where)])


@operator("Gather")
def gather(builder: Builder, node: Node, given: list[Any]) -> Value:
    return _moved(given[0], lambda v: np.take(v, given[1].astype(np.int64), int(node.attributes.get("axis", 0))))


@operator("Expand")
def expand(builder: Builder, node: Node, given: list[Any]) -> Value:
    return _moved(given[0], lambda v: np.broadcast_to(v, np.broadcast_shapes(v.shape, tuple(_ints(given[1])))))


@operator("Split")
def split(builder: Builder, node: Node, given: list[Any]) -> tuple[Value, ...]:
    axis, count = int(node.attributes.get("axis", 0)), len(node.outputs)
    sizes = node.attributes.get("split") if len(given) < 2 else given[1]
    ends = np.cumsum(_ints(sizes))[:-1] if sizes is not None else count
    pieces = np.array_split(np.arange(given[0].shape[axis]), ends) if sizes is None else np.split(np.arange(given[0].shape[axis]), ends)
    return tuple(_moved(given[0], lambda v, piece=piece: np.take(v, piece, axis)) for piece in pieces)  # type: ignore[misc]


@operator("Concat")
def concat(builder: Builder, node: Node, given: list[Any]) -> Value:
    axis = int(node.attributes["axis"])
    if not any(isinstance(value, View) for value in given):
        return np.concatenate(given, axis)
    views = [v if isinstance(v, View) else builder.affine(node.outputs[0], v.shape, [], v) for v in given]
    return builder.joined(node.outputs[0], views, axis)


@operator("Pad")
def pad(builder: Builder, node: Node, given: list[Any]) -> Value:
    pads = _ints(node.attributes["pads"] if "pads" in node.attributes else given[1])
    filled = given[2] if len(given) > 2 and given[2] is not None else node.attributes.get("value", 0.0)
    assert node.attributes.get("mode", "constant") == "constant" and float(np.ravel(filled)[0]) == 0.0, "padding with other than zeros"
    return _moved(given[0], lambda v: np.pad(v, list(zip(pads[: v.ndim], pads[v.ndim :], strict=True)), constant_values=-1))


@operator("MatMul", "Gemm")
def matmul(builder: Builder, node: Node, given: list[Any]) -> Value:
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    assert alpha == 1.0 and beta == 1.0, "factors other than one"
    x, weight = given[:2]
    x = _moved(x, np.transpose) if node.attributes.get("transA") else x
    weight = _moved(weight, np.transpose) if node.attributes.get("transB") else weight
    if isinstance(weight, View):  # y = A x, as (x' A')'
        assert not isinstance(x, View), "the product of two matrices that both depend on the input"
        x, weight = _moved(weight, np.transpose), x.T
        return _moved(linear(builder, node.outputs[0], _view(x), weight), np.transpose)
    bias = given[2] if len(given) > 2 and given[2] is not None else 0.0
    return linear(builder, node.outputs[0], _view(x), weight, bias)


def linear(builder: Builder, name: str, x: View, weight: Array, bias: Array | float = 0.0, size: Array | None = None) -> View:
    """(..., k) times (k, n) plus a bias."""
    assert weight.ndim == 2 and x.shape[-1] == len(weight), f"shapes {x.shape} and {weight.shape}"
    return builder.affine(name, (*x.shape[:-1], weight.shape[1]), [(x, weight.astype(np.float64), None)], bias, size)


def _windows(node: Node, sizes: tuple[int, ...], kernel: list[int]) -> tuple[list[tuple[int, int]], tuple[Array, ...], list[int]]:
    """Of a convolution or a pool over axes of these sizes: their padding, for every axis (places, kernel) what is read, how many places."""
    attributes, many = node.attributes, len(sizes)
    assert attributes.get("auto_pad", "NOTSET") in ("NOTSET", b"NOTSET", "VALID"), "automatic padding"
    assert not attributes.get("ceil_mode"), "ceil_mode"
    strides, holes = _ints(attributes.get("strides", [1] * many)), _ints(attributes.get("dilations", [1] * many))
    pads = _ints(attributes.get("pads", [0] * 2 * many))
    around = list(zip(pads[:many], pads[many:], strict=True))
    counts = [(s + a + b - h * (k - 1) - 1) // t + 1 for s, (a, b), h, k, t in zip(sizes, around, holes, kernel, strides, strict=True)]
    reads = [np.arange(c)[:, None] * t + np.arange(k) * h for c, t, k, h in zip(counts, strides, kernel, holes, strict=True)]
    return around, tuple(reads), counts


def _read(x: View, around: list[tuple[int, int]], reads: tuple[Array, ...]) -> Array:
    """(1, channels, *sizes) -> (channels, *places, *kernel): the elements that every window reads."""
    index = np.pad(x.index[0], [(0, 0), *around], constant_values=-1)
    for axis, read in enumerate(reads):  # every axis becomes two, (places, kernel), the second moved to the end
        index = np.moveaxis(np.take(index, read, 1 + axis), 2 + axis, -1)
    return index


@operator("Conv")
def convolution(builder: Builder, node: Node, given: list[Any]) -> Value:
    x, weight, name = _view(given[0]), given[1].astype(np.float64), node.outputs[0]
    groups, axes = int(node.attributes.get("group", 1)), weight.ndim - 2
    around, reads, counts = _windows(node, x.shape[2:], list(weight.shape[2:]))
    index = _read(x, around, reads)
    inside, outside = weight.shape[1], len(weight) // groups
    bias = given[2] if len(given) > 2 and given[2] is not None else np.zeros(len(weight))
    places = np.arange(len(weight) * int(np.prod(counts))).reshape(len(weight), -1)
    parts: list[tuple[View, Array | None, Array | None]] = []
    for group in range(groups):
        own = index[group * inside : (group + 1) * inside].reshape(inside, -1, int(np.prod(weight.shape[2:]))).transpose(1, 0, 2)
        rows = slice(group * outside, (group + 1) * outside)
        parts.append((View(x.step, own), weight[rows].reshape(outside, -1).T, places[rows].T.ravel()))
    shape = (1, len(weight), *counts)
    return builder.affine(name, shape, parts, bias.astype(np.float64).reshape(1, -1, *[1] * axes))


@operator("AveragePool", "GlobalAveragePool")
def average_pool(builder: Builder, node: Node, given: list[Any]) -> Value:
    x = _view(given[0])
    kernel = list(x.shape[2:]) if node.op == "GlobalAveragePool" else _ints(node.attributes["kernel_shape"])
    around, reads, counts = _windows(node, x.shape[2:], kernel)
    assert node.attributes.get("count_include_pad") or not any(map(any, around)), "means that leave out what is padded"
    index, many = _read(x, around, reads), int(np.prod(kernel))
    windows = View(x.step, index.reshape(1, x.shape[1], *counts, many))
    return _moved(linear(builder, node.outputs[0], windows, np.full((many, 1), 1.0 / many)), lambda v: v[..., 0])


@operator("MaxPool")
def max_pool(builder: Builder, node: Node, given: list[Any]) -> Value:
    """In pairs. What is padded is never the largest: the first number that the window has on that axis stands for it once more."""
    x = _view(given[0])
    around, reads, counts = _windows(node, x.shape[2:], _ints(node.attributes["kernel_shape"]))
    real = [(read >= before) & (read < before + size) for read, (before, _), size in zip(reads, around, x.shape[2:], strict=True)]
    assert all(inside.any(1).all() for inside in real), "a window that sees padding only"
    firsts = [np.take_along_axis(read, inside.argmax(1)[:, None], 1) for read, inside in zip(reads, real, strict=True)]
    seen = tuple(np.where(inside, read, first) for inside, read, first in zip(real, reads, firsts, strict=True))
    index = _read(x, around, seen).reshape(1, x.shape[1], *counts, -1)
    values = [View(x.step, index[..., place]) for place in range(index.shape[-1])]
    while len(values) > 1:
        pairs = [builder.larger(node.outputs[0], a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


@operator("Max", "Min")
def largest(builder: Builder, node: Node, given: list[Any]) -> Value:
    sign, name = (1.0 if node.op == "Max" else -1.0), node.outputs[0]
    views = [builder.scaled(name, [(v, sign)]) if isinstance(v, View) else builder.affine(name, v.shape, [], sign * v) for v in given]
    result = views[0]
    for other in views[1:]:
        result = builder.larger(name, result, other)
    return builder.scaled(name, [(result, sign)])


@operator("ReduceMean", "ReduceSum")
def reduce(builder: Builder, node: Node, given: list[Any]) -> Value:
    x, keep = _view(given[0]), bool(node.attributes.get("keepdims", 1))
    axes = node.attributes.get("axes") if len(given) < 2 else given[1]
    over = tuple(axis % len(x.shape) for axis in (_ints(axes) if axes is not None else range(len(x.shape))))
    rest = [axis for axis in range(len(x.shape)) if axis not in over]
    many = int(np.prod([x.shape[axis] for axis in over]))
    index = x.index.transpose(*rest, *over).reshape(*(x.shape[axis] for axis in rest), many)
    total = linear(builder, node.outputs[0], View(x.step, index), np.full((many, 1), 1.0 / many if node.op == "ReduceMean" else 1.0))
    kept = [1 if axis in over else x.shape[axis] for axis in range(len(x.shape))] if keep else [x.shape[axis] for axis in rest]
    return _moved(total, lambda v: v.reshape(kept))


@operator("Add", "Sub")
def add(builder: Builder, node: Node, given: list[Any]) -> Value:
    (a, b), sign, name = given, (1.0 if node.op == "Add" else -1.0), node.outputs[0]
    if isinstance(a, View) and isinstance(b, View):
        return builder.scaled(name, [(a, 1.0), (b, sign)])
    return builder.scaled(name, [(a, 1.0)], sign * b) if isinstance(a, View) else builder.scaled(name, [(_view(b), sign)], a)


@operator("Mul")
def multiply(builder: Builder, node: Node, given: list[Any]) -> Value:
    """Of two values: where they are a sigmoid or a tanh, the product of these functions of what they read."""
    a, b = given
    if not (isinstance(a, View) and isinstance(b, View)):
        return builder.scaled(node.outputs[0], [(a, b)] if isinstance(a, View) else [(_view(b), a)])
    (f, v), (g, z) = _factor(builder, a), _factor(builder, b)
    return builder.applied(node.outputs[0], Product(f, g), v, z)


def _factor(builder: Builder, value: View) -> tuple[str, View]:
    step = builder.steps[value.step]
    if isinstance(step, Applied) and isinstance(step.function, Product) and step.function.arguments == 1 and bool((value.index >= 0).all()):
        return step.function.f, View(step.parts[0].source, step.parts[0].take[value.index])
    return "identity", value


@operator("Div")
def divide(builder: Builder, node: Node, given: list[Any]) -> Value:
    assert isinstance(given[0], View) and not isinstance(given[1], View), "division by what depends on the input"
    return builder.scaled(node.outputs[0], [(given[0], 1.0 / given[1].astype(np.float64))])


@operator("Neg")
def negative(builder: Builder, node: Node, given: list[Any]) -> Value:
    return builder.scaled(node.outputs[0], [(_view(given[0]), -1.0)])


@operator("BatchNormalization")
def batch_norm(builder: Builder, node: Node, given: list[Any]) -> Value:
    """factor (x - mean) + shift; the factor is rounded four times."""
    x = _view(given[0])
    scale, shift, mean, variance = (part.astype(np.float64).reshape(-1, *[1] * (len(x.shape) - 2)) for part in given[1:])
    factor = scale / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
    return builder.scaled(node.outputs[0], [(x, factor)], shift - factor * mean, np.abs(shift) + np.abs(factor * mean))


@operator("Softmax", "LogSoftmax")
def softmax(builder: Builder, node: Node, given: list[Any]) -> Value:
    """Over all numbers there are; `program` sees to it that only their order is asked for."""
    x = _view(given[0])
    assert x.index.size == x.shape[int(node.attributes.get("axis", -1))], "a softmax that does not go over all outputs"
    return x


@operator("Relu", "LeakyRelu", "Abs", "Clip", "Sigmoid", "Tanh")
def function(builder: Builder, node: Node, given: list[Any]) -> Value:
    x, attributes = _view(given[0]), node.attributes
    if node.op in ("Sigmoid", "Tanh"):
        return builder.applied(node.outputs[0], Product(node.op.lower()), x)
    if node.op == "Clip":
        ends = [*given[1:], None, None][:2] if len(given) > 1 else [attributes.get("min"), attributes.get("max")]
        low, high = (None if end is None else float(np.ravel(end)[0]) for end in ends)
        if low is None:
            made = RELU if high is None else Pieces((high,), (1.0, 0.0), high)
            assert high is not None, "a clip without ends"
        else:
            made = Pieces((low,), (0.0, 1.0), low) if high is None else Pieces((low, high), (0.0, 1.0, 0.0), low)
        return builder.applied(node.outputs[0], made, x)
    below = {"Relu": 0.0, "Abs": -1.0, "LeakyRelu": float(attributes.get("alpha", 0.01))}[node.op]
    return builder.applied(node.outputs[0], Pieces((0.0,), (below, 1.0), 0.0), x)
