"""`holdfast worst`: the lowest score of a property near each input."""

import typer

from holdfast.cli.measuring import register_measurement
from holdfast.commands.options import TableRunning
from holdfast.commands.worst import Worst


def register(app: typer.Typer) -> None:
    register_measurement(app, Worst, "vocabulary", "tokenizer", running=TableRunning)
