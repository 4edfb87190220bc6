"""The options that several commands share, and how the fields of a dataclass become a command."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.reading.read_settings import ReadSettings
from holdfast.request import Request, options_of

# Headings of `holdfast --help`, in this order.
PANELS = MEASURE, RUNS, OTHER = "Measure", "Work with runs", "Begin, and more"

# Headings of the options of a command. Options without a heading are main options, which --help explains.
SEARCH = "Search"
STOPPING = "Budget"
RESULTS = "Results"
MODEL = "Model"
DATA = "Data"
WHERE = "Workers"


def request_option(name: str, *flags: str, command: str = "", **how: Any) -> Any:
    """Return the option of a field of `Request`; its declaration there has the help.

    Args:
        flags: as in `typer.Option`, where they do not follow from the name.
        command: the command whose help it is, where that differs from the help of others.
    """
    declared = options_of(Request)[name]
    return typer.Option(
        *flags,
        metavar=declared.metavar,
        rich_help_panel=declared.panel_for(command),
        help=declared.help_for(command),
        **how,
    )


MODEL_HELP = "A .onnx or .pt2 file, or package.module:factory."
DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        "-d",
        metavar="DATA",
        help="A .csv or .parquet table, a folder of pictures for each class, .npz or .npy arrays, a .tsv "
        "file of "
        "label and text, or package.module:function. See docs/data.md.",
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="FOLDER", help="Folder of the run; results are saved as they are found."
    ),
]
OutOrNothing = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the run. Default: results are not saved."),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")]
NewRun = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="FOLDER", help="Folder of the new run; it appears only when it is complete."
    ),
]
Part = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Which quantity, for a run that measured several: radius, worst, steepness, smallest or "
        "largest. "
        "Default: the first of these that the run has.",
    ),
]
Scale = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER", rich_help_panel=DATA, help="Divide the data by this number: 255 for bytes."
    ),
]
Limit = Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="Use only the first COUNT inputs.")]
Unit = Annotated[str | None, request_option("unit")]
Tier = Annotated[
    str,
    typer.Option(
        metavar="TIER",
        help="How much work a proof may take. fast: linear bounds (CROWN; POPQORN for recurrent layers). "
        "tight: "
        "trained linear bounds (alpha-CROWN) and quadratic models, seconds an input. split: branch and "
        "bound, "
        "minutes an input. search: counterexamples only.",
    ),
]
Arithmetic = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        rich_help_panel=SEARCH,
        help="Arithmetic that proofs are about. real: exact real numbers. executed: the float32 operations "
        "of the "
        "network.",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        rich_help_panel=SEARCH,
        help="Use only these methods, as in pgd,certify. carlini: the attack of Carlini and Wagner (C&W). "
        "clever: the CLEVER estimate. clever-rnn: CLEVER-RNN, sampled within epsilon_0 = 0.1 of the distance "
        "to the furthest corner of the domain. mesh: mesh adaptive direct search. 'holdfast inspect MODEL' lists all of them.",
    ),
]
# Options of commands that measure a property over a region around each input.
Property = Annotated[str, request_option("property")]
RadiusOption = Annotated[float | None, request_option("radius")]
Norm = Annotated[str, request_option("norm")]
Epsilon = Annotated[float, request_option("epsilon", "--margin")]
Targets = Annotated[str | None, request_option("targets")]
PatchOption = Annotated[str | None, request_option("patch")]
Shares = Annotated[str | None, request_option("shares")]
Drift = Annotated[bool, request_option("drift", "--drift")]
Within = Annotated[str | None, request_option("within")]
Threshold = Annotated[float | None, request_option("threshold")]
Outputs = Annotated[str | None, request_option("outputs")]
Quantiles = Annotated[str | None, request_option("quantiles")]
Softmax = Annotated[bool, request_option("softmax", "--softmax/--no-softmax")]
Seed = Annotated[
    int,
    typer.Option(
        metavar="NUMBER",
        rich_help_panel=SEARCH,
        help="Seed of all random choices; the same seed repeats a run.",
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        min=1,
        rich_help_panel=SEARCH,
        help="Inputs in one batch; fewer need less memory. Default: 128, with --device cuda 1024.",
    ),
]
Pictures = Annotated[
    int, typer.Option(metavar="COUNT", min=0, rich_help_panel=RESULTS, help="Draw at most COUNT pictures.")
]
Seconds = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER", help="Stop after this many seconds in all, with the results found by then."
    ),
]
Queries = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        rich_help_panel=STOPPING,
        help="Stop after this many evaluations of the network for each input.",
    ),
]
Certificates = Annotated[
    bool,
    typer.Option(
        "--certificates",
        metavar="",
        rich_help_panel=RESULTS,
        help="When the search ends, write certificates for holdfast-check to the folder proofs of the run, "
        "in the "
        "time that is left. 'holdfast prove' does the same later.",
    ),
]
Names = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=RESULTS,
        help="A .csv file with names and units of inputs and outputs, for claims in words: variable,name,unit,"
        "scale,shift, as in X_0,speed,m/s,30,0.",
    ),
]
Gap = Annotated[
    float,
    typer.Option(
        metavar="NUMBER",
        rich_help_panel=STOPPING,
        help="Stop an input when upper bound - lower bound is at most this.",
    ),
]

# Options of commands that check a run or a bundle.
ModelNow = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="MODEL", help="Where the model is now. Default: where the run read it."
    ),
]
DataNow = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        metavar="DATA",
        help="Where the data are now (for a run of verify: the VNN-LIB file). Default: where the run read "
        "them.",
    ),
]
FilesNow = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="OPTION=FILE",
        help="Where another file of the run is now, as in substitutes=words.json; may be repeated.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", metavar="", help="Open a .pt2 file, although opening it can run code that it contains."
    ),
]
TrustRun = Annotated[
    bool,
    typer.Option(
        "--trust",
        metavar="",
        help="Run the code that the folder names (package.module:factory, a .pt2 file). Only for folders "
        "whose "
        "author you trust.",
    ),
]
Sample = Annotated[
    int,
    typer.Option(metavar="COUNT", min=0, help="Recompute this many proved bounds, drawn at random."),
]
RecomputeAll = Annotated[bool, typer.Option("--all", metavar="", help="Recompute every proved bound.")]
SampleSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="NUMBER",
        help="Seed of the random sample, to draw the same one again. Default: unpredictable.",
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        metavar="NUMBER",
        min=0,
        help="Accept a recomputed bound that is smaller by at most this fraction.",
    ),
]
ProofSeconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        metavar="NUMBER",
        help="Seconds for recomputing bounds. Default: as long as the run took.",
    ),
]
Findings = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write all findings to this JSON file.")
]
Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A file written by 'holdfast bundle'.")]

Model = Annotated[str, typer.Option("--model", "-m", metavar="MODEL", help=MODEL_HELP)]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]


def _of_model(*names: str, **how: Any) -> Any:
    """An option under the heading "Model"."""
    return typer.Option(*names, rich_help_panel=MODEL, **how)


@dataclass(frozen=True)
class ModelOptions:
    """How to read the model. Paths are as given; every other value is a number, a word or a list of them."""

    model: str
    trust: Annotated[
        bool,
        _of_model(
            "--trust", metavar="", help="Open a .pt2 file, although opening it can run code that it contains."
        ),
    ] = False
    domain: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH",
            help="Smallest and largest value of an input, as in 0,1. Radii are in these units.",
        ),
    ] = None
    mean: Annotated[
        str | None,
        _of_model(
            metavar="NUMBERS",
            help="Normalise inputs to (x - mean) / std before the model; one number, or one for each channel "
            "or "
            "feature.",
        ),
    ] = None
    std: Annotated[str | None, _of_model(metavar="NUMBERS", help="Standard deviation: see --mean.")] = None
    input_scaler: Annotated[
        str | None,
        _of_model(
            metavar="MODULE:FUNCTION",
            help="package.module:function that returns the fitted scaler of scikit-learn which inputs pass; "
            "instead of --mean and --std.",
        ),
    ] = None
    output_mean: Annotated[
        str | None,
        _of_model(
            metavar="NUMBERS",
            help="Outputs become output * output-std + output-mean, your units; one number, or one for each.",
        ),
    ] = None
    output_std: Annotated[
        str | None, _of_model(metavar="NUMBERS", help="Outputs are multiplied by it: see --output-mean.")
    ] = None
    output_scaler: Annotated[
        str | None,
        _of_model(
            metavar="MODULE:FUNCTION",
            help="package.module:function that returns the fitted scaler of the targets; instead of "
            "--output-mean and --output-std.",
        ),
    ] = None
    shape: Annotated[
        str | None,
        _of_model(
            metavar="SIZES", help="Shape of one input, as in 1,28,28, if the model does not define it."
        ),
    ] = None
    time_first: Annotated[
        bool,
        _of_model(
            "--time-first",
            metavar="",
            help="The model takes (time, batch, ...); your data keep the batch first.",
        ),
    ] = False
    pool: Annotated[
        str | None,
        _of_model(
            metavar="HOW",
            help="The model returns one output for each frame: use the last, the mean or the max.",
        ),
    ] = None
    vocabulary: Annotated[
        str | None,
        _of_model(
            metavar="FILE", help="Vocabulary of a token model: one word a line, in the order of token ids."
        ),
    ] = None
    columns: Annotated[
        str | None,
        _of_model(
            metavar="FILE",
            help='JSON that describes the columns of a table, as in {"age": {"step": 1, "scale": 10}}.',
        ),
    ] = None
    classes: Annotated[
        str | None,
        _of_model(
            metavar="NAMES",
            help="Names of the outputs in order, as in cat,dog,ship, or a file with one name a line.",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        _of_model(
            metavar="HOW",
            help="How text becomes tokens: a tokenizer.json, or package.module:function. Default: words of "
            "--vocabulary.",
        ),
    ] = None
    output: Annotated[
        str | None,
        _of_model(metavar="NAME", help="Which output of a model with several, as in logits."),
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
    inputs: Annotated[
        str | None,
        _of_model(
            "--inputs",
            metavar="NAMES",
            help="Several inputs that are perturbed together: state,goal for an .onnx file, state=8,image=3x32x32 "
            "for a module. --data is a .npz file with an array for each.",
        ),
    ] = None
    constants: Annotated[
        list[str],
        _of_model(
            "--constant",
            metavar="NAME=VALUE",
            help="Fixed value of another input of the model: sr=16000, goal=0.5,-1 or goal=goal.npy; "
            "may be "
            "repeated.",
        ),
    ] = field(default_factory=list)

    fingerprint: Annotated[
        list[str],
        _of_model(
            metavar="FILE",
            help="A file that a function given as the model depends on, for its hash; may be repeated.",
        ),
    ] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A stored run may hold a value that is no list: then this raises TypeError.
        for name in ("constants", "fingerprint"):
            object.__setattr__(self, name, list(getattr(self, name)))


def _of_data(*names: str, **how: Any) -> Any:
    """An option under the heading "Data"."""
    return typer.Option(*names, rich_help_panel=DATA, **how)


TextColumn = Annotated[str | None, _of_data(metavar="NAME", help="Column of a table that holds the texts.")]
LabelColumn = Annotated[str | None, _of_data(metavar="NAME", help="Column of a table that holds the labels.")]


@dataclass(frozen=True, kw_only=True)
class DataOptions(ReadSettings):
    """How to read the data, and which inputs to use. Every command that reads data has these options."""

    text_column: TextColumn = None
    label_column: LabelColumn = None
    labels: Annotated[
        str | None,
        _of_data(metavar="FILE", help="Labels in a separate file: .npy, or .txt with one a line."),
    ] = None
    only_correct: Annotated[
        bool,
        _of_data("--only-correct", metavar="", help="Leave out inputs that the network misclassifies."),
    ] = False


def _of_running(*names: str, **how: Any) -> Any:
    """An option under the heading "Workers"."""
    return typer.Option(*names, rich_help_panel=WHERE, **how)


EXECUTOR = _of_running(
    metavar="WHERE",
    help="local: worker processes on this machine. ray, or ray://HOST:PORT: a Ray cluster. here: this "
    "process.",
)
WORKERS = _of_running(
    metavar="COUNT",
    min=1,
    help="Number of worker processes. Default: 1 with all threads; with ray one for each CPU core or GPU.",
)
MEMORY = _of_running(metavar="SIZE", help="Memory limit of each process, as in 2G or 500M.")
SECONDS_EACH = typer.Option(
    metavar="NUMBER",
    rich_help_panel=STOPPING,
    help="Stop an input after this many seconds; a batch gets this times its inputs.",
)


@dataclass(frozen=True)
class Running:
    """How a run is carried out and shown. None of it changes the question."""

    executor: Annotated[str, EXECUTOR] = "local"
    workers: Annotated[int | None, WORKERS] = None
    shard: Annotated[
        str | None,
        _of_running(
            metavar="K/N", help="Work on the K-th of N parts of the inputs; 'holdfast merge' joins the parts."
        ),
    ] = None
    seconds_each: Annotated[float | None, SECONDS_EACH] = None
    memory: Annotated[str | None, MEMORY] = None


SORT = typer.Option(
    metavar="ORDER",
    rich_help_panel=RESULTS,
    help="Order of the table: input (as in the data), or fragility (smallest upper bound first).",
)
AT = typer.Option(
    "--at",
    metavar="RADIUS",
    rich_help_panel=RESULTS,
    help="Radius of the sentence below the table. Default: the median certified radius.",
)


@dataclass(frozen=True)
class TableRunning(Running):
    """`Running` for commands whose answers are one table of bounds."""

    sort: Annotated[str, SORT] = "input"
    at: Annotated[float | None, AT] = None
