"""Second-order models: every step as a quadratic function of the input, so that what bends one way and back again cancels.

A region is x = centre + size v with v in a unit ball. The model of an element y says: for every x there are numbers u, |u_j| <= 1, the
first of which are v and the others belong to remainders that were given a name, the same for all elements of all steps, with

    |y - (c + L u + v'B u)| <= rest.

Affine maps carry that over. A function of one number is a y + b y^2, for the a and b of the proof, whatever they are, and a number between
its smallest and its largest deviation, which are found here; with y = at + D the square of D is that of L u but for what is bounded. A
product of two models is the products of their parts up to the second order. What is left over becomes the rest, and the rest a remainder.

Rounding. Since no |u_j| exceeds one, coefficients that are wrong by e_1, e_2, ... make a model wrong by no more than their sum. `size` is
at least the sum of the sizes of all coefficients of an element. Every coefficient and every bound below is a sum of products; the sizes of
these products, over all coefficients of an element, add up to no more than what is charged, times gamma of how many there are: |W| size
for a map W, for a function the square of all that its model holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from holdfast_check import balls
from holdfast_check.arithmetic import LARGEST, TINY, UNIT, Array, gamma
from holdfast_check.errors import Rejected
from holdfast_check.functions import PiecewiseLinear, ProductFunction
from holdfast_check.planes import StepBounds
from holdfast_check.steps import AffineStep, Applied, StepTerm

MOST = 2**27  # numbers in the model of a step
AT_ONCE = 2**22  # of them, those that are looked at together
FEW, PRICED = 8, 256  # inputs that move, at least and at most, where prices of length are looked for
ROUNDS = 8  # of fixing variables in the rows of a claim


@dataclass(frozen=True)
class SecondOrderModel:
    """Of n elements. B may know fewer of the u than L: those before it."""

    c: Array  # (n,)
    L: Array  # (n, k)
    B: Array  # (n, d, k or less)
    rest: Array  # (n,)
    size: Array  # (n,)
    curved: tuple[Array, Array] | None = field(
        default=None, kw_only=True
    )  # middle, width of v'B u, where they follow from how it was made

    def take_elements(self, take: Array) -> "SecondOrderModel":
        """These elements; -1 stands for a zero."""
        real = take >= 0
        parts = (self.c[take], self.L[take], self.B[take], self.rest[take], self.size[take])
        return SecondOrderModel(
            *(part if real.all() else part * real.reshape(-1, *[1] * (part.ndim - 1)) for part in parts)
        )

    @property
    def terms(self) -> int:
        return self.B[0].size + 2 * self.L.shape[1] + 64 if len(self.B) else 64

    def name_remainder(self, before: int) -> "SecondOrderModel":
        """The rest is a remainder, after all `before` that there are."""
        wide = np.zeros((len(self.c), before + len(self.c)))
        wide[:, : self.L.shape[1]] = self.L
        wide[:, before:] += np.diag(self.rest)
        return SecondOrderModel(self.c, wide, self.B, np.zeros_like(self.rest), self.size + self.rest)


@dataclass(frozen=True)
class UnitBall:
    """Where v lives: |v_i| <= 1; or, in the norm 1 or 2, every run of it that starts at one of `starts` is no longer than one."""

    d: int
    norm: float
    starts: Array

    def reach(self, a: Array) -> Array:
        """(..., d) -> (...): at least |a . v|, but for rounding, by Hoelder's inequality; no square underflows unpaid."""
        sizes = np.abs(a)
        if self.norm == 2:
            sizes = np.sqrt(np.add.reduceat(sizes * sizes, self.starts, -1) + TINY)
        elif self.norm == 1:
            sizes = np.maximum.reduceat(sizes, self.starts, -1)
        total: Array = sizes.sum(-1)
        return total

    def least(self, y: SecondOrderModel, rounds: int) -> Array:
        """(n,): a lower bound of every element. In a box a variable in which an element is monotone is fixed at its lower bound, round
        after round; whether it is so is decided in floating point, and a wrong decision costs what its rounding does."""
        bound: Array
        d, known, c, L, B = self.d, y.B.shape[2], y.c, y.L, y.B
        missed = 32 * (rounds + 1) * gamma(y.terms) * (y.size + y.rest) + y.rest + TINY
        if known == 0 or not np.isinf(self.norm):
            p = Spread.of(y, self)
            bound = c + p.middle - p.linear - p.named - p.width - missed
            if self.norm == 2 and 0 < d <= min(known, PRICED):
                bound = np.fmax(bound, self._price_bound(y) - missed)
            return bound
        outside = np.abs(L[:, known:]).sum(1)
        sizes, free, L = np.abs(B), np.ones((len(c), known)), L[:, :known]

        def gradient(of: Array, u: Array) -> tuple[Array, Array]:
            """-> the derivatives of v'B u by all u, and v'B u."""
            back = (u[:, None, :d] @ of)[:, 0]
            value = (u * back).sum(1)
            back[:, :d] += (of @ u[..., None])[..., 0]
            return back, value

        for _ in range(rounds):
            fixed = np.where(np.abs(L) >= gradient(sizes, free)[0], -np.sign(L), 0.0) * free
            bent, value = gradient(B, fixed)
            c = c + (L * fixed).sum(1) + value
            free = free * (fixed == 0)
            L = (L + bent) * free
        squares = np.zeros_like(L)
        squares[:, :d] = np.einsum("nii->ni", B[:, :, :d]) * free[:, :d]
        inside = 2 * squares > np.abs(L)  # squares v^2 + L v has its least value between the ends
        alone = np.where(inside, -L * L / np.where(inside, 4 * squares, 1.0), squares - np.abs(L))
        mixed = gradient(sizes, free)[1] - np.abs(squares).sum(1)
        p = Spread.of(y, self)
        bound = (
            np.fmax(c + alone.sum(1) - mixed - outside, y.c + p.middle - p.linear - p.named - p.width)
            - missed
        )
        return bound

    def _price_bound(self, y: SecondOrderModel) -> Array:
        """By prices of length, but for rounding. A remainder that v cannot turn is at its worse end, any other costs all it may."""
        d, known = self.d, y.B.shape[2]
        crossed = self.reach(y.B[:, :, d:].swapaxes(1, 2))
        end = np.where(np.abs(y.L[:, d:known]) >= crossed, np.sign(y.L[:, d:known]), 0.0)
        turned = (y.B[:, :, d:] @ end[..., None])[..., 0]
        named = np.abs(y.L[:, d:]).sum(1) + np.where(end == 0, crossed, 0.0).sum(1)
        bound: Array = y.c - named + balls.least(y.L[:, :d] - turned, y.B[:, :, :d], self.starts)
        return bound


@dataclass(frozen=True)
class Spread:
    """|L v| <= linear, |L r| <= named, |v'B u - middle| <= width, all with what rounding may have cost them; at = c + middle, up to a
    number that is in the rest; all: at least the sizes of all that the model holds."""

    linear: Array
    named: Array
    middle: Array
    width: Array
    at: Array
    rest: Array
    all: Array

    @staticmethod
    def of(y: SecondOrderModel, ball: UnitBall) -> "Spread":
        d = ball.d
        linear, named = ball.reach(y.L[:, :d]), np.abs(y.L[:, d:]).sum(1)
        if y.curved is not None:
            middle, width = y.curved
        elif np.isinf(ball.norm):  # squares lie between zero and one
            squares = np.einsum("nii->ni", y.B[:, :, :d]) if y.B.shape[2] else y.L[:, :0]
            middle, width = squares.sum(1) / 2, np.abs(y.B).sum((1, 2)) - np.abs(squares).sum(1) / 2
        else:
            squared = ball.reach(ball.reach(y.B[:, :, :d])) if y.B.shape[2] else np.zeros_like(y.c)
            middle, width = np.zeros_like(y.c), squared + ball.reach(y.B[:, :, d:].swapaxes(1, 2)).sum(1)
        if (
            y.curved is None and FEW <= d <= PRICED and y.B.shape[2]
        ):  # mixed signs reach less far than their sizes together
            low, high = balls.reach(y.B[:, :, :d], y.B[:, :, d:], ball.starts)
            low, high = np.fmax(middle - width, low), np.fmin(middle + width, high)
            middle, width = (low + high) / 2, np.maximum(high - low, 0.0) / 2
        size = y.size + np.abs(y.c) + y.rest
        off = 8 * gamma(y.terms) * size + TINY
        return Spread(
            linear + off,
            named + off,
            middle,
            width + off,
            y.c + middle,
            y.rest + off,
            2 * size + linear + named + width + off,
        )


def _outer(L: Array, M: Array, d: int) -> Array:
    """The second-order part of (L u)(M u): (n, d, k), without products of two remainders."""
    both: Array = L[:, :d, None] * M[:, None] + M[:, :d, None] * L[:, None]
    both[:, :, :d] *= 0.5
    return both


def along(
    function: ProductFunction | PiecewiseLinear,
    y: SecondOrderModel,
    slope: Array,
    bend: Array,
    low: Array,
    high: Array,
    ball: UnitBall,
) -> SecondOrderModel:
    """function(y) for low <= y <= high. Of D = L u + q + e with |q + e| <= loose and |D| <= away the square is (L u)^2, of which products
    of two remainders lie between 0 and named^2, and at most loose (2 away - loose) more or loose (2 reach - loose) less, |L u| <= reach."""
    more = (bend,) if isinstance(function, ProductFunction) else ()
    least = function.least(1.0, (slope,), (low,), (high,), *more)
    most = -function.least(-1.0, (-slope,), (low,), (high,), *(-part for part in more))
    p = Spread.of(y, ball)
    steep, loose = slope + 2 * bend * p.at, p.width + p.rest
    line = p.linear + p.named
    away = np.maximum(np.minimum(np.maximum(high - p.at, p.at - low), line + loose), loose)
    reach = np.maximum(np.minimum(line, away + loose), loose)
    c = (
        (least + most) / 2
        + p.at * (slope + bend * p.at)
        - steep * p.middle
        + bend * (p.named**2 / 2 + loose * (away - reach))
    )
    rest = (
        (most - least) / 2
        + np.abs(steep) * p.rest
        + np.abs(bend) * (p.named**2 / 2 + loose * (away + reach - loose))
    )
    B = _outer(y.L, y.L, ball.d) * bend[:, None, None]
    B[:, :, : y.B.shape[2]] += steep[:, None, None] * y.B
    # With s = L v and t = L r, B holds bend (s^2 + 2 s t), where s^2 + 2 s t is least at s = -t, beside steep times what y holds.
    shorter = np.minimum(p.linear, p.named)
    below, above = -shorter * (2 * p.named - shorter), p.linear * (p.linear + 2 * p.named)
    charged = np.abs(least) + np.abs(most) + 4 * np.abs(slope) * p.all + 16 * np.abs(bend) * p.all**2
    curved = (
        steep * p.middle + bend * (below + above) / 2,
        np.abs(steep) * p.width + np.abs(bend) * (above - below) / 2,
    )
    curved = (
        curved[0],
        curved[1] + gamma(64) * charged + TINY,
    )  # steep and bend times what B holds may cancel, and leave less than was added up
    return replace(_make_model(c, steep[:, None] * y.L, B, rest, charged), curved=curved)


def times(
    a: SecondOrderModel,
    z: SecondOrderModel,
    a_ends: tuple[Array, Array],
    z_ends: tuple[Array, Array],
    ball: UnitBall,
) -> SecondOrderModel:
    """a z, where the values themselves lie between these ends. Without its rest a model is no farther from `at` than `away`."""
    p, q, k = Spread.of(a, ball), Spread.of(z, ball), max(a.L.shape[1], z.L.shape[1])
    L, M = (np.pad(y.L, ((0, 0), (0, k - y.L.shape[1]))) for y in (a, z))
    B = _outer(L, M, ball.d)
    for y, at in ((a, q.at), (z, p.at)):
        B[:, :, : y.B.shape[2]] += at[:, None, None] * y.B
    c = p.at * q.at - p.at * q.middle - q.at * p.middle
    lines, aways, largest = (p.linear + p.named, q.linear + q.named), [], []
    for side, line, (low, high) in zip((p, q), lines, (a_ends, z_ends), strict=True):
        aways.append(np.minimum(np.maximum(high - side.at, side.at - low) + side.rest, line + side.width))
        largest.append(np.maximum(np.abs(low), np.abs(high)))
    rest = p.named * q.named + np.minimum(
        lines[0] * q.width + p.width * aways[1], p.width * lines[1] + q.width * aways[0]
    )
    rest = rest + p.rest * largest[1] + q.rest * (largest[0] + p.rest)
    return _make_model(c, p.at[:, None] * M + q.at[:, None] * L, B, rest, 8 * p.all * q.all)


def _make_model(c: Array, L: Array, B: Array, rest: Array, charged: Array) -> SecondOrderModel:
    """What rounding may have missed joins the rest; the size is found again."""
    size = (np.abs(c) + np.abs(L).sum(1) + np.abs(B).sum((1, 2))) * (1 + gamma(B[0].size + L.shape[1] + 16))
    return SecondOrderModel(c, L, B, rest * (1 + gamma(32)) + gamma(64) * charged + TINY, size)


def _carry_part(part: StepTerm, x: Array, weight: Array | None) -> Array:
    """What a part makes of numbers (n, ...) of its source: (elements, all else in one)."""
    many = int(np.prod(x.shape[1:]))
    z = x.reshape(len(x), many)
    if not part.whole or len(part.take) != len(x):
        z = z[part.take] * (part.take >= 0)[:, None]
    if weight is None or weight.ndim == 1:
        return z if weight is None else z * weight[:, None]
    runs = len(z) // len(weight)
    return (weight.T @ z.reshape(runs, len(weight), many)).reshape(runs * weight.shape[1], many)


@dataclass
class SecondOrderBounds(StepBounds):
    """Models beside planes, one part of the region at a time: each is held to the intervals that the other finds. `parabolas/K` of the
    proof is (parts of the region, 2, arguments, n), the a and b of every function; without it a line takes their place."""

    models: dict[int, SecondOrderModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps, region = self.program.steps, self.region
        lower, upper = region.lower[0], region.upper[0]
        centre, moves = lower / 2 + upper / 2, np.flatnonzero(upper > lower)
        size, starts = np.maximum(upper - centre, centre - lower) * (1 + 4 * UNIT), np.arange(len(moves))
        if not np.isinf(region.norm) and region.centre is not None and region.spans is not None:
            run = len(lower) // len(region.spans)
            centre, size, starts = (
                region.centre,
                np.repeat(region.spans, run),
                np.unique(moves // run, return_index=True)[1],
            )
        self.ball = UnitBall(len(moves), region.norm, starts)
        self.count = len(moves)  # of all u so far
        self.ranged = {0}  # steps whose intervals know of their models
        self.readers: dict[int, list[tuple[int, StepTerm]]] = {
            self.program.output.step: [(len(steps), StepTerm(0, np.zeros(0, int), None, None))]
        }
        for place in range(len(steps) - 1, 0, -1):  # only what the output needs has readers
            for part in steps[place].parts if place in self.readers else ():
                self.readers.setdefault(part.source, []).append((place, part))
        L = np.zeros((len(lower), len(moves)))
        L[moves, np.arange(len(moves))] = size[moves]
        self.models[0] = SecondOrderModel(
            centre, L, np.zeros((*L.shape, 0)), np.zeros(len(lower)), np.abs(centre) + size
        )
        super().__post_init__()

    def _joins_sum(self, place: int) -> bool:
        """Is it a function that one map alone reads, element by element? Then its rest is left to be named there."""
        readers = self.readers.get(place, [])
        once = (
            len(readers) == 1
            and readers[0][0] < len(self.program.steps)
            and isinstance(self.program.steps[readers[0][0]], AffineStep)
        )
        weight = readers[0][1].weight if once else None
        return (
            once and isinstance(self.program.steps[place], Applied) and (weight is None or weight.ndim == 1)
        )

    def _store(self, place: int, model: SecondOrderModel, named: bool) -> None:
        step = self.program.steps[place]
        if not bool(((model.size < LARGEST) & (model.rest < LARGEST)).all()):
            raise Rejected(f"step {place} ({step.name}): its model has no bounds that are numbers")
        self.models[place] = model.name_remainder(self.count) if named else model
        self.count += step.size if named else 0
        for part in step.parts:
            if max(reader for reader, _ in self.readers[part.source]) <= place:
                self.models.pop(part.source, None)

    def _at_once(self, name: str, many: int) -> int:
        """Of so many elements, how many may be looked at together."""
        each = max(1, self.ball.d * self.count)
        if many * each > MOST:
            raise Rejected(
                f"{name}: its model would hold {many} x {each} numbers, more than {MOST}. Let fewer inputs move, or use planes"
            )
        return max(1, AT_ONCE // each)

    def _some(self, name: str, many: int) -> list[Array]:
        """The numbers of so many elements, in parts."""
        return np.split(np.arange(many), range(0, many, self._at_once(name, many))[1:])

    def _apply_map(self, step: AffineStep) -> SecondOrderModel:
        """W applied to every coefficient, with the sizes of W to rest and size."""
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
                B[to, :, : y.B.shape[2]] += _carry_part(part, y.B, part.weight).reshape(
                    B[to].shape[0], *y.B.shape[1:]
                )
            rest[to] += _carry_part(part, y.rest, absolute)[:, 0]
            size[to] += _carry_part(part, y.size, absolute)[:, 0]
        return SecondOrderModel(
            c, L, B, rest * (1 + gamma(terms)) + 4 * gamma(terms) * size + TINY, size * (1 + gamma(terms))
        )

    def _affine(self, step: AffineStep, place: int) -> None:
        super()._affine(step, place)
        if place in self.readers:
            self._store(
                place, self._apply_map(step), any(self._joins_sum(part.source) for part in step.parts)
            )

    def _narrow(self, part: StepTerm, reader: Applied) -> None:
        super()._narrow(part, reader)
        if part.source in self.ranged or part.source not in self.models:
            return
        self.ranged.add(part.source)
        y, low, high = self.models[part.source], self.lower[part.source][0], self.upper[part.source][0]
        for some in self._some("an interval", len(low)):
            own = y.take_elements(some)
            low[some] = np.fmax(low[some], self.ball.least(own, 1))
            high[some] = np.fmin(
                high[some], -self.ball.least(SecondOrderModel(-own.c, -own.L, -own.B, own.rest, own.size), 1)
            )
        if not bool((low <= high).all()):
            raise Rejected(f"step {part.source}: its bounds exclude each other")

    def _apply_function(self, step: Applied, place: int) -> None:
        super()._apply_function(step, place)
        if place not in self.readers:
            return
        parts = [self._through(step, place, some) for some in self._some(step.name, step.size)]
        joined = (
            np.concatenate([getattr(y, name) for y in parts]) for name in ("c", "L", "B", "rest", "size")
        )
        self._store(place, SecondOrderModel(*joined), not self._joins_sum(place))

    def _through(self, step: Applied, place: int, some: Array) -> SecondOrderModel:
        factors, values = [], []
        for argument, (part, function) in enumerate(zip(step.parts, step.function.curves, strict=True)):
            y = self.models[part.source].take_elements(part.take[some])
            low, high = (
                part.take_elements(known[part.source])[0, some] for known in (self.lower, self.upper)
            )
            ends = low, high
            if function != ProductFunction("identity"):
                if f"parabolas/{place}" in self.slopes:
                    slope, bend = self.slopes[f"parabolas/{place}"][0][:, argument][:, some]
                    bend = bend if isinstance(function, ProductFunction) else np.zeros_like(bend)
                else:
                    (below,), (above,) = function.slopes((low,), (high,))
                    slope, bend = (below + above) / 2, np.zeros_like(below)
                if not bool(((np.abs(slope) < LARGEST) & (np.abs(bend) < LARGEST)).all()):
                    raise Rejected(f"step {place} ({step.name}): a parabola is no number")
                y = along(function, y, slope, bend, low, high, self.ball)
                ends = function.range((low,), (high,))
            factors.append(y)
            values.append(ends)
        return (
            factors[0]
            if len(factors) == 1
            else times(factors[0], factors[1], values[0], values[1], self.ball)
        )

    def rows(self, matrix: Array, offset: Array, signs: Mapping[int, Array] | None = None) -> Array:
        """The better of both."""
        view = self.program.output
        part = StepTerm(view.step, view.index.ravel(), matrix.T.astype(np.float64), None)
        asked = self._apply_map(
            AffineStep("the claim", len(matrix), (part,), offset.astype(np.float64), np.abs(offset))
        )
        least = np.concatenate(
            [
                self.ball.least(asked.take_elements(some), ROUNDS)
                for some in self._some("the claim", len(matrix))
            ]
        )
        best: Array = np.fmax(super().rows(matrix, offset, signs), least[None])
        return best
