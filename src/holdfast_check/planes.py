"""Bounds of a network over a region: interval arithmetic forwards, linear bounds backwards (CROWN), rounding
included.

Statement: for every leaf of the region and every row Lambda, `StepBounds.rows` returns a number

    m <= min over x in the region of  Lambda . f(x) + offset.

Forward pass: every element of every step has an interval l <= y <= u. Before a function is applied, the
intermediate bounds of its pre-activations are tightened by a backward pass.

Backward pass: a row of coefficients L is passed from a step to its sources. Through an affine map y = W x + b
it becomes L W, with constant L b. Through a function with linear bounds a_l z + c_l <= f(z) <= a_u z + c_u it
becomes max(L, 0) a_l + min(L, 0) a_u, with constant max(L, 0) c_l + min(L, 0) c_u. At the input the region
minimises the resulting linear function (`region.CheckedRegion.minimum`).

Rounding of a backward pass. For every step let M bound the sum of absolute values that enters an element: M
>= |W| |x| + |b| for a map, M >= |slopes| |z| + |intercept| for a function, with |x|, |z| bounded by the
intervals. The computed coefficient L' of L W satisfies |L' - L W| <= gamma |L| |W|, which changes the bound
by at most gamma |L| |W| |x| <= gamma |L| M. The same bound holds for weights and offsets (within 16 u of the
true ones), products with offsets, sums of constants, and coefficients that meet at one step. An element that
is an output several times gets a sum of rows, wrong by at most gamma |rows| |x|.

So the whole error is at most

    gamma(longest sum + 4 parts of all steps + 64) * (sum over all steps of |L| M  +  |rows| |x|),

and the code subtracts twice this number, because it is itself computed in floating point: its relative error
is at most gamma(n) <= 1e-3 (`arithmetic.gamma` refuses longer sums). M >= TINY covers weights and products
that underflow.

Splits. Over a leaf of a tree of signs, s x >= 0 holds for some values x of the network and s = +1 or -1. For
a multiplier beta >= 0, Lambda . y >= Lambda . y - beta s x, so a backward pass may add the coefficient -beta
s at that step; adding it is charged by beta times the largest |x|.

References: Zhang et al. 2018 (CROWN); Singh et al. 2019 (DeepPoly); Wang et al. 2021 (beta-CROWN) for the
multipliers of splits.

Assumption: the file's steps are the model's (`graph`); float64, rounded to nearest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast_check.arithmetic import (
    BACKWARD,
    INTERCEPTS,
    INTERVAL,
    LARGEST,
    LAST_BOUND,
    TINY,
    TWO_BOUNDS,
    Array,
    charge,
    round_up,
)
from holdfast_check.errors import NoBounds, Rejected, zip_equal
from holdfast_check.functions import PiecewiseLinear
from holdfast_check.limits import look_at_clock
from holdfast_check.region import CheckedRegion
from holdfast_check.steps import AffineStep, FunctionStep, Program, StepTerm

# The number of float64 coefficients in one backward pass (memory: 64 MiB; chosen by hand).
NUMBERS = 2**23
# Intermediate bounds (lower, upper), with one array per pre-activation of a function.
Ends = tuple[tuple[Array, ...], tuple[Array, ...]]


@dataclass(frozen=True)
class FunctionLinearBounds:
    """Linear bounds of a function: slopes per pre-activation and an intercept, below and above, and M
    (`sizes`). Every array is (batch, 1 or rows, n).
    """

    below: tuple[Array, ...]
    least: Array
    above: tuple[Array, ...]
    most: Array
    sizes: Array

    @staticmethod
    def of(
        step: FunctionStep, below: tuple[Array, ...], above: tuple[Array, ...], ends: Ends
    ) -> FunctionLinearBounds:
        """Compute intercepts for the given slopes; any finite slopes are sound."""
        for slope in (*below, *above):
            if not bool((np.abs(slope) < LARGEST).all()):
                raise Rejected(f"{step.name}: a slope is not finite, or too large")
        least, most = (
            step.function.least(1.0, below, *ends),
            -step.function.least(-1.0, tuple(-slope for slope in above), *ends),
        )
        sizes = np.maximum(np.abs(least), np.abs(most))
        for low, high, slope, other in zip_equal(*ends, below, above):
            sizes = sizes + np.maximum(np.abs(slope), np.abs(other)) * np.maximum(np.abs(low), np.abs(high))
        return FunctionLinearBounds(below, least, above, most, round_up(sizes, INTERCEPTS) + TINY)


@dataclass
class StepBounds:
    """Bounds of every step over a region, computed on construction.

    Attributes: `held` holds, over a leaf of a tree of signs, known intervals (batch, n) of every step.
    `walks`: whether backward passes tighten intermediate bounds; if False, only `held` does.
    """

    program: Program
    region: CheckedRegion
    slopes: Mapping[str, Array] = field(default_factory=dict)
    # Over a leaf of a tree of signs: intervals (batch, n) that contain the values of every step.
    held: Sequence[tuple[Array, Array]] = ()
    walks: bool = True  # False: no backward pass tightens intermediate bounds.
    lower: list[Array] = field(default_factory=list)  # (batch, n) per step.
    upper: list[Array] = field(default_factory=list)
    sizes: list[Array] = field(default_factory=list)  # M of affine maps.
    planes: dict[int, FunctionLinearBounds] = field(default_factory=dict)
    # Linear bounds with slopes for each row of the claim, where the proof brings them.
    last: dict[int, FunctionLinearBounds] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps, outputs = self.program.steps, self.program.output
        parts = [part for step in steps for part in step.parts]
        self.outputs = StepTerm(outputs.step, outputs.index.ravel(), None, None)
        terms = [
            outputs.index.size,
            self.outputs.terms,
            *(step.size for step in steps),
            *(part.terms for part in parts),
        ]
        # A bound of the length of any sum, including the coefficients that meet at one step.
        self.terms = max(terms) + 4 * len(parts)
        # Per step (batch, n): the elements whose intervals a backward pass has tightened.
        self.narrowed = [
            np.zeros((len(self.region.lower), step.size), dtype=bool) for step in self.program.steps
        ]
        # Leaves that are shown to contain no point.
        self.empty = np.zeros(len(self.region.lower), dtype=bool)
        self._keep(self.region.lower, self.region.upper, np.zeros_like(self.region.lower), 0)
        for place, step in enumerate(self.program.steps[1:], 1):
            look_at_clock()
            if isinstance(step, AffineStep):
                self._affine(step, place)
            else:
                for part in step.parts if self.walks else ():
                    self._narrow(part, step)
                self._apply_function(step, place)

    def _leaf(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Mark leaves whose interval is empty as containing no point, and replace such an interval: any
        bounds are valid there.
        """
        if self.held:
            self.empty |= (lower > upper).any(1)
            upper = np.maximum(lower, upper)
        return lower, upper

    def _keep(self, lower: Array, upper: Array, sizes: Array, place: int) -> None:
        """Store the interval of a step, intersected with the known one; reject intervals that are empty,
        infinite or not a number.
        """
        if self.held:
            lower, upper = self._leaf(
                np.fmax(lower, self.held[place][0]), np.fmin(upper, self.held[place][1])
            )
        if not bool(((lower <= upper) & (np.abs(lower) < LARGEST) & (np.abs(upper) < LARGEST)).all()):
            name = self.program.steps[place].name
            raise NoBounds(f"step {place} ({name}): its values have no finite bounds")
        self.lower.append(lower)
        self.upper.append(upper)
        self.sizes.append(sizes)

    def _largest(self, place: int) -> Array:
        """A bound (batch, n) of |x| at a step."""
        return np.maximum(np.abs(self.lower[place]), np.abs(self.upper[place]))

    def _affine(self, step: AffineStep, place: int) -> None:
        """Interval arithmetic through an affine map: middle and half width.

        Rounding: the middle, the half width and M are sums of at most T = terms + parts + 32 terms with sum
        of absolute values at most M, so each is wrong by at most gamma(T) M. Rounding (low + high) / 2 and
        (high - low) / 2 adds at most 2 u M. 4 gamma(T) M exceeds the sum, computed with a relative error
        below 1e-3.
        """
        many = len(self.region.lower)
        middle, half = np.tile(step.offset, (many, 1)), np.zeros((many, step.size))
        sizes = np.tile(step.offset_size, (many, 1))
        for part in step.parts:
            low, high = self.lower[part.source], self.upper[part.source]
            part.add_to(middle, (low + high) / 2)
            part.add_to(half, (high - low) / 2, absolute=True)
            part.add_to(sizes, self._largest(part.source), absolute=True)
        sizes += TINY
        missed = charge(sizes, INTERVAL, self.terms + len(step.parts))
        self._keep(middle - half - missed, middle + half + missed, sizes, place)

    def _narrow(self, part: StepTerm, reader: FunctionStep) -> None:
        """Tighten the intermediate bounds of a function's pre-activations by backward passes. Elements whose
        interval contains no kink of a piecewise-linear function are skipped, part by part, so that the bounds of a
        part do not depend on the parts that are computed with it.
        """
        source = self.program.steps[part.source]
        if part.source == 0:
            return
        used = np.zeros(source.size, dtype=bool)
        used[part.take[part.take >= 0]] = True
        open_: Array = np.tile(used, (len(self.region.lower), 1))
        if isinstance(reader.function, PiecewiseLinear):
            low, high = self.lower[part.source], self.upper[part.source]
            kinks = reader.function.kinks
            open_ &= np.any([(low < kink) & (kink < high) for kink in kinks], axis=0)
        open_ &= ~self.narrowed[part.source]
        self.narrowed[part.source] |= open_
        wanted: Array = np.asarray(open_.any(0))
        # The proof may bring slopes for individual backward passes: `ends/T` (k,) lists elements of step T,
        # and `ends/K/T` (2, k, n) holds the slopes at step K for their lower bounds and for their upper
        # bounds.
        given = self.slopes.get(f"ends/{part.source}", np.zeros(0, dtype=np.int64))
        own = {
            at: self.slopes[f"ends/{at}/{part.source}"]
            for at in self.planes
            if f"ends/{at}/{part.source}" in self.slopes
        }
        wanted[given] = False
        open_[:, given] = True
        widest = max(step.size for step in self.program.steps[: part.source + 1])
        at_once = max(1, NUMBERS // (2 * widest * len(self.region.lower)))
        for chosen, slopes in ((np.flatnonzero(wanted), {}), (given, own)):
            for start in range(0, len(chosen), at_once):
                some = slice(start, start + at_once)
                planes = {
                    at: self._with(at, array[:, some].reshape(1, -1, array.shape[-1]))
                    for at, array in slopes.items()
                }
                self._refine_by_walk(part.source, chosen[some], open_[:, chosen[some]], planes)

    def _refine_by_walk(
        self, place: int, some: Array, parts: Array, planes: Mapping[int, FunctionLinearBounds]
    ) -> None:
        """Tighten the intervals of selected elements of a step by one backward pass, in the parts of the region
        that `parts`, (batch, selected elements), names.
        """
        rows = np.zeros((len(some), self.program.steps[place].size))
        rows[np.arange(len(some)), some] = 1.0
        least = self.backward_pass(place, np.concatenate([rows, -rows])[None], planes)
        low, high = self.lower[place], self.upper[place]
        least = np.where(np.concatenate([parts, parts], 1), least, -np.inf)
        met = np.fmax(low[:, some], least[:, : len(some)]), np.fmin(high[:, some], -least[:, len(some) :])
        low[:, some], high[:, some] = self._leaf(*met)
        if not bool((low[:, some] <= high[:, some]).all()):
            raise NoBounds(f"step {place} ({self.program.steps[place].name}): its bounds exclude each other")

    def _apply_function(self, step: FunctionStep, place: int) -> None:
        """Linear bounds and the interval of a function, with the slopes of the proof, `slopes/K` (parts of
        the region, 2, pre-activations, n), or its own.
        """
        lower, upper = self._read_interval(step)
        below, above = step.function.slopes(lower, upper)
        if f"slopes/{place}" in self.slopes:
            given = self.slopes[f"slopes/{place}"]
            below, above = (
                tuple(given[:, None, side, argument] for argument in range(len(lower))) for side in (0, 1)
            )
        self.planes[place] = FunctionLinearBounds.of(step, below, above, (lower, upper))
        # (parts of the region, rows, n): lower slopes for each row of the claim.
        if f"rows/{place}" in self.slopes:
            self.last[place] = self._with(place, self.slopes[f"rows/{place}"])
        low, high = step.function.range(lower, upper)
        self._keep(low[:, 0], high[:, 0], np.zeros_like(low[:, 0]), place)

    def _read_interval(self, step: FunctionStep) -> Ends:
        """Intermediate bounds of a function's pre-activations, each (batch, 1, n)."""
        taken = [
            (part.take_elements(self.lower[part.source]), part.take_elements(self.upper[part.source]))
            for part in step.parts
        ]
        return tuple(low[:, None] for low, _ in taken), tuple(high[:, None] for _, high in taken)

    def _with(self, place: int, given: Array) -> FunctionLinearBounds:
        """Linear bounds of a function with other lower slopes, (1 or batch, rows, n), for all elements or for
        those listed in `at/K`. Slopes stored as bytes are divided by 255.
        """
        step, usual = self.program.steps[place], self.planes[place]
        if not isinstance(step, FunctionStep):
            raise Rejected(f"step {place} ({step.name}) is not a function, and has no slopes")
        below = np.repeat(usual.below[0], given.shape[1], 1)
        below[..., self.slopes.get(f"at/{place}", slice(None))] = (
            given / 255.0 if given.dtype == np.uint8 else given
        )
        return FunctionLinearBounds.of(step, (below,), usual.above, self._read_interval(step))

    def backward_pass(
        self,
        place: int,
        rows: Array,
        others: Mapping[int, FunctionLinearBounds] | None = None,
        signs: Mapping[int, Array] | None = None,
        added_up: Array | float = 0.0,
    ) -> Array:
        """Backward pass: lower bounds (batch, rows) of rows . value over each part of the region.

        Args:
            rows: (1 or batch, rows, n), coefficients of a step's elements.
            others: linear bounds that replace the stored ones in this pass.
            signs: per step (batch, rows, n), the terms -beta s of splits.
            added_up: (batch, rows), sums of absolute values where the rows themselves are sums; otherwise
                zero.
        """
        steps = self.program.steps
        waiting = {place: np.broadcast_to(rows, (len(self.region.lower), *rows.shape[1:]))}
        constant = np.zeros(waiting[place].shape[:2])
        weight = np.zeros_like(constant) + added_up
        for at, added in (signs or {}).items():
            weight += (np.abs(added) @ self._largest(at)[:, :, None])[..., 0]
            waiting[at] = waiting[at] + added if at in waiting else added
        for at in range(len(self.lower) - 1, 0, -1):
            if at not in waiting:
                continue
            look_at_clock()
            step, own = steps[at], waiting.pop(at)
            if isinstance(step, AffineStep):
                weight += (np.abs(own) @ self.sizes[at][:, :, None])[..., 0]
                constant += own @ step.offset
                passed = [own] * len(step.parts)
            else:
                planes = (others or {}).get(at, self.planes[at])
                up, down = np.maximum(own, 0.0), np.minimum(own, 0.0)
                weight += (np.abs(own) * planes.sizes).sum(-1)
                constant += (up * planes.least + down * planes.most).sum(-1)
                passed = [up * low + down * high for low, high in zip_equal(planes.below, planes.above)]
            for part, coefficients in zip_equal(step.parts, passed):
                arrived = part.back(coefficients, steps[part.source].size)
                waiting[part.source] = waiting[part.source] + arrived if part.source in waiting else arrived
        least = self.region.minimum(waiting[0]) if 0 in waiting else np.zeros_like(constant)
        missed = charge(weight, BACKWARD, self.terms + 4 * len(steps))
        size = np.abs(least) + np.abs(constant) + missed
        bound: Array = least + constant - missed - charge(size, LAST_BOUND)
        return bound

    def rows(self, matrix: Array, offset: Array, signs: Mapping[int, Array] | None = None) -> Array:
        """Lower bounds (batch, rows) of matrix . output + offset; +infinity over leaves that contain no
        point.
        """
        place, wide = self.outputs.source, matrix[None].astype(np.float64)
        coefficients = self.outputs.back(wide, self.program.steps[place].size)
        added_up = (np.abs(wide) @ self.outputs.take_elements(self._largest(place))[:, :, None])[
            ..., 0
        ] + TINY
        bound = self.backward_pass(place, coefficients, self.last, signs, added_up)
        result: Array = bound + offset - charge(np.abs(bound) + np.abs(offset), TWO_BOUNDS)
        return np.where(self.empty[:, None], np.inf, result)
