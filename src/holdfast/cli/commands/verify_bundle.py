"""`holdfast verify-bundle`: check a bundle from somebody else."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands.check import CheckOptions
from holdfast.cli.measuring import declare_command
from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, Bundle, Findings


@dataclass(frozen=True, kw_only=True)
class VerifyBundle(CheckOptions):
    """Check a bundle from somebody else: hashes, signatures and certificates.

    With --model and --data, it also evaluates the model at every counterexample and recomputes proved bounds.
    The bundle is not changed and nothing is downloaded. Exit code 0: everything agrees. 1: something differs.
    2: a part could not be checked.
    """

    bundle: Bundle
    public_key: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Require a signature by this public key (PEM); may be repeated."),
    ] = None
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a page (.html) of the contents of the bundle, with the signers."
        ),
    ] = None
    unpack: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Unpack the files to this new folder if nothing differs, for holdfast-check.",
        ),
    ] = None


def verify_bundle(asked: VerifyBundle, out: Path | None) -> None:
    from holdfast.cli.bundle import verify

    verify(asked.bundle, asked.public_key or (), asked.settings(), out, asked.page, asked.unpack, Terminal())


def register(app: typer.Typer) -> None:
    app.command("verify-bundle", rich_help_panel=RUNS)(
        declare_command(VerifyBundle, verify_bundle, out=Findings)
    )
