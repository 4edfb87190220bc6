"""The command line: parse, build, solve, report. Nothing heavy is imported before a command needs it."""

import contextlib
import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.monitor import monitor
from holdfast.cli.options import ModelArgument, with_model
from holdfast.cli.question import ModelQuestion
from holdfast.cli.reach import reach
from holdfast.cli.report import register
from holdfast.errors import HoldfastError

NO_MEMORY = r"out of memory|not enough memory|can't allocate memory|cannot allocate memory"

app = typer.Typer(
    name="holdfast",
    help="How far can a trained network be pushed before it lets go?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

STOPPING = "When to stop"  # a panel of --help
Data = Annotated[
    str,
    typer.Option(
        "--data", "-d", metavar="DATA", help="A .npz file with x and y, a .tsv file of label and text, or package.module:function."
    ),
]
Questions = Annotated[
    str, typer.Argument(metavar="MODEL", help="A .onnx or .pt2 file or package.module:factory; or a folder or .csv file of instances.")
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The run. Everything found is kept there at once.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error; works after a command too.")] = False,
) -> None:
    """How far can a trained network be pushed before it lets go?"""


@app.command()
@with_model()
def radius(
    network: ModelQuestion,
    data: Data,
    out: Out,
    norm: Annotated[str, typer.Option(metavar="P", help="0, 1, 2, inf or any p >= 1.")] = "inf",
    frames: Annotated[
        str | None, typer.Option(metavar="WHICH", help="all, each, or frame numbers as in 0,3. Default: the input as a whole.")
    ] = None,
    frame_scale: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="With --frames: frame k moves by the radius times its number, as in 1,1,0.5; 0 is still."),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(metavar="CLASSES", help="Only a change to this class counts: runner-up, one for all, or for each, as in 3,3,7."),
    ] = None,
    substitutes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='JSON, {"word": ["words it may become"]}, or a list of such lists for each word of each text: the radius counts '
            "replaced words.",
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="With --norm 0, what counts as one change: pixel, frame or number. Default: pixel for images."),
    ] = None,
    free: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --norm 0: .npy, true for the units that may change, for all inputs or each.")
    ] = None,
    values: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="With --norm 0: what a changed number may be, as in 0,1 or 0:255 for bytes.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(metavar="MODE", help="With --norm 0. prove: branch and bound; use --seconds. grid: DeepTRE's estimates over a grid."),
    ] = "prove",
    scale: Annotated[float | None, typer.Option(metavar="NUMBER", help="Divide the data by this: 255 for bytes.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="Only the first so many inputs.")] = None,
    tier: Annotated[
        str,
        typer.Option(
            metavar="TIER",
            help="fast: proofs by linear bounds. tight: by trained second-order models, seconds an input. split: by halves of the region "
            "too, minutes. search: witnesses only.",
        ),
    ] = "fast",
    arithmetic: Annotated[
        str, typer.Option(metavar="KIND", help="What proofs speak of. real: exact arithmetic. executed: the network's own float32.")
    ] = "real",
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Only these of certify, tighten, split, enumerate, greedy, branch, grid, pgd, carlini, corners, mesh, clever, smoothing; "
            "so pgd,certify.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="The same seed gives the same answers.")] = 0,
    batch: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Inputs worked on at once; fewer need less memory.")] = 128,
    saliency: Annotated[
        bool, typer.Option("--saliency", metavar="", help="Keep a map of what matters for the report. Not for frames.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(metavar="NUMBER", rich_help_panel=STOPPING, help="After so many seconds in all.")] = None,
    queries: Annotated[
        int | None, typer.Option(metavar="COUNT", rich_help_panel=STOPPING, help="After so many network evaluations an input.")
    ] = None,
    gap: Annotated[float, typer.Option(metavar="NUMBER", rich_help_panel=STOPPING, help="When upper - lower is at most this.")] = 0.0,
) -> None:
    """How far can each input move before the class changes?"""
    from holdfast.cli.question import (
        RadiusQuestion,
        arithmetic_option,
        mode_option,
        norm_option,
        tier_option,
        unit_option,
    )
    from holdfast.cli.run import begin

    question = RadiusQuestion(
        network, data, scale=scale, limit=limit, norm=norm_option(norm), frames=frames, frame_scale=frame_scale, targets=targets,
        substitutes=substitutes, unit=unit_option(unit), free=free, values=values, mode=mode_option(mode), tier=tier_option(tier),
        arithmetic=arithmetic_option(arithmetic), methods=methods, seconds=seconds, queries=queries, gap=gap, seed=seed, batch=batch,
        saliency=saliency,
    )  # fmt: skip
    begin(question, out, Console())


@app.command("saliency")
@with_model("vocabulary")
def maps(
    network: ModelQuestion,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the maps go: saliency.npz, and pictures.")],
    unit: Annotated[
        str | None, typer.Option(metavar="WHAT", help="What changes as one: pixel, frame or number. Default: pixel for images.")
    ] = None,
    values: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="What a changed number may be, as in 0,1 or 0:255. Default: the domain's ends.")
    ] = None,
    scale: Annotated[float | None, typer.Option(metavar="NUMBER", help="Divide the data by this: 255 for bytes.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="Only the first so many inputs.")] = None,
    pictures: Annotated[int, typer.Option(metavar="COUNT", min=0, help="At most so many pictures.")] = 20,
) -> None:
    """How far can the margin fall when a single pixel, frame or feature changes?"""
    from holdfast.cli.saliency import SaliencyQuestion, show

    show(SaliencyQuestion(network, data, unit=unit, values=values, scale=scale, limit=limit, pictures=pictures), out, Console())


@app.command("testgen")
@with_model("vocabulary")
def new_tests(
    network: ModelQuestion,
    data: Data,
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
    scale: Annotated[float | None, typer.Option(metavar="NUMBER", help="Divide the data by this: 255 for bytes.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="Only the first so many inputs.")] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="The same seed gives the same answers.")] = 0,
    batch: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Neurons worked on at once; fewer need less memory.")] = 32,
    seconds: Annotated[float | None, typer.Option(metavar="NUMBER", rich_help_panel=STOPPING, help="After so many seconds in all.")] = None,
    queries: Annotated[
        int | None, typer.Option(metavar="COUNT", rich_help_panel=STOPPING, help="After so many network evaluations an input.")
    ] = None,
) -> None:
    """New inputs near yours that make neurons do what none of yours did."""
    from holdfast.cli.testgen import TestsQuestion, generate

    question = TestsQuestion(
        network, data, train=train, criterion=criterion, layers=layers, per=per, threshold=threshold, sections=sections, unit=unit,
        changes=changes, tests=tests, pictures=pictures, scale=scale, limit=limit, seed=seed, batch=batch, seconds=seconds, queries=queries,
    )  # fmt: skip
    generate(question, out, Console())


@app.command("risk")
@with_model("vocabulary")
def what_can_go_wrong(
    network: ModelQuestion,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the answers go: risk.json, risk.npz, and pictures.")],
    property: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="robustness, confidence (runner-up, targeted, least), uncertainty, tie, reach, or package.module:score, your own "
            "function of the outputs, positive where all is well.",
        ),
    ] = "robustness",
    radius: Annotated[float | None, typer.Option(metavar="NUMBER", help="How far an input may move, in the units of the domain.")] = None,
    norm: Annotated[str, typer.Option(metavar="P", help="1, 2, inf or any p >= 1.")] = "inf",
    epsilon: Annotated[
        float, typer.Option(metavar="NUMBER", help="Confidence, tie: by how much classes must differ. Reach: the rise. Uncertainty: KL.")
    ] = 0.0,
    target: Annotated[
        str | None, typer.Option(metavar="CLASSES", help="For targeted and reach: one class for all inputs, or for each, as in 3,3,7.")
    ] = None,
    patch: Annotated[
        str | None, typer.Option(metavar="TOP,LEFT,SIZE", help="Only this square of the images moves; without --radius, freely.")
    ] = None,
    units: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="For lists of features: feature k moves by the radius times its number.")
    ] = None,
    outputs: Annotated[bool, typer.Option("--outputs", metavar="", help="Speak of the outputs themselves, not of their softmax.")] = False,
    queries: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Network evaluations an input for the search of Q.")] = 2000,
    tier: Annotated[str, typer.Option(metavar="TIER", help="As for radius: fast, tight, split or search.")] = "fast",
    scale: Annotated[float | None, typer.Option(metavar="NUMBER", help="Divide the data by this: 255 for bytes.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="Only the first so many inputs.")] = None,
    pictures: Annotated[int, typer.Option(metavar="COUNT", min=0, help="At most so many pictures.")] = 20,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="The same seed gives the same answers.")] = 0,
    seconds: Annotated[float | None, typer.Option(metavar="NUMBER", rich_help_panel=STOPPING, help="After so many seconds in all.")] = None,
) -> None:
    """What can go wrong near each input, how fast, and how far away?"""
    from holdfast.cli.risk import RiskQuestion, quantify

    question = RiskQuestion(
        network, data, property, radius=radius, norm=norm, epsilon=epsilon, target=target, patch=patch, units=units, outputs=outputs,
        queries=queries, tier=tier, seconds=seconds, scale=scale, limit=limit, pictures=pictures, seed=seed,
    )  # fmt: skip
    quantify(question, out, Console())


@app.command("verify")
@with_model("domain", "mean", "std", "time_first", "pool", "vocabulary", "black_box", model=Questions)
def can_it_happen(
    network: ModelQuestion,
    spec: Annotated[str | None, typer.Argument(metavar="[PROPERTY]", help="A .vnnlib file, may be packed by gzip.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Give up after so many seconds; default: what the list of instances says, else 120."),
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="With a list: a .csv file with the known answers, to compare.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="With a list: a .csv file for the answers.")] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="The same seed gives the same answers.")] = 0,
) -> None:
    """Can what a VNN-LIB property describes happen? sat with a counterexample, unsat with a proof, timeout or unknown."""
    from holdfast.cli.verify import answer_many, answer_one, check

    check(network.model, spec)
    if spec is None:
        answer_many(Path(network.model), seconds, key, out, seed, Console())
        return
    answer_one(network, spec, 120.0 if seconds is None else seconds, seed)


@app.command()
def resume(run: Run) -> None:
    """Take up a run that was stopped by its budget, interrupted or killed; what is finished is not asked again."""
    from holdfast.cli.run import resume as go_on

    go_on(run, Console())


@app.command()
def report(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="A page (.html), a model card (.md) or JSON (.json); default: report.html there."),
    ] = None,
) -> None:
    """Write the run as one self-contained page, as a model card, or as JSON."""
    from holdfast.report import write_report
    from holdfast.store import Store

    with Store.open(run) as store:
        path = write_report(store, out or run / "report.html")
    Console().print(f"report: {path}", soft_wrap=True, markup=False, highlight=False)


@app.command()
def export(
    run: Run,
    to: Annotated[Path, typer.Argument(metavar="FILE", help="A .json, .csv or .parquet file for the records, .npz for the witnesses.")],
) -> None:
    """Write the records of a run as JSON, CSV or Parquet, or its witnesses as npz."""
    from holdfast.store import Store

    with Store.open(run) as store:
        Console().print(f"written: {store.export(to)}", soft_wrap=True, markup=False, highlight=False)


@app.command()
@with_model(model=ModelArgument)
def inspect(network: ModelQuestion) -> None:
    """What holdfast understands of a model: inputs, layers, which methods apply, what stops a proof."""
    from holdfast.cli.look import look

    look(network, Console())


@app.command()
def demo(out: Out = Path("runs/demo")) -> None:
    """The main job, end to end, on digits and networks that ship with holdfast."""
    from holdfast.cli.demo import demo as show

    show(out, Console())


register(app)
app.add_typer(monitor, name="monitor")
app.command()(reach)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: an error becomes one clear message and exit code 2; one that holdfast did not foresee, exit code 1."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? where it has no sign
    with warnings.catch_warnings(), _quiet_logs(debug):
        if not debug:
            warnings.showwarning = lambda message, *_: _tell("yellow", "warning", str(message))
        try:
            app([word for word in given if word != "--debug"], prog_name="holdfast")
        except Exception as error:
            if debug:
                raise
            message, code = _said(error)
            _tell("bold red", "error", message)
            sys.exit(code)


def _said(error: Exception) -> tuple[str, int]:
    """What a person is told, and the exit code."""
    if isinstance(error, HoldfastError):
        return str(error), 2
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and re.search(NO_MEMORY, str(error), re.IGNORECASE)):
        return f"out of memory. Ask about fewer inputs at once (--batch 8, say). ({_first_line(error)})", 2
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}.", 2
    return (
        f"holdfast did not foresee this ({type(error).__name__}: {_first_line(error)}). Please report it with what "
        f"the same command prints with --debug. What a run has found so far is safe in its folder.",
        1,
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0]


def _tell(style: str, kind: str, message: str) -> None:
    from rich.text import Text

    Console(stderr=True).print(Text.assemble((f"{kind}:", style), " ", message), soft_wrap=True)


@contextlib.contextmanager
def _quiet_logs(debug: bool) -> Iterator[None]:
    """Libraries log whole tracebacks about files that holdfast then reports in one line."""
    before = logging.root.manager.disable
    logging.disable(before if debug else logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
