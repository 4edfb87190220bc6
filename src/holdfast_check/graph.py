"""What a model's graph means: each of ONNX's operators as steps. Batches hold one input."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected, require
from holdfast_check.functions import Pieces, Product
from holdfast_check.steps import Applied, Builder, Program, View

Value = View | Array  # what depends on the input, and what does not
PLACES = {"Identity", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Gather"}  # change the places of numbers only
UNREADABLE = ValueError, IndexError, TypeError, KeyError, AttributeError, ZeroDivisionError, MemoryError, OverflowError


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


def program(graph: Graph) -> Program:
    """The steps of a graph; Rejected where it has an operator that is not known here."""
    from holdfast_check.recurrent import GATES, unrolled

    builder = Builder(graph.input_shape)
    values: dict[str, Value] = {**graph.constants, graph.input: builder.input}
    ranked: set[str] = set()  # values of which only the order is known: those that a softmax reads stand for what it makes of them
    for node in graph.nodes:
        if ranked.intersection(node.inputs) and node.op not in PLACES:
            raise Rejected(f"{node.op} reads what a softmax makes; this checker knows a softmax as the last step only")
        if ranked.intersection(node.inputs) or node.op in ("Softmax", "LogSoftmax"):
            ranked.update(node.outputs)
        operator = getattr(Operators(builder, node), node.op, None) if node.op[:1].isupper() else None
        if operator is None and node.op not in GATES:
            raise Rejected(f"operator {node.op} is not known to this checker")
        try:
            given = tuple(values[name] if name else None for name in node.inputs)
            made = unrolled(builder, node, given) if operator is None else operator(*given)
        except UNREADABLE as error:
            raise Rejected(f"{node.op}, which makes {node.outputs}, cannot be followed: {error}") from error
        values.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False))
    output = values.get(graph.output)
    if not isinstance(output, View):
        raise Rejected("the output does not depend on the input")
    return Program(graph.input_shape, builder.steps, output, graph.output in ranked)


def _ints(value: Any) -> list[int]:
    return [int(number) for number in np.ravel(value)]


def _moved(value: Value, move: Callable[[Array], Array]) -> Value:
    """Elements in other places; of a constant too."""
    return View(value.step, move(value.index)) if isinstance(value, View) else move(value)


def _view(value: Value) -> View:
    if not isinstance(value, View):
        raise Rejected("arithmetic among constants is left to whoever writes the model")
    return value


class Operators:
    """One node; a method for each operator, called with the values that the node reads."""

    def __init__(self, builder: Builder, node: Node) -> None:
        self.builder, self.name, self.op, self.attributes = builder, (*node.outputs, "")[0], node.op, node.attributes
        self.outputs = len(node.outputs)

    def _option(self, name: str, given: Any, otherwise: Any = None) -> Any:
        """An input of newer versions of an operator, an attribute of older ones."""
        return given if given is not None else self.attributes.get(name, otherwise)

    def Identity(self, x: Value, *_: Any) -> Value:
        return x

    Dropout = Identity

    def Cast(self, x: Value) -> Value:
        """The network is one over real numbers: only casts that are to keep a number what it is."""
        require(not isinstance(x, View) or self.attributes["to"] in (1, 11), "a cast of what depends on the input")
        return x

    def Constant(self) -> Value:
        [value] = self.attributes.values()
        return np.asarray(value)

    def Shape(self, x: Value) -> Value:
        return np.array(x.shape, dtype=np.int64)

    def ConstantOfShape(self, shape: Array) -> Value:
        return np.full(_ints(shape), np.ravel(self.attributes.get("value", [0.0]))[0])

    def Reshape(self, x: Value, shape: Any = None) -> Value:
        sizes = _ints(self._option("shape", shape))
        return _moved(x, lambda v: v.reshape([v.shape[i] if size == 0 else size for i, size in enumerate(sizes)]))

    def Flatten(self, x: Value) -> Value:
        axis = int(self.attributes.get("axis", 1))
        return _moved(x, lambda v: v.reshape(int(np.prod(v.shape[:axis])), -1))

    def Transpose(self, x: Value) -> Value:
        return _moved(x, lambda v: v.transpose(self.attributes.get("perm")))

    def Squeeze(self, x: Value, axes: Any = None) -> Value:
        given = self._option("axes", axes)
        return _moved(x, lambda v: v.squeeze(None if given is None else tuple(_ints(given))))

    def Unsqueeze(self, x: Value, axes: Any = None) -> Value:
        return _moved(x, lambda v: np.expand_dims(v, tuple(_ints(self._option("axes", axes)))))

    def Expand(self, x: Value, shape: Array) -> Value:
        return _moved(x, lambda v: np.broadcast_to(v, np.broadcast_shapes(v.shape, tuple(_ints(shape)))))

    def Gather(self, x: Value, indices: Array) -> Value:
        return _moved(x, lambda v: np.take(v, indices.astype(np.int64), int(self.attributes.get("axis", 0))))

    def Slice(self, x: Value, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Value:
        first, last = _ints(self._option("starts", starts)), _ints(self._option("ends", ends))
        along, by = _ints(self._option("axes", axes, range(len(first)))), _ints([1] * len(first) if steps is None else steps)
        where = [slice(None)] * len(x.shape)
        for start, end, axis, step in zip(first, last, along, by, strict=True):
            where[axis] = slice(start, None if step < 0 and end < -(2**31) else end, step)
        return _moved(x, lambda v: v[tuple(where)])

    def Split(self, x: Value, sizes: Any = None) -> tuple[Value, ...]:
        axis, given = int(self.attributes.get("axis", 0)), self._option("split", sizes)
        places = np.split(np.arange(x.shape[axis]), self.outputs if given is None else np.cumsum(_ints(given))[:-1])
        return tuple(_moved(x, lambda v, place=place: np.take(v, place, axis)) for place in places)  # type: ignore[misc]

    def Concat(self, *given: Value) -> Value:
        axis = int(self.attributes["axis"])
        plain = [value for value in given if not isinstance(value, View)]
        if len(plain) == len(given):
            return np.concatenate(plain, axis)
        views = [v if isinstance(v, View) else self.builder.affine(self.name, v.shape, [], v) for v in given]
        return self.builder.joined(self.name, views, axis)

    def Pad(self, x: Value, pads: Any = None, filled: Any = None, *_: Any) -> Value:
        around, value = _ints(self._option("pads", pads)), np.ravel(self._option("value", filled, 0.0))[0]
        require(self.attributes.get("mode", "constant") == "constant" and value == 0.0, "padding with other than zeros")
        view, many = _view(x), len(x.shape)
        return View(view.step, np.pad(view.index, list(zip(around[:many], around[many:], strict=True)), constant_values=-1))

    def Gemm(self, x: Value, weight: Value, bias: Array | None = None) -> Value:
        require(self.attributes.get("alpha", 1.0) == 1.0 and self.attributes.get("beta", 1.0) == 1.0, "factors other than one")
        x, weight = (_moved(v, np.transpose) if self.attributes.get(t) else v for v, t in ((x, "transA"), (weight, "transB")))
        if isinstance(weight, View):  # A x, as (x' A')'
            if isinstance(x, View) or bias is not None:
                raise Rejected("the product of two matrices that both depend on the input")
            return _moved(self._linear(View(weight.step, weight.index.T), x.T), np.transpose)
        return self._linear(_view(x), weight, 0.0 if bias is None else bias)

    MatMul = Gemm

    def _linear(self, x: View, weight: Array, bias: Array | float = 0.0) -> View:
        """(..., k) times (k, n) plus a bias."""
        require(weight.ndim == 2 and x.shape[-1] == len(weight), f"shapes {x.shape} and {weight.shape}")
        return self.builder.affine(self.name, (*x.shape[:-1], weight.shape[1]), [(x, weight.astype(np.float64), None)], bias)

    def _windows(self, x: View, kernel: list[int], largest: bool = False) -> tuple[Array, list[int]]:
        """(1, channels, *sizes) -> what every window reads, (channels, *places, *kernel), and how many places each axis has. Where the
        largest is asked for, the first number that a window has on an axis stands once more for what is padded, else a zero."""
        sizes, attributes = x.shape[2:], self.attributes
        require(attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID") and not attributes.get("ceil_mode"), "automatic padding")
        strides, holes = (_ints(attributes.get(name, [1] * len(sizes))) for name in ("strides", "dilations"))
        pads = _ints(attributes.get("pads", [0] * 2 * len(sizes)))
        index, counts = x.index[0], []
        for axis, (size, k, step, hole) in enumerate(zip(sizes, kernel, strides, holes, strict=True)):
            before, after = pads[axis], pads[axis + len(sizes)]
            counts.append((size + before + after - hole * (k - 1) - 1) // step + 1)
            reads = np.arange(counts[-1])[:, None] * step + np.arange(k) * hole - before
            real = (reads >= 0) & (reads < size)
            require(real.any(1).all() or not largest, "a window that sees padding only")
            first = np.take_along_axis(reads, real.argmax(1)[:, None], 1)
            reads = np.where(real, reads, first if largest else size)
            index = np.concatenate([index, np.full_like(np.take(index, [0], 1 + axis), -1)], 1 + axis)
            index = np.moveaxis(np.take(index, reads, 1 + axis), 2 + axis, -1)
        return index, counts

    def Conv(self, x: Value, weight: Array, bias: Array | None = None) -> Value:
        view, groups = _view(x), int(self.attributes.get("group", 1))
        index, counts = self._windows(view, list(weight.shape[2:]))
        inside, outside = weight.shape[1], len(weight) // groups
        places = np.arange(len(weight) * int(np.prod(counts))).reshape(len(weight), -1)
        parts: list[tuple[View, Array | None, Array | None]] = []
        for group in range(groups):
            own = index[group * inside : (group + 1) * inside].reshape(inside, places.shape[1], -1).transpose(1, 0, 2)
            rows = slice(group * outside, (group + 1) * outside)
            parts.append((View(view.step, own), weight[rows].reshape(outside, -1).T.astype(np.float64), places[rows].T.ravel()))
        offset = np.zeros(len(weight)) if bias is None else bias.astype(np.float64)
        return self.builder.affine(self.name, (1, len(weight), *counts), parts, offset.reshape(1, -1, *[1] * len(counts)))

    def AveragePool(self, x: Value) -> Value:
        view = _view(x)
        padded = any(_ints(self.attributes.get("pads", [0])))
        require(self.attributes.get("count_include_pad") or not padded, "means that leave out what is padded")
        kernel = _ints(self.attributes.get("kernel_shape", view.shape[2:]))
        index, counts = self._windows(view, kernel)
        many = int(np.prod(kernel))
        windows = View(view.step, index.reshape(1, view.shape[1], *counts, many))
        return _moved(self._linear(windows, np.full((many, 1), 1.0 / many)), lambda v: v[..., 0])

    GlobalAveragePool = AveragePool

    def MaxPool(self, x: Value) -> Value:
        """In pairs."""
        view = _view(x)
        index, counts = self._windows(view, _ints(self.attributes["kernel_shape"]), largest=True)
        index = index.reshape(1, view.shape[1], *counts, -1)
        values = [View(view.step, index[..., place]) for place in range(index.shape[-1])]
        while len(values) > 1:
            pairs = [self.builder.larger(self.name, a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
            values = pairs + values[len(pairs) * 2 :]
        return values[0]

    def Max(self, *given: Value) -> Value:
        sign = 1.0 if self.op == "Max" else -1.0
        build, name = self.builder, self.name
        views = [build.scaled(name, [(v, sign)]) if isinstance(v, View) else build.affine(name, v.shape, [], sign * v) for v in given]
        result = views[0]
        for other in views[1:]:
            result = build.larger(name, result, other)
        return build.scaled(name, [(result, sign)])

    Min = Max

    def ReduceSum(self, x: Value, axes: Any = None) -> Value:
        view, given = _view(x), self._option("axes", axes, range(len(x.shape)))
        over = [axis % len(x.shape) for axis in _ints(given)]
        rest = [axis for axis in range(len(x.shape)) if axis not in over]
        many = int(np.prod([x.shape[axis] for axis in over]))
        windows = View(view.step, view.index.transpose(*rest, *over).reshape(*(x.shape[axis] for axis in rest), many))
        total = self._linear(windows, np.full((many, 1), 1.0 / many if self.op == "ReduceMean" else 1.0))
        kept = [1 if axis in over else size for axis, size in enumerate(x.shape) if self.attributes.get("keepdims", 1) or axis in rest]
        return _moved(total, lambda v: v.reshape(kept))

    ReduceMean = ReduceSum

    def Add(self, a: Value, b: Value) -> Value:
        sign = -1.0 if self.op == "Sub" else 1.0
        if not isinstance(a, View):
            return self.builder.scaled(self.name, [(_view(b), sign)], a)
        if not isinstance(b, View):
            return self.builder.scaled(self.name, [(a, 1.0)], sign * b)
        return self.builder.scaled(self.name, [(a, 1.0), (b, sign)])

    Sub = Add

    def Mul(self, a: Value, b: Value) -> Value:
        """Of two values: where they are a sigmoid or a tanh, the product of these functions of what they read."""
        if not isinstance(a, View):
            a, b = b, a
        if not isinstance(b, View):
            return self.builder.scaled(self.name, [(_view(a), b)])
        (f, v), (g, z) = self._factor(_view(a)), self._factor(b)
        return self.builder.applied(self.name, Product(f, g), v, z)

    def _factor(self, value: View) -> tuple[str, View]:
        step = self.builder.steps[value.step]
        if isinstance(step, Applied) and isinstance(step.function, Product) and step.function.arguments == 1 and (value.index >= 0).all():
            return step.function.f, View(step.parts[0].source, step.parts[0].take[value.index])
        return "identity", value

    def Div(self, a: Value, b: Value) -> Value:
        if isinstance(b, View):
            raise Rejected("division by what depends on the input")
        return self.builder.scaled(self.name, [(_view(a), 1.0 / b.astype(np.float64))])

    def Neg(self, x: Value) -> Value:
        return self.builder.scaled(self.name, [(_view(x), -1.0)])

    def BatchNormalization(self, x: Value, *weights: Array) -> Value:
        """factor (x - mean) + shift; the factor is rounded four times."""
        scale, shift, mean, variance = (part.astype(np.float64).reshape(-1, *[1] * (len(x.shape) - 2)) for part in weights)
        factor = scale / np.sqrt(variance + float(self.attributes.get("epsilon", 1e-5)))
        return self.builder.scaled(self.name, [(_view(x), factor)], shift - factor * mean, np.abs(shift) + np.abs(factor * mean))

    def Softmax(self, x: Value) -> Value:
        """What it reads: `program` sees to it that only the order of the outputs is asked for."""
        require(_view(x).index.size == x.shape[int(self.attributes.get("axis", -1))], "a softmax that does not go over all outputs")
        return x

    LogSoftmax = Softmax

    def Sigmoid(self, x: Value) -> Value:
        return self.builder.applied(self.name, Product(self.op.lower()), _view(x))

    Tanh = Sigmoid

    def Relu(self, x: Value) -> Value:
        below = {"Relu": 0.0, "Abs": -1.0, "LeakyRelu": float(self.attributes.get("alpha", 0.01))}[self.op]
        return self.builder.applied(self.name, Pieces((0.0,), (below, 1.0), 0.0), _view(x))

    Abs = LeakyRelu = Relu

    def Clip(self, x: Value, least: Any = None, most: Any = None) -> Value:
        given = ("min", self._option("min", least)), ("max", self._option("max", most))
        ends = [(end, float(np.ravel(value)[0])) for end, value in given if value is not None]
        factors = {("min",): (0.0, 1.0), ("max",): (1.0, 0.0), ("min", "max"): (0.0, 1.0, 0.0)}[tuple(end for end, _ in ends)]
        return self.builder.applied(self.name, Pieces(tuple(value for _, value in ends), factors, ends[0][1]), _view(x))
