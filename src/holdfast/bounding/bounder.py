"""The one question all bounds answer: how small can rows of the output get over a region?

Closed-form planes (CROWN), trained planes (alpha-CROWN), affine forms (zonotopes) and second-order models each answer it in their own way,
so that whoever cuts a region into parts, or compares bounds, need not know which. An answer that is no number says nothing, and is given
as minus infinity.
"""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding import crown, crown_with_fixed_bounds, joint_relu
from holdfast.bounding.alpha_beta_crown import (
    RowTask,
    apart,
    arguments,
    relu_like_functions,
    tighten_intermediate_bounds,
)
from holdfast.bounding.branching.split_score import costs
from holdfast.bounding.crown_with_fixed_bounds import take_rows
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.node_bounds import Boxes, LinearForms
from holdfast.bounding.quadratic_models import Bends, Quadratic
from holdfast.bounding.sdp_dual import STEPS, least
from holdfast.bounding.zonotope import Forms
from holdfast.memory_budget import free_bytes
from holdfast.region import Region
from holdfast.rounding import gamma

Bound = tuple[Tensor, LinearForms | None]
ENDS = 256  # arguments of a layer whose ends are trained
USUAL, MANY = 216, 4096  # rows that are trained together on a CPU, and on a GPU, if memory holds them
ALIVE = 40  # numbers that training keeps for each element of a node and each row


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
        return _over(
            region, crown.linear_bound(self.graph, crown.propagate(self.graph, region, self.executed), rows)
        )


@dataclass(frozen=True)
class AffineForms:
    """Zonotopes over the box around the region. With `walks` the bounds of neurons are the better of theirs and of walks back."""

    graph: Graph
    walks: bool = False

    def bound(self, region: Region, rows: Tensor) -> Bound:
        forms = Forms.over(self.graph.entry, *region.enclosing_box())
        crown_with_fixed_bounds.propagate(self.graph, region, forms, walks=self.walks)
        if self.graph.output not in forms.of:
            return _nothing(rows), None
        slope, constant = forms.below(self.graph.entry, self.graph.output, rows)
        return _over(region, LinearForms(slope.reshape(*constant.shape, *region.shape), constant))


@dataclass(frozen=True)
class SecondOrder:
    """Quadratic models hand in hand with CROWN."""

    view: Quadratic
    bends: Bends | None = None  # those of the batch; None: the parabolas' own

    def bound(self, region: Region, rows: Tensor) -> Bound:
        if self.view.obstacle is not None:
            return _nothing(rows), None
        bends = self.view.bends(len(region), torch.float64) if self.bends is None else self.bends
        least = self.view.with_planes(region, rows, rows.new_zeros(rows.shape[:2]), bends)
        return _nan_proves_nothing(least), None


@dataclass(frozen=True)
class TrainedBounder:
    """Alpha-CROWN: the slopes below functions that bend at zero are trained for each row by itself, first over the ends that CROWN knows of
    their arguments, then over ends that are trained too, those that cost most. What the clock leaves no time for stays what it was."""

    graph: Graph
    enough: Tensor | None = (
        None  # (batch, rows): a row above this is trained no further; None: all are, as far as the steps go
    )
    ends: int = ENDS
    steps: int = 20
    pace: float = 0.2

    @torch.no_grad()
    def bound(self, region: Region, rows: Tensor) -> Bound:
        least = _nothing(rows)
        for some in torch.arange(len(region), device=rows.device).split(self._inputs(rows)):
            asked = batch.take(region, some), rows[some], None if self.enough is None else self.enough[some]
            found = (
                None if time_limit.has_expired() else time_limit.in_time(partial(self._bound, *asked), None)
            )
            if found is None:
                break
            least[some] = found
        return least, None

    def _bound(self, region: Region, rows: Tensor, enough: Tensor | None) -> Tensor:
        known, _ = crown_with_fixed_bounds.propagate(self.graph, region)
        least = _over(region, crown.linear_bound(self.graph, known, rows))[0]
        # No row is proved to be above its own upper bound.
        aim = -_over(region, crown.linear_bound(self.graph, known, -rows))[0] if enough is None else enough
        if not relu_like_functions(self.graph):
            return least
        least, entering = self._raise_bounds(known, rows, aim, least)
        if time_limit.has_expired() or bool((least > aim).all()):
            return least
        return time_limit.in_time(
            partial(self._with_ends_raised, region, known, entering, rows, aim, least), least
        )

    def _with_ends_raised(
        self, region: Region, known: Boxes, entering: Tensor, rows: Tensor, aim: Tensor, least: Tensor
    ) -> Tensor:
        known, empty = self._with_ends(
            region, known, entering
        )  # a region is not empty: ends that say so overflowed
        return torch.where(empty[:, None], least, self._raise_bounds(known, rows, aim, least)[0])

    def _raise_bounds(self, known: Boxes, rows: Tensor, aim: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds (inputs, rows), better where they are not above the aim; and (inputs, arguments): the weight of each upper plane in
        those that still are not."""
        least, width = least.clone(), sum(node.size for node in arguments(self.graph))
        entering = torch.zeros((len(rows), width), dtype=torch.float64, device=rows.device)
        open_ = ((least <= aim) & least.isfinite() & aim.isfinite()).nonzero()
        for at in open_.split(self._together()) if len(open_) else ():
            part, row = at.unbind(1)
            sign = torch.zeros((len(at), width), dtype=torch.float64, device=rows.device)
            asked = RowTask(
                self.graph,
                take_rows(known, part),
                self.graph.output,
                rows[part, row][:, None],
                -aim[part, row][:, None],
                sign,
            )
            found = asked.train(sign * torch.nan, sign, self.steps, self.pace)
            above = found.least + aim[part, row] - 4 * gamma(1) * (found.least.abs() + aim[part, row].abs())
            least[part, row] = torch.maximum(least[part, row], _nan_proves_nothing(above))
            share = torch.where(found.least > 0, 0, -found.least)  # rows count by what is missing
            entering.index_add_(0, part, found.entering * torch.nan_to_num(share, 0.0, 0.0)[:, None])
        return least, entering

    def _with_ends(self, region: Region, known: Boxes, entering: Tensor) -> tuple[Boxes, Tensor]:
        """The boxes, with trained ends of the arguments that cost the bounds most; (inputs,) bool: which hold no point."""
        worth = {}
        for node, cost in apart(self.graph, costs(self.graph, known, entering)).items():
            flat = cost.flatten(1)
            least = flat.topk(min(self.ends, node.size), dim=1).values[:, -1:]
            worth[node] = ((flat > 0) & (flat >= least)).reshape(cost.shape)
        ends = {node: (known.lower[node], known.upper[node]) for node in crown.worth_knowing(self.graph)}
        held = tighten_intermediate_bounds(
            self.graph, region, self.steps, self.pace, self._together(), worth=worth, known=ends
        )
        return crown_with_fixed_bounds.propagate(self.graph, region, within=held)

    def _inputs(self, rows: Tensor) -> int:
        """How many inputs are looked at together: each brings its rows, and both bounds of its arguments."""
        widest = max((node.size for node in arguments(self.graph)), default=1)
        return max(1, self._together() // max(rows.shape[1], 2 * min(self.ends, widest)))

    def _together(self) -> int:
        """How many rows are trained at once."""
        usual = MANY if self.graph.device.type == "cuda" else USUAL
        return min(usual, max(1, free_bytes(self.graph.device) // self.bytes_of_a_row()))

    def bytes_of_a_row(self) -> int:
        """What training one row takes."""
        return 8 * ALIVE * sum(node.size for node in self.graph.nodes)


@dataclass(frozen=True)
class Coupled:
    """Undecided ReLUs bounded together, one input after the other, each row by itself. Nothing where `coupled` has an obstacle."""

    graph: Graph
    steps: int = STEPS

    def bound(self, region: Region, rows: Tensor) -> Bound:
        found = _nothing(rows)
        if joint_relu.obstacle(self.graph, region) is not None:
            return found, None
        for k in range(len(region)):
            boxes = crown.propagate(self.graph, batch.take(region, torch.tensor([k], device=rows.device)))
            asked = joint_relu.coupling(self.graph, boxes, rows[k], torch.zeros_like(rows[k, :, 0]))
            for row in range(rows.shape[1]) if asked is not None else ():
                assert asked is not None
                found[k, row] = least(
                    asked.rows(torch.tensor([row], device=rows.device)), steps=self.steps, sign=False
                )[0]
        return _nan_proves_nothing(found), None


def _over(region: Region, planes: LinearForms) -> Bound:
    return _nan_proves_nothing(planes.minimum(region)), planes


def _nothing(rows: Tensor) -> Tensor:
    return rows.new_full(rows.shape[:2], -torch.inf)


def _nan_proves_nothing(least: Tensor) -> Tensor:
    return torch.where(least.isfinite(), least, -torch.inf)
