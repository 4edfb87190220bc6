"""`holdfast keygen`: a key to sign bundles with."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import RUNS
from holdfast.cli.terminal import Terminal


def register(app: typer.Typer) -> None:
    app.command("keygen", rich_help_panel=RUNS)(keygen)


def keygen(
    key: Annotated[
        Path,
        typer.Argument(
            metavar="KEY.pem", help="The new private key; the public one, KEY.pub.pem, lies beside it."
        ),
    ],
) -> None:
    """A new Ed25519 key to sign bundles with. Keep KEY.pem to yourself; give KEY.pub.pem, and its fingerprint, to those who check."""
    from holdfast.cli.views.output import line
    from holdfast.evidence.keys import made_keys

    public, made = made_keys(key)
    console = Terminal()
    line(console, "private key", f"{key}, which nobody else should read")
    line(console, "public key", str(public))
    line(console, "fingerprint", made.fingerprint)
