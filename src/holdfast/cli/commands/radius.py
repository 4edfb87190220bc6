"""`holdfast radius`: lower and upper bounds of the perturbation radius of each input."""

import typer

from holdfast.cli.measuring import register_measurement
from holdfast.commands.options import TableRunning
from holdfast.commands.radius import Radius


def register(app: typer.Typer) -> None:
    register_measurement(app, Radius, running=TableRunning)
