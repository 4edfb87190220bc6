"""`holdfast check`: a run that somebody else made, against its model and its data."""

import typer
from rich.console import Console

from holdfast.cli.options import RUNS, DataNow, Drawn, Every, FilesNow, Findings, ModelNow, ProveFor, Run, Sample, Tolerance, Trust


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
    """Is a run what it says? Seals, hashes, every witness, and proofs once more; the folder is only read. Exit code 0: all held. 1:
    something differs. 2: it could not be checked."""
    from holdfast.cli.check import check as look
    from holdfast.cli.check import wanted

    look(run, wanted(model, data, files, trust, None if every else sample, seed, tolerance, seconds), out, Console())
