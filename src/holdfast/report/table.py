"""The run in the terminal. Only the command line imports this module, because rich takes its time."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from holdfast.report.summary import Row, Totals, about, at_least, at_most, class_name, rows_of, totals_of
from holdfast.result import Bound, Record
from holdfast.store import Store

STYLE = {"proved": "blue", "witnessed": "dark_orange"}


def table(source: Store | Sequence[Record], *, most: int = 20) -> Table:
    """One line for each input, at most `most` of them; the averages below speak of all."""
    stored = isinstance(source, Store)
    rows = rows_of(source.records(), source.inputs()) if isinstance(source, Store) else rows_of(source)
    question = source.question if isinstance(source, Store) else {}
    view = Table(caption=_caption(totals_of(rows), len(rows) - most), caption_justify="left")
    view.add_column("input", justify="right")
    if stored:
        view.add_column("label")
    view.add_column("lower", justify="right", no_wrap=True)
    view.add_column("upper", justify="right", no_wrap=True)
    view.add_column("status")
    view.add_column("note")
    for row in rows[:most]:
        cells = _cells(row, question)
        view.add_row(*(cell for place, cell in enumerate(cells) if stored or place != 1))
    return view


def _cells(row: Row, question: Mapping[str, Any]) -> list[Text]:
    weakest = f"weakest of {len(row.frames)} frames" if row.frames else ""
    return [
        Text(str(row.index)),
        Text(class_name(question, row.source.label) if row.source else ""),
        _end(row.bracket.lower, at_least(row.bracket.lower.value), row.bracket.closed),
        _end(row.bracket.upper, at_most(row.bracket.upper.value), row.bracket.closed),
        Text(row.status, style="red" if row.status == "interrupted" else ""),
        Text("; ".join(part for part in (weakest, row.bracket.note) if part)),
    ]


def _end(bound: Bound, shown: str, closed: bool) -> Text:
    if bound.evidence.method == "definition":
        said = "all there is" if closed else "nothing yet"
        return Text(f"{shown} {said}" if bound.value else shown, style="dim")
    return Text.assemble(shown, " ", (bound.evidence.kind, STYLE.get(bound.evidence.kind, "")))


def _caption(totals: Totals, left_out: int) -> Text:
    more = f"... and {left_out} more\n" if left_out > 0 else ""
    mean = f"mean of {totals.rows}: lower {at_least(totals.mean_lower)}, upper {at_most(totals.mean_upper)}"
    if 0 < totals.open_above < totals.rows:
        mean += f" ({totals.open_above} without a witness; the others {about(totals.mean_found_upper)})"
    return Text(f"{more}{mean}")
