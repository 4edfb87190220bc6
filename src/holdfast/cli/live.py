"""Live progress on the terminal: inputs done, the mean bracket, time left."""

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
    """A bar that `solve` can report to; use as a context manager."""

    def __init__(self, console: Console, title: str) -> None:
        self._bar = Bar(
            TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"), TextColumn("{task.fields[bracket]}"), console=console,
        )  # fmt: skip
        self._task = self._bar.add_task(title, total=None, left="", bracket="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, now: Progress) -> None:
        left = "" if now.seconds_left is None else f"about {now.seconds_left:.0f} s left"
        self._bar.update(
            self._task,
            completed=now.done,
            total=now.total,
            left=left,
            bracket=f"{now.method} {mean_bracket(now.records)}",
        )


def mean_bracket(records: Sequence[Record]) -> str:
    """The mean of the known ends, as in [0.021, 0.113]."""

    lower = [r.bracket.lower.value for r in records if math.isfinite(r.bracket.lower.value)]
    upper = [r.bracket.upper.value for r in records if math.isfinite(r.bracket.upper.value)]

    def mean(values: list[float]) -> str:
        return f"{sum(values) / len(values):.4g}" if values else "?"

    return f"mean bracket [{mean(lower)}, {mean(upper)}]"
