"""Alpha-beta-CROWN: linear bounds with optimised slopes (alpha) and multipliers of splits (beta).

Statement. In a subproblem of branch and bound some pre-activations z_i have decided signs s_i, so s_i z_i >=
0. For any beta_i >= 0

    row . node  >=  row . node - sum of beta_i s_i z_i    at every point of the subproblem,

and CROWN bounds the right side like any other sum of nodes. The linear lower bound of an unstable neuron may
have any slope alpha, with the largest intercept for which it stays below the activation. So all alpha and all
beta >= 0 are sound. They are optimised in float32 (`_Draft`, alpha in [0, 1]), and the best ones are
evaluated once in float64 with all rounding errors included: that is the proof. Where the sign of a bound is
not certain in float32, the optimisation continues in float64.

A row task has several rows, of which it suffices that one is positive at every point. For any weights >= 0
with sum one the weighted sum of the rows is at most the largest row, so the weights are optimised as well (a
softmax of free numbers).

Assumption: split activations have a single kink, at zero, and are affine on either side.

References: Xu et al., "Fast and complete: enabling complete verification with rapid and massively parallel
incomplete verifiers" (alpha-CROWN, 2021); Wang et al., "Beta-CROWN: efficient bound propagation with
per-neuron split constraints for neural network robustness verification" (2021), theorem 3.1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.coefficient_training import CoefficientAscent
from holdfast.bounding.crown_with_fixed_bounds import combine_rows, propagate, take_rows, with_slopes
from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes, IntervalBounds, LinearForms
from holdfast.bounding.relax.base import LinearBounds
from holdfast.bounding.traversal import Backward
from holdfast.cuda_graphs import RecordedStep
from holdfast.derivations import (
    WEIGHTED_ROWS,
)
from holdfast.region import Region
from holdfast.rounding import add_rounding_down, charge

# A float32 bound below this share of the sum of its terms' sizes has no certain sign (256 units of rounding).
FLOAT32_MARGIN = 2.0**-16


def relu_like_functions(graph: Graph) -> list[Relaxed]:
    """The activations with two linear pieces that meet at zero, the slope of the right one being no smaller.

    The slopes of their linear lower bounds are free.
    """
    found = [(node, node.relaxation.sides()) for node in graph.nodes if isinstance(node, Relaxed)]
    return [
        node for node, sides in found if sides is not None and sides.at == 0 and sides.below <= sides.above
    ]


def relu_preactivations(graph: Graph) -> list[Node]:
    """The pre-activations of the ReLU-like activations, in the order of the graph."""
    return list(dict.fromkeys(node.inputs[0] for node in relu_like_functions(graph)))


def split_by_node(graph: Graph, values: Tensor, nodes: Sequence[Node] | None = None) -> dict[Node, Tensor]:
    """Split (n, all pre-activations) by node: (n, *shape) for each pre-activation, or for each of `nodes`."""
    nodes = relu_preactivations(graph) if nodes is None else nodes
    parts = values.split([node.size for node in nodes], dim=1)
    return {node: part.reshape(-1, *node.shape) for node, part in zip(nodes, parts, strict=True)}


def concatenate_nodes(
    graph: Graph, values: Mapping[Node, Tensor], nodes: Sequence[Node] | None = None
) -> Tensor:
    """Concatenate (n, *shape) of all pre-activations, or of `nodes`, to (n, elements); inverse of `split_by_node`."""
    return torch.cat(
        [values[node].flatten(1) for node in (relu_preactivations(graph) if nodes is None else nodes)], dim=1
    )


@dataclass(frozen=True)
class TrainedBounds:
    """What some slopes and multipliers prove, for n row tasks."""

    least: Tensor  # (n,): at every point of the subproblem some row is at least this
    planes: Tensor  # (n, rows, *shape): coefficients of linear lower bounds of the rows
    slope: Tensor  # (n, arguments)
    multiplier: Tensor  # (n, arguments)
    entering: Tensor  # (n, arguments): the weight of each neuron's linear upper bound in the bound

    def replace_at(self, which: Tensor, other: "TrainedBounds") -> "TrainedBounds":
        """A copy with `other` at the indices `which`."""
        return TrainedBounds(
            **{
                f.name: getattr(self, f.name).index_copy(0, which, getattr(other, f.name))
                for f in fields(self)
            }
        )

    def improve(self, other: "TrainedBounds") -> None:
        """Replace, in place, those tasks for which `other` has the larger bound."""
        better = self.or_better(other)
        for f in fields(self):
            getattr(self, f.name).copy_(getattr(better, f.name))

    def or_better(self, other: "TrainedBounds") -> "TrainedBounds":
        """For each task, the one of the two with the larger bound."""
        wins = other.least > self.least
        both = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return TrainedBounds(
            **{
                name: torch.where(wins.reshape(-1, *(1 for _ in a.shape[1:])), b, a)
                for name, (a, b) in both.items()
            }
        )


@dataclass(frozen=True)
class RowTask:
    """For each of n subproblems: lower-bound the largest of some linear functions (rows) of a node."""

    graph: Graph
    known: Boxes  # intermediate bounds in the n subproblems
    node: Node
    matrix: Tensor  # (n, rows, size of the node)
    offset: Tensor  # (n, rows)
    sign: Tensor  # (n, arguments): +1 or -1 for decided signs, else 0

    @cached_property
    def decides(self) -> bool:
        return bool(self.sign.any())

    @property
    def undecided(self) -> Tensor:
        lower, upper = (concatenate_nodes(self.graph, side) for side in (self.known.lower, self.known.upper))
        return (lower < 0) & (upper > 0)

    def train(self, slope: Tensor, multiplier: Tensor, steps: int, pace: float) -> TrainedBounds:
        """Optimise slopes and multipliers by gradient ascent and return the best proved bounds.

        `slope` and `multiplier` (n, arguments) are the initial values; NaN slopes stand for CROWN's. Stops at
        the deadline.
        """
        slope = torch.where(self.undecided & ~slope.isnan(), slope, self._crown_slopes())
        weight = torch.zeros_like(self.offset)  # weights of the rows before the softmax
        if steps:
            slope, multiplier, weight = self._train_draft(slope, multiplier, weight, steps, pace)
        ones = torch.ones_like(slope)
        best, _ = self._bound(
            [slope.requires_grad_(), multiplier.requires_grad_(), weight.requires_grad_()], ones
        )
        near = (best.least <= 0) & (best.least > -FLOAT32_MARGIN * self._size(best))
        if steps and bool(near.any()):
            which = near.nonzero().flatten()
            free = [value.detach()[which] for value in (slope, multiplier, weight)]
            best = best.or_better(
                best.replace_at(which, self.take(which)._continue_training(free, steps, pace))
            )
        return best

    def _train_draft(
        self, slope: Tensor, multiplier: Tensor, weight: Tensor, steps: int, pace: float
    ) -> list[Tensor]:
        """Optimise in float32; returns the best slopes, multipliers and row weights, in float64."""
        draft = _Draft.of(self)
        first, signs = draft.free(slope), draft.free(multiplier) if self.decides else {}
        best, entering = draft.weights(first, signs, weight)
        unit = {
            node: entering[node].flatten(1).mean(1).clamp_min(1e-9).reshape(-1, *(1 for _ in node.shape))
            for node in signs
        }
        nodes, undecided = list(first), draft.free(self.undecided)
        start = [*first.values(), *(signs[node] / unit[node] for node in signs), weight.float()]
        ascent, kept = CoefficientAscent(start, betas=(0.9, 0.99)), [value.clone() for value in start]
        values, rate = ascent.values, torch.zeros((), device=best.device)
        slopes = dict(zip(nodes, values, strict=False))
        multipliers = dict(zip(signs, values[len(nodes) : -1], strict=True))

        def climb() -> None:
            now, gradients = draft.climb(slopes, multipliers, unit, values[-1])
            better = now > best
            for value, old in zip(values, kept, strict=True):
                torch.where(better.reshape(-1, *(1 for _ in value.shape[1:])), value.detach(), old, out=old)
            best.copy_(torch.maximum(best, now))
            ascent.step(gradients, rate if rate.is_cuda else float(rate))
            for node, value in slopes.items():
                value.copy_(torch.where(undecided[node], value.clamp(0, 1), first[node]))
            for value in multipliers.values():
                value.clamp_min_(0)

        once = RecordedStep(climb, best.device)
        for step in range(steps):
            if time_limit.has_expired() or bool((best > FLOAT32_MARGIN).all()):
                break
            rate.fill_(pace * (1 - step / steps))
            once()
        found = split_by_node(self.graph, slope) | {
            node: value.double() for node, value in zip(nodes, kept, strict=False)
        }
        held = split_by_node(self.graph, multiplier) | {
            n: (v * unit[n]).double() for n, v in zip(signs, kept[len(nodes) : -1], strict=True)
        }
        return [concatenate_nodes(self.graph, found), concatenate_nodes(self.graph, held), kept[-1].double()]

    def _continue_training(self, free: list[Tensor], steps: int, pace: float) -> TrainedBounds:
        """Optimise further in float64, where every bound is a proof."""
        undecided, own = self.undecided, free[0]
        best, _ = self._bound([value.requires_grad_() for value in free], torch.ones_like(own))
        unit = self._unit(best.entering)
        ascent = CoefficientAscent([own, free[1].detach() / unit, free[2]], betas=(0.9, 0.99))
        values, rate = ascent.values, torch.zeros((), device=own.device)

        def climb() -> None:
            now, gradients = self._bound(values, unit)
            best.improve(now)
            ascent.step(gradients, rate if rate.is_cuda else float(rate))
            values[0].copy_(torch.where(undecided, values[0].clamp(0, 1), own))
            values[1].clamp_min_(0)

        once = RecordedStep(climb, own.device)
        for step in range(steps):
            if bool((best.least > 0).all()) or time_limit.has_expired():
                break
            rate.fill_(pace * (1 - step / steps))
            once()
        return best

    def _size(self, found: TrainedBounds) -> Tensor:
        """(n,): the sum of the sizes of all terms of a bound, to which its float32 rounding is relative."""
        low, high = self.known.region.enclosing_box()
        reach = torch.maximum(low.abs(), high.abs()).flatten(1)[:, None]
        terms = (found.planes.flatten(2).abs() * reach).sum(-1) + self.offset.abs()
        return 1 + torch.nan_to_num(terms, torch.inf, torch.inf).amax(1)

    def take(self, which: Tensor) -> "RowTask":
        return replace(
            self,
            known=take_rows(self.known, which),
            **{n: getattr(self, n)[which] for n in ("matrix", "offset", "sign")},
        )

    def prove(self, multiplier: Tensor, weight: Tensor, slope: Tensor | None = None) -> Tensor:
        """Lower bounds (n,) of the largest row, for given multipliers, row weights and slopes.

        NaN slopes stand for CROWN's; without `slope` all slopes are CROWN's.
        """
        lift: dict[Relaxed, Tensor] = {}
        if slope is not None:
            slope = torch.where(self.undecided & ~slope.isnan(), slope, self._crown_slopes())
            lift = {
                node: weight.new_zeros(())
                for node in relu_like_functions(self.graph)
                if node.place < self.node.place
            }
        planes = self._planes(multiplier if slope is None else slope, multiplier, lift)
        return torch.nan_to_num(self._least(planes, weight), -torch.inf, torch.inf, -torch.inf)

    def _crown_slopes(self) -> Tensor:
        """(n, arguments): the slopes of CROWN's linear lower bounds."""
        return concatenate_nodes(
            self.graph,
            {node.inputs[0]: self.known.planes[node].lower[0] for node in relu_like_functions(self.graph)},
        )

    def _bound(self, free: list[Tensor], unit: Tensor) -> tuple[TrainedBounds, list[Tensor]]:
        """The proved bounds for slopes, multipliers and row weights, and the gradients along these."""
        slope, multiplier, weight = free
        # A zero is added to every linear upper bound: the gradient along it is the weight of that linear
        # bound.
        before = [node for node in relu_like_functions(self.graph) if node.place < self.node.place]
        lift = {node: torch.zeros_like(self.known.upper[node]).requires_grad_() for node in before}
        with torch.enable_grad():
            planes = self._planes(slope, multiplier * unit, lift)
            least = self._least(planes, weight.softmax(1))
            variables = [*free, *lift.values()]
            found = _gradients(least, variables)
        gradients = [
            torch.zeros_like(v) if g is None else torch.nan_to_num(g)
            for v, g in zip(variables, found, strict=True)
        ]
        entering = {
            node: torch.zeros_like(self.known.upper[node]) for node in relu_preactivations(self.graph)
        }
        entering |= {
            node.inputs[0]: -gradient for node, gradient in zip(lift, gradients[len(free) :], strict=True)
        }
        least = torch.nan_to_num(least.detach(), -torch.inf, torch.inf, -torch.inf)
        planes_now, multiplier_now = planes.coefficients.detach(), (multiplier * unit).detach()
        proved = TrainedBounds(
            least, planes_now, slope.detach().clone(), multiplier_now, concatenate_nodes(self.graph, entering)
        )
        return proved, gradients[: len(free)]

    def _least(self, planes: LinearForms, weight: Tensor) -> Tensor:
        """(n,): the minimum over the region of the best single row or of the weighted sum, if that is larger.

        `weight` (n, rows) >= 0.
        """
        region, constant = self.known.region, add_rounding_down(planes.constant, self.offset)
        alone = add_rounding_down(planes.minimum(region), self.offset).amax(1)
        if weight.shape[1] == 1:
            return alone
        wide = weight.reshape(*weight.shape, *(1 for _ in region.shape))
        total = LinearForms(
            (wide * planes.coefficients).sum(1, keepdim=True), (weight * constant).sum(1, keepdim=True)
        )
        low, high = region.enclosing_box()
        size = (wide * planes.coefficients.abs()).sum(1) * torch.maximum(low.abs(), high.abs())
        size = size.flatten(1).sum(1) + (weight * constant.abs()).sum(1)
        missed = charge(size, WEIGHTED_ROWS, weight.shape[1])
        return torch.maximum(alone, total.minimum(region)[:, 0] - missed)

    def _planes(self, slope: Tensor, multiplier: Tensor, lift: Mapping[Relaxed, Tensor]) -> LinearForms:
        """Linear lower bounds of the rows; the activations in `lift` take their slopes from `slope`."""
        slopes = split_by_node(self.graph, slope)
        known = with_slopes(self.known, {node: slopes[node.inputs[0]] for node in lift})
        for node, zero in lift.items():
            known.planes[node] = replace(
                known.planes[node], upper_offset=known.planes[node].upper_offset + zero
            )
        count, rows = self.offset.shape
        parts = {self.node: self.matrix.reshape(count, rows, *self.node.shape)}
        if self.decides:
            decided = split_by_node(self.graph, -multiplier * self.sign)
            before = (node for node in decided if node.place < self.node.place)
            parts.update({node: decided[node][:, None].expand(count, rows, *node.shape) for node in before})
        return combine_rows(self.graph, known, parts)

    def _unit(self, entering: Tensor) -> Tensor:
        """(n, arguments): the mean weight of a linear bound in each layer, as unit of the multipliers."""
        usual = {
            node: v.flatten(1).mean(1, keepdim=True).clamp_min(1e-9)
            for node, v in split_by_node(self.graph, entering).items()
        }
        return concatenate_nodes(self.graph, {node: v.expand(-1, node.size) for node, v in usual.items()})


@dataclass(frozen=True)
class _Draft:
    """The bounds of a row task in float32 without rounding errors: for optimisation only."""

    task: RowTask
    before: list[Relaxed]  # the activations with free slopes before the node
    planes: Mapping[Relaxed, LinearBounds]
    # the rows after the affine maps behind the last activations: constant during optimisation
    begun: Mapping[Node, Tensor]
    constant: Tensor  # (n, rows)
    box: tuple[Tensor, Tensor] | None  # middle and half width (n, inputs, 1), if the region is a box

    @staticmethod
    def of(task: RowTask) -> "_Draft":
        before = [node for node in relu_like_functions(task.graph) if node.place < task.node.place]
        planes = {node: _to_float32(p) for node, p in task.known.planes.items() if isinstance(node, Relaxed)}
        walk = _PlainWalk(task.graph, planes, task.offset.float())
        walk.arrive(task.node, task.matrix.float().reshape(*task.offset.shape, *task.node.shape))
        walk.to_functions(task.node.place)
        region, box = task.known.region, None
        if region.boxed:
            lower, upper = (end.flatten(1).unsqueeze(-1) for end in region.enclosing_box())
            box = (lower / 2 + upper / 2).float(), (upper / 2 - lower / 2).float()
        return _Draft(task, before, planes, walk.pending, walk.constant, box)

    def free(self, values: Tensor) -> dict[Node, Tensor]:
        """Split (n, arguments) by node, in float32, for the pre-activations before the task's node."""
        earlier = {node.inputs[0] for node in self.before}
        found = {
            node: value for node, value in split_by_node(self.task.graph, values).items() if node in earlier
        }
        return {node: value.float() if value.is_floating_point() else value for node, value in found.items()}

    def weights(
        self, slope: Mapping[Node, Tensor], multiplier: Mapping[Node, Tensor], weight: Tensor
    ) -> tuple[Tensor, dict[Node, Tensor]]:
        """The bounds (n,), and the weight of the linear upper bound of each activation in them."""
        # A zero is added to every linear upper bound: the gradient along it is that weight.
        lift = {
            node: torch.zeros_like(self.planes[node].upper_offset).requires_grad_() for node in self.before
        }
        with torch.enable_grad():
            least = self._least(slope, multiplier, weight.float(), lift)
            found = _gradients(least, list(lift.values()))
        entering = {
            n.inputs[0]: torch.zeros_like(v) if g is None else -torch.nan_to_num(g)
            for (n, v), g in zip(lift.items(), found, strict=True)
        }
        return _nan_as_unknown(least), entering

    def climb(
        self,
        slope: Mapping[Node, Tensor],
        multiplier: Mapping[Node, Tensor],
        unit: Mapping[Node, Tensor],
        weight: Tensor,
    ) -> tuple[Tensor, list[Tensor]]:
        """The bounds (n,), and their gradients along slopes, multipliers (in their units) and row weights."""
        with torch.enable_grad():
            least = self._least(
                slope, {node: value * unit[node] for node, value in multiplier.items()}, weight, {}
            )
            variables = [*slope.values(), *multiplier.values(), weight]
            found = _gradients(least, variables)
        return _nan_as_unknown(least), [
            torch.zeros_like(v) if g is None else g for v, g in zip(variables, found, strict=True)
        ]

    def _least(
        self,
        slope: Mapping[Node, Tensor],
        multiplier: Mapping[Node, Tensor],
        weight: Tensor,
        lift: Mapping[Relaxed, Tensor],
    ) -> Tensor:
        task, planes = self.task, dict(self.planes)
        # A line through the kink with a slope between those of both sides is a lower bound, with unchanged
        # offset.
        for node in self.before:
            p = planes[node]
            planes[node] = LinearBounds(
                (slope[node.inputs[0]],),
                p.lower_offset,
                p.upper,
                p.upper_offset + lift[node] if lift else p.upper_offset,
            )
        walk = _PlainWalk(task.graph, planes, self.constant)
        walk.pending.update(self.begun)
        for source, value in multiplier.items():
            part = -value * split_by_node(task.graph, task.sign)[source]
            walk.arrive(source, part[:, None].expand(*self.constant.shape, *source.shape))
        walk.walk(task.node.place)
        rows = walk.lower_bound_linear(task.known.region)
        alone = (self._minimum(rows) + walk.constant).amax(1)
        if self.constant.shape[1] == 1:
            return alone
        share = weight.softmax(1)
        total = torch.einsum("nr,nr...->n...", share, rows)[:, None]
        return torch.maximum(alone, self._minimum(total)[:, 0] + (share * walk.constant).sum(1))

    def _minimum(self, rows: Tensor) -> Tensor:
        """(n, rows, *shape) -> (n, rows): the minimum of each linear function over the region."""
        if self.box is None:
            return self.task.known.region.minimise_linear(rows.double()).float()
        flat, (middle, half) = rows.flatten(2), self.box
        return (flat @ middle - flat.abs() @ half).squeeze(-1)


def _gradients(least: Tensor, variables: list[Tensor]) -> tuple[Tensor | None, ...]:
    """Gradients of sum(least); None for variables on which it does not depend.

    These belong to activations that precede the node in the graph's order but do not lead to it.
    """
    return (
        torch.autograd.grad(least.sum(), variables, allow_unused=True)
        if least.requires_grad
        else (None,) * len(variables)
    )


def _nan_as_unknown(least: Tensor) -> Tensor:
    return torch.nan_to_num(least.detach(), -torch.inf, torch.inf, -torch.inf)


class _PlainWalk(Backward[Tensor]):
    """CROWN's backward pass in plain floating point: pending coefficients and a constant."""

    def __init__(self, graph: Graph, planes: Mapping[Relaxed, LinearBounds], constant: Tensor) -> None:
        super().__init__(graph)
        self.planes, self.constant = planes, constant

    def to_functions(self, place: int) -> None:
        """Go back to the first activations."""
        for node in reversed(self.graph.nodes[1 : place + 1]):
            if node in self.pending:
                if not isinstance(node, Affine):
                    return
                self.through_map(node, self.pending.pop(node))

    def arrive(self, node: Node, part: Tensor) -> None:
        self.pending[node] = self.pending[node] + part if node in self.pending else part

    def lower_bound_linear(self, region: Region) -> Tensor:
        found = self.pending.get(self.graph.entry)
        shape = (*self.constant.shape, *region.shape)
        return self.constant.new_zeros(shape) if found is None else found.reshape(shape)

    def through_function(self, node: Relaxed, carried: Tensor) -> None:
        p = self.planes[node]
        up = carried.clamp_min(0)
        down = carried.clamp_max(0)
        low, high = (offset.flatten(1).unsqueeze(-1) for offset in (p.lower_offset, p.upper_offset))
        self.constant = self.constant + (up.flatten(2) @ low + down.flatten(2) @ high).squeeze(-1)
        for source, below, above in zip(node.inputs, p.lower, p.upper, strict=True):
            self.arrive(source, up * below[:, None] + down * above[:, None])

    def through_map(self, node: Affine, carried: Tensor) -> None:
        flat = carried.flatten(2)
        if node.shift is not None:
            self.constant = self.constant + flat @ node.shift.to(flat)
        for source, part in zip(node.inputs, node.back(flat), strict=True):
            self.arrive(source, part.reshape(*part.shape[:2], *source.shape))


def _to_float32(planes: LinearBounds) -> LinearBounds:
    lower, upper = (tuple(slope.float() for slope in side) for side in (planes.lower, planes.upper))
    return LinearBounds(lower, planes.lower_offset.float(), upper, planes.upper_offset.float())


def tighten_intermediate_bounds(
    graph: Graph,
    region: Region,
    steps: int,
    pace: float,
    at_once: int,
    *,
    worth: Mapping[Node, Tensor] | None = None,
    known: Mapping[Node, IntervalBounds] | None = None,
    heard: Callable[[Node, Tensor, TrainedBounds], None] | None = None,
) -> dict[Node, IntervalBounds]:
    """Optimise the intermediate bounds of unstable neurons, layer by layer.

    Args:
        at_once: the number of neurons that are optimised together.
        worth: (n, *shape) bool for each pre-activation, the neurons to optimise; default: all.
        known: bounds of some nodes that are known to hold over the region.
        heard: called with a node, indices (k, 2) of batch row and element, and the trained bounds: first
            those of all k lower bounds, then those of the upper bounds.

    Returns:
        The bounds found before the deadline, together with `known`. Every layer uses the bounds of earlier
        layers.
    """
    held: dict[Node, IntervalBounds] = dict(known or {})
    for node in relu_preactivations(graph):
        if time_limit.has_expired():
            break
        if worth is not None and not bool(worth[node].any()):
            continue
        if not any(function.place < node.place for function in relu_like_functions(graph)):
            continue  # before the first activation no slope is free
        found = time_limit.in_time(partial(propagate, graph, region, within=held), None)
        if found is None:
            break
        boxes, _ = found
        lower, upper = boxes.lower[node].flatten(1), boxes.upper[node].flatten(1)
        undecided = (lower < 0) & (upper > 0)
        undecided = (undecided if worth is None else undecided & worth[node].flatten(1)).nonzero()
        for chosen in undecided.split(at_once) if len(undecided) else ():
            if time_limit.has_expired():
                break
            row, element = chosen.repeat(2, 1).unbind(1)
            sign = torch.ones(len(row), dtype=torch.float64, device=row.device)
            sign[len(chosen) :] = -1
            matrix = torch.zeros((len(row), 1, node.size), dtype=torch.float64, device=row.device)
            matrix[torch.arange(len(row), device=row.device), 0, element] = sign
            none = torch.zeros(
                (len(row), sum(a.size for a in relu_preactivations(graph))),
                dtype=torch.float64,
                device=row.device,
            )
            task = RowTask(graph, take_rows(boxes, row), node, matrix, matrix.new_zeros((len(row), 1)), none)
            better = time_limit.in_time(partial(task.train, none * torch.nan, none, steps, pace), None)
            if better is None:
                break
            if heard is not None:
                heard(node, chosen, better)
            least = better.least
            below, above = least[: len(chosen)], -least[len(chosen) :]
            at = chosen.unbind(1)
            lower[at], upper[at] = torch.maximum(lower[at], below), torch.minimum(upper[at], above)
        held[node] = lower.reshape(-1, *node.shape), torch.maximum(lower, upper).reshape(-1, *node.shape)
    return held
