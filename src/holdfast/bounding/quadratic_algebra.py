"""Arithmetic of quadratic (second-order Taylor) models: affine maps, activations, products, ranges.

Statement. A model (c, J, R, Q, C, rest) of y over a region x = centre + size v, v in a unit ball, says: for every v
there are numbers r_j, |r_j| <= 1, the same ones for all models, with

    |y - (c + J v + R r + 1/2 v'Q v + v'C r)| <= rest.

Each operation here returns a model of its result from models of its arguments. Affine maps transform models exactly.
An activation of one argument is replaced by a parabola with free coefficients and its exact largest deviation
(`relax/parabola`), a product by its second-order part; what is left over joins the rest. Products of two remainders
are bounded at once, which keeps Q as small as the input and costs little.

The range of a model is bounded by the dual norm of its linear part plus a bound of its quadratic part, by
eigenvalues (`eigenvalue_bounds`) or trust regions (`trust_region`). The final bound over a box fixes, round
after round, every variable in which the model is monotone at its worse endpoint. Rounding: docs/rounding.md.

Reference: Makino, Berz, "Taylor models and other validated functional inclusion methods" (2003), for Taylor models.

Assumption: the arguments are models over one region, and activations have a parabola (`relax/parabola`).
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding import eigenvalue_bounds, trust_region
from holdfast.bounding.graph.graph import Affine
from holdfast.bounding.quadratic_part import Change, Curvature, Pair, matvec
from holdfast.bounding.relax.base import Curve
from holdfast.bounding.relax.parabola import deviation, parabola
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
)
from holdfast.memory_budget import elements_per_tensor
from holdfast.rounding import charge, round_up

# The limits were chosen by hand, unless a comment says otherwise.
# Largest number of values in a node's Q and C, for one input, with trust-region bounds.
MAX_VALUES_IN_BALLS = 2**25
BALL_BATCH_VALUES = 2**21  # Number of such values that are processed together on a CPU.
BALL_COPIES = 24  # Tensors of this many values that are alive meanwhile, for planning memory.
MIN_VARIABLES_FOR_EIGENVALUES = 8  # Eigenvalues gain little for quadratic forms of fewer variables.
# Eigenvalue bounds take too long for quadratic forms of more variables (on CPUs see "prover" in RESULTS.md).
MAX_VARIABLES_FOR_EIGENVALUES = {"cpu": 100, "cuda": 1024}
MAX_HALF_WIDTH = 2.0  # The unit of the free coefficients does not grow with wider intervals than this.

Interval = tuple[Tensor, Tensor]  # lower and upper bound


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


def free_parabola(
    curve: Curve, y: QuadraticModel, lower: Tensor, upper: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """at, slope, second (batch, n): the parabola slope D + second D^2 with D = y - at."""
    at = y.c + y.parts.middle
    # The deviation of the Chebyshev parabola is of third order in the width: in these units a free
    # coefficient changes it by a similar amount.
    unit = ((upper - lower) / 2).detach().clamp(1e-3, MAX_HALF_WIDTH)
    slope, second = parabola(curve, lower, upper, at)
    return at, slope + coefficients[0] * unit.square(), second + coefficients[1] * unit


def apply_curve(
    curve: Curve, y: QuadraticModel, lower: Tensor, upper: Tensor, coefficients: Tensor
) -> QuadraticModel:
    """The model of f(y) for lower <= y <= upper: a parabola in D = y - at plus its deviation from f.

    D^2 is replaced by (J v)^2 + 2 (J v)(R r) and bounds of the other terms.
    """
    p = y.parts
    at, slope, second = free_parabola(curve, y, lower, upper, coefficients)
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


def multiply(a: QuadraticModel, z: QuadraticModel, a_values: Interval, z_values: Interval) -> QuadraticModel:
    """The model of a z, exact to second order. `a_values` and `z_values` bound the true values of both."""
    p, q = a.parts, z.parts
    a_at, z_at = a.c + p.middle, z.c + q.middle
    inputs, remainders = union_of_inputs(a.inputs, z.inputs), max(a.R.shape[-1], z.R.shape[-1])
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


def apply_affine(node: Affine, sources: list[QuadraticModel]) -> QuadraticModel:
    """The model of an affine map of the sources, exact up to rounding."""
    if node.moves:
        return _move_elements(node, sources[0])
    # Sources with curvature come first, so that its variables keep their order.
    inputs = reduce(union_of_inputs, (s.inputs for s in sorted(sources, key=lambda s: s.curvature is None)))
    remainders = max(s.R.shape[-1] for s in sources)
    total: QuadraticModel | None = None
    for k, source in enumerate(sources):
        wide = source.extend_variables(inputs, remainders)
        part = wide.each(lambda t, k=k: node.part(k, t, 1))  # type: ignore[misc]
        part = replace(part, rest=node.part(k, source.rest, 1, absolute=True))
        total = part if total is None else add_models(total, part)
    assert total is not None
    c = total.c if node.shift is None else total.c + node.shift.to(total.c)
    return charge_rounding(
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


def apply_rows(source: QuadraticModel, rows: Tensor) -> QuadraticModel:
    """The model of rows (batch, rows, n) . node."""
    part = source.each(lambda t: rows @ t if t.dim() > 2 else matvec(rows, t))
    rest, size = (matvec(rows.abs(), t) for t in (source.rest, source.size))
    return charge_rounding(replace(part, rest=rest, size=size), source.c.shape[1])


def charge_rounding(model: QuadraticModel, terms: int) -> QuadraticModel:
    """Add the rounding errors of sums of `terms` terms to the rest."""
    return replace(
        model,
        rest=round_up(model.rest, MODEL_MAP, 2 * terms) + charge(model.size, MODEL_MAP, 2 * terms),
        size=round_up(model.size, MODEL_MAP, 2 * terms),
    )


def add_models(a: QuadraticModel, b: QuadraticModel) -> QuadraticModel:
    curvature = b.curvature if a.curvature is None else a.curvature.plus(b.curvature)
    return replace(
        a, c=a.c + b.c, J=a.J + b.J, R=a.R + b.R, curvature=curvature, rest=a.rest + b.rest, curved=None
    )


def union_of_inputs(a: Tensor, b: Tensor) -> Tensor:
    """The union of two lists of inputs in order of appearance; of two conflicting orders the first."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    if torch.equal(longer[: len(shorter)], shorter):
        return longer
    return torch.cat([a, b[~torch.isin(b, a)]])


def _max_distance(value: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The largest distance of [lower, upper] from a value."""
    return torch.maximum(upper - value, value - lower)
