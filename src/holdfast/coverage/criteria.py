"""What a set of tests should make a network do, as intervals: an item is a neuron and an interval, and covered by a value inside.

neuron        above a threshold (DeepXplore's neuron coverage, with the threshold 0 of DeepTRE).
multisection  in each of k equal sections of the range that the neuron has on the training data (DeepGauge).
boundary      below that range, and above it (DeepGauge).

A value is inside if lower <= value < upper, so that it is inside at most one interval of its neuron. What a layer cannot do whatever its
input (a ReLU is never below 0) is no item.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from holdfast.coverage.neurons import Neurons
from holdfast.errors import BadInput

Criterion = Literal["neuron", "multisection", "boundary"]
RANGE = {
    "relu": (0.0, torch.inf), "softplus": (0.0, torch.inf), "relu6": (0.0, 6.0), "sigmoid": (0.0, 1.0), "hardsigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0), "rnn_tanh": (-1.0, 1.0), "rnn_relu": (0.0, torch.inf),
}  # fmt: skip
FIRMNESS = 1e-5  # of the largest value of a layer: how far inside a value is for certain, whatever the size of the batch


@dataclass(frozen=True, eq=False)
class Items:
    """The intervals of all neurons; an interval that is empty is no item."""

    criterion: Criterion
    lower: Tensor  # (neurons, kinds)
    upper: Tensor  # (neurons, kinds)
    margin: Tensor  # (neurons, kinds, 2): how far from its ends a value is inside for certain
    scale: Tensor  # (neurons,): the largest value of its layer over the data

    @property
    def exist(self) -> Tensor:
        """(neurons, kinds) bool."""
        return self.lower < self.upper

    def covers(self, values: Tensor) -> Tensor:
        """(n, neurons) -> (neurons, kinds) bool: is any of the values inside?"""
        kinds = zip(self.lower.unbind(1), self.upper.unbind(1), strict=True)
        return torch.stack([((values >= low) & (values < high)).any(0) for low, high in kinds], dim=1)

    def firmly(self, values: Tensor) -> Tensor:
        """(n, neurons) -> (pairs, 3): the row, neuron and kind of all values that are inside for certain."""
        lower, upper = self.within(1)
        found = []
        for kind in range(self.lower.shape[1]):
            row, neuron = ((values >= lower[:, kind]) & (values < upper[:, kind])).nonzero(as_tuple=True)
            found.append(torch.stack([row, neuron, torch.full_like(row, kind)], dim=1))
        return torch.cat(found)

    def within(self, margins: float) -> tuple[Tensor, Tensor]:
        """The intervals without so many margins at either end."""
        return self.lower + margins * self.margin[..., 0], self.upper - margins * self.margin[..., 1]


def items(
    neurons: Neurons, data: Tensor, criterion: Criterion, *, threshold: float = 0.0, sections: int = 10
) -> tuple[Items, tuple[str, ...]]:
    """The items of a criterion, with ranges taken over the data (n, *shape), and notes on neurons that have none."""
    check(criterion, threshold, sections)
    low, high = _ranges(values for values, _ in neurons.read_values(data))
    sizes = [layer.neurons for layer in neurons.layers]
    scale = torch.cat(
        [part.amax().expand(len(part)) for part in torch.maximum(low.abs(), high.abs()).split(sizes)]
    )
    ends = torch.full_like(low, torch.inf)
    notes = []
    if criterion == "neuron":
        lower, upper = _after(torch.full_like(low, threshold))[:, None], ends[:, None]
    elif criterion == "boundary":
        lower, upper = torch.stack([-ends, _after(high)], 1), torch.stack([low, ends], 1)
    else:
        lower, upper = _sections(low, high, sections)
        still = int((high <= low).sum())
        if still:
            notes.append(f"{still} of {len(low)} neurons never move over the data, so they have no sections")
    possible = [RANGE.get(layer.operator, (-torch.inf, torch.inf)) for layer in neurons.layers]
    least, most = (
        torch.tensor(end).repeat_interleave(torch.tensor(sizes)).to(low)[:, None]
        for end in zip(*possible, strict=True)
    )
    never = (lower < upper) & ((upper <= least) | (lower > most))
    if bool(never.any()):
        notes.append(
            f"{int(never.sum())} of {never.numel()} intervals lie outside what a layer can say, so they are left out"
        )
    upper = torch.where(never, lower, upper)
    margin = torch.minimum(FIRMNESS * scale[:, None], (upper - lower).clamp_min(0).nan_to_num(0) / 4)
    # Zero is where a ReLU rests, exactly; nothing lies below that a value could slip to.
    return Items(
        criterion, lower, upper, torch.stack([torch.where(lower == 0, 0, margin), margin], dim=-1), scale
    ), tuple(notes)


def check(criterion: str, threshold: float, sections: int) -> None:
    if criterion not in get_args(Criterion):
        raise BadInput(f"criterion {criterion!r} is unknown; there are {', '.join(get_args(Criterion))}.")
    if not isinstance(sections, int) or sections < 1:
        raise BadInput(f"sections must be a whole number, at least 1, got {sections}.")
    if not -torch.inf < threshold < torch.inf:
        raise BadInput(f"the threshold must be a number, got {threshold}.")


def _sections(low: Tensor, high: Tensor, sections: int) -> tuple[Tensor, Tensor]:
    """Equal parts of each neuron's range; all are empty where it has none."""
    share = torch.arange(sections + 1, device=low.device, dtype=torch.float64) / sections
    edges = (low.double()[:, None] + share * (high.double() - low.double())[:, None]).to(low)
    edges[:, 0], edges[:, -1] = low, torch.where(high > low, _after(high), low)
    return edges[:, :-1], edges[:, 1:]


def _ranges(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """-> (neurons,), (neurons,): the smallest and the largest value of each."""
    ends = [(values.amin(0), values.amax(0)) for values in parts]
    return torch.stack([low for low, _ in ends]).amin(0), torch.stack([high for _, high in ends]).amax(0)


def _after(edge: Tensor) -> Tensor:
    """The next number: a value above the edge is at least this."""
    return torch.nextafter(edge, torch.full_like(edge, torch.inf))
