"""`holdfast bundle`: a run as one file that can be signed, sent and checked."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import RUNS, ModelNow, Run
from holdfast.cli.terminal import Terminal


def register(app: typer.Typer) -> None:
    app.command("bundle", rich_help_panel=RUNS)(bundle)


def bundle(
    run: Run,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The bundle, a .zip file; it appears when it is whole."
        ),
    ],
    model: ModelNow = None,
    with_model: Annotated[
        bool,
        typer.Option(
            "--with-model", metavar="", help="The model's files go with it. Default: only their digests do."
        ),
    ] = False,
    proofs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Certificates of this run. Default: its folder proofs, where there is one."
        ),
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What 'holdfast gate --json' said of this run.")
    ] = None,
) -> None:
    """Page, records, witnesses, certificates and hashes of a run as one file, with a statement of what it claims. 'holdfast sign' signs it,
    'holdfast verify-bundle' checks it."""
    from holdfast.cli.bundle import bundle as pack

    pack(run, out, model, with_model, proofs, gate, Terminal())
