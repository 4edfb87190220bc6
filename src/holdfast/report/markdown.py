"""Tables and words in Markdown that nothing in a run can break out of."""

import re
from collections.abc import Sequence

from holdfast.foreign_text import printable

LONG = 200
SENTENCE = 4000  # characters of a question, of which no condition may be cut


def text(words: object, most: int = LONG) -> str:
    """Any words as plain text inside a line or a cell: no markup, no line breaks, no HTML, no control characters, not endless."""
    plain = printable(" ".join(str(words).split()), None)
    short = plain if len(plain) <= most else f"{plain[:most]}…"
    return re.sub(r"([\\`*_{}\[\]<>|#~@])", r"\\\1", short)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
