"""Tables that print as text and HTML, and data frames."""

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import MissingExtra
from holdfast.formatting import format_bounds
from holdfast.result import Bracket

SHOWN_ROWS = 60  # rows of a table that are printed; the others are counted in a line below it
SENTENCE_COLUMNS = 100  # columns of the sentence below a printed table; chosen by hand


@dataclass(frozen=True)
class PrintedTable:
    """Text in columns. right: the columns whose text is set to the right."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()

    def __str__(self) -> str:
        shown = self.rows[:SHOWN_ROWS]
        widths = [max(map(len, column)) for column in zip(self.headings, *shown, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if place in self.right else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (self.headings, *shown)
        ]
        more = len(self.rows) - len(shown)
        return "\n".join([*lines, *([f"... and {more} more"] if more else [])])

    def to_html(self) -> str:
        """The table as HTML, every text escaped."""

        def line(cells: Sequence[str], tag: str) -> str:
            styles = [" style='text-align:right'" if k in self.right else "" for k in range(len(cells))]
            made = (
                f"<{tag}{style}>{html.escape(cell)}</{tag}>"
                for cell, style in zip(cells, styles, strict=True)
            )
            return f"<tr>{''.join(made)}</tr>"

        body = "".join(line(row, "td") for row in self.rows[:SHOWN_ROWS])
        more = len(self.rows) - SHOWN_ROWS
        rest = f"<p>... and {more} more</p>" if more > 0 else ""
        return f"<table><thead>{line(self.headings, 'th')}</thead><tbody>{body}</tbody></table>{rest}"


def make_table(rows: Sequence[Mapping[str, str]], right: Sequence[str] = ()) -> PrintedTable:
    """Return a table of rows with the same keys. A column without any text is left out."""
    headings = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    body = tuple(tuple(row[name] for name in headings) for row in rows)
    return PrintedTable(
        tuple(headings), body, frozenset(k for k, name in enumerate(headings) if name in right)
    )


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the rows as a pandas DataFrame; MissingExtra where pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra(
            "to_frame needs pandas: pip install 'holdfast[tables]'. Without it, use .lower and .upper, or "
            "iterate over the result."
        ) from error
    return pandas.DataFrame(list(rows))


def shown_bounds(bracket: Bracket) -> tuple[str, str]:
    """The bounds for people, rounded outwards; '-' where no method found one."""
    pair = (
        text.replace("−", "-").replace("∞", "inf")
        for text in format_bounds(bracket.lower.value, bracket.upper.value)
    )
    known = (bracket.closed or bracket.lower.known, bracket.closed or bracket.upper.known)
    low, high = (text if found else "-" for text, found in zip(pair, known, strict=True))
    return low, high


def plain(text: str) -> str:
    """A number as ASCII."""
    return text.replace("−", "-").replace("∞", "inf")


def wrap_sentence(sentence: str) -> str:
    """The sentence in lines of at most SENTENCE_COLUMNS columns."""
    return textwrap.fill(sentence, SENTENCE_COLUMNS, break_long_words=False, break_on_hyphens=False)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
