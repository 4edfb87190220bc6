"""`holdfast verify-bundle`: what of a bundle that somebody sent holds."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands.check import files_option
from holdfast.cli.options import (
    RUNS,
    Bundle,
    DataNow,
    Drawn,
    Every,
    FilesNow,
    Findings,
    ModelNow,
    ProveFor,
    Sample,
    Tolerance,
    Trust,
)
from holdfast.cli.terminal import Terminal


def register(app: typer.Typer) -> None:
    app.command("verify-bundle", rich_help_panel=RUNS)(verify_bundle)


def verify_bundle(
    bundle: Bundle,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="The public key of somebody who must have signed, as PEM; may be repeated."
        ),
    ] = None,
    model: ModelNow = None,
    data: DataNow = None,
    files: FilesNow = None,
    trust: Trust = False,
    sample: Sample = 25,
    every: Every = False,
    seed: Drawn = None,
    tolerance: Tolerance = 1e-3,
    seconds: ProveFor = None,
    out: Findings = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A page of your own of what the bundle holds, which names who signed; .html."
        ),
    ] = None,
    unpack: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Its files go there if nothing differs, for holdfast-check; a new folder."
        ),
    ] = None,
) -> None:
    """Is a bundle whole, signed by whom, and what it says? Certificates go through the checker; with --model and --data every witness is
    replayed and ends are proved again. Nothing is fetched, the bundle is only read. Exit code 0: all held. 1: something differs. 2: not all
    of it could be checked."""
    from holdfast.cli.bundle import verify
    from holdfast.cli.check import Wanted

    given = files_option(model, data, files)
    known = {} if seed is None else {"seed": seed}
    asked = Wanted(
        given, None if every else sample, seconds=seconds, tolerance=tolerance, trust=trust, **known
    )
    verify(bundle, public_key or (), asked, out, page, unpack, Terminal())
