"""`holdfast column-effect`: does a column, such as a protected attribute, change the class of any row?"""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import MEASURE, Seed


def register(app: typer.Typer) -> None:
    app.command("column-effect", rich_help_panel=MEASURE)(column_effect)


def column_effect(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="package.module:function that returns an estimator.")
    ],
    columns: Annotated[
        Path,
        typer.Option(metavar="FILE", help="JSON that describes the columns; 'holdfast columns' writes it."),
    ],
    column: Annotated[str, typer.Option(metavar="NAME", help="The column, as in sex.")],
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Rows of the table. Default: only all rows of the domain."),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="COUNT", help="Use the first rows only.")] = None,
    label_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the table that holds the labels.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(metavar="NUMBER", help="Limit for the given rows.")] = None,
    seed: Seed = 0,
) -> None:
    """Decide whether a column alone changes the class, for given rows and for all rows of the domain.

    All rows: proved to have no effect, or a row in which it has one. Exit code 1 if it changes a class.
    """
    from holdfast.api.column_effect import column_effect as decide
    from holdfast.commands.options import ModelOptions
    from holdfast.commands.reading.model import load_network
    from holdfast.foreign_text import printable
    from holdfast.reading.data import load

    net = load_network(ModelOptions(model, columns=str(columns)))
    rows = None
    if data is not None:
        rows = load(data, net, limit=limit, label_column=label_column).stack_inputs(data).double()
    effect = decide(net, column, rows, seconds=seconds, seed=seed)
    Terminal().print(printable(str(effect)), soft_wrap=True, highlight=False)
    if effect.affected or effect.example is not None:
        raise typer.Exit(1)
