"""Quadratic (second-order Taylor) models of every step, so that curvatures of opposite sign cancel.

Statement. The region is x = centre + size v, with v in a unit ball. A model of an element y says: for every x
of the region there are numbers u = (v, r), |u_j| <= 1, where the remainder variables r are shared by all
elements of all steps, with

    |y - (c + L u + v'B u)| <= rest.

In the notation of docs/notation.md, L = [J, R], B = [Q / 2, C] and rest = e: y = c + J v + R r + v'Q v / 2 +
v'C r up to e. With it `SecondOrderBounds.rows` bounds Lambda . f(x) + offset from below.

Steps. An affine map W acts on c, L, B, and |W| on rest. A function of one number is s y + b y^2, for any s
and b (those of the proof), plus a deviation between its minimum and maximum over the interval of y
(`functions`). A product of two models is the product of their parts up to the second order. Terms of third
and higher order, products of two remainder variables and deviations are bounded and join the rest; the rest
becomes a new remainder variable.

Rounding. |u_j| <= 1, so coefficients that are wrong by e_1, e_2, ... make a model wrong by at most their sum.
`size` is at least the sum of absolute values of an element's coefficients. Every coefficient and bound below
is a sum of products. The absolute values of these products, added over all coefficients of an element, are at
most the `charged` number: |W| size for a map W; for a function, the square of all that its model holds.
gamma(number of terms) times that number joins the rest.

References: Makino and Berz 2003 for Taylor models; de Figueiredo and Stolfi 2004 for shared remainder
variables (affine arithmetic).

Assumption: v lies in a `UnitBall`: of norm 1, 2 or infinity, or a product of balls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from holdfast_check import balls
from holdfast_check.arithmetic import (
    LARGEST,
    MODEL_CURVED,
    MODEL_ENTRY,
    MODEL_MAP,
    MODEL_MAP_SUM,
    MODEL_RANGES,
    MODEL_REST,
    MODEL_ROUNDS,
    MODEL_SIZE,
    TINY,
    Array,
    charge,
    round_up,
)
from holdfast_check.convex import ConvexFunction
from holdfast_check.errors import NoBounds, Rejected, zip_equal
from holdfast_check.functions import ProductFunction
from holdfast_check.limits import look_at_clock
from holdfast_check.planes import StepBounds
from holdfast_check.steps import AffineStep, ElementFunction, FunctionStep, StepTerm

MOST = 2**27  # The largest number of float64 coefficients in the model of one step (1 GiB; chosen by hand).
AT_ONCE = 2**22  # The number of coefficients processed at once (32 MiB; chosen by hand).
# Dual bounds (`balls`) are computed if the number of perturbed inputs is between FEW and PRICED (chosen by
# hand: below, they gain little; above, eigenvalues cost too much).
FEW, PRICED = 8, 256
# The number of rounds in which monotone variables are fixed, for the rows of a claim (chosen by hand).
ROUNDS = 8


@dataclass(frozen=True)
class SecondOrderModel:
    """The models of n elements. B may have fewer columns than L: the other variables occur only linearly."""

    c: Array  # (n,)
    L: Array  # (n, k)
    B: Array  # (n, d, k or less)
    rest: Array  # (n,)
    size: Array  # (n,)
    # (middle, width) with |v'B u - middle| <= width, where `along` derived a tighter range than B alone
    # gives.
    curved: tuple[Array, Array] | None = None

    def take_elements(self, take: Array) -> SecondOrderModel:
        """Select elements; index -1 represents a zero."""
        real = take >= 0
        parts = (self.c[take], self.L[take], self.B[take], self.rest[take], self.size[take])
        c, L, B, rest, size = (
            part if real.all() else part * real.reshape(-1, *[1] * (part.ndim - 1)) for part in parts
        )
        return SecondOrderModel(c, L, B, rest, size)

    @property
    def terms(self) -> int:
        """A bound of the number of products in any sum over an element's coefficients."""
        return self.B[0].size + 2 * self.L.shape[1] + 64 if len(self.B) else 64

    def name_remainder(self, before: int) -> SecondOrderModel:
        """Turn the rest of every element into a new remainder variable, after the `before` existing
        variables.
        """
        wide = np.zeros((len(self.c), before + len(self.c)))
        wide[:, : self.L.shape[1]] = self.L
        wide[:, before:] += np.diag(self.rest)
        return SecondOrderModel(self.c, wide, self.B, np.zeros_like(self.rest), self.size + self.rest)


@dataclass(frozen=True)
class UnitBall:
    """The set of v: |v_i| <= 1 (norm infinity), or a product of balls of norm 1 or 2, one for each run of
    variables beginning at `starts`.
    """

    d: int
    norm: float
    starts: Array

    def reach(self, a: Array) -> Array:
        """(..., d) -> (...): an upper bound of |a . v| up to rounding, by Hoelder's inequality; TINY under
        the root covers squares that underflow.
        """
        sizes = np.abs(a)
        if self.norm == 2:
            sizes = np.sqrt(np.add.reduceat(sizes * sizes, self.starts, -1) + TINY)
        elif self.norm == 1:
            sizes = np.maximum.reduceat(sizes, self.starts, -1)
        total: Array = sizes.sum(-1)
        return total

    def least(self, y: SecondOrderModel, rounds: int) -> Array:
        """(n,): a lower bound of every element.

        In a box, a variable in which the element is monotone is fixed at its minimising end, for several
        rounds. Floating point decides monotonicity; a wrong decision changes the value by no more than the
        rounding error that caused it, which `missed` contains.
        """
        bound: Array
        d, known, c, L, B = self.d, y.B.shape[2], y.c, y.L, y.B
        missed = charge((rounds + 1) * (y.size + y.rest), MODEL_ROUNDS, y.terms) + y.rest
        if known == 0 or not np.isinf(self.norm):
            p = ModelRanges.of(y, self)
            bound = c + p.middle - p.linear - p.named - p.width - missed
            if self.norm == 2 and 0 < d <= min(known, PRICED):
                bound = np.fmax(bound, self._price_bound(y) - missed)
            return bound
        outside = np.abs(L[:, known:]).sum(1)
        sizes, free, L = np.abs(B), np.ones((len(c), known)), L[:, :known]

        def gradient(of: Array, u: Array) -> tuple[Array, Array]:
            """The derivatives of v'B u with respect to u, and v'B u."""
            back = (u[:, None, :d] @ of)[:, 0]
            value = (u * back).sum(1)
            back[:, :d] += (of @ u[..., None])[..., 0]
            return back, value

        for _ in range(rounds):
            fixed = np.where(np.abs(L) >= gradient(sizes, free)[0], -np.sign(L), 0.0) * free
            slopes, value = gradient(B, fixed)
            c = c + (L * fixed).sum(1) + value
            free = free * (fixed == 0)
            L = (L + slopes) * free
        squares = np.zeros_like(L)
        squares[:, :d] = np.einsum("nii->ni", B[:, :, :d]) * free[:, :d]
        inside = 2 * squares > np.abs(L)  # The minimum of squares v^2 + L v lies inside (-1, 1).
        alone = np.where(inside, -L * L / np.where(inside, 4 * squares, 1.0), squares - np.abs(L))
        mixed = gradient(sizes, free)[1] - np.abs(squares).sum(1)
        p = ModelRanges.of(y, self)
        bound = (
            np.fmax(c + alone.sum(1) - mixed - outside, y.c + p.middle - p.linear - p.named - p.width)
            - missed
        )
        return bound

    def _price_bound(self, y: SecondOrderModel) -> Array:
        """The Lagrangian dual bound of `balls`, up to rounding. A remainder variable whose coefficient has a
        fixed sign is set to its minimising end; any other costs the maximum of its term.
        """
        d, known = self.d, y.B.shape[2]
        crossed = self.reach(y.B[:, :, d:].swapaxes(1, 2))
        end = np.where(np.abs(y.L[:, d:known]) >= crossed, np.sign(y.L[:, d:known]), 0.0)
        turned = (y.B[:, :, d:] @ end[..., None])[..., 0]
        named = np.abs(y.L[:, d:]).sum(1) + np.where(end == 0, crossed, 0.0).sum(1)
        bound: Array = y.c - named + balls.least(y.L[:, :d] - turned, y.B[:, :, :d], self.starts)
        return bound


@dataclass(frozen=True)
class ModelRanges:
    """Ranges of the terms of a model, rounding included: |J v| <= linear, |R r| <= named, |v'B u - middle| <=
    width. `at` = c + middle up to a number contained in `rest`; `all` is at least the sum of absolute values
    of everything in the model.
    """

    linear: Array
    named: Array
    middle: Array
    width: Array
    at: Array
    rest: Array
    all: Array

    @staticmethod
    def of(y: SecondOrderModel, ball: UnitBall) -> ModelRanges:
        """Compute the ranges over the unit ball."""
        d = ball.d
        linear, named = ball.reach(y.L[:, :d]), np.abs(y.L[:, d:]).sum(1)
        if y.curved is not None:
            middle, width = y.curved
        elif np.isinf(ball.norm):  # 0 <= v_i^2 <= 1.
            squares = np.einsum("nii->ni", y.B[:, :, :d]) if y.B.shape[2] else y.L[:, :0]
            middle, width = squares.sum(1) / 2, np.abs(y.B).sum((1, 2)) - np.abs(squares).sum(1) / 2
        else:
            squared = ball.reach(ball.reach(y.B[:, :, :d])) if y.B.shape[2] else np.zeros_like(y.c)
            middle, width = np.zeros_like(y.c), squared + ball.reach(y.B[:, :, d:].swapaxes(1, 2)).sum(1)
        # With coefficients of mixed sign, eigenvalues bound the quadratic term more tightly than sums of
        # absolute values.
        if y.curved is None and FEW <= d <= PRICED and y.B.shape[2]:
            low, high = balls.reach(y.B[:, :, :d], y.B[:, :, d:], ball.starts)
            low, high = np.fmax(middle - width, low), np.fmin(middle + width, high)
            middle, width = (low + high) / 2, np.maximum(high - low, 0.0) / 2
        size = y.size + np.abs(y.c) + y.rest
        off = charge(size, MODEL_RANGES, y.terms)
        return ModelRanges(
            linear + off,
            named + off,
            middle,
            width + off,
            y.c + middle,
            y.rest + off,
            2 * size + linear + named + width + off,
        )


def _outer(L: Array, M: Array, d: int) -> Array:
    """The quadratic part (n, d, k) of (L u)(M u), without products of two remainder variables."""
    both: Array = L[:, :d, None] * M[:, None] + M[:, :d, None] * L[:, None]
    both[:, :, :d] *= 0.5
    return both


def along(
    function: ElementFunction,
    y: SecondOrderModel,
    slope: Array,
    quad: Array,
    low: Array,
    high: Array,
    ball: UnitBall,
) -> SecondOrderModel:
    """The model of function(y) for low <= y <= high, with the parabola slope y + quad y^2.

    Write y = at + D with D = L u + q + e, |q + e| <= loose, |D| <= away and |L u| <= reach. Then D^2 = (L
    u)^2 + 2 L u (q + e) + (q + e)^2, which exceeds (L u)^2 by at most loose (2 away - loose) and falls below
    it by at most loose (2 reach - loose). The products of two remainder variables in (L u)^2 lie between 0
    and named^2. A value y that differs from its model by up to `rest` moves the line by up to |steep| rest; in programs
    the rest of an argument holds rounding errors alone, since the steps before turn any other rest into a
    variable.
    """
    more = (quad,) if isinstance(function, ProductFunction) else ()
    least = function.least(1.0, (slope,), (low,), (high,), *more)
    most = -function.least(-1.0, (-slope,), (low,), (high,), *(-part for part in more))
    p = ModelRanges.of(y, ball)
    steep, loose = slope + 2 * quad * p.at, p.width + p.rest
    line = p.linear + p.named
    away = np.maximum(np.minimum(np.maximum(high - p.at, p.at - low), line + loose), loose)
    reach = np.maximum(np.minimum(line, away + loose), loose)
    c = (
        (least + most) / 2
        + p.at * (slope + quad * p.at)
        - steep * p.middle
        + quad * (p.named**2 / 2 + loose * (away - reach))
    )
    rest = (
        (most - least) / 2
        + np.abs(steep) * p.rest
        + np.abs(quad) * (p.named**2 / 2 + loose * (away + reach - loose))
    )
    B = _outer(y.L, y.L, ball.d) * quad[:, None, None]
    B[:, :, : y.B.shape[2]] += steep[:, None, None] * y.B
    # With s = J v and t = R r, B holds quad (s^2 + 2 s t), whose minimum is at s = -t, and additionally steep
    # times the quadratic part of y.
    shorter = np.minimum(p.linear, p.named)
    below, above = -shorter * (2 * p.named - shorter), p.linear * (p.linear + 2 * p.named)
    charged = np.abs(least) + np.abs(most) + 4 * np.abs(slope) * p.all + 16 * np.abs(quad) * p.all**2
    curved = (
        steep * p.middle + quad * (below + above) / 2,
        np.abs(steep) * p.width + np.abs(quad) * (above - below) / 2,
    )
    # The two terms of B may cancel, so their absolute values bound the rounding error, not their sum.
    curved = (
        curved[0],
        curved[1] + charge(charged, MODEL_CURVED),
    )
    return replace(_make_model(c, steep[:, None] * y.L, B, rest, charged), curved=curved)


def times(
    a: SecondOrderModel,
    z: SecondOrderModel,
    a_ends: tuple[Array, Array],
    z_ends: tuple[Array, Array],
    ball: UnitBall,
) -> SecondOrderModel:
    """The model of a z, where a and z lie in the given intervals. Without its rest, a model differs from `at`
    by at most `away`.
    """
    p, q, k = ModelRanges.of(a, ball), ModelRanges.of(z, ball), max(a.L.shape[1], z.L.shape[1])
    L, M = (np.pad(y.L, ((0, 0), (0, k - y.L.shape[1]))) for y in (a, z))
    B = _outer(L, M, ball.d)
    for y, at in ((a, q.at), (z, p.at)):
        B[:, :, : y.B.shape[2]] += at[:, None, None] * y.B
    c = p.at * q.at - p.at * q.middle - q.at * p.middle
    lines, aways, largest = (p.linear + p.named, q.linear + q.named), [], []
    for side, line, (low, high) in zip_equal((p, q), lines, (a_ends, z_ends)):
        aways.append(np.minimum(np.maximum(high - side.at, side.at - low) + side.rest, line + side.width))
        largest.append(np.maximum(np.abs(low), np.abs(high)))
    rest = p.named * q.named + np.minimum(
        lines[0] * q.width + p.width * aways[1], p.width * lines[1] + q.width * aways[0]
    )
    rest = rest + p.rest * largest[1] + q.rest * (largest[0] + p.rest)
    return _make_model(c, p.at[:, None] * M + q.at[:, None] * L, B, rest, 8 * p.all * q.all)


def _make_model(c: Array, L: Array, B: Array, rest: Array, charged: Array) -> SecondOrderModel:
    """A model with the rounding error of its computation, `MODEL_CURVED` of `charged`, added to the rest, and with
    its size recomputed.
    """
    total = np.abs(c) + np.abs(L).sum(1) + np.abs(B).sum((1, 2))
    size = round_up(total, MODEL_SIZE, B[0].size + L.shape[1])
    rest = round_up(rest, MODEL_REST) + charge(charged, MODEL_CURVED)
    return SecondOrderModel(c, L, B, rest, size)


def _carry_part(part: StepTerm, x: Array, weight: Array | None) -> Array:
    """Apply a term to coefficients (n, ...) of its source: (elements, product of the other sizes)."""
    many = int(np.prod(x.shape[1:]))
    z = x.reshape(len(x), many)
    if not part.whole or len(part.take) != len(x):
        z = z[part.take] * (part.take >= 0)[:, None]
    if weight is None or weight.ndim == 1:
        return z if weight is None else z * weight[:, None]
    runs = len(z) // len(weight)
    return (weight.T @ z.reshape(runs, len(weight), many)).reshape(runs * weight.shape[1], many)


def _add_quadratic(part: StepTerm, x: Array, to: Array) -> None:
    """Add a term, applied to the quadratic parts x (n, d, k) of its source, to those of the result, (elements, d, k or more).
    The result of one matrix is computed in groups of elements, so that no second copy of it is in memory.
    """
    weight, k = part.weight, x.shape[2]
    places = np.arange(len(to)) if part.place is None else part.place
    if weight is None or weight.ndim == 1 or len(part.take) != len(weight):
        to[places, :, :k] += _carry_part(part, x, weight).reshape(len(places), *x.shape[1:])
        return
    each = max(1, AT_ONCE // max(1, x[0].size))
    for start in range(0, len(places), each):
        some = slice(start, start + each)
        to[places[some], :, :k] += _carry_part(part, x, weight[:, some]).reshape(
            len(places[some]), *x.shape[1:]
        )


@dataclass
class SecondOrderBounds(StepBounds):
    """Quadratic models together with linear bounds, one part of the region at a time; each uses the
    intermediate bounds of the other. `parabolas/K` of the proof is (parts of the region, 2,
    pre-activations, n): the coefficients s and b of every function. Without it, a line replaces the
    parabola.
    """

    models: dict[int, SecondOrderModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps, region = self.program.steps, self.region
        lower, upper = region.lower[0], region.upper[0]
        centre, moves = lower / 2 + upper / 2, np.flatnonzero(upper > lower)
        size = round_up(np.maximum(upper - centre, centre - lower), MODEL_ENTRY)
        starts = np.arange(len(moves))
        if not np.isinf(region.norm) and region.centre is not None and region.spans is not None:
            run = len(lower) // len(region.spans)
            centre, size, starts = (
                region.centre,
                np.repeat(region.spans, run),
                np.unique(moves // run, return_index=True)[1],
            )
        self.ball = UnitBall(len(moves), region.norm, starts)
        self.count = len(moves)  # The number of variables u created.
        self.ranged = {0}  # Steps whose intervals were intersected with those of their models.
        self.readers: dict[int, list[tuple[int, StepTerm]]] = {
            self.program.output.step: [(len(steps), StepTerm(0, np.zeros(0, int), None, None))]
        }
        for place in range(len(steps) - 1, 0, -1):  # Only steps that the output depends on have readers.
            for part in steps[place].parts if place in self.readers else ():
                self.readers.setdefault(part.source, []).append((place, part))
        L = np.zeros((len(lower), len(moves)))
        L[moves, np.arange(len(moves))] = size[moves]
        self.models[0] = SecondOrderModel(
            centre, L, np.zeros((*L.shape, 0)), np.zeros(len(lower)), np.abs(centre) + size
        )
        super().__post_init__()

    def _joins_sum(self, place: int) -> bool:
        """Whether the step is a function that one affine map alone reads, element by element. Its rest then
        becomes a remainder variable at that map.
        """
        readers = self.readers.get(place, [])
        once = (
            len(readers) == 1
            and readers[0][0] < len(self.program.steps)
            and isinstance(self.program.steps[readers[0][0]], AffineStep)
        )
        weight = readers[0][1].weight if once else None
        return (
            once
            and isinstance(self.program.steps[place], FunctionStep)
            and (weight is None or weight.ndim == 1)
        )

    def _store(self, place: int, model: SecondOrderModel, named: bool) -> None:
        """Store the model of a step, and drop models that no later step reads."""
        step = self.program.steps[place]
        if not bool(((model.size < LARGEST) & (model.rest < LARGEST)).all()):
            raise NoBounds(f"step {place} ({step.name}): its model has no finite bounds")
        self.models[place] = model.name_remainder(self.count) if named else model
        self.count += step.size if named else 0
        for part in step.parts:
            if max(reader for reader, _ in self.readers[part.source]) <= place:
                self.models.pop(part.source, None)

    def _at_once(self, name: str, many: int) -> int:
        """How many of `many` elements to process at once; reject models above MOST numbers."""
        each = max(1, self.ball.d * self.count)
        if many * each > MOST:
            raise Rejected(
                f"{name}: its quadratic model would hold {many} x {each} numbers, more than {MOST}. "
                "Let fewer inputs move, or use slopes instead of parabolas"
            )
        return max(1, AT_ONCE // each)

    def _some(self, name: str, many: int) -> list[Array]:
        """Indices of `many` elements, in groups that fit in memory."""
        return np.split(np.arange(many), range(0, many, self._at_once(name, many))[1:])

    def _apply_map(self, step: AffineStep) -> SecondOrderModel:
        """Apply an affine map to every coefficient, and absolute values of its weights to rest and size."""
        sources = [(part, self.models[part.source]) for part in step.parts]
        k, known = (
            max([0, *(y.L.shape[1] if L else y.B.shape[2] for _, y in sources)]) for L in (True, False)
        )
        self._at_once(step.name, step.size)
        c, L, B = step.offset.copy(), np.zeros((step.size, k)), np.zeros((step.size, self.ball.d, known))
        rest, size, terms = np.zeros(step.size), step.offset_size.copy(), self.terms + len(sources) + 32
        for part, y in sources:
            to, absolute = (
                (slice(None) if part.place is None else part.place),
                None if part.weight is None else np.abs(part.weight),
            )
            c[to] += _carry_part(part, y.c, part.weight)[:, 0]
            L[to, : y.L.shape[1]] += _carry_part(part, y.L, part.weight)
            if y.B.shape[2]:
                _add_quadratic(part, y.B, B)
            rest[to] += _carry_part(part, y.rest, absolute)[:, 0]
            size[to] += _carry_part(part, y.size, absolute)[:, 0]
        rest = round_up(rest, MODEL_MAP_SUM, terms) + charge(size, MODEL_MAP, terms)
        return SecondOrderModel(c, L, B, rest, round_up(size, MODEL_MAP_SUM, terms))

    def _affine(self, step: AffineStep, place: int) -> None:
        super()._affine(step, place)
        if place in self.readers:
            self._store(
                place, self._apply_map(step), any(self._joins_sum(part.source) for part in step.parts)
            )

    def _narrow(self, part: StepTerm, reader: FunctionStep) -> None:
        super()._narrow(part, reader)
        if part.source in self.ranged or part.source not in self.models:
            return
        self.ranged.add(part.source)
        y, low, high = self.models[part.source], self.lower[part.source][0], self.upper[part.source][0]
        for some in self._some("an interval", len(low)):
            look_at_clock()
            own = y.take_elements(some)
            low[some] = np.fmax(low[some], self.ball.least(own, 1))
            high[some] = np.fmin(
                high[some], -self.ball.least(SecondOrderModel(-own.c, -own.L, -own.B, own.rest, own.size), 1)
            )
        if not bool((low <= high).all()):
            raise NoBounds(f"step {part.source}: its bounds exclude each other")

    def _apply_function(self, step: FunctionStep, place: int) -> None:
        super()._apply_function(step, place)
        if place not in self.readers:
            return
        whole: SecondOrderModel | None = None
        for some in self._some(step.name, step.size):
            part = self._through(step, place, some)
            if whole is None:  # All groups have the same variables.
                c, L, B, rest, size = (
                    np.empty((step.size, *array.shape[1:]))
                    for array in (part.c, part.L, part.B, part.rest, part.size)
                )
                whole = SecondOrderModel(c, L, B, rest, size)
            for name in ("c", "L", "B", "rest", "size"):
                getattr(whole, name)[some] = getattr(part, name)
        if whole is None:
            raise Rejected(f"step {place} ({step.name}): a function of no element")
        self._store(place, whole, not self._joins_sum(place))

    def _through(self, step: FunctionStep, place: int, some: Array) -> SecondOrderModel:
        """The model of selected elements of a function applied to its sources."""
        look_at_clock()
        factors, values = [], []
        for argument, (part, function) in enumerate(zip_equal(step.parts, step.function.curves)):
            y = self.models[part.source].take_elements(part.take[some])
            low, high = (
                part.take_elements(known[part.source])[0, some] for known in (self.lower, self.upper)
            )
            ends = low, high
            if function == ConvexFunction("square"):  # The product of a model with itself is exact.
                return times(y, y, ends, ends, self.ball)
            if function != ProductFunction("identity"):
                if f"parabolas/{place}" in self.slopes:
                    slope, quad = self.slopes[f"parabolas/{place}"][0][:, argument][:, some]
                    quad = quad if isinstance(function, ProductFunction) else np.zeros_like(quad)
                else:
                    (below,), (above,) = function.slopes((low,), (high,))
                    slope, quad = (below + above) / 2, np.zeros_like(below)
                if not bool(((np.abs(slope) < LARGEST) & (np.abs(quad) < LARGEST)).all()):
                    raise Rejected(f"step {place} ({step.name}): a parabola is not finite, or too large")
                y = along(function, y, slope, quad, low, high, self.ball)
                ends = function.range((low,), (high,))
            factors.append(y)
            values.append(ends)
        return (
            factors[0]
            if len(factors) == 1
            else times(factors[0], factors[1], values[0], values[1], self.ball)
        )

    def rows(self, matrix: Array, offset: Array, signs: Mapping[int, Array] | None = None) -> Array:
        """Lower bounds (1, rows) of matrix . output + offset: the better of linear bounds and quadratic
        models.
        """
        view = self.program.output
        part = StepTerm(view.step, view.index.ravel(), matrix.T.astype(np.float64), None)
        rows = self._apply_map(
            AffineStep("the claim", len(matrix), (part,), offset.astype(np.float64), np.abs(offset))
        )
        least = np.concatenate(
            [
                self.ball.least(rows.take_elements(some), ROUNDS)
                for some in self._some("the claim", len(matrix))
            ]
        )
        best: Array = np.fmax(super().rows(matrix, offset, signs), least[None])
        return best
