"""`holdfast harden`: train a network so that it holds further; what is done is in `holdfast.cli.harden`, imported when it is needed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import (
    OTHER,
    STOPPING,
    DataOption,
    DataOptions,
    ModelOptions,
    Norm,
    Scale,
    Seconds,
    Seed,
    declare_command,
)
from holdfast.cli.terminal import Terminal


@dataclass(frozen=True)
class Harden(DataOptions):
    """Train a copy of a network so that its classes hold further, and show what is proved before and after."""

    network: ModelOptions
    data: DataOption
    radius: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="How far inputs are to hold, in the units of the domain. Not for --substitutes.",
        ),
    ] = None
    norm: Norm = "inf"
    frames: Annotated[
        str | None,
        typer.Option(metavar="WHICH", help="all, or frame numbers as in 0,3. Default: the input as a whole."),
    ] = None
    substitutes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='JSON, {"word": ["words it may become"]}: every word may be any of its set, all at once.',
        ),
    ] = None
    recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="auto, intervals, crown-ibp, small boxes, mixed, pgd (adversarial training) or standard.",
        ),
    ] = "auto"
    begin: Annotated[
        str, typer.Option(metavar="HOW", help="given: from the weights as they are. afresh: from new ones.")
    ] = "given"
    freeze: Annotated[
        str | None,
        typer.Option(
            metavar="LAYERS", help="Layers whose weights stay, as in conv1,head; embedding: the word vectors."
        ),
    ] = None
    test: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Held-out data for the numbers before and after. Default: a part of --data, kept from training.",
        ),
    ] = None
    held: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Of --data that chooses the checkpoint; without --test as much is kept for the numbers.",
        ),
    ] = 0.15
    count: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="Held-out inputs asked about before and after.")
    ] = 50
    scale: Scale = None
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT", min=1, rich_help_panel=STOPPING, help="After so many times through the data."
        ),
    ] = None
    seconds: Seconds = None
    seed: Seed = 0


def register(app: typer.Typer) -> None:
    app.command("harden", rich_help_panel=OTHER)(declare_command(Harden, harden))


def harden(asked: Harden, out: Path | None) -> None:
    from holdfast.cli.harden import harden_into

    assert out is not None
    harden_into(asked, out, Terminal())
