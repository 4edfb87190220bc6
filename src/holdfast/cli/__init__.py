"""The command line: parse, build, solve, report. Nothing heavy is imported before a command needs it."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.errors import HoldfastError

app = typer.Typer(
    name="holdfast",
    help="How far can a trained network be pushed before it lets go?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Model = Annotated[str, typer.Option("--model", "-m", help="A .onnx or .pt2 file, or package.module:factory.")]
Data = Annotated[
    str,
    typer.Option("--data", "-d", help="A .npz file with x and y, a .tsv of label and text, or package.module:function."),
]
Trust = Annotated[bool, typer.Option("--trust", help="Open a .pt2 file although doing so can run code it contains.")]
Domain = Annotated[str | None, typer.Option(help="Lowest and highest value of an input, as in 0,1. Radii are in these units.")]
Mean = Annotated[str | None, typer.Option(help="The model is given (x - mean) / std; one number or one for each channel.")]
Std = Annotated[str | None, typer.Option(help="See --mean.")]
Shape = Annotated[str | None, typer.Option(help="Shape of one input, as in 1,28,28, where the model does not say.")]
TimeFirst = Annotated[bool, typer.Option("--time-first", help="The model wants (time, batch, ...).")]
Pool = Annotated[str | None, typer.Option(help="The model answers once a frame: take the last, the mean or the max.")]
Vocabulary = Annotated[str | None, typer.Option(help="The words of a token model, one a line.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
BlackBox = Annotated[bool, typer.Option("--black-box", help="Run an ONNX file through onnxruntime, without gradients or proofs.")]
Unbatched = Annotated[bool, typer.Option("--unbatched", help="The ONNX file takes one input without a batch axis.")]
Constant = Annotated[list[str] | None, typer.Option(help="A value for another input of the ONNX file, as in sr=16000; may be repeated.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The run's folder. Everything found is kept there at once.")]


@app.callback()
def common(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """How far can a trained network be pushed before it lets go?"""


@app.command()
def radius(
    model: Model,
    data: Data,
    out: Out,
    norm: Annotated[str, typer.Option(help="0, 1, 2, inf or any p >= 1.")] = "inf",
    frames: Annotated[str | None, typer.Option(help="all, each, or frame numbers as in 0,3; default: the input as a whole.")] = None,
    targets: Annotated[str | None, typer.Option(help="One class for all inputs, or one for each, as in 3,3,7.")] = None,
    substitutes: Annotated[str | None, typer.Option(help="JSON file: word -> words it may become; counts replaced words.")] = None,
    tier: Annotated[str, typer.Option(help="fast: linear bounds; search: witnesses only.")] = "fast",
    methods: Annotated[str | None, typer.Option(help="Only these: certify, pgd, carlini, corners, clever, as in certify,pgd.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds in all.")] = None,
    queries: Annotated[int | None, typer.Option(help="Stop after so many network evaluations an input.")] = None,
    gap: Annotated[float, typer.Option(help="Stop when upper - lower is at most this.")] = 0.0,
    limit: Annotated[int | None, typer.Option(help="Only the first so many inputs.")] = None,
    scale: Annotated[float, typer.Option(help="Divide the data by this, as in 255 for bytes.")] = 1.0,
    seed: int = 0,
    batch: Annotated[int, typer.Option(help="Inputs that are worked on at once.")] = 128,
    trust: Trust = False,
    domain: Domain = None,
    mean: Mean = None,
    std: Std = None,
    shape: Shape = None,
    time_first: TimeFirst = False,
    pool: Pool = None,
    vocabulary: Vocabulary = None,
    device: Device = "cpu",
    black_box: BlackBox = False,
    unbatched: Unbatched = False,
    constant: Constant = None,
) -> None:
    """How far can each input move before the class changes?"""
    from holdfast.cli.question import ModelQuestion, RadiusQuestion, norm_option, tier_option
    from holdfast.cli.run import begin

    network = ModelQuestion(
        model, trust, domain, mean, std, shape, time_first, pool, vocabulary, device, black_box, unbatched, tuple(constant or ())
    )
    question = RadiusQuestion(
        network, data, scale=scale, limit=limit, norm=norm_option(norm), frames=frames, targets=targets, substitutes=substitutes,
        tier=tier_option(tier), methods=methods, seconds=seconds, queries=queries, gap=gap, seed=seed, batch=batch,
    )  # fmt: skip
    begin(question, out, Console())


@app.command()
def resume(run: Annotated[Path, typer.Argument(help="The run's folder.")]) -> None:
    """Take up a run that was stopped, interrupted or killed; what is finished is not asked again."""
    from holdfast.cli.run import resume as go_on

    go_on(run, Console())


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page; default: report.html in the run's folder.")] = None,
) -> None:
    """Write the run as one self-contained page."""
    from holdfast.report import write_report
    from holdfast.store import Store

    with Store.open(run) as store:
        path = write_report(store, out or run / "report.html")
    Console().print(f"report: {path}", soft_wrap=True)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    to: Annotated[Path, typer.Argument(help="A .json, .csv or .parquet file for the records, .npz for the witnesses.")],
) -> None:
    """Write the records of a run as JSON, CSV or Parquet, or its witnesses as npz."""
    from holdfast.store import Store

    with Store.open(run) as store:
        Console().print(f"written: {store.export(to)}", soft_wrap=True)


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(help="A .onnx or .pt2 file, or package.module:factory.")],
    trust: Trust = False,
    domain: Domain = None,
    mean: Mean = None,
    std: Std = None,
    shape: Shape = None,
    time_first: TimeFirst = False,
    pool: Pool = None,
    vocabulary: Vocabulary = None,
    device: Device = "cpu",
    black_box: BlackBox = False,
    unbatched: Unbatched = False,
    constant: Constant = None,
) -> None:
    """What holdfast understands of a model: inputs, layers, which methods apply, what stops a proof."""
    from holdfast.cli.look import look
    from holdfast.cli.question import ModelQuestion

    look(
        ModelQuestion(
            model, trust, domain, mean, std, shape, time_first, pool, vocabulary, device, black_box, unbatched, tuple(constant or ())
        ),
        Console(),
    )


@app.command()
def demo(out: Out = Path("runs/demo")) -> None:
    """The main job, end to end, on digits and networks that ship with holdfast."""
    from holdfast.cli.demo import demo as show

    show(out, Console())


def main() -> None:
    """The entry point: a HoldfastError becomes one clear message and exit code 2."""
    try:
        app()
    except HoldfastError as error:
        if "--debug" in sys.argv:
            raise
        Console(stderr=True).print(f"[bold red]error:[/] {_plain(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
