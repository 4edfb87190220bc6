"""Second-order bounds: every node as a quadratic function of the input, so that curvature cancels instead of adding up.

A model of a node y over a region x = centre + size v, v in a unit ball: for every v there are numbers r, |r_j| <= 1, one for each
remainder that has been given a name so far, with

    |y - (c + J v + R r + 1/2 v'Q v + v'C r)| <= rest.

Affine maps carry models exactly. A function of one argument is replaced by a parabola with free coefficients and its exact largest
deviation (`curves`), a product by its second-order part; what is left over is bounded and becomes the next remainder. Products of two
remainders are bounded at once, which keeps Q as small as the input and costs little. The margin that arrives is bounded by fixing,
round after round, every variable in which it is monotone at its worse end. Rounding: docs/rounding.md.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding import eigenvalue_bounds, trust_region
from holdfast.bounding.crown import IntermediateRefinement, Intervals, lower_bound
from holdfast.bounding.crown_with_fixed_bounds import Held
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes, Ends
from holdfast.bounding.quadratic_part import Change, Curvature, Pair, matvec
from holdfast.bounding.relax.base import Curve
from holdfast.bounding.relax.parabola import deviation, parabola
from holdfast.bounding.traversal import Forward, forward
from holdfast.memory_budget import bytes_told, free_bytes, numbers
from holdfast.region import Region
from holdfast.region.normed import NormFamily
from holdfast.region.norms import dual
from holdfast.rounding import TINY, gamma

MOST_OF_LINES = 2**22  # numbers in models of a network of ReLUs and their like
MOST_IN_BALLS = 2**25  # numbers in the curvature of a node, for one input, that trust regions are asked about
IN_BALLS_AT_ONCE, COPIES = (
    2**21,
    24,
)  # of these how many together on a CPU, and tensors of so many that are alive then
FEW, MOST_FOR_EIGENVALUES = (
    8,
    {"cpu": 100, "cuda": 1024},
)  # variables of a quadratic form whose eigenvalues are asked for
WIDE = 2.0  # half of an interval, beyond which curves are flat

Interval = tuple[Tensor, Tensor]  # its ends
Bends = dict[
    tuple[Node, int], Tensor
]  # (2, batch, n) for each curve: what is added to its first slope and bend, in units of its width


@dataclass(frozen=True)
class VariableBall:
    """Where v lives: |v_k| <= 1 for all k if q = 1; else the norm whose dual is the q-norm is at most one in each group."""

    q: float
    groups: Tensor  # (inputs,) the group of each input

    @property
    def box(self) -> bool:
        return self.q == 1

    def dual_norm(self, a: Tensor, groups: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """a (..., entries, ...) -> the same with one norm for each group in place of the entries, whose sum bounds |a . v|; the groups."""
        if self.box:
            return a.abs().sum(axis, keepdim=True), groups[:1]
        groups, place = groups.unique(return_inverse=True)
        axis %= a.dim()
        index = place.reshape([-1 if k == axis else 1 for k in range(a.dim())]).expand(a.shape)
        shape = [len(groups) if k == axis else size for k, size in enumerate(a.shape)]
        if a.numel() == 0:
            return a.new_zeros(shape), groups
        if math.isinf(self.q):
            return a.new_zeros(shape).scatter_reduce(axis, index, a.abs(), "amax"), groups
        tiny = torch.finfo(a.dtype).tiny * 2**20  # more than all powers that underflow
        largest = a.detach().abs().amax().clamp_min(tiny**0.5)
        powers = a.new_zeros(shape).scatter_add(axis, index, (a / largest).abs() ** self.q)
        return largest * (powers + tiny) ** (
            1 / self.q
        ), groups  # the root has no derivative at zero; a hair more bounds it too

    def linear(self, J: Tensor, inputs: Tensor) -> Tensor:
        """J (batch, n, d) -> (batch, n) >= |J v|."""
        return self.dual_norm(J, self.groups[inputs], -1)[0].sum(-1)

    def bound_quadratic(self, bent: Curvature, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """-> middle, width (batch, n): 1/2 v'Q v + v'C r is within the width of the middle."""
        if self.box:
            sums = bent.sums  # v_k^2 lies in [0, 1]
            width = sums.rows.sum(-1) / 2 - sums.squares.abs().sum(-1) / 4 + sums.cross_rows.sum(-1)
            return _narrow_by_eigenvalues(
                bent, sums.squares.sum(-1) / 4, width, torch.arange(bent.d, device=width.device)
            )
        groups = self.groups[inputs]

        def kernel(Q: Tensor, C: Tensor, rows: slice) -> tuple[Tensor, ...]:
            return self.dual_norm(Q, groups[: bent.d], -1)[0], self.dual_norm(C, groups[rows], -2)[0]

        ends = list(bent.reduce_slabs(kernel))
        labels = torch.cat([groups[rows].unique() for rows in bent.slabs])
        quadratic = self.dual_norm(torch.cat([q for q, _ in ends], -2), groups[: bent.d], -2)[0]
        crossed = self.dual_norm(torch.cat([c for _, c in ends], -2), labels, -2)[0]
        width = quadratic.sum((-1, -2)) / 2 + crossed.sum((-1, -2))
        middle = torch.zeros_like(width)
        # Balls of norms up to 2 lie in that of norm 2; those of larger ones do not.
        return (
            _narrow_by_eigenvalues(bent, middle, width, groups[: bent.d]) if self.q >= 2 else (middle, width)
        )


@dataclass(frozen=True)
class QuadraticModel:
    """One node for a batch of inputs; the words of this module say what the letters are."""

    c: Tensor  # (batch, n)
    J: Tensor  # (batch, n, d)
    R: Tensor  # (batch, n, m): the first m remainders
    bent: Curvature | None  # Q and C over the first of the inputs and of the remainders; None is zero
    rest: Tensor  # (batch, n)
    size: Tensor  # (batch, n), at least the sizes of all coefficients together, and of all that is added up to find them
    inputs: Tensor  # (d,): which inputs v holds, in the order in which they came
    ball: VariableBall = field(repr=False)
    curved: tuple[Tensor, Tensor] | None = (
        None  # middle, width (batch, n) of the quadratic part, where they follow from what it is made of
    )

    def each(self, change: Change) -> "QuadraticModel":
        """The same change to every coefficient."""
        bent = None if self.bent is None else self.bent.apply_map(change)
        return replace(self, c=change(self.c), J=change(self.J), R=change(self.R), bent=bent, curved=None)

    def extend_variables(self, inputs: Tensor, remainders: int) -> "QuadraticModel":
        """The same model over more inputs and remainders."""
        J, bent, d = self.J, self.bent, len(self.inputs)
        R = F.pad(self.R, (0, remainders - self.R.shape[-1]))
        if torch.equal(inputs[:d], self.inputs):
            return replace(self, J=F.pad(J, (0, len(inputs) - d)), R=R, inputs=inputs)
        same = self.inputs == inputs[:, None]
        place = torch.where(same.any(1), same.to(torch.uint8).argmax(1), d)  # what is padded is zero
        J = F.pad(J, (0, 1))[..., place]
        return replace(
            self, J=J, R=R, bent=None if bent is None else bent.reorder_inputs(place), inputs=inputs
        )

    def name_remainder(self, before: int) -> "QuadraticModel":
        """The rest becomes a remainder of its own, after all `before` that exist."""
        wide = self.extend_variables(self.inputs, before)
        R = torch.cat([wide.R, torch.diag_embed(self.rest)], -1)
        return replace(wide, R=R, rest=torch.zeros_like(self.rest), size=self.size + self.rest)

    def store_curvature(self) -> "QuadraticModel":
        """With its curvature computed, once for all who read it."""
        if self.bent is None or not self.bent.pairs:
            return self
        bent = Curvature(((None, self.bent.store_slabs()),))
        units = 2 * gamma(self.bent.inner + 2)
        size = (
            self.c.abs()
            + self.J.abs().sum(-1)
            + self.R.abs().sum(-1)
            + bent.sums.rows.sum(-1)
            + bent.sums.cross_rows.sum(-1)
        )
        return replace(
            self,
            bent=bent,
            rest=self.rest + units * (self.size + self.rest),
            size=size * (1 + gamma(4 * self.terms)),
        )

    @property
    def terms(self) -> int:
        """Of the sums that bound it, and of those in each coefficient."""
        d, m = self.J.shape[-1], self.R.shape[-1]
        return (d + 1) * (d + m + 1) + (0 if self.bent is None else self.bent.inner)

    @cached_property
    def parts(self) -> "Parts":
        linear, named = self.ball.linear(self.J, self.inputs), self.R.abs().sum(-1)
        middle = width = torch.zeros_like(self.c)
        if self.bent is not None:
            middle, width = self.curved or self.ball.bound_quadratic(self.bent, self.inputs)
        size = self.size + self.c.abs() + linear + named + 2 * width
        off = 8 * gamma(self.terms) * size
        return Parts(linear + off, named + off, middle, width + off, size + off)

    def least(self, rounds: int) -> Tensor:
        """-> (batch, n): the node is nowhere below. Monotone variables are looked for and fixed `rounds` times."""
        if self.bent is None or not self.ball.box:
            return self.range()[0]
        bent, d, m = self.bent.store_slabs(), self.bent.d, self.bent.m
        outside = self.J[..., d:].abs().sum(-1) + self.R[..., m:].abs().sum(-1)
        inside = _least_over_box(self.c, self.J[..., :d], self.R[..., :m], bent.Q, bent.C, rounds) - outside
        apart = self.c + self.parts.middle - self.parts.linear - self.parts.named - self.parts.width
        return (
            torch.maximum(inside, apart)
            - self.rest
            - 32 * gamma((rounds + 1) * self.terms) * self.parts.size
            - TINY
        )

    def range(self) -> tuple[Tensor, Tensor]:
        """Both bounds, variables that are monotone at first sight fixed: the same ones for both, at opposite ends."""
        p = self.parts
        if self.bent is None or not self.ball.box:
            reach = p.linear + p.named + p.width + self.rest + 8 * gamma(self.terms) * p.size + TINY
            low, high = self.c + p.middle - reach, self.c + p.middle + reach
            count = 0 if self.bent is None else self.bent.d * (self.bent.d + self.bent.m) * self.c.shape[1]
            if self.bent is None or self.ball.q != 2 or not 0 < count <= MOST_IN_BALLS:
                return low, high
            below, above = self._over_balls(self.bent)
            return torch.maximum(low, below), torch.minimum(high, above)
        bent, sums = self.bent, self.bent.sums
        J, R = self.J[..., : bent.d], self.R[..., : bent.m]
        outside = self.J[..., bent.d :].abs().sum(-1) + self.R[..., bent.m :].abs().sum(-1)
        fix, set_ = (J.abs() >= sums.rows + sums.cross_rows).to(J), (R.abs() >= sums.cross_columns).to(R)
        free, open_ = 1 - fix, 1 - set_
        v, r = J.detach().sign() * fix, R.detach().sign() * set_
        gradient, back, curved, crossed = bent.along(v, r, free, open_)
        # At the lower bound (v, r) = -(v, r), at the upper one the same without the sign.
        linear = (J * v).sum(-1) + (R * r).sum(-1)
        square = (v * gradient).sum(-1) / 2 + (r * back).sum(-1) / 2
        squares = sums.squares * free
        mixed = (curved * free).sum(-1) / 2 - squares.abs().sum(-1) / 2 + (crossed * free).sum(-1)
        missed = outside + mixed + self.rest + 64 * gamma(self.terms) * p.size + TINY
        low = _alone((J - gradient) * free, squares) - ((R - back) * open_).abs().sum(-1)
        high = _alone((J + gradient) * free, -squares) - ((R + back) * open_).abs().sum(-1)
        at, apart = (
            self.c + p.middle,
            p.linear + p.named + p.width + self.rest + 8 * gamma(self.terms) * p.size + TINY,
        )
        low, high = self.c - linear + square + low - missed, self.c + linear + square - high + missed
        return torch.maximum(low, at - apart), torch.minimum(high, at + apart)

    def _over_balls(self, bent: Curvature) -> tuple[Tensor, Tensor]:
        """Both bounds in the Euclidean norm, by trust regions, some elements at a time. A remainder is at its worse end where v cannot
        turn it, else largest."""
        step = max(
            1,
            numbers(self.c.device, IN_BALLS_AT_ONCE, COPIES)
            // max(1, len(self.c) * bent.d * (bent.d + bent.m)),
        )
        ends = [
            self._some_over_balls(bent, some)
            for some in torch.arange(self.c.shape[1], device=self.c.device).split(step)
        ]
        missed = self.rest + 32 * gamma(self.terms) * self.parts.size + TINY
        return torch.cat([low for low, _ in ends], 1) - missed, torch.cat(
            [high for _, high in ends], 1
        ) + missed

    def _some_over_balls(self, bent: Curvature, some: Tensor) -> tuple[Tensor, Tensor]:
        """some (k,) -> (batch, k) each, but for the rest and for rounding."""
        c, J, R = self.c[:, some], self.J[:, some], self.R[:, some]
        stored, d, groups = (
            bent.apply_map(lambda t: t[:, some]).store_slabs(),
            bent.d,
            self.ball.groups[self.inputs],
        )
        crossed = self.ball.dual_norm(stored.C, groups[:d], -2)[0].sum(-2)  # |C_j v| is no more
        sign = torch.where(R[..., : bent.m].abs() >= crossed, R[..., : bent.m].detach().sign(), 0)
        named = R.abs().sum(-1) + torch.where(sign == 0, crossed, 0).sum(-1)
        wide = J.shape[-1] - d
        turned, Q = F.pad(matvec(stored.C, sign), (0, wide)), F.pad(stored.Q, (0, wide, 0, wide))
        low, high = trust_region.least(
            torch.stack([c, -c]), torch.stack([J - turned, -J - turned]), torch.stack([Q, -Q]), groups
        )
        return low - named, named - high


@dataclass(frozen=True)
class Parts:
    """|J v| <= linear, |R r| <= named, the quadratic part within `width` of `middle`; size is at least all coefficients together."""

    linear: Tensor
    named: Tensor
    middle: Tensor
    width: Tensor
    size: Tensor


def _narrow_by_eigenvalues(
    bent: Curvature, middle: Tensor, width: Tensor, groups: Tensor
) -> tuple[Tensor, Tensor]:
    """Held to what eigenvalues say over |v_g| <= 1 in every group, where there are few enough variables for them. In training their share
    of the width is taken as given."""
    d, device = bent.d, width.device.type
    if not FEW <= d <= MOST_FOR_EIGENVALUES[device]:
        return middle, width
    ends = []
    step = max(1, numbers(width.device, IN_BALLS_AT_ONCE, COPIES) // max(1, len(width) * d * (d + bent.m)))
    with torch.no_grad():
        for some in torch.arange(width.shape[1], device=width.device).split(step):
            time_limit.check()
            form = bent.apply_map(lambda t, k=some: t[:, k]).store_slabs()  # type: ignore[misc]
            ends.append(eigenvalue_bounds.reach(form.Q, form.C, groups))
        low = torch.maximum(middle - width, torch.cat([low for low, _ in ends], 1))
        high = torch.minimum(middle + width, torch.cat([high for _, high in ends], 1))
        high = torch.maximum(low, high)  # they differ by rounding at most
        inner, share = low / 2 + high / 2, (high / 2 - low / 2) / width
    if not torch.is_grad_enabled():
        return inner, high / 2 - low / 2
    return inner + middle - middle.detach(), torch.where(width > 0, share, 1) * width


def _least_over_box(c: Tensor, J: Tensor, R: Tensor, Q: Tensor, C: Tensor, rounds: int) -> Tensor:
    """The smallest c + J v + R r + 1/2 v'Q v + v'C r over |v|, |r| <= 1, from below: exact in the variables that turn out monotone."""
    steep, cross = Q.abs(), C.abs()
    free, open_ = torch.ones_like(J), torch.ones_like(R)  # of v and of r
    for _ in range(rounds):
        fix = (J.abs() >= matvec(steep, free) + matvec(cross, open_)).to(J) * free
        set_ = (R.abs() >= matvec(cross.mT, free)).to(J) * open_
        v, r = -J.detach().sign() * fix, -R.detach().sign() * set_
        from_v, from_r = matvec(Q, v), matvec(C, r)
        c = c + (J * v).sum(-1) + (R * r).sum(-1) + (v * (from_v / 2 + from_r)).sum(-1)
        free, open_ = free - fix, open_ - set_
        J, R = (J + from_v + from_r) * free, (R + matvec(C.mT, v)) * open_
    squares = Q.diagonal(dim1=-2, dim2=-1) * free
    mixed = (
        (matvec(steep, free) * free).sum(-1) / 2
        - squares.abs().sum(-1) / 2
        + (matvec(cross, open_) * free).sum(-1)
    )
    return c + _alone(J, squares) - mixed - R.abs().sum(-1)


def _alone(J: Tensor, squares: Tensor) -> Tensor:
    """The smallest J v + squares v^2 / 2 over |v| <= 1, variable by variable, summed."""
    inside = squares > J.abs()  # the parabola has its least value between the ends
    return torch.where(inside, -J * J / torch.where(inside, 2 * squares, 1.0), squares / 2 - J.abs()).sum(-1)


def _chosen(
    curve: Curve, y: QuadraticModel, lower: Tensor, upper: Tensor, bends: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """-> at, slope, bend (batch, n) of the parabola slope D + bend D^2, D = y - at, that these coefficients stand for."""
    at = y.c + y.parts.middle
    # The first parabola strays by about the third power of the width: in these units a free coefficient moves it by a like amount.
    unit = ((upper - lower) / 2).detach().clamp(1e-3, WIDE)
    slope, bend = parabola(curve, lower, upper, at)
    return at, slope + bends[0] * unit.square(), bend + bends[1] * unit


def _along(curve: Curve, y: QuadraticModel, lower: Tensor, upper: Tensor, bends: Tensor) -> QuadraticModel:
    """f(y) for lower <= y <= upper: with D = y - at, a parabola in D; D^2 is (J v)^2 + 2 (J v)(R r) and what is bounded."""
    p = y.parts
    at, slope, bend = _chosen(curve, y, lower, upper, bends)
    least, most = deviation(curve, slope, bend, lower, upper, at)
    loose, line = p.width + y.rest, p.linear + p.named
    # |D| <= away, |D - (J v + R r)| <= loose: D^2 is at most loose (2 away - loose) above (J v + R r)^2, loose (2 reach - loose) below.
    away = torch.maximum(torch.minimum(_away(at, lower, upper), line + loose), loose)
    reach = torch.maximum(torch.minimum(line, away + loose), loose)
    c = (least + most) / 2 + bend * (p.named**2 / 2 + loose * (away - reach)) - slope * p.middle
    rest = (
        (most - least) / 2
        + slope.abs() * y.rest
        + bend.abs() * (p.named**2 / 2 + loose * (away + reach - loose))
    )
    size = (
        c.abs()
        + slope.abs() * (p.size + p.middle.abs())
        + 2 * bend.abs() * (line + loose) ** 2
        + most.abs()
        + least.abs()
    )
    steep, mine = slope[..., None], (y.J, y.R)
    square = Curvature(pairs=(Pair(bend, mine, mine),))
    bent = square if y.bent is None else y.bent.times(slope).plus(square)
    # Its quadratic part is slope times that of y, and bend times s^2 + 2 s t with s = J v and t = R r: least at s = -t. Such a form has one
    # eigenvalue or two, which say no more.
    shorter = torch.minimum(p.linear, p.named)
    low, high = -shorter * (2 * p.named - shorter), p.linear * (p.linear + 2 * p.named)
    curved = slope * p.middle + bend * (low + high) / 2, slope.abs() * p.width + bend.abs() * (high - low) / 2
    return QuadraticModel(
        c,
        steep * y.J,
        steep * y.R,
        bent,
        rest + gamma(16) * (size + rest) + TINY,
        size,
        y.inputs,
        y.ball,
        curved,
    )


def _product(a: QuadraticModel, z: QuadraticModel, a_values: Interval, z_values: Interval) -> QuadraticModel:
    """a z, exact to the second order; the true values of both lie between the ends."""
    p, q = a.parts, z.parts
    a_at, z_at = a.c + p.middle, z.c + q.middle
    inputs, remainders = _union(a.inputs, z.inputs), max(a.R.shape[-1], z.R.shape[-1])
    a, z = a.extend_variables(inputs, remainders), z.extend_variables(inputs, remainders)
    c = a_at * z_at - a_at * q.middle - z_at * p.middle
    a_reach, z_reach = p.linear + p.named, q.linear + q.named
    # a - a_at is its linear part and no more than the width beside it, and in all no more than `away`.
    a_away = torch.minimum(_away(a_at, *a_values) + a.rest, a_reach + p.width)
    z_away = torch.minimum(_away(z_at, *z_values) + z.rest, z_reach + q.width)
    rest = p.named * q.named + torch.minimum(
        a_reach * q.width + p.width * z_away, p.width * z_reach + q.width * a_away
    )
    rest = rest + a.rest * _away(0 * z_at, *z_values) + z.rest * (_away(0 * a_at, *a_values) + a.rest)
    size = c.abs() + 2 * (a_at.abs() + p.size) * (z_at.abs() + q.size)
    u, w = a_at[..., None], z_at[..., None]
    bent = Curvature(pairs=(Pair(torch.ones_like(c), (a.J, a.R), (z.J, z.R)),))
    for part, factor in ((z.bent, a_at), (a.bent, z_at)):
        bent = bent if part is None else bent.plus(part.times(factor))
    return QuadraticModel(
        c,
        u * z.J + w * a.J,
        u * z.R + w * a.R,
        bent,
        rest + gamma(16) * (size + rest) + TINY,
        size,
        inputs,
        a.ball,
    )


@dataclass(frozen=True)
class ModelStep:
    """A node with what it reads; for an affine one the map of that, which may be several nodes of the graph in one."""

    node: Node
    inputs: tuple[Node, ...]
    map: Affine | None = None
    names: bool = False  # what it leaves over becomes a remainder
    stores: bool = False  # its curvature is computed, for others to read


class Quadratic:
    """The second-order view of a graph: only what the output needs, moves joined with the maps they follow."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps = _steps(graph)
        self._each = _numbers(self.steps, graph.device)
        self.numbers = sum(self._each)  # stored for one input all of which may move
        self._unsuited, self._too_large = _why_unsuited(self.steps, self.numbers), _too_large(self.steps)

    @property
    def lack(self) -> str:
        """What such models would need that is not there, by size or by memory; empty where nothing is missing. Asked again each time, since
        a limit on memory may have changed."""
        if self._unsuited is not None or self._too_large:
            return self._too_large
        needed, room = self.bytes(training=False), free_bytes(self.graph.device)
        short = needed > room
        return f"one input needs {bytes_told(needed)}, and {bytes_told(room)} may be used" if short else ""

    @property
    def obstacle(self) -> str | None:
        """Why there are no such models: the network has nothing to gain by them, or something is missing."""
        return self._unsuited or (f"second-order models: {lack}" if (lack := self.lack) else None)

    def bytes(self, training: bool) -> int:
        """What one input takes: a few of the largest nodes at a time, in float64; in training all of them, in float32."""
        largest = max(self._each, default=0)
        return 8 * (6 * largest + 2**16) if not training else 8 * (self.numbers + 6 * largest + 2**16)

    def bends(self, batch: int, dtype: torch.dtype) -> Bends:
        """Free coefficients, all zero: the parabolas through the Chebyshev points."""
        found: Bends = {}
        for step in self.steps:
            if isinstance(step.node, Relaxed):
                for place, curve in enumerate(step.node.relaxation.curves() or ()):
                    if curve is not None:
                        found[step.node, place] = torch.zeros(
                            (2, batch, step.node.size), dtype=dtype, device=self.graph.device
                        )
        return found

    def least(
        self, region: Region, rows: Tensor, offset: Tensor, bends: Bends, boxes: Boxes | None = None
    ) -> Tensor:
        """rows (batch, rows, outputs) -> (batch, rows): row . output + offset is nowhere below. A proof in float64 only.

        boxes  ends that are known of the nodes, to which the ranges of models are held.
        """
        found = QuadraticPropagation(self.steps, region, bends, boxes)
        forward((step.node for step in self.steps), found.visit)
        return found.least({self.graph.output: rows}, offset)

    def with_planes(self, region: Region, rows: Tensor, offset: Tensor, bends: Bends) -> Tensor:
        """The same, hand in hand with CROWN: planes over the ranges of models, models over the ends of planes, and the better of both."""
        models, boxes, _ = self.within(region, bends, {})
        return torch.fmax(
            models.least({self.graph.output: rows}, offset), lower_bound(self.graph, boxes, rows, offset)
        )

    def within(
        self, region: Region, bends: Bends, within: Mapping[Node, Ends], kept: Collection[Node] = ()
    ) -> tuple["QuadraticPropagation", Boxes, Tensor]:
        """Models and boxes that hold at those points of the region at which the values of some nodes lie between given ends, and (batch,)
        bool: where there are no such points. The models of the output and of what is to be kept can be asked."""
        assert next(iter(bends.values())).dtype == torch.float64, (
            "planes must not stand on ranges that prove nothing"
        )
        models = QuadraticPropagation(self.steps, region, bends, boxes := Boxes(region), kept)
        self._propagate_both(models, boxes, held := Held(boxes, within))
        return models, boxes, held.empty

    def parabolas(self, region: Region, bends: Bends) -> Bends:
        """What the coefficients come to over a region: slope and bend of slope y + bend y^2, (2, batch, n) for each curve."""
        relaxed = [step for step in self.steps if isinstance(step.node, Relaxed)]
        models, _, _ = self.within(region, bends, {}, {source for step in relaxed for source in step.inputs})
        found: Bends = {}
        for step in relaxed:
            assert isinstance(step.node, Relaxed)
            for place, curve in enumerate(step.node.relaxation.curves() or ()):
                if curve is not None:
                    y, ends = models.models[step.inputs[place]], models.ranges[step.inputs[place]]
                    at, slope, bend = _chosen(curve, y, *ends, bends[step.node, place])
                    found[step.node, place] = torch.stack([slope - 2 * bend * at, bend])
        return found

    def boxes(self, region: Region, bends: Bends) -> Boxes:
        """Ends of all nodes by planes and models together."""
        boxes = Boxes(region)
        self._propagate_both(QuadraticPropagation(self.steps, region, bends, boxes), boxes, Held(boxes, {}))
        return boxes

    def _propagate_both(self, models: "QuadraticPropagation", boxes: Boxes, held: Held) -> None:
        """Both go forward, each from what the other knows."""
        intervals, refine = Intervals(self.graph, boxes), IntermediateRefinement(self.graph, boxes)

        def narrow(node: Node) -> None:
            if isinstance(node, Relaxed) and node in models.steps:
                for source, ends in zip(node.inputs, models.ranges_of(node), strict=True):
                    boxes.keep(source, *(end.double().reshape(-1, *source.shape) for end in ends))

        def carry(node: Node) -> None:
            if node in models.steps:
                models.visit(node)

        forward(self.graph.nodes, narrow, intervals.visit, held, refine, carry)


class QuadraticPropagation(Forward):
    """Carries models forward; those that nobody reads any more are let go."""

    def __init__(
        self,
        steps: list[ModelStep],
        region: Region,
        bends: Bends,
        boxes: Boxes | None,
        kept: Collection[Node] = (),
    ) -> None:
        self.region, self.bends, self.boxes, self.kept = region, bends, boxes, kept
        self.steps = {step.node: step for step in steps}
        self.last = {node: step.node for step in steps for node in step.inputs}
        self.models: dict[Node, QuadraticModel] = {}
        self.ranges: dict[Node, tuple[Tensor, Tensor]] = {}
        self.count = 0  # of remainders

    def enter(self, node: InputNode) -> None:
        self.models[node] = _entry(self.region, next(iter(self.bends.values())).dtype)

    def through_map(self, node: Affine) -> None:
        step = self.steps[node]
        assert step.map is not None
        self._keep(step, _affine(step.map, [self.models[s] for s in step.inputs]))

    def through_function(self, node: Relaxed) -> None:
        ranges, step = self.ranges_of(node), self.steps[node]
        self._keep(step, _apply_relaxation(node, [self.models[s] for s in step.inputs], ranges, self.bends))

    def ranges_of(self, node: Relaxed) -> list[tuple[Tensor, Tensor]]:
        """Of what a function reads."""
        for source in self.steps[node].inputs:
            if source not in self.ranges:
                self.ranges[source] = range_of(self.models[source], source, self.boxes)
        return [self.ranges[s] for s in self.steps[node].inputs]

    def least(self, rows: Mapping[Node, Tensor], offset: Tensor) -> Tensor:
        """rows (batch, rows, size) of some nodes -> (batch, rows): the sum of row . node, plus the offset, is nowhere below."""
        dtype = next(iter(self.bends.values())).dtype
        asked = [
            _apply_rows(self.models[node].store_curvature(), part.to(dtype)) for node, part in rows.items()
        ]
        inputs, remainders = reduce(_union, (a.inputs for a in asked)), max(a.R.shape[-1] for a in asked)
        total = reduce(_plus, (a.extend_variables(inputs, remainders) for a in asked))
        size = sum(a.size for a in asked) + offset.abs().to(dtype)
        return _charge_rounding(replace(total, c=total.c + offset.to(dtype), size=size), len(asked)).least(
            rounds=8
        )

    def _keep(self, step: ModelStep, found: QuadraticModel) -> None:
        if step.stores:
            found = found.store_curvature()
        if step.names:
            found = found.name_remainder(self.count)
            self.count += step.node.size
        self.models[step.node] = found
        for source in step.inputs:
            if self.last[source] is step.node and source not in self.kept:
                self.models.pop(source, None)


def _steps(graph: Graph) -> list[ModelStep]:
    joined: dict[Node, ModelStep] = {}
    for node in graph.nodes:
        if not isinstance(node, Affine):
            joined[node] = ModelStep(node, node.inputs)
            continue
        # A move takes rows of what it moves; an input that no row reads any more is dropped.
        before = joined[node.inputs[0]].map
        one = (node.after(before) if before is not None else None) or node
        joined[node] = ModelStep(node, one.inputs, one)
    needed, kept = {graph.output}, []
    for node in reversed(graph.nodes):
        if node in needed:
            kept.append(joined[node])
            needed.update(joined[node].inputs)
    steps = kept[::-1]
    readers: dict[Node, list[Node]] = {}
    for step in steps:
        for source in step.inputs:
            readers.setdefault(source, []).append(step.node)

    def joins_sum(node: Node) -> bool:
        """Its rest is added to others at once, so that one name serves them all."""
        reading = readers.get(node, [])
        return (
            isinstance(node, Relaxed)
            and len(reading) == 1
            and isinstance(reading[0], Affine)
            and reading[0].sums
        )

    def needs_own_remainder(step: ModelStep) -> bool:
        return (isinstance(step.node, Relaxed) and not joins_sum(step.node)) or any(
            joins_sum(source) for source in step.inputs
        )

    return [replace(s, names=needs_own_remainder(s), stores=needs_own_remainder(s)) for s in steps]


def _numbers(steps: list[ModelStep], device: torch.device) -> list[int]:
    """In the curvature of every node that stores it, for one input all of which may move."""
    reads: dict[Node, set[int]] = {}
    remainders, found = 0, []
    for step in steps:
        node = step.node
        if step.map is not None and step.map.moves and isinstance(step.inputs[0], InputNode):
            reads[node] = set(step.map.forward([torch.arange(step.inputs[0].size, device=device)]).tolist())
        elif isinstance(node, InputNode):
            reads[node] = set(range(node.size))
        else:
            reads[node] = set().union(*(reads[source] for source in step.inputs))
        if step.stores:
            found.append(node.size * len(reads[node]) * (len(reads[node]) + remainders))
        remainders += node.size if step.names else 0
    return found


def _why_unsuited(steps: list[ModelStep], numbers: int) -> str | None:
    """Why such models are no better here than linear bounds, or not known, whatever memory there is."""
    if not any(isinstance(s.node, Relaxed) for s in steps):
        return "the network is linear: planes are exact"
    for step in steps:
        node = step.node
        if isinstance(node, Relaxed) and node.relaxation.curves() is None:
            return f"{node.name}: {type(node.relaxation).__name__} has no second-order model"
    if numbers > MOST_OF_LINES and all(
        s.node.relaxation.sides() is not None for s in steps if isinstance(s.node, Relaxed)
    ):
        return (
            "all its functions are two lines each, which planes follow better than parabolas do at this size"
        )
    return None


def _too_large(steps: list[ModelStep]) -> str:
    """A map that cannot be kept as a matrix; empty where all can."""
    large = [step.node.name for step in steps if step.map is not None and not step.map.small]
    return f"{large[0]} is too large for them" if large else ""


def _entry(region: Region, dtype: torch.dtype) -> QuadraticModel:
    """x = c + J v: the box around the region, or for a smooth norm its balls."""
    if isinstance(region, NormFamily) and not math.isinf(region.p):
        like = region.group_features(region.centre)
        groups = torch.arange(like.shape[1], device=like.device)[:, None].expand(like.shape[1:]).flatten()
        centre, size, ball = (
            region.centre.double().flatten(1),
            region.spans().flatten(1),
            VariableBall(dual(region.p), groups),
        )
    else:
        lower, upper = (end.flatten(1) for end in region.enclosing_box())
        centre = lower / 2 + upper / 2
        size = (upper / 2 - lower / 2) * (1 + 4 * gamma(1)) + 2 * gamma(1) * torch.maximum(
            lower.abs(), upper.abs()
        )
        size = torch.where(lower == upper, 0, size)
        ball = VariableBall(1.0, torch.zeros(centre.shape[1], dtype=torch.long, device=centre.device))
    inputs = (size > 0).any(0).nonzero().flatten()
    centre, size = centre.to(dtype), size.to(dtype)
    J = torch.diag_embed(size)[..., inputs]
    none = torch.zeros_like(centre)
    return QuadraticModel(
        centre, J, J.new_zeros((*centre.shape, 0)), None, none, centre.abs() + size, inputs, ball
    )


def _affine(node: Affine, sources: list[QuadraticModel]) -> QuadraticModel:
    """The model of a map of the sources, exact but for rounding."""
    if node.moves:
        return _move_elements(node, sources[0])
    inputs = reduce(
        _union, (s.inputs for s in sorted(sources, key=lambda s: s.bent is None))
    )  # so that curvature stays as it lies
    remainders = max(s.R.shape[-1] for s in sources)
    total: QuadraticModel | None = None
    for k, source in enumerate(sources):
        part = source.extend_variables(inputs, remainders).each(lambda t, k=k: node.part(k, t, 1))  # type: ignore[misc]
        part = replace(part, rest=node.part(k, source.rest, 1, absolute=True))
        total = part if total is None else _plus(total, part)
    assert total is not None
    c = total.c if node.shift is None else total.c + node.shift.to(total.c)
    return _charge_rounding(
        replace(total, c=c, size=node.forward_absolute([s.size for s in sources])),
        sum(s.c.shape[1] for s in sources),
    )


def _move_elements(node: Affine, source: QuadraticModel) -> QuadraticModel:
    found = source.each(lambda t: node.part(0, t, 1))
    found = replace(found, rest=node.forward([source.rest]), size=node.forward([source.size]))
    if found.bent is None:  # a frame of the input: forget the inputs of the others
        read = (found.J != 0).any(0).any(0)
        return replace(found, J=found.J[..., read], inputs=found.inputs[read])
    return found


def _apply_rows(source: QuadraticModel, rows: Tensor) -> QuadraticModel:
    """rows (batch, rows, n) of a node."""
    part = source.each(lambda t: rows @ t if t.dim() > 2 else matvec(rows, t))
    rest, size = (matvec(rows.abs(), t) for t in (source.rest, source.size))
    return _charge_rounding(replace(part, rest=rest, size=size), source.c.shape[1])


def _charge_rounding(model: QuadraticModel, terms: int) -> QuadraticModel:
    """What sums of so many terms may have missed joins the rest."""
    units = gamma(2 * terms + 16)
    return replace(
        model,
        rest=model.rest * (1 + units) + 2 * units * model.size + TINY,
        size=model.size * (1 + units),
    )


def _plus(a: QuadraticModel, b: QuadraticModel) -> QuadraticModel:
    bent = b.bent if a.bent is None else a.bent.plus(b.bent)
    return replace(a, c=a.c + b.c, J=a.J + b.J, R=a.R + b.R, bent=bent, rest=a.rest + b.rest, curved=None)


def _union(a: Tensor, b: Tensor) -> Tensor:
    """Inputs in the order in which they came; of two orders that disagree the first."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    if torch.equal(longer[: len(shorter)], shorter):
        return longer
    return torch.cat([a, b[~torch.isin(b, a)]])


def range_of(model: QuadraticModel, node: Node, boxes: Boxes | None) -> tuple[Tensor, Tensor]:
    lower, upper = model.range()
    if boxes is not None:
        lower = torch.maximum(lower, boxes.lower[node].flatten(1).to(lower))
        upper = torch.minimum(upper, boxes.upper[node].flatten(1).to(upper))
    return lower, torch.maximum(lower, upper)


def _apply_relaxation(
    node: Relaxed, sources: list[QuadraticModel], ranges: list[tuple[Tensor, Tensor]], bends: Bends
) -> QuadraticModel:
    models, values = [], []
    curves = node.relaxation.curves() or ()
    for place, (curve, source, (lower, upper)) in enumerate(zip(curves, sources, ranges, strict=True)):
        ends = lower, upper
        if curve is not None:
            source = _along(curve, source, lower, upper, bends[node, place])
            ends = curve.function(lower), curve.function(upper)  # curves that enter products rise
        models.append(source)
        off = gamma(8) * torch.maximum(ends[0].abs(), ends[1].abs())
        values.append((ends[0] - off, ends[1] + off))
    if len(models) == 1:
        return models[0]
    (a, z), (a_values, z_values) = models, values
    return _product(a, z, a_values, z_values)


def _away(value: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """How far the ends are from a value, the farther of both."""
    return torch.maximum(upper - value, value - lower)
