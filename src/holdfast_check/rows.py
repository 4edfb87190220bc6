"""Perturbation sets of rows: numbers in units of their scale, whole columns, pixels or words that change, and values from
a list.

Statement. With units that partition the elements, scales s, a centre c and bounds l <= c <= u, the region is the set of
all x with l <= x <= u, x_i = c_i or x_i a whole multiple of `steps[i]` where that is not 0, every unit with a list of
choices equal to the centre's or to one of them, and

    norm inf, 1, 2:  |(x - c) / s|_norm <= radius,      norm 0:  at most `radius` units with x != c.

`RowRegion.inside` decides membership in rational arithmetic. Everything else here only describes the region.

Assumption: the numbers of the file are what they are; steps are powers of two, so that float64 divides by them exactly.

Reference: the hybrid regions of docs/tables.md; Jia et al., "Certified robustness to adversarial word substitutions"
(2019) for lists of words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from holdfast_check.arithmetic import LARGEST, Array, down, up
from holdfast_check.claim_text import digest_of

NORMS = {"inf": math.inf, "2": 2.0, "1": 1.0, "0": 0.0}  # By their names in a file.
# Arrays of a region of rows, in addition to its centre and bounds.
ROW_ARRAYS = ("region/scales", "region/steps", "region/units", "region/choices", "region/choice_units")
STEPS = 2.0**-30, 2.0**30  # The smallest and the largest step (chosen by hand: far inside float64's range).


@dataclass(frozen=True, eq=False)
class RowRegion:
    """The region of the module's statement. Infinite bounds are allowed except under norm 0.

    Attributes:
        units: (n,) int, the unit of every element, 0 to `count` - 1.
        choices: for units with a list, the allowed values (values, elements of the unit), the centre's not among them.
    """

    norm: float
    radius: float
    centre: Array
    lower: Array
    upper: Array
    scales: Array
    steps: Array
    units: Array
    choices: Mapping[int, Array]

    @cached_property
    def count(self) -> int:
        """The number of units."""
        return int(self.units.max()) + 1

    @cached_property
    def elements(self) -> list[Array]:
        """The elements of every unit, in order."""
        return [np.flatnonzero(self.units == unit) for unit in range(self.count)]

    def bounds(self) -> tuple[Array, Array]:
        """(n,) each: an enclosing box, rounded outwards."""
        lower, upper = self.lower.copy(), self.upper.copy()
        for unit, values in self.choices.items():
            own = self.elements[unit]
            every = np.concatenate([self.centre[own][None], values])
            lower[own], upper[own] = every.min(0), every.max(0)
        if self.norm > 0:
            span = up(self.radius * self.scales) if self.radius > 0 else np.zeros_like(self.scales)
            lower = np.maximum(lower, np.minimum(down(self.centre - span), self.centre))
            upper = np.minimum(upper, np.maximum(up(self.centre + span), self.centre))
        elif self.radius < 1:
            lower, upper = self.centre, self.centre
        return lower, upper

    def inside(self, x: Array) -> bool:
        """Whether a point lies in the region, in rational arithmetic."""
        triples = zip(x.tolist(), self.centre.tolist(), self.steps.tolist())
        if not all(v == c or s == 0 or (Fraction(v) / Fraction(s)).denominator == 1 for v, c, s in triples):
            return False
        if not bool(((self.lower <= x) & (x <= self.upper)).all()):
            return False
        changed = x != self.centre
        for unit, values in self.choices.items():
            own = self.elements[unit]
            if bool(changed[own].any()) and not bool((values == x[own]).all(1).any()):
                return False
        if self.norm == 0:
            return len(np.unique(self.units[changed])) <= self.radius
        away = [
            abs(Fraction(v) - Fraction(c)) / Fraction(s)
            for v, c, s in zip(x.tolist(), self.centre.tolist(), self.scales.tolist())
        ]
        if math.isinf(self.norm):
            return max(away) <= Fraction(self.radius)
        return sum(part ** int(self.norm) for part in away) <= Fraction(self.radius) ** int(self.norm)

    def words(self) -> str:
        """The region as a part of a sentence; everything that makes it smaller is mentioned."""
        about = f"of the centre {digest_of(self.centre)}"
        if self.norm == 0:
            told = f"with at most {int(self.radius)} of {self.count} units different from those {about}"
        else:
            name = next(name for name, norm in NORMS.items() if norm == self.norm)
            told = f"within {self.radius!r} {about} in the norm {name}"
        if len(self.elements) < len(self.units):
            told += f" (units {digest_of(self.units)})"
        if bool((self.scales != 1).any()):
            told += f", inputs divided by their scales {digest_of(self.scales)}"
        if bool((self.steps > 0).any()):
            whole = int((self.steps > 0).sum())
            told += f", {whole} inputs only by whole multiples of their steps {digest_of(self.steps)}"
        if self.choices:
            listed = sum(map(len, self.choices.values()))
            told += f", {len(self.choices)} units only by {listed} listed values {self._digest()}"
        if bool((self.lower > -LARGEST).any() or (self.upper < LARGEST).any()):
            moves = int((self.lower < self.upper).sum())
            told += f", {moves} of {len(self.centre)} inputs moving in the box {digest_of(self.lower, self.upper)}"
        return told

    def _digest(self) -> str:
        return digest_of(
            *(array for unit in sorted(self.choices) for array in (np.array(unit), self.choices[unit]))
        )


def read_rows(about: Mapping[str, Any], arrays: Mapping[str, Array], size: int) -> RowRegion:
    """Read and validate the region of a file; ValueError if it is none."""
    box = about["norm"] == "box"
    norm, radius = (math.inf, LARGEST) if box else (NORMS[about["norm"]], float(about["radius"]))
    if isinstance(about.get("radius"), bool) or (box and any(name in arrays for name in ROW_ARRAYS)):
        raise ValueError("a radius that is no number, or a box with scales, steps, units or choices")

    def vector(name: str, default: float | None = None) -> Array:
        values = arrays[name] if default is None or name in arrays else np.array([default])
        wide = np.broadcast_to(values.astype(np.float64).ravel(), (size,)).copy()
        if np.isnan(wide).any():
            raise ValueError(f"{name}: a value is NaN")
        return wide

    lower, upper = vector("region/lower"), vector("region/upper")
    centre = vector("region/lower" if box else "region/centre")
    scales, steps = vector("region/scales", 1.0), vector("region/steps", 0.0)
    shares = arrays.get("region/shares", np.ones(1)).astype(np.float64).ravel()
    if not bool((shares == 1).all()):
        raise ValueError("shares of the radius together with rows; their scales say the same")
    if not bool(((lower <= centre) & (centre <= upper) & (np.abs(centre) < LARGEST)).all()):
        raise ValueError("a centre outside of the bounds, or bounds that exclude each other")
    if not (0 <= radius <= LARGEST and bool(((scales > 0) & (scales < LARGEST)).all())):
        raise ValueError("a radius below 0, or a scale that is not positive")
    exact = np.frexp(np.where(steps > 0, steps, 1.0))[0] == 0.5
    if not bool(((steps == 0) | (exact & (steps >= STEPS[0]) & (steps <= STEPS[1]))).all()):
        raise ValueError("a step that is no power of two of moderate size")
    units = arrays.get("region/units", np.arange(size)).ravel()
    if (
        units.shape != (size,)
        or units.dtype.kind not in "iu"
        or set(units.tolist()) != set(range(int(units.max()) + 1))
    ):
        raise ValueError("units that do not number the elements from 0 on")
    if norm == 0 and not (
        float(radius).is_integer() and bool((np.isfinite(lower) & np.isfinite(upper)).all())
    ):
        raise ValueError("norm 0 with a radius that is no count, or with infinite bounds")
    found = RowRegion(
        norm, radius, centre, lower, upper, scales, steps, units.astype(np.int64),
        _choices(arrays, units, centre, size),
    )  # fmt: skip
    if found.choices and norm != 0:
        raise ValueError("lists of values need norm 0")
    return found


def _choices(arrays: Mapping[str, Array], units: Array, centre: Array, size: int) -> dict[int, Array]:
    """The lists of values: region/choices (values, largest number of elements), region/choice_units (values,)."""
    if "region/choices" not in arrays:
        if "region/choice_units" in arrays:
            raise ValueError("units of choices without choices")
        return {}
    values, owner = arrays["region/choices"].astype(np.float64), arrays["region/choice_units"].ravel()
    if values.ndim != 2 or owner.shape != (len(values),) or owner.dtype.kind not in "iu":
        raise ValueError("choices that are no list of values with the unit of each")
    if not bool((np.abs(values) < LARGEST).all() and ((owner >= 0) & (owner <= units.max())).all()):
        raise ValueError("a choice that is not finite, or of a unit that does not exist")
    found = {}
    for unit in np.unique(owner).tolist():
        own = np.flatnonzero(units == unit)
        if len(own) > values.shape[1]:
            raise ValueError("choices with fewer numbers than their unit has")
        some = np.unique(values[owner == unit][:, : len(own)], axis=0)
        found[unit] = some[(some != centre[own]).any(1)]
    return found
