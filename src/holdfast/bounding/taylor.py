"""Taylor models of the second order whose rest is one vector, measured in two ways: for networks of smooth functions with few inputs.

Over a box x = centre + radius v, |v_k| <= 1, every node is

    y = c + J v + sum over i <= j of P_ij v_i v_j + e,   |e_n| <= near_n for every element n, and ||e||_2 <= far.

`second_order` and `zonotope` name every remainder, so that each may cancel, and carry as many columns as there are neurons before. Here
there are (d + 1)(d + 2) / 2 of them for d inputs, and a model costs as much as asking the network at so many points. What is left over is
of the third order in the radius, so it may be bounded more coarsely: an affine map makes its length larger by the spectral norm at most,
where adding up absolute values, as intervals do, would let it grow by the sum of a row in every layer.

A function of one argument is replaced by a parabola beside it (`relax/parabola`), exact over the range of the model; that the argument
is e further away moves its value by no more than its steepest slope times e. Rounding: docs/rounding.md.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.bounding.curvature import Curvature, Stored
from holdfast.bounding.graph.graph import Affine, Entry, Graph, Node, Relaxed
from holdfast.bounding.relax.parabola import Smooth, deviation, parabola
from holdfast.bounding.second_order import Ball, Model
from holdfast.bounding.traversal import Forward, forward
from holdfast.rounding import TINY, gamma, length

CELLS = 6  # of the grid on which deviations are looked at: coarse and quick
ROUNDS = 8  # of looking for monotone variables of a model


@dataclass(frozen=True)
class Taylor:
    """One node over a batch of boxes; the words of this module say what the letters are."""

    columns: Tensor  # (batch, 1 + d + d (d + 1) / 2, size): c, then J, then P row by row
    near: Tensor  # (batch, size)
    far: Tensor  # (batch, 1)
    mass: Tensor  # (batch, size): at least the sizes of all coefficients together

    @staticmethod
    def of(columns: Tensor, near: Tensor, far: Tensor, mass: Tensor) -> "Taylor":
        """With the better of what both measures say of the length."""
        return Taylor(columns, near, torch.fmin(far, length(near)[:, None]), mass)


def obstacle(graph: Graph) -> str | None:
    """Why there are no such models of a graph, if there are none."""
    for node in graph.nodes:
        if isinstance(node, Affine) and not node.small:
            return f"{node.name}: too large for models"
        if isinstance(node, Relaxed) and _curve(node) is None:
            return f"{node.name}: {type(node.relaxation).__name__} is no smooth function of one argument"
    return None if any(isinstance(node, Relaxed) for node in graph.nodes) else "the network is linear: planes are exact"


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
    share: Tensor  # (batch, inputs): how much of what was left over at all functions is due to each input, in some unit


def below(graph: Graph, lower: Tensor, upper: Tensor, rows: Tensor) -> Below:
    """lower, upper (batch, inputs) of boxes, rows (batch, rows, outputs). `obstacle` must be None."""
    models = _Models(lower, upper)
    forward(graph.nodes, models.visit)
    found, inputs, (first, second) = models.of[graph.output], models.inputs, models.pairs
    flat = rows @ found.columns.mT  # (batch, rows, columns)
    size = (rows.abs() @ found.mass.unsqueeze(-1)).squeeze(-1)
    near, far = (rows.abs() @ found.near.unsqueeze(-1)).squeeze(-1), length(rows) * found.far
    rest = torch.fmin(near, far) * (1 + 4 * gamma(rows.shape[2])) + 8 * gamma(rows.shape[2]) * size + TINY
    d = len(inputs)
    c, J, P = flat[..., 0], flat[..., 1 : 1 + d], flat[..., 1 + d :]
    Q = flat.new_zeros((*c.shape, d, d))
    Q[..., first, second] = P
    Q = Q + Q.mT  # 1/2 v'Q v: twice the squares, and every other product on both sides
    none = c.new_zeros((*c.shape, 0))
    bent = Curvature(((None, Stored(Q, c.new_zeros((*c.shape, d, 0)))),))
    model = Model(c, J, none, bent, rest, size, inputs, Ball(1.0, torch.zeros_like(inputs)))
    slope, constant = _plane(model, models.centre, models.radius, graph.entry.size)
    return Below(model.least(ROUNDS), slope, constant, J.abs().sum(-1), rest, _spread(models.share, inputs, graph.entry.size))


def _plane(model: Model, centre: Tensor, radius: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """J v is (J / radius) (x - centre), but for the rounding of the quotient; the quadratic part is taken at its lowest."""
    parts, units = model.parts, 8 * gamma(model.terms)
    slope = torch.where(radius[:, None] > 0, model.J / radius[:, None], 0.0)
    at = slope * centre[:, None]
    moved = at.abs().sum(-1)
    constant = model.c + parts.middle - at.sum(-1) - parts.width - model.rest
    return _spread(slope, model.inputs, size), constant - units * (parts.size + moved + model.rest) - TINY


def _spread(values: Tensor, inputs: Tensor, size: int) -> Tensor:
    """Values of the inputs that move, (..., d) -> those of all, (..., size); zero for the others."""
    return values.new_zeros((*values.shape[:-1], size)).index_copy(-1, inputs, values)


class _Models(Forward):
    """Carries models forward."""

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        # Every x of the box is centre + radius v for some |v| <= 1: the radius is rounded up.
        centre, away = lower / 2 + upper / 2, torch.maximum(lower.abs(), upper.abs())
        radius = torch.where(lower == upper, 0.0, (upper / 2 - lower / 2) * (1 + 4 * gamma(1)) + 2 * gamma(1) * away)
        self.inputs = (radius > 0).any(0).nonzero().flatten()
        self.whole, self.centre, self.radius = centre, centre[:, self.inputs], radius[:, self.inputs]
        self.pairs = torch.triu_indices(len(self.inputs), len(self.inputs), device=lower.device).unbind(0)
        self.share = torch.zeros_like(self.radius)
        self.of: dict[Node, Taylor] = {}

    def enter(self, node: Entry) -> None:
        batch, d = self.radius.shape
        entry = self.radius.new_zeros((batch, columns(d), node.size))
        entry[:, 0] = self.whole
        entry[:, 1 : 1 + d, self.inputs] = torch.diag_embed(self.radius)
        none = torch.zeros_like(self.whole)
        self.of[node] = Taylor(entry, none, none[:, :1], entry.abs().sum(1))

    def through_map(self, node: Affine) -> None:
        sources = [self.of[source] for source in node.inputs]
        found = node.forward([source.columns for source in sources], shift=False)
        if node.shift is not None:
            found[:, 0] += node.shift
        units = gamma(node.terms + len(sources))
        missed = 4 * units * node.forward_absolute([source.mass for source in sources]) + TINY
        near = node.forward_absolute([source.near for source in sources], shift=False)
        lengths = [(rows * s.far, norm * s.far) for (rows, norm), s in zip(node.norms, sources, strict=True)]
        by_row, whole = (torch.stack(parts).sum(0) * (1 + 8 * gamma(len(sources))) for parts in zip(*lengths, strict=True))
        near = torch.fmin(near * (1 + 4 * units), by_row) + missed
        self.of[node] = Taylor.of(found, near, whole + length(missed)[:, None], _mass(found))

    def through_function(self, node: Relaxed) -> None:
        y, d = self.of[node.inputs[0]], len(self.inputs)
        curve, (first, second) = _curve(node), self.pairs
        assert curve is not None
        c, J, P = y.columns[:, 0], y.columns[:, 1 : 1 + d], y.columns[:, 1 + d :]
        squares, sizes, linear = P[:, first == second], P.abs().sum(1), J.abs().sum(1)
        # v_i^2 lies in [0, 1]: the quadratic part is within `half` of half the sum of the squares' coefficients.
        units = 8 * gamma(len(P[0]))
        at = c + squares.sum(1) / 2
        half = sizes - squares.abs().sum(1) / 2 + units * y.mass
        linear = linear * (1 + units)
        reach = (linear + half) * (1 + units)
        lower, upper = at - reach - units * at.abs(), at + reach + units * at.abs()
        slope, bend = parabola(curve, lower, upper, at)
        least, most = deviation(curve, slope, bend, lower, upper, at)
        steep = curve.sizes(lower - y.near, upper + y.near)[1]
        # With D = J v + the quadratic part less its middle, D^2 is (J v)^2 and what is bounded here: the last square lies in [0, half^2].
        c_new = (least / 2 + most / 2) + bend * (half * half / 2) + slope * (c - at)
        loose = (most / 2 - least / 2) + bend.abs() * (2 * linear * half + half * half / 2)
        size = slope.abs() * (y.mass + at.abs()) + 2 * bend.abs() * (linear + half).square() + least.abs() + most.abs()
        loose = loose * (1 + gamma(16)) + 4 * gamma(16) * size + TINY
        columns = torch.empty_like(y.columns)
        columns[:, 0] = c_new
        torch.mul(J, slope[:, None], out=columns[:, 1 : 1 + d])
        twice = torch.where(first == second, 1.0, 2.0)[:, None]
        torch.addcmul(P * slope[:, None], J[:, first] * J[:, second], bend[:, None] * twice, out=columns[:, 1 + d :])
        near = steep * y.near * (1 + 4 * gamma(1)) + loose
        steepest = steep.amax(1, keepdim=True) if isinstance(steep, Tensor) else steep
        far = (steepest * y.far + length(loose)[:, None]) * (1 + 4 * gamma(1))
        self.of[node] = Taylor.of(columns, near, far, _mass(columns))
        self.share += (J.abs() * (loose / linear.clamp_min(TINY))[:, None]).sum(2)


def _mass(columns: Tensor) -> Tensor:
    return columns.abs().sum(1) * (1 + 2 * gamma(columns.shape[1]))


def _curve(node: Relaxed) -> Smooth | None:
    """The function itself as one that is smooth, whatever it is given for."""
    curves = node.relaxation.curves()
    if curves is None or len(curves) != 1 or not isinstance(curves[0], Smooth) or curves[0].given is not None:
        return None
    return replace(curves[0], cells=CELLS)
