"""`holdfast harden`: train a network to be more robust. `holdfast.cli.harden` does the work."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.measuring import declare_command
from holdfast.cli.terminal import Terminal
from holdfast.commands.options import (
    OTHER,
    STOPPING,
    DataOption,
    DataOptions,
    ModelOptions,
    Norm,
    Scale,
    Seconds,
    Seed,
    request_option,
)


@dataclass(frozen=True)
class Harden(DataOptions):
    """Train a more robust copy of a network, and show the certified accuracy before and after."""

    network: ModelOptions
    data: DataOption
    radius: Annotated[float | None, request_option("radius", command="harden")] = None
    norm: Norm = "inf"
    frames: Annotated[str | None, request_option("frames", command="harden")] = None
    substitutes: Annotated[str | None, request_option("substitutes", command="harden")] = None
    recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="auto, intervals (IBP), crown-ibp, small boxes, mixed, pgd (adversarial training) or "
            "standard.",
        ),
    ] = "auto"
    begin: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="given: start from the weights of the model. afresh: start from new ones."
        ),
    ] = "given"
    freeze: Annotated[
        str | None,
        typer.Option(
            metavar="LAYERS",
            help="Layers whose weights stay fixed, as in conv1,head; embedding: the word vectors.",
        ),
    ] = None
    test: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Held-out data for the numbers before and after. Default: a part of --data that is not "
            "trained on.",
        ),
    ] = None
    held: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of --data that chooses the checkpoint; without --test the same share is held out for "
            "the numbers.",
        ),
    ] = 0.15
    count: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="Held-out inputs to certify before and after.")
    ] = 50
    scale: Scale = None
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            min=1,
            rich_help_panel=STOPPING,
            help="Stop after this many passes through the data.",
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
