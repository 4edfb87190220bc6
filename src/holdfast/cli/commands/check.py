"""`holdfast check`: a run that somebody else made, against its model and its data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.options import RUNS, STOPPING, Run
from holdfast.errors import BadInput


def register(app: typer.Typer) -> None:
    app.command("check", rich_help_panel=RUNS)(check)


def check(
    run: Run,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="MODEL", help="The model where it lies now. Default: where the run found it.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", metavar="DATA", help="The data where they lie now; of verify, the property.")
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="OPTION=FILE", help="Another file of the run, as in substitutes=words.json; may be repeated."),
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", metavar="", help="Open a .pt2 file although that can run code it contains.")] = False,
    sample: Annotated[int, typer.Option(metavar="COUNT", min=0, help="So many proved ends, drawn at random, are proved again.")] = 25,
    every: Annotated[bool, typer.Option("--all", metavar="", help="All of them are.")] = False,
    seed: Annotated[int | None, typer.Option(metavar="NUMBER", help="Draw the same sample again. Default: one that nobody knows.")] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="NUMBER", min=0, help="A proved end counts that is lower by no more than this share of it.")
    ] = 1e-3,
    seconds: Annotated[
        float | None, typer.Option(metavar="NUMBER", rich_help_panel=STOPPING, help="Prove for so long; default: as long as the run did.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="All findings as JSON.")] = None,
) -> None:
    """Is a run what it says? Seals, hashes, every witness, and proofs once more; the folder is only read. Exit code 0: all held. 1:
    something differs. 2: it could not be checked."""
    from holdfast.cli.check import Wanted
    from holdfast.cli.check import check as look

    given = files_option(model, data, files)
    known = {} if seed is None else {"seed": seed}
    look(run, Wanted(given, None if every else sample, seconds=seconds, tolerance=tolerance, trust=trust, **known), out, Console())


def files_option(model: str | None, data: str | None, files: list[str] | None) -> dict[str, str]:
    """The files of a run where they lie now, by the names of its options."""
    given = {name: value for name, value in (("model", model), ("data", data)) if value is not None}
    for text in files or ():
        name, sign, file = text.partition("=")
        if not (name and sign and file):
            raise BadInput(f"--with {text!r}: write the option of the run and the file, as in substitutes=words.json.")
        given[name.replace("-", "_")] = file
    return given
