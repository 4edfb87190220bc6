"""The command line: parse, build, solve, report. Nothing heavy is imported before a command needs it."""

import contextlib
import io
import logging
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast import __version__, signals
from holdfast.cli import commands
from holdfast.cli.terminal import Terminal
from holdfast.errors import LONGEST_MESSAGE, HoldfastError
from holdfast.foreign_text import first_line, printable


class Commands(TyperGroup):
    def invoke(self, ctx: Any) -> object:
        """SIGTERM is as Ctrl-C. Before there is anything to keep: the exit code that a shell expects."""
        with signals.watch_signals(signal.SIGINT, signal.SIGTERM):
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                _tell("yellow", "interrupted", "nothing had begun that could be kept.")
                sys.exit(signals.exit_code())


app = typer.Typer(
    name="holdfast",
    cls=Commands,
    help="How far can a trained network be pushed before it lets go?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_version, is_eager=True, help="Say which version this is."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", metavar="", help="Show the traceback of an error; works after a command too."
        ),
    ] = False,
) -> None:
    """How far can a trained network be pushed before it lets go?"""


commands.register(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: an error becomes one clear message and exit code 2; one that holdfast did not foresee, exit code 1."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? where it has no sign
    with warnings.catch_warnings(), _quiet_logs(debug):
        if not debug:
            warnings.showwarning = lambda message, *_: _tell("yellow", "warning", str(message))
        try:
            app([word for word in given if word != "--debug"], prog_name="holdfast")
        except Exception as error:
            if debug:
                raise
            message, code = _message_and_exit_code(error)
            _tell("bold red", "error", message)
            sys.exit(code)


def _message_and_exit_code(error: Exception) -> tuple[str, int]:
    """What a person is told, and the exit code."""
    if isinstance(error, HoldfastError):
        return str(error), 2
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}.", 2
    from holdfast.memory_budget import is_out_of_memory  # which needs torch

    told = first_line(error, silent="no message")
    if is_out_of_memory(error):
        return (
            f"out of memory. Ask about fewer inputs at once (--batch 8, say), or plan with less (--memory 1G). ({told})",
            2,
        )
    return (
        f"holdfast did not foresee this ({type(error).__name__}: {told}). Please report it with what "
        f"the same command prints with --debug. What a run has found so far is safe in its folder.",
        1,
    )


def _tell(style: str, kind: str, message: str) -> None:
    from rich.text import Text

    Terminal(stderr=True).print(
        Text.assemble((f"{kind}:", style), " ", printable(message, LONGEST_MESSAGE)), soft_wrap=True
    )


@contextlib.contextmanager
def _quiet_logs(debug: bool) -> Iterator[None]:
    """Libraries log whole tracebacks about files that holdfast then reports in one line."""
    before = logging.root.manager.disable
    logging.disable(before if debug else logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
