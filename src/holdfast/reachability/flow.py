"""Enclosures of the states of a loop over one period: the controller, one step of a discrete plant, a flow.

Statement. Let X be a set of states and u = g(x) the controller's output, held for one period.

1. Controller. CROWN gives linear bounds of g over X itself, not over a box around it:
   g(x) in A x + [low, high] for every x of X. So (x, u) is an affine form in the noise symbols of x and one new
   symbol for each output (`Enclosure.control`).
2. Discrete plant. The image of (x, u) under the plant's graph, by affine arithmetic.
3. ODE dx/dt = f(x, u). If B is a box and X + [0, h] f(B, U) is a subset of B, every solution that starts in X
   exists on [0, h] and stays in B: the Picard operator maps the continuous functions [0, h] -> B into themselves
   (`Enclosure.picard`). With the Taylor coefficients x_j of `taylor_coefficients` and Lagrange's remainder,

       x(t) in p(t) + t^(k+1) x_{k+1}(B, U),    p(t) = x + t x_1(x, u) + ... + t^k x_k(x, u),    0 <= t <= h.

   p is bounded with affine forms, which keep the dependence on the start, the remainder with intervals.
4. Between two times. For a row r and a polynomial p, r . p(t) on [t_1, t_2] is at most
   max(r . p(t_1), r . p(t_2)) + (t_2 - t_1)^2 / 8 max |r . p''|, the error of linear interpolation.
5. Disturbance dx/dt = f(x, u) + w(t), |w_i(t)| <= W_i, w measurable. Let d be the distance from the solution
   without disturbance. Both stay in B if X + [0, h] (f(B, U) + [-W, W]) is a subset of B, and by the mean value
   theorem |d|' <= J |d| + W with J >= |df/dx| on B. If h (J D + W) <= D, then |d(t)| <= D on [0, h], since the
   integral operator of the comparison system v' = J v + W is monotone and maps [0, D] into itself.

Every sum is charged for rounding (docs/rounding.md, section Flows).

References: Nedialkov, Jackson, Corliss, "Validated solutions of initial value problems for ordinary differential
equations" (1999), for 3; Makino, Berz, "Taylor models and other validated functional inclusion methods" (2003);
Althoff, Stursberg, Buss, "Reachability analysis of nonlinear systems with uncertain parameters using conservative
linearization" (2008), for 4.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding import crown
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.node_bounds import LinearForms
from holdfast.derivations import (
    FLOW_BOX,
    FORM_FUNCTION,
    FORM_HALF_WIDTH,
    SUM_OF_TWO,
)
from holdfast.reachability.affine_sets import AffineSet, image, weighted_sum
from holdfast.region import Box
from holdfast.rounding import charge, round_up

PICARD_ROUNDS = 12  # Attempts to find an a-priori box before the step is called too long (chosen by hand).
# By how much of its width a box that is no a-priori box is widened for the next attempt (chosen by hand).
WIDENING = 0.1
TUBE_PARTS = 4  # Parts of a step over which the tube is bounded (chosen by hand).

Interval = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class PlantGraphs:
    """The graphs of a plant, functions of (x, u): `step` of a discrete plant; the others of an ODE."""

    step: Graph  # f(x, u)
    order: int = 0  # k; 0 for a discrete plant
    coefficients: Graph | None = None  # x_1, ..., x_k
    remainder: Graph | None = None  # x_{k+1}
    jacobian: Graph | None = None  # df/dx, column after column; only where there is a disturbance


@dataclass(frozen=True)
class FlowStep:
    """The solutions over one step of length h: the polynomial of forms, the box B and the remainder over it."""

    length: float
    coefficients: list[AffineSet]  # x_0, ..., x_k
    box: Interval  # B, (batch, n) each
    remainder: Interval  # x_{k+1}(B, U)
    disturbed: Tensor  # (batch, n): D, zero without disturbance

    def at(self, time: float) -> AffineSet:
        """The set of all p(time)."""
        return weighted_sum(self.coefficients, [time**j for j in range(len(self.coefficients))])

    def rest(self, time: float) -> Interval:
        """(batch, n) each: what x(t) - p(t) lies in for t = time, disturbance included."""
        power = time ** len(self.coefficients)
        slack = charge(power * _largest(*self.remainder) + self.disturbed, FLOW_BOX)
        low, high = (power * end for end in self.remainder)
        return low - self.disturbed - slack, high + self.disturbed + slack

    def end(self) -> AffineSet:
        """The set of all x(h)."""
        return self.at(self.length).add_box(*self.rest(self.length))

    def row_bounds(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Upper bounds of rows . x(t) at and between the times i h / TUBE_PARTS.

        Args:
            rows: (r, n).

        Returns:
            at (batch, TUBE_PARTS + 1, r), between (batch, TUBE_PARTS, r).
        """
        times = [self.length * i / TUBE_PARTS for i in range(TUBE_PARTS + 1)]
        within = [upper_bounds(self.at(t), rows) for t in times]
        order = len(self.coefficients) - 1
        bend = torch.zeros_like(within[0])
        for j in range(2, order + 1):
            sides = torch.maximum(*(upper_bounds(self.coefficients[j], sign * rows) for sign in (1.0, -1.0)))
            bend = bend + j * (j - 1) * self.length ** (j - 2) * sides
        part = self.length / TUBE_PARTS
        bend = round_up(bend * (part * part / 8), FLOW_BOX, order)
        rests = [self._row_rest(rows, t) for t in times]
        at = [value + rest for value, rest in zip(within, rests, strict=True)]
        between = [torch.maximum(within[i], within[i + 1]) + bend + rests[i + 1] for i in range(TUBE_PARTS)]
        rounding = [charge(value.abs() + bend + rests[-1], FLOW_BOX) for value in within]
        at = [value + slack for value, slack in zip(at, rounding, strict=True)]
        between = [
            value + torch.maximum(*slacks)
            for value, slacks in zip(between, itertools.pairwise(rounding), strict=True)
        ]
        return torch.stack(at, 1), torch.stack(between, 1)

    def _row_rest(self, rows: Tensor, time: float) -> Tensor:
        """(batch, r): at least |rows| times the largest |x(t) - p(t)| up to this time."""
        return round_up(_largest(*self.rest(time)) @ rows.abs().mT, FLOW_BOX, rows.shape[1])

    def take(self, chosen: Tensor) -> "FlowStep":
        """The same for some rows of the batch."""
        return FlowStep(
            self.length,
            [batch.take(part, chosen) for part in self.coefficients],
            (self.box[0][chosen], self.box[1][chosen]),
            (self.remainder[0][chosen], self.remainder[1][chosen]),
            self.disturbed[chosen],
        )


def upper_bounds(states: AffineSet, rows: Tensor) -> Tensor:
    """(batch, r): upper bounds of rows . x over the sets; rows (r, n)."""
    return -states.minimise_linear(-rows.expand(len(states), *rows.shape))


@dataclass(frozen=True)
class Enclosure:
    """Enclosures for one loop.

    Attributes:
        controller: the graph of g, a function of the state.
        disturbance: (n,), W.
    """

    controller: Graph
    plant: PlantGraphs
    states: int
    disturbance: Tensor

    def control(self, x: AffineSet) -> AffineSet:
        """The sets of all (x, g(x)): values of the state, then of the output."""
        boxes = crown.propagate(self.controller, x)
        outputs = self.controller.output.size
        one = torch.eye(outputs, dtype=torch.float64, device=x.centre.device).expand(len(x), -1, -1)
        bound = crown.linear_bound(self.controller, boxes, torch.cat([one, -one], 1))
        below, above = bound.coefficients[:, :outputs], -bound.coefficients[:, outputs:]
        slope = below / 2 + above / 2
        # u - A x >= (below - A) x + constant and A x - u >= (A - above) x + constant.
        apart = torch.cat([below - slope, slope - above], 1)
        largest = torch.maximum(*(end.abs() for end in x.enclosing_box()))
        wide = torch.cat([below.abs() + slope.abs(), above.abs() + slope.abs()], 1)
        missed = charge((wide @ largest[..., None]).squeeze(-1), SUM_OF_TWO, self.states)
        least = LinearForms(apart, bound.constant - missed).minimum(x)
        least = least - charge(least.abs() + bound.constant.abs() + missed, SUM_OF_TWO)
        low, high = least[:, :outputs], -least[:, outputs:]
        centre = (slope @ x.centre[..., None]).squeeze(-1) + (low / 2 + high / 2)
        arrived = (slope.abs() @ x.error[..., None]).squeeze(-1)
        half = round_up((high / 2 - low / 2) + arrived, FORM_HALF_WIDTH, self.states)
        size = (slope.abs() @ x.form.size[..., None]).squeeze(-1) + torch.maximum(low.abs(), high.abs())
        error = charge(size, FORM_FUNCTION, self.states)
        generators = torch.cat([x.generators @ slope.mT, torch.diag_embed(half)], 1)
        wide_x = x.with_symbols(x.symbols + outputs)
        return AffineSet(
            torch.cat([x.centre, centre], 1),
            torch.cat([wide_x.generators, generators], 2),
            torch.cat([x.error, error], 1),
        )

    def discrete(self, z: AffineSet) -> AffineSet:
        """The set of all f(x, u) + w."""
        found = image(self.plant.step, z)
        return found.add_box(
            -self.disturbance.expand_as(found.centre), self.disturbance.expand_as(found.centre)
        )

    def flow(self, z: AffineSet, length: float) -> tuple[FlowStep, Tensor]:
        """The solutions over a step, and (batch,) bool: the rows in which it is valid."""
        plant, n = self.plant, self.states
        assert plant.coefficients is not None
        assert plant.remainder is not None
        lower, upper = z.enclosing_box()
        held = lower[:, n:], upper[:, n:]
        box, valid = self.picard((lower[:, :n], upper[:, :n]), held, length)
        # Rows without a box get that of their start, so that the others can be computed with them.
        box = _choose(valid, box, (lower[:, :n], upper[:, :n]))
        joined = _join(box, held)
        remainder = _values(plant.remainder, joined)
        disturbed, bounded = self._bound_disturbance(joined, length)
        found = image(plant.coefficients, z)
        coefficients = [z.part(0, n)] + [found.part(j * n, j * n + n) for j in range(plant.order)]
        finite = torch.stack([end.isfinite().all(1) for end in (*remainder, found.centre, found.radius)]).all(
            0
        )
        return FlowStep(length, coefficients, box, remainder, disturbed), valid & bounded & finite

    def picard(self, start: Interval, held: Interval, length: float) -> tuple[Interval, Tensor]:
        """A box B with start + [0, length] (f(B, U) + [-W, W]) inside B, and (batch,) bool: where one was found."""
        box = start
        valid = torch.zeros(len(start[0]), dtype=torch.bool, device=start[0].device)
        found = box
        for _ in range(PICARD_ROUNDS):
            mapped = self._picard_operator(start, box, held, length)
            inside = ((mapped[0] >= box[0]) & (mapped[1] <= box[1])).all(1)
            inside &= (mapped[0].isfinite() & mapped[1].isfinite()).all(1)
            # The image of B is an a-priori box as well: it is inside B, and so is its own image.
            found = _choose(inside & ~valid, mapped, found)
            valid = valid | inside
            if bool(valid.all()):
                break
            width = WIDENING * (mapped[1] - mapped[0])
            box = mapped[0] - width, mapped[1] + width
        return found, valid

    def _picard_operator(self, start: Interval, box: Interval, held: Interval, length: float) -> Interval:
        rate = _values(self.plant.step, _join(box, held))
        low, high = rate[0] - self.disturbance, rate[1] + self.disturbance
        size = torch.maximum(start[0].abs(), start[1].abs()) + length * (
            torch.maximum(rate[0].abs(), rate[1].abs()) + self.disturbance
        )
        slack = charge(size, FLOW_BOX)
        return (
            start[0] + (length * low).clamp_max(0) - slack,
            start[1] + (length * high).clamp_min(0) + slack,
        )

    def _bound_disturbance(self, joined: Interval, length: float) -> tuple[Tensor, Tensor]:
        """(batch, n): D of the module's statement, and (batch,) bool: where it was found."""
        n, rows = self.states, len(joined[0])
        most = self.disturbance.expand(rows, -1)
        if self.plant.jacobian is None:
            return torch.zeros_like(most), torch.ones(rows, dtype=torch.bool, device=most.device)
        columns = _largest(*_values(self.plant.jacobian, joined)).reshape(rows, n, n)
        distance = length * most
        valid = torch.zeros(rows, dtype=torch.bool, device=most.device)
        for _ in range(PICARD_ROUNDS):
            grown = (distance[:, None] @ columns).squeeze(1) + most
            grown = round_up(length * grown, FLOW_BOX, n)
            valid = (grown <= distance).all(1)
            if bool(valid.all()):
                break
            distance = torch.where(valid[:, None], distance, grown * (1 + WIDENING))
        return distance, valid


def _values(graph: Graph, ends: Interval) -> Interval:
    """Interval bounds (batch, size) of the output of a graph over boxes."""
    lower, upper = ends
    usable = (lower.isfinite() & upper.isfinite()).all(1)
    # An unbounded box has unbounded values.
    safe = Box.between(*(torch.where(usable[:, None], end, 0.0) for end in ends))
    boxes = crown.intervals(graph, safe)
    found = [side[graph.output].flatten(1) for side in (boxes.lower, boxes.upper)]
    return (
        torch.where(usable[:, None], found[0], -torch.inf),
        torch.where(usable[:, None], found[1], torch.inf),
    )


def _join(one: Interval, other: Interval) -> Interval:
    return torch.cat([one[0], other[0]], 1), torch.cat([one[1], other[1]], 1)


def _choose(rows: Tensor, one: Interval, other: Interval) -> Interval:
    """One in these rows of the batch, (batch,) bool, and the other in the rest."""
    return torch.where(rows[:, None], one[0], other[0]), torch.where(rows[:, None], one[1], other[1])


def _largest(lower: Tensor, upper: Tensor) -> Tensor:
    return torch.maximum(lower.abs(), upper.abs())
