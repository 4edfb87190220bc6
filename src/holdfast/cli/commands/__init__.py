"""The commands, one file each.

A new file here is a new command: it has `register(app)`, and imports nothing heavy before it is needed.
"""

import importlib
import pkgutil

import typer

from holdfast.cli.help_pages import PlainHelpCommand
from holdfast.commands.options import PANELS


def register(app: typer.Typer) -> None:
    """Register every module of this package, in alphabetical order within the panels of `holdfast --help`."""
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        importlib.import_module(f"{__name__}.{found.name}").register(app)
    app.registered_commands.sort(key=lambda command: PANELS.index(str(command.rich_help_panel)))
    for group in (app, *(below.typer_instance for below in app.registered_groups)):
        for command in group.registered_commands if group is not None else ():
            command.cls = PlainHelpCommand
