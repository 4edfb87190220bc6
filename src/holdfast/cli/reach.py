"""`holdfast reach`: its options. What it does is in `ranges`, imported when it is needed."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli import BlackBox, Constant, Device, Domain, Mean, Pool, Shape, Std, TimeFirst, Trust, Unbatched


def reach(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A .onnx or .pt2 file, or package.module:factory.")],
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
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="The same seed gives the same answers.")] = 0,
    trust: Trust = False,
    domain: Domain = None,
    mean: Mean = None,
    std: Std = None,
    shape: Shape = None,
    time_first: TimeFirst = False,
    pool: Pool = None,
    device: Device = "cpu",
    black_box: BlackBox = False,
    unbatched: Unbatched = False,
    constant: Constant = None,
) -> None:
    """Between which values does each output stay while the inputs move in a box?"""
    from holdfast.cli.question import ModelQuestion, whole_numbers
    from holdfast.cli.ranges import RangeQuestion, show

    network = ModelQuestion(
        model, trust, domain, mean, std, shape, time_first, pool, None, device, black_box, unbatched, tuple(constant or ())
    )
    question = RangeQuestion(
        network, box, data, radius, whole_numbers(outputs, "outputs"), tolerance, seconds, scale=scale, limit=limit, seed=seed
    )
    show(question, out, Console())
