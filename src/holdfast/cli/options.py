"""The options that several commands share, written once; those that say how to read a model reach a command as one ModelOptions."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from holdfast.cli.command import Command
from holdfast.cli.parse import ModelOptions

PANELS = MEASURE, RUNS, OTHER = "Measure", "Runs that exist", "Begin, and more"  # of `holdfast --help`
STOPPING = "When to stop"  # a panel of a command's --help
DataOption = Annotated[
    str,
    typer.Option(
        "--data", "-d", metavar="DATA", help="A .npz file with x and y, a .tsv file of label and text, or package.module:function."
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The run. Everything found is kept there at once.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]
Part = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Of a question that has several: radius, worst, steepness, smallest, largest. Default: the first of these."
    ),
]
Scale = Annotated[float | None, typer.Option(metavar="NUMBER", help="Divide the data by this: 255 for bytes.")]
Limit = Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="Only the first so many inputs.")]
Unit = Annotated[
    str | None, typer.Option(metavar="WHAT", help="What counts as one change: pixel, frame or number. Default: pixel for images.")
]
Tier = Annotated[
    str,
    typer.Option(
        metavar="TIER",
        help="fast: proofs by linear bounds. tight: by trained second-order models, seconds an input. split: by halves of the region "
        "too, minutes. search: witnesses only.",
    ),
]
Arithmetic = Annotated[
    str, typer.Option(metavar="KIND", help="What proofs speak of. real: exact arithmetic. executed: the network's own float32.")
]
Methods = Annotated[str | None, typer.Option(metavar="NAMES", help="Only these, as in pgd,certify; 'holdfast inspect MODEL' lists all.")]
# Of commands that ask about a property over a region around each input.
Property = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        help="robustness, confidence (runner-up, targeted, least), uncertainty, tie, reach, or package.module:score, your own "
        "function of the outputs, positive where all is well.",
    ),
]
HowFar = Annotated[float | None, typer.Option(metavar="NUMBER", help="How far an input may move, in the units of the domain.")]
Norm = Annotated[str, typer.Option(metavar="P", help="1, 2, inf or any p >= 1.")]
Epsilon = Annotated[
    float, typer.Option(metavar="NUMBER", help="Confidence, tie: by how much classes must differ. Reach: the rise. Uncertainty: KL.")
]
Targets = Annotated[
    str | None, typer.Option(metavar="CLASSES", help="For targeted and reach: one class for all inputs, or for each, as in 3,3,7.")
]
Square = Annotated[
    str | None, typer.Option(metavar="TOP,LEFT,SIZE", help="Only this square of the images moves; without --radius, freely.")
]
Shares = Annotated[
    str | None, typer.Option(metavar="NUMBERS", help="For lists of features: feature k moves by the radius times its number.")
]
Softmax = Annotated[
    bool, typer.Option("--softmax/--no-softmax", metavar="", help="Speak of the outputs' softmax, or of the outputs themselves.")
]
Seed = Annotated[int, typer.Option(metavar="NUMBER", help="The same seed gives the same answers.")]
Batch = Annotated[int, typer.Option(metavar="COUNT", min=1, help="Inputs worked on at once; fewer need less memory.")]
Pictures = Annotated[int, typer.Option(metavar="COUNT", min=0, help="At most so many pictures.")]
Seconds = Annotated[float | None, typer.Option(metavar="NUMBER", rich_help_panel=STOPPING, help="After so many seconds in all.")]
Queries = Annotated[int | None, typer.Option(metavar="COUNT", rich_help_panel=STOPPING, help="After so many network evaluations an input.")]
Gap = Annotated[float, typer.Option(metavar="NUMBER", rich_help_panel=STOPPING, help="When upper - lower is at most this.")]

PANEL = "The model"  # of --help
Model = Annotated[str, typer.Option("--model", "-m", metavar="MODEL", help="A .onnx or .pt2 file, or package.module:factory.")]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A .onnx or .pt2 file, or package.module:factory.")]
Trust = Annotated[
    bool, typer.Option("--trust", metavar="", rich_help_panel=PANEL, help="Open a .pt2 file although that can run code it contains.")
]
Domain = Annotated[
    str | None,
    typer.Option(
        metavar="LOW,HIGH", rich_help_panel=PANEL, help="Lowest and highest value of an input, as in 0,1. Radii are in these units."
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(metavar="NUMBERS", rich_help_panel=PANEL, help="The model is given (x - mean) / std; one number or one for each channel."),
]
Std = Annotated[str | None, typer.Option(metavar="NUMBERS", rich_help_panel=PANEL, help="See --mean.")]
Shape = Annotated[
    str | None,
    typer.Option(metavar="SIZES", rich_help_panel=PANEL, help="Shape of one input, as in 1,28,28, where the model does not say."),
]
TimeFirst = Annotated[
    bool,
    typer.Option("--time-first", metavar="", rich_help_panel=PANEL, help="The model wants (time, batch, ...); your data stay batch first."),
]
Pool = Annotated[
    str | None,
    typer.Option(metavar="HOW", rich_help_panel=PANEL, help="The model answers once a frame: take the last, the mean or the max."),
]
Vocabulary = Annotated[
    str | None,
    typer.Option(metavar="FILE", rich_help_panel=PANEL, help="The words of a token model, one a line in the order of their numbers."),
]
Device = Annotated[str, typer.Option(metavar="WHERE", rich_help_panel=PANEL, help="cpu or cuda.")]
BlackBox = Annotated[
    bool, typer.Option("--black-box", metavar="", rich_help_panel=PANEL, help="Run a .onnx file by onnxruntime: no gradients, no proofs.")
]
Unbatched = Annotated[
    bool, typer.Option("--unbatched", metavar="", rich_help_panel=PANEL, help="The .onnx file takes one input without a batch axis.")
]
Constant = Annotated[
    list[str] | None,
    typer.Option(
        "--constant", metavar="NAME=NUMBER", rich_help_panel=PANEL, help="Another input of the .onnx file, as in sr=16000; may be repeated."
    ),
]
Function = Callable[..., None]
OPTIONS: dict[str, tuple[Any, Any]] = {  # of ModelOptions, each with its default
    "trust": (Trust, False),
    "domain": (Domain, None),
    "mean": (Mean, None),
    "std": (Std, None),
    "shape": (Shape, None),
    "time_first": (TimeFirst, False),
    "pool": (Pool, None),
    "vocabulary": (Vocabulary, None),
    "device": (Device, "cpu"),
    "black_box": (BlackBox, False),
    "unbatched": (Unbatched, False),
    "constants": (Constant, None),
}


def with_model(*without: str, model: Any = Model, default: Any = inspect.Parameter.empty) -> Callable[[Function], Function]:
    """The command takes `network`; on the command line stand the model and, but for some, the options above.

    model    how the model itself is given; without one, where it has a default, the network is None.
    """
    chosen = {name: option for name, option in OPTIONS.items() if name not in without}

    def wrap(command: Function) -> Function:
        @functools.wraps(command)
        def run(*, model: str | None, **given: Any) -> None:
            said = {name: given.pop(name) for name in chosen}
            said["constants"] = tuple(said.get("constants") or ())
            command(network=None if model is None else ModelOptions(model, **said), **given)

        own = [p for name, p in inspect.signature(command).parameters.items() if name != "network"]
        parts = [_parameter("model", model, default), *own, *(_parameter(name, *option) for name, option in chosen.items())]
        every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parts]
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in every}
        return run

    return wrap


def measures(kind: type[Command], *without: str, **how: Any) -> Callable[[Function], Function]:
    """The function only declares options: they become the command `kind`, which begins a run in the folder `out`; where a command can do
    without one and none is given, nothing is kept. See `with_model`."""

    def wrap(declared: Function) -> Function:
        @functools.wraps(declared)
        def run(*, network: ModelOptions | None, out: Path | None, **given: Any) -> None:
            from holdfast.cli.run import begin, once

            command = kind(network=network, **given)  # type: ignore[call-arg]
            if out is None:
                once(command, Console())
            else:
                begin(command, out, Console())

        run.__signature__ = inspect.signature(declared)  # type: ignore[attr-defined]
        return with_model(*without, **how)(run)

    return wrap


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
