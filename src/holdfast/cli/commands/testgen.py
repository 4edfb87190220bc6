"""`holdfast testgen`: new inputs that make neurons do what none of the given ones did."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.options import (
    MEASURE,
    DataOption,
    Limit,
    Queries,
    Scale,
    Seconds,
    Seed,
    with_model,
)
from holdfast.cli.parse import ModelOptions


def register(app: typer.Typer) -> None:
    app.command("testgen", rich_help_panel=MEASURE)(new_tests)


@with_model("vocabulary")
def new_tests(
    network: ModelOptions,
    data: DataOption,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the tests go: tests.npz, and pictures.")],
    criterion: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="neuron: every neuron fires. multisection: it is seen in all parts of its range. boundary: below and above that range.",
        ),
    ] = "neuron",
    train: Annotated[
        str | None, typer.Option(metavar="DATA", help="The training data, for the neurons' ranges. Default: those of --data.")
    ] = None,
    layers: Annotated[str | None, typer.Option(metavar="NAMES", help="Only these layers, as inspect names them.")] = None,
    per: Annotated[str, typer.Option(metavar="WHAT", help="A neuron is an element of a feature map, or a whole channel.")] = "element",
    threshold: Annotated[float, typer.Option(metavar="NUMBER", help="A neuron fires above this.")] = 0.0,
    sections: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Parts of a neuron's range, for multisection.")] = 10,
    unit: Annotated[
        str | None, typer.Option(metavar="WHAT", help="What counts as one change: pixel, frame or number. Default: pixel for images.")
    ] = None,
    changes: Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="At most so many changes in a test.")] = None,
    tests: Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="At most so many tests.")] = None,
    pictures: Annotated[int, typer.Option(metavar="COUNT", min=0, help="At most so many pictures; adversarial tests first.")] = 20,
    scale: Scale = None,
    limit: Limit = None,
    seed: Seed = 0,
    batch: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Neurons worked on at once; fewer need less memory.")] = 32,
    seconds: Seconds = None,
    queries: Queries = None,
) -> None:
    """New inputs near yours that make neurons do what none of yours did."""
    from holdfast.cli.testgen import TestsQuestion, generate

    question = TestsQuestion(
        network, data, train=train, criterion=criterion, layers=layers, per=per, threshold=threshold, sections=sections, unit=unit,
        changes=changes, tests=tests, pictures=pictures, scale=scale, limit=limit, seed=seed, batch=batch, seconds=seconds, queries=queries,
    )  # fmt: skip
    generate(question, out, Console())
