"""What can be asked about ranges of outputs, and what comes back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.region import Box
from holdfast.result import Bracket


@dataclass(frozen=True)
class Range:
    """All values of one output over one box: minimum.lower <= every value <= maximum.upper is proved; the other two ends were met.

    The proof speaks of real arithmetic. Where the network itself, in its own arithmetic, was seen to give a value beyond a proved end, that
    end is moved out to it, so that the range encloses what was seen; `widened` says by how much, and the end's evidence says so.
    """

    box: int
    output: int  # its number, or that of the row
    minimum: Bracket  # of the smallest value
    maximum: Bracket  # of the largest value
    low_at: Tensor  # (*shape) float64: here the smallest value that is known was met
    high_at: Tensor
    tolerance: float
    seconds: float  # this and the next two are those of the whole call, which asks about all outputs together
    nodes: int  # parts of boxes that were bounded
    queries: int
    note: str = ""
    widened: tuple[float, float] = (0.0, 0.0)  # minimum.lower and maximum.upper: the proof itself is so much better

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
        """Both ends are known to the tolerance."""
        return self.gap <= self.tolerance

    def __str__(self) -> str:
        return f"box {self.box}, output {self.output}: smallest {self.minimum}, largest {self.maximum}"


def box_of(net: Network, box: Box | tuple[Tensor, Tensor]) -> Box:
    """A batch of boxes in float64, whatever was given."""
    if isinstance(box, Box):
        lower, upper = box.lower, box.upper
    elif isinstance(box, tuple | list) and len(box) == 2:
        lower, upper = (torch.as_tensor(end) for end in box)
        if lower.shape != upper.shape:
            raise BadInput(f"box: the ends have different shapes, {tuple(lower.shape)} and {tuple(upper.shape)}.")
        if lower.dim() == (1 if net.shape is None else len(net.shape)):
            lower, upper = lower[None], upper[None]
    else:
        raise BadInput(f"box: give a Box, or the lower and the upper end of each input, got {type(box).__name__}.")
    if not len(lower):
        raise BadInput("box: the batch is empty.")
    for name, end in (("lower", lower), ("upper", upper)):
        if not bool(end.isfinite().all()):
            raise BadInput(f"box: the {name} end holds NaN or infinity; a range is asked over a box of finite size.")
    return Box.between(lower.double().to(net.device), upper.double().to(net.device))


def rows_of(count: int, outputs: int | Sequence[int] | None, rows: Tensor | None) -> tuple[list[int], Tensor]:
    """-> numbers of outputs, or of rows, and (questions, outputs) float64."""
    if rows is not None:
        if outputs is not None:
            raise BadInput("give outputs or rows, not both: a row with a single one is an output.")
        matrix = torch.as_tensor(rows).double()
        if matrix.dim() != 2 or matrix.shape[1] != count or not len(matrix) or not bool(matrix.isfinite().all()):
            raise BadInput(f"rows: expected finite numbers of shape (questions, {count}) for {count} outputs, got {tuple(matrix.shape)}.")
        return list(range(len(matrix))), matrix
    chosen = range(count) if outputs is None else [outputs] if isinstance(outputs, int) else outputs
    numbers = [int(number) for number in chosen]
    wrong = next((number for number in numbers if not 0 <= number < count), None)
    if wrong is not None or not numbers:
        raise BadInput(
            f"outputs: {'there is none' if wrong is None else f'number {wrong} does not exist'}; they run from 0 to {count - 1}."
        )
    return numbers, torch.eye(count, dtype=torch.float64)[numbers]


def within(region: Box, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """-> lower, upper in the network's arithmetic: all of its numbers in the box, or the nearest one where there is none."""
    ends = []
    for end, away in ((region.lower, math.inf), (region.upper, -math.inf)):
        nearest = end.to(dtype)
        outside = nearest.double() < end if away > 0 else nearest.double() > end
        ends.append(torch.where(outside, torch.nextafter(nearest, torch.full_like(nearest, away)), nearest))
    lower, upper = ends
    empty = lower > upper
    middle = region.centre.to(dtype)
    return torch.where(empty, middle, lower), torch.where(empty, middle, upper)
