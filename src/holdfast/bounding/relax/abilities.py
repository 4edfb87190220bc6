"""The capability matrix of the relaxations: what each function supports, and the reason where it does not."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from holdfast.bounding.relax.base import Relaxation
from holdfast.bounding.relax.convex import Exp, Log, Reciprocal, Rsqrt, Sqrt
from holdfast.bounding.relax.dynamic_rounding import DynamicRounding
from holdfast.bounding.relax.gates import SigmoidTanh, SigmoidTimes
from holdfast.bounding.relax.piecewise import Abs, Clip, Elu, Hardswish, LeakyRelu, Relu
from holdfast.bounding.relax.power import Power
from holdfast.bounding.relax.product import Product
from holdfast.bounding.relax.relu_difference import ReluDifference
from holdfast.bounding.relax.rounding_interval import IntegerRange, RoundedInput
from holdfast.bounding.relax.selfgated import Gelu, GeluTanh, Mish, Silu
from holdfast.bounding.relax.sigmoidal import Atan, Erf, Sigmoid, Tanh
from holdfast.bounding.relax.sine import Cosine, Sine
from holdfast.bounding.relax.softplus import Softplus
from holdfast.bounding.relax.stairs import Ceil, Floor, Round
from holdfast.bounding.relax.step import Sign, Step

# The columns of the matrix. "planes" are linear bounds; "sign split" means splitting at a kink.
ABILITIES = ("planes", "value range", "derivative", "parabola", "sign split", "as executed")
# One instance of every relaxation of the package.
EVERY: tuple[Relaxation, ...] = (
    Relu(), LeakyRelu(), Abs(), Clip(0.0), Clip(-1.0, 1.0), Elu(), Hardswish(),
    Step(), Sign(), Floor(), Ceil(), Round(), RoundedInput(), IntegerRange(),
    Tanh(), Sigmoid(), Erf(), Atan(), Sine(), Cosine(), Softplus(), Silu(), Gelu(), GeluTanh(), Mish(), Exp(),
    Log(), Sqrt(), Rsqrt(), Reciprocal(), Power(2), Power(3), Product(), SigmoidTimes(), SigmoidTanh(),
    ReluDifference(), DynamicRounding(),
)  # fmt: skip


@dataclass(frozen=True)
class CapabilityRow:
    """One function. `lacks` maps each missing ability to the reason, or to None if no reason is declared."""

    function: Relaxation
    lacks: Mapping[str, str | None]


def abilities(functions: Iterable[Relaxation] = EVERY) -> list[CapabilityRow]:
    """The row of each function."""
    rows = []
    for f in functions:
        box = tuple(torch.ones(1, dtype=torch.float64) for _ in range(f.arguments))
        known = {
            "planes": True,
            "value range": True,
            "derivative": f.derivative_range(box, box) is not None,
            "parabola": f.curves() is not None,
            "sign split": f.sides() is not None,
            "as executed": f.executed_error(box, box, torch.float32) is not None,
        }
        rows.append(
            CapabilityRow(f, {ability: f.unknown.get(ability) for ability in ABILITIES if not known[ability]})
        )
    return rows


def table(rows: Iterable[CapabilityRow]) -> str:
    """The matrix as text: one line per function, one column per ability."""
    lines = [["function", *ABILITIES, "why not"]]
    for row in rows:
        marks = ["-" if ability in row.lacks else "yes" for ability in ABILITIES]
        lines.append(
            [
                name(row.function),
                *marks,
                "; ".join(f"{a}: {why or 'no reason declared'}" for a, why in row.lacks.items()),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def name(function: Relaxation) -> str:
    """The class name of a function, and its settings if it has any."""
    settings = ", ".join(f"{value:g}" for value in vars(function).values() if not isinstance(value, bool))
    return type(function).__name__ + (f"({settings})" if settings else "")
