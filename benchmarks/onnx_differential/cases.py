"""The cases of a run; each depends only on the seed and its own number."""

import numpy as np
import onnx

from benchmarks.onnx_differential import quantised  # noqa: F401  (registers its generators)
from benchmarks.onnx_differential.building import Build, Case, finish, opset_for
from benchmarks.onnx_differential.draw import Draw
from benchmarks.onnx_differential.generators import GENERATORS, SHAPE_ARITHMETIC, shape_arithmetic
from benchmarks.onnx_differential.variants import vary

OPERATORS = sorted(GENERATORS)
UNTESTED_AS_CONSTANT = ("If", "Shape", "Size", "Range", "ConstantOfShape", "Constant")
"""Generators that need the value under test to be the input."""


def make_case(seed: int, number: int) -> Case:
    """Case `number` of the run with this seed.

    Operators take turns, so that each gets as many cases as any other.
    """
    draw = Draw(f"{seed}/{number}")
    on_shapes = number % 8 == 7
    names = SHAPE_ARITHMETIC if on_shapes else OPERATORS
    operator = names[(number // 8 if on_shapes else number - number // 8) % len(names)]
    build = Build(draw, operator, opset_for(draw, operator))
    build.of_constant = not on_shapes and operator not in UNTESTED_AS_CONSTANT and draw.chance(0.2)
    if draw.chance(0.08):
        build.source_dtype = np.float64
    output, element = (shape_arithmetic if on_shapes else GENERATORS[operator])(build)
    if on_shapes:
        build.variants.append("on sizes")
    case = vary(draw, finish(build, output, element))
    case.number = f"{seed}/{number}"
    return case


def text_of(case: Case) -> str:
    """The model as text, with the values of its constants, and the input."""
    model = onnx.load_from_string(case.content)
    lines = [
        f"case {case.number}: {case.operator}, operator set "
        f"{[(o.domain, o.version) for o in model.opset_import]}"
    ]
    if case.variants:
        lines.append(f"  written with: {', '.join(case.variants)}")
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        lines.append(
            f"  {tensor.name} = {values.dtype} {list(values.shape)} "
            f"{np.array2string(values.ravel(), threshold=24, separator=',')}"
        )
    lines += [f"  {onnx.printer.to_text(node).strip()}" for node in model.graph.node]
    lines += [f"  function {onnx.printer.to_text(function).strip()}" for function in model.functions]
    lines.append(f"  x = {list(case.x.shape)} {np.array2string(case.x.ravel(), threshold=48, separator=',')}")
    return "\n".join(lines)
