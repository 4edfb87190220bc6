"""What can be asked about ranges of outputs, and what comes back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.region import Box
from holdfast.result import Bound, Bracket, Record
from holdfast.verification.verify import parts, reasons

WHY = {
    "interrupted": "interrupted",
    "stopped": "the time ran out",
    "failed": "the model failed",
}  # by the status of a record
WIDENED = "the proof gives {proved!r}; widened to enclose {seen!r}, which the network itself was seen to give in {dtype}"


@dataclass(frozen=True)
class Range:
    """All values of one output over one box: minimum.lower <= every value <= maximum.upper is proved; the other two ends were met.

    The proof speaks of real arithmetic. Where the network itself, in its own arithmetic, was seen to give a value beyond a proved bound,
    that end is moved out to it, so that the range encloses what was seen; `widened` says by how much, and the end's evidence says so.
    """

    box: int
    output: int  # its number, or that of the row
    minimum: Bracket  # of the smallest value
    maximum: Bracket  # of the largest value
    low_at: Tensor  # (*shape) float64: here the smallest value that is known was met
    high_at: Tensor
    tolerance: float
    seconds: float  # this and the next: its share of what all ranges took that were asked for together
    queries: int
    nodes: int  # parts of boxes that were bounded, of all of these
    note: str = ""
    widened: tuple[float, float] = (
        0.0,
        0.0,
    )  # minimum.lower and maximum.upper: the proof itself is so much better

    @property
    def width(self) -> float:
        """Of the proved range."""
        return self.maximum.upper.value - self.minimum.lower.value

    @property
    def gap(self) -> float:
        """What is not known: the wider of the two brackets, as they were proved."""
        return max(self.minimum.gap - self.widened[0], self.maximum.gap - self.widened[1], 0.0)

    @property
    def closed(self) -> bool:
        """Both bounds are known to the tolerance."""
        return self.gap <= self.tolerance

    def __str__(self) -> str:
        return f"box {self.box}, output {self.output}: smallest {self.minimum}, largest {self.maximum}"


def ranges_of(records: Sequence[Record], tolerance: float, net: Network) -> list[Range]:
    """Records of `reach`, in pairs: of every range the one of its smallest and the one of its largest value."""
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
        smallest.key.index, smallest.key.frame or 0, minimum, maximum, low_at, high_at, tolerance,
        smallest.seconds + largest.seconds, smallest.queries + largest.queries, parts(records), why, (below, above),
    )  # fmt: skip
    return replace(found, note="") if found.closed else found


def _enclosing(bracket: Bracket, side: float, net: Network) -> tuple[Bracket, float]:
    """Of a smallest value: with the proved bound where the network itself was seen to be, if that is beyond it, and by how much."""
    proved, executed = bracket.lower, bracket.upper.executed
    if executed is None or not (math.isfinite(executed) and executed < proved.value):
        return bracket, 0.0
    told = WIDENED.format(
        proved=side * proved.value, seen=side * executed, dtype=str(net.dtype).removeprefix("torch.")
    )
    evidence = replace(proved.evidence, assumptions=(*proved.evidence.assumptions, told))
    return replace(bracket, lower=Bound(executed, evidence)), proved.value - executed


def box_of(net: Network, box: Box | tuple[Tensor, Tensor]) -> Box:
    """A batch of boxes in float64, whatever was given."""
    if isinstance(box, Box):
        lower, upper = box.lower, box.upper
    elif isinstance(box, tuple | list) and len(box) == 2:
        lower, upper = (torch.as_tensor(end) for end in box)
        if lower.shape != upper.shape:
            raise BadInput(
                f"box: the ends have different shapes, {tuple(lower.shape)} and {tuple(upper.shape)}."
            )
        if lower.dim() == (1 if net.shape is None else len(net.shape)):
            lower, upper = lower[None], upper[None]
    else:
        raise BadInput(
            f"box: give a Box, or the lower and the upper end of each input, got {type(box).__name__}."
        )
    if not len(lower):
        raise BadInput("box: the batch is empty.")
    for name, end in (("lower", lower), ("upper", upper)):
        if not bool(end.isfinite().all()):
            raise BadInput(
                f"box: the {name} end holds NaN or infinity; a range is asked over a box of finite size."
            )
    return Box.between(lower.double().to(net.device), upper.double().to(net.device))


def rows_of(count: int, outputs: int | Sequence[int] | None, rows: Tensor | None) -> tuple[list[int], Tensor]:
    """-> numbers of outputs, or of rows, and (questions, outputs) float64."""
    if rows is not None:
        if outputs is not None:
            raise BadInput("give outputs or rows, not both: a row with a single one is an output.")
        matrix = torch.as_tensor(rows).double()
        if (
            matrix.dim() != 2
            or matrix.shape[1] != count
            or not len(matrix)
            or not bool(matrix.isfinite().all())
        ):
            raise BadInput(
                f"rows: expected finite numbers of shape (questions, {count}) for {count} outputs, got {tuple(matrix.shape)}."
            )
        return list(range(len(matrix))), matrix
    chosen = range(count) if outputs is None else [outputs] if isinstance(outputs, int) else outputs
    numbers = [int(number) for number in chosen]
    wrong = next((number for number in numbers if not 0 <= number < count), None)
    if wrong is not None or not numbers:
        raise BadInput(
            f"outputs: {'there is none' if wrong is None else f'number {wrong} does not exist'}; they run from 0 to {count - 1}."
        )
    return numbers, torch.eye(count, dtype=torch.float64)[numbers]
