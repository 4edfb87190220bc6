"""`hf.counterfactuals`: rows of a table with another class that differ in few columns and by little.

The search has two steps. Norm 0 first: `hf.radius(norm=0)` finds a row with another class in which few columns
differ, and proves how many have to. Then the sum of changes, in units of the columns' scales: each changed number
moves back towards the original row as far as the class stays changed, one column after the other, and is rounded to
as few digits as that allows. Further counterfactuals of the same row freeze columns that earlier ones changed.

References: Wachter, Mittelstadt and Russell, "Counterfactual explanations without opening the black box" (2018), for
distances in units of the data; Mothilal, Sharma and Tan, "Explaining machine learning classifiers through diverse
counterfactual explanations" (2020), for several of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.api.arguments import (
    ModelLike,
    as_network,
    check_classes,
    check_inputs,
    check_number,
    check_whole,
)
from holdfast.api.printed_table import PrintedTable
from holdfast.api.radius import Inputs, LabelsOption
from holdfast.api.radius import radius as bracket_radii
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.region.columns import Column, Columns

HALVINGS = 40  # Steps of bisection between the original and the changed number (chosen by hand).
ROUNDS = (
    2  # Times that every changed number is moved back, since the other columns may allow it (chosen by hand).
)
MOST_DIGITS = 8  # Decimals to which a number without a step is rounded at most (chosen by hand).
TRIES = 3  # Searches for each requested counterfactual (chosen by hand).
SHARE_OF_SECONDS = 0.9  # Of the seconds of a call, the share for searches; the rest is for moving back.


@dataclass(frozen=True, eq=False)
class Counterfactual:
    """A row with another class.

    Attributes:
        index: the number of the original row.
        row: (features,) float64, as the network reads it.
        changes: for each changed column its name, the old and the new value.
        distance: the sum of the changes of numbers, each divided by the scale of its column. Words are not
            part of it.
        label: the class of the row.
        least_columns: proved: no row with another class differs in fewer columns.
    """

    index: int
    row: Tensor
    changes: tuple[tuple[str, str, str], ...]
    distance: float
    label: Any
    least_columns: int

    def __str__(self) -> str:
        changed = ", ".join(f"{name}: {old} -> {new}" for name, old, new in self.changes)
        return f"row {self.index}: {changed} gives {self.label}"


class CounterfactualList(list[Counterfactual]):
    """The counterfactuals of all rows, those of a row in the order of changed columns and distance."""

    def __init__(self, found: Sequence[Counterfactual], without: Sequence[int], columns: Columns) -> None:
        super().__init__(found)
        self.without = tuple(without)  # the rows of which none was found
        self._columns = columns

    def table(self) -> PrintedTable:
        """One line for each counterfactual."""
        rows = tuple(
            (
                str(one.index),
                str(len(one.changes)),
                str(one.least_columns),
                f"{one.distance:.4g}",
                str(one.label),
                ", ".join(f"{name}: {old} -> {new}" for name, old, new in one.changes),
            )
            for one in self
        )
        return PrintedTable(
            ("row", "changed", "least", "distance", "class", "changes"), rows, frozenset(range(4))
        )

    def to_frame(self) -> Any:
        """The rows as a DataFrame with the columns of the table, and `row`, the number of the original row."""
        if not self:
            raise BadInput("counterfactuals: none was found, so there are no rows.")
        frame = self._columns.decode(torch.stack([one.row for one in self]))
        frame.insert(0, "row", [one.index for one in self])
        return frame

    def __str__(self) -> str:
        lines = [str(self.table())] if self else []
        if self.without:
            lines.append(f"none found for rows {', '.join(map(str, self.without))}")
        return "\n".join(lines)

    __repr__ = __str__


def counterfactuals(
    net: ModelLike,
    x: Inputs,
    y: LabelsOption = None,
    *,
    per_row: int = 3,
    seconds: float | None = None,
    seed: int = 0,
) -> CounterfactualList:
    """Find rows of a table with another class, which differ in few columns and by little.

    Args:
        net: a hf.Network with columns (`hf.Network.from_sklearn(model, columns=...)`, `net.with_columns`). The
            columns say which may change, in which steps and ranges, and in which units changes are measured.
        x: rows, as for `hf.radius`: a DataFrame, or (rows, features).
        y: the class of each row. None: the class that the network predicts. Misclassified rows are left out.
        per_row: how many for each row at most. They differ in the columns that they change.
        seconds: for the whole call; what was found by then is returned.
        seed: decides every random number.
    """
    network = as_network(net)
    check_whole("per_row", per_row, at_least=1)
    check_whole("seed", seed)
    if seconds is not None:
        check_number("seconds", seconds, above=0)
    columns = network.columns
    if columns is None:
        raise BadInput(
            "counterfactuals: the network has no columns, so nobody knows which changes are realistic. Give them: "
            "hf.Network.from_sklearn(model, columns=hf.Columns.of(frame)), or net.with_columns(columns)."
        )
    rows = check_inputs(network, x)
    rows = network.rows(rows) if hasattr(rows, "columns") else torch.as_tensor(rows).double()
    predicted = network(rows).argmax(-1)
    labels = predicted if y is None else check_classes(network, y, len(rows))
    wanted = torch.as_tensor(labels).to(predicted)
    found: list[Counterfactual] = []
    each = None if seconds is None else SHARE_OF_SECONDS * seconds / max(1, len(rows))
    for index in (predicted == wanted).nonzero().flatten().tolist():
        search = _search_row(network, columns, rows[index], int(wanted[index]), per_row, each, seed)
        own = [_describe(network, columns, index, rows[index], row, least) for row, least in search]
        found += sorted(own, key=lambda one: (len(one.changes), one.distance))
    have = {one.index for one in found}
    without = [k for k in range(len(rows)) if k not in have]
    return CounterfactualList(found, without, columns)


def _search_row(
    net: Network, columns: Columns, x: Tensor, label: int, count: int, seconds: float | None, seed: int
) -> Iterator[tuple[Tensor, int]]:
    """Counterfactuals of one row with the proved least number of changed columns."""
    waiting: list[frozenset[str]] = [frozenset()]
    seen, tried = set[frozenset[str]](), set(waiting)
    least = 1
    part = None if seconds is None else seconds / (TRIES * count)
    for search in range(TRIES * count):
        if not waiting or len(seen) >= count:
            return
        frozen = waiting.pop(0)
        narrowed = net.with_columns(columns.with_(frozen=sorted(frozen)))
        [bracket] = bracket_radii(
            narrowed, x[None], torch.tensor([label]), norm=0, seconds=part, seed=seed, progress=False
        )
        if math.isinf(bracket.lower.value):
            continue  # proved: no change of these columns changes the class
        if search == 0:
            least = int(bracket.lower.value) + 1
        witness = bracket.upper.evidence.witness
        if witness is None:
            continue
        row = _move_back(net, columns, x, witness.double(), label)
        changed = frozenset(name for name, *_ in columns.changes(x.tolist(), row.tolist()))
        for name in sorted(changed):
            if frozen | {name} not in tried:
                tried.add(frozen | {name})
                waiting.append(frozen | {name})
        if changed not in seen:
            seen.add(changed)
            yield row, least


def _move_back(net: Network, columns: Columns, x: Tensor, witness: Tensor, label: int) -> Tensor:
    """The counterexample with each changed number as near to the original row as the class stays changed."""
    row = witness.clone()
    hidden = set(columns.indicators) | set(columns.indicators.values())
    for _ in range(ROUNDS):
        for column, places in zip(columns.each, columns.places, strict=True):
            [place, *more] = places
            if more or column.worded or place in hidden or float(row[place]) == float(x[place]):
                continue
            row[place] = _nearest(net, column, x, row, place, label)
    return row


def _nearest(net: Network, column: Column, x: Tensor, row: Tensor, place: int, label: int) -> float:
    """The tried number of a column that is nearest to the original one."""

    def changes(value: float) -> bool:
        point = row.clone()
        point[place] = value
        return int(net(point[None]).argmax(-1)) != label

    near, far = float(x[place]), float(row[place])
    if changes(near):
        return near
    for _ in range(HALVINGS):
        middle = near + (far - near) / 2
        if column.step > 0:
            middle = round(middle / column.step) * column.step
            if middle in (near, far):
                break
        if changes(middle):
            far = middle
        else:
            near = middle
    if column.step > 0:
        return far
    for digits in range(MOST_DIGITS + 1):
        rounded = round(far, digits)
        if (rounded - far) * (far - float(x[place])) < 0:  # towards the original row, where the class is back
            rounded += (1 if far > float(x[place]) else -1) * 10**-digits
            rounded = round(rounded, digits)
        inside = column.low <= rounded <= column.high
        further = abs(rounded - far) <= 0.02 * abs(far - float(x[place]))
        if inside and further and changes(rounded):
            return rounded
    return far


def _describe(
    net: Network, columns: Columns, index: int, x: Tensor, row: Tensor, least: int
) -> Counterfactual:
    scales = columns.scales
    numbers = ~columns.groups.any(0)
    for place, indicator in columns.indicators.items():
        numbers[[place, indicator]] = False
    label = int(net(row[None]).argmax(-1))
    return Counterfactual(
        index,
        row,
        tuple(columns.changes(x.tolist(), row.tolist())),
        float(((row - x).abs() / scales)[numbers].sum()),
        label if net.labels is None else net.labels[label],
        least,
    )
