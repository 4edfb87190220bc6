"""Taylor models of the second order whose rest is one vector, measured in two ways: for networks of smooth functions with few inputs.

Over a box x = centre + radius v, |v_k| <= 1, every node is

    y = c + J v + 1/2 v'Q v + e,   |e_n| <= near_n for every element n, and ||e||_2 <= far.

`second_order` and `zonotope` name every remainder, so that each may cancel, and carry as many columns as there are neurons before. Here
there are (d + 1)(d + 2) / 2 of them for d inputs, and a model costs as much as asking the network at so many points. What is left over is
of the third order in the radius, so it may be bounded more coarsely: an affine map makes its length larger by the spectral norm at most,
where adding up absolute values, as intervals do, would let it grow by the sum of a row in every layer.

A function of one argument is replaced by the parabola through its Chebyshev points (`relax/parabola`) over the range of the model; that
the argument is e further away moves its value by some slope times e. So the rest of a node is the sum over all nodes before of what each
of them left over itself, times how the node answers to it. For the rows that are asked for, walking back says how they answer: a vector
that is known but for a ball around it. Rounding: docs/rounding.md.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.bounding.quadratic_models import QuadraticModel, VariableBall
from holdfast.bounding.quadratic_part import Curvature, Stored
from holdfast.bounding.relax.parabola import SmoothCurve, interpolate_parabola
from holdfast.bounding.traversal import Backward, Forward, forward
from holdfast.rounding import TINY, gamma, length

ROUNDS = 8  # of looking for monotone variables of a model
SOME = (torch.ones(1, dtype=torch.float64),)


@dataclass(frozen=True)
class Taylor:
    """One node over a batch of boxes; the words of this module say what the letters are."""

    columns: Tensor  # (batch, 1 + d + d (d + 1) / 2, size): c, J, and Q from its diagonal on, row by row
    near: Tensor  # (batch, size)
    far: Tensor  # (batch, 1)
    own: Tensor  # (batch, size): what the node itself added to the rest
    mass: Tensor | None = (
        None  # (batch, size): at least the sizes of all coefficients together, where a map may read them
    )


@dataclass(frozen=True)
class ResponseInterval:
    """How a function answers to a change of its argument: by a number within `half` of `middle`."""

    middle: Tensor  # (batch, size)
    half: Tensor
    steepest: Tensor  # (batch, 1): no slope is larger in size
    share: Tensor  # (batch, d, size): how much of its argument's linear part is due to each input


def obstacle(graph: Graph) -> str | None:
    """Why there are no such models of a graph, if there are none."""
    for node in graph.nodes:
        if isinstance(node, Affine) and not node.small:
            return f"{node.name}: too large for models"
        if isinstance(node, Relaxed) and (
            _curve(node) is None or node.relaxation.derivative_range(SOME, SOME) is None
        ):
            return f"{node.name}: {type(node.relaxation).__name__} is not known as a smooth function of one argument"
    return (
        None
        if any(isinstance(node, Relaxed) for node in graph.nodes)
        else "the network is linear: planes are exact"
    )


def columns(inputs: int) -> int:
    """Of a model over so many inputs."""
    return (inputs + 1) * (inputs + 2) // 2


@dataclass(frozen=True)
class Below:
    """What lies below rows of the output over each box: a model, and what it says at once."""

    least: Tensor  # (batch, rows): row . output is nowhere below; no number where nothing is known
    slope: Tensor  # (batch, rows, inputs): slope . x + constant is a plane below
    constant: Tensor  # (batch, rows)
    spread: Tensor  # (batch, rows): how far the linear part of the model reaches to either side
    rest: Tensor  # (batch, rows): and what it does not know
    share: Tensor  # (batch, inputs): how much of the rests is due to each input


def below(graph: Graph, lower: Tensor, upper: Tensor, rows: Tensor) -> Below:
    """lower, upper (batch, inputs) of boxes, rows (batch, rows, outputs). `obstacle` must be None."""
    models = _Models(lower, upper)
    forward(graph.nodes, models.visit)
    found, inputs, d = models.of[graph.output], models.inputs, len(models.inputs)
    flat = rows @ found.columns.mT  # (batch, rows, columns)
    size = (rows.abs() @ _mass(found)[..., None]).squeeze(-1)
    near, far = (rows.abs() @ found.near[..., None]).squeeze(-1), length(rows) * found.far
    walk = _Answers(graph, models)
    rest = torch.minimum(torch.minimum(near, far) * (1 + 4 * gamma(rows.shape[2])), walk.rest(rows))
    rest = rest + 8 * gamma(rows.shape[2]) * size + TINY
    Q = flat.new_zeros((*flat.shape[:2], d, d))
    first, second = torch.triu_indices(d, d, device=flat.device)
    Q[..., first, second] = Q[..., second, first] = flat[..., 1 + d :]
    c, J, none = flat[..., 0], flat[..., 1 : 1 + d], flat.new_zeros((*flat.shape[:2], 0))
    bent = Curvature(((None, Stored(Q, Q[..., :0])),))
    model = QuadraticModel(
        c,
        J,
        none,
        bent,
        rest,
        size,
        torch.arange(d, device=flat.device),
        VariableBall(1.0, torch.zeros_like(inputs)),
    )
    slope, constant = _plane(model, models.centre, models.radius)
    slope, share = (_scatter_inputs(values, inputs, graph.entry.size) for values in (slope, walk.share))
    return Below(model.least(ROUNDS), slope, constant, J.abs().sum(-1), rest, share)


def _plane(model: QuadraticModel, centre: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """J v is (J / radius) (x - centre), but for the rounding of the quotient; the quadratic part is taken at its lowest."""
    parts = model.parts
    slope = torch.where(radius[:, None] > 0, model.J / radius[:, None], 0.0)
    at = slope * centre[:, None]
    constant = model.c + parts.middle - at.sum(-1) - parts.width - model.rest
    return slope, constant - 8 * gamma(model.terms) * (parts.size + at.abs().sum(-1) + model.rest) - TINY


def _scatter_inputs(values: Tensor, inputs: Tensor, size: int) -> Tensor:
    """Values of the inputs that move, (..., d) -> those of all, (..., size); zero for the others."""
    return values.new_zeros((*values.shape[:-1], size)).index_copy(-1, inputs, values)


class _Models(Forward):
    """Carries models forward."""

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        # Every x of the box is centre + radius v for some |v| <= 1: the radius is rounded up.
        centre, away = lower / 2 + upper / 2, torch.maximum(lower.abs(), upper.abs())
        radius = torch.where(
            lower == upper, 0.0, (upper / 2 - lower / 2) * (1 + 4 * gamma(1)) + 2 * gamma(1) * away
        )
        self.inputs = (radius > 0).any(0).nonzero().flatten()
        self.whole, self.centre, self.radius = centre, centre[:, self.inputs], radius[:, self.inputs]
        self.of: dict[Node, Taylor] = {}
        self.answers: dict[Node, ResponseInterval] = {}

    def enter(self, node: InputNode) -> None:
        batch, d = self.radius.shape
        entry = self.radius.new_zeros((batch, columns(d), node.size))
        entry[:, 0] = self.whole
        entry[:, 1 : 1 + d, self.inputs] = torch.diag_embed(self.radius)
        none = torch.zeros_like(self.whole)
        self.of[node] = Taylor(entry, none, none[:, :1], none)

    def through_map(self, node: Affine) -> None:
        sources = [self.of[source] for source in node.inputs]
        found = node.forward([source.columns for source in sources], shift=False)
        if node.shift is not None:
            found[:, 0] += node.shift
        units = gamma(node.terms + len(sources))
        own = 4 * units * node.forward_absolute([_mass(source) for source in sources]) + TINY
        near = node.forward_absolute([source.near for source in sources], shift=False)
        lengths = [
            (rows * s.far, norm * s.far)
            for (rows, norm), s in zip(node.norms(found.device), sources, strict=True)
        ]
        by_row, whole = (
            torch.stack(parts).sum(0) * (1 + 8 * gamma(len(sources))) for parts in zip(*lengths, strict=True)
        )
        near = (torch.minimum(near * (1 + 4 * units), by_row) + own) * (1 + 2 * gamma(1))
        far = (whole + length(own)[:, None]) * (1 + 2 * gamma(1))
        self.of[node] = Taylor(found, near, torch.minimum(far, length(near)[:, None]), own)

    def through_function(self, node: Relaxed) -> None:
        y, d, curve = self.of[node.inputs[0]], len(self.inputs), _curve(node)
        assert curve is not None
        c, J, Q = y.columns[:, 0], y.columns[:, 1 : 1 + d], y.columns[:, 1 + d :]
        starts = (
            torch.arange(d, 0, -1).cumsum(0).sub(torch.arange(d, 0, -1)).tolist()
        )  # of the rows of Q, where the squares are
        sizes, squares = y.columns[:, 1:].abs(), Q[:, starts]
        units = 8 * gamma(columns(d))
        linear, curved = sizes[:, :d].sum(1) * (1 + units), sizes[:, d:].sum(1)
        mass = (c.abs() + linear + curved) * (1 + units)
        # v_i^2 lies in [0, 1], so that the quadratic part is within `half` of a quarter of the trace.
        at = c + squares.sum(1) / 4
        half = curved - 3 / 4 * squares.abs().sum(1) + units * mass
        reach = (linear + half) * (1 + units)
        value, slope, bend, stray = interpolate_parabola(curve, at, reach)
        # With D = J v + (the quadratic part less its middle), D^2 is (J v)^2 and what is bounded here: the last square is in [0, half^2].
        loose = stray + bend.abs() * (2 * linear * half + half * half / 2)
        size = value.abs() + slope.abs() * (mass + at.abs()) + 4 * bend.abs() * (linear + half).square()
        own = (loose + 4 * gamma(16) * size) * (1 + gamma(16)) + TINY
        found = torch.empty_like(y.columns)
        found[:, 0] = value + slope * (c - at) + bend * (half * half / 2)
        torch.mul(y.columns[:, 1:], slope[:, None], out=found[:, 1:])
        bent = J * (2 * bend)[:, None]
        for k, start in enumerate(starts):
            found[:, 1 + d + start : 1 + d + start + d - k].addcmul_(bent[:, k : k + 1], J[:, k:])
        away = reach + y.near
        ranges = node.relaxation.derivative_range((at - away * (1 + units),), (at + away * (1 + units),))
        assert ranges is not None
        ((flat, steep),) = ranges
        steepest = torch.maximum(flat.abs(), steep.abs())
        near = (steepest * y.near + own) * (1 + 4 * gamma(1))
        most = steepest.amax(1, keepdim=True)
        far = (most * y.far + length(own)[:, None]) * (1 + 4 * gamma(1))
        self.of[node] = Taylor(
            found, near, torch.minimum(far, length(near)[:, None]), own, size * (1 + units)
        )
        middle = flat / 2 + steep / 2
        width = (steep / 2 - flat / 2) * (1 + 4 * gamma(1)) + 4 * gamma(1) * steepest
        self.answers[node] = ResponseInterval(
            middle, width, most, sizes[:, :d] / linear.clamp_min(TINY)[:, None]
        )


def _mass(model: Taylor) -> Tensor:
    """(batch, size): at least the sizes of all coefficients together."""
    return (
        model.columns.abs().sum(1) * (1 + 2 * gamma(model.columns.shape[1]))
        if model.mass is None
        else model.mass
    )


Row = tuple[
    Tensor, Tensor
]  # a vector (batch, rows, size) and how far the true one may be from it (batch, rows, 1)


class _Answers(Backward[Row]):
    """How rows of the output answer to what every node left over."""

    def __init__(self, graph: Graph, models: _Models) -> None:
        super().__init__(graph)
        self.models, self.share = models, torch.zeros_like(models.radius)

    def rest(self, rows: Tensor) -> Tensor:
        """rows (batch, rows, outputs) -> (batch, rows): what they do not know of the output."""
        self.total = rows.new_zeros(rows.shape[:2])
        self.pending = {self.graph.output: (rows, rows.new_zeros((*rows.shape[:2], 1)))}
        self.walk(self.graph.output.place)
        return self.total * (1 + 4 * gamma(len(self.graph.nodes)))

    def through_function(self, node: Relaxed, carried: Row) -> None:
        answer = self.models.answers[node]
        lost = self._charge(node, carried)
        self.share += (answer.share @ lost.sum(1)[..., None]).squeeze(-1)
        vector, away = carried
        spread = (
            length(vector * answer.half[:, None])[..., None]
            + 4 * gamma(1) * length(vector * answer.middle[:, None])[..., None]
        )
        self._arrive(
            node.inputs[0],
            vector * answer.middle[:, None],
            (answer.steepest[:, None] * away + spread) * (1 + 8 * gamma(1)),
        )

    def through_map(self, node: Affine, carried: Row) -> None:
        self._charge(node, carried)
        vector, away = carried
        for source, part, (rows, norm) in zip(
            node.inputs, node.back(vector), node.norms(vector.device), strict=True
        ):
            # |vector| |J| is no longer than the vector times the Frobenius norm of J.
            missed = (
                0.0
                if node.exact_back
                else 4 * gamma(node.size) * float(length(rows)) * length(vector)[..., None]
            )
            self._arrive(source, part, (norm * away + missed) * (1 + 8 * gamma(1)) + TINY)

    def _charge(self, node: Node, carried: Row) -> Tensor:
        """What the node left over, as the rows answer to it; -> (batch, rows, size), the part of each element."""
        own, (vector, away) = self.models.of[node].own[:, None], carried
        lost = vector.abs() * own
        self.total += (lost.sum(-1) + away.squeeze(-1) * length(own)) * (1 + 4 * gamma(node.size))
        return lost

    def _arrive(self, source: Node, vector: Tensor, away: Tensor) -> None:
        if source in self.pending:
            before, already = self.pending[source]
            vector, away = (
                before + vector,
                (already + away) * (1 + 4 * gamma(1))
                + 4 * gamma(1) * (length(before) + length(vector))[..., None],
            )
        self.pending[source] = vector, away


def _curve(node: Relaxed) -> SmoothCurve | None:
    """The function as one that is smooth as it stands, of one argument."""
    curves = node.relaxation.curves()
    one = curves[0] if curves is not None and len(curves) == 1 else None
    return one if isinstance(one, SmoothCurve) and one.given is None else None
