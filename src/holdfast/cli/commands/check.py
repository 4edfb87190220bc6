"""`holdfast check`: a run folder, against its model and its data."""

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import (
    RUNS,
    DataNow,
    FilesNow,
    Findings,
    ModelNow,
    ProofSeconds,
    RecomputeAll,
    Run,
    Sample,
    SampleSeed,
    Tolerance,
    Trust,
)
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
    every: RecomputeAll = False,
    seed: SampleSeed = None,
    tolerance: Tolerance = 1e-3,
    seconds: ProofSeconds = None,
    out: Findings = None,
) -> None:
    """Check a run folder against its model and data, and recompute proved bounds.

    Verifies seals and hashes, evaluates the model at every counterexample, and recomputes a random sample of
    the proved bounds. The folder is not changed. Exit code 0: everything agrees. 1: something differs. 2: the
    run could not be checked.
    """
    from holdfast.cli.views.findings import show_check
    from holdfast.commands.check import CheckSettings

    given = files_option(model, data, files)
    known = {} if seed is None else {"seed": seed}
    show_check(
        run,
        CheckSettings(
            given, None if every else sample, seconds=seconds, tolerance=tolerance, trust=trust, **known
        ),
        out,
        Terminal(),
    )


def files_option(model: str | None, data: str | None, files: list[str] | None) -> dict[str, str]:
    """Where the files of a run are now, by the option of the run that named each."""
    given = {name: value for name, value in (("model", model), ("data", data)) if value is not None}
    for text in files or ():
        name, sign, file = text.partition("=")
        if not (name and sign and file):
            raise BadInput(
                f"--with {text!r}: write the option of the run and the file, as in substitutes=words.json."
            )
        given[name.replace("-", "_")] = file
    return given
