"""Rows of a table: which columns a witness changes, from what to what."""

from collections.abc import Sequence

from markupsafe import Markup

from holdfast.formatting import short
from holdfast.question import Question
from holdfast.region.columns import Columns
from holdfast.report.picture import Pictures
from holdfast.report.summary import InputRow

FEW = 6  # changed columns in one line
MOST = 8  # columns of a row that a page shows; more where more change


def columns_of(question: Question) -> Columns | None:
    """What the run says of its columns."""
    stored = question.asked.columns
    return None if stored is None else Columns.from_json(stored["each"]).in_order(stored["order"])


def changes_of(row: InputRow, question: Question) -> list[tuple[str, str, str]] | None:
    """(column, what it was, what it is) for each that the witness changes; None where there is no table or no witness."""
    columns, witness = columns_of(question), row.witness
    if columns is None or row.source is None or witness is None or witness.shape != row.source.x.shape:
        return None
    return columns.changes(row.source.x.tolist(), witness.tolist())


def in_a_line(changes: Sequence[tuple[str, str, str]]) -> str:
    more = f" and {len(changes) - FEW} more columns" if len(changes) > FEW else ""
    return (
        ", ".join(
            f"{short(name, 30)} {short(was, 30)} → {short(now, 30)}" for name, was, now in changes[:FEW]
        )
        + more
    )


def pictures_of(row: InputRow, question: Question) -> Pictures | None:
    """A row of a table as a page shows it, column by column, what the witness changes first and marked; None where it is no such row."""
    names, source = question.data.columns, row.source
    columns = columns_of(question) or (None if names is None else Columns.named(names))
    if columns is None or source is None or source.x.shape != (len(columns.features),):
        return None
    before, witness = source.x.tolist(), row.witness
    after = before if witness is None or witness.shape != source.x.shape else witness.tolist()
    changed = {name: (was, now) for name, was, now in columns.changes(before, after)}
    told = [
        (column.name, column.describe_numbers([before[i] for i in own]))
        for column, own in zip(columns.each, columns.places, strict=True)
    ]
    shown = sorted(told, key=lambda pair: pair[0] not in changed)[: max(MOST, len(changed))]
    more = (
        Markup("<small>and {} columns that stay</small>").format(len(told) - len(shown))
        if len(shown) < len(told)
        else Markup()
    )
    values = [Markup("<b>{}</b> {}<br>").format(short(name, 30), _number(was)) for name, was in shown]
    moves = [
        Markup("{} → <mark>{}</mark><br>").format(_number(was), _number(now)) for was, now in changed.values()
    ]
    others = [
        Markup("<b>{}</b> <mark>{}</mark><br>").format(short(name, 30), _number(now))
        for name, (_, now) in changed.items()
    ]
    cells = [
        Markup('<p class="swaps">{}{}</p>').format(Markup().join(part), end)
        for part, end in ((values, more), (others, ""), (moves, ""))
    ]
    return Pictures(cells[0], cells[1] if others else Markup(), cells[2] if moves else Markup())


def _number(told: str) -> str:
    """As a page has room for it."""
    try:
        return f"{float(told):.6g}"
    except ValueError:
        return short(told, 30)
