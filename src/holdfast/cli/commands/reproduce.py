"""`holdfast reproduce`: the tables and figures of the four papers, by their own names."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import typer

from holdfast.cli.options import OTHER
from holdfast.errors import BadInput


def register(app: typer.Typer) -> None:
    app.command(
        "reproduce",
        rich_help_panel=OTHER,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(reproduce)


def reproduce(context: typer.Context) -> None:
    """Reproduce tables and figures of POPQORN, DeepTRE (L0-TRE), DeepQuant and MARBLE; `reproduce --list` shows all of them."""
    code = _experiments().main(context.args or ["--help"])
    raise typer.Exit(code)


def _experiments() -> ModuleType:
    """The module benchmarks.reproduce of the repository that this package, or the working folder, belongs to."""
    for root in (Path(__file__).resolve().parents[4], Path.cwd()):
        if (root / "benchmarks" / "reproduce.py").is_file():
            sys.path.insert(0, str(root))
            return importlib.import_module("benchmarks.reproduce")
    raise BadInput(
        "reproduce: the experiments are part of the repository and not of the installed package. Clone the repository, and "
        "run the command in its folder."
    )
