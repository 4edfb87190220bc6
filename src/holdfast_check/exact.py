"""A second opinion in rational arithmetic: the bounds of a proof recomputed without rounding of float64.

Statement. `exact_margin` returns a rational number m: over every leaf, every group has a row whose minimum over the
leaf exceeds the claimed number by at least m. If m > 0, the claim holds.

Numbers are integers times a power of two (`Dyadic`), so sums and products are exact. Only intervals and intercepts
are shortened, outwards, to multiples of 2^-BITS. Weights may differ from those of the model by 16 units roundoff
(`steps.AffineStep`); every backward pass is charged 16 u (|L| |W| |x| + |L| |b|) for that.

What is shared with the other checker: the reading of files, the list of steps, and the slopes that are tried, none of
which decides anything but what is claimed. What is not: intervals, intercepts, backward passes, the minimum over the
region, trees, and all treatment of rounding. So an error of `planes`, `functions`, `region` or `arithmetic` shows
as a difference of two margins.

Supported are piecewise-linear functions; anything else is `NotRecomputed`, and so is a proof that would take too long.

Assumption: the steps are those of the model (`graph`), and integers of Python are exact.

Reference: none; the statement is that of `planes`, in rational arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.functions import PiecewiseLinear
from holdfast_check.limits import look_at_clock
from holdfast_check.proof import SHARED, Claim
from holdfast_check.rows import RowRegion
from holdfast_check.steps import AffineStep, FunctionStep, Program, StepTerm

BITS = (
    160  # Intervals and intercepts are multiples of 2^-BITS (chosen by hand: far below float64's rounding).
)
MOST_PRODUCTS = 2 * 10**9  # Products of a proof, minutes of integers in Python (chosen by hand).
ROWS_AT_ONCE = 64  # Rows of one backward pass (chosen by hand).


class NotRecomputed(Exception):
    """A proof that exact arithmetic does not cover here: the other checker's verdict stands alone."""


@dataclass(frozen=True)
class Dyadic:
    """The numbers num 2^-exp, with num an array of Python's integers."""

    num: Array
    exp: int

    @staticmethod
    def of(values: Array | float) -> Dyadic:
        """Float64 numbers, exactly."""
        array = np.asarray(values, dtype=np.float64)
        pairs = [value.as_integer_ratio() for value in array.ravel().tolist()]
        exp = max((below.bit_length() - 1 for _, below in pairs), default=0)
        num = np.empty(len(pairs), dtype=object)
        num[:] = [above << (exp - below.bit_length() + 1) for above, below in pairs]
        return Dyadic(num.reshape(array.shape), exp)

    def at(self, exp: int) -> Array:
        """The integers for a larger exponent."""
        return self.num if exp == self.exp else self.num * (1 << (exp - self.exp))

    def __add__(self, other: Dyadic) -> Dyadic:
        exp = max(self.exp, other.exp)
        return Dyadic(self.at(exp) + other.at(exp), exp)

    def __neg__(self) -> Dyadic:
        return Dyadic(-self.num, self.exp)

    def __sub__(self, other: Dyadic) -> Dyadic:
        return self + -other

    def __mul__(self, other: Dyadic) -> Dyadic:
        return Dyadic(self.num * other.num, self.exp + other.exp)

    def __matmul__(self, other: Dyadic) -> Dyadic:
        return Dyadic(self.num @ other.num, self.exp + other.exp)

    def __getitem__(self, key: Any) -> Dyadic:
        return Dyadic(np.asarray(self.num[key], dtype=object), self.exp)

    def __abs__(self) -> Dyadic:
        return Dyadic(np.abs(self.num), self.exp)

    def sum(self, axis: int) -> Dyadic:
        return Dyadic(self.num.sum(axis), self.exp)

    def positive(self) -> Dyadic:
        return Dyadic(np.maximum(self.num, 0), self.exp)

    def down(self) -> Dyadic:
        """A multiple of 2^-BITS at or below each number."""
        return Dyadic(self.num >> (self.exp - BITS), BITS) if self.exp > BITS else Dyadic(self.at(BITS), BITS)

    def up(self) -> Dyadic:
        return -(-self).down()

    def floats(self) -> Array:
        """The nearest float64 numbers, for slopes to try."""
        near = [float(Fraction(int(value), 1 << self.exp)) for value in self.num.ravel()]
        return np.array(near).reshape(self.num.shape)

    def fractions(self) -> list[Fraction]:
        return [Fraction(int(value), 1 << self.exp) for value in self.num.ravel()]


def smaller(a: Dyadic, b: Dyadic) -> Dyadic:
    exp = max(a.exp, b.exp)
    return Dyadic(np.minimum(a.at(exp), b.at(exp)), exp)


def larger(a: Dyadic, b: Dyadic) -> Dyadic:
    return -smaller(-a, -b)


def zeros(*shape: int) -> Dyadic:
    return Dyadic(np.full(shape, 0, dtype=object), 0)


def apply_term(part: StepTerm, x: Dyadic, size: int, absolute: bool = False) -> Dyadic:
    """The term y[place] = x[take] W of a vector x (n,), as a vector (size,)."""
    z = Dyadic(np.append(x.num, 0)[part.take], x.exp)
    if part.weight is not None:
        weight = Dyadic.of(np.abs(part.weight) if absolute else part.weight)
        if part.weight.ndim == 1:
            z = z * weight
        else:
            product = Dyadic(z.num.reshape(-1, len(part.weight)), z.exp) @ weight
            z = Dyadic(product.num.reshape(-1), product.exp)
    num = np.full(size, 0, dtype=object)
    num[slice(None) if part.place is None else part.place] = z.num
    return Dyadic(num, z.exp)


def apply_back(part: StepTerm, rows: Dyadic, size: int) -> Dyadic:
    """The transpose: coefficients (rows, elements of y) -> (rows, size)."""
    z = rows if part.place is None else rows[:, part.place]
    if part.weight is not None and part.weight.ndim == 1:
        z = z * Dyadic.of(part.weight)
    elif part.weight is not None:
        many = len(z.num)
        product = Dyadic(z.num.reshape(-1, part.weight.shape[1]), z.exp) @ Dyadic.of(part.weight.T)
        z = Dyadic(product.num.reshape(many, -1), product.exp)
    num = np.full((len(z.num), size + 1), 0, dtype=object)
    columns: Any = (slice(None), part.take)
    np.add.at(num, columns, z.num)  # Index -1, a zero, falls on the last column.
    return Dyadic(num[:, :-1], z.exp)


def evaluate(function: PiecewiseLinear, x: Dyadic) -> Dyadic:
    """f(x) = f(k) + s_0 (x - k) + sum over later kinks of (s_i+1 - s_i) max(x - kink, 0), and s_1 beyond k."""
    first = x - Dyadic.of(function.kinks[0])
    rising = first.positive()
    low, high = Dyadic.of(function.factors[0]), Dyadic.of(function.factors[1])
    result = Dyadic.of(function.value_there) + high * rising - low * (-first).positive()
    for kink, before, after in zip(function.kinks[1:], function.factors[1:], function.factors[2:]):
        result = result + (Dyadic.of(after) - Dyadic.of(before)) * (x - Dyadic.of(kink)).positive()
    return result


def least(function: PiecewiseLinear, sign: int, slope: Dyadic, lower: Dyadic, upper: Dyadic) -> Dyadic:
    """The minimum of sign f(v) - slope v over [lower, upper]: ends and kinks attain it."""
    best: Dyadic | None = None
    points = [lower, upper]
    points += [smaller(larger(Dyadic.of(kink), lower), upper) for kink in function.kinks]
    for point in points:
        value = evaluate(function, point)
        here = (value if sign > 0 else -value) - slope * point
        best = here if best is None else smaller(best, here)
    assert best is not None
    return best.down()


@dataclass(frozen=True)
class ExactPlanes:
    """Linear bounds of a function; slopes and intercepts (1 or rows, n)."""

    below: Dyadic
    least: Dyadic
    above: Dyadic
    most: Dyadic


class ExactBounds:
    """Bounds of every step over one leaf of a region.

    Args:
        slopes: the arrays of the proof, with the leaf's own where they are given per leaf.
        held: over a leaf of a tree of signs, known intervals of every step.
        walks: whether backward passes tighten the arguments of functions.
    """

    def __init__(
        self,
        program: Program,
        claim: Claim,
        lower: Array,
        upper: Array,
        slopes: Mapping[str, Array],
        held: list[tuple[Dyadic, Dyadic]] | None = None,
        walks: bool = True,
        budget: list[int] | None = None,
    ) -> None:
        self.program, self.claim, self.slopes, self.held = program, claim, slopes, held
        self.budget = [MOST_PRODUCTS] if budget is None else budget
        self.lower, self.upper = [Dyadic.of(lower).down()], [Dyadic.of(upper).up()]
        self.sizes, self.planes = [zeros(len(lower))], dict[int, ExactPlanes]()
        self.rowwise = dict[int, ExactPlanes]()
        self.empty = False
        self._hold(0)
        for place, step in enumerate(program.steps[1:], 1):
            if isinstance(step, AffineStep):
                self._affine(step)
            else:
                for part in step.parts if walks else ():
                    self._tighten(part, step)
                self._function(step, place)
            self._hold(place)
            if self.empty:
                return

    def _hold(self, place: int) -> None:
        if self.held is not None:
            self.lower[place] = larger(self.lower[place], self.held[place][0])
            self.upper[place] = smaller(self.upper[place], self.held[place][1])
            exp = max(self.lower[place].exp, self.upper[place].exp)
            self.empty |= bool((self.lower[place].at(exp) > self.upper[place].at(exp)).any())

    def _largest(self, place: int) -> Dyadic:
        return larger(abs(self.lower[place]), abs(self.upper[place]))

    def _affine(self, step: AffineStep) -> None:
        """W+ l + W- u + b and W+ u + W- l + b, moved outwards by 16 u M."""
        low = high = Dyadic.of(step.offset)
        sizes = Dyadic.of(step.offset_size)
        for part in step.parts:
            self._spend(
                part.take.size * (1 if part.weight is None or part.weight.ndim == 1 else part.weight.shape[1])
            )
            start, end = self.lower[part.source], self.upper[part.source]
            total = apply_term(part, start + end, step.size)
            spread = apply_term(part, end - start, step.size, absolute=True)
            half = Dyadic(np.array([[1]], dtype=object), 1)
            low = low + ((total - spread) * half)[0]
            high = high + ((total + spread) * half)[0]
            sizes = sizes + apply_term(part, self._largest(part.source), step.size, absolute=True)
        sizes = sizes.up()
        missed = Dyadic(sizes.num, sizes.exp + 49)  # 16 u = 2^-49.
        self.lower.append((low - missed).down())
        self.upper.append((high + missed).up())
        self.sizes.append(sizes)

    def _spend(self, products: int) -> None:
        look_at_clock()
        self.budget[0] -= products
        if self.budget[0] < 0:
            raise NotRecomputed(f"more than {MOST_PRODUCTS} products of integers")

    def _function_of(self, step: FunctionStep) -> tuple[PiecewiseLinear, StepTerm]:
        if not isinstance(step.function, PiecewiseLinear):
            raise NotRecomputed(f"{step.name}: a function that is not piecewise linear")
        return step.function, step.parts[0]

    def _interval(self, part: StepTerm) -> tuple[Dyadic, Dyadic]:
        low, high = self.lower[part.source], self.upper[part.source]
        return Dyadic(np.append(low.num, 0)[part.take], low.exp), Dyadic(
            np.append(high.num, 0)[part.take], high.exp
        )

    def _function(self, step: FunctionStep, place: int) -> None:
        function, part = self._function_of(step)
        low, high = self._interval(part)
        given = self.slopes.get(f"slopes/{place}")
        if given is not None:
            below, above = given[0, 0, 0], given[0, 1, 0]
        else:
            (below,), (above,) = function.slopes((low.floats(),), (high.floats(),))
        self.planes[place] = self._planes(function, low, high, below[None], above[None])
        if f"rows/{place}" in self.slopes:
            self.rowwise[place] = self._with(place, self.slopes[f"rows/{place}"][0])
        level = zeros(1)
        self.lower.append(least(function, 1, level, low, high))
        self.upper.append(-least(function, -1, level, low, high))
        self.sizes.append(zeros(step.size))

    @staticmethod
    def _planes(
        function: PiecewiseLinear, low: Dyadic, high: Dyadic, below: Array, above: Array
    ) -> ExactPlanes:
        under, over = Dyadic.of(below), Dyadic.of(above)
        return ExactPlanes(
            under, least(function, 1, under, low, high), over, -least(function, -1, -over, low, high)
        )

    def _with(self, place: int, given: Array) -> ExactPlanes:
        """Other lower slopes (rows, n), for all elements or those in `at/K`."""
        step = self.program.steps[place]
        if not isinstance(step, FunctionStep):
            raise NotRecomputed(f"step {place} is no function")
        function, part = self._function_of(step)
        usual = self.planes[place]
        below = np.repeat(usual.below.floats(), len(given), 0)
        below[:, self.slopes.get(f"at/{place}", slice(None))] = (
            given / 255.0 if given.dtype == np.uint8 else given
        )
        low, high = self._interval(part)
        under = Dyadic.of(below)
        return ExactPlanes(under, least(function, 1, under, low, high), usual.above, usual.most)

    def _tighten(self, part: StepTerm, reader: FunctionStep) -> None:
        """Backward passes for the arguments of a function whose interval contains a kink, and for those to which
        the proof brings slopes.
        """
        function, _ = self._function_of(reader)
        place = part.source
        if place == 0:
            return
        low, high = self.lower[place].floats(), self.upper[place].floats()
        wanted = np.zeros(len(low), dtype=bool)
        wanted[part.take[part.take >= 0]] = True
        wanted &= np.any([(low < kink) & (kink < high) for kink in function.kinks], axis=0)
        given = self.slopes.get(f"ends/{place}", np.zeros(0, dtype=np.int64))
        wanted[given] = False
        own = {
            at: self.slopes[f"ends/{at}/{place}"] for at in self.planes if f"ends/{at}/{place}" in self.slopes
        }
        for chosen, slopes in ((np.flatnonzero(wanted), {}), (given, own)):
            for start in range(0, len(chosen), ROWS_AT_ONCE):
                some = chosen[start : start + ROWS_AT_ONCE]
                units = np.zeros((2 * len(some), len(low)))
                units[np.arange(len(some)), some] = 1.0
                units[len(some) + np.arange(len(some)), some] = -1.0
                planes = {
                    at: self._with(at, np.concatenate([side[start : start + ROWS_AT_ONCE] for side in array]))
                    for at, array in slopes.items()
                }
                found = self.walk(place, Dyadic.of(units), planes).down()
                for side, values, sign in (
                    (self.lower, found[: len(some)], 1),
                    (self.upper, -found[len(some) :], -1),
                ):
                    both = larger if sign > 0 else smaller
                    merged = side[place].at(BITS).copy()
                    merged[some] = both(side[place][some], values).at(BITS)
                    side[place] = Dyadic(merged, BITS)

    def walk(
        self,
        place: int,
        rows: Dyadic,
        planes: Mapping[int, ExactPlanes],
        signs: Mapping[int, Dyadic] | None = None,
    ) -> Dyadic:
        """Lower bounds (rows,) of rows . value of a step over the leaf."""
        steps, waiting = self.program.steps, {place: rows}
        for at, added in (signs or {}).items():
            waiting[at] = waiting[at] + added if at in waiting else added
        constant = charged = zeros(len(rows.num))
        for at in range(len(self.lower) - 1, 0, -1):
            if at not in waiting:
                continue
            step, own = steps[at], waiting.pop(at)
            if isinstance(step, AffineStep):
                charged = charged + (abs(own) @ self.sizes[at]).up()
                constant = constant + own @ Dyadic.of(step.offset)
                passed = own
            else:
                bounds = planes.get(at, self.planes[at])
                rises, falls = own.positive(), (-own).positive()
                constant = constant + (rises * bounds.least - falls * bounds.most).sum(1)
                passed = rises * bounds.below - falls * bounds.above
            for part in step.parts:
                wide = 1 if part.weight is None or part.weight.ndim == 1 else part.weight.shape[1]
                self._spend(len(rows.num) * part.take.size * wide)
                arrived = apply_back(part, passed, steps[part.source].size)
                waiting[part.source] = waiting[part.source] + arrived if part.source in waiting else arrived
        if 0 in waiting:
            constant = constant + self._minimum(waiting[0])
        return constant - Dyadic(charged.num, charged.exp + 49)

    def _minimum(self, rows: Dyadic) -> Dyadic:
        """Minima (rows,) of linear functions over the leaf: at the ends of the box, or over the ball by duality."""
        box = (rows.positive() * self.lower[0] - (-rows).positive() * self.upper[0]).sum(1)
        region = self.claim.box()
        if math.isinf(region.norm) or region.centre is None or region.spans is None:
            return box
        near = [
            self._dual(
                [Fraction(int(v), 1 << rows.exp) for v in row], region.centre, region.spans, region.norm
            )
            for row in rows.num
        ]
        scaled = np.empty(len(near), dtype=object)
        scaled[:] = [math.floor(value * (1 << BITS)) for value in near]
        return larger(box, Dyadic(scaled, BITS))

    def _dual(self, row: list[Fraction], centre: Array, spans: Array, norm: float) -> Fraction:
        """row . centre - sum over groups of (max over t of sum(|row_i| t_i - price t_i^p) + price span^p), where
        0 <= t_i <= reach_i, the way to the box. Any price >= 0 is sound; a few are tried in floating point.
        """
        low, high = self.lower[0].fractions(), self.upper[0].fractions()
        middle = [Fraction(value) for value in centre.tolist()]
        total = sum((a * c for a, c in zip(row, middle)), Fraction(0))
        run = len(row) // len(spans)
        for group, span in enumerate(Fraction(value) for value in spans.tolist()):
            own = range(group * run, (group + 1) * run)
            steep = [abs(row[i]) for i in own]
            reach = [max(Fraction(0), middle[i] - low[i] if row[i] > 0 else high[i] - middle[i]) for i in own]
            total -= min(
                _fall(steep, reach, span, price, norm) for price in _prices(steep, reach, span, norm)
            )
        return total

    def rows(self, matrix: Array, offset: Array, signs: Mapping[int, Dyadic] | None = None) -> list[Fraction]:
        """Lower bounds of matrix . output + offset; infinite over an empty leaf is left to the caller."""
        view = self.program.output
        part = StepTerm(view.step, view.index.ravel(), None, None)
        size = self.program.steps[view.step].size
        given = Dyadic.of(matrix)
        found = self.walk(view.step, apply_back(part, given, size), self.rowwise, signs)
        return (found + Dyadic.of(offset)).fractions()


def _fall(
    steep: list[Fraction], reach: list[Fraction], span: Fraction, price: Fraction, norm: float
) -> Fraction:
    if norm == 1:
        return sum((max(Fraction(0), s - price) * r for s, r in zip(steep, reach)), price * span)
    total = price * span * span
    for s, r in zip(steep, reach):
        t = r if price == 0 or s >= 2 * price * r else s / (2 * price)
        total += s * t - price * t * t
    return total


def _prices(steep: list[Fraction], reach: list[Fraction], span: Fraction, norm: float) -> Iterable[Fraction]:
    """Prices to try: zero, and the one at which the moves use up the span, by bisection in floating point."""
    yield Fraction(0)
    s, r, most = np.array([float(v) for v in steep]), np.array([float(v) for v in reach]), float(span)
    if most == 0:
        yield max(steep, default=Fraction(0)) * 10**6
        return
    low, high = 0.0, float(s.max(initial=0.0)) * (1e6 if norm == 2 else 1.0)
    for _ in range(80):
        price = (math.sqrt(max(low, high * 1e-16) * high) if norm == 2 else (low + high) / 2) if high else 0.0
        if norm == 2:
            moved = np.minimum(r, s / (2 * price)) if price else r
            far = float((moved * moved).sum()) > most * most
        else:
            far = float(np.where(s > price, r, 0.0).sum()) > most
        low, high = (price, high) if far else (low, price)
    yield Fraction(high)


def _halves(lower: Array, upper: Array, cuts: Array) -> Iterable[tuple[Array, Array]]:
    """The leaves of a tree of halves; NotRecomputed if it is no complete tree."""
    waiting = [(lower, upper)]
    for along in cuts.tolist():
        if not waiting:
            raise NotRecomputed("the tree continues after its last leaf")
        low, high = waiting.pop()
        if along < 0:
            yield low, high
            continue
        middle = low[along] / 2 + high[along] / 2
        if not low[along] <= middle <= high[along]:
            raise NotRecomputed("a side that cannot be halved")
        first, second = high.copy(), low.copy()
        first[along] = second[along] = middle
        waiting += [(second, high), (low, first)]
    if waiting:
        raise NotRecomputed("the tree is not complete")


def exact_margin(claim: Claim, program: Program) -> Fraction:
    """The margin of a proof, in rational arithmetic: by how much, at the worst leaf, every group has a row above the
    claimed number. NotRecomputed where this module does not apply.
    """
    if claim.kind != "proof" or any(name.startswith("parabolas/") for name in claim.slopes):
        raise NotRecomputed("a witness" if claim.kind != "proof" else "quadratic models")
    if isinstance(claim.region, RowRegion):
        raise NotRecomputed("counted changes")
    above, budget, margins = Fraction(claim.above), [MOST_PRODUCTS], list[Fraction]()

    def judge(rows: list[Fraction], groups: Iterable[tuple[int, ...]]) -> None:
        margins.extend(max(rows[row] for row in group) - above for group in groups)

    lower, upper = claim.box().lower[0], claim.box().upper[0]
    for leaf, (low, high) in enumerate(_halves(lower, upper, claim.cuts)):
        slopes = {
            name: array[leaf : leaf + 1] if name.startswith(SHARED) and len(array) > 1 else array
            for name, array in claim.slopes.items()
        }
        whole = ExactBounds(program, claim, low, high, slopes, budget=budget)
        rows = whole.rows(claim.matrix, claim.offset)
        if claim.signs is None:
            judge(rows, claim.groups)
            continue
        own = claim.signs.groups
        judge(rows, [group for place, group in enumerate(claim.groups) if place not in own])
        chosen = [row for place in own for row in claim.groups[place]]
        ends = np.cumsum([0, *(len(claim.groups[place]) for place in own)]).tolist()
        groups = [tuple(range(a, b)) for a, b in zip(ends, ends[1:])]
        for rows in _by_signs(whole, claim, chosen, budget):
            judge(rows, groups)
    return min(margins)


def _by_signs(
    whole: ExactBounds, claim: Claim, chosen: list[int], budget: list[int]
) -> Iterable[list[Fraction]]:
    """The bounds of rows over each leaf of a tree of signs: row . y >= row . y - beta s e, where s e >= 0."""
    assert claim.signs is not None
    tree, many = claim.signs, [step.size for step in whole.program.steps]
    waiting: list[list[tuple[int, int, int]]] = [[]]
    leaf = used = 0
    for step, element in tree.tree.tolist():
        if not waiting:
            raise NotRecomputed("the tree continues after its last leaf")
        path = waiting.pop()
        if step >= 0:
            waiting += [[*path, (step, element, 1)], [*path, (step, element, -1)]]
            continue
        held = [
            (Dyadic(low.at(BITS).copy(), BITS), Dyadic(high.at(BITS).copy(), BITS))
            for low, high in zip(whole.lower, whole.upper)
        ]
        signs = dict[int, Dyadic]()
        for at, place, sign in path:
            side = held[at][0 if sign > 0 else 1].num
            side[place] = max(side[place], 0) if sign > 0 else min(side[place], 0)
            term = np.zeros((len(chosen), many[at]))
            if (tree.multipliers[used] < 0).any():
                raise NotRecomputed("a negative multiplier")
            term[:, place] = -sign * tree.multipliers[used]
            signs[at] = signs[at] + Dyadic.of(term) if at in signs else Dyadic.of(term)
            used += 1
        slopes = {name: array for name, array in claim.slopes.items() if name.startswith("at/")}
        slopes.update({name: array[leaf : leaf + 1] for name, array in tree.slopes.items()})
        leaf += 1
        bounds = ExactBounds(
            whole.program,
            claim,
            claim.box().lower[0],
            claim.box().upper[0],
            slopes,
            held,
            tree.refine,
            budget,
        )
        if not bounds.empty:
            yield bounds.rows(claim.matrix[chosen], claim.offset[chosen], signs)
    if waiting or used != len(tree.multipliers):
        raise NotRecomputed("the tree of signs is not complete")
