"""`holdfast verify-bundle`: check a bundle from somebody else."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands.check import files_option
from holdfast.cli.terminal import Terminal
from holdfast.commands.options import (
    RUNS,
    Bundle,
    DataNow,
    FilesNow,
    Findings,
    ModelNow,
    ProofSeconds,
    RecomputeAll,
    Sample,
    SampleSeed,
    Tolerance,
    Trust,
)


def register(app: typer.Typer) -> None:
    app.command("verify-bundle", rich_help_panel=RUNS)(verify_bundle)


def verify_bundle(
    bundle: Bundle,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Require a signature by this public key (PEM); may be repeated."),
    ] = None,
    model: ModelNow = None,
    data: DataNow = None,
    files: FilesNow = None,
    trust: Trust = False,
    sample: Sample = 25,
    every: RecomputeAll = False,
    seed: SampleSeed = None,
    tolerance: Tolerance = 1e-3,
    seconds: ProofSeconds = None,
    out: Findings = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a page (.html) of the contents of the bundle, with the signers."
        ),
    ] = None,
    unpack: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Unpack the files to this new folder if nothing differs, for holdfast-check.",
        ),
    ] = None,
) -> None:
    """Check a bundle from somebody else: hashes, signatures and certificates.

    With --model and --data, it also evaluates the model at every counterexample and recomputes proved bounds.
    The bundle is not changed and nothing is downloaded. Exit code 0: everything agrees. 1: something differs.
    2: a part could not be checked.
    """
    from holdfast.cli.bundle import verify
    from holdfast.commands.check import CheckSettings

    given = files_option(model, data, files)
    known = {} if seed is None else {"seed": seed}
    asked = CheckSettings(
        given, None if every else sample, seconds=seconds, tolerance=tolerance, trust=trust, **known
    )
    verify(bundle, public_key or (), asked, out, page, unpack, Terminal())
