"""The options that say how to read a model: written once, and handed to a command as one ModelQuestion."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from holdfast.cli.question import ModelQuestion

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
Command = Callable[..., None]
OPTIONS: dict[str, tuple[Any, Any]] = {  # of ModelQuestion, each with its default
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


def with_model(*without: str, model: Any = Model, default: Any = inspect.Parameter.empty) -> Callable[[Command], Command]:
    """The command takes `network`; on the command line stand the model and, but for some, the options above.

    model    how the model itself is given; without one, where it has a default, the network is None.
    """
    chosen = {name: option for name, option in OPTIONS.items() if name not in without}

    def wrap(command: Command) -> Command:
        @functools.wraps(command)
        def run(*, model: str | None, **given: Any) -> None:
            said = {name: given.pop(name) for name in chosen}
            said["constants"] = tuple(said.get("constants") or ())
            command(network=None if model is None else ModelQuestion(model, **said), **given)

        own = [p for name, p in inspect.signature(command).parameters.items() if name != "network"]
        parts = [_parameter("model", model, default), *own, *(_parameter(name, *option) for name, option in chosen.items())]
        every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parts]
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in every}
        return run

    return wrap


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
