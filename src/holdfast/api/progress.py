"""Show how far a call has come: a bar in a terminal or a notebook, nothing where the output goes into a file
or a pipe.
"""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from holdfast.errors import BadInput
from holdfast.solver import Progress

ProgressOption = Callable[[Progress], None] | bool | None
Bar = Callable[[int, int | None, str, str], None]  # Of done, total, seconds left, what is running.


def check_progress(progress: object) -> None:
    """Raise unless this can be reported to: a function of one argument, True, False or None."""
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise BadInput(
            "progress: expected True, False or a function that is called with every report, got "
            f"{type(progress).__name__}."
        )


def shows_progress(progress: object) -> bool:
    """Whether a bar is shown: always for True, never for False, and for None where somebody looks at the
    output.
    """
    return progress if isinstance(progress, bool) else _in_notebook() or _on_terminal()


def _on_terminal() -> bool:
    return bool(getattr(sys.stderr, "isatty", lambda: False)())


def _in_notebook() -> bool:
    """Whether this runs in a kernel of Jupyter, without importing it."""
    shell = sys.modules.get("IPython")
    found = None if shell is None else shell.get_ipython()
    return type(found).__name__ == "ZMQInteractiveShell"


def progress_display(
    progress: ProgressOption, title: str
) -> AbstractContextManager[Callable[[Progress], None] | None]:
    """A context with the function that `solve` reports to: the caller's own, that of a bar, or None."""

    def report_to(bar: Bar) -> Callable[[Progress], None]:
        def report(now: Progress) -> None:
            left = "" if now.seconds_left is None else f"{now.seconds_left:.0f} s left"
            bar(now.done, now.total, left, now.method)

        return report

    return _display(progress, title, report_to)


def epoch_display(
    progress: Callable[[Any], None] | bool | None, title: str, epochs: int | None
) -> AbstractContextManager[Callable[[Any], None] | None]:
    """As `progress_display`, for training: one step of the bar for each epoch."""

    def report_to(bar: Bar) -> Callable[[Any], None]:
        counter = itertools.count(1)
        return lambda epoch: bar(next(counter), epochs, "", "epochs")

    return _display(progress, title, report_to)


@contextlib.contextmanager
def _display(
    progress: Callable[[Any], None] | bool | None,
    title: str,
    report_to: Callable[[Bar], Callable[[Any], None]],
) -> Iterator[Callable[[Any], None] | None]:
    """Yield the caller's own function, one that reports to a bar, or None where none is shown."""
    if callable(progress):
        yield progress
        return
    with _bar(shows_progress(progress), title) as bar:
        yield None if bar is None else report_to(bar)


@contextlib.contextmanager
def _bar(shown: bool, title: str) -> Iterator[Bar | None]:
    """Yield the function that draws a bar; None where none is
    shown.
    """
    if not shown:
        yield None
        return
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichBar

        from holdfast.api.terminal import ProgressConsole
    except ImportError:  # The library works without rich.
        yield None
        return
    in_notebook = _in_notebook()
    console = ProgressConsole(stderr=not in_notebook, force_jupyter=True if in_notebook else None)
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn("{task.fields[method]}", markup=False),
    )
    with RichBar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, left="", method="")

        def draw(done: int, total: int | None, left: str, method: str) -> None:
            bar.update(task, completed=done, total=total, left=left, method=method)

        yield draw
