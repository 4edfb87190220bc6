"""`holdfast saliency`: how far can the margin fall when a single pixel, frame or feature changes?"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.options import (
    MEASURE,
    DataOption,
    Limit,
    Pictures,
    Scale,
    with_model,
)
from holdfast.cli.parse import ModelOptions


def register(app: typer.Typer) -> None:
    app.command("saliency", rich_help_panel=MEASURE)(maps)


@with_model("vocabulary")
def maps(
    network: ModelOptions,
    data: DataOption,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the maps go: saliency.npz, and pictures.")],
    unit: Annotated[
        str | None, typer.Option(metavar="WHAT", help="What changes as one: pixel, frame or number. Default: pixel for images.")
    ] = None,
    values: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="What a changed number may be, as in 0,1 or 0:255. Default: the domain's ends.")
    ] = None,
    scale: Scale = None,
    limit: Limit = None,
    pictures: Pictures = 20,
) -> None:
    """How far can the margin fall when a single pixel, frame or feature changes?"""
    from holdfast.cli.saliency import SaliencyQuestion, show

    show(SaliencyQuestion(network, data, unit=unit, values=values, scale=scale, limit=limit, pictures=pictures), out, Console())
