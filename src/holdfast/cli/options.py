"""The options that several commands share, written once, and how the fields of a dataclass become a command."""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.terminal import Terminal
from holdfast.errors import BadInput
from holdfast.reading.read_settings import How

PANELS = MEASURE, RUNS, OTHER = "Measure", "Runs that exist", "Begin, and more"  # of `holdfast --help`
STOPPING = "When to stop"  # a panel of a command's --help
DataOption = Annotated[
    str,
    typer.Option(
        "--data", "-d", metavar="DATA",
        help="A .csv or .parquet table, a folder of pictures for each class, .npz or .npy arrays, a .tsv file of label and text, or "
        "package.module:function. docs/data.md shows each.",
    ),
]  # fmt: skip
Out = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="FOLDER", help="The run. Everything found is kept there at once."),
]
OutOrNothing = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="The run. Without one nothing is kept.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]
NewRun = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="The new run; it appears when it is whole.")
]
Part = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of a question that has several: radius, worst, steepness, smallest, largest. Default: the first of these.",
    ),
]
Scale = Annotated[
    float | None, typer.Option(metavar="NUMBER", help="Divide the data by this: 255 for bytes.")
]
Limit = Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="Only the first so many inputs.")]
Unit = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT", help="What counts as one change: pixel, frame or number. Default: pixel for images."
    ),
]
Tier = Annotated[
    str,
    typer.Option(
        metavar="TIER",
        help="fast: proofs by linear bounds. tight: by trained planes and second-order models, seconds an input. split: by "
        "parts of the region too, minutes. search: witnesses only.",
    ),
]
Arithmetic = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="What proofs speak of. real: exact arithmetic. executed: the network's own float32.",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Only these, as in pgd,certify; 'holdfast inspect MODEL' lists all."),
]
# Of commands that ask about a property over a region around each input.
Property = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        help="robustness, confidence (runner-up, targeted, least), uncertainty, tie, reach, or package.module:score, your own "
        "function of the outputs, positive where all is well.",
    ),
]
HowFar = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="How far an input may move, in the units of the domain."),
]
Norm = Annotated[str, typer.Option(metavar="P", help="1, 2, inf or any p >= 1.")]
Epsilon = Annotated[
    float,
    typer.Option(
        metavar="NUMBER",
        help="Confidence, tie: by how much classes must differ. Reach: the rise. Uncertainty: KL.",
    ),
]
Targets = Annotated[
    str | None,
    typer.Option(
        metavar="CLASSES", help="For targeted and reach: one class for all inputs, or for each, as in 3,3,7."
    ),
]
Square = Annotated[
    str | None,
    typer.Option(
        metavar="TOP,LEFT,SIZE", help="Only this square of the images moves; without --radius, freely."
    ),
]
Shares = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS", help="Feature k moves by the radius times its number, in every frame of a window."
    ),
]
Drift = Annotated[
    bool,
    typer.Option(
        "--drift",
        metavar="",
        help="For windows (frames, features): one offset a feature, the same in every frame; --shares are its units.",
    ),
]
Within = Annotated[
    str | None,
    typer.Option(
        metavar="WIDTH",
        help="For forecasts: outputs stay so near the network's own forecast at the unmoved input: 10%, or 0.5 in their own units; one for "
        "each output as in 0.5,2. Labels are not needed.",
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        help="For a single score or several labels: every output stays on its side of this, that of its label (0 or 1), or its own without "
        "labels. 0 for logits, 0.5 for probabilities.",
    ),
]
Outputs = Annotated[
    str | None,
    typer.Option(metavar="NUMBERS", help="With --within: which outputs count, as in 0,2. Default: all."),
]
Softmax = Annotated[
    bool,
    typer.Option(
        "--softmax/--no-softmax",
        metavar="",
        help="Speak of the outputs' softmax, or of the outputs themselves.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="NUMBER", help="The same seed gives the same answers.")]
Batch = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        min=1,
        help="Inputs worked on at once; fewer need less memory. Default: 128, with --device cuda 1024.",
    ),
]
Pictures = Annotated[int, typer.Option(metavar="COUNT", min=0, help="At most so many pictures.")]
Seconds = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", rich_help_panel=STOPPING, help="After so many seconds in all."),
]
Queries = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT", rich_help_panel=STOPPING, help="After so many network evaluations an input."
    ),
]
Certificates = Annotated[
    bool,
    typer.Option(
        "--certificates", metavar="",
        help="At the end, in the time that is left, what is proved or met as files for holdfast-check, in the folder proofs of the run.",
    ),
]  # fmt: skip
Gap = Annotated[
    float,
    typer.Option(metavar="NUMBER", rich_help_panel=STOPPING, help="When upper - lower is at most this."),
]

# Of commands that check what others made.
ModelNow = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="MODEL", help="The model where it lies now. Default: where the run found it."
    ),
]
DataNow = Annotated[
    str | None,
    typer.Option(
        "--data", "-d", metavar="DATA", help="The data where they lie now; of verify, the property."
    ),
]
FilesNow = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="OPTION=FILE",
        help="Another file of the run, as in substitutes=words.json; may be repeated.",
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust", metavar="", help="Open a .pt2 file although that can run code it contains.")
]
TrustRun = Annotated[
    bool,
    typer.Option(
        "--trust",
        metavar="",
        help="Run the code that the folder names (package.module:factory, a .pt2 file) as whoever wrote it wants.",
    ),
]
Sample = Annotated[
    int, typer.Option(metavar="COUNT", min=0, help="So many proved ends, drawn at random, are proved again.")
]
Every = Annotated[bool, typer.Option("--all", metavar="", help="All of them are.")]
Drawn = Annotated[
    int | None,
    typer.Option(
        "--seed", metavar="NUMBER", help="Draw the same sample again. Default: one that nobody knows."
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        metavar="NUMBER", min=0, help="A proved end counts that is lower by no more than this share of it."
    ),
]
ProveFor = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        metavar="NUMBER",
        rich_help_panel=STOPPING,
        help="Prove for so long; default: as long as the run did.",
    ),
]
Findings = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="All findings as JSON.")]
Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A file that 'holdfast bundle' wrote.")]

Model = Annotated[
    str,
    typer.Option("--model", "-m", metavar="MODEL", help="A .onnx or .pt2 file, or package.module:factory."),
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A .onnx or .pt2 file, or package.module:factory.")
]


def _of_model(*names: str, **how: Any) -> Any:
    """An option in a panel of its own in --help."""
    return typer.Option(*names, rich_help_panel="The model", **how)


@dataclass(frozen=True)
class ModelOptions:
    """How to read the model. Paths are as given; everything else is a number, a word or a list of them."""

    model: str
    trust: Annotated[
        bool,
        _of_model("--trust", metavar="", help="Open a .pt2 file although that can run code it contains."),
    ] = False
    domain: Annotated[
        str | None,
        _of_model(
            metavar="LOW,HIGH",
            help="Lowest and highest value of an input, as in 0,1. Radii are in these units.",
        ),
    ] = None
    mean: Annotated[
        str | None,
        _of_model(
            metavar="NUMBERS",
            help="The model is given (x - mean) / std; one number, or one for each channel or feature.",
        ),
    ] = None
    std: Annotated[str | None, _of_model(metavar="NUMBERS", help="See --mean.")] = None
    shape: Annotated[
        str | None,
        _of_model(metavar="SIZES", help="Shape of one input, as in 1,28,28, where the model does not say."),
    ] = None
    time_first: Annotated[
        bool,
        _of_model(
            "--time-first", metavar="", help="The model wants (time, batch, ...); your data stay batch first."
        ),
    ] = False
    pool: Annotated[
        str | None,
        _of_model(metavar="HOW", help="The model answers once a frame: take the last, the mean or the max."),
    ] = None
    vocabulary: Annotated[
        str | None,
        _of_model(
            metavar="FILE", help="The words of a token model, one a line in the order of their numbers."
        ),
    ] = None
    columns: Annotated[
        str | None,
        _of_model(
            metavar="FILE",
            help='What the columns of a table are, in JSON, as in {"age": {"step": 1, "scale": 10}}.',
        ),
    ] = None
    classes: Annotated[
        str | None,
        _of_model(
            metavar="NAMES",
            help="The names of the outputs in their order, as in cat,dog,ship, or a file, one a line.",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        _of_model(
            metavar="HOW",
            help="How text becomes tokens: a tokenizer.json, or package.module:function. Default: by --vocabulary.",
        ),
    ] = None
    output: Annotated[
        str | None,
        _of_model(
            metavar="NAME",
            help="Of a model that answers with several things: what is measured, as in logits.",
        ),
    ] = None
    device: Annotated[str, _of_model(metavar="WHERE", help="cpu or cuda.")] = "cpu"
    black_box: Annotated[
        bool,
        _of_model(
            "--black-box", metavar="", help="Run a .onnx file by onnxruntime: no gradients, no proofs."
        ),
    ] = False
    unbatched: Annotated[
        bool,
        _of_model("--unbatched", metavar="", help="The .onnx file takes one input without a batch axis."),
    ] = False
    constants: Annotated[
        list[str],
        _of_model(
            "--constant",
            metavar="NAME=VALUE",
            help="Another input of the .onnx file: sr=16000, goal=0.5,-1 or goal=goal.npy; repeatable.",
        ),
    ] = field(default_factory=list)

    fingerprint: Annotated[
        list[str],
        _of_model(
            metavar="FILE",
            help="Of a function that cannot be hashed: a file that it is made of; may be repeated.",
        ),
    ] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("constants", "fingerprint"):
            object.__setattr__(
                self, name, list(getattr(self, name))
            )  # TypeError where a stored run holds something else


def _of_data(*names: str, **how: Any) -> Any:
    return typer.Option(*names, rich_help_panel="The data", **how)


TextColumn = Annotated[
    str | None, _of_data(metavar="NAME", help="The column of a table that holds the texts.")
]
LabelColumn = Annotated[
    str | None, _of_data(metavar="NAME", help="The column of a table that holds the labels.")
]


@dataclass(frozen=True, kw_only=True)
class DataOptions(How):
    """How the data are read, and which of them, where they do not say it themselves: a part of every command that reads data."""

    text_column: TextColumn = None
    label_column: LabelColumn = None
    labels: Annotated[
        str | None,
        _of_data(
            metavar="FILE", help="Labels that lie in a file of their own: .npy, or .txt with one a line."
        ),
    ] = None
    only_correct: Annotated[
        bool,
        _of_data(
            "--only-correct",
            metavar="",
            help="Leave out inputs of which the network says another class than their label.",
        ),
    ] = False


def _of_running(*names: str, **how: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Where it runs", **how)


EXECUTOR = _of_running(
    metavar="WHERE",
    help="local: processes on this machine, each watched. ray, or ray://HOST:PORT: a Ray cluster. here: in this very process.",
)
WORKERS = _of_running(
    metavar="COUNT",
    min=1,
    help="Processes at a time. Default: 1 with all threads; with ray one for each core or card.",
)
MEMORY = _of_running(
    metavar="SIZE", help="No process of the run holds more memory than this, as in 2G or 500M."
)
EACH = typer.Option(
    metavar="NUMBER",
    rich_help_panel=STOPPING,
    help="After so many seconds an input; a batch has that times its inputs.",
)


@dataclass(frozen=True)
class Running:
    """Where and in which portions a run is answered: no part of what is asked."""

    executor: Annotated[str, EXECUTOR] = "local"
    workers: Annotated[int | None, WORKERS] = None
    shard: Annotated[
        str | None,
        _of_running(
            metavar="K/N", help="Only the K-th of N parts of the inputs; 'holdfast merge' joins them."
        ),
    ] = None
    seconds_each: Annotated[float | None, EACH] = None
    memory: Annotated[str | None, MEMORY] = None


def declare_command(
    kind: type[Any],
    run: Callable[..., None],
    *without: str,
    model: Any = Model,
    out: Any = Out,
    beside: type[Any] | None = None,
) -> Callable[..., None]:
    """A function for the command line. The fields of `kind` are its options, as they are annotated, and the docstring of `kind` is its
    help; `run` is given the `kind` that was asked for, the folder `out`, and `beside`, whose fields are options too, where there is one.

    without  those of ModelOptions that a command with a `network` does not take.
    model    how that network's model is given; without one, where the field has a default, the network is None.
    out      how the folder is given; None: there is none.
    """
    own = {part.name: part for part in fields(kind)}
    network = own.pop("network", None)
    chosen = (
        []
        if network is None
        else [part for part in fields(ModelOptions) if part.name not in ("model", *without)]
    )

    def command(**given: Any) -> None:
        folder = given.pop("out", None)
        if network is not None:
            path, said = given.pop("model"), {part.name: given.pop(part.name) for part in chosen}
            given["network"] = None if path is None else ModelOptions(path, **said)
        more = (
            ()
            if beside is None
            else (beside(**{part.name: given.pop(part.name) for part in fields(beside)}),)
        )
        run(kind(**given), folder, *more)

    parts = [] if network is None else [_parameter(network, "model", model)]
    parts += map(_parameter, own.values())
    if out is not None:
        parts.append(
            Parameter(
                "out",
                Parameter.KEYWORD_ONLY,
                default=None if out is OutOrNothing else Parameter.empty,
                annotation=out,
            )
        )
    parts.sort(key=lambda part: part.default is not Parameter.empty)
    parts += map(_parameter, chosen)
    parts += map(_parameter, () if beside is None else fields(beside))
    command.__signature__ = Signature(parts)  # type: ignore[attr-defined]
    command.__annotations__ = {part.name: part.annotation for part in parts}
    command.__doc__ = kind.__doc__
    return command


def _parameter(of: Field[Any], name: str | None = None, annotation: Any = None) -> Parameter:
    default = of.default if of.default_factory is MISSING else of.default_factory()
    default = Parameter.empty if default is MISSING else default
    return Parameter(
        name or of.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation or of.type
    )


def measures(kind: type[Any], *without: str, **how: Any) -> Callable[..., None]:
    """A `Command` for the command line: it begins a run in the folder `out`; where one can do without and none is given, nothing is
    kept. See `declare_command`."""

    def run(command: Any, out: Path | None, running: Running) -> None:
        from holdfast import memory_budget
        from holdfast.cli.parse import bytes_option
        from holdfast.cli.run import begin, once

        if out is None and getattr(command, "certificates", False):
            raise BadInput("--certificates: they lie in the folder of the run, so give it one with --out.")
        with memory_budget.limit_process(bytes_option(running.memory)):
            if out is None:
                once(command, Terminal(), running)
            else:
                begin(command, out, Terminal(), running)

    return declare_command(kind, run, *without, beside=Running, **how)
