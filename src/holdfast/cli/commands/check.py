"""`holdfast check`: a run folder, against its model and its data."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from holdfast.cli.measuring import declare_command
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

if TYPE_CHECKING:
    from holdfast.commands.check import CheckSettings


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What a check of a run or of a bundle recomputes, with which files."""

    model: ModelNow = None
    data: DataNow = None
    files: FilesNow = None
    trust: Trust = False
    sample: Sample = 25
    every: RecomputeAll = False
    seed: SampleSeed = None
    tolerance: Tolerance = 1e-3
    seconds: ProofSeconds = None

    def settings(self) -> "CheckSettings":
        """Return what to check."""
        from holdfast.commands.check import CheckSettings

        settings = CheckSettings(
            files_option(self.model, self.data, self.files),
            None if self.every else self.sample,
            seconds=self.seconds,
            tolerance=self.tolerance,
            trust=self.trust,
        )
        return settings if self.seed is None else replace(settings, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class CheckRun(CheckOptions):
    """Check a run folder against its model and data, and recompute proved bounds.

    Verifies seals and hashes, evaluates the model at every counterexample, and recomputes a random sample of
    the proved bounds. The folder is not changed. Exit code 0: everything agrees. 1: something differs. 2: the
    run could not be checked.
    """

    run: Run


def check(asked: CheckRun, out: Path | None) -> None:
    from holdfast.cli.views.findings import show_check

    show_check(asked.run, asked.settings(), out, Terminal())


def register(app: typer.Typer) -> None:
    app.command("check", rich_help_panel=RUNS)(declare_command(CheckRun, check, out=Findings))


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
