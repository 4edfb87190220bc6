"""The command line: parse, build, solve, report. Nothing heavy is imported before a command needs it."""

import contextlib
import io
import logging
import os
import platform
import shlex
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import __version__, signals
from holdfast.cli import commands, help_pages
from holdfast.cli.terminal import Terminal
from holdfast.errors import LONGEST_MESSAGE, HoldfastError
from holdfast.foreign_text import first_line, printable, printable_lines

SUMMARY = "Measure how far the inputs of a trained network can move before its prediction changes."
TRACEBACK_LINES = 60  # Lines at the end of a traceback that the report of an internal error holds.


class Commands(help_pages.Group):
    def invoke(self, ctx: Any) -> object:
        """Treat SIGTERM as Ctrl-C; before a run has begun, exit with the code that a shell expects."""
        with signals.watch_signals(signal.SIGINT, signal.SIGTERM):
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                _print_message("yellow", "interrupted", "nothing had begun that could be saved.")
                sys.exit(signals.exit_code())


app = typer.Typer(
    name="holdfast",
    cls=Commands,
    help=SUMMARY,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(given: bool) -> None:
    if given:
        print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", metavar="", help="Show the traceback of an error; may follow any command."),
    ] = False,
) -> None:
    """Measure how far the inputs of a trained network can move before its prediction changes."""
    if context.invoked_subcommand is None:
        print(help_pages.START, end="")


commands.register(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point.

    An expected error becomes one message and exit code 2. An internal error writes a file to send and exits
    with 1.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug, everything = "--debug" in given, help_pages.SHOW_ALL in given
    words = ["--help" if word == help_pages.SHOW_ALL else word for word in given if word != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # A terminal without Unicode shows ? for a missing character.
    with warnings.catch_warnings(), _quiet_logs(debug):
        if not debug:
            warnings.showwarning = lambda message, *_: _print_message("yellow", "warning", str(message))
        try:
            app(words, prog_name="holdfast", obj=everything)
        except Exception as error:
            if debug:
                raise
            message, code = _message_and_exit_code(error, given)
            _print_message("bold red", "error", message)
            sys.exit(code)


def _message_and_exit_code(error: Exception, arguments: Sequence[str]) -> tuple[str, int]:
    """The message for the user, and the exit code."""
    if isinstance(error, HoldfastError):
        return str(error), 2
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}.", 2
    from holdfast.memory_budget import is_out_of_memory  # Here because it needs torch.

    reason = first_line(error, silent="no message")
    if is_out_of_memory(error):
        return (
            f"out of memory. Work on fewer inputs at once (for example --batch 8), or plan with less memory "
            f"(--memory 1G). ({reason})",
            2,
        )
    kind = type(error).__name__
    try:
        report = _write_error_report(error, arguments)
    except OSError as failed:
        saved = f"Repeat the command with --debug and send its output (no report could be written: {failed})."
    else:
        saved = (
            f"Please send the file {report} with your bug report: it holds the version, the command and the "
            "traceback."
        )
    return (
        f"internal error ({kind}: {reason}). This is a defect of holdfast, not of your input. {saved} "
        "Results found before are saved in the folder of the run.",
        1,
    )


def _write_error_report(error: Exception, arguments: Sequence[str]) -> Path:
    """Write versions, command and traceback to a new temporary file that only its owner can read."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    torch = sys.modules.get("torch")
    text = "\n".join(
        (
            f"holdfast {__version__}",
            f"Python {platform.python_version()}, torch {getattr(torch, '__version__', 'not imported')}",
            f"system: {platform.platform()}",
            f"command: {shlex.join(['holdfast', *arguments])}",
            "",
            *([f"... {len(lines) - TRACEBACK_LINES} lines before"] if len(lines) > TRACEBACK_LINES else ()),
            *lines[-TRACEBACK_LINES:],
            "",
        )
    )
    number, name = tempfile.mkstemp(prefix="holdfast-error-", suffix=".txt")
    with os.fdopen(number, "w", encoding="utf-8", errors="replace") as file:
        file.write(printable_lines(text))
    return Path(name)


def _print_message(style: str, kind: str, message: str) -> None:
    from rich.text import Text

    Terminal(stderr=True).print(
        Text.assemble((f"{kind}:", style), " ", printable(message, LONGEST_MESSAGE)), soft_wrap=True
    )


@contextlib.contextmanager
def _quiet_logs(debug: bool) -> Iterator[None]:
    """Silence the logs of libraries: they log tracebacks of errors that holdfast reports in one line."""
    before = logging.root.manager.disable
    logging.disable(before if debug else logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
