"""The console of progress bars: text of a model or a method cannot steer the terminal."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holdfast.foreign_text import STEERING, printable_lines


class ProgressConsole(Console):
    """A rich console without markup that writes control characters of any text as escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable; cursor movements of rich itself stay as they are."""
        for segment in super().render(renderable, options):
            unsafe = segment.control is None and STEERING.search(segment.text)
            yield Segment(printable_lines(segment.text), segment.style) if unsafe else segment
