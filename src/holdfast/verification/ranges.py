"""Output ranges: validation of the request, and the result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.region import Box
from holdfast.result import Bound, Bracket, Record
from holdfast.verification.verify import count_subproblems, reasons

# The explanation of a record's status.
WHY = {
    "interrupted": "interrupted",
    "stopped": "the time ran out",
    "failed": "the model failed",
}
WIDENED = "the proof gives {proved!r}; widened to enclose {seen!r}, which the network attained in {dtype}"


@dataclass(frozen=True)
class Range:
    """The range of one output over one box.

    minimum.lower <= every value <= maximum.upper is certified; minimum.upper and maximum.lower were attained
    by inputs.

    The proof is about real arithmetic. If the network attained a value beyond a certified bound in its own
    arithmetic, that bound is moved to the value, so that the range encloses it. `widened` holds the
    differences, and the evidence records it.
    """

    box: int
    output: int  # number of the output, or of the row of coefficients
    minimum: Bracket  # of the smallest value
    maximum: Bracket  # of the largest value
    low_at: Tensor  # (*shape) float64: the input of the smallest known value
    high_at: Tensor  # (*shape) float64: the input of the largest known value
    tolerance: float
    seconds: float  # this range's share of the time that all ranges of the call took; the same for `queries`
    queries: int
    nodes: int  # number of subproblems bounded for all ranges of the call
    note: str = ""
    widened: tuple[float, float] = (0.0, 0.0)  # how far minimum.lower and maximum.upper were moved

    @property
    def width(self) -> float:
        """Width of the certified range."""
        return self.maximum.upper.value - self.minimum.lower.value

    @property
    def gap(self) -> float:
        """The larger of the two bound differences, before widening."""
        return max(self.minimum.gap - self.widened[0], self.maximum.gap - self.widened[1], 0.0)

    @property
    def closed(self) -> bool:
        """Whether both bounds are known to the tolerance."""
        return self.gap <= self.tolerance

    def __str__(self) -> str:
        return f"box {self.box}, output {self.output}: smallest {self.minimum}, largest {self.maximum}"


def ranges_of(records: Sequence[Record], tolerance: float, net: Network) -> list[Range]:
    """Combine records of `reach` in pairs: the smallest and the largest value of every range."""
    smallest, largest = ([r for r in records if r.key.part == part] for part in ("smallest", "largest"))
    return [range_of(low, high, tolerance, net) for low, high in zip(smallest, largest, strict=True)]


def range_of(smallest: Record, largest: Record, tolerance: float, net: Network) -> Range:
    (minimum, below), (turned, above) = (
        _enclosing(smallest.bracket, 1.0, net),
        _enclosing(largest.bracket.negate(), -1.0, net),
    )
    maximum, records = turned.negate(), (smallest, largest)
    seen = [bracket.upper.evidence.witness for bracket in (minimum, turned)]
    low_at, high_at = (torch.full((0,), torch.nan) if at is None else at for at in seen)
    why = next((WHY[r.status] for r in records if r.status in WHY), "; ".join(reasons(records)))
    found = Range(
        smallest.key.index,
        smallest.key.frame or 0,
        minimum,
        maximum,
        low_at,
        high_at,
        tolerance,
        smallest.seconds + largest.seconds,
        smallest.queries + largest.queries,
        count_subproblems(records),
        why,
        (below, above),
    )
    return replace(found, note="") if found.closed else found


def _enclosing(bracket: Bracket, side: float, net: Network) -> tuple[Bracket, float]:
    """Move the certified lower bound to a smaller attained value, if any; return the difference."""
    proved, executed = bracket.lower, bracket.upper.executed
    if executed is None or not (math.isfinite(executed) and executed < proved.value):
        return bracket, 0.0
    told = WIDENED.format(
        proved=side * proved.value, seen=side * executed, dtype=str(net.dtype).removeprefix("torch.")
    )
    evidence = replace(proved.evidence, assumptions=(*proved.evidence.assumptions, told))
    return replace(bracket, lower=Bound(executed, evidence)), proved.value - executed


def box_of(net: Network, box: Box | tuple[Tensor, Tensor]) -> Box:
    """Convert the argument to a batch of boxes in float64."""
    if isinstance(box, Box):
        lower, upper = box.lower, box.upper
    elif isinstance(box, tuple | list) and len(box) == 2:
        try:
            lower, upper = (torch.as_tensor(end) for end in box)
        except (TypeError, ValueError, RuntimeError):
            raise BadInput(
                "box: expected two tensors, the lower and the upper bound of each input."
            ) from None
        if not lower.dim() or not upper.dim():
            raise BadInput(
                "box: a bound for each number of an input is needed, got a single number. Give two tensors "
                "(batch, ...), as in hf.Box.between(torch.zeros(1, 4), torch.ones(1, 4))."
            )
        if lower.shape != upper.shape:
            raise BadInput(
                f"box: lower and upper bounds have different shapes, {tuple(lower.shape)} and "
                f"{tuple(upper.shape)}."
            )
        if lower.dim() == (1 if net.shape is None else len(net.shape)):
            lower, upper = lower[None], upper[None]
    else:
        raise BadInput(
            f"box: give a Box, or the lower and the upper bound of each input, got {type(box).__name__}."
        )
    if not len(lower):
        raise BadInput("box: the batch is empty.")
    for name, end in (("lower", lower), ("upper", upper)):
        if not bool(end.isfinite().all()):
            raise BadInput(f"box: the {name} bound contains NaN or infinity; a range needs a bounded box.")
    return Box.between(lower.double().to(net.device), upper.double().to(net.device))


def rows_of(count: int, outputs: int | Sequence[int] | None, rows: Tensor | None) -> tuple[list[int], Tensor]:
    """Return the numbers of the outputs or rows, and their coefficients (rows, outputs) float64."""
    if rows is not None:
        if outputs is not None:
            raise BadInput("give outputs or rows, not both: an output is a row with a single 1.")
        matrix = torch.as_tensor(rows).double()
        if (
            matrix.dim() != 2
            or matrix.shape[1] != count
            or not len(matrix)
            or not bool(matrix.isfinite().all())
        ):
            raise BadInput(
                f"rows: expected finite numbers of shape (rows, {count}) for {count} outputs, got "
                f"{tuple(matrix.shape)}."
            )
        return list(range(len(matrix))), matrix
    chosen = range(count) if outputs is None else [outputs] if isinstance(outputs, int) else outputs
    numbers = [int(number) for number in chosen]
    wrong = next((number for number in numbers if not 0 <= number < count), None)
    if wrong is not None or not numbers:
        raise BadInput(
            f"outputs: {'none was given' if wrong is None else f'number {wrong} does not exist'}; "
            f"they run from 0 to {count - 1}."
        )
    return numbers, torch.eye(count, dtype=torch.float64)[numbers]
