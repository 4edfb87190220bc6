"""`holdfast reach`: the range of each output over a box of inputs."""

from typing import TYPE_CHECKING

import typer

from holdfast.cli.measuring import CommandView, register_measurement
from holdfast.commands.options import ModelArgument, OutOrNothing
from holdfast.commands.reach import ReachCommand

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.commands.built import Built
    from holdfast.store import Store


class ReachView(CommandView[ReachCommand]):
    def show(self, command: ReachCommand, store: "Store", built: "Built", console: "Console") -> None:
        from holdfast.cli.views.output import line
        from holdfast.report.ranges import range_remarks, range_table
        from holdfast.verification import ranges_of

        found = ranges_of(store.records(), command.tolerance, built.net)
        if not found:
            return
        names = {} if built.data is None else {i: given.name for i, given in enumerate(store.inputs())}
        console.print(range_table(found, names, built.net.classes or ()), highlight=False)
        for kind, text in range_remarks(found, built.net):
            line(console, kind, text, warns=kind == "note")


def register(app: typer.Typer) -> None:
    register_measurement(
        app,
        ReachCommand,
        "vocabulary",
        "tokenizer",
        view=ReachView(),
        model=ModelArgument,
        out=OutOrNothing,
    )
