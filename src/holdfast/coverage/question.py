"""The problem behind a test: how few units of a given input must change to bring a neuron's value into an
interval?
"""

import builtins
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.coverage.neurons import Neurons
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Property
from holdfast.region import Sparse

# Largest number of values compared at once when distances to seeds are computed (chosen by hand).
COMPARED_NUMBERS = 2**26


@dataclass(frozen=True, eq=False)
class Seeds:
    """The given inputs (count, *shape), shared by reference: they belong to the whole batch."""

    x: Tensor


@dataclass(frozen=True, eq=False)
class NearSeeds(Sparse):
    """All x that differ from at least one of the seeds in at most `radius` units. The centre is the seed
    nearest to the interval.
    """

    seeds: Seeds | None = None
    # (batch, tries): indices of seeds, those first whose neuron comes nearest to the interval
    nearest: Tensor | None = None

    def distance(self, x: Tensor) -> Tensor:
        assert self.seeds is not None
        rows, seeds = x.reshape(-1, *self.shape), self.seeds.x.to(x.device)
        parts = rows.split(max(1, COMPARED_NUMBERS // max(1, seeds.numel())))
        count = torch.cat([self._any(part[:, None] != seeds).flatten(2).sum(-1).amin(1) for part in parts])
        inside = self.flatten(self.domain.contains(x)).all(-1)
        return torch.where(inside, count.reshape(inside.shape).double(), torch.inf)


@dataclass(frozen=True, eq=False)
class OutsideInterval(Property):
    """The specification that the value of a neuron is not in its interval: not lower <= value < upper.

    The outputs of the network are the values of all neurons.
    """

    neuron: Tensor  # (batch,)
    lower: Tensor  # (batch,) float64
    upper: Tensor  # (batch,) float64
    margin: Tensor  # (batch, 2) float64: distances of both bounds from those of the item's interval

    def score(self, outputs: Tensor) -> Tensor:
        value = outputs.gather(-1, self.neuron.expand(outputs.shape[:-1])[..., None]).squeeze(-1).double()
        last = torch.nextafter(self.upper, torch.full_like(self.upper, -torch.inf))
        return torch.where(value.isnan(), torch.inf, torch.maximum(self.lower - value, value - last))

    def check(self, batch: int, outputs: int) -> None:
        assert self.lower.shape == self.upper.shape == self.neuron.shape == (batch,)
        assert bool(((self.neuron >= 0) & (self.neuron < outputs)).all())

    def within(self, margins: float) -> tuple[Tensor, Tensor]:
        """Return the interval shortened by this number of further margins at either bound."""
        return self.lower + margins * self.margin[:, 0], self.upper - margins * self.margin[:, 1]


@dataclass(frozen=True, eq=False)
class UncoveredItems(Problem):
    """One row for each item that no seed covers, the nearest to the seeds first. The network is truncated
    after the neurons.
    """

    neurons: Neurons | None = None

    @staticmethod
    def of(problem: Problem) -> "UncoveredItems":
        assert isinstance(problem, UncoveredItems)
        return problem

    @builtins.property
    def read(self) -> Neurons:
        assert self.neurons is not None
        return self.neurons

    @builtins.property
    def near(self) -> NearSeeds:
        assert isinstance(self.region, NearSeeds)
        return self.region

    @builtins.property
    def seeds(self) -> Tensor:
        assert self.near.seeds is not None
        return self.near.seeds.x

    @builtins.property
    def nearest(self) -> Tensor:
        assert self.near.nearest is not None
        return self.near.nearest

    @builtins.property
    def outside(self) -> OutsideInterval:
        assert isinstance(self.property, OutsideInterval)
        return self.property

    def answers(self, x: Tensor, twin: Network | None = None) -> Tensor:
        """Query each distinct input once: one input serves many items."""
        if x is self.region.centre:  # the nearest seeds, unchanged
            return super().answers(self.seeds, twin)[self.nearest[:, 0]]
        _, place = x.flatten(1).view(torch.int16).unique(dim=0, return_inverse=True)
        order = torch.arange(len(x), device=x.device)
        each = torch.zeros_like(order).scatter_reduce(0, place, order, "amax")[: int(place.max()) + 1]
        return super().answers(x[each], twin)[place]

    def covers(self, values: Tensor, margins: float) -> Tensor:
        """Map values (m, neurons) to (m, batch) bool: the items that they cover with this number of
        additional margins.
        """
        value, (lower, upper) = values[:, self.outside.neuron].double(), self.outside.within(margins)
        return (value >= lower) & (value < upper)
