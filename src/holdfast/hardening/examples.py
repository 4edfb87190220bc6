"""Training inputs of one shape with their regions, as boxes and as problems."""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import EditedTexts, Words
from holdfast.region.edits import Text

Box = tuple[Tensor, Tensor]  # lower, upper


@dataclass(frozen=True, eq=False)
class Examples(ABC):
    """A problem with the goal `radius`; its rows are the inputs."""

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
        """Return the inputs in the form that the network takes, (rows, *shape)."""

    @abstractmethod
    def box(self, rows: Tensor, share: float) -> Box:
        """Return the enclosing box of the region with this share of the radius, (rows, *shape) each."""

    @abstractmethod
    def attack_problem(self, net: Network, rows: Tensor, share: float) -> Problem:
        """Return the problem with this share of the radius, for the network with its current weights."""

    def evaluation_problem(self, net: Network, rows: Tensor) -> Problem:
        """Return the problem to certify: robustness at the full radius."""
        return self.attack_problem(net, rows, 1.0)


@dataclass(frozen=True, eq=False)
class BallExamples(Examples):
    """lp balls.

    For p other than infinity the enclosing box is larger than the region, so its bounds are conservative.
    """

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
    """Word substitutions: every word may be any of its set, all at once (Jia et al. 2019).

    The word vectors are trained with the other weights. A share of the radius interpolates from a word's own
    vector to the box around the vectors of its set.
    """

    vectors: Tensor  # (words, dim), current values

    region: Words  # the region of the problem

    def points(self, rows: Tensor) -> Tensor:
        return self.vectors[self.region.tokens[rows]]

    def box(self, rows: Tensor, share: float) -> Box:
        own, sets = self.points(rows), self.vectors[self.region.choices[rows]]
        return own + share * (sets.amin(2) - own), own + share * (sets.amax(2) - own)

    def attack_problem(self, net: Network, rows: Tensor, share: float) -> Problem:
        taken, vectors = self.problem.take(rows), self.vectors.detach()
        whole = batch.take(self.region, rows).with_vectors(vectors)
        return replace(taken, network=net, region=whole.at(whole.limit().clamp_min(1) * share))


@dataclass(frozen=True, eq=False)
class EditedExamples(Examples):
    """Texts of one length and the texts that edits make of them; the word vectors are trained, too.

    A share of the radius is the share of the edits that are allowed in all, at least one.
    """

    vectors: Tensor  # (words, dim), current values

    region: EditedTexts  # the region of the problem

    def points(self, rows: Tensor) -> Tensor:
        return self.vectors[self._read([self.region.options(row).text for row in rows.tolist()])]

    def _read(self, texts: Sequence[Text]) -> Tensor:
        read = [self.region.rules.read(text) for text in texts]
        return torch.tensor(read, device=self.vectors.device)

    def box(self, rows: Tensor, share: float) -> Box:
        raise BadInput("edited texts differ in length, so no box encloses them: use the recipe 'edits'.")

    def attack_problem(self, net: Network, rows: Tensor, share: float) -> Problem:
        taken = self.problem.take(rows)
        region = batch.take(self.region, rows).with_vectors(self.vectors.detach())
        return replace(taken, network=net, region=region.at(region.limit().mul(share).ceil()))

    def copies(self, rows: Tensor, share: float, count: int, generator: random.Random) -> list[list[Text]]:
        """Draw `count` edited copies of each text."""
        found = []
        for row in rows.tolist():
            options = self.region.options(row)
            edits = max(1, math.ceil(share * options.most))
            found.append([options.draw(edits, generator) for _ in range(count)])
        return found

    def by_length(self, texts: Sequence[Text]) -> list[tuple[Tensor, Tensor]]:
        """Group texts by the length that the network reads: their places, and their points."""
        places: dict[int, list[int]] = {}
        for place, text in enumerate(texts):
            places.setdefault(len(self.region.rules.read(text)), []).append(place)
        device = self.vectors.device
        return [
            (torch.tensor(some, device=device), self.vectors[self._read([texts[place] for place in some])])
            for some in places.values()
        ]


def examples_of(problem: Problem, radius: float, vectors: Tensor | None) -> Examples:
    if isinstance(problem.region, EditedTexts):
        assert vectors is not None
        return EditedExamples(problem, radius, vectors, problem.region)
    if isinstance(problem.region, Words):
        assert vectors is not None
        return SentenceExamples(problem, radius, vectors, problem.region)
    return BallExamples(problem, radius)


def batches(parts: list[Examples], size: int, generator: torch.Generator) -> list[tuple[Examples, Tensor]]:
    """Return one epoch of batches in random order; each batch has inputs of one shape."""
    found = [
        (part, rows.to(part.problem.region.centre.device))
        for part in parts
        for rows in torch.randperm(len(part), generator=generator).split(size)
    ]
    order = torch.randperm(len(found), generator=generator).tolist()
    return [found[k] for k in order]
