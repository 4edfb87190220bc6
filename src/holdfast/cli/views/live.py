"""Live progress on a terminal: inputs done, time left, the mean bracket. A file or a pipe sees nothing of it."""

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from holdfast.result import Record
from holdfast.solver import Progress


class Live:
    """A bar that `solve` can report to; use as a context manager. It leaves the terminal as it was."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        self._bar = Bar(
            TextColumn("[bold]{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"), TextColumn("{task.fields[now]}"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(title, total=total, left="", now="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, now: Progress) -> None:
        left = "" if now.seconds_left is None else f"{now.seconds_left:.0f} s left"
        self._bar.update(self._task, completed=now.done, total=now.total, left=left, now=f"{now.method} {mean_bracket(now.records)}")


def mean_bracket(records: Sequence[Record]) -> str:
    """The mean of both ends over the records that have both, so that the two can be compared, as in [0.021, 0.113]."""
    both = [(r.bracket.lower.value, r.bracket.upper.value) for r in records]
    known = [(lower, upper) for lower, upper in both if math.isfinite(lower) and math.isfinite(upper)]
    if not known:
        return ""
    lower, upper = (sum(ends) / len(known) for ends in zip(*known, strict=True))
    return f"mean [{lower:.3g}, {upper:.3g}]"
