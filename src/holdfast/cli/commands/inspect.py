"""`holdfast inspect`: what is understood of a model."""

import typer
from rich.console import Console

from holdfast.cli.options import OTHER, ModelArgument, with_model
from holdfast.cli.parse import ModelOptions


def register(app: typer.Typer) -> None:
    app.command("inspect", rich_help_panel=OTHER)(inspect)


@with_model(model=ModelArgument)
def inspect(network: ModelOptions) -> None:
    """What holdfast understands of a model: inputs, layers, which methods apply, what stops a proof."""
    from holdfast.cli.views.model import look

    look(network, Console())
