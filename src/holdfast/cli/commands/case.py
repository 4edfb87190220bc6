"""`holdfast case`: a safety case document over several runs."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS


def register(app: typer.Typer) -> None:
    app.command("case", rich_help_panel=RUNS)(case)


def case(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of the runs.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for case.html and case.json.")
    ],
    about: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A .toml file with title, system, operating_domain, signers, [[requirement]] (id, text, run, "
            "inputs) and [[assumption]] (text, owner). Default: these are shown as not stated.",
        ),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="The .onnx file of the certificates, or a folder of them; may be repeated. Default: where the "
            "runs read it.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Seconds for checking certificates, in all. Default: no limit."),
    ] = None,
) -> None:
    """Write a safety case of several runs: requirement, claim, verdict, certificate, residual risk, standards.

    Every certificate is checked again. The page can be printed.
    """
    from holdfast.evidence.case import build_case, read_statement, write_case

    built = build_case(runs, read_statement(about), model or (), seconds)
    page, counts, console = write_case(built, out), built.counts, Terminal()
    console.print(
        f"{len(built.claims)} claims: {counts['proved']} proved, {counts['violated']} violated, {counts['open']} "
        f"open, {counts['measured']} measured; {counts['accepted']} certificates accepted",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"written: {page}", highlight=False, soft_wrap=True)
