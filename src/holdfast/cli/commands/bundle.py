"""`holdfast bundle`: a run as one file that can be signed, sent and checked."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, ModelNow, Run


def register(app: typer.Typer) -> None:
    app.command("bundle", rich_help_panel=RUNS)(bundle)


def bundle(
    run: Run,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The bundle, a .zip file; it appears only when it is complete.",
        ),
    ],
    model: ModelNow = None,
    with_model: Annotated[
        bool,
        typer.Option(
            "--with-model",
            metavar="",
            help="Include the files of the model. Default: include only their hashes.",
        ),
    ] = False,
    proofs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Certificates of this run. Default: the folder proofs of the run, if any."
        ),
    ] = None,
    gate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Decision that 'holdfast gate --json' wrote for this run."),
    ] = None,
) -> None:
    """Pack a run into one file: report, records, counterexamples, certificates and hashes.

    The file includes a statement of the claims of the run. 'holdfast sign' signs it, 'holdfast verify-bundle'
    checks it.
    """
    from holdfast.cli.bundle import bundle as pack

    pack(run, out, model, with_model, proofs, gate, Terminal())
