"""`holdfast demo`: a tour on networks that ship with holdfast."""

from pathlib import Path

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import OTHER, Out


def register(app: typer.Typer) -> None:
    app.command("demo", rich_help_panel=OTHER)(demo)


def demo(out: Out = Path("runs/demo")) -> None:
    """Measure, compare and report on networks and data that ship with holdfast."""
    from holdfast.cli.demo import demo as show

    show(out, Terminal())
