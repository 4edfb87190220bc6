"""`holdfast smoothing`: radii of the smoothed classifier (randomised smoothing)."""

from typing import TYPE_CHECKING

import typer

from holdfast.cli.measuring import CommandView, register_measurement
from holdfast.commands.smoothing import SmoothingCommand

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.commands.built import Built
    from holdfast.store import Store


class SmoothingView(CommandView[SmoothingCommand]):
    def show(self, command: SmoothingCommand, store: "Store", built: "Built", console: "Console") -> None:
        from holdfast.cli.views.smoothing import table

        console.print(table(store), highlight=False)


def register(app: typer.Typer) -> None:
    register_measurement(app, SmoothingCommand, view=SmoothingView())
