"""`holdfast inspect`: what is understood of a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import OTHER, STOPPING, ModelArgument, ModelOptions, declare_command
from holdfast.cli.terminal import Terminal


def register(app: typer.Typer) -> None:
    app.command("inspect", rich_help_panel=OTHER)(
        declare_command(Inspect, inspect, model=ModelArgument, out=None)
    )


@dataclass(frozen=True)
class Inspect:
    """What holdfast understands of a model: inputs, layers, which methods apply, what stops a proof."""

    network: ModelOptions
    seconds: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            min=0,
            rich_help_panel=STOPPING,
            help="Say what was found out after so many seconds.",
        ),
    ] = 60.0


def inspect(asked: Inspect, _: Path | None) -> None:
    from holdfast.cli.views.model import look

    look(asked.network, Terminal(), asked.seconds)
