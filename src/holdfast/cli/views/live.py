"""Progress of a command: a bar on a terminal, a line every ten seconds in a file or pipe."""

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from holdfast.cli.terminal import Terminal
from holdfast.formatting import format_bounds
from holdfast.result import Record
from holdfast.solver import Progress

EVERY = 10.0  # Seconds between two progress lines (a choice).


class LiveProgress:
    """A progress callback for `solve`, used as a context manager; lines go to standard error."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        self._bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[now]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=total, left="", now="")
        self._lines = None if console.is_terminal else Terminal(stderr=True, quiet=console.quiet)
        self._title, self._printed = title, time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, now: Progress) -> None:
        left = "" if now.seconds_left is None else f"{now.seconds_left:.0f} s left"
        work = f"{now.method} {mean_bracket(now.records)}".strip()
        self._bar.update(self._task, completed=now.done, total=now.total, left=left, now=work)
        if self._lines is not None and time.monotonic() - self._printed >= EVERY:
            self._printed = time.monotonic()
            parts = [f"{self._title}: {now.done} of {now.total}", f"{now.seconds:.0f} s", left, work]
            self._lines.print(", ".join(filter(None, parts)), soft_wrap=True, markup=False, highlight=False)


def mean_bracket(records: Sequence[Record]) -> str:
    """The mean lower and upper bound over the records that have both, as in [0.021, 0.113]."""
    both = [(r.bracket.lower.value, r.bracket.upper.value) for r in records]
    known = [(lower, upper) for lower, upper in both if math.isfinite(lower) and math.isfinite(upper)]
    if not known:
        return ""
    lower, upper = (sum(side) / len(known) for side in zip(*known, strict=True))
    return f"mean [{', '.join(format_bounds(lower, upper, 3))}]"
