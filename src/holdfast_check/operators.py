"""The meaning of each ONNX operator as steps, for the inputs, attributes and versions listed in `check_signatures`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast_check.arithmetic import LARGEST, Array
from holdfast_check.convex import ConvexFunction
from holdfast_check.errors import Rejected, require, zip_equal
from holdfast_check.functions import RELU, PiecewiseLinear, ProductFunction
from holdfast_check.signatures import DESCRIBED, Value
from holdfast_check.steps import Builder, FunctionStep, StepView

MOST = 2**27  # The largest number of elements of one value (1 GiB of indices; chosen by hand).
# The ONNX element types that Cast may produce, as numpy types.
KINDS = {
    1: "<f4",
    6: "<i4",
    7: "<i8",
    9: "|b1",
    11: "<f8",
}


@dataclass(frozen=True)
class GraphNode:
    """One node of a graph."""

    op: str
    inputs: tuple[str, ...]  # "" for an omitted input.
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


def _ints(value: Any) -> list[int]:
    """The entries of a list or an array as Python integers."""
    return [int(number) for number in np.ravel(value)]


def _move_elements(value: Value, move: Callable[[Array], Array]) -> Value:
    """Apply an operation that only moves elements to a value or a constant."""
    return StepView(value.step, move(value.index)) if isinstance(value, StepView) else move(value)


def _view(value: Value) -> StepView:
    """The value as a view of a step; reject a constant."""
    if not isinstance(value, StepView):
        raise Rejected("arithmetic between constants is not supported: fold the constants of the model")
    return value


def _drop_last(view: StepView) -> StepView:
    """The same elements without a last axis of size one."""
    return StepView(view.step, view.index[..., 0])


def check_size(*shape: int) -> None:
    """Reject a shape that does not fit in memory, before the value is created."""
    size = 1
    for part in shape:
        size *= part
    require(0 <= size <= MOST, f"a value of {size} numbers, more than {MOST}")


class Operators:
    """One node. Each method implements the operator of its name; the inputs match its signature."""

    def __init__(self, builder: Builder, node: GraphNode, opset: int, ranks: bool = False) -> None:
        self.builder, self.op, self.attributes, self.opset = builder, node.op, node.attributes, opset
        self.ranks = ranks  # Whether only the order of the outputs of this softmax is kept.
        self.name, self.outputs = node.outputs[0], len(node.outputs)

    def apply(self, given: list[Value | None]) -> Value | tuple[Value, ...]:
        """Call the operator's method with the node's inputs."""
        result: Value | tuple[Value, ...] = getattr(self, self.op)(*given)
        return result

    def _option(self, name: str, given: Any, otherwise: Any = None) -> Any:
        """A parameter that is an input in newer versions of an operator and an attribute in older ones."""
        return given if given is not None else self.attributes.get(name, otherwise)

    @staticmethod
    def _axis(axis: int, rank: int) -> int:
        """The axis as a nonnegative number. Negative axes count from the end; runtimes accept them in all
        opsets.
        """
        require(-rank <= axis < rank, f"axis {axis} of a value with {rank} axes")
        return axis % rank

    def _axes(self, given: Any, rank: int) -> list[int]:
        """Distinct axes as nonnegative numbers; reject an empty or repeated list."""
        axes = [self._axis(axis, rank) for axis in _ints(given)]
        require(axes and len(set(axes)) == len(axes), f"axes {_ints(given)}")
        return axes

    def Identity(self, x: Value) -> Value:
        return x

    def Dropout(self, x: Value, ratio: Any = None, training: Any = None) -> Value:
        """The identity, as in inference mode, whatever the ratio."""
        require(training is None or not np.any(training), "a dropout that drops elements (training mode)")
        require(ratio is None or np.ndim(ratio) == 0, "a ratio that is not a single number")
        return x

    def Cast(self, x: Value) -> Value:
        """The network is a function of real numbers: a value that depends on the input may only be cast
        between float types.
        """
        kind = KINDS[self.attributes["to"]]
        if isinstance(x, StepView):
            require(kind[1] == "f", "a cast to integers of a value that depends on the input")
            return x
        if x.dtype.kind == "f":  # A cast to an integer truncates.
            require(bool(np.isfinite(x).all()), "a cast of a number that is not finite")
            within = np.abs(x) < {"<i4": 2.0**31, "<i8": 2.0**63}.get(kind, np.inf)
            require(bool(within.all()), f"a cast of a number that {kind} does not hold")
        y: Array = x.astype(kind)
        require(kind[1] != "f" or bool(np.isfinite(y).all()), f"a cast of a number that {kind} does not hold")
        require(
            kind[1] != "i" or x.dtype.kind not in "iu" or bool((y.astype(x.dtype) == x).all()),
            "a cast of an integer that is too large",
        )
        return y

    def Constant(self) -> Value:
        require(len(self.attributes) == 1, f"{len(self.attributes)} values")
        [(name, value)] = self.attributes.items()
        if name == "value":
            return np.asarray(value)
        return np.asarray(value, dtype="<f4" if "float" in name else "<i8")

    def Shape(self, x: Value) -> Value:
        first, last = self.attributes.get("start", 0), self.attributes.get("end", len(x.shape))
        return np.array(x.shape[first:last], dtype=np.int64)

    def ConstantOfShape(self, shape: Array) -> Value:
        value = self.attributes.get("value", np.zeros(1, dtype="<f4"))
        sizes = _ints(shape)
        require(
            value.shape == (1,) and all(size >= 0 for size in sizes),
            f"a value of shape {value.shape}, sizes {sizes}",
        )
        check_size(*sizes)
        return np.full(sizes, value[0], dtype=value.dtype)

    def Reshape(self, x: Value, shape: Any = None) -> Value:
        """A size of 0 keeps the size of that axis of x; -1 is inferred."""
        wanted = _ints(self._option("shape", shape))
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
        require(all(size >= -1 for size in sizes) and sizes.count(-1) <= 1, f"the sizes {wanted}")
        require(0 not in x.shape, "an empty value")
        return _move_elements(x, lambda v: v.reshape(sizes))

    def Flatten(self, x: Value) -> Value:
        axis = self.attributes.get("axis", 1)
        require(axis >= 0 or self.opset >= 11, f"axis {axis} in opset {self.opset}")
        axis = axis if axis == len(x.shape) else self._axis(axis, len(x.shape))
        rows = int(np.prod(x.shape[:axis]))
        require(0 not in x.shape, "an empty value")
        return _move_elements(x, lambda v: v.reshape(rows, -1))

    def Transpose(self, x: Value) -> Value:
        perm = self.attributes.get("perm", list(range(len(x.shape)))[::-1])
        require(sorted(perm) == list(range(len(x.shape))), f"the order {perm} of {len(x.shape)} axes")
        return _move_elements(x, lambda v: v.transpose(perm))

    def Squeeze(self, x: Value, axes: Any = None) -> Value:
        given = self._option("axes", axes)
        over = (
            [axis for axis, size in enumerate(x.shape) if size == 1]
            if given is None
            else self._axes(given, len(x.shape))
        )
        return _move_elements(x, lambda v: v.squeeze(tuple(over)))

    def Unsqueeze(self, x: Value, axes: Any = None) -> Value:
        given = self._option("axes", axes)
        over = self._axes(given, len(x.shape) + np.size(given))
        return _move_elements(x, lambda v: np.expand_dims(v, tuple(over)))

    def Expand(self, x: Value, shape: Array) -> Value:
        sizes = _ints(shape)
        require(all(size >= 1 for size in sizes) and 0 not in x.shape, f"the sizes {sizes}")
        wide = np.broadcast_shapes(x.shape, tuple(sizes))
        check_size(*wide)
        return _move_elements(x, lambda v: np.broadcast_to(v, wide))

    def Gather(self, x: Value, indices: Array) -> Value:
        axis = self._axis(self.attributes.get("axis", 0), len(x.shape))
        size = x.shape[axis]
        require(
            bool(((indices >= -size) & (indices < size)).all()), f"an index outside of an axis of size {size}"
        )
        check_size(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        return _move_elements(x, lambda v: np.take(v, indices.astype(np.int64), axis))

    def Slice(
        self, x: Value, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
    ) -> Value:
        """Starts and ends are clipped to the axis; with a negative step the exclusive end may lie before the
        first element.
        """
        first, last = _ints(self._option("starts", starts)), _ints(self._option("ends", ends))
        given = self._option("axes", axes)
        along = list(range(len(first))) if given is None else self._axes(given, len(x.shape))
        by = [1] * len(first) if steps is None else _ints(steps)
        for start, end, axis, step in zip_equal(first, last, along, by):
            size = x.shape[axis]
            require(step != 0 and size > 0, "a slice with a step of zero, or of an empty axis")
            low, high = (0, size) if step > 0 else (-1, size - 1)
            start, end = (place + size if place < 0 else place for place in (start, end))
            places = np.arange(min(max(start, max(low, 0)), high), min(max(end, low), high), step)
            x = _move_elements(x, lambda v, places=places, axis=axis: np.take(v, places, axis))  # type: ignore[misc]
        return x

    def Split(self, x: Value, sizes: Any = None) -> tuple[Value, ...]:
        axis = self._axis(self.attributes.get("axis", 0), len(x.shape))
        given, size, many = self._option("split", sizes), x.shape[axis], self.outputs
        equal = self.opset < 18 or "num_outputs" in self.attributes
        require(given is not None or (equal and size % many == 0), f"{size} in {many} parts")
        require(self.attributes.get("num_outputs", many) == many, f"{many} outputs")
        require(given is None or "num_outputs" not in self.attributes, "both sizes and a number of parts")
        widths = [size // many] * many if given is None else _ints(given)
        require(
            len(widths) == many and min(widths) > 0 and sum(widths) == size, f"{size} in parts of {widths}"
        )
        places = np.split(np.arange(size), np.cumsum(widths)[:-1])
        return tuple(_move_elements(x, lambda v, place=place: np.take(v, place, axis)) for place in places)  # type: ignore[misc]

    def Concat(self, *given: Value) -> Value:
        axis = self._axis(self.attributes["axis"], len(given[0].shape))
        plain = [value for value in given if not isinstance(value, StepView)]
        if len(plain) == len(given):
            return np.concatenate(plain, axis)
        views = [
            v if isinstance(v, StepView) else self.builder.affine(self.name, v.shape, [], v) for v in given
        ]
        return self.builder.concatenate(self.name, views, axis)

    def Pad(self, x: Value, pads: Any = None, filled: Any = None) -> Value:
        around, value = _ints(self._option("pads", pads)), self._option("value", filled, 0.0)
        require(np.size(value) == 1 and np.ravel(value)[0] == 0.0, "padding with values other than zero")
        view, many = _view(x), len(x.shape)
        require(len(around) == 2 * many and min(around, default=0) >= 0, f"pads {around} of {many} axes")
        check_size(*(size + around[axis] + around[axis + many] for axis, size in enumerate(x.shape)))
        return StepView(
            view.step,
            np.pad(view.index, list(zip_equal(around[:many], around[many:])), constant_values=-1),
        )

    def Gemm(self, x: Value, weight: Value, bias: Array | None = None) -> Value:
        require(
            self.opset == DESCRIBED or (len(x.shape) == 2 and len(weight.shape) == 2),
            f"shapes {x.shape} and {weight.shape}",
        )
        x, weight = (
            _move_elements(v, np.transpose) if self.attributes.get(t) else v
            for v, t in ((x, "transA"), (weight, "transB"))
        )
        return self._product(x, weight, bias)

    def MatMul(self, x: Value, weight: Value) -> Value:
        if isinstance(x, StepView) and isinstance(weight, StepView):
            return self._product_of_values(x, weight)
        return self._product(x, weight, None)

    def _product_of_values(self, a: StepView, b: StepView) -> StepView:
        """(..., m, k) times (..., k, n): all products a_mk b_kn, each a function of two numbers, then sums over k."""
        require(
            len(a.shape) >= 2 and len(b.shape) >= 2 and a.shape[-1] == b.shape[-2],
            f"shapes {a.shape} and {b.shape}",
        )
        left, right = a.index[..., :, None, :], np.swapaxes(b.index, -1, -2)[..., None, :, :]
        shape = np.broadcast_shapes(left.shape, right.shape)
        check_size(*shape)
        products = self._multiply(StepView(a.step, left), StepView(b.step, right))
        return _drop_last(self._linear(products, np.ones((shape[-1], 1))))

    def _product(self, x: Value, weight: Value, bias: Array | None) -> Value:
        """(..., k) times a constant (k, n), or a constant (m, k) times (k, n) or (k,), plus a bias that
        broadcasts to the result.
        """
        if isinstance(weight, StepView):  # A x = (x' A')'
            require(not isinstance(x, StepView), "the product of two matrices that both depend on the input")
            require(len(x.shape) == 2 and len(weight.shape) <= 2, f"shapes {x.shape} and {weight.shape}")
            made = self._linear(StepView(weight.step, weight.index.T), np.asarray(x).T)
            turned = StepView(made.step, made.index.T)
            return (
                turned
                if bias is None
                else self.builder.add_scaled(self.name, [(turned, 1.0)], self._wide(bias, turned.shape))
            )
        return self._linear(_view(x), weight, bias)

    @staticmethod
    def _wide(bias: Array, shape: tuple[int, ...]) -> Array:
        """The bias, broadcast to a given shape; reject one that would change the shape."""
        wide: Array = np.broadcast_to(bias.astype(np.float64), shape)
        return wide

    def _linear(self, x: StepView, weight: Array, bias: Array | None = None) -> StepView:
        """(..., k) times a constant (k, n), plus a bias."""
        require(
            weight.ndim == 2 and len(x.shape) > 0 and x.shape[-1] == len(weight),
            f"shapes {x.shape} and {weight.shape}",
        )
        shape = (*x.shape[:-1], weight.shape[1])
        offset = 0.0 if bias is None else self._wide(bias, shape)
        return self.builder.affine(self.name, shape, [(x, weight.astype(np.float64), None)], offset)

    def _windows(self, x: StepView, kernel: list[int], largest: bool = False) -> tuple[Array, list[int]]:
        """Indices of the elements in every window of a convolution or pool.

        (images, channels, *sizes) -> (images, channels, *positions, *kernel), and the number of positions per
        axis. Padding is index -1 (a zero); with `largest` (maximum pooling), the first real element of the
        window along the axis replaces it, which leaves the maximum unchanged.
        """
        sizes, attributes = x.shape[2:], self.attributes
        many = len(sizes)
        require(
            1 <= many <= 3 and len(kernel) == many and min(kernel) > 0,
            f"windows {kernel} in a value of shape {x.shape}",
        )
        strides, holes = (attributes.get(name, [1] * many) for name in ("strides", "dilations"))
        pads = attributes.get("pads", [0] * 2 * many)
        require(
            len(strides) == len(holes) == many and min(*strides, *holes) > 0,
            f"strides {strides}, dilations {holes}",
        )
        require(len(pads) == 2 * many and min(pads) >= 0, f"pads {pads}")
        require(
            attributes.get("auto_pad", "NOTSET") == "NOTSET" or "pads" not in attributes,
            "automatic padding together with pads",
        )
        small = self.op == "Conv" or all(pad < k for pad, k in zip_equal(pads, kernel * 2))
        require(small, f"pads {pads} that are not smaller than the window {kernel}")
        index, counts = x.index, []
        for axis, (size, k, step, hole) in enumerate(zip_equal(sizes, kernel, strides, holes)):
            before, after = pads[axis], pads[axis + many]
            counts.append((size + before + after - hole * (k - 1) - 1) // step + 1)
            require(counts[-1] > 0, f"a window of {hole * (k - 1) + 1} in {size + before + after}")
            reads = np.arange(counts[-1])[:, None] * step + np.arange(k) * hole - before
            real = (reads >= 0) & (reads < size)
            require(real.any(1).all() or not largest, "a window that contains only padding")
            first = np.take_along_axis(reads, real.argmax(1)[:, None], 1)
            reads = np.where(real, reads, first if largest else size)
            index = np.concatenate([index, np.full_like(np.take(index, [0], 2 + axis), -1)], 2 + axis)
            check_size(*index.shape[: 2 + axis], *reads.shape, *index.shape[3 + axis :])
            index = np.moveaxis(np.take(index, reads, 2 + axis), 3 + axis, -1)
        return index, counts

    def Conv(self, x: Value, weight: Array, bias: Array | None = None) -> Value:
        view, groups = _view(x), self.attributes.get("group", 1)
        kernel = list(weight.shape[2:])
        require(
            groups > 0 and len(weight.shape) == len(view.shape) and len(weight) % groups == 0,
            f"weights of shape {weight.shape}",
        )
        require(
            view.shape[1] == weight.shape[1] * groups,
            f"{view.shape[1]} channels, weights of shape {weight.shape}, {groups} groups",
        )
        require(
            self.attributes.get("kernel_shape", kernel) == kernel,
            "kernel_shape differs from the shape of the weights",
        )
        require(
            bias is None or bias.shape == (len(weight),), "the bias does not have one number for each channel"
        )
        index, counts = self._windows(view, kernel)
        inside, outside, images = weight.shape[1], len(weight) // groups, len(index)
        places = np.arange(images * len(weight) * int(np.prod(counts))).reshape(images, len(weight), -1)
        parts: list[tuple[StepView, Array | None, Array | None]] = []
        for image in range(images):
            for group in range(groups):
                own = (
                    index[image, group * inside : (group + 1) * inside]
                    .reshape(inside, places.shape[2], -1)
                    .transpose(1, 0, 2)
                )
                rows = slice(group * outside, (group + 1) * outside)
                parts.append(
                    (
                        StepView(view.step, own),
                        weight[rows].reshape(outside, -1).T.astype(np.float64),
                        places[image, rows].T.ravel(),
                    )
                )
        offset = np.zeros(len(weight)) if bias is None else bias.astype(np.float64)
        return self.builder.affine(
            self.name, (images, len(weight), *counts), parts, offset.reshape(1, -1, *[1] * len(counts))
        )

    def AveragePool(self, x: Value) -> Value:
        view = _view(x)
        padded = any(self.attributes.get("pads", [0]))
        require(self.attributes.get("count_include_pad") or not padded, "means that leave out padding")
        kernel = list(self.attributes.get("kernel_shape", view.shape[2:]))
        index, counts = self._windows(view, kernel)
        many = int(np.prod(kernel))
        windows = StepView(view.step, index.reshape(*view.shape[:2], *counts, many))
        return _move_elements(self._linear(windows, np.full((many, 1), 1.0 / many)), lambda v: v[..., 0])

    GlobalAveragePool = AveragePool

    def MaxPool(self, x: Value) -> Value:
        """The maximum of every window, as a binary tree of max(a, b) = b + relu(a - b)."""
        view = _view(x)
        index, counts = self._windows(view, list(self.attributes["kernel_shape"]), largest=True)
        index = index.reshape(*view.shape[:2], *counts, -1)
        values = [StepView(view.step, index[..., place]) for place in range(index.shape[-1])]
        while len(values) > 1:
            pairs = [self.builder.larger(self.name, a, b) for a, b in zip(values[::2], values[1::2])]
            values = pairs + values[len(pairs) * 2 :]
        return values[0]

    def Max(self, *given: Value) -> Value:
        """The maximum (Min: minus the maximum of the negatives) of several values, pair by pair."""
        require(
            self.opset >= 8 or self.opset == DESCRIBED or len({v.shape for v in given}) == 1,
            "values of several shapes in opset 7",
        )
        sign = 1.0 if self.op == "Max" else -1.0
        build, name = self.builder, self.name
        views = [
            build.add_scaled(name, [(v, sign)])
            if isinstance(v, StepView)
            else build.affine(name, v.shape, [], sign * v.astype(np.float64))
            for v in given
        ]
        result = views[0]
        for other in views[1:]:
            result = build.larger(name, result, other)
        return build.add_scaled(name, [(result, sign)])

    Min = Max

    def ReduceSum(self, x: Value, axes: Any = None) -> Value:
        """Sums (ReduceMean: means) over axes."""
        view, given = _view(x), self._option("axes", axes)
        over = list(range(len(x.shape))) if given is None else self._axes(given, len(x.shape))
        rest = [axis for axis in range(len(x.shape)) if axis not in over]
        many = int(np.prod([x.shape[axis] for axis in over]))
        windows = StepView(
            view.step, view.index.transpose(*rest, *over).reshape(*(x.shape[axis] for axis in rest), many)
        )
        total = self._linear(windows, np.full((many, 1), 1.0 / many if self.op == "ReduceMean" else 1.0))
        kept = [
            1 if axis in over else size
            for axis, size in enumerate(x.shape)
            if self.attributes.get("keepdims", 1) or axis in rest
        ]
        return _move_elements(total, lambda v: v.reshape(kept))

    ReduceMean = ReduceSum

    def Add(self, a: Value, b: Value) -> Value:
        """a + b (Sub: a - b) of values and constants."""
        sign = -1.0 if self.op == "Sub" else 1.0
        if not isinstance(a, StepView):
            return self.builder.add_scaled(self.name, [(_view(b), sign)], a.astype(np.float64))
        if not isinstance(b, StepView):
            return self.builder.add_scaled(self.name, [(a, 1.0)], sign * b.astype(np.float64))
        return self.builder.add_scaled(self.name, [(a, 1.0), (b, sign)])

    Sub = Add

    def Mul(self, a: Value, b: Value) -> Value:
        """a b. If factors are outputs of sigmoid or tanh, the product becomes one function of their
        pre-activations.
        """
        if not isinstance(a, StepView):
            a, b = b, a
        if not isinstance(b, StepView):
            return self.builder.add_scaled(self.name, [(_view(a), b.astype(np.float64))])
        return self._multiply(_view(a), b)

    def _multiply(self, a: StepView, b: StepView) -> StepView:
        """a b element by element. x x and x sigmoid(x) are functions of one number, which loses less."""
        (f, v), (g, z) = self._factor(a), self._factor(b)
        if v.step == z.step and v.shape == z.shape and bool((v.index == z.index).all()):
            if f == g == "identity":
                return self.builder.apply_function(self.name, ConvexFunction("square"), v)
            if {f, g} == {"identity", "sigmoid"}:
                return self.builder.apply_function(self.name, ProductFunction("silu"), v)
        return self.builder.apply_function(self.name, ProductFunction(f, g), v, z)

    def _factor(self, value: StepView) -> tuple[str, StepView]:
        """The function and pre-activation of a sigmoid or tanh output; else the identity and the value."""
        step = self.builder.steps[value.step]
        if (
            isinstance(step, FunctionStep)
            and isinstance(step.function, ProductFunction)
            and step.function.arguments == 1
            and (value.index >= 0).all()
        ):
            return step.function.f, StepView(step.parts[0].source, step.parts[0].take[value.index])
        return "identity", value

    def Div(self, a: Value, b: Value) -> Value:
        if isinstance(b, StepView):  # a / b = a (1 / b), for positive b.
            inverse = self._invert(b)
            if not isinstance(a, StepView):
                return self.builder.add_scaled(self.name, [(inverse, a.astype(np.float64))])
            return self._multiply(a, inverse)
        divisor = b.astype(np.float64)
        require(
            bool(((divisor != 0) & (np.abs(divisor) < LARGEST)).all()),
            "division by zero, or by a number that is not finite or too large",
        )
        return self.builder.add_scaled(self.name, [(_view(a), 1.0 / divisor)])

    def _invert(self, x: StepView) -> StepView:
        """1 / x for positive values; 1 / sqrt(v) is one function of v."""
        step = self.builder.steps[x.step]
        if (
            isinstance(step, FunctionStep)
            and step.function == ConvexFunction("sqrt")
            and bool((x.index >= 0).all())
        ):
            own = StepView(step.parts[0].source, step.parts[0].take[x.index])
            return self.builder.apply_function(self.name, ConvexFunction("rsqrt"), own)
        return self.builder.apply_function(self.name, ConvexFunction("reciprocal"), x)

    def Reciprocal(self, x: Value) -> Value:
        return self._invert(_view(x))

    def Exp(self, x: Value) -> Value:
        """Functions of one number that are convex or concave."""
        return self.builder.apply_function(self.name, ConvexFunction(self.op.lower()), _view(x))

    Log = Sqrt = Exp

    def Softplus(self, x: Value) -> Value:
        """log(1 + exp(x)); torch returns x above 20, where the two differ by less than 2.1e-9."""
        name = "softplus of torch" if self.opset == DESCRIBED else "softplus"
        return self.builder.apply_function(self.name, ConvexFunction(name), _view(x))

    def Elu(self, x: Value) -> Value:
        """alpha elu(x) + (1 - alpha) relu(x), with elu the function for alpha = 1."""
        alpha = float(self.attributes.get("alpha", 1.0))
        bent = self.builder.apply_function(self.name, ConvexFunction("elu"), _view(x))
        if alpha == 1.0:
            return bent
        straight = self.builder.apply_function(self.name, RELU, _view(x))
        return self.builder.add_scaled(self.name, [(bent, alpha), (straight, 1.0 - alpha)])

    def Gelu(self, x: Value) -> Value:
        name = "gelu by tanh" if self.attributes.get("approximate", "none") == "tanh" else "gelu"
        return self.builder.apply_function(self.name, ProductFunction(name), _view(x))

    def Pow(self, x: Value, exponent: Array) -> Value:
        """x^2, x^3 = x x^2, x^4 = (x^2)^2, and the square root."""
        require(exponent.size == 1, "a power with several exponents")
        power, view = float(np.ravel(exponent)[0]), _view(x)
        if power == 0.5:
            return self.builder.apply_function(self.name, ConvexFunction("sqrt"), view)
        require(power in (2.0, 3.0, 4.0), f"the power {power:g}; this checker supports 1/2, 2, 3 and 4")
        square = self._multiply(view, view)
        return square if power == 2 else self._multiply(view if power == 3 else square, square)

    def Neg(self, x: Value) -> Value:
        return self.builder.add_scaled(self.name, [(_view(x), -1.0)])

    def BatchNormalization(self, x: Value, *weights: Array) -> Value:
        """factor (x - mean) + shift with factor = scale / sqrt(variance + epsilon), from the file's
        statistics. The factor is rounded four times, within the 16 units roundoff that `AffineStep`
        allows.
        """
        require(
            len(x.shape) >= 2 and all(part.shape == (x.shape[1],) for part in weights),
            "the parameters do not have one number for each channel",
        )
        scale, shift, mean, variance = (
            part.astype(np.float64).reshape(-1, *[1] * (len(x.shape) - 2)) for part in weights
        )
        # ONNX stores attributes as float32.
        epsilon = float(np.float32(1e-5)) if self.opset != DESCRIBED else 1e-5
        spread = variance + self.attributes.get("epsilon", epsilon)
        require(bool((spread > 0).all()), "a variance that is not positive")
        factor = scale / np.sqrt(spread)
        return self.builder.add_scaled(
            self.name, [(_view(x), factor)], shift - factor * mean, np.abs(shift) + np.abs(factor * mean)
        )

    def LayerNormalization(self, x: Value, scale: Array, bias: Array | None = None) -> Value:
        """(x - mean) / sqrt(variance + epsilon) scale + bias, over the axes from `axis` on; not of a list of one.

        The matrix of x - mean has the entries 1 - 1 / n and -1 / n, each rounded at most twice.
        """
        axis = self._axis(self.attributes.get("axis", -1), len(x.shape))
        many, own = int(np.prod(x.shape[axis:])), x.shape[axis:]
        require(
            scale.shape == own and (bias is None or bias.shape == own), "the scale or bias has another shape"
        )
        view = _view(x)
        flat = StepView(view.step, view.index.reshape(*x.shape[:axis], many))
        apart = self._linear(flat, np.eye(many) - np.full((many, many), 1.0 / many))
        squares = self.builder.apply_function(self.name, ConvexFunction("square"), apart)
        epsilon = self.attributes.get("epsilon", 1e-5 if self.opset == DESCRIBED else float(np.float32(1e-5)))
        spread = self._linear(squares, np.full((many, 1), 1.0 / many), np.array([float(epsilon)]))
        inverse = self.builder.apply_function(self.name, ConvexFunction("rsqrt"), spread)
        normal = self._multiply(apart, inverse)
        offset = 0.0 if bias is None else bias.astype(np.float64).ravel()
        result = self.builder.add_scaled(self.name, [(normal, scale.astype(np.float64).ravel())], offset)
        return StepView(result.step, result.index.reshape(x.shape))

    def Softmax(self, x: Value) -> Value:
        """Before opset 13 a softmax runs over all axes from `axis` on, later over this one alone.

        A last one is the identity, since `program` ensures that the claim depends only on the order of the
        outputs. Any other is p_i = 1 / (1 + sum over j != i of exp(x_j - x_i)), and its logarithm is minus the
        logarithm of that sum; differences of two elements cancel what moves all of them.
        """
        old = 0 < self.opset < 13
        view = _view(x)
        axis = self._axis(self.attributes.get("axis", 1 if old else -1), len(x.shape))
        over = int(np.prod(x.shape[axis:])) if old else x.shape[axis]
        if self.ranks and view.index.size == over:
            return x
        index = (
            view.index.reshape(*x.shape[:axis], over) if old else np.moveaxis(view.index, axis, -1)
        )  # (..., over)
        if over == 1:
            return self.builder.affine(self.name, x.shape, [], 0.0 if self.op == "LogSoftmax" else 1.0)
        check_size(*index.shape, over - 1)
        others = np.array([[j for j in range(over) if j != i] for i in range(over)])
        theirs, own = index[..., others], np.repeat(index[..., None], over - 1, -1)  # (..., over, over - 1)
        apart = self.builder.add_scaled(
            self.name, [(StepView(view.step, theirs), 1.0), (StepView(view.step, own), -1.0)]
        )
        risen = self.builder.apply_function(self.name, ConvexFunction("exp"), apart)
        total = _drop_last(self._linear(risen, np.ones((over - 1, 1)), np.ones(1)))
        if self.op == "LogSoftmax":
            logs = self.builder.apply_function(self.name, ConvexFunction("log"), total)
            result = self.builder.add_scaled(self.name, [(logs, -1.0)])
        else:
            result = self._invert(total)
        placed = result.index.reshape(x.shape) if old else np.moveaxis(result.index, -1, axis)
        return StepView(result.step, placed)

    LogSoftmax = Softmax

    def Sigmoid(self, x: Value) -> Value:
        return self.builder.apply_function(self.name, ProductFunction(self.op.lower()), _view(x))

    Tanh = Erf = Sigmoid

    def Relu(self, x: Value) -> Value:
        alpha = self.attributes.get("alpha", float(np.float32(0.01)) if self.opset != DESCRIBED else 0.01)
        below = {"Relu": 0.0, "Abs": -1.0, "LeakyRelu": float(alpha)}[self.op]
        return self.builder.apply_function(self.name, PiecewiseLinear((0.0,), (below, 1.0), 0.0), _view(x))

    Abs = LeakyRelu = Relu

    def Clip(self, x: Value, least: Any = None, most: Any = None) -> Value:
        given = ("min", self._option("min", least)), ("max", self._option("max", most))
        require(
            all(value is None or (np.size(value) == 1 and np.ndim(value) <= 1) for _, value in given),
            "a bound that is not a single number",
        )
        ends = [(end, float(np.ravel(value)[0])) for end, value in given if value is not None]
        require(all(abs(value) < LARGEST for _, value in ends), "a bound that is not finite or too large")
        require(len(ends) < 2 or ends[0][1] <= ends[1][1], "a smallest value above the largest")
        if not ends:
            return self.builder.add_scaled(self.name, [(_view(x), 1.0)])
        factors = {("min",): (0.0, 1.0), ("max",): (1.0, 0.0), ("min", "max"): (0.0, 1.0, 0.0)}[
            tuple(end for end, _ in ends)
        ]
        return self.builder.apply_function(
            self.name, PiecewiseLinear(tuple(value for _, value in ends), factors, ends[0][1]), _view(x)
        )
