"""`holdfast keygen`: a key to sign bundles with."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS


def register(app: typer.Typer) -> None:
    app.command("keygen", rich_help_panel=RUNS)(keygen)


def keygen(
    key: Annotated[
        Path,
        typer.Argument(
            metavar="KEY.pem",
            help="File for the new private key; the public key is written next to it as KEY.pub.pem.",
        ),
    ],
) -> None:
    """Create a new Ed25519 key to sign bundles with.

    Keep KEY.pem secret. Give KEY.pub.pem and its fingerprint to whoever checks your bundles.
    """
    from holdfast.cli.views.output import line
    from holdfast.evidence.keys import create_keys

    public, made = create_keys(key)
    console = Terminal()
    line(console, "private key", f"{key} (keep it secret)")
    line(console, "public key", str(public))
    line(console, "fingerprint", made.fingerprint)
