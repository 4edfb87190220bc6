"""A common interface of all methods that lower-bound linear functions of the output over a region.

CROWN with closed-form slopes, alpha-CROWN, zonotopes, quadratic models and the joint relaxation of ReLUs
implement `Bounder`, so branch and bound and comparisons of methods do not depend on the method. A bound that
is NaN proves nothing and is returned as -inf.
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
    relu_like_functions,
    relu_preactivations,
    split_by_node,
    tighten_intermediate_bounds,
)
from holdfast.bounding.branching.split_score import neuron_costs
from holdfast.bounding.crown_with_fixed_bounds import take_rows
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.node_bounds import Boxes, LinearForms
from holdfast.bounding.quadratic_models import ParabolaCoefficients, Quadratic
from holdfast.bounding.reduced_forms import ReducedForms, consumer_first_order
from holdfast.bounding.sdp_dual import DEFAULT_STEPS, least
from holdfast.bounding.zonotope import Forms
from holdfast.memory_budget import free_bytes
from holdfast.region import Region
from holdfast.rounding import add_rounding_down

Bound = tuple[Tensor, LinearForms | None]
# The settings were chosen by hand.
MAX_TRAINED_NEURONS = 256  # Default number of neurons of a layer for which intermediate bounds are trained.
CPU_ROWS = 216  # Number of rows that are trained together on a CPU, if they fit in memory.
GPU_ROWS = 4096  # Number of rows that are trained together on a GPU, if they fit in memory.
# Number of float64 values that training keeps for each row and each element of a node, for planning memory.
VALUES_PER_ELEMENT = 40


class Bounder(Protocol):
    """A method that lower-bounds linear functions of the output."""

    def bound(self, region: Region, rows: Tensor) -> Bound:
        """Lower bounds of linear functions of the output over a region.

        Args:
            rows: (batch, rows, outputs).

        Returns:
            least: (batch, rows) with least <= row . output everywhere in the region, in real arithmetic and
                with all rounding errors included; -inf where nothing is proved.
            planes: linear functions of the input with planes <= row . output everywhere in the region and
                minimum `least` over it; None where the bound has another origin.
        """
        ...


@dataclass(frozen=True)
class ClosedForm:
    """CROWN: linear bounds with closed-form slopes."""

    graph: Graph
    # floating-point type in which the network runs; None: real arithmetic
    executed: torch.dtype | None = None

    def bound(self, region: Region, rows: Tensor) -> Bound:
        return _minimum_over(
            region, crown.linear_bound(self.graph, crown.propagate(self.graph, region, self.executed), rows)
        )


@dataclass(frozen=True)
class AffineForms:
    """Zonotopes over the enclosing box of the region.

    With `walks`, intermediate bounds are also refined by backward passes. With `most`, only about that many
    noise symbols are kept (`reduced_forms`).
    """

    graph: Graph
    walks: bool = False
    most: int | None = None

    def bound(self, region: Region, rows: Tensor) -> Bound:
        order = self.graph.nodes if self.most is None else consumer_first_order(self.graph)
        ends = region.enclosing_box()
        forms = (
            Forms.over(self.graph.entry, *ends)
            if self.most is None
            else ReducedForms(self.graph, *ends, order, self.most)
        )
        crown_with_fixed_bounds.propagate(self.graph, region, forms, walks=self.walks, order=order)
        if self.graph.output not in forms.of:
            return _unbounded_values(rows), None
        slope, constant = forms.linear_lower_bound(self.graph.entry, self.graph.output, rows)
        return _minimum_over(region, LinearForms(slope.reshape(*constant.shape, *region.shape), constant))


@dataclass(frozen=True)
class SecondOrder:
    """Quadratic models and CROWN, each with the intermediate bounds of both."""

    view: Quadratic
    coefficients: ParabolaCoefficients | None = (
        None  # free coefficients, one row for each batch element; None: zero
    )

    def bound(self, region: Region, rows: Tensor) -> Bound:
        if self.view.obstacle is not None:
            return _unbounded_values(rows), None
        coefficients = (
            self.view.zero_coefficients(len(region), torch.float64)
            if self.coefficients is None
            else self.coefficients
        )
        least = self.view.least_with_crown(region, rows, rows.new_zeros(rows.shape[:2]), coefficients)
        return _nan_proves_nothing(least), None


@dataclass(frozen=True)
class TrainedBounder:
    """Alpha-CROWN: optimises the slopes of linear lower bounds of ReLU-like activations, row by row.

    The first optimisation uses CROWN's intermediate bounds. For rows that are still open the intermediate
    bounds with the largest effect are optimised too, and the rows again. At the deadline the best bounds are
    returned.
    """

    graph: Graph
    # (batch, rows): a row is done once its bound exceeds this; None: optimise all rows
    enough: Tensor | None = None
    ends: int = MAX_TRAINED_NEURONS
    steps: int = 20
    pace: float = 0.2

    @torch.no_grad()
    def bound(self, region: Region, rows: Tensor) -> Bound:
        least = _unbounded_values(rows)
        for some in torch.arange(len(region), device=rows.device).split(self._inputs_at_once(rows)):
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
        least = _minimum_over(region, crown.linear_bound(self.graph, known, rows))[0]
        # A lower bound cannot exceed the upper bound of the row.
        aim = (
            -_minimum_over(region, crown.linear_bound(self.graph, known, -rows))[0]
            if enough is None
            else enough
        )
        if not relu_like_functions(self.graph):
            return least
        least, entering = self._optimise_rows(known, rows, aim, least)
        if time_limit.has_expired() or bool((least > aim).all()):
            return least
        return time_limit.in_time(
            partial(self._optimise_with_tightened, region, known, entering, rows, aim, least), least
        )

    def _optimise_with_tightened(
        self, region: Region, known: Boxes, entering: Tensor, rows: Tensor, aim: Tensor, least: Tensor
    ) -> Tensor:
        # The region is not empty; `empty` means that intermediate bounds overflowed.
        known, empty = self._tighten_intermediate(region, known, entering)
        return torch.where(empty[:, None], least, self._optimise_rows(known, rows, aim, least)[0])

    def _optimise_rows(self, known: Boxes, rows: Tensor, aim: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
        """Optimise the rows with bounds that are not above the aim.

        Returns:
            (inputs, rows), the improved bounds.
            (inputs, neurons), the weights of the linear upper bounds in the rows that are still open.
        """
        least, width = least.clone(), sum(node.size for node in relu_preactivations(self.graph))
        entering = torch.zeros((len(rows), width), dtype=torch.float64, device=rows.device)
        open_ = ((least <= aim) & least.isfinite() & aim.isfinite()).nonzero()
        for at in open_.split(self._rows_at_once()) if len(open_) else ():
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
            above = add_rounding_down(found.least, aim[part, row])
            least[part, row] = torch.maximum(least[part, row], _nan_proves_nothing(above))
            # open rows are weighted by the distance of their bound to the aim
            share = torch.where(found.least > 0, 0, -found.least)
            entering.index_add_(0, part, found.entering * torch.nan_to_num(share, 0.0, 0.0)[:, None])
        return least, entering

    def _tighten_intermediate(self, region: Region, known: Boxes, entering: Tensor) -> tuple[Boxes, Tensor]:
        """Optimise the intermediate bounds with the largest effect on the open rows.

        Returns the tightened boxes, and (inputs,) bool: boxes without any point.
        """
        worth = {}
        for node, cost in split_by_node(self.graph, neuron_costs(self.graph, known, entering)).items():
            flat = cost.flatten(1)
            least = flat.topk(min(self.ends, node.size), dim=1).values[:, -1:]
            worth[node] = ((flat > 0) & (flat >= least)).reshape(cost.shape)
        ends = {node: (known.lower[node], known.upper[node]) for node in crown.reusable_nodes(self.graph)}
        held = tighten_intermediate_bounds(
            self.graph, region, self.steps, self.pace, self._rows_at_once(), worth=worth, known=ends
        )
        return crown_with_fixed_bounds.propagate(self.graph, region, within=held)

    def _inputs_at_once(self, rows: Tensor) -> int:
        """How many batch elements are bounded together, given their rows and the bounds of their neurons."""
        widest = max((node.size for node in relu_preactivations(self.graph)), default=1)
        return max(1, self._rows_at_once() // max(rows.shape[1], 2 * min(self.ends, widest)))

    def _rows_at_once(self) -> int:
        """How many rows are optimised together."""
        usual = GPU_ROWS if self.graph.device.type == "cuda" else CPU_ROWS
        return min(usual, max(1, free_bytes(self.graph.device) // self.bytes_of_a_row()))

    def bytes_of_a_row(self) -> int:
        """The memory that the optimisation of one row needs."""
        return 8 * VALUES_PER_ELEMENT * sum(node.size for node in self.graph.nodes)


@dataclass(frozen=True)
class Coupled:
    """The joint relaxation of unstable ReLUs (`joint_relu`), one batch element and one row after the other.

    Proves nothing where `joint_relu.obstacle` gives a reason.
    """

    graph: Graph
    steps: int = DEFAULT_STEPS

    def bound(self, region: Region, rows: Tensor) -> Bound:
        found = _unbounded_values(rows)
        if joint_relu.obstacle(self.graph, region) is not None:
            return found, None
        for k in range(len(region)):
            boxes = crown.propagate(self.graph, batch.take(region, torch.tensor([k], device=rows.device)))
            asked = joint_relu.build_relaxation(self.graph, boxes, rows[k], torch.zeros_like(rows[k, :, 0]))
            for row in range(rows.shape[1]) if asked is not None else ():
                assert asked is not None
                found[k, row] = least(
                    asked.rows(torch.tensor([row], device=rows.device)), steps=self.steps, sign=False
                )[0]
        return _nan_proves_nothing(found), None


def _minimum_over(region: Region, planes: LinearForms) -> Bound:
    return _nan_proves_nothing(planes.minimum(region)), planes


def _unbounded_values(rows: Tensor) -> Tensor:
    return rows.new_full(rows.shape[:2], -torch.inf)


def _nan_proves_nothing(least: Tensor) -> Tensor:
    return torch.where(least.isfinite(), least, -torch.inf)
