"""`holdfast verify`: VNN-LIB questions."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.options import (
    MEASURE,
    Seed,
    with_model,
)
from holdfast.cli.parse import ModelOptions


def register(app: typer.Typer) -> None:
    app.command("verify", rich_help_panel=MEASURE)(can_it_happen)


Questions = Annotated[
    str, typer.Argument(metavar="MODEL", help="A .onnx or .pt2 file or package.module:factory; or a folder or .csv file of instances.")
]


@with_model("domain", "mean", "std", "time_first", "pool", "vocabulary", "black_box", model=Questions)
def can_it_happen(
    network: ModelOptions,
    spec: Annotated[str | None, typer.Argument(metavar="[PROPERTY]", help="A .vnnlib file, may be packed by gzip.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Give up after so many seconds; default: what the list of instances says, else 120."),
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="With a list: a .csv file with the known answers, to compare.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="With a list: a .csv file for the answers.")] = None,
    seed: Seed = 0,
) -> None:
    """Can what a VNN-LIB property describes happen? sat with a counterexample, unsat with a proof, timeout or unknown."""
    from holdfast.cli.verify import answer_many, answer_one, check

    check(network.model, spec)
    if spec is None:
        answer_many(Path(network.model), seconds, key, out, seed, Console())
        return
    answer_one(network, spec, 120.0 if seconds is None else seconds, seed)
