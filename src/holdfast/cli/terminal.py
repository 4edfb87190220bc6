"""A console on which text from files and models cannot send control characters."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holdfast.foreign_text import STEERING, printable_lines


class Terminal(Console):
    """A rich console that prints strings without markup and escapes control characters in them.

    Colours and cursor movements of rich itself stay as they are.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            unsafe = segment.control is None and STEERING.search(segment.text)
            yield Segment(printable_lines(segment.text), segment.style) if unsafe else segment
