"""`holdfast inspect`: the inputs, layers, methods and cost of a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.measuring import declare_command
from holdfast.cli.terminal import Terminal
from holdfast.commands.options import OTHER, ModelArgument, ModelOptions


def register(app: typer.Typer) -> None:
    app.command("inspect", rich_help_panel=OTHER)(
        declare_command(Inspect, inspect, model=ModelArgument, out=None)
    )


@dataclass(frozen=True)
class Inspect:
    """Show the inputs and layers of a model, the methods that apply, and the cost of a proof."""

    network: ModelOptions
    seconds: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            min=0,
            help="Stop after this many seconds and print what is known by then.",
        ),
    ] = 60.0


def inspect(asked: Inspect, _: Path | None) -> None:
    from holdfast.cli.views.model import inspect_model

    inspect_model(asked.network, Terminal(), asked.seconds)
