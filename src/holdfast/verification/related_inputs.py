"""Substitution of inputs that a file relates to each other, so that proofs need not know the relation.

Two relations between inputs x_i and x_j (j < i) are used:

    x_i = x_j                        x_i is the same searched variable as x_j
    low <= x_i - x_j <= high         x_i = x_j + d with a searched variable d in [low, high]

The first is exact. The second is exact in real arithmetic, which proofs are about; the network computes
x_j + d with rounding, so a counterexample must satisfy the relation again (`RelatedInputs.rounded`). Queries
about two networks with close inputs need this: in a box of (x_i, x_j) both inputs vary independently.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast import time_limit

if TYPE_CHECKING:
    from holdfast.verification.vnnlib import Atom, IntervalEnd


@dataclass(frozen=True)
class RelatedInputs:
    """A substitution.

    Attributes:
        sources: for each input of the file the searched variables whose sum it is.
        lower, upper: bounds of the searched variables; None where the file must give them.
        kept: for each searched variable that is an input of the file, its number.
        used: `id` of the inequalities that the substitution satisfies.
        rounded: those of them that hold only before rounding.
    """

    sources: list[tuple[int, ...]]
    lower: "list[IntervalEnd | None]"
    upper: "list[IntervalEnd | None]"
    kept: list[int]
    used: set[int]
    rounded: set[int]

    def variable(self, number: int) -> int | None:
        """The searched variable that is this input; None if the input is a sum of several."""
        parts = self.sources[number]
        return parts[0] if len(parts) == 1 else None


@dataclass
class _Difference:
    """What a file says about x_i - x_j."""

    low: "IntervalEnd | None" = None
    high: "IntervalEnd | None" = None
    atoms: list[int] = field(default_factory=list)

    @property
    def is_zero(self) -> bool:
        ends = (self.low, self.high)
        return all(end is not None and end.value == 0 and not end.strict for end in ends)


def relate_inputs(atoms: "Sequence[Atom]", count: int, *, several: bool) -> RelatedInputs | None:
    """Return the substitution that inequalities allow which every counterexample satisfies; None without any.

    Args:
        atoms: the inequalities.
        count: number of inputs of the file.
        several: whether there are several networks; then a difference with one bound gets the other from the
            boxes of both inputs.
    """
    differences, lows, highs = _collect(atoms)
    if not differences:
        return None
    partners: dict[int, list[int]] = {}
    for i, j in sorted(differences):
        partners.setdefault(i, []).append(j)
    # Searched variables, as ("input", number) or ("difference", (i, j)), that are added for each input.
    parts: list[tuple[tuple[int, ...], ...]] = []
    chosen: list[tuple[int, int]] = []
    used: set[int] = set()
    rounded: set[int] = set()
    for i in range(count):
        own: tuple[tuple[int, ...], ...] = ((i,),)
        for j in sorted(partners.get(i, ()), key=lambda j, i=i: not differences[i, j].is_zero):
            found = differences[i, j]
            if found.is_zero:
                own = parts[j]
                used.update(found.atoms)
                break
            if several and (found.low is None or found.high is None):
                _complete(found, (lows.get(i), highs.get(i)), (lows.get(j), highs.get(j)))
            if found.low is not None and found.high is not None and found.low.value <= found.high.value:
                own = (*parts[j], (i, j))
                chosen.append((i, j))
                used.update(found.atoms)
                rounded.update(found.atoms)
                break
        parts.append(own)
    if not used:
        return None
    kept = [i for i in range(count) if parts[i] == ((i,),)]
    numbers = {key: n for n, key in enumerate([*((i,) for i in kept), *chosen])}
    ends = [differences[pair] for pair in chosen]
    return RelatedInputs(
        [tuple(numbers[key] for key in own) for own in parts],
        [*([None] * len(kept)), *(_close_end(end.low) for end in ends)],
        [*([None] * len(kept)), *(_close_end(end.high) for end in ends)],
        kept,
        used,
        rounded,
    )


def _collect(
    atoms: "Sequence[Atom]",
) -> "tuple[dict[tuple[int, int], _Difference], dict[int, IntervalEnd], dict[int, IntervalEnd]]":
    """Collect the bounds of differences of two inputs, and the lower and upper bounds of inputs."""
    from holdfast.verification.vnnlib import IntervalEnd

    differences: dict[tuple[int, int], _Difference] = {}
    lows: dict[int, IntervalEnd] = {}
    highs: dict[int, IntervalEnd] = {}
    for atom in time_limit.checked(atoms):
        if any(kind != "X" for kind, _ in atom.factors) or len(atom.factors) > 2 or not atom.factors:
            continue
        (first, *others) = sorted(((number, f) for (_, number), f in atom.factors.items()), reverse=True)
        i, factor = first
        end = IntervalEnd(atom.bound / factor, atom.strict)
        if not others:
            _tighten(lows if factor < 0 else highs, i, end, lower=factor < 0)
        elif others[0][1] == -factor:
            found = differences.setdefault((i, others[0][0]), _Difference())
            found.atoms.append(id(atom))
            if factor < 0:
                found.low = end if found.low is None else max(found.low, end, key=lambda e: e.value)
            else:
                found.high = end if found.high is None else min(found.high, end, key=lambda e: e.value)
    return differences, lows, highs


def _tighten(ends: "dict[int, IntervalEnd]", number: int, end: "IntervalEnd", *, lower: bool) -> None:
    known = ends.get(number)
    better = known is None or (end.value > known.value if lower else end.value < known.value)
    if better:
        ends[number] = end


def _complete(
    found: _Difference,
    one: "tuple[IntervalEnd | None, IntervalEnd | None]",
    other: "tuple[IntervalEnd | None, IntervalEnd | None]",
) -> None:
    """Add the missing bound of x_i - x_j from the boxes of both, if they have one."""
    from holdfast.verification.vnnlib import IntervalEnd

    (low, high), (other_low, other_high) = one, other
    if found.low is None and low is not None and other_high is not None:
        found.low = IntervalEnd(low.value - other_high.value, False)
    if found.high is None and high is not None and other_low is not None:
        found.high = IntervalEnd(high.value - other_low.value, False)


def _close_end(end: "IntervalEnd | None") -> "IntervalEnd | None":
    return None if end is None else replace(end, strict=False)
