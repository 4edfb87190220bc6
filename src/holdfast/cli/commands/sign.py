"""`holdfast sign`: add a signature to a bundle."""

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, Bundle
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.evidence.keys import PublicKey, Signer


def register(app: typer.Typer) -> None:
    app.command("sign", rich_help_panel=RUNS)(sign)


def sign(
    bundle: Bundle,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Private key: Ed25519 in PEM format, as 'holdfast keygen' writes it."
        ),
    ] = None,
    signer: Annotated[
        str | None,
        typer.Option(
            metavar="FUNCTION",
            help="Function that signs in place of --key: package.module:function takes bytes and returns "
            "their signature.",
        ),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --signer: its public key, Ed25519 or ECDSA."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The signed bundle. Default: BUNDLE itself."),
    ] = None,
) -> None:
    """Sign the statement of a bundle. The signature is added to the bundle; nothing else in it changes."""
    from holdfast.cli.views.output import line
    from holdfast.evidence.signature import sign as put

    who, how = _signing(key, signer, public_key)
    path = put(bundle, out or bundle, who, how)
    line(Terminal(), "signed", f"by {who.fingerprint}")
    line(Terminal(), "bundle", str(path))


def _signing(key: Path | None, signer: str | None, public: Path | None) -> "tuple[PublicKey, Signer]":
    if (key is None) == (signer is None) or (public is None) != (signer is None):
        raise BadInput(
            "say who signs: --key KEY.pem, or --signer package.module:function with its --public-key "
            "KEY.pub.pem."
        )
    from holdfast.evidence.keys import read_private_key, read_public_key

    if key is not None:
        return read_private_key(key, lambda: getpass.getpass(f"Password of {key}: "))
    assert signer is not None
    assert public is not None
    from holdfast.reading.source import import_named

    return read_public_key(public), import_named(signer, "signer")[0]
