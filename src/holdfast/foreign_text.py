"""Text from files, models and exceptions: made safe to print, and capped where it is stored."""

import re

LONGEST_LINE = 2000  # Characters of such text on one line of the terminal; chosen by hand.
LONGEST_NOTE = 2000  # Characters of a note that a record keeps; chosen by hand.
LONGEST_REASON = 300  # Characters of an exception inside a longer message; chosen by hand.

# Control characters (C0, DEL, C1) steer a terminal; bidirectional overrides and isolates (U+202A to U+202E,
# U+2066 to U+2069) show text in another order than it has; line and paragraph separators, lone surrogates,
# annotations and tags are seen by programs and not by people.
_STEERING = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f"
)
STEERING = re.compile(f"[{_STEERING}]")
UNSAFE = re.compile(f"[\t\n{_STEERING}]")


def printable(text: object, longest: int | None = LONGEST_LINE) -> str:
    """Return the text on one line, with every character that could steer a terminal written as an escape, and
    cut where it is too long.

    Names, labels, file names and texts of exceptions go through this before they are printed.
    """
    words = str(text)
    return UNSAFE.sub(_escape, words if longest is None else cut_text(words, longest))


def printable_lines(text: str) -> str:
    """The same for text of several lines, which keeps its line breaks and tabs."""
    return STEERING.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape", "backslashreplace").decode("ascii")


def cut_text(text: str, longest: int) -> str:
    """Return the text, cut after `longest` characters, with the number of characters left out."""
    return text if len(text) <= longest else f"{text[:longest]}... {len(text) - longest} more characters"


def first_line(error: BaseException, longest: int = LONGEST_REASON, silent: str = "") -> str:
    """The first line of an exception's text, capped; if it has none, `silent` or the name of its type."""
    try:
        text = str(error).strip()
    except Exception:  # its own __str__ may fail
        text = ""
    return cut_text(text.partition("\n")[0], longest) or silent or type(error).__name__
