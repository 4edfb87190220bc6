"""Generators of the quantised operators of ONNX: the value under test goes onto the grid in front of most of them."""

from typing import Any

import numpy as np
from onnx import TensorProto

from benchmarks.onnx_differential.building import Build
from benchmarks.onnx_differential.draw import Array
from benchmarks.onnx_differential.generators import FLOAT, Result, generator, window_attributes

SCALES = (0.5, 0.1, 0.02, 1.0, 0.0371)
KINDS = (np.uint8, np.int8)


def whole_numbers(build: Build, shape: tuple[int, ...], kind: Any) -> Array:
    limits = np.iinfo(kind)
    return build.draw.numbers.integers(limits.min, limits.max, size=shape, endpoint=True).astype(kind)


def zero_point(build: Build, kind: Any) -> Array:
    limits = np.iinfo(kind)
    choices = (0, 0, limits.min, limits.max // 2, limits.max)
    return np.array(build.draw.pick(choices), dtype=kind)


def scale(build: Build, count: int = 0) -> Array:
    """One scale, or `count` of them in one axis."""
    one = build.draw.pick(SCALES)
    return np.array(one if not count else [build.draw.pick(SCALES) for _ in range(count)], dtype=np.float32)


def on_grid(build: Build, shape: tuple[int, ...], kind: Any) -> tuple[str, str, str]:
    """The value under test on a grid: the names of its integers, its scale and its zero point."""
    build.source_dtype = np.float32
    names = build.constant(scale(build)), build.constant(zero_point(build, kind))
    return (build.add("QuantizeLinear", [build.source(shape), *names]), *names)


@generator("QuantizeLinear")
def quantise(build: Build) -> Result:
    kind = build.draw.pick(KINDS)
    build.source_dtype = np.float32
    shape = build.draw.shape()
    names = [build.constant(scale(build)), build.constant(zero_point(build, kind))]
    if build.opset >= 13 and build.draw.chance(0.3):
        axis = build.draw.axis(len(shape))
        count = shape[axis] if -len(shape) <= axis < len(shape) else 2
        names = [build.constant(scale(build, count)), build.constant(np.full(count, 3, dtype=kind))]
        whole = build.test([build.source(shape), *names], axis=axis)
        return build.add("Cast", [whole], to=FLOAT), FLOAT
    if build.draw.chance(0.2):
        names, kind = names[:1], np.uint8
    whole = build.test([build.source(shape), *names])
    return build.add("Cast", [whole], to=FLOAT), FLOAT


@generator("DequantizeLinear")
def dequantise(build: Build) -> Result:
    kind = build.draw.pick(KINDS)
    shape = build.draw.shape()
    whole, *_ = on_grid(build, shape, kind)
    names = [build.constant(scale(build)), build.constant(zero_point(build, kind))]
    if build.draw.chance(0.2):
        names = names[:1]
    if build.draw.chance(0.4):  # a weight or a bias, which is computed at import
        weight = build.test([build.constant(whole_numbers(build, shape, kind)), *names])
        return build.add("Add", [build.source(shape), weight]), FLOAT
    return build.test([whole, *names]), FLOAT


@generator("MatMulInteger", "QLinearMatMul")
def matrix_product(build: Build) -> Result:
    kinds = build.draw.pick(KINDS), build.draw.pick(KINDS)
    rows, inner, columns = build.draw.integers(3, 1, 4)
    a, a_scale, a_zero = on_grid(build, (rows, inner), kinds[0])
    b = build.constant(whole_numbers(build, (inner, columns), kinds[1]))
    b_zero = build.constant(zero_point(build, kinds[1]))
    if build.operator == "MatMulInteger":
        zeros = build.draw.pick(([], [a_zero], [a_zero, b_zero]))
        return build.add("Cast", [build.test([a, b, *zeros])], to=FLOAT), FLOAT
    b_scale = build.constant(scale(build))
    result = [build.constant(scale(build)), build.constant(zero_point(build, kinds[0]))]
    whole = build.test([a, a_scale, a_zero, b, b_scale, b_zero, *result])
    return build.add("Cast", [whole], to=FLOAT), FLOAT


@generator("ConvInteger", "QLinearConv")
def convolution(build: Build) -> Result:
    draw = build.draw
    groups, channels, out = draw.pick((1, 1, 2)), draw.integer(1, 2), draw.integer(1, 2)
    kernel = draw.integers(2, 1, 3)
    shape = (1, groups * channels, *draw.integers(2, 3, 5))
    kinds = np.uint8, draw.pick(KINDS)
    x, x_scale, x_zero = on_grid(build, shape, kinds[0])
    w = build.constant(whole_numbers(build, (groups * out, channels, *kernel), kinds[1]))
    attributes = window_attributes(build, 2, kernel, ceil=False)
    attributes["group"] = groups
    if build.operator == "ConvInteger":
        zeros = [x_zero, build.constant(zero_point(build, kinds[1]))] if draw.chance(0.7) else []
        whole = build.test([x, w, *zeros], **attributes)
        return build.add("Cast", [whole], to=TensorProto.FLOAT), FLOAT
    each = draw.chance(0.5)
    count = groups * out if each else 0
    w_zero = np.zeros(count, dtype=kinds[1]) if each else zero_point(build, kinds[1])
    names = [build.constant(scale(build, count)), build.constant(w_zero)]
    names += [build.constant(scale(build)), build.constant(zero_point(build, kinds[0]))]
    if draw.chance(0.5):
        names.append(build.constant(draw.numbers.integers(-900, 900, size=groups * out).astype(np.int32)))
    return build.add("Cast", [build.test([x, x_scale, x_zero, w, *names], **attributes)], to=FLOAT), FLOAT
