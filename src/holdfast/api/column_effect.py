"""`hf.column_effect`: does a column, such as a protected attribute, change the class of any row?

Two questions, with answers of their own. For given rows: the column alone changes, to every value that it may take. If
these are words or few steps, the model is evaluated at all of them, which decides every row; otherwise
`hf.radius` under norm 0, with all other columns frozen, proves or finds a change. For all rows of the domain: either the network does not
depend on the column, which is proved from its structure, or a row is found for which it matters.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.api.arguments import ModelLike, as_network, check_inputs, check_number, check_whole
from holdfast.api.radius import Inputs
from holdfast.api.radius import radius as bracket_radii
from holdfast.api.results import RadiusList
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.network.dependence import independent_of
from holdfast.region.columns import Columns

SEARCHED_ROWS = (
    4096  # Drawn rows of the domain in which a row is sought for which the column matters (chosen by hand).
)
MOST_VALUES = 1000  # Values of a column that are enumerated for each given row at most (chosen by hand).
VALUES = 16  # Values of a column of numbers that are tried for each of these rows (chosen by hand).


@dataclass(frozen=True, eq=False)
class ColumnEffect:
    """Whether a column changes the class.

    Attributes:
        column: its name.
        every_row: "no effect": proved for all rows; "changes the class": witnessed by `example`; "unknown":
            neither was found.
        example: a row, the same row with another value of the column, and their classes; None without one.
        unaffected: proved: the numbers of given rows whose class stays for every value of the column.
        affected: witnessed: the numbers of given rows whose class changes for some value.
        undecided: the numbers of the other given rows.
        radii: the brackets behind the last three; None if no rows were given, or all values were tried.
    """

    column: str
    every_row: Literal["no effect", "changes the class", "unknown"]
    example: tuple[tuple[tuple[str, str], ...], tuple[str, str, str], Any, Any] | None
    unaffected: tuple[int, ...]
    affected: tuple[int, ...]
    undecided: tuple[int, ...]
    radii: RadiusList | None

    def __str__(self) -> str:
        lines = []
        count = len(self.unaffected) + len(self.affected) + len(self.undecided)
        if count:
            lines.append(
                f"of {count} rows: {self.column} changes the class of {len(self.affected)}; proved for "
                f"{len(self.unaffected)} that it does not; {len(self.undecided)} undecided"
            )
        if self.every_row == "no effect":
            lines.append(f"all rows: proved, no value of {self.column} changes any output")
        elif self.example is None:
            lines.append(f"all rows: unknown; no row was found in which {self.column} changes the class")
        else:
            row, (name, old, new), before, after = self.example
            told = ", ".join(f"{one} {value}" for one, value in row if one != name)
            lines.append(f"all rows: {name} matters: {old} gives {before}, {new} gives {after} ({told})")
        return "\n".join(lines)

    __repr__ = __str__


def column_effect(
    net: ModelLike, column: str, x: Inputs | None = None, *, seconds: float | None = None, seed: int = 0
) -> ColumnEffect:
    """Decide whether a column alone can change the class, for given rows and for all rows of the domain.

    Args:
        net: a hf.Network with columns.
        column: its name, such as "sex". It counts as free here, also if its description freezes it.
        x: rows, as for `hf.radius`. None: only all rows of the domain.
        seconds: for the given rows.
        seed: decides every random number.
    """
    network = as_network(net)
    check_whole("seed", seed)
    if seconds is not None:
        check_number("seconds", seconds, above=0)
    columns = network.columns
    names = [] if columns is None else [c.name for c in columns.each if c.missing_of is None]
    if columns is None or column not in names:
        raise BadInput(
            f"column_effect: the network has no column {column!r}"
            + (f"; its columns are {', '.join(names[:12])}." if names else ": give it columns first.")
        )
    narrowed = columns.only_free(column)
    if not any(c.movable for c in narrowed.each):
        raise BadInput(f"column_effect: {column!r} has only one value in the description of the columns.")
    radii = None
    verdicts: dict[str, list[int]] = {"unaffected": [], "affected": [], "undecided": []}
    if x is not None:
        given = check_inputs(network, x)
        rows = network.rows(given) if hasattr(given, "columns") else torch.as_tensor(given).double()
        said = network(rows).argmax(-1)
        variants = _all_values(columns, column, rows)
        if variants is not None:
            model = network if network.itself is None else network.itself
            own = model(rows).argmax(-1)
            changed = torch.stack([model(one).argmax(-1) != own for one in variants]).any(0)
            for k, changes in enumerate(changed.tolist()):
                verdicts["affected" if changes else "unaffected"].append(k)
        else:
            radii = bracket_radii(
                network.with_columns(narrowed), rows, said, norm=0, seconds=seconds, seed=seed
            )
            for k, bracket in enumerate(radii):
                kind = "unaffected" if bracket.lower.value >= 1 else "undecided"
                verdicts["affected" if bracket.upper.value < 1 else kind].append(k)
    free = narrowed.free.to(torch.bool)
    if independent_of(network.module, network.trees, free):
        return _effect(column, "no effect", None, verdicts, radii)
    example = _find_example(network, columns, narrowed, column, seed)
    return _effect(column, "unknown" if example is None else "changes the class", example, verdicts, radii)


def _effect(
    column: str, every_row: Any, example: Any, verdicts: dict[str, list[int]], radii: RadiusList | None
) -> ColumnEffect:
    lists = {name: tuple(rows) for name, rows in verdicts.items()}
    return ColumnEffect(column, every_row, example, radii=radii, **lists)


def _all_values(columns: Columns, name: str, rows: Tensor) -> list[Tensor] | None:
    """The rows with each value that the column may take; None if these are too many."""
    [(column, places)] = [(c, p) for c, p in zip(columns.each, columns.places, strict=True) if c.name == name]
    if places[0] in columns.indicators:
        return None  # the column may be missing, too
    if not column.worded:
        if not column.step or not (column.high - column.low) / column.step < MOST_VALUES:
            return None
        first, last = math.ceil(column.low / column.step), math.floor(column.high / column.step)
        values = [[column.step * k] for k in range(first, last + 1)]
    else:
        values = torch.eye(len(places), dtype=torch.float64).tolist()
    found = []
    for value in values:
        other = rows.clone()
        other[:, list(places)] = torch.tensor(value, dtype=torch.float64)
        found.append(other)
    return found


def _find_example(net: Network, columns: Columns, narrowed: Columns, column: str, seed: int) -> Any:
    """Drawn rows of the domain, each with several values of the column: the first whose class changes."""
    generator = torch.Generator().manual_seed(seed)
    domain = columns.domain(net.domain)
    low, high = (end.double().expand(len(columns.features)) for end in (domain.lower, domain.upper))
    if not bool((low.isfinite() & high.isfinite()).all()):
        low, high = (torch.where(end.isfinite(), end, sign) for end, sign in ((low, -1e3), (high, 1e3)))
    drawn = torch.rand((SEARCHED_ROWS, len(low)), generator=generator, dtype=torch.float64)
    rows = columns.as_rows(low + drawn * (high - low))
    [places] = [p for c, p in zip(columns.each, columns.places, strict=True) if c.name == column]
    variants = [rows]
    for k in range(len(places) if len(places) > 1 else VALUES):
        other = rows.clone()
        if len(places) > 1:
            other[:, list(places)] = 0
            other[:, places[k]] = 1
        else:
            other[:, places[0]] = low[places[0]] + (high - low)[places[0]] * k / (VALUES - 1)
        variants.append(columns.as_rows(other))
    classes = torch.stack([net(one).argmax(-1) for one in variants])
    changed = classes != classes[0]
    if not bool(changed.any()):
        return None
    variant, row = (int(place) for place in changed.nonzero()[0])
    before, after = rows[row], variants[variant][row]
    [change] = [one for one in columns.changes(before.tolist(), after.tolist()) if one[0] == column]
    names = [net.labels[int(k)] if net.labels else int(k) for k in (classes[0, row], classes[variant, row])]
    return tuple(columns.describe_row(before.tolist())), change, *names
