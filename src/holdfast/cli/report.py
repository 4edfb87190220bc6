"""The commands about runs that exist: `show`, `compare` and `gate`. Nothing heavy is imported before one of them needs it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

RULES, FILES = "What it must satisfy", "Where the decision goes"  # panels of --help
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]


def register(app: typer.Typer) -> None:
    for command in (show, compare, gate):
        app.command()(command)


def show(
    run: Run,
    number: Annotated[int, typer.Option("--input", "-i", metavar="NUMBER", help="Which input, by its place in the data.")] = 0,
) -> None:
    """One input of a run in the terminal: the input, its witness, the change, and why each number may be believed."""
    from holdfast.cli.show import show as draw

    draw(run, number, Console())


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_A RUN_B ...", help="Folders of runs that asked the same of the same inputs.")],
    at: Annotated[
        str | None, typer.Option(metavar="RADII", help="Share certified at these, as in 0.01,0.05. Default: quartiles of what is proved.")
    ] = None,
    confidence: Annotated[float, typer.Option(metavar="SHARE", help="Of the intervals of paired differences.")] = 0.95,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="A page (.html), .json or .md.")] = None,
) -> None:
    """Models side by side on the same inputs: who wins where brackets decide, and where they do not."""
    from holdfast.cli.compare import compare as lay

    lay(runs, at, confidence, out, Console())


def gate(
    run: Run,
    at: Annotated[float | None, typer.Option(metavar="RADIUS", rich_help_panel=RULES, help="The radius to be certified.")] = None,
    min_certified: Annotated[
        float | None, typer.Option(metavar="SHARE", rich_help_panel=RULES, help="At least so many are certified; unknown ones are not.")
    ] = None,
    max_broken: Annotated[float | None, typer.Option(metavar="SHARE", rich_help_panel=RULES, help="At most so many are broken.")] = None,
    min_accuracy: Annotated[float | None, typer.Option(metavar="SHARE", rich_help_panel=RULES, help="At least so many are right.")] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="BASELINE", rich_help_panel=RULES, help="No worse than this run: accuracy, and share at --at or mean radius."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", rich_help_panel=RULES, help="With --against: worse by so much is let through.")
    ] = 0.0,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", rich_help_panel=FILES, help="JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", rich_help_panel=FILES, help="A summary for a pull request.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", rich_help_panel=FILES, help="JSON.")] = None,
) -> None:
    """May this model ship? Exit code 0: yes. 1: no. 2: the run cannot be judged."""
    from holdfast.cli.gate import Files
    from holdfast.cli.gate import gate as judge
    from holdfast.report.gate import Rules

    judge(run, Rules(at, min_certified, max_broken, min_accuracy, tolerance), against, Files(junit, markdown, json), Console())
