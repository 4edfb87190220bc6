"""What is trained on: inputs of one shape with their regions, as boxes for the loss and as problems for attacks."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Words
from holdfast.region.words import Vectors

Box = tuple[Tensor, Tensor]  # lower, upper


@dataclass(frozen=True, eq=False)
class Examples(ABC):
    """The problem's goal is `radius`; its rows are the inputs."""

    problem: Problem
    radius: float

    def __len__(self) -> int:
        return len(self.problem)

    @property
    def label(self) -> Tensor:
        assert isinstance(self.problem.property, Robustness)
        return self.problem.property.label

    @abstractmethod
    def points(self, rows: Tensor) -> Tensor:
        """The inputs as the network takes them, (rows, *shape)."""

    @abstractmethod
    def box(self, rows: Tensor, share: float) -> Box:
        """Around the region of this share of the radius, (rows, *shape) each."""

    @abstractmethod
    def attack_problem(self, net: Network, rows: Tensor, share: float) -> Problem:
        """The region of this share of the radius, around the network as it is now."""

    def evaluation_problem(self, net: Network, rows: Tensor) -> Problem:
        """The question that counts: does the class hold all over the region?"""
        return self.attack_problem(net, rows, 1.0)


@dataclass(frozen=True, eq=False)
class BallExamples(Examples):
    """Balls of any norm. Of a norm other than the maximum the box is larger than the region, so its bounds hold for more than was asked."""

    def points(self, rows: Tensor) -> Tensor:
        return self.problem.region.centre[rows].to(self.problem.network.dtype)

    def box(self, rows: Tensor, share: float) -> Box:
        lower, upper = batch.take(self.problem.family, rows).at(self.radius * share).enclosing_box()
        dtype = self.problem.network.dtype
        return lower.to(dtype), upper.to(dtype)

    def attack_problem(self, net: Network, rows: Tensor, share: float) -> Problem:
        taken = self.problem.take(rows)
        return replace(taken, network=net, region=taken.family.at(self.radius * share))


@dataclass(frozen=True, eq=False)
class SentenceExamples(Examples):
    """Every word may be one of its set, all at once (Jia et al. 2019). The vectors are trained with the rest, and a share of the radius is
    one of the way from a word's own vector to the hull of its set."""

    vectors: Tensor  # (words, dim), as they are now

    def _region(self) -> Words:
        assert isinstance(self.problem.region, Words)
        return self.problem.region

    def points(self, rows: Tensor) -> Tensor:
        return self.vectors[self._region().tokens[rows]]

    def box(self, rows: Tensor, share: float) -> Box:
        own, sets = self.points(rows), self.vectors[self._region().choices[rows]]
        return own + share * (sets.amin(2) - own), own + share * (sets.amax(2) - own)

    def attack_problem(self, net: Network, rows: Tensor, share: float) -> Problem:
        taken, vectors = self.problem.take(rows), self.vectors.detach()
        assert isinstance(taken.region, Words)
        whole = replace(taken.region, centre=vectors[taken.region.tokens], vectors=Vectors(vectors))
        return replace(taken, network=net, region=whole.at(whole.limit().clamp_min(1) * share))


def examples_of(problem: Problem, radius: float, vectors: Tensor | None) -> Examples:
    if isinstance(problem.region, Words):
        assert vectors is not None
        return SentenceExamples(problem, radius, vectors)
    return BallExamples(problem, radius)


def batches(parts: list[Examples], size: int, generator: torch.Generator) -> list[tuple[Examples, Tensor]]:
    """All inputs once, in an order of chance, each with others of its shape."""
    found = [
        (part, rows.to(part.problem.region.centre.device))
        for part in parts
        for rows in torch.randperm(len(part), generator=generator).split(size)
    ]
    order = torch.randperm(len(found), generator=generator).tolist()
    return [found[k] for k in order]
