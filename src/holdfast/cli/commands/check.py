"""`holdfast check`: a run that somebody else made, against its model and its data."""

import typer

from holdfast.cli.options import (
    RUNS,
    DataNow,
    Drawn,
    Every,
    FilesNow,
    Findings,
    ModelNow,
    ProveFor,
    Run,
    Sample,
    Tolerance,
    Trust,
)
from holdfast.cli.terminal import Terminal
from holdfast.errors import BadInput


def register(app: typer.Typer) -> None:
    app.command("check", rich_help_panel=RUNS)(check)


def check(
    run: Run,
    model: ModelNow = None,
    data: DataNow = None,
    files: FilesNow = None,
    trust: Trust = False,
    sample: Sample = 25,
    every: Every = False,
    seed: Drawn = None,
    tolerance: Tolerance = 1e-3,
    seconds: ProveFor = None,
    out: Findings = None,
) -> None:
    """Is a run what it says? Seals, hashes, every witness, and proofs again; the folder is only read. Exit code 0: all held. 1:
    something differs. 2: it could not be checked."""
    from holdfast.cli.check import Wanted, show

    given = files_option(model, data, files)
    known = {} if seed is None else {"seed": seed}
    show(
        run,
        Wanted(given, None if every else sample, seconds=seconds, tolerance=tolerance, trust=trust, **known),
        out,
        Terminal(),
    )


def files_option(model: str | None, data: str | None, files: list[str] | None) -> dict[str, str]:
    """The files of a run where they lie now, by the names of its options."""
    given = {name: value for name, value in (("model", model), ("data", data)) if value is not None}
    for text in files or ():
        name, sign, file = text.partition("=")
        if not (name and sign and file):
            raise BadInput(
                f"--with {text!r}: write the option of the run and the file, as in substitutes=words.json."
            )
        given[name.replace("-", "_")] = file
    return given
