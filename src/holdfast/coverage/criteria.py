"""Coverage criteria as intervals: an item is a neuron and an interval, and a test covers it if the neuron's
value lies inside.

    neuron        above a threshold (DeepXplore's neuron coverage, with the threshold 0 of DeepTRE).
    multisection  each of k equal sections of the neuron's range on the training data (DeepGauge).
    boundary      below that range, and above it (DeepGauge).

A value is inside if lower <= value < upper, so it is inside at most one interval of its neuron. Intervals
that a layer cannot reach for any input (a ReLU is never below 0) are no items.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from holdfast.coverage.neurons import Neurons, Per
from holdfast.errors import BadInput

Criterion = Literal["neuron", "multisection", "boundary"]
# The values that a layer with this operator can take.
RANGE = {
    "relu": (0.0, torch.inf),
    "softplus": (0.0, torch.inf),
    "relu6": (0.0, 6.0),
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "rnn_tanh": (-1.0, 1.0),
    "rnn_relu": (0.0, torch.inf),
}
# A value counts as certainly inside an interval if its distance from the bounds is at least this share of the
# largest value of its layer, so that rounding in batches of other sizes does not matter (chosen by hand).
SAFETY_MARGIN = 1e-5


@dataclass(frozen=True)
class CoverageGoal:
    """What a test suite covers; `testgen` documents the options."""

    criterion: Criterion = "neuron"
    layers: Sequence[str] | None = None
    per: Per = "element"
    threshold: float = 0.0
    sections: int = 10

    def __post_init__(self) -> None:
        if self.criterion not in get_args(Criterion):
            raise BadInput(
                f"criterion {self.criterion!r} is unknown; there are {', '.join(get_args(Criterion))}."
            )
        if not isinstance(self.sections, int) or self.sections < 1:
            raise BadInput(f"sections must be a whole number, at least 1, got {self.sections}.")
        if not -torch.inf < self.threshold < torch.inf:
            raise BadInput(f"the threshold must be a number, got {self.threshold}.")
        if self.per not in get_args(Per):
            raise BadInput(f"per {self.per!r} is unknown; there are {', '.join(get_args(Per))}.")


@dataclass(frozen=True, eq=False)
class Items:
    """The intervals of all neurons; an empty interval is no item."""

    criterion: Criterion
    lower: Tensor  # (neurons, kinds)
    upper: Tensor  # (neurons, kinds)
    margin: Tensor  # (neurons, kinds, 2): distance from each bound at which a value is certainly inside
    scale: Tensor  # (neurons,): largest absolute value of its layer on the data

    @property
    def exist(self) -> Tensor:
        """(neurons, kinds) bool."""
        return self.lower < self.upper

    def covers(self, values: Tensor) -> Tensor:
        """Map (n, neurons) to (neurons, kinds) bool: whether any of the values is inside."""
        kinds = zip(self.lower.unbind(1), self.upper.unbind(1), strict=True)
        return torch.stack([((values >= low) & (values < high)).any(0) for low, high in kinds], dim=1)

    def certainly_inside(self, values: Tensor) -> Tensor:
        """Return (pairs, 3): row, neuron and kind of all values (n, neurons) that are certainly inside."""
        lower, upper = self.within(1)
        found = []
        for kind in range(self.lower.shape[1]):
            row, neuron = ((values >= lower[:, kind]) & (values < upper[:, kind])).nonzero(as_tuple=True)
            found.append(torch.stack([row, neuron, torch.full_like(row, kind)], dim=1))
        return torch.cat(found)

    def within(self, margins: float) -> tuple[Tensor, Tensor]:
        """Return the intervals shortened by this number of margins at either bound."""
        return self.lower + margins * self.margin[..., 0], self.upper - margins * self.margin[..., 1]


def items(neurons: Neurons, data: Tensor, goal: CoverageGoal) -> tuple[Items, tuple[str, ...]]:
    """Return the items of a goal, with ranges over the data (n, *shape), and notes on neurons without
    items.
    """
    low, high = _ranges(values for values, _ in neurons.read_values(data))
    sizes = [layer.neurons for layer in neurons.layers]
    scale = torch.cat(
        [part.amax().expand(len(part)) for part in torch.maximum(low.abs(), high.abs()).split(sizes)]
    )
    ends = torch.full_like(low, torch.inf)
    notes = []
    if goal.criterion == "neuron":
        lower, upper = _after(torch.full_like(low, goal.threshold))[:, None], ends[:, None]
    elif goal.criterion == "boundary":
        lower, upper = torch.stack([-ends, _after(high)], 1), torch.stack([low, ends], 1)
    else:
        lower, upper = _sections(low, high, goal.sections)
        still = int((high <= low).sum())
        if still:
            notes.append(f"{still} of {len(low)} neurons are constant on the data, so they have no sections")
    possible = [RANGE.get(layer.operator, (-torch.inf, torch.inf)) for layer in neurons.layers]
    least, most = (
        torch.tensor(end).repeat_interleave(torch.tensor(sizes)).to(low)[:, None]
        for end in zip(*possible, strict=True)
    )
    never = (lower < upper) & ((upper <= least) | (lower > most))
    if bool(never.any()):
        notes.append(
            f"{int(never.sum())} of {never.numel()} intervals lie outside the range of their layer, so they "
            "are left out"
        )
    upper = torch.where(never, lower, upper)
    margin = torch.minimum(SAFETY_MARGIN * scale[:, None], (upper - lower).clamp_min(0).nan_to_num(0) / 4)
    # A ReLU that does not fire is exactly zero, and no value can lie below.
    margins = torch.stack([torch.where(lower == 0, 0, margin), margin], dim=-1)
    return Items(goal.criterion, lower, upper, margins, scale), tuple(notes)


def _sections(low: Tensor, high: Tensor, sections: int) -> tuple[Tensor, Tensor]:
    """Divide each neuron's range into equal sections; all are empty if the range is a single point."""
    share = torch.arange(sections + 1, device=low.device, dtype=torch.float64) / sections
    edges = (low.double()[:, None] + share * (high.double() - low.double())[:, None]).to(low)
    edges[:, 0], edges[:, -1] = low, torch.where(high > low, _after(high), low)
    return edges[:, :-1], edges[:, 1:]


def _ranges(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value of each neuron, (neurons,) each."""
    ends = [(values.amin(0), values.amax(0)) for values in parts]
    return torch.stack([low for low, _ in ends]).amin(0), torch.stack([high for _, high in ends]).amax(0)


def _after(edge: Tensor) -> Tensor:
    """Return the next floating-point number above the edge."""
    return torch.nextafter(edge, torch.full_like(edge, torch.inf))
