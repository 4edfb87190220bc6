"""The terminal: a console on which no text of a file or a model can act."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holdfast.foreign_text import STEERING, printable_lines


class Terminal(Console):
    """A rich console that takes plain strings as they are, without markup, and writes control characters in any text as escapes.

    Colours and cursor movements of rich itself are no text, so they are not touched.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            unsafe = segment.control is None and STEERING.search(segment.text)
            yield Segment(printable_lines(segment.text), segment.style) if unsafe else segment
