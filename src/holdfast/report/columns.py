"""Table rows: the columns that a counterexample changes, with old and new values."""

from collections.abc import Sequence

from markupsafe import Markup

from holdfast.formatting import shorten
from holdfast.question import Question
from holdfast.region.columns import Columns
from holdfast.report.picture import Pictures
from holdfast.report.summary import InputRow

FEW = 6  # Changed columns listed in one line of the terminal; more would not fit on 120 characters.
# Columns of a row on the page, unless more change; 8 lines are as high as a thumbnail with its caption.
MOST = 8


def columns_of(question: Question) -> Columns | None:
    """Return the column description stored in the question; None without one."""
    stored = question.asked.columns
    return None if stored is None else Columns.from_stored(stored)


def channels_of(question: Question) -> Columns | None:
    """Return the description of the features of windows stored in the question; None without one."""
    stored = question.asked.channels
    return None if stored is None else Columns.from_stored(stored).as_channels()


def changes_of(row: InputRow, question: Question) -> list[tuple[str, str, str]] | None:
    """Return (column, old value, new value) for each column that the counterexample changes.

    None without a table or a counterexample.
    """
    columns, witness = columns_of(question), row.witness
    if columns is None or row.source is None or witness is None or witness.shape != row.source.x.shape:
        return None
    return columns.changes(row.source.x.tolist(), witness.tolist())


def format_changes(changes: Sequence[tuple[str, str, str]]) -> str:
    """Join changes as 'age 30 → 31, job baker → clerk'."""
    more = f" and {len(changes) - FEW} more columns" if len(changes) > FEW else ""
    return (
        ", ".join(
            f"{shorten(name, 30)} {shorten(was, 30)} → {shorten(now, 30)}" for name, was, now in changes[:FEW]
        )
        + more
    )


def pictures_of(row: InputRow, question: Question) -> Pictures | None:
    """Render a table row column by column, changed columns first and marked; None if the input is no such
    row.
    """
    names, source = question.data.columns, row.source
    columns = columns_of(question) or (None if names is None else Columns.named(names))
    if columns is None or source is None or source.x.shape != (len(columns.features),):
        return None
    before, witness = source.x.tolist(), row.witness
    after = before if witness is None or witness.shape != source.x.shape else witness.tolist()
    changed = {name: (was, now) for name, was, now in columns.changes(before, after)}
    described = columns.describe_row(before)
    shown = sorted(described, key=lambda pair: pair[0] not in changed)[: max(MOST, len(changed))]
    more = (
        Markup("<small>and {} unchanged columns</small>").format(len(described) - len(shown))
        if len(shown) < len(described)
        else Markup()
    )
    values = [Markup("<b>{}</b> {}<br>").format(shorten(name, 30), _number(was)) for name, was in shown]
    moves = [
        Markup("{} → <mark>{}</mark><br>").format(_number(was), _number(now)) for was, now in changed.values()
    ]
    others = [
        Markup("<b>{}</b> <mark>{}</mark><br>").format(shorten(name, 30), _number(now))
        for name, (_, now) in changed.items()
    ]
    cells = [
        Markup('<p class="swaps">{}{}</p>').format(Markup().join(part), end)
        for part, end in ((values, more), (others, ""), (moves, ""))
    ]
    return Pictures(cells[0], cells[1] if others else Markup(), cells[2] if moves else Markup())


def _number(text: str) -> str:
    """Shorten a number to six digits and a word to 30 characters."""
    try:
        return f"{float(text):.6g}"
    except ValueError:
        return shorten(text, 30)
