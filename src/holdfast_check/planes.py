"""Bounds of a network over a region: intervals forwards, planes back, every rounding charged.

Forwards, each element of each step gets an interval. Before a function is applied, the intervals of what it reads are narrowed by a walk
back: rows of coefficients go from a step to the steps it reads, through an affine map by its transpose, through a function by the plane
below where a coefficient is positive and by the one above where it is negative, down to the input, where the region has a smallest value.

Rounding of a walk. Let M be, for a step, at least the size of all that is added up in it: |W| |x| + |offset| for a map, |slopes| |x| +
|intercept| for a function, with |x| from the intervals. A coefficient that is computed as L' instead of L W is wrong by no more than
gamma |L| |W|, which moves the bound by gamma |L| |W| |x| <= gamma |L| M. The same holds for weights and offsets, which are within 16
units, for products with offsets, for the sums of constants, and for coefficients that meet at one step. The rows of a claim meet at the
elements that are outputs: an element that is an output twice gets a sum of coefficients, wrong by gamma |rows| |x|. So one number, the sum
over all steps of |L| M and of |rows| |x|, times gamma(longest sum + 4 parts of all steps + 64), pays for all of it; it is doubled, since
it is computed too. M is at least TINY, which pays for weights and products so small that they underflow.

Over a leaf some values x have a sign s: s x >= 0. There, for a multiplier >= 0, row . value >= row . value - multiplier s x, so a walk may
have such terms on its way; adding one at its step is charged by the multiplier times the largest |x|.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast_check.arithmetic import LARGEST, TINY, UNIT, Array, gamma
from holdfast_check.errors import Rejected
from holdfast_check.functions import PiecewiseLinear
from holdfast_check.region import CheckedRegion
from holdfast_check.steps import AffineStep, Applied, Program, StepTerm

NUMBERS = 2**23  # in the rows of one walk
Ends = tuple[tuple[Array, ...], tuple[Array, ...]]  # of what a function reads, one for each argument


@dataclass(frozen=True)
class FunctionPlanes:
    """Below and above a function: slopes for each argument, and an intercept; and M. Each is (batch, 1 or rows, n)."""

    below: tuple[Array, ...]
    least: Array
    above: tuple[Array, ...]
    most: Array
    sizes: Array

    @staticmethod
    def of(step: Applied, below: tuple[Array, ...], above: tuple[Array, ...], ends: Ends) -> "FunctionPlanes":
        """With these slopes, whatever they are."""
        for slope in (*below, *above):
            if not bool((np.abs(slope) < LARGEST).all()):
                raise Rejected(f"{step.name}: a slope is no number")
        least, most = (
            step.function.least(1.0, below, *ends),
            -step.function.least(-1.0, tuple(-slope for slope in above), *ends),
        )
        sizes = np.maximum(np.abs(least), np.abs(most))
        for low, high, slope, other in zip(*ends, below, above, strict=True):
            sizes = sizes + np.maximum(np.abs(slope), np.abs(other)) * np.maximum(np.abs(low), np.abs(high))
        return FunctionPlanes(below, least, above, most, sizes * (1 + 16 * UNIT) + TINY)


@dataclass
class StepBounds:
    """What is known of every step over the region."""

    program: Program
    region: CheckedRegion
    slopes: Mapping[str, Array] = field(default_factory=dict)
    held: Sequence[
        tuple[Array, Array]
    ] = ()  # (batch, n) of every step: over a leaf of signs, what its values are known to lie between
    walks: bool = True  # False: nothing is narrowed but by what is held
    lower: list[Array] = field(default_factory=list)  # (batch, n) each
    upper: list[Array] = field(default_factory=list)
    sizes: list[Array] = field(default_factory=list)  # M of affine maps
    planes: dict[int, FunctionPlanes] = field(default_factory=dict)
    last: dict[int, FunctionPlanes] = field(
        default_factory=dict
    )  # of the rows of the claim, where a proof brings some

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
        self.terms = max(terms) + 4 * len(parts)  # of the longest sum, with what meets at one step
        self.narrowed = [np.zeros(step.size, dtype=bool) for step in self.program.steps]
        self.empty = np.zeros(len(self.region.lower), dtype=bool)  # leaves without a point
        self._keep(self.region.lower, self.region.upper, np.zeros_like(self.region.lower), 0)
        for place, step in enumerate(self.program.steps[1:], 1):
            if isinstance(step, AffineStep):
                self._affine(step, place)
            else:
                for part in step.parts if self.walks else ():
                    self._narrow(part, step)
                self._apply_function(step, place)

    def _leaf(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Ends between which nothing is left: a leaf of signs without a point, for which any others do."""
        if self.held:
            self.empty |= (lower > upper).any(1)
            upper = np.maximum(lower, upper)
        return lower, upper

    def _keep(self, lower: Array, upper: Array, sizes: Array, place: int) -> None:
        if self.held:
            lower, upper = self._leaf(
                np.fmax(lower, self.held[place][0]), np.fmin(upper, self.held[place][1])
            )
        if not bool(((lower <= upper) & (np.abs(lower) < LARGEST) & (np.abs(upper) < LARGEST)).all()):
            name = self.program.steps[place].name
            raise Rejected(f"step {place} ({name}): its values have no bounds that are numbers")
        self.lower.append(lower)
        self.upper.append(upper)
        self.sizes.append(sizes)

    def _largest(self, place: int) -> Array:
        return np.maximum(np.abs(self.lower[place]), np.abs(self.upper[place]))

    def _affine(self, step: AffineStep, place: int) -> None:
        """Middle and half width; gamma times M pays for the sums, and for rounding the middle."""
        many = len(self.region.lower)
        middle, half = np.tile(step.offset, (many, 1)), np.zeros((many, step.size))
        sizes = np.tile(step.offset_size, (many, 1))
        for part in step.parts:
            low, high = self.lower[part.source], self.upper[part.source]
            part.add_to(middle, (low + high) / 2)
            part.add_to(half, (high - low) / 2, absolute=True)
            part.add_to(sizes, self._largest(part.source), absolute=True)
        sizes += TINY
        missed = 4 * gamma(self.terms + len(step.parts) + 32) * sizes + TINY
        self._keep(middle - half - missed, middle + half + missed, sizes, place)

    def _narrow(self, part: StepTerm, reader: Applied) -> None:
        """The intervals of what a function reads, by walks back from it; where straight pieces meet outside of it, there is no need."""
        source = self.program.steps[part.source]
        if part.source == 0:
            return
        wanted = np.zeros(source.size, dtype=bool)
        wanted[part.take[part.take >= 0]] = True
        if isinstance(reader.function, PiecewiseLinear):
            low, high = self.lower[part.source], self.upper[part.source]
            wanted &= np.any(
                [((low < kink) & (kink < high)).any(0) for kink in reader.function.kinks], axis=0
            )
        wanted &= ~self.narrowed[part.source]
        self.narrowed[part.source] |= wanted
        # `ends/T` (k,): elements whose walks have slopes of their own, `ends/K/T` (2, k, n): those from below, those from above
        given = self.slopes.get(f"ends/{part.source}", np.zeros(0, dtype=np.int64))
        own = {
            at: self.slopes[f"ends/{at}/{part.source}"]
            for at in self.planes
            if f"ends/{at}/{part.source}" in self.slopes
        }
        wanted[given] = False
        widest = max(step.size for step in self.program.steps[: part.source + 1])
        at_once = max(1, NUMBERS // (2 * widest * len(self.region.lower)))
        for chosen, slopes in ((np.flatnonzero(wanted), {}), (given, own)):
            for start in range(0, len(chosen), at_once):
                some = slice(start, start + at_once)
                planes = {
                    at: self._with(at, array[:, some].reshape(1, -1, array.shape[-1]))
                    for at, array in slopes.items()
                }
                self._refine_by_walk(part.source, chosen[some], planes)

    def _refine_by_walk(self, place: int, some: Array, planes: Mapping[int, FunctionPlanes]) -> None:
        """Narrower intervals of some elements of a step."""
        rows = np.zeros((len(some), self.program.steps[place].size))
        rows[np.arange(len(some)), some] = 1.0
        least = self.walk(place, np.concatenate([rows, -rows])[None], planes)
        low, high = self.lower[place], self.upper[place]
        met = np.fmax(low[:, some], least[:, : len(some)]), np.fmin(high[:, some], -least[:, len(some) :])
        low[:, some], high[:, some] = self._leaf(*met)
        if not bool((low[:, some] <= high[:, some]).all()):
            raise Rejected(f"step {place} ({self.program.steps[place].name}): its bounds exclude each other")

    def _apply_function(self, step: Applied, place: int) -> None:
        """Slopes of the proof, `slopes/K` (parts of the region, 2, arguments, n), or the function's own."""
        lower, upper = self._read_interval(step)
        below, above = step.function.slopes(lower, upper)
        if f"slopes/{place}" in self.slopes:
            given = self.slopes[f"slopes/{place}"]
            below, above = (
                tuple(given[:, None, side, argument] for argument in range(len(lower))) for side in (0, 1)
            )
        self.planes[place] = FunctionPlanes.of(step, below, above, (lower, upper))
        if (
            f"rows/{place}" in self.slopes
        ):  # (parts of the region, rows, n): another slope below for each of the last rows
            self.last[place] = self._with(place, self.slopes[f"rows/{place}"])
        low, high = step.function.range(lower, upper)
        self._keep(low[:, 0], high[:, 0], np.zeros_like(low[:, 0]), place)

    def _read_interval(self, step: Applied) -> Ends:
        taken = [
            (part.take_elements(self.lower[part.source]), part.take_elements(self.upper[part.source]))
            for part in step.parts
        ]
        return tuple(low[:, None] for low, _ in taken), tuple(high[:, None] for _, high in taken)

    def _with(self, place: int, given: Array) -> FunctionPlanes:
        """The planes of a function with other slopes below: (1 or batch, rows, n), of all elements or of those in `at/K`; as bytes they
        count from 0 to 1."""
        step, usual = self.program.steps[place], self.planes[place]
        if not isinstance(step, Applied):
            raise Rejected(f"step {place} ({step.name}) is no function, and has no slopes")
        below = np.repeat(usual.below[0], given.shape[1], 1)
        below[..., self.slopes.get(f"at/{place}", slice(None))] = (
            given / 255.0 if given.dtype == np.uint8 else given
        )
        return FunctionPlanes.of(step, (below,), usual.above, self._read_interval(step))

    def walk(
        self, place: int, rows: Array, others: Mapping[int, FunctionPlanes] | None = None, signs: Mapping[int, Array] | None = None,
        added_up: Array | float = 0.0,
    ) -> Array:  # fmt: skip
        """(1 or batch, rows, n) on a step -> (batch, rows): a lower bound of row . value over each part of the region. others: planes of
        these rows alone. signs: of some steps, (batch, rows, n): minus multipliers times signs. added_up: (batch, rows), sums of sizes
        where the rows themselves are sums, else zero."""
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
                passed = [
                    up * low + down * high for low, high in zip(planes.below, planes.above, strict=True)
                ]
            for part, coefficients in zip(step.parts, passed, strict=True):
                arrived = part.back(coefficients, steps[part.source].size)
                waiting[part.source] = waiting[part.source] + arrived if part.source in waiting else arrived
        least = self.region.minimum(waiting[0]) if 0 in waiting else np.zeros_like(constant)
        charge = 2 * gamma(self.terms + 4 * len(steps) + 64) * weight
        bound: Array = (
            least + constant - charge - 8 * UNIT * (np.abs(least) + np.abs(constant) + charge) - TINY
        )
        return bound

    def rows(self, matrix: Array, offset: Array, signs: Mapping[int, Array] | None = None) -> Array:
        """Lower bounds (batch, rows) of matrix . output + offset; infinite over leaves without a point."""
        place, wide = self.outputs.source, matrix[None].astype(np.float64)
        coefficients = self.outputs.back(wide, self.program.steps[place].size)
        added_up = (np.abs(wide) @ self.outputs.take_elements(self._largest(place))[:, :, None])[
            ..., 0
        ] + TINY
        bound = self.walk(place, coefficients, self.last, signs, added_up)
        result: Array = bound + offset - 4 * UNIT * (np.abs(bound) + np.abs(offset))
        return np.where(self.empty[:, None], np.inf, result)
