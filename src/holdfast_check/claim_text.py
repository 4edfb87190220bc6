"""A claim in words and numbers: which inputs between which values, what holds of which outputs, by how much.

`ClaimNumbers.sentence` is the one function that words a claim: for the line of `holdfast-check`, for pages,
bundles and statements of holdfast.

Statement. Every number in a sentence about a proof is implied by the numbers that were checked: a range of
inputs is rounded inwards, a bound of an output is rounded so that it claims less; a float64 number with a short
decimal name, such as 0.2, is written by that name. Numbers come from the claim's arrays and from the margin that
was computed, never from a text. Names, units and scales are labels:
they say what a variable is called, and nothing is proved about them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from holdfast_check.arithmetic import Array

LISTED = 12  # Inputs whose ranges a sentence lists; of more it names the count and a hash (chosen by hand).
WRITTEN_OUT = 64  # Inputs whose ranges `as_json` lists, and the side of the largest matrix (chosen by hand).
CONDITIONS = 8  # Conditions that a sentence lists (chosen by hand).
TERMS = 6  # Terms of a combination of outputs that a sentence lists (chosen by hand).
DIGITS, MOST_DIGITS = 6, 17  # Significant digits: as many as a range needs, at most those of float64.
SHORT = 9  # Significant digits of the decimal name of a float64 that is written as it is (chosen by hand).
FINE = 1e-4  # A range may be shown smaller by this share of its width (chosen by hand).
ARITHMETIC = "real arithmetic, weights as stored"
# A name is made of words that cannot be read as a part of the sentence around it.
WORD = re.compile(r"[^\W\d][\w.\-]*")
RESERVED = {
    "to", "and", "or", "for", "all", "is", "not", "of", "above", "below", "within", "at", "least", "most",
    "inputs", "every", "some",
}  # fmt: skip
LONGEST_NAME = 60  # Characters (chosen by hand).
UNIT = re.compile(r"(1/)?[^\W\d_][\w/·^*²³-]{0,15}|[%°‰][\w/]{0,8}")


@dataclass(frozen=True)
class VariableLabel:
    """The label of an input or output: the quantity is `scale` times the network's number plus `shift`."""

    name: str
    unit: str = ""
    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(
                f"{self.name[:80]!r} is no name of a variable: use at most {LONGEST_NAME} letters, digits, '_', "
                "'.' and '-' in words that begin with a letter and are no words of the sentence (to, and, ...)"
            )
        if self.unit and UNIT.fullmatch(self.unit) is None:
            raise ValueError(f"{self.unit[:40]!r} is no unit: write it as in m/s^2, % or 1/s")
        finite = all(type(v) in (int, float) and math.isfinite(v) for v in (self.scale, self.shift))
        if not finite or self.scale == 0:
            raise ValueError(f"{self.name}: scale and shift are finite numbers, and scale is not zero")

    @property
    def plain(self) -> bool:
        """Whether the quantity is the network's own number."""
        return self.scale == 1 and self.shift == 0

    def of(self, value: float) -> Fraction:
        """The quantity at a value of the network, exact."""
        return Fraction(value) * Fraction(self.scale) + Fraction(self.shift)

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"name": self.name}
        told.update({"unit": self.unit} if self.unit else {})
        return {**told, **({} if self.plain else {"scale": self.scale, "shift": self.shift})}


def is_name(text: str) -> bool:
    """Whether a text can be the name of a variable in a sentence."""
    words = text.split(" ")
    return (
        len(text) <= LONGEST_NAME
        and all(WORD.fullmatch(word) is not None for word in words)
        and not RESERVED.intersection(word.lower() for word in words)
    )


@dataclass(frozen=True)
class ClaimNames:
    """Labels of all inputs and of all outputs; an empty tuple where they have none."""

    inputs: tuple[VariableLabel, ...] = ()
    outputs: tuple[VariableLabel, ...] = ()

    @staticmethod
    def from_json(stored: Any, inputs: int, outputs: int) -> ClaimNames:
        """Read and validate labels. ValueError if they are not labels of `inputs` and `outputs`."""
        if stored is None:
            return ClaimNames()
        if not isinstance(stored, dict) or not set(stored) <= {"inputs", "outputs"}:
            raise ValueError("names that are not lists of inputs and outputs")
        found = [
            tuple(VariableLabel(**one) for one in stored.get(name, ())) for name in ("inputs", "outputs")
        ]
        for what, labels, count in zip(("inputs", "outputs"), found, (inputs, outputs)):
            if labels and (len(labels) != count or len({one.name for one in labels}) != count):
                raise ValueError(f"{len(labels)} names for {count} {what}, or a name that occurs twice")
        return ClaimNames(*found)

    def as_json(self) -> dict[str, Any]:
        told = {"inputs": self.inputs, "outputs": self.outputs}
        return {name: [one.as_json() for one in labels] for name, labels in told.items() if labels}

    def input(self, place: int) -> VariableLabel:
        return self.inputs[place] if self.inputs else VariableLabel(f"x_{place}")

    def output(self, place: int) -> VariableLabel:
        return self.outputs[place] if self.outputs else VariableLabel(f"y_{place}")


@dataclass(frozen=True)
class ClaimNumbers:
    """The numbers of a claim: for every x of the region and every group, some row . f(x) + offset > above.

    Attributes:
        where: the region in the words of the checker; `lower` and `upper` are its enclosing box, None where
            there is none.
        label: the class whose output must stay the largest; then `matrix` holds its differences.
        margin: by how much the claim was proved; None where only the claimed number is known.
        point: of a witness, the input.
    """

    kind: str
    where: str
    size: int
    outputs: int
    lower: Array | None
    upper: Array | None
    norm: str
    radius: float | None
    matrix: Array
    offset: Array
    groups: tuple[tuple[int, ...], ...]
    above: float
    label: int | None = None
    margin: float | None = None
    point: Array | None = None
    names: ClaimNames = field(default_factory=ClaimNames)
    model: str = ""
    sha256: str = ""
    digest: str = "sha256"  # What the digest of the model is: of its file, or another hash.
    arithmetic: str = ARITHMETIC

    @property
    def is_box(self) -> bool:
        """Whether the region is all of [lower, upper]."""
        return self.norm in ("box", "inf") and self.lower is not None

    def sentence(self) -> str:
        """The claim as one sentence."""
        what = self.conditions()
        if self.kind == "witness":
            return f"at {self._point()}, {self.where}, it is not so that {what}{self._about()}"
        number = self.proved_number()
        return f"for all {self.region()}: {what}{f'; {number}' if number else ''}{self._about()}"

    def _about(self) -> str:
        told = [self.arithmetic]
        if self.model or self.sha256:
            told.append(
                f"model {_one_line(self.model) or 'unnamed'}, {self.digest} {self.sha256[:16] or 'unknown'}"
            )
        if self.names.inputs or self.names.outputs:
            told.append("names and units are labels")
        return f" ({'; '.join(told)})"

    def region(self) -> str:
        """The region in words: ranges by name where there are few inputs."""
        ranges = self.ranges()
        if not ranges:
            return f"{self.size} inputs {self.where}" if self.size > 1 else f"x {self.where}"
        shown = ", ".join(ranges)
        return shown if self.norm == "box" else f"{shown}, {self.where}"

    def ranges(self) -> list[str]:
        """'speed 20 to 30 m/s' for every input; empty if there are too many, or if they have no bounds."""
        if self.lower is None or self.upper is None or self.size > LISTED:
            return []
        ends = zip(self.lower.tolist(), self.upper.tolist())
        return [_range(self.names.input(place), low, high) for place, (low, high) in enumerate(ends)]

    def _point(self) -> str:
        if self.point is None or self.size > LISTED:
            return f"an input of {self.size} numbers"
        parts = (
            f"{label.name} {_nearest(label.of(value))}{_unit(label)}"
            for label, value in ((self.names.input(at), v) for at, v in enumerate(self.point.tolist()))
        )
        return ", ".join(parts)

    def conditions(self) -> str:
        """What holds of the outputs, in words."""
        if self.label is not None and self.above == 0:
            return f"{self.names.output(self.label).name} is the largest of the {self.outputs} outputs"
        if self.label is not None:
            most = _shown(Fraction(self.above), ROUND_FLOOR)
            own = self.names.output(self.label).name
            return f"{own} exceeds each of the other {self.outputs - 1} outputs by more than {most}"
        groups = list(dict.fromkeys(tuple(self._distinct(group)) for group in self.groups))
        parts = list(dict.fromkeys(self._group(group) for group in groups[:CONDITIONS]))
        if len(groups) > CONDITIONS:
            parts.append(
                f"{len(groups) - CONDITIONS} more conditions (all rows: {digest_of(self.matrix, self.offset)})"
            )
        return " and ".join(f"({part})" if " or " in part and len(parts) > 1 else part for part in parts)

    def _distinct(self, group: Sequence[int]) -> list[int]:
        """The first of every set of equal rows: VNN-LIB properties are padded by repeating rows."""
        lines = {(self.matrix[row].tobytes(), float(self.offset[row])): row for row in reversed(group)}
        return sorted(lines.values())

    def _group(self, group: Sequence[int]) -> str:
        pairs = [self._pair(row) for row in group]
        others = set(range(self.outputs))
        if self.outputs > 2 and len(group) == self.outputs - 1 and all(pairs):
            plus = {pair[0] for pair in pairs if pair}
            minus = {pair[1] for pair in pairs if pair}
            if len(plus) == 1 and minus == others - plus:
                return (
                    f"{self.names.output(min(plus)).name} is not the smallest of the {self.outputs} outputs"
                )
            if len(minus) == 1 and plus == others - minus:
                return (
                    f"{self.names.output(min(minus)).name} is not the largest of the {self.outputs} outputs"
                )
        shown = [self._row(row) for row in group[:CONDITIONS]]
        if len(group) > CONDITIONS:
            shown.append(f"one of {len(group) - CONDITIONS} more ({digest_of(self.matrix, self.offset)})")
        return " or ".join(shown)

    def _pair(self, row: int) -> tuple[int, int] | None:
        """(i, j) if the row says y_i > y_j."""
        line, used = self.matrix[row], np.flatnonzero(self.matrix[row])
        if len(used) != 2 or line[used].sum() != 0 or self.offset[row] != self.above:
            return None
        first, second = used.tolist()
        return (first, second) if line[first] > 0 else (second, first)

    def _row(self, row: int) -> str:
        """The condition of one row: y > 0.2, y_1 > y_0, or a combination of outputs."""
        line, used = self.matrix[row], np.flatnonzero(self.matrix[row]).tolist()
        pair = self._pair(row)
        if pair is not None:
            return f"{self.names.output(pair[0]).name} > {self.names.output(pair[1]).name}"
        if len(used) == 1:
            [place] = used
            label = self.names.output(place)
            level = self.level(row, 0.0)
            rises = line[place] * label.scale > 0
            shown = _shown(level, ROUND_FLOOR if rises else ROUND_CEILING)
            return f"{label.name} {'>' if rises else '<'} {shown}{_unit(label)}"
        least = _shown(Fraction(self.above) - Fraction(float(self.offset[row])), ROUND_FLOOR)
        if not used or len(used) > TERMS:
            return f"a sum of {len(used)} outputs ({digest_of(line)}) > {least}"
        terms: list[str] = []
        for place in used:
            factor = float(line[place])
            sign = "-" if factor < 0 else "+" if terms else ""
            size = "" if abs(factor) == 1 else f"{abs(factor)!r} "
            terms.append(f"{sign}{' ' if terms else ''}{size}{self.names.output(place).name}")
        return f"{' '.join(terms)} > {least}"

    def level(self, row: int, margin: float) -> Fraction:
        """The value, in the units of its label, that the only output of a row stays beyond, exact."""
        [place] = np.flatnonzero(self.matrix[row]).tolist()
        reached = Fraction(self.above) + Fraction(margin) - Fraction(float(self.offset[row]))
        label = self.names.output(place)
        return reached / Fraction(float(self.matrix[row, place])) * Fraction(label.scale) + Fraction(
            label.shift
        )

    def proved_number(self) -> str:
        """The smallest proved value of a single output, or the smallest margin of all conditions."""
        if self.margin is None or not math.isfinite(self.margin):
            return ""
        single = len(self.groups) == 1 and len(self.groups[0]) == 1 and self.label is None
        row = self.groups[0][0]
        if single and np.count_nonzero(self.matrix[row]) == 1:
            [place] = np.flatnonzero(self.matrix[row]).tolist()
            label = self.names.output(place)
            rises = self.matrix[row, place] * label.scale > 0
            shown = _shown(self.level(row, self.margin), ROUND_FLOOR if rises else ROUND_CEILING)
            return f"{'smallest' if rises else 'largest'} proved value {shown}{_unit(label)}"
        return f"smallest proved margin {_shown(Fraction(self.margin), ROUND_FLOOR)}"

    def as_json(self) -> dict[str, Any]:
        """The claim as data: exact numbers of the network, labels, and the sentence."""
        few = self.size <= WRITTEN_OUT
        bounds = self.lower is not None and self.upper is not None
        inputs: dict[str, Any] = {"count": self.size}
        if bounds:
            inputs["sha256"] = digest_of(self.lower, self.upper)
        if bounds and few:
            assert self.lower is not None
            assert self.upper is not None
            inputs["ranges"] = [
                {**self.names.input(at).as_json(), "lower": low, "upper": high}
                for at, (low, high) in enumerate(zip(self.lower.tolist(), self.upper.tolist()))
            ]
        rows: dict[str, Any] = {"groups": [list(group) for group in self.groups], "above": self.above}
        rows["sha256"] = digest_of(self.matrix, self.offset)
        if max(self.matrix.shape) <= WRITTEN_OUT and self.label is None:
            rows |= {"rows": self.matrix.tolist(), "offset": self.offset.tolist()}
        if self.label is not None:
            rows = {"class": self.label, "above": self.above}
        point = None if self.point is None or not few else self.point.tolist()
        return {
            "sentence": self.sentence(),
            "kind": self.kind,
            "inputs": inputs,
            "region": {"norm": self.norm, "radius": self.radius, "words": self.where},
            "outputs": {"count": self.outputs, "names": [one.as_json() for one in self.names.outputs]},
            "property": rows,
            "margin": None if self.margin is None or not math.isfinite(self.margin) else self.margin,
            "witness": point,
            "model": {"name": self.model, self.digest: self.sha256},
            "arithmetic": self.arithmetic,
        }

    def with_margin(self, margin: float) -> ClaimNumbers:
        return replace(self, margin=margin)


def digest_of(*arrays: Array | None) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of arrays, as their name in a sentence."""
    parts = (b"" if array is None else np.ascontiguousarray(array).tobytes() for array in arrays)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def class_rows(label: int, outputs: int) -> Array:
    """The rows that say that the output of a class is larger than every other one."""
    return np.delete(np.eye(outputs)[label] - np.eye(outputs), label, 0)


def _range(label: VariableLabel, low: float, high: float) -> str:
    """'speed 20 to 30 m/s', rounded inwards."""
    ends = sorted([label.of(low), label.of(high)])
    if low == high:
        fixed = f"{low!r}" if label.plain else _nearest(ends[0])
        return f"{label.name} = {fixed}{_unit(label)}"
    for digits in range(DIGITS, MOST_DIGITS + 1):
        first, last = (
            _round_digits(ends[0], ROUND_CEILING, digits),
            _round_digits(ends[1], ROUND_FLOOR, digits),
        )
        lost = max(abs(Fraction(first) - ends[0]), abs(ends[1] - Fraction(last)))
        if first <= last and lost <= Fraction(FINE) * (ends[1] - ends[0]):
            break
    else:
        return f"{label.name} {low!r} to {high!r}{' (before scaling)' if not label.plain else ''}"
    return f"{label.name} {_text(first)} to {_text(last)}{_unit(label)}"


def _unit(label: VariableLabel) -> str:
    return f" {label.unit}" if label.unit else ""


def _round_digits(value: Fraction, rounding: str, digits: int) -> Decimal:
    """The decimal with `digits` significant digits next to a fraction, in the direction of `rounding`."""
    nearest = float(value)
    name = Decimal(repr(nearest)) if math.isfinite(nearest) else Decimal(0)
    if Fraction(nearest) == value and len(name.normalize().as_tuple().digits) <= SHORT:
        return name
    place = digits - len(str(abs(value.numerator) // value.denominator)) if abs(value) >= 1 else None
    if place is None:
        place = digits + max(0, len(str(value.denominator // abs(value.numerator))) - 1)
    scaled = value * Fraction(10) ** place
    if rounding == ROUND_FLOOR:
        whole = math.floor(scaled)
    elif rounding == ROUND_CEILING:
        whole = math.ceil(scaled)
    else:
        whole = round(scaled)
    return Decimal(whole).scaleb(-place, Context(prec=2 * MOST_DIGITS + len(str(abs(whole)))))


def _shown(value: Fraction, rounding: str) -> str:
    return _text(_round_digits(value, rounding, DIGITS))


def _nearest(value: Fraction) -> str:
    return _text(_round_digits(value, ROUND_HALF_EVEN, 9))


def _text(number: Decimal) -> str:
    """A decimal without trailing zeros, in scientific notation only where it is shorter."""
    plain = format(number, "f")
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    scientific = f"{number.normalize():e}" if len(plain) > 12 else plain
    return "0" if plain in ("-0", "") else min(plain, scientific, key=len)


def _one_line(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)[:80]
