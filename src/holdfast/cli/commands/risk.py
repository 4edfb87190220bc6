"""`holdfast risk`: worst score, Lipschitz metric Q and radius of a property (DeepQuant)."""

from typing import TYPE_CHECKING

import typer

from holdfast.cli.measuring import CommandView, register_measurement
from holdfast.commands.risk import RiskCommand

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.commands.built import Built
    from holdfast.store import Store


class RiskView(CommandView[RiskCommand]):
    def write_files(self, command: RiskCommand, store: "Store", built: "Built") -> None:
        from holdfast.cli.views.risk import draw

        draw(store, built.net, command.pictures)

    def show(self, command: RiskCommand, store: "Store", built: "Built", console: "Console") -> None:
        from holdfast.cli.views.risk import table

        console.print(table(store), highlight=False)


def register(app: typer.Typer) -> None:
    register_measurement(app, RiskCommand, "vocabulary", "tokenizer", view=RiskView())
