"""`holdfast reach`: between which values do the outputs stay?"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.options import (
    MEASURE,
    ModelArgument,
    Seed,
    with_model,
)
from holdfast.cli.parse import ModelOptions


def register(app: typer.Typer) -> None:
    app.command("reach", rich_help_panel=MEASURE)(reach)


@with_model("vocabulary", model=ModelArgument)
def reach(
    network: ModelOptions,
    box: Annotated[
        str | None,
        typer.Option(
            metavar="BOX",
            help="low:high for each input, as in 0:10,-1:1, or one for all; or a .csv file with a line low,high for each input; or a .npy "
            "file that holds the lower and the upper ends.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--input", "-i", metavar="DATA", help="Boxes around these inputs instead: .npz, or module:function.")
    ] = None,
    radius: Annotated[float | None, typer.Option(metavar="NUMBER", help="With --input: how far each number may move.")] = None,
    outputs: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Which outputs, as in 0,2. Default: all.")] = None,
    tolerance: Annotated[float, typer.Option(metavar="NUMBER", help="How exactly each end is asked for.")] = 1e-2,
    seconds: Annotated[float, typer.Option(metavar="NUMBER", help="Stop after so many seconds, with what is known by then.")] = 120.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="A .json file for the ranges and witnesses.")] = None,
    scale: Annotated[float | None, typer.Option(metavar="NUMBER", help="Divide the data of --input by this: 255 for bytes.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="Only the first so many inputs of --input.")] = None,
    seed: Seed = 0,
) -> None:
    """Between which values does each output stay while the inputs move in a box?"""
    from holdfast.cli.parse import whole_numbers
    from holdfast.cli.ranges import RangeQuestion, show

    question = RangeQuestion(
        network, box, data, radius, whole_numbers(outputs, "outputs"), tolerance, seconds, scale=scale, limit=limit, seed=seed
    )
    show(question, out, Console())
