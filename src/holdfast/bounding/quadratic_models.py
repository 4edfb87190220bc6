"""Quadratic (second-order Taylor) models: every node as a quadratic function of the input and of remainders.

Statement. Over a region x = centre + size v, v in a unit ball, every node y has a model: for every v there
are numbers r_j, |r_j| <= 1, one for each remainder that has been named and the same ones for all
nodes, with

    |y - (c + J v + R r + 1/2 v'Q v + v'C r)| <= rest.

Affine maps transform models exactly. An activation of one argument is replaced by a parabola with free
coefficients and its exact largest deviation (`relax/parabola`), a product of two nodes by its
second-order part. What is left over is bounded and becomes the next named remainder. Products of two
remainders are bounded at once, which keeps Q as small as the input and costs little. Named remainders may
cancel later, and so may curvature; interval and linear relaxations add both up.

The range of a model is bounded by the dual norm of its linear part plus a bound of its quadratic part, by
eigenvalues (`eigenvalue_bounds`) or trust regions (`trust_region`). The final bound over a box fixes, round
after round, every variable in which the model is monotone at its worse endpoint. Rounding: docs/rounding.md.

References: Makino, Berz, "Taylor models and other validated functional inclusion methods" (2003), for Taylor
models; Stolfi, de Figueiredo, "Self-validated numerical methods and applications" (1997), for named
remainders (noise symbols).

Assumption: the region is such an image of a unit ball, and every function has a parabola (`relax/parabola`)
or is a product.
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
from holdfast.bounding.crown_with_fixed_bounds import BoundConstraints, ZonotopePropagation
from holdfast.bounding.first_bounds import forms_for
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes, IntervalBounds
from holdfast.bounding.quadratic_part import Change, Curvature, Pair, matvec
from holdfast.bounding.relax.base import Curve
from holdfast.bounding.relax.parabola import deviation, parabola
from holdfast.bounding.traversal import Forward, forward
from holdfast.derivations import (
    MODEL_BALLS,
    MODEL_FUNCTION,
    MODEL_MAP,
    MODEL_PARTS,
    MODEL_RANGE,
    MODEL_ROUNDS,
    MODEL_SIZE,
    MODEL_STORED,
    MODEL_SUM_OF_PARTS,
    MODEL_VALUES,
)
from holdfast.memory_budget import elements_per_tensor, format_bytes, free_bytes
from holdfast.region import Region
from holdfast.region.norms import dual
from holdfast.rounding import centre_and_radius, charge, round_up

# The limits were chosen by hand, unless a comment says otherwise.
# Largest number of values in the models of a network with ReLU-like activations only. Linear bounds are
# better and cheaper for larger ones.
MAX_VALUES_RELU_LIKE = 2**22
# Largest number of values in a node's Q and C, for one input, with trust-region bounds.
MAX_VALUES_IN_BALLS = 2**25
BALL_BATCH_VALUES = 2**21  # Number of such values that are processed together on a CPU.
BALL_COPIES = 24  # Tensors of this many values that are alive meanwhile, for planning memory.
MIN_VARIABLES_FOR_EIGENVALUES = 8  # Eigenvalues gain little for quadratic forms of fewer variables.
# Eigenvalue bounds take too long for quadratic forms of more variables (on CPUs see "prover" in RESULTS.md).
MAX_VARIABLES_FOR_EIGENVALUES = {"cpu": 100, "cuda": 1024}
MAX_HALF_WIDTH = 2.0  # The unit of the free coefficients does not grow with wider intervals than this.

Interval = tuple[Tensor, Tensor]  # lower and upper bound
# For each curve (2, batch, n): added to the parabola's first and second coefficient, in units that depend on
# the half width of its interval.
ParabolaCoefficients = dict[tuple[Node, int], Tensor]


@dataclass(frozen=True)
class VariableBall:
    """The set of v: |v_k| <= 1 for all k if q = 1, else a unit ball in each group of variables.

    The norm of these balls is the dual of the q-norm.
    """

    q: float
    groups: Tensor  # (inputs,): the group of each input

    @property
    def box(self) -> bool:
        return self.q == 1

    def dual_norm(self, a: Tensor, groups: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """The dual norms of `a` along an axis.

        Returns a with that axis reduced to one norm for each group, so that their sum bounds |a . v|, and the
        groups.
        """
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
        tiny = torch.finfo(a.dtype).tiny * 2**20  # larger than any power that underflows
        largest = a.detach().abs().amax().clamp_min(tiny**0.5)
        powers = a.new_zeros(shape).scatter_add(axis, index, (a / largest).abs() ** self.q)
        # `tiny` keeps the derivative of the root finite at zero; the norm only grows by it.
        return largest * (powers + tiny) ** (1 / self.q), groups

    def linear(self, J: Tensor, inputs: Tensor) -> Tensor:
        """An upper bound (batch, n) of |J v|, for J (batch, n, d)."""
        return self.dual_norm(J, self.groups[inputs], -1)[0].sum(-1)

    def bound_quadratic(self, curvature: Curvature, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """middle, width (batch, n): 1/2 v'Q v + v'C r is within `width` of `middle`."""
        if self.box:
            sums = curvature.sums  # v_k^2 lies in [0, 1]
            width = sums.rows.sum(-1) / 2 - sums.squares.abs().sum(-1) / 4 + sums.cross_rows.sum(-1)
            return _narrow_by_eigenvalues(
                curvature, sums.squares.sum(-1) / 4, width, torch.arange(curvature.d, device=width.device)
            )
        groups = self.groups[inputs]

        def kernel(Q: Tensor, C: Tensor, rows: slice) -> tuple[Tensor, ...]:
            return self.dual_norm(Q, groups[: curvature.d], -1)[0], self.dual_norm(C, groups[rows], -2)[0]

        ends = list(curvature.reduce_slabs(kernel))
        labels = torch.cat([groups[rows].unique() for rows in curvature.slabs])
        quadratic = self.dual_norm(torch.cat([q for q, _ in ends], -2), groups[: curvature.d], -2)[0]
        crossed = self.dual_norm(torch.cat([c for _, c in ends], -2), labels, -2)[0]
        width = quadratic.sum((-1, -2)) / 2 + crossed.sum((-1, -2))
        middle = torch.zeros_like(width)
        # Unit balls of norms p <= 2 lie in the Euclidean ball; those of larger p do not.
        return (
            _narrow_by_eigenvalues(curvature, middle, width, groups[: curvature.d])
            if self.q >= 2
            else (middle, width)
        )


@dataclass(frozen=True)
class QuadraticModel:
    """The model of one node for a batch of inputs, in the notation of the module."""

    c: Tensor  # (batch, n)
    J: Tensor  # (batch, n, d)
    R: Tensor  # (batch, n, m), over the first m remainders
    curvature: Curvature | None  # Q and C, over the first inputs and remainders; None: zero
    rest: Tensor  # (batch, n)
    size: Tensor  # (batch, n): at least the sum of |coefficients|, and of all terms they were computed from
    inputs: Tensor  # (d,): indices of the inputs in v, in order of appearance
    ball: VariableBall = field(repr=False)
    # middle, width (batch, n) of the quadratic part, where they are known from its factors
    curved: tuple[Tensor, Tensor] | None = None

    def each(self, change: Change) -> "QuadraticModel":
        """Apply a linear map of the elements to every coefficient."""
        curvature = None if self.curvature is None else self.curvature.apply_map(change)
        return replace(
            self, c=change(self.c), J=change(self.J), R=change(self.R), curvature=curvature, curved=None
        )

    def extend_variables(self, inputs: Tensor, remainders: int) -> "QuadraticModel":
        """The same model over more inputs and remainders."""
        J = self.J
        curvature = self.curvature
        d = len(self.inputs)
        R = F.pad(self.R, (0, remainders - self.R.shape[-1]))
        if torch.equal(inputs[:d], self.inputs):
            return replace(self, J=F.pad(J, (0, len(inputs) - d)), R=R, inputs=inputs)
        same = self.inputs == inputs[:, None]
        place = torch.where(same.any(1), same.to(torch.uint8).argmax(1), d)  # index d selects the padded zero
        J = F.pad(J, (0, 1))[..., place]
        return replace(
            self,
            J=J,
            R=R,
            curvature=None if curvature is None else curvature.reorder_inputs(place),
            inputs=inputs,
        )

    def name_remainder(self, before: int) -> "QuadraticModel":
        """Turn the rest into named remainders, after all `before` that exist."""
        wide = self.extend_variables(self.inputs, before)
        R = torch.cat([wide.R, torch.diag_embed(self.rest)], -1)
        return replace(wide, R=R, rest=torch.zeros_like(self.rest), size=self.size + self.rest)

    def store_curvature(self) -> "QuadraticModel":
        """A copy with its quadratic part computed, for all nodes that read it."""
        if self.curvature is None or not self.curvature.pairs:
            return self
        curvature = Curvature(((None, self.curvature.store_slabs()),))
        size = (
            self.c.abs()
            + self.J.abs().sum(-1)
            + self.R.abs().sum(-1)
            + curvature.sums.rows.sum(-1)
            + curvature.sums.cross_rows.sum(-1)
        )
        return replace(
            self,
            curvature=curvature,
            rest=self.rest + charge(self.size + self.rest, MODEL_STORED, self.curvature.inner),
            size=round_up(size, MODEL_SIZE, self.terms),
        )

    @property
    def terms(self) -> int:
        """An upper bound of the number of terms in the sums for its coefficients and its bounds."""
        d, m = self.J.shape[-1], self.R.shape[-1]
        return (d + 1) * (d + m + 1) + (0 if self.curvature is None else self.curvature.inner)

    @cached_property
    def parts(self) -> "ModelPartBounds":
        linear, named = self.ball.linear(self.J, self.inputs), self.R.abs().sum(-1)
        middle = width = torch.zeros_like(self.c)
        if self.curvature is not None:
            middle, width = self.curved or self.ball.bound_quadratic(self.curvature, self.inputs)
        size = self.size + self.c.abs() + linear + named + 2 * width
        off = charge(size, MODEL_PARTS, self.terms)
        return ModelPartBounds(linear + off, named + off, middle, width + off, size + off)

    def least(self, rounds: int) -> Tensor:
        """Lower bounds (batch, n) of the node. Over boxes, `rounds` rounds fix monotone variables."""
        if self.curvature is None or not self.ball.box:
            return self.range()[0]
        curvature = self.curvature.store_slabs()
        d = self.curvature.d
        m = self.curvature.m
        outside = self.J[..., d:].abs().sum(-1) + self.R[..., m:].abs().sum(-1)
        inside = (
            _least_over_box(self.c, self.J[..., :d], self.R[..., :m], curvature.Q, curvature.C, rounds)
            - outside
        )
        apart = self.c + self.parts.middle - self.parts.linear - self.parts.named - self.parts.width
        return (
            torch.maximum(inside, apart)
            - self.rest
            - charge(self.parts.size, MODEL_ROUNDS, (rounds + 1) * self.terms)
        )

    def range(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of the node.

        Over boxes, variables in which the model is monotone are fixed: the same ones for both bounds, at
        opposite endpoints.
        """
        p = self.parts
        if self.curvature is None or not self.ball.box:
            reach = p.linear + p.named + p.width + self.rest + charge(p.size, MODEL_SUM_OF_PARTS, self.terms)
            low, high = self.c + p.middle - reach, self.c + p.middle + reach
            count = (
                0
                if self.curvature is None
                else self.curvature.d * (self.curvature.d + self.curvature.m) * self.c.shape[1]
            )
            if self.curvature is None or self.ball.q != 2 or not 0 < count <= MAX_VALUES_IN_BALLS:
                return low, high
            below, above = self._over_balls(self.curvature)
            return torch.maximum(low, below), torch.minimum(high, above)
        curvature, sums = self.curvature, self.curvature.sums
        J, R = self.J[..., : curvature.d], self.R[..., : curvature.m]
        outside = self.J[..., curvature.d :].abs().sum(-1) + self.R[..., curvature.m :].abs().sum(-1)
        fix, set_ = (J.abs() >= sums.rows + sums.cross_rows).to(J), (R.abs() >= sums.cross_columns).to(R)
        free, open_ = 1 - fix, 1 - set_
        v, r = J.detach().sign() * fix, R.detach().sign() * set_
        gradient, back, curved, crossed = curvature.along(v, r, free, open_)
        # The fixed variables are -(v, r) at the lower bound and (v, r) at the upper one.
        linear = (J * v).sum(-1) + (R * r).sum(-1)
        square = (v * gradient).sum(-1) / 2 + (r * back).sum(-1) / 2
        squares = sums.squares * free
        mixed = (curved * free).sum(-1) / 2 - squares.abs().sum(-1) / 2 + (crossed * free).sum(-1)
        missed = outside + mixed + self.rest + charge(p.size, MODEL_RANGE, self.terms)
        low = _separable_minimum((J - gradient) * free, squares) - ((R - back) * open_).abs().sum(-1)
        high = _separable_minimum((J + gradient) * free, -squares) - ((R + back) * open_).abs().sum(-1)
        at = self.c + p.middle
        apart = p.linear + p.named + p.width + self.rest + charge(p.size, MODEL_SUM_OF_PARTS, self.terms)
        low, high = self.c - linear + square + low - missed, self.c + linear + square - high + missed
        return torch.maximum(low, at - apart), torch.minimum(high, at + apart)

    def _over_balls(self, curvature: Curvature) -> tuple[Tensor, Tensor]:
        """Both bounds in the Euclidean norm, by trust regions, for some elements at a time.

        A remainder is fixed at its worse endpoint where v cannot change its sign; otherwise its product is
        bounded by its size.
        """
        step = max(
            1,
            elements_per_tensor(self.c.device, BALL_BATCH_VALUES, BALL_COPIES)
            // max(1, len(self.c) * curvature.d * (curvature.d + curvature.m)),
        )
        ends = [
            self._some_over_balls(curvature, some)
            for some in torch.arange(self.c.shape[1], device=self.c.device).split(step)
        ]
        missed = self.rest + charge(self.parts.size, MODEL_BALLS, self.terms)
        return torch.cat([low for low, _ in ends], 1) - missed, torch.cat(
            [high for _, high in ends], 1
        ) + missed

    def _some_over_balls(self, curvature: Curvature, some: Tensor) -> tuple[Tensor, Tensor]:
        """some (k,) -> (batch, k) each, without the rest and rounding errors."""
        c = self.c[:, some]
        J = self.J[:, some]
        R = self.R[:, some]
        stored = curvature.apply_map(lambda t: t[:, some]).store_slabs()
        d = curvature.d
        groups = self.ball.groups[self.inputs]
        crossed = self.ball.dual_norm(stored.C, groups[:d], -2)[0].sum(-2)  # at least |C_j'v|
        sign = torch.where(R[..., : curvature.m].abs() >= crossed, R[..., : curvature.m].detach().sign(), 0)
        named = R.abs().sum(-1) + torch.where(sign == 0, crossed, 0).sum(-1)
        wide = J.shape[-1] - d
        turned, Q = F.pad(matvec(stored.C, sign), (0, wide)), F.pad(stored.Q, (0, wide, 0, wide))
        low, high = trust_region.lower_bound_over_balls(
            torch.stack([c, -c]), torch.stack([J - turned, -J - turned]), torch.stack([Q, -Q]), groups
        )
        return low - named, named - high


@dataclass(frozen=True)
class ModelPartBounds:
    """Bounds of the parts of a model.

    |J v| <= linear, |R r| <= named, and the quadratic part is within `width` of `middle`; size is at least
    the sum of all |coefficients|.
    """

    linear: Tensor
    named: Tensor
    middle: Tensor
    width: Tensor
    size: Tensor


def _narrow_by_eigenvalues(
    curvature: Curvature, middle: Tensor, width: Tensor, groups: Tensor
) -> tuple[Tensor, Tensor]:
    """Intersect with eigenvalue bounds over |v_g| <= 1 in every group, for suitable numbers of variables.

    In training, the ratio by which they narrow the width is treated as a constant.
    """
    d, device = curvature.d, width.device.type
    if not MIN_VARIABLES_FOR_EIGENVALUES <= d <= MAX_VARIABLES_FOR_EIGENVALUES[device]:
        return middle, width
    ends = []
    step = max(
        1,
        elements_per_tensor(width.device, BALL_BATCH_VALUES, BALL_COPIES)
        // max(1, len(width) * d * (d + curvature.m)),
    )
    with torch.no_grad():
        for some in torch.arange(width.shape[1], device=width.device).split(step):
            time_limit.raise_if_expired()
            form = curvature.apply_map(lambda t, k=some: t[:, k]).store_slabs()  # type: ignore[misc]
            ends.append(eigenvalue_bounds.bound_quadratic_form(form.Q, form.C, groups))
        low = torch.maximum(middle - width, torch.cat([low for low, _ in ends], 1))
        high = torch.minimum(middle + width, torch.cat([high for _, high in ends], 1))
        high = torch.maximum(low, high)  # they can cross by rounding errors only
        inner, share = low / 2 + high / 2, (high / 2 - low / 2) / width
    if not torch.is_grad_enabled():
        return inner, high / 2 - low / 2
    return inner + middle - middle.detach(), torch.where(width > 0, share, 1) * width


def _least_over_box(c: Tensor, J: Tensor, R: Tensor, Q: Tensor, C: Tensor, rounds: int) -> Tensor:
    """A lower bound of c + J v + R r + 1/2 v'Q v + v'C r over |v|, |r| <= 1.

    It is exact in the variables that turn out to be monotone; each round fixes those and updates the others'
    slopes.
    """
    steep, cross = Q.abs(), C.abs()
    free, open_ = torch.ones_like(J), torch.ones_like(R)  # one for variables that are not fixed
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
    return c + _separable_minimum(J, squares) - mixed - R.abs().sum(-1)


def _separable_minimum(J: Tensor, squares: Tensor) -> Tensor:
    """The minimum of J v + squares v^2 / 2 over |v| <= 1, variable by variable, summed."""
    inside = squares > J.abs()  # the vertex of the parabola lies inside the interval
    return torch.where(inside, -J * J / torch.where(inside, 2 * squares, 1.0), squares / 2 - J.abs()).sum(-1)


def _free_parabola(
    curve: Curve, y: QuadraticModel, lower: Tensor, upper: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """at, slope, second (batch, n): the parabola slope D + second D^2 with D = y - at."""
    at = y.c + y.parts.middle
    # The deviation of the Chebyshev parabola is of third order in the width: in these units a free
    # coefficient changes it by a similar amount.
    unit = ((upper - lower) / 2).detach().clamp(1e-3, MAX_HALF_WIDTH)
    slope, second = parabola(curve, lower, upper, at)
    return at, slope + coefficients[0] * unit.square(), second + coefficients[1] * unit


def _apply_curve(
    curve: Curve, y: QuadraticModel, lower: Tensor, upper: Tensor, coefficients: Tensor
) -> QuadraticModel:
    """The model of f(y) for lower <= y <= upper: a parabola in D = y - at plus its deviation from f.

    D^2 is replaced by (J v)^2 + 2 (J v)(R r) and bounds of the other terms.
    """
    p = y.parts
    at, slope, second = _free_parabola(curve, y, lower, upper, coefficients)
    least, most = deviation(curve, slope, second, lower, upper, at)
    loose, line = p.width + y.rest, p.linear + p.named
    # |D| <= away and |D - (J v + R r)| <= loose, so D^2 exceeds (J v + R r)^2 by at most loose (2 away -
    # loose), and is smaller by at most loose (2 reach - loose).
    away = torch.maximum(torch.minimum(_max_distance(at, lower, upper), line + loose), loose)
    reach = torch.maximum(torch.minimum(line, away + loose), loose)
    c = (least + most) / 2 + second * (p.named**2 / 2 + loose * (away - reach)) - slope * p.middle
    rest = (
        (most - least) / 2
        + slope.abs() * y.rest
        + second.abs() * (p.named**2 / 2 + loose * (away + reach - loose))
    )
    size = (
        c.abs()
        + slope.abs() * (p.size + p.middle.abs())
        + 2 * second.abs() * (line + loose) ** 2
        + most.abs()
        + least.abs()
    )
    steep, mine = slope[..., None], (y.J, y.R)
    square = Curvature(pairs=(Pair(second, mine, mine),))
    curvature = square if y.curvature is None else y.curvature.times(slope).plus(square)
    # The quadratic part is slope times that of y, plus second times (s^2 + 2 s t) with s = J v and t = R r,
    # which is least at s = -t. Eigenvalues would not improve its bounds, since such a form has at most two.
    shorter = torch.minimum(p.linear, p.named)
    low, high = -shorter * (2 * p.named - shorter), p.linear * (p.linear + 2 * p.named)
    curved = (
        slope * p.middle + second * (low + high) / 2,
        slope.abs() * p.width + second.abs() * (high - low) / 2,
    )
    return QuadraticModel(
        c,
        steep * y.J,
        steep * y.R,
        curvature,
        rest + charge(size + rest, MODEL_FUNCTION),
        size,
        y.inputs,
        y.ball,
        curved,
    )


def _product(a: QuadraticModel, z: QuadraticModel, a_values: Interval, z_values: Interval) -> QuadraticModel:
    """The model of a z, exact to second order. `a_values` and `z_values` bound the true values of both."""
    p, q = a.parts, z.parts
    a_at, z_at = a.c + p.middle, z.c + q.middle
    inputs, remainders = _union(a.inputs, z.inputs), max(a.R.shape[-1], z.R.shape[-1])
    a, z = a.extend_variables(inputs, remainders), z.extend_variables(inputs, remainders)
    c = a_at * z_at - a_at * q.middle - z_at * p.middle
    a_reach, z_reach = p.linear + p.named, q.linear + q.named
    # a - a_at is within the width of its linear part, and |a - a_at| <= a_away.
    a_away = torch.minimum(_max_distance(a_at, *a_values) + a.rest, a_reach + p.width)
    z_away = torch.minimum(_max_distance(z_at, *z_values) + z.rest, z_reach + q.width)
    rest = p.named * q.named + torch.minimum(
        a_reach * q.width + p.width * z_away, p.width * z_reach + q.width * a_away
    )
    rest = (
        rest
        + a.rest * _max_distance(0 * z_at, *z_values)
        + z.rest * (_max_distance(0 * a_at, *a_values) + a.rest)
    )
    size = c.abs() + 2 * (a_at.abs() + p.size) * (z_at.abs() + q.size)
    u, w = a_at[..., None], z_at[..., None]
    curvature = Curvature(pairs=(Pair(torch.ones_like(c), (a.J, a.R), (z.J, z.R)),))
    for part, factor in ((z.curvature, a_at), (a.curvature, z_at)):
        curvature = curvature if part is None else curvature.plus(part.times(factor))
    return QuadraticModel(
        c,
        u * z.J + w * a.J,
        u * z.R + w * a.R,
        curvature,
        rest + charge(size + rest, MODEL_FUNCTION),
        size,
        inputs,
        a.ball,
    )


@dataclass(frozen=True)
class ModelStep:
    """A node with its inputs; for an affine node the map, which may combine several nodes of the graph."""

    node: Node
    inputs: tuple[Node, ...]
    map: Affine | None = None
    names: bool = False  # its rest becomes named remainders
    stores: bool = False  # its quadratic part is computed and stored


class Quadratic:
    """The quadratic models of a graph, for the nodes that the output needs.

    Selections of elements are merged into the affine maps before them.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps = _steps(graph)
        self._each = _numbers(self.steps, graph.device)
        self.numbers = sum(self._each)  # stored values for one input with all elements perturbed
        self._unsuited, self._too_large = _why_unsuited(self.steps, self.numbers), _too_large(self.steps)

    @property
    def missing_requirement(self) -> str:
        """What is missing for such models, memory or small enough maps; empty if nothing is.

        Evaluated at each access, since a memory limit may have changed.
        """
        if self._unsuited is not None or self._too_large:
            return self._too_large
        needed, available = self.bytes(training=False), free_bytes(self.graph.device)
        short = needed > available
        return (
            f"one input needs {format_bytes(needed)}, and {format_bytes(available)} may be used"
            if short
            else ""
        )

    @property
    def obstacle(self) -> str | None:
        """Why there are no such models: they do not apply to the network, or something is missing."""
        return self._unsuited or (
            f"second-order models: {lack}" if (lack := self.missing_requirement) else None
        )

    def bytes(self, training: bool) -> int:
        """The memory for one input: the largest nodes in float64; in training, all nodes in float32."""
        largest = max(self._each, default=0)
        return 8 * (6 * largest + 2**16) if not training else 8 * (self.numbers + 6 * largest + 2**16)

    def zero_coefficients(self, batch: int, dtype: torch.dtype) -> ParabolaCoefficients:
        """Free coefficients, all zero: the parabolas through the Chebyshev points."""
        found: ParabolaCoefficients = {}
        for step in self.steps:
            if isinstance(step.node, Relaxed):
                for place, curve in enumerate(step.node.relaxation.curves() or ()):
                    if curve is not None:
                        found[step.node, place] = torch.zeros(
                            (2, batch, step.node.size), dtype=dtype, device=self.graph.device
                        )
        return found

    def least(
        self,
        region: Region,
        rows: Tensor,
        offset: Tensor,
        coefficients: ParabolaCoefficients,
        boxes: Boxes | None = None,
    ) -> Tensor:
        """Lower bounds (batch, rows) of rows . output + offset; a proof in float64 only.

        Args:
            rows: (batch, rows, outputs).
            boxes: intermediate bounds, with which the ranges of the models are intersected.
        """
        found = QuadraticPropagation(self.steps, region, coefficients, boxes)
        forward((step.node for step in self.steps), found.visit)
        return found.least({self.graph.output: rows}, offset)

    def least_with_crown(
        self, region: Region, rows: Tensor, offset: Tensor, coefficients: ParabolaCoefficients
    ) -> Tensor:
        """The better of this bound and CROWN's, where both use the intermediate bounds of both, and of affine
        forms if the network has these.
        """
        boxes = Boxes(region)
        models = QuadraticPropagation(self.steps, region, coefficients, boxes)
        forms = forms_for(self.graph, boxes, self.graph.nodes)
        self._propagate_both(models, boxes, BoundConstraints(boxes, {}), forms)
        return torch.fmax(
            models.least({self.graph.output: rows}, offset), lower_bound(self.graph, boxes, rows, offset)
        )

    def within(
        self,
        region: Region,
        coefficients: ParabolaCoefficients,
        within: Mapping[Node, IntervalBounds],
        kept: Collection[Node] = (),
    ) -> tuple["QuadraticPropagation", Boxes, Tensor]:
        """Models and boxes for the points of the region at which some nodes lie between given bounds.

        Returns the models, the boxes, and (batch,) bool: rows without any such point. The models of the
        output and of the nodes in `kept` stay available.
        """
        assert next(iter(coefficients.values())).dtype == torch.float64, (
            "linear bounds must not rest on float32 ranges, which prove nothing"
        )
        models = QuadraticPropagation(self.steps, region, coefficients, boxes := Boxes(region), kept)
        self._propagate_both(models, boxes, held := BoundConstraints(boxes, within))
        return models, boxes, held.empty

    def parabolas(self, region: Region, coefficients: ParabolaCoefficients) -> ParabolaCoefficients:
        """Coefficients a, b of each curve's parabola a y + b y^2 over a region, stacked to (2, batch, n)."""
        relaxed = [step for step in self.steps if isinstance(step.node, Relaxed)]
        models, _, _ = self.within(
            region, coefficients, {}, {source for step in relaxed for source in step.inputs}
        )
        found: ParabolaCoefficients = {}
        for step in relaxed:
            assert isinstance(step.node, Relaxed)
            for place, curve in enumerate(step.node.relaxation.curves() or ()):
                if curve is not None:
                    y, ends = models.models[step.inputs[place]], models.ranges[step.inputs[place]]
                    at, slope, second = _free_parabola(curve, y, *ends, coefficients[step.node, place])
                    found[step.node, place] = torch.stack([slope - 2 * second * at, second])
        return found

    def boxes(self, region: Region, coefficients: ParabolaCoefficients) -> Boxes:
        """Intermediate bounds of all nodes by CROWN and quadratic models together."""
        boxes = Boxes(region)
        self._propagate_both(
            QuadraticPropagation(self.steps, region, coefficients, boxes), boxes, BoundConstraints(boxes, {})
        )
        return boxes

    def _propagate_both(
        self,
        models: "QuadraticPropagation",
        boxes: Boxes,
        held: BoundConstraints,
        forms: ZonotopePropagation | None = None,
    ) -> None:
        """Propagate models, affine forms and boxes forward together, each intersected with the others' bounds."""
        intervals, refine = Intervals(self.graph, boxes), IntermediateRefinement(self.graph, boxes)

        def narrow(node: Node) -> None:
            if isinstance(node, Relaxed) and node in models.steps:
                for source, ends in zip(node.inputs, models.ranges_of(node), strict=True):
                    boxes.keep(source, *(end.double().reshape(-1, *source.shape) for end in ends))

        def carry(node: Node) -> None:
            if node in models.steps:
                models.visit(node)

        carriers = [] if forms is None else [forms.visit]
        forward(self.graph.nodes, narrow, intervals.visit, *carriers, held, refine, carry)


class QuadraticPropagation(Forward):
    """Propagates models forward; models that no later node reads are freed."""

    def __init__(
        self,
        steps: list[ModelStep],
        region: Region,
        coefficients: ParabolaCoefficients,
        boxes: Boxes | None,
        kept: Collection[Node] = (),
    ) -> None:
        self.region = region
        self.coefficients = coefficients
        self.boxes = boxes
        self.kept = kept
        self.steps = {step.node: step for step in steps}
        self.last = {node: step.node for step in steps for node in step.inputs}
        self.models: dict[Node, QuadraticModel] = {}
        self.ranges: dict[Node, tuple[Tensor, Tensor]] = {}
        self.count = 0  # the number of named remainders

    def enter(self, node: InputNode) -> None:
        self.models[node] = _entry(self.region, next(iter(self.coefficients.values())).dtype)

    def through_map(self, node: Affine) -> None:
        step = self.steps[node]
        assert step.map is not None
        self._keep(step, _affine(step.map, [self.models[s] for s in step.inputs]))

    def through_function(self, node: Relaxed) -> None:
        ranges, step = self.ranges_of(node), self.steps[node]
        self._keep(
            step, _apply_relaxation(node, [self.models[s] for s in step.inputs], ranges, self.coefficients)
        )

    def ranges_of(self, node: Relaxed) -> list[tuple[Tensor, Tensor]]:
        """The ranges of an activation's inputs."""
        for source in self.steps[node].inputs:
            if source not in self.ranges:
                self.ranges[source] = range_of(self.models[source], source, self.boxes)
        return [self.ranges[s] for s in self.steps[node].inputs]

    def least(self, rows: Mapping[Node, Tensor], offset: Tensor) -> Tensor:
        """Lower bounds (batch, rows) of the sum of row . node over some nodes, plus the offset.

        `rows` are (batch, rows, size) for each node.
        """
        dtype = next(iter(self.coefficients.values())).dtype
        asked = [
            _apply_rows(self.models[node].store_curvature(), part.to(dtype)) for node, part in rows.items()
        ]
        inputs, remainders = reduce(_union, (a.inputs for a in asked)), max(a.R.shape[-1] for a in asked)
        total = reduce(_add, (a.extend_variables(inputs, remainders) for a in asked))
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
        # A selection takes rows of the map before it; inputs that no row reads any more are dropped.
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
        """Whether the node's only reader is a sum, where the summands' remainders are named together."""
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
    """The number of values in every node's stored quadratic part, for one fully perturbed input."""
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
    """Why models gain nothing over linear bounds or do not exist, whatever the memory; else None."""
    if not any(isinstance(s.node, Relaxed) for s in steps):
        return "the network is linear: linear bounds are exact"
    for step in steps:
        node = step.node
        if isinstance(node, Relaxed) and node.relaxation.curves() is None:
            return f"{node.name}: {type(node.relaxation).__name__} has no second-order model"
    if numbers > MAX_VALUES_RELU_LIKE and all(
        s.node.relaxation.sides() is not None for s in steps if isinstance(s.node, Relaxed)
    ):
        return (
            "all its activations are piecewise linear: at this size linear bounds are better than parabolas"
        )
    return None


def _too_large(steps: list[ModelStep]) -> str:
    """Names an affine map that is too large to be stored as a matrix; empty if there is none."""
    large = [step.node.name for step in steps if step.map is not None and not step.map.small]
    return f"{large[0]} is too large to be stored as a matrix" if large else ""


def _entry(region: Region, dtype: torch.dtype) -> QuadraticModel:
    """The model of the input, x = c + J v: over the enclosing box, or over the balls of a smooth norm."""
    family = region.as_norm_family()
    if family is not None and not math.isinf(family.norm):
        like = family.group_features(family.centre)
        groups = torch.arange(like.shape[1], device=like.device)[:, None].expand(like.shape[1:]).flatten()
        centre = region.centre.double().flatten(1)
        size = family.spans().flatten(1)
        ball = VariableBall(dual(family.norm), groups)
    else:
        lower, upper = (end.flatten(1) for end in region.enclosing_box())
        centre, size = centre_and_radius(lower, upper)
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
    """The model of an affine map of the sources, exact up to rounding."""
    if node.moves:
        return _move_elements(node, sources[0])
    # Sources with curvature come first, so that its variables keep their order.
    inputs = reduce(_union, (s.inputs for s in sorted(sources, key=lambda s: s.curvature is None)))
    remainders = max(s.R.shape[-1] for s in sources)
    total: QuadraticModel | None = None
    for k, source in enumerate(sources):
        wide = source.extend_variables(inputs, remainders)
        part = wide.each(lambda t, k=k: node.part(k, t, 1))  # type: ignore[misc]
        part = replace(part, rest=node.part(k, source.rest, 1, absolute=True))
        total = part if total is None else _add(total, part)
    assert total is not None
    c = total.c if node.shift is None else total.c + node.shift.to(total.c)
    return _charge_rounding(
        replace(total, c=c, size=node.forward_absolute([s.size for s in sources])),
        sum(s.c.shape[1] for s in sources),
    )


def _move_elements(node: Affine, source: QuadraticModel) -> QuadraticModel:
    found = source.each(lambda t: node.part(0, t, 1))
    found = replace(found, rest=node.forward([source.rest]), size=node.forward([source.size]))
    if found.curvature is None:  # a time step of the input: drop the inputs of the others
        read = (found.J != 0).any(0).any(0)
        return replace(found, J=found.J[..., read], inputs=found.inputs[read])
    return found


def _apply_rows(source: QuadraticModel, rows: Tensor) -> QuadraticModel:
    """The model of rows (batch, rows, n) . node."""
    part = source.each(lambda t: rows @ t if t.dim() > 2 else matvec(rows, t))
    rest, size = (matvec(rows.abs(), t) for t in (source.rest, source.size))
    return _charge_rounding(replace(part, rest=rest, size=size), source.c.shape[1])


def _charge_rounding(model: QuadraticModel, terms: int) -> QuadraticModel:
    """Add the rounding errors of sums of `terms` terms to the rest."""
    return replace(
        model,
        rest=round_up(model.rest, MODEL_MAP, 2 * terms) + charge(model.size, MODEL_MAP, 2 * terms),
        size=round_up(model.size, MODEL_MAP, 2 * terms),
    )


def _add(a: QuadraticModel, b: QuadraticModel) -> QuadraticModel:
    curvature = b.curvature if a.curvature is None else a.curvature.plus(b.curvature)
    return replace(
        a, c=a.c + b.c, J=a.J + b.J, R=a.R + b.R, curvature=curvature, rest=a.rest + b.rest, curved=None
    )


def _union(a: Tensor, b: Tensor) -> Tensor:
    """The union of two lists of inputs in order of appearance; of two conflicting orders the first."""
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
    node: Relaxed,
    sources: list[QuadraticModel],
    ranges: list[tuple[Tensor, Tensor]],
    coefficients: ParabolaCoefficients,
) -> QuadraticModel:
    models, values = [], []
    curves = node.relaxation.curves() or ()
    for place, (curve, source, (lower, upper)) in enumerate(zip(curves, sources, ranges, strict=True)):
        ends = lower, upper
        if curve is not None:
            source = _apply_curve(curve, source, lower, upper, coefficients[node, place])
            ends = curve.function(lower), curve.function(upper)  # curves that enter products are increasing
        models.append(source)
        off = charge(torch.maximum(ends[0].abs(), ends[1].abs()), MODEL_VALUES)
        values.append((ends[0] - off, ends[1] + off))
    if len(models) == 1:
        return models[0]
    (a, z), (a_values, z_values) = models, values
    return _product(a, z, a_values, z_values)


def _max_distance(value: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The largest distance of [lower, upper] from a value."""
    return torch.maximum(upper - value, value - lower)
