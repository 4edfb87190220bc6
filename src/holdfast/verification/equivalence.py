"""Equivalence of two networks over a box: how far their outputs differ at the same input, or whether they choose the
same class.

Statement. For networks f and g and a box B of inputs, the questions are

    within delta:   |f_k(x) - g_k(x)| <= delta              for all x in B and all outputs k,
    same class:     f_i(x) - f_k(x) > margin for all k != i  implies  g_i(x) >= g_j(x) for all j,   for all x in B, i.

Each is the negation of a query of VNN-LIB 2 about two networks with the same input, which `verify` decides
(`equivalence_query`). Both networks are bounded as one, by g and the difference f - g (`graph.branch_difference`).
Without a question, the largest difference is bracketed: max over B and k of |f_k - g_k| lies between a value that
an input attains and a proved upper bound (`measure_difference`).

References: Paulsen et al. 2020 (ReluDiff); Teuber et al. 2025 (VeryDiff), whose top-1 equivalence for confident
inputs is the question about classes with a margin.
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.result import Evidence
from holdfast.verification.combined_network import combine_networks, input_shape
from holdfast.verification.ranges import Range
from holdfast.verification.vnnlib import Spec

# Digits that a decimal of the query may have: those of every float64 number above 1e-100.
MOST_DIGITS = 400


@dataclass(frozen=True)
class LargestDifference:
    """The bracket of the largest |f_k(x) - g_k(x)|.

    found <= max <= proved. `witness` attains `found` at output `output`; `ranges` has the range of every
    difference f_k - g_k.
    """

    found: float
    proved: float
    output: int
    witness: Tensor
    ranges: tuple[Range, ...]
    evidence: Evidence


def equivalence_query(
    shape: tuple[int, ...],
    outputs: int,
    lower: Tensor,
    upper: Tensor,
    *,
    within: float | None = None,
    margin: float | None = None,
) -> str:
    """The question as VNN-LIB 2: a counterexample is an input at which the networks f and g are not equivalent.

    Args:
        shape: of one input.
        outputs: how many each network has.
        lower, upper: the box, with the elements of an input.
        within: the difference that is allowed, or
        margin: the lead of the class of f from which on g must choose it too.
    """
    dims = ",".join(map(str, (1, *shape)))
    lines = [
        "(vnnlib-version <2.0>)",
        "(declare-network f",
        f"  (declare-input X real [{dims}])",
        f"  (declare-output Y real [1,{outputs}]))",
        "(declare-network g",
        f"  (declare-input U real [{dims}])",
        f"  (declare-output V real [1,{outputs}]))",
    ]
    ends = zip(_indices(shape), lower.flatten().tolist(), upper.flatten().tolist(), strict=True)
    for index, low, high in ends:
        lines.append(f"(assert (and (>= X{index} {_decimal(low)}) (<= X{index} {_decimal(high)})))")
        lines.append(f"(assert (== U{index} X{index}))")
    numbers = range(outputs)
    if within is not None:
        edge = _decimal(within)
        cases = [
            f"(> (- {one}[0,{k}] {other}[0,{k}]) {edge})"
            for k in numbers
            for one, other in (("Y", "V"), ("V", "Y"))
        ]
    else:
        assert margin is not None
        lead = _decimal(margin)
        cases = []
        for i in numbers:
            leads = " ".join(f"(> (- Y[0,{i}] Y[0,{k}]) {lead})" for k in numbers if k != i)
            cases += [f"(and {leads} (> V[0,{j}] V[0,{i}]))" for j in numbers if j != i]
    lines.append("(assert (or" if len(cases) > 1 else "(assert")
    lines += [f"  {case}" for case in cases]
    lines.append("))" if len(cases) > 1 else ")")
    return "\n".join(lines) + "\n"


def _indices(shape: tuple[int, ...]) -> list[str]:
    """The index of every element of an input (1, *shape), row-major."""
    places = torch.cartesian_prod(*(torch.arange(size) for size in (1, *shape)))
    rows = places.reshape(-1, len(shape) + 1).tolist()
    return [f"[{','.join(map(str, row))}]" for row in rows]


def _decimal(value: float) -> str:
    """The number in all its digits, so that the query is exact."""
    with localcontext() as context:
        context.prec = 2 * MOST_DIGITS
        text = format(Decimal(value), "f")
    whole, _, digits = text.lstrip("-").partition(".")
    if max(len(whole), len(digits)) > MOST_DIGITS:
        raise BadInput(f"{value!r}: the number is too small to be written in a query; round it to 0.")
    return text if "." in text else f"{text}.0"


def two_networks(one: Network, other: Network, lower: Tensor) -> tuple[Network, tuple[int, ...], int]:
    """Both networks at the same input as one network of a flat input, the shape of an input, and their outputs.

    BadInput if they do not take the same inputs or have other numbers of outputs.
    """
    size = lower.numel()
    shapes = [input_shape(net, size, "the box") for net in (one, other)]
    counts = [
        net.outputs_for(lower.reshape(1, *shape)) for net, shape in zip((one, other), shapes, strict=True)
    ]
    if counts[0] != counts[1]:
        raise BadInput(
            f"{one.name} has {counts[0]} outputs and {other.name} {counts[1]}; only networks with the same outputs can "
            "be compared."
        )
    searched = tuple((i,) for i in range(size))
    spec = Spec("the comparison", size, 2 * counts[0], (), sources=(*searched, *searched))
    return combine_networks(spec, [one, other]), shapes[0], counts[0]


def largest_difference(ranges: list[Range], shape: tuple[int, ...]) -> LargestDifference:
    """Combine the ranges of the differences of all outputs."""

    def attained_difference(found: Range) -> float:
        return max(abs(found.minimum.upper.value), abs(found.maximum.lower.value))

    def bound(found: Range) -> float:
        return max(-found.minimum.lower.value, found.maximum.upper.value)

    best = max(ranges, key=attained_difference)
    low_wins = abs(best.minimum.upper.value) >= abs(best.maximum.lower.value)
    at = best.low_at if low_wins else best.high_at
    worst = max(ranges, key=bound)
    below = -worst.minimum.lower.value >= worst.maximum.upper.value
    end = worst.minimum.lower if below else worst.maximum.upper
    return LargestDifference(
        attained_difference(best),
        max(0.0, bound(worst)),
        best.output,
        at.reshape(shape),
        tuple(ranges),
        end.evidence,
    )
