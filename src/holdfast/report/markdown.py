"""Markdown tables and text in which no text of a run acts as markup."""

import re
from collections.abc import Sequence

from holdfast.foreign_text import printable

LONG = 200  # Characters of a cell; longer text is cut.
SENTENCE = 4000  # Characters of a question, long enough that its conditions are not cut; chosen by hand.


def text(words: object, most: int = LONG) -> str:
    """Escape text for a line or a cell: without markup, line breaks, HTML and control characters, and cut
    to `most`.
    """
    plain = printable(" ".join(str(words).split()), None)
    short = plain if len(plain) <= most else f"{plain[:most]}…"
    return re.sub(r"([\\`*_{}\[\]<>|#~@])", r"\\\1", short)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
