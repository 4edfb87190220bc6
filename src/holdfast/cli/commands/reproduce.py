"""`holdfast reproduce`: the tables and figures of the four papers, by their own names."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from holdfast.commands.options import OTHER
from holdfast.errors import BadInput


def register(app: typer.Typer) -> None:
    app.command("reproduce", rich_help_panel=OTHER)(reproduce)


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(metavar="[PAPER]", help="popqorn, deeptre, deepquant or marble; default: all four."),
    ] = "",
    every: Annotated[
        bool, typer.Option("--list", metavar="", help="Show all experiments with their expected time.")
    ] = False,
    table: Annotated[
        str | None, typer.Option("--table", metavar="NUMBER", help="One table of the paper.")
    ] = None,
    figure: Annotated[
        str | None, typer.Option("--figure", metavar="NUMBER", help="One figure of the paper.")
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item", metavar="NAME", help="One experiment by its name in --list.")
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", metavar="SCALE", help="small (minutes on two CPU cores) or paper.")
    ] = "small",
    device: Annotated[str, typer.Option("--device", metavar="WHERE", help="cpu or cuda.")] = "cpu",
    data: Annotated[
        str,
        typer.Option("--data", metavar="DATA", help="The data folder; benchmarks/data.md lists its files."),
    ] = "",
    out: Annotated[
        str,
        typer.Option("--out", "-o", metavar="FOLDER", help="Tables, figures and a page are written there."),
    ] = "runs/reproduce",
) -> None:
    """Reproduce tables and figures of POPQORN, DeepTRE (L0-TRE), DeepQuant and MARBLE by their own names.

    A command that has finished is not run again. It needs a clone of the repository.
    """
    named = {"table": table, "figure": figure, "item": item, "data": data or None}
    options = [word for name, value in named.items() if value is not None for word in (f"--{name}", value)]
    words = [*([paper] if paper else []), *options, "--scale", scale, "--device", device, "--out", out]
    raise typer.Exit(_experiments().main(["--list"] if every else words))


def _experiments() -> ModuleType:
    """The module benchmarks.reproduce of the repository that this package, or the working folder, belongs to."""
    for root in (Path(__file__).resolve().parents[4], Path.cwd()):
        if (root / "benchmarks" / "reproduce.py").is_file():
            sys.path.insert(0, str(root))
            return importlib.import_module("benchmarks.reproduce")
    raise BadInput(
        "reproduce: the experiments are part of the repository and not of the installed package. Clone the "
        "repository, and run the command in its folder."
    )
