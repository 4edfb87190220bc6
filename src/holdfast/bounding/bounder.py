"""The one question all bounds answer: how small can rows of the output get over a region?

Closed-form planes (CROWN), affine forms (zonotopes) and second-order models each answer it in their own way, so that whoever cuts a region
into parts, or compares bounds, need not know which. An answer that is no number says nothing, and is given as minus infinity.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from holdfast.bounding import crown, crown_within
from holdfast.bounding.crown import Linear
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.second_order import Bends, Quadratic
from holdfast.bounding.zonotope import Forms
from holdfast.region import Region

Bound = tuple[Tensor, Linear | None]


class Bounder(Protocol):
    def bound(self, region: Region, rows: Tensor) -> Bound:
        """rows (batch, rows, outputs) -> least, planes.

        least   (batch, rows): least <= row . output everywhere in the region, in real arithmetic; -inf where nothing is known.
        planes  linear functions of the input, planes <= row . output everywhere in the region, whose minimum over it is `least`; None
                where the bound comes from something else.
        """
        ...


@dataclass(frozen=True)
class ClosedForm:
    """CROWN: planes whose slopes each function chooses by itself, walked back to the input."""

    graph: Graph
    executed: torch.dtype | None = None  # None: the network in real arithmetic; else as it runs

    def bound(self, region: Region, rows: Tensor) -> Bound:
        return _over(region, crown.linear_bound(self.graph, crown.propagate(self.graph, region, self.executed), rows))


@dataclass(frozen=True)
class AffineForms:
    """Zonotopes over the box around the region. With `walks` the bounds of neurons are the better of theirs and of walks back."""

    graph: Graph
    walks: bool = False

    def bound(self, region: Region, rows: Tensor) -> Bound:
        forms = Forms.over(self.graph.entry, *region.enclosing_box())
        crown_within.propagate(self.graph, region, forms, walks=self.walks)
        if self.graph.output not in forms.of:
            return _nothing(rows), None
        slope, constant = forms.below(self.graph.entry, self.graph.output, rows)
        return _over(region, Linear(slope.reshape(*constant.shape, *region.shape), constant))


@dataclass(frozen=True)
class SecondOrder:
    """Quadratic models, their ranges held to those of CROWN."""

    view: Quadratic
    bends: Bends | None = None  # those of the batch; None: the parabolas' own

    def bound(self, region: Region, rows: Tensor) -> Bound:
        if self.view.obstacle is not None:
            return _nothing(rows), None
        bends = self.view.bends(len(region), torch.float64) if self.bends is None else self.bends
        boxes = crown.propagate(self.view.graph, region)
        least = self.view.least(region, rows, rows.new_zeros(rows.shape[:2]), bends, boxes)
        return _proved(least), None


def _over(region: Region, planes: Linear) -> Bound:
    return _proved(planes.minimum(region)), planes


def _nothing(rows: Tensor) -> Tensor:
    return rows.new_full(rows.shape[:2], -torch.inf)


def _proved(least: Tensor) -> Tensor:
    return torch.where(least.isfinite(), least, -torch.inf)
