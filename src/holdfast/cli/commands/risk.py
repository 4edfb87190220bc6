"""`holdfast risk`: what can go wrong near each input, how fast, and how far away?"""

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
    Seconds,
    Seed,
    with_model,
)
from holdfast.cli.parse import ModelOptions


def register(app: typer.Typer) -> None:
    app.command("risk", rich_help_panel=MEASURE)(what_can_go_wrong)


@with_model("vocabulary")
def what_can_go_wrong(
    network: ModelOptions,
    data: DataOption,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the answers go: risk.json, risk.npz, and pictures.")],
    property: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="robustness, confidence (runner-up, targeted, least), uncertainty, tie, reach, or package.module:score, your own "
            "function of the outputs, positive where all is well.",
        ),
    ] = "robustness",
    radius: Annotated[float | None, typer.Option(metavar="NUMBER", help="How far an input may move, in the units of the domain.")] = None,
    norm: Annotated[str, typer.Option(metavar="P", help="1, 2, inf or any p >= 1.")] = "inf",
    epsilon: Annotated[
        float, typer.Option(metavar="NUMBER", help="Confidence, tie: by how much classes must differ. Reach: the rise. Uncertainty: KL.")
    ] = 0.0,
    target: Annotated[
        str | None, typer.Option(metavar="CLASSES", help="For targeted and reach: one class for all inputs, or for each, as in 3,3,7.")
    ] = None,
    patch: Annotated[
        str | None, typer.Option(metavar="TOP,LEFT,SIZE", help="Only this square of the images moves; without --radius, freely.")
    ] = None,
    units: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="For lists of features: feature k moves by the radius times its number.")
    ] = None,
    outputs: Annotated[bool, typer.Option("--outputs", metavar="", help="Speak of the outputs themselves, not of their softmax.")] = False,
    queries: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Network evaluations an input for the search of Q.")] = 2000,
    tier: Annotated[str, typer.Option(metavar="TIER", help="As for radius: fast, tight, split or search.")] = "fast",
    scale: Scale = None,
    limit: Limit = None,
    pictures: Pictures = 20,
    seed: Seed = 0,
    seconds: Seconds = None,
) -> None:
    """What can go wrong near each input, how fast, and how far away?"""
    from holdfast.cli.risk import RiskQuestion, quantify

    question = RiskQuestion(
        network, data, property, radius=radius, norm=norm, epsilon=epsilon, target=target, patch=patch, units=units, outputs=outputs,
        queries=queries, tier=tier, seconds=seconds, scale=scale, limit=limit, pictures=pictures, seed=seed,
    )  # fmt: skip
    quantify(question, out, Console())
