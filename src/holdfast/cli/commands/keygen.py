"""`holdfast keygen`: a key to sign bundles with."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.options import RUNS


def register(app: typer.Typer) -> None:
    app.command("keygen", rich_help_panel=RUNS)(keygen)


def keygen(
    key: Annotated[Path, typer.Argument(metavar="KEY.pem", help="The new private key; the public one, KEY.pub.pem, lies beside it.")],
) -> None:
    """A new Ed25519 key to sign bundles with. Keep KEY.pem to yourself; give KEY.pub.pem, and its fingerprint, to those who check."""
    from holdfast.cli.views.output import line
    from holdfast.evidence.keys import made_keys

    public, made = made_keys(key)
    console = Console()
    line(console, "private key", f"{key}, which nobody else should read")
    line(console, "public key", str(public))
    line(console, "fingerprint", made.fingerprint)
