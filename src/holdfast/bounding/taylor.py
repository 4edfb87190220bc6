"""Second-order Taylor models with a remainder vector bounded in two norms, for smooth networks of few inputs.

Statement. Over a box x = centre + radius v, |v_k| <= 1, every node satisfies

    y = c + J v + 1/2 v'Q v + e,    |e_n| <= near_n for every element n,    ||e||_2 <= far.

`quadratic_models` and `zonotope` keep a variable for every remainder, so that remainders may cancel, and have
as many columns as there are earlier neurons. Here a model has (d + 1)(d + 2) / 2 columns for d inputs, and
costs as much as evaluating the network at that many points. Remainders are of third order in the radius, so a
coarser bound suffices: an affine map increases their Euclidean norm at most by its spectral norm, where
interval arithmetic would multiply it by a row sum in every layer.

An activation is replaced by the parabola through its Chebyshev points (`relax/parabola`) over the range of
the model. If the pre-activation is off by e, its value is off by a slope of the function times e. So the
remainder of the output is the sum over all earlier nodes of their own remainders times the sensitivity of the
output to them. For given rows this sensitivity is found by a backward pass: a vector known up to a ball
around it. Rounding: docs/rounding.md.

Reference: Makino, Berz, "Taylor models and other validated functional inclusion methods" (2003).

Assumption: the region is a box, and every activation has the derivatives that `relax/parabola` needs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.bounding.quadratic_algebra import QuadraticModel, VariableBall
from holdfast.bounding.quadratic_part import Curvature, Stored
from holdfast.bounding.relax.parabola import SmoothCurve, interpolate_parabola
from holdfast.bounding.traversal import Backward, Forward, forward
from holdfast.derivations import (
    BOX_RADIUS,
    TAYLOR_COLUMNS,
    TAYLOR_FUNCTION,
    TAYLOR_LINEAR_BOUND,
    TAYLOR_MAP,
    TAYLOR_MASS,
    TAYLOR_OWN,
    TAYLOR_REMAINDER,
    TAYLOR_RESPONSE,
    TAYLOR_RESPONSE_SUM,
    TAYLOR_ROW,
    TAYLOR_ROW_NORMS,
    TAYLOR_ROWS,
    TAYLOR_SUM,
)
from holdfast.rounding import TINY, centre_and_radius, charge, length, round_up

MONOTONE_ROUNDS = 8  # Rounds in which monotone variables of the final model are fixed (chosen by hand).
# An arbitrary point, to ask whether an activation has a derivative range.
PROBE_POINT = (torch.ones(1, dtype=torch.float64),)


@dataclass(frozen=True)
class Taylor:
    """The model of one node over a batch of boxes, in the notation of the module."""

    # (batch, 1 + d + d (d + 1) / 2, size): c, J, the upper triangle of Q row by row
    columns: Tensor
    near: Tensor  # (batch, size)
    far: Tensor  # (batch, 1)
    own: Tensor  # (batch, size): the node's own contribution to the remainder
    # (batch, size): at least the sum of all |coefficients|, where a map may read them
    mass: Tensor | None = None


@dataclass(frozen=True)
class ResponseInterval:
    """The slopes of an activation over the range of its pre-activation: within `half` of `middle`."""

    middle: Tensor  # (batch, size)
    half: Tensor
    steepest: Tensor  # (batch, 1): no |slope| is larger
    share: Tensor  # (batch, d, size): each input's share of the pre-activation's linear part


def obstacle(graph: Graph) -> str | None:
    """Why a graph has no such models; None if it has."""
    for node in graph.nodes:
        if isinstance(node, Affine) and not node.small:
            return f"{node.name}: too large for models"
        if isinstance(node, Relaxed) and (
            _curve(node) is None or node.relaxation.derivative_range(PROBE_POINT, PROBE_POINT) is None
        ):
            name = type(node.relaxation).__name__
            return f"{node.name}: {name} is not known as a smooth function of one argument"
    return (
        None
        if any(isinstance(node, Relaxed) for node in graph.nodes)
        else "the network is linear: linear bounds are exact"
    )


def count_columns(inputs: int) -> int:
    """The number of columns of a model over `inputs` inputs."""
    return (inputs + 1) * (inputs + 2) // 2


@dataclass(frozen=True)
class RowLowerBounds:
    """Lower bounds of rows of the output over each box: a model, and the bounds that follow from it."""

    least: Tensor  # (batch, rows): least <= row . output; NaN where nothing is known
    slope: Tensor  # (batch, rows, inputs): slope . x + constant <= row . output
    constant: Tensor  # (batch, rows)
    spread: Tensor  # (batch, rows): the linear part of the model lies within +-spread
    rest: Tensor  # (batch, rows): and the remainder within +-rest
    share: Tensor  # (batch, inputs): each input's share of the remainders


def lower_bound_rows(graph: Graph, lower: Tensor, upper: Tensor, rows: Tensor) -> RowLowerBounds:
    """Lower-bound rows of the output over boxes.

    Args:
        lower, upper: (batch, inputs), the boxes.
        rows: (batch, rows, outputs).

    `obstacle` must be None.
    """
    models = _Models(lower, upper)
    forward(graph.nodes, models.visit)
    found = models.of[graph.output]
    inputs = models.inputs
    d = len(models.inputs)
    flat = rows @ found.columns.mT  # (batch, rows, columns)
    size = (rows.abs() @ _mass(found)[..., None]).squeeze(-1)
    near, far = (rows.abs() @ found.near[..., None]).squeeze(-1), length(rows) * found.far
    walk = _Responses(graph, models)
    rest = torch.minimum(round_up(torch.minimum(near, far), TAYLOR_REMAINDER, rows.shape[2]), walk.rest(rows))
    rest = rest + charge(size, TAYLOR_ROWS, rows.shape[2])
    Q = flat.new_zeros((*flat.shape[:2], d, d))
    first, second = torch.triu_indices(d, d, device=flat.device)
    Q[..., first, second] = Q[..., second, first] = flat[..., 1 + d :]
    c = flat[..., 0]
    J = flat[..., 1 : 1 + d]
    none = flat.new_zeros((*flat.shape[:2], 0))
    curvature = Curvature(((None, Stored(Q, Q[..., :0])),))
    model = QuadraticModel(
        c,
        J,
        none,
        curvature,
        rest,
        size,
        torch.arange(d, device=flat.device),
        VariableBall(1.0, torch.zeros_like(inputs)),
    )
    slope, constant = _plane(model, models.centre, models.radius)
    slope, share = (_scatter_inputs(values, inputs, graph.entry.size) for values in (slope, walk.share))
    return RowLowerBounds(model.least(MONOTONE_ROUNDS), slope, constant, J.abs().sum(-1), rest, share)


def _plane(model: QuadraticModel, centre: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """The linear part of a model as a function of x, with the quadratic part at its minimum.

    J v = (J / radius) (x - centre) up to the rounding of the quotient.
    """
    parts = model.parts
    slope = torch.where(radius[:, None] > 0, model.J / radius[:, None], 0.0)
    at = slope * centre[:, None]
    constant = model.c + parts.middle - at.sum(-1) - parts.width - model.rest
    size = parts.size + at.abs().sum(-1) + model.rest
    return slope, constant - charge(size, TAYLOR_LINEAR_BOUND, model.terms)


def _scatter_inputs(values: Tensor, inputs: Tensor, size: int) -> Tensor:
    """Values (..., d) of the perturbed inputs -> (..., size) of all inputs; zero for the others."""
    return values.new_zeros((*values.shape[:-1], size)).index_copy(-1, inputs, values)


class _Models(Forward):
    """Propagates models forward."""

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        # The radius is rounded up, so that every x of the box is centre + radius v for some |v| <= 1.
        centre, radius = centre_and_radius(lower, upper)
        radius = torch.where(lower == upper, 0.0, radius)
        self.inputs = (radius > 0).any(0).nonzero().flatten()
        self.whole = centre
        self.centre = centre[:, self.inputs]
        self.radius = radius[:, self.inputs]
        self.of: dict[Node, Taylor] = {}
        self.responses: dict[Node, ResponseInterval] = {}

    def enter(self, node: InputNode) -> None:
        batch, d = self.radius.shape
        entry = self.radius.new_zeros((batch, count_columns(d), node.size))
        entry[:, 0] = self.whole
        entry[:, 1 : 1 + d, self.inputs] = torch.diag_embed(self.radius)
        none = torch.zeros_like(self.whole)
        self.of[node] = Taylor(entry, none, none[:, :1], none)

    def through_map(self, node: Affine) -> None:
        sources = [self.of[source] for source in node.inputs]
        found = node.forward([source.columns for source in sources], shift=False)
        if node.shift is not None:
            found[:, 0] += node.shift
        terms = node.terms + len(sources)
        own = charge(node.forward_absolute([_mass(source) for source in sources]), TAYLOR_MAP, terms)
        near = node.forward_absolute([source.near for source in sources], shift=False)
        lengths = [
            (rows * s.far, norm * s.far)
            for (rows, norm), s in zip(node.norms(found.device), sources, strict=True)
        ]
        by_row, whole = (
            round_up(torch.stack(parts).sum(0), TAYLOR_ROW_NORMS, len(sources))
            for parts in zip(*lengths, strict=True)
        )
        near = torch.minimum(round_up(near, TAYLOR_REMAINDER, terms), by_row)
        near = round_up(near + own, TAYLOR_SUM)
        far = round_up(whole + length(own)[:, None], TAYLOR_SUM)
        self.of[node] = Taylor(found, near, torch.minimum(far, length(near)[:, None]), own)

    def through_function(self, node: Relaxed) -> None:
        y = self.of[node.inputs[0]]
        d = len(self.inputs)
        curve = _curve(node)
        assert curve is not None
        c = y.columns[:, 0]
        J = y.columns[:, 1 : 1 + d]
        Q = y.columns[:, 1 + d :]
        # The columns at which the rows of Q start, which are the coefficients of squares.
        starts = torch.arange(d, 0, -1).cumsum(0).sub(torch.arange(d, 0, -1)).tolist()
        sizes, squares = y.columns[:, 1:].abs(), Q[:, starts]
        columns = count_columns(d)
        linear, curved = round_up(sizes[:, :d].sum(1), TAYLOR_COLUMNS, columns), sizes[:, d:].sum(1)
        mass = round_up(c.abs() + linear + curved, TAYLOR_COLUMNS, columns)
        # v_i^2 lies in [0, 1], so the quadratic part lies within `half` of a quarter of the trace of Q.
        at = c + squares.sum(1) / 4
        half = curved - 3 / 4 * squares.abs().sum(1) + charge(mass, TAYLOR_COLUMNS, columns)
        reach = round_up(linear + half, TAYLOR_COLUMNS, columns)
        value, slope, second, stray = interpolate_parabola(curve, at, reach)
        # Let D = J v + q with q the quadratic part less its middle, |q| <= half. Then D^2 is (J v)^2 plus 2
        # (J v) q, which is bounded here, plus q^2 in [0, half^2].
        loose = stray + second.abs() * (2 * linear * half + half * half / 2)
        size = value.abs() + slope.abs() * (mass + at.abs()) + 4 * second.abs() * (linear + half).square()
        own = round_up(loose + charge(size, TAYLOR_FUNCTION), TAYLOR_OWN) + TINY
        found = torch.empty_like(y.columns)
        found[:, 0] = value + slope * (c - at) + second * (half * half / 2)
        torch.mul(y.columns[:, 1:], slope[:, None], out=found[:, 1:])
        curvature_rows = J * (2 * second)[:, None]
        for k, start in enumerate(starts):
            found[:, 1 + d + start : 1 + d + start + d - k].addcmul_(curvature_rows[:, k : k + 1], J[:, k:])
        distance = reach + y.near
        distance = round_up(distance, TAYLOR_COLUMNS, columns)
        ranges = node.relaxation.derivative_range((at - distance,), (at + distance,))
        assert ranges is not None
        ((flat, steep),) = ranges
        steepest = torch.maximum(flat.abs(), steep.abs())
        near = round_up(steepest * y.near + own, TAYLOR_RESPONSE)
        most = steepest.amax(1, keepdim=True)
        far = round_up(most * y.far + length(own)[:, None], TAYLOR_RESPONSE)
        self.of[node] = Taylor(
            found,
            near,
            torch.minimum(far, length(near)[:, None]),
            own,
            round_up(size, TAYLOR_COLUMNS, columns),
        )
        middle = flat / 2 + steep / 2
        width = round_up(steep / 2 - flat / 2, BOX_RADIUS) + charge(steepest, TAYLOR_RESPONSE)
        self.responses[node] = ResponseInterval(
            middle, width, most, sizes[:, :d] / linear.clamp_min(TINY)[:, None]
        )


def _mass(model: Taylor) -> Tensor:
    """(batch, size): at least the sum of the absolute values of all coefficients."""
    return (
        round_up(model.columns.abs().sum(1), TAYLOR_MASS, model.columns.shape[1])
        if model.mass is None
        else model.mass
    )


# A vector (batch, rows, size), and a bound (batch, rows, 1) of the distance of the true one from it.
Row = tuple[Tensor, Tensor]


class _Responses(Backward[Row]):
    """The backward pass that finds how rows of the output respond to the remainder of every node."""

    def __init__(self, graph: Graph, models: _Models) -> None:
        super().__init__(graph)
        self.models, self.share = models, torch.zeros_like(models.radius)

    def rest(self, rows: Tensor) -> Tensor:
        """Bound the remainder of rows (batch, rows, outputs) . output: (batch, rows)."""
        self.total = rows.new_zeros(rows.shape[:2])
        self.pending = {self.graph.output: (rows, rows.new_zeros((*rows.shape[:2], 1)))}
        self.walk(self.graph.output.place)
        return round_up(self.total, TAYLOR_REMAINDER, len(self.graph.nodes))

    def through_function(self, node: Relaxed, carried: Row) -> None:
        response = self.models.responses[node]
        lost = self._charge(node, carried)
        self.share += (response.share @ lost.sum(1)[..., None]).squeeze(-1)
        vector, away = carried
        spread = length(vector * response.half[:, None]) + charge(
            length(vector * response.middle[:, None]), TAYLOR_RESPONSE
        )
        ball = response.steepest[:, None] * away + spread[..., None]
        self._arrive(
            node.inputs[0],
            vector * response.middle[:, None],
            round_up(ball, TAYLOR_RESPONSE_SUM),
        )

    def through_map(self, node: Affine, carried: Row) -> None:
        self._charge(node, carried)
        vector, away = carried
        for source, part, (rows, norm) in zip(
            node.inputs, node.back(vector), node.norms(vector.device), strict=True
        ):
            # || |vector| |J| ||_2 is at most ||vector||_2 times the Frobenius norm of J.
            ball = norm * away
            if not node.exact_back:
                size = float(length(rows)) * length(vector)[..., None]
                ball = ball + charge(size, TAYLOR_ROW, node.size)
            self._arrive(source, part, round_up(ball, TAYLOR_RESPONSE_SUM) + TINY)

    def _charge(self, node: Node, carried: Row) -> Tensor:
        """Add the node's own remainder times the response; returns the parts (batch, rows, size)."""
        own, (vector, away) = self.models.of[node].own[:, None], carried
        lost = vector.abs() * own
        missed = lost.sum(-1) + away.squeeze(-1) * length(own)
        self.total += round_up(missed, TAYLOR_REMAINDER, node.size)
        return lost

    def _arrive(self, source: Node, vector: Tensor, away: Tensor) -> None:
        if source in self.pending:
            before, already = self.pending[source]
            missed = charge(length(before) + length(vector), TAYLOR_RESPONSE)[..., None]
            vector, away = before + vector, round_up(already + away, TAYLOR_RESPONSE) + missed
        self.pending[source] = vector, away


def _curve(node: Relaxed) -> SmoothCurve | None:
    """The activation as a smooth function of one argument, or None."""
    curves = node.relaxation.curves()
    one = curves[0] if curves is not None and len(curves) == 1 else None
    return one if isinstance(one, SmoothCurve) and one.given is None else None
