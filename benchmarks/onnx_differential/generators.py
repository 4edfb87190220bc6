"""Generators, one for each operator.

Each adds nodes around one node of that operator and returns the name and element type of the result.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from benchmarks.onnx_differential.building import Build
from benchmarks.onnx_differential.draw import Array

Result = tuple[str, int]
Generator = Callable[[Build], Result]
GENERATORS: dict[str, Generator] = {}

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos"),
    *("Cosh", "Erf", "Exp", "Floor", "HardSwish", "Identity", "Log", "Mish", "Neg"),
    *("Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign"),
    *("Sqrt", "Tan", "Tanh", "Celu", "Elu", "Gelu", "HardSigmoid", "LeakyRelu", "Selu"),
    *("ThresholdedRelu",),
)
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Mod"]
COMPARISONS = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
LOGICAL = ["And", "Or", "Xor"]
VARIADIC = ["Max", "Min", "Sum", "Mean"]
REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
SHAPE_ARITHMETIC = (
    *("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Min", "Max"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not", "Where"),
    *("Cast", "CastLike", "Concat", "Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Expand"),
    *("Range", "ReduceProd", "Shape", "Transpose", "Size", "Identity"),
)


def generator(*names: str) -> Callable[[Generator], Generator]:
    def register(function: Generator) -> Generator:
        for name in names:
            GENERATORS[name] = function
        return function

    return register


def result_type(build: Build) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(build.source_dtype)))


# ---------------------------------------------------------------- element by element


@generator(*UNARY)
def unary(build: Build) -> Result:
    draw = build.draw
    number = draw.pick((None, 0.0, 0.3, -0.5, 1.0, 2.0))
    attributes: dict[str, Any] = {"alpha": number, "beta": draw.pick((None, 0.1, -1.0))}
    attributes |= {"gamma": draw.pick((None, 2.0)), "approximate": draw.pick((None, "none", "tanh"))}
    return build.test([build.source(draw.shape())], **attributes), result_type(build)


def second_operand(build: Build, shape: tuple[int, ...]) -> str:
    """A constant that broadcasts, the value under test itself, or a value computed from it."""
    way = build.draw.random.random()
    if way < 0.55:
        return build.constant(build.draw.floats(build.draw.broadcastable(shape)))
    return "data" if way < 0.75 else build.add(build.draw.pick(("Tanh", "Neg", "Relu", "Sigmoid")), ["data"])


@generator(*BINARY)
def binary(build: Build) -> Result:
    shape = build.draw.shape(0 if build.of_constant else 1)
    operands = [build.source(shape), second_operand(build, shape)]
    if build.draw.chance(0.3):
        operands.reverse()
    attributes = {"fmod": build.draw.pick((None, 0, 1, 1))} if build.operator == "Mod" else {}
    return build.test(operands, **attributes), result_type(build)


@generator(*COMPARISONS)
def comparison(build: Build) -> Result:
    shape = build.draw.shape()
    operands = [build.source(shape), second_operand(build, shape)]
    if build.draw.chance(0.3):
        operands.reverse()
    return build.test(operands), BOOL


@generator(*LOGICAL)
def logical(build: Build) -> Result:
    shape = build.draw.shape()
    build.source(shape)
    parts = [
        build.add("Greater", ["data", build.constant(np.float32(at).astype(build.source_dtype))])
        for at in (0.0, 0.5)
    ]
    if build.draw.chance(0.3):
        parts[1] = build.constant(build.draw.numbers.random(build.draw.broadcastable(shape)) < 0.5)
    return build.test(parts), BOOL


@generator("Not")
def negation(build: Build) -> Result:
    build.source(build.draw.shape())
    return build.test(
        [build.add("Greater", ["data", build.constant(np.zeros((), build.source_dtype))])]
    ), BOOL


@generator(*VARIADIC)
def variadic(build: Build) -> Result:
    shape = build.draw.shape()
    build.source(shape)
    operands = ["data", *(second_operand(build, shape) for _ in range(build.draw.integer(0, 3)))]
    build.draw.random.shuffle(operands)
    return build.test(operands), result_type(build)


@generator("Where")
def where(build: Build) -> Result:
    shape = build.draw.shape()
    build.source(shape)
    if build.draw.chance(0.5):
        condition = build.add("Greater", ["data", build.constant(np.zeros((), build.source_dtype))])
    else:
        condition = build.constant(build.draw.numbers.random(build.draw.broadcastable(shape)) < 0.5)
    operands = ["data", second_operand(build, shape)]
    build.draw.random.shuffle(operands)
    return build.test([condition, *operands]), result_type(build)


@generator("Clip")
def clip(build: Build) -> Result:
    draw = build.draw
    low, high = (None if draw.chance(0.2) else float(draw.floats(()).item()) for _ in range(2))
    source = build.source(draw.shape())
    least, attributes = build.setting("min", low, build.source_dtype)
    most, others = build.setting("max", high, build.source_dtype)
    return build.test([source, least, most], **attributes, **others), result_type(build)


@generator("PRelu")
def parametric_relu(build: Build) -> Result:
    shape = build.draw.shape()
    source = build.source(shape)
    slope = build.draw.broadcastable(shape)
    if len(shape) > 1 and build.draw.chance(0.4):
        slope = (shape[1], *[1] * (len(shape) - 2))
    return build.test([source, build.constant(build.draw.floats(slope))]), result_type(build)


@generator("Softmax", "LogSoftmax")
def softmax(build: Build) -> Result:
    shape = build.draw.shape()
    axis = None if build.draw.chance(0.3) else build.draw.axis(len(shape))
    return build.test([build.source(shape)], axis=axis), result_type(build)


@generator("Dropout")
def dropout(build: Build) -> Result:
    draw = build.draw
    source = build.source(draw.shape())
    ratio, attributes = build.setting("ratio", draw.pick((None, 0.0, 0.5)), np.float32)
    training = ""
    if build.opset >= 12 and draw.chance(0.4):
        training = build.constant(np.array(draw.chance(0.5)))
    both = draw.chance(0.3)
    name = build.test([source, ratio, training], 2 if both else 1, seed=draw.pick((None, 1)), **attributes)
    if both and draw.chance(0.4) and build.opset >= 10:
        return build.nodes[-1].output[1], BOOL
    return name, result_type(build)


# ---------------------------------------------------------------- types


NUMBER_TYPES = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.BOOL,
    TensorProto.FLOAT16,
)
SMALL_TYPES = (TensorProto.UINT8, TensorProto.INT8, TensorProto.INT16)


@generator("Cast")
def cast(build: Build) -> Result:
    draw = build.draw
    target = draw.pick(NUMBER_TYPES if draw.chance(0.85) else SMALL_TYPES)
    source = build.source(draw.shape(0 if build.of_constant else 1))
    if target == TensorProto.UINT8:
        source = build.add("Abs", [source])
    name = build.test([source], to=target, saturate=draw.pick((None, None, 0)))
    if draw.chance(0.3):
        second = draw.pick(NUMBER_TYPES)
        return build.test([name], to=second), second
    return name, target


@generator("CastLike")
def cast_like(build: Build) -> Result:
    target = build.draw.pick(NUMBER_TYPES)
    like = build.constant(
        np.zeros(build.draw.pick(((), (1,), (2, 2))), helper.tensor_dtype_to_np_dtype(target))
    )
    return build.test([build.source(build.draw.shape()), like]), target


@generator("Constant")
def constant(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    source = build.source(shape)
    kind = draw.pick(("value", "value_float", "value_floats", "value_int", "value_ints"))
    whole = draw.integers(shape[-1], -3, 3)
    values: dict[str, Any] = {
        "value": helper.make_tensor("", FLOAT, [shape[-1]], draw.floats((shape[-1],)).tolist()),
        "value_float": 1.5,
        "value_floats": [float(value) for value in draw.floats((shape[-1],))],
        "value_int": whole[0],
        "value_ints": whole,
    }
    name = build.test([], **{kind: values[kind]})
    if build.source_dtype != np.float32 or kind.startswith("value_int"):
        name = build.add("Cast", [name], to=result_type(build))
    return build.add("Mul", [source, name]), result_type(build)


# ---------------------------------------------------------------- products


@generator("MatMul")
def matrix_product(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    source = build.source(shape)
    inner = shape[-1] if len(shape) == 1 or draw.chance(0.5) else shape[-2]
    if inner == shape[-1]:
        other = (
            (*draw.broadcastable(shape[:-2]), inner, draw.integer(1, 3))
            if draw.chance(0.6)
            else (inner, draw.integer(1, 3))
        )
        other = (inner,) if draw.chance(0.15) else other
        operands = [source, build.constant(draw.floats(other))]
    else:
        other = (
            (*draw.broadcastable(shape[:-2]), draw.integer(1, 3), inner)
            if draw.chance(0.6)
            else (draw.integer(1, 3), inner)
        )
        other = (inner,) if draw.chance(0.15) else other
        operands = [build.constant(draw.floats(other)), source]
    if draw.chance(0.08):
        turned = build.add(
            "Transpose", [source], perm=[*range(len(shape) - 2), *list(range(len(shape)))[-2:][::-1]]
        )
        operands = [source, turned]
    return build.test(operands), result_type(build)


@generator("Gemm")
def gemm(build: Build) -> Result:
    draw = build.draw
    m, k, n = draw.integers(3, 1, 4)
    first, second = draw.pick((None, 0, 1)), draw.pick((None, 0, 1))
    left = build.source((k, m) if first else (m, k))
    right = build.constant(draw.floats((n, k) if second else (k, n)))
    inputs = [left, right]
    if draw.chance(0.2):  # The weight is the first input.
        first, second = second, first
        inputs = [build.constant(draw.floats((k, n) if first else (n, k))), left]
        left_shape = build.source_shape
        second = 1 if left_shape == (m, k) else None
        m, n = n, m
    if draw.chance(0.6):
        shape = draw.pick(((n,), (1, n), (m, n), (m, 1), (1,), (), (1, 1), (m,)))
        inputs.append(build.constant(draw.floats(shape)))
    factors = {"alpha": draw.pick((None, 1.0, 0.5)), "beta": draw.pick((None, 1.0, 0.0, -2.0))}
    return build.test(inputs, transA=first, transB=second, **factors), result_type(build)


@generator("Einsum")
def einsum(build: Build) -> Result:
    draw = build.draw
    a, b, c = draw.integers(3, 1, 3)
    one = {
        "ij->ji": (a, b),
        "ij->i": (a, b),
        "ii->i": (a, a),
        "ijk->kj": (a, b, c),
        "i...->...i": (a, b, c),
        "ij": (a, b),
        "ji": (a, b),
    }
    two = {
        "ij,jk->ik": ((a, b), (b, c)),
        "bij,jk->bik": ((a, b, c), (c, b)),
        "i,j->ij": ((a,), (b,)),
        "ij,ij": ((a, b), (a, b)),
    }
    two |= {
        "...ij,...jk->...ik": ((a, b, c), (c, a)),
        "ij , jk -> ik": ((a, b), (b, c)),
        "bhi,bhj->bij": ((a, b, c), (a, b, 2)),
    }
    if draw.chance(0.4):
        equation = draw.pick(sorted(one))
        return build.test([build.source(one[equation])], equation=equation), result_type(build)
    equation = draw.pick(sorted(two))
    first, second = two[equation]
    return build.test(
        [build.source(first), build.constant(draw.floats(second))], equation=equation
    ), result_type(build)


# ---------------------------------------------------------------- windows


def window_attributes(build: Build, rank: int, kernel: list[int], *, ceil: bool) -> dict[str, Any]:
    draw = build.draw
    attributes: dict[str, Any] = {
        "auto_pad": draw.pick((None, None, None, "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")),
        "strides": draw.pick((None, draw.integers(rank, 1, 3))),
        "dilations": draw.pick((None, None, draw.integers(rank, 1, 2))),
        "pads": draw.pick(
            (
                None,
                draw.integers(2 * rank, 0, 2),
                draw.integers(2 * rank, 0, 1),
                [draw.integer(0, 1)] * 2 * rank,
            )
        ),
    }
    if attributes["auto_pad"] not in (None, "NOTSET") and draw.chance(0.85):
        attributes["pads"] = None
    if ceil:
        attributes["ceil_mode"] = draw.pick((None, 0, 1))
    if draw.chance(draw.odds_invalid) and attributes["pads"]:
        attributes["pads"][0] = -1
    return attributes


def window_data(build: Build, rank: int, channels: int) -> str:
    leading = build.draw.pick((1, 1, 2, 3))
    return build.source((leading, channels, *build.draw.integers(rank, 2, 6)))


@generator("Conv")
def convolution(build: Build) -> Result:
    draw = build.draw
    rank, group = draw.pick((1, 1, 2, 2, 2, 3)), draw.pick((1, 1, 1, 2))
    inner, outer = draw.integer(1, 2), draw.integer(1, 2)
    kernel = draw.integers(rank, 1, 3)
    source = window_data(build, rank, inner * group)
    inputs = [source, build.constant(draw.floats((outer * group, inner, *kernel)))]
    if draw.chance(0.5):
        inputs.append(build.constant(draw.floats((outer * group,))))
    attributes = window_attributes(build, rank, kernel, ceil=False)
    stated = kernel if draw.chance(0.9) else [size + 1 for size in kernel]
    attributes |= {
        "kernel_shape": draw.pick((None, stated)),
        "group": group if group > 1 else draw.pick((None, 1)),
    }
    return build.test(inputs, **attributes), result_type(build)


@generator("ConvTranspose")
def transposed_convolution(build: Build) -> Result:
    draw = build.draw
    rank, group = draw.pick((1, 1, 2, 2, 3)), draw.pick((1, 1, 1, 2))
    inner, outer = draw.integer(1, 2), draw.integer(1, 2)
    kernel = draw.integers(rank, 1, 3)
    source = window_data(build, rank, inner * group)
    inputs = [source, build.constant(draw.floats((inner * group, outer, *kernel)))]
    if draw.chance(0.5):
        inputs.append(build.constant(draw.floats((outer * group,))))
    attributes = window_attributes(build, rank, kernel, ceil=False)
    sizes = [
        size * step + draw.integer(-1, 2)
        for size, step in zip(build.source_shape[2:], attributes["strides"] or [1] * rank, strict=True)
    ]
    attributes |= {
        "kernel_shape": draw.pick((None, kernel)),
        "group": group if group > 1 else None,
        "output_padding": draw.pick((None, None, draw.integers(rank, 0, 1), draw.integers(rank, 0, 2))),
        "output_shape": draw.pick((None, None, None, sizes)),
    }
    return build.test(inputs, **attributes), result_type(build)


@generator("MaxPool", "AveragePool")
def pool(build: Build) -> Result:
    draw = build.draw
    rank = draw.pick((1, 1, 2, 2, 2, 3))
    kernel = draw.integers(rank, 1, 4)
    source = window_data(build, rank, draw.integer(1, 2))
    attributes = window_attributes(build, rank, kernel, ceil=True)
    attributes |= {
        "kernel_shape": kernel,
        "count_include_pad": draw.pick((None, 0, 1)),
        "storage_order": draw.pick((None, None, 0, 1)),
    }
    outputs = 2 if build.operator == "MaxPool" and draw.chance(0.05) else 1
    return build.test([source], outputs, **attributes), result_type(build)


@generator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(build: Build) -> Result:
    return build.test([build.source(build.draw.shape(2, 5))]), result_type(build)


# ---------------------------------------------------------------- normalisation


@generator("BatchNormalization")
def batch_normalization(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape(1, 4)
    channels = shape[1] if len(shape) > 1 else 1
    source = build.source(shape)
    weights = [
        build.constant(values)
        for values in (*(draw.floats((channels,)) for _ in range(3)), np.abs(draw.floats((channels,))))
    ]
    training = draw.pick((None, None, 0, 1))
    attributes = {
        "epsilon": draw.pick((None, 0.1)),
        "momentum": draw.pick((None, 0.5)),
        "spatial": draw.pick((None, None, 1, 0)),
    }
    outputs = 3 if training and draw.chance(0.8) else 1
    return build.test([source, *weights], outputs, training_mode=training, **attributes), result_type(build)


@generator("InstanceNormalization")
def instance_normalization(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape(3, 4)
    source = build.source(shape)
    weights = [build.constant(draw.floats((shape[1],))) for _ in range(2)]
    return build.test([source, *weights], epsilon=draw.pick((None, 0.1))), result_type(build)


@generator("LayerNormalization")
def layer_normalization(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    sizes = shape[axis:] if -len(shape) <= axis < len(shape) else shape
    weights = [
        build.constant(draw.floats(sizes if draw.chance(0.7) else draw.broadcastable(sizes)))
        for _ in range(draw.integer(1, 2))
    ]
    source = build.source(shape)
    attributes = {
        "axis": None if axis == -1 and draw.chance(0.5) else axis,
        "epsilon": draw.pick((None, 0.1)),
        "stash_type": draw.pick((None, 1)),
    }
    return build.test([source, *weights], **attributes), result_type(build)


@generator("LpNormalization")
def lp_normalization(build: Build) -> Result:
    shape = build.draw.shape()
    axis = build.draw.pick((None, build.draw.axis(len(shape))))
    return build.test([build.source(shape)], axis=axis, p=build.draw.pick((None, 1, 2, 2, 3))), result_type(
        build
    )


# ---------------------------------------------------------------- reductions


@generator(*(f"Reduce{name}" for name in REDUCTIONS))
def reduction(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape(0 if build.of_constant else 1)
    source = build.source(shape)
    axes, attributes = build.setting("axes", None if draw.chance(0.25) else draw.axes(len(shape)))
    attributes |= {"keepdims": draw.pick((None, 0, 1)), "noop_with_empty_axes": draw.pick((None, None, 0, 1))}
    return build.test([source, axes], **attributes), result_type(build)


@generator("ArgMax", "ArgMin")
def arg_extreme(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    source = build.source(shape)
    attributes = {"axis": draw.pick((None, draw.axis(len(shape)))), "keepdims": draw.pick((None, 0, 1))}
    if draw.chance(0.3):
        source = build.add("Round" if build.opset >= 11 else "Floor", [source])  # Rounding makes ties.
    return build.test([source], select_last_index=draw.pick((None, 0, 1)), **attributes), INT64


@generator("CumSum")
def cumulative_sum(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    axis = build.constant(
        np.array(draw.axis(len(shape)) if shape else 0, dtype=draw.pick((np.int64, np.int32)))
    )
    attributes = {"exclusive": draw.pick((None, None, 0, 1)), "reverse": draw.pick((None, None, 0, 1))}
    return build.test([build.source(shape), axis], **attributes), result_type(build)


# ---------------------------------------------------------------- places


@generator("Reshape")
def reshape(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    size = int(np.prod(shape))
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    first = draw.pick(divisors)
    target = draw.pick(
        (
            [first, size // first],
            [-1, first],
            [size],
            [-1],
            [0, -1],
            [1, *shape],
            [*shape[:-1], 0],
            [first, -1, 1],
            [0] * len(shape),
        )
    )
    if draw.chance(draw.odds_invalid):
        target = [*target, draw.pick((0, -1, 2, -2))]
    source = build.source(shape)
    return build.test(
        [source, build.constant(np.array(target, np.int64))], allowzero=draw.pick((None, None, 0, 1))
    ), result_type(build)


@generator("Flatten")
def flatten(build: Build) -> Result:
    shape = build.draw.shape(0 if build.of_constant else 1)
    axis = build.draw.pick((None, build.draw.axis(len(shape)), len(shape), 0))
    return build.test([build.source(shape)], axis=axis), result_type(build)


@generator("Squeeze")
def squeeze(build: Build) -> Result:
    draw = build.draw
    shape = tuple(1 if draw.chance(0.4) else size for size in draw.shape())
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    chosen = draw.random.sample(ones, draw.integer(0, len(ones)))
    wanted = [axis - len(shape) if draw.chance(0.4) else axis for axis in chosen]
    wanted = draw.axes(len(shape)) if draw.chance(0.1) else wanted
    source = build.source(shape)
    axes, attributes = build.setting("axes", None if draw.chance(0.25) else wanted)
    return build.test([source, axes], **attributes), result_type(build)


@generator("Unsqueeze")
def unsqueeze(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape(0 if build.of_constant else 1, 3)
    more = draw.integer(1, 2)
    rank = len(shape) + more
    wanted = [axis - rank if draw.chance(0.4) else axis for axis in draw.random.sample(range(rank), more)]
    if draw.chance(draw.odds_invalid):
        wanted[0] = draw.pick((rank, -rank - 1, wanted[-1]))
    source = build.source(shape)
    axes, attributes = build.setting("axes", wanted)
    return build.test([source, axes], **attributes), result_type(build)


@generator("Transpose")
def transpose(build: Build) -> Result:
    shape = build.draw.shape(0 if build.of_constant else 1)
    order = list(range(len(shape)))
    build.draw.random.shuffle(order)
    if build.draw.chance(build.draw.odds_invalid) and order:
        order[0] -= len(shape)
    return build.test([build.source(shape)], perm=build.draw.pick((None, order, order))), result_type(build)


@generator("Expand")
def expand(build: Build) -> Result:
    draw = build.draw
    shape = tuple(1 if draw.chance(0.4) else size for size in draw.shape())
    target = [draw.integer(1, 3) if size == 1 else draw.pick((1, size)) for size in shape]
    target = draw.pick((target, target[draw.integer(0, len(target)) :], [draw.integer(1, 2), *target]))
    if draw.chance(draw.odds_invalid) and target:
        target[-1] = draw.pick((5, -1, 0))
    return build.test([build.source(shape), build.constant(np.array(target, np.int64))]), result_type(build)


@generator("Tile")
def tile(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape(1, 3)
    repeats = draw.integers(len(shape) + (1 if draw.chance(draw.odds_invalid) else 0), 1, 2)
    if draw.chance(draw.odds_invalid):
        repeats[0] = 0
    return build.test([build.source(shape), build.constant(np.array(repeats, np.int64))]), result_type(build)


@generator("Resize", "Upsample")
def enlarge(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape(1, 4)
    source = build.source(shape)
    resize, mode = build.operator == "Resize", draw.pick((None, "nearest", "nearest", "linear"))
    spatial = [draw.pick((1.0, 2.0, 2.0, 3.0, 1.5)) if draw.chance(0.7) else 2.0 for _ in shape]
    scales = [1.0 if len(shape) > 2 and axis < 2 else scale for axis, scale in enumerate(spatial)]
    if not resize and build.opset < 9:
        return build.test([source], mode=mode, scales=scales), result_type(build)
    by_scale = build.constant(np.array(scales, np.float32))
    if not resize or build.opset < 11:
        return build.test([source, by_scale], mode=mode), result_type(build)
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": draw.pick(
            (None, "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
        ),
        "nearest_mode": draw.pick((None, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    }
    region = build.constant(np.array([], np.float32)) if build.opset < 13 or draw.chance(0.2) else ""
    if draw.chance(0.3):
        sizes = [int(size * scale) for size, scale in zip(shape, scales, strict=True)]
        empty = build.constant(np.array([], np.float32)) if build.opset < 13 else ""
        inputs = [source, region, empty, build.constant(np.array(sizes, np.int64))]
        return build.test(inputs, **attributes), result_type(build)
    if build.opset >= 18 and draw.chance(draw.odds_invalid):
        attributes["antialias"] = 1
    return build.test([source, region, by_scale], **attributes), result_type(build)


@generator("OneHot")
def one_hot(build: Build) -> Result:
    draw = build.draw
    depth = draw.integer(1, 4)
    rounded = build.add("Floor", [build.source(draw.shape(1, 3))])
    source = build.add("Cast", [rounded], to=INT64)
    if draw.chance(0.5):
        source = build.add("ArgMax", [rounded], axis=0, keepdims=draw.pick((0, 1)))
    kind = draw.pick((np.float32, np.float32, np.int64))
    values = np.array(draw.pick(([0, 1], [0, 1], [-1, 3], [2, 2])), kind)
    inputs = [source, build.constant(np.array([depth], np.int64)), build.constant(values)]
    found = build.test(inputs, axis=draw.pick((None, -1, 0, 1)))
    return found, FLOAT if kind is np.float32 else INT64


@generator("Concat")
def concat(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    axis = draw.axis(len(shape))
    source = build.source(shape)
    parts = [source]
    for _ in range(draw.integer(0, 2)):
        sizes = list(shape)
        if -len(shape) <= axis < len(shape):
            sizes[axis] = draw.integer(1, 3)
        other = build.constant(draw.floats(sizes))
        parts.append(draw.pick((other, source, build.add("Neg", [source]))))
    draw.random.shuffle(parts)
    return build.test(parts, axis=axis), result_type(build)


@generator("Split")
def split(build: Build) -> Result:
    draw = build.draw
    shape = list(draw.shape())
    axis = draw.axis(len(shape))
    place = axis if -len(shape) <= axis < len(shape) else 0
    shape[place] = draw.integer(1, 6)
    parts = draw.integer(1, min(3, shape[place]))
    source = build.source(shape)
    sizes: list[int] | None = [1] * (parts - 1) + [shape[place] - parts + 1]
    draw.random.shuffle(sizes or [])
    if draw.chance(0.5):
        sizes = None
    if sizes and draw.chance(draw.odds_invalid):
        sizes[0] += 1
    split_sizes, attributes = build.setting("split", sizes)
    if build.opset >= 18 and (sizes is None or draw.chance(0.05)):
        attributes["num_outputs"] = parts if draw.chance(0.95) else parts + 1
    build.test(
        [source, split_sizes], parts, axis=axis if axis != 0 or draw.chance(0.5) else None, **attributes
    )
    return draw.pick(list(build.nodes[-1].output)), result_type(build)


ENDS = (-(2**63), -(2**31), -1000, 1000, 2**31 - 1, 2**63 - 1)


def slice_settings(
    build: Build, shape: tuple[int, ...]
) -> tuple[list[int], list[int], list[int] | None, list[int] | None]:
    draw = build.draw
    count = draw.integer(1, max(1, min(2, len(shape))))
    axes: list[int] | None = [
        axis - len(shape) if draw.chance(0.4) else axis
        for axis in draw.random.sample(range(len(shape)), count)
    ]
    sizes = [shape[axis] for axis in axes or ()]
    if draw.chance(0.25):
        axes, sizes = None, list(shape[:count])
    elif draw.chance(draw.odds_invalid) and axes:
        axes[0] = draw.pick((len(shape), -len(shape) - 1, axes[-1]))

    def end(size: int) -> int:
        return draw.pick(ENDS) if draw.chance(0.2) else draw.integer(-size - 2, size + 2)

    steps = draw.pick((None, [draw.pick((1, 1, 2, -1, -2, 3)) for _ in sizes]))
    if steps and draw.chance(draw.odds_invalid / 2):
        steps[0] = 0
    return [end(size) for size in sizes], [end(size) for size in sizes], axes, steps


@generator("Slice")
def slice_(build: Build) -> Result:
    shape = build.draw.shape()
    source = build.source(shape)
    starts, ends, axes, steps = slice_settings(build, shape)
    settings: dict[str, Any] = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    inputs, attributes = [source], {}
    for key, values in settings.items():
        name, attribute = build.setting(key, values)
        inputs.append(name)
        attributes |= attribute
    return build.test(inputs, **attributes), result_type(build)


def indices(build: Build, size: int, shape: tuple[int, ...]) -> Array:
    draw = build.draw
    values = draw.numbers.integers(-size, max(size, 1), size=shape)
    if draw.chance(0.4):
        values = np.abs(values) % max(size, 1)
    if draw.chance(draw.odds_invalid):
        values = values + size
    return np.asarray(values, dtype=draw.pick((np.int64, np.int64, np.int32)))


@generator("Gather")
def gather(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    axis = draw.axis(len(shape))
    size = shape[axis] if -len(shape) <= axis < len(shape) else shape[0]
    where = build.constant(indices(build, size, draw.pick(((), (1,), (2,), (2, 2), (1, 3)))))
    return build.test([build.source(shape), where], axis=None if axis == 0 else axis), result_type(build)


@generator("GatherElements")
def gather_elements(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    axis = draw.axis(len(shape))
    sizes = [draw.integer(1, size) for size in shape]
    place = axis if -len(shape) <= axis < len(shape) else 0
    sizes[place] = draw.integer(1, 4)
    return build.test(
        [build.source(shape), build.constant(indices(build, shape[place], tuple(sizes)))], axis=axis
    ), result_type(build)


@generator("GatherND")
def gather_many(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    batch = draw.pick((None, None, 0, 1))
    begin = 1 if batch and len(shape) > 1 else 0
    last = draw.integer(1, max(1, len(shape) - begin))
    leading = (shape[0],) if begin else draw.pick(((), (2,), (2, 2)))
    columns = [draw.numbers.integers(-size, size, size=leading) for size in shape[begin : begin + last]]
    where = np.stack(columns, -1).astype(np.int64)
    return build.test([build.source(shape), build.constant(where)], batch_dims=batch), result_type(build)


@generator("Pad")
def pad(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape(1, 5)
    source = build.source(shape)
    axes = draw.axes(len(shape)) if build.opset >= 18 and draw.chance(0.4) else None
    count = len(shape) if axes is None else len(axes)
    pads = draw.pick(
        (draw.integers(2 * count, 0, 2), draw.integers(2 * count, 0, 1), draw.integers(2 * count, -1, 2))
    )
    amounts, attributes = build.setting("pads", pads)
    value, others = build.setting(
        "value" if build.opset < 11 else "constant_value",
        draw.pick((None, 0.0, 1.5, -2.0)),
        build.source_dtype,
    )
    mode = draw.pick((None, None, "constant", "edge", "reflect", "wrap"))
    around = "" if axes is None else build.constant(np.array(axes, draw.pick((np.int64, np.int32))))
    return build.test([source, amounts, value, around], mode=mode, **attributes, **others), result_type(build)


@generator("Trilu")
def triangle(build: Build) -> Result:
    draw = build.draw
    diagonal = "" if draw.chance(0.4) else build.constant(np.array(draw.integer(-3, 3), np.int64))
    return build.test([build.source(draw.shape(2, 4)), diagonal], upper=draw.pick((None, 0, 1))), result_type(
        build
    )


@generator("ConstantOfShape")
def constant_of_shape(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    source = build.source(shape)
    sizes = (
        build.constant(np.array(draw.broadcastable(shape), np.int64))
        if draw.chance(0.5)
        else build.add("Shape", [source])
    )
    kind = draw.pick((None, FLOAT, FLOAT, INT64, BOOL))
    value = (
        None
        if kind is None
        else helper.make_tensor("", kind, [1], [draw.pick((1, 2.5)) if kind == FLOAT else 1])
    )
    name = build.test([sizes], value=value)
    name = build.add("Cast", [name], to=result_type(build))
    return build.add("Add", [source, name]), result_type(build)


@generator("Range")
def range_(build: Build) -> Result:
    draw = build.draw
    source = build.source(draw.shape(1, 2))
    kind = draw.pick((np.int64, np.int64, np.int32, np.float32))
    ends = [draw.integer(-3, 3), draw.integer(-3, 6), draw.pick((1, 1, 2, -1, -2))]
    values = [float(end) for end in ends] if kind == np.float32 else ends
    if kind == np.float32 and draw.chance(0.5):
        values[2] = values[2] / 2
    name = build.test([build.constant(np.array(value, kind)) for value in values])
    flat = build.add("Reshape", [source, build.constant(np.array([-1], np.int64))])
    return build.add("Concat", [flat, build.add("Cast", [name], to=result_type(build))], axis=0), result_type(
        build
    )


@generator("Shape", "Size")
def shape_of(build: Build) -> Result:
    draw = build.draw
    source = build.source(draw.shape(1, 4))
    read = build.add("Transpose", [source]) if draw.chance(0.4) else source
    ends = {"start": draw.pick((None, draw.integer(-5, 5))), "end": draw.pick((None, draw.integer(-5, 5)))}
    name = build.test([read], **ends)
    return appended(build, source, name), result_type(build)


def appended(build: Build, source: str, numbers: str) -> str:
    """Concatenate these integers to the value under test, so that each of them appears in the output."""
    minus_one = build.constant(np.array([-1], np.int64))
    flat = build.add("Reshape", [source, minus_one])
    as_floats = build.add("Reshape", [build.add("Cast", [numbers], to=result_type(build)), minus_one])
    return build.add("Concat", [flat, as_floats], axis=0)


@generator("If")
def choice(build: Build) -> Result:
    draw = build.draw
    shape = draw.shape()
    source = build.source(shape)
    if draw.chance(0.5):
        condition = build.constant(np.array(draw.chance(0.5)))
    else:
        size = build.add("Size", [source])
        condition = build.add(
            "Equal", [size, build.constant(np.array(int(np.prod(shape)) + draw.integer(0, 1), np.int64))]
        )

    def branch(name: str) -> Any:
        operator = draw.pick(("Relu", "Neg", "Tanh", "Identity", "Add"))
        node = helper.make_node(
            operator, [source, source] if operator == "Add" else [source], [f"{name}_result"]
        )
        port = helper.make_tensor_value_info(f"{name}_result", result_type(build), None)
        return helper.make_graph([node], name, [], [port])

    result = build.add("If", [condition], then_branch=branch("then"), else_branch=branch("other"))
    return result, result_type(build)


# ---------------------------------------------------------------- recurrent layers


@generator("RNN", "LSTM", "GRU")
def recurrent(build: Build) -> Result:
    draw = build.draw
    gates = {"RNN": 1, "LSTM": 4, "GRU": 3}[build.operator]
    direction = draw.pick((None, "forward", "reverse", "bidirectional"))
    many = 2 if direction == "bidirectional" else 1
    length, batch, width, hidden = (
        draw.integer(1, 3),
        draw.pick((1, 1, 2)),
        draw.integer(1, 3),
        draw.integer(1, 3),
    )
    layout = draw.pick((None, None, None, 0, 1)) if build.opset >= 14 else None
    source = build.source((batch, length, width) if layout else (length, batch, width))
    inputs = [source, build.constant(draw.floats((many, gates * hidden, width)))]
    inputs.append(build.constant(draw.floats((many, gates * hidden, hidden)) / 2))
    inputs.append(build.constant(draw.floats((many, 2 * gates * hidden))) if draw.chance(0.6) else "")
    lengths = [length] * batch if draw.chance(0.7) else draw.integers(batch, 0, length)
    inputs.append(build.constant(np.array(lengths, np.int32)) if draw.chance(0.25) else "")
    state = (batch, many, hidden) if layout else (many, batch, hidden)
    for _ in range(2 if build.operator == "LSTM" else 1):
        fill = draw.floats(state) if draw.chance(0.7) else np.zeros(state, build.source_dtype)
        inputs.append(build.constant(fill) if draw.chance(0.3) else "")
    if build.operator == "LSTM" and draw.chance(0.15):
        inputs.append(build.constant(draw.floats((many, 3 * hidden))))
    per_direction = {"RNN": 1, "LSTM": 3, "GRU": 2}[build.operator]
    usual = {"RNN": ["Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}[build.operator]
    functions = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", "tanh", "HardSigmoid", "Affine", "Elu")
    activations = draw.pick(
        (None, None, None, usual * many, [draw.pick(functions) for _ in range(per_direction * many)])
    )
    attributes = {
        "hidden_size": hidden,
        "direction": direction,
        "layout": layout,
        "activations": activations,
        "activation_alpha": draw.pick((None,) * 9 + ([0.5],)),
        "clip": draw.pick((None,) * 8 + (0.5, 0.0)),
        "input_forget": draw.pick((None,) * 8 + (0, 1)),
        "linear_before_reset": draw.pick((None, 0, 1, 1)),
    }
    outputs = draw.integer(1, 3 if build.operator == "LSTM" else 2)
    build.test(inputs, outputs, **attributes)
    return draw.pick(list(build.nodes[-1].output)), result_type(build)


# ---------------------------------------------------------------- arithmetic on shapes


def shape_arithmetic(build: Build) -> Result:
    """The operator on the sizes of a value, which the importer computes in Python numbers."""
    draw = build.draw
    shape = draw.shape(2, 4)
    source = build.source(shape)
    sizes = build.add("Shape", [build.add("Transpose", [source]) if draw.chance(0.3) else source])
    count, operator = len(shape), build.operator

    def other(shape: tuple[int, ...] = (count,)) -> str:
        values = np.asarray(draw.numbers.integers(-4, 5, size=shape), np.int64)
        if operator in ("Div", "Mod"):
            values = np.where(values == 0, 3, values)
        way = draw.random.random()
        if way < 0.15 and operator not in ("Div", "Mod"):  # Division by zero is avoided.
            return sizes
        return build.constant(values if way < 0.7 else values.reshape(-1)[:1])

    def truths(name: str) -> str:
        return build.add("Greater", [name, build.constant(np.array(2, np.int64))])

    # In half of the cases a size is negated first, so that signs matter.
    if draw.chance(0.5) and operator not in ("Range", "Expand", "Reshape", "Shape", "Size"):
        sizes = build.add(
            "Sub", [sizes, build.constant(np.asarray(draw.numbers.integers(0, 6, size=(count,)), np.int64))]
        )
    if operator in ("Neg", "Abs", "Identity", "Shape", "Size"):
        result = build.test([sizes])
    elif operator in ("And", "Or"):
        result = build.test([truths(sizes), truths(other())])
    elif operator == "Not":
        result = build.test([truths(sizes)])
    elif operator == "Where":
        result = build.test([truths(sizes), other(), sizes])
    elif operator == "Cast":
        result = build.test([sizes], to=draw.pick((INT64, TensorProto.INT32, FLOAT, BOOL)))
        result = build.add("Cast", [result], to=INT64)
    elif operator == "CastLike":
        result = build.test([sizes, build.constant(np.zeros(1, draw.pick((np.int64, np.int32, np.float32))))])
    elif operator == "Concat":
        result = build.test(draw.pick(([sizes, other()], [other(), sizes])), axis=draw.pick((0, -1)))
    elif operator == "Gather":
        result = build.test(
            [sizes, build.constant(indices(build, count, draw.pick(((), (1,), (2,), (2, 2)))))],
            axis=draw.pick((None, 0, -1)),
        )
    elif operator == "Slice":
        starts, ends, axes, steps = slice_settings(build, (count,))
        names, attributes = [sizes], {}
        for key, values in (("starts", starts), ("ends", ends), ("axes", axes), ("steps", steps)):
            name, attribute = build.setting(key, values)
            names.append(name)
            attributes |= attribute
        result = build.test(names, **attributes)
    elif operator in ("Squeeze", "Unsqueeze"):
        one = build.add("Gather", [sizes, build.constant(np.array([1], np.int64))], axis=0)
        axes_name, attributes = build.setting("axes", draw.pick(([0], [-1])))
        result = build.test([one, axes_name], **attributes)
    elif operator == "Reshape":
        target = draw.pick(([1, -1], [-1, 1], [0], [-1], [count, 1]))
        result = build.test([sizes, build.constant(np.array(target, np.int64))])
    elif operator == "Transpose":
        rows = build.add("Reshape", [sizes, build.constant(np.array([-1, 1], np.int64))])
        result = build.test([rows], perm=draw.pick((None, [1, 0], [0, 1])))
    elif operator == "Expand":
        result = build.test(
            [sizes, build.constant(np.array(draw.pick(([2, count], [1], [count, 1, count])), np.int64))]
        )
    elif operator == "Range":
        rank = build.add("Size", [sizes])
        result = build.test(
            [
                build.constant(np.array(draw.integer(-2, 1), np.int64)),
                rank,
                build.constant(np.array(draw.pick((1, 2)), np.int64)),
            ]
        )
    elif operator == "ReduceProd":
        axes_name, attributes = build.setting("axes", draw.pick((None, [0], [-1], [])))
        attributes |= {"keepdims": draw.pick((None, 0, 1)), "noop_with_empty_axes": draw.pick((None, 0, 1))}
        result = build.test([sizes, axes_name], **attributes)
    else:
        operands = [sizes, other()]
        if draw.chance(0.3) and operator not in ("Div", "Mod"):
            operands.reverse()
        result = build.test(operands, **({"fmod": draw.pick((None, 0, 1))} if operator == "Mod" else {}))
    return appended(build, source, result), result_type(build)
