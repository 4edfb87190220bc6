"""What a question asks: every option of a request, declared once.

`Request` holds what the results of a run depend on besides the network and the inputs. The declaration of a
field is its `RequestOption`: what it means, which commands take it, what their help says, how an argument of a
Python function is stored, and how a sentence words it. From it derive

    the option on the command line      `holdfast.cli.options.request_option`
    the stored value                    `Request.of_command`, `Request.of_arguments`
    the clause of the sentence          `holdfast.question_text.describe_question`

`holdfast.api.perturbation` checks the values that Python functions take. The stored form is flat and holds all
fields, so that runs of earlier versions keep their fingerprints.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from holdfast.formatting import format_nearest, norm_name
from holdfast.question_words import Json, count_phrase, digest, short_hash, value_text

if TYPE_CHECKING:
    from holdfast.question import Question

Clause = Callable[[Json, "Question"], str]
Summary = Callable[[Any], Json]

PERTURBATION = "Perturbation"  # headings of the help of a command
PROPERTY = "Property"
FEW_SCALES = 6  # Scales of columns that a sentence names; the hash of the columns tells the others apart.
LONGEST_LIST = 200  # Characters of a list of numbers; a longer one is described by its hash.


@dataclass(frozen=True)
class RequestOption:
    """The declaration of one option.

    Attributes:
        meaning: one phrase.
        clause: words its stored value in the sentence of a question; an empty text where another part of the
            sentence has it.
        metavar: the placeholder of its value in the help of a command.
        panel: the heading in the help of a command; None: a main option.
        main: commands of which it is a main option all the same.
        help: command -> its help there; "": for all others.
        commands: the commands that store it as it was typed.
        summarise: turns an argument of a Python function into what a run stores.
        absent: the typed value of an option that was not given.
    """

    meaning: str
    clause: Clause
    metavar: str = ""
    panel: str | None = None
    main: tuple[str, ...] = ()
    help: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    summarise: Summary = lambda value: value
    absent: Json = None

    def help_for(self, command: str) -> str:
        return self.help[command if command in self.help else ""]

    def panel_for(self, command: str) -> str | None:
        return None if command in self.main else self.panel


def _option(meaning: str, clause: Clause, **more: Any) -> Any:
    """Declare a field of `Request`."""
    return field(default=None, metadata={"option": RequestOption(meaning, clause, **more)})


def options_of(kind: type[Any]) -> dict[str, RequestOption]:
    """Return the declared options of `Request`, in order."""
    return {one.name: one.metadata["option"] for one in fields(kind) if "option" in one.metadata}


# ---- how arguments of Python functions are stored


def describe_numbers(value: Any) -> str | None:
    """Return numbers as a text; a long list as its hash."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, range):
        return str(value)
    plain = value.tolist() if hasattr(value, "tolist") else value
    listed = list(plain) if isinstance(plain, Sequence) else plain
    text = str(listed)
    if len(text) <= LONGEST_LIST and "tensor" not in text:
        return text
    return f"{len(listed) if isinstance(listed, list) else 1} values, hash {hash_argument(value)[:8]}"


def hash_argument(value: Any) -> str:
    """Return the hash of any argument."""
    from holdfast.network.callable_fingerprint import of_value  # Here because it imports torch.

    return of_value(value)


# ---- how stored values are worded


def _norm(norm: str, _: "Question") -> str:
    counted = {"words": "counted in replaced words", "edits": "counted in edits"}
    return counted.get(norm) or f"in the {norm_name(value_text(norm))} norm"


def _frames(which: str, question: "Question") -> str:
    thing = "word" if question.frames_are_words else "frame"
    if which == "each":
        return f"one {thing} at a time"
    if which == "all":
        return f"every {thing} by at most the radius"
    return f"only the {thing}s {value_text(which)}"


def _drift(on: bool, _: "Question") -> str:
    return (
        "as a drift (one offset for each feature, the same in every frame)" if on else "drift not asked for"
    )


def _shares(shares: str, question: "Question") -> str:
    moves = "feature" if question.asked.frames is None else "frame"
    return f"{moves} k by the radius times share k of {value_text(shares)}"


def _file(question: "Question", option: str, unnamed: str) -> str:
    """Return the file name that an option was given; its hash is shown elsewhere."""
    given = question.options.get(option)
    return unnamed if not isinstance(given, str) or not given else value_text(given)


def _free(mask: str, question: "Question") -> str:
    return f"only units that {_file(question, 'free', 'a mask')} leaves free (hash {short_hash(mask)})"


def _box(box: str, question: "Question") -> str:
    given = _file(question, "box", "")
    return f"{given} (hash {short_hash(box)})" if given else f"hash of the boxes {short_hash(box)}"


def _softmax(on: bool, question: "Question") -> str:
    """Say what the property is applied to: robustness and functions of the user compare plain outputs, whatever
    the option says.
    """
    asked = question.asked.property
    if on and isinstance(asked, str) and (asked == "robustness" or ":" in asked):
        return "scored by the outputs before softmax"
    return "of the softmax of the outputs" if on else "of the plain outputs"


def _specification(files: Json, _: "Question") -> str:
    """Return one specification by its names, several by their number, with a hash of names and contents."""
    single = files[0] if isinstance(files, list | tuple) and len(files) == 1 else None
    if isinstance(single, list | tuple) and len(single) > 1:
        return f"by the property file {value_text(single[1])} for {value_text(single[0])} ({digest(files)})"
    return f"by {count_phrase(files, 'specification')}"


def _columns(stored: Json, _: "Question") -> str:
    """Describe the columns of a table: a hash of their types, the frozen ones, and the units."""
    each = stored.get("each") if isinstance(stored, Mapping) else None
    if not isinstance(each, Mapping):
        return f"with the columns {value_text(stored)}"
    still = [name for name, told in each.items() if isinstance(told, Mapping) and told.get("frozen")]
    scales = {
        name: told["scale"] for name, told in each.items() if isinstance(told, Mapping) and "scale" in told
    }
    parts = [f"{len(each)} columns by their kinds ({digest(stored)})"]
    parts += [f"columns that stay: {value_text(','.join(map(str, still)))}"] if still else []
    if scales:
        shown = [f"{value_text(name)} {format_nearest(float(scale))}" for name, scale in scales.items()]
        more = f", and {len(shown) - FEW_SCALES} more" if len(shown) > FEW_SCALES else ""
        parts.append(f"each change divided by the scale of its column: {', '.join(shown[:FEW_SCALES])}{more}")
    return f"as rows of a table ({'; '.join(parts)})"


def _channels(stored: Json, _: "Question") -> str:
    """Describe the features of windows: how far each moves at radius 1, and which do not."""
    each = stored.get("each") if isinstance(stored, Mapping) else None
    if not isinstance(each, Mapping) or not all(isinstance(told, Mapping) for told in each.values()):
        return f"with the channels {value_text(stored)}"
    parts = [f"{value_text(name)} {_scale_of(told)}" for name, told in each.items()]
    more = f", and {len(parts) - FEW_SCALES} more" if len(parts) > FEW_SCALES else ""
    return f"each feature by the radius times its scale ({', '.join(parts[:FEW_SCALES])}{more}; {digest(stored)})"


def _scale_of(told: Mapping[str, Json]) -> str:
    """Return '0.2 m/s', or 'stays'."""
    if told.get("frozen"):
        return "stays"
    unit, limits = told.get("unit"), [told.get(name, "any") for name in ("low", "high")]
    inside = "" if limits == ["any", "any"] else f" inside {value_text(limits)}"
    return f"{value_text(told.get('scale', 1.0))}{f' {value_text(unit)}' if unit else ''}{inside}"


# How a monitor changes an element, by the kind of its mutation; see `holdfast.monitor.mutation`.
MUTATIONS = {
    "groups": "by its substitutes",
    "typos": "by misspellings",
    "noise": "by noise",
    "own": "by a mutation of your own",
    "still": "by nothing",
}


def _mutation(mutation: Json, _: "Question") -> str:
    """Name the kind of mutation of a monitor, with the hash of all that its scores depend on."""
    if isinstance(mutation, list | tuple) and len(mutation) == 2 and str(mutation[0]) in MUTATIONS:
        return f"and a place changes {MUTATIONS[str(mutation[0])]} (hash {short_hash(str(mutation[1]))})"
    return f"and a place changes by the mutation {value_text(mutation)}"


# The kinds of edits, as a sentence counts them: singular and plural.
EDIT_NOUNS = {
    "substitute": ("substitution", "substitutions"),
    "insert": ("insertion", "insertions"),
    "delete": ("deletion", "deletions"),
    "swap": ("swap of neighbours", "swaps of neighbours"),
    "duplicate": ("duplication", "duplications"),
}


def _edits(edits: Json, _: "Question") -> str:
    """Name the budgets of edits, and the hash of all their words and limits."""
    if not isinstance(edits, Mapping):
        return f"with the edits {value_text(edits)}"
    return f"by at most {edit_budgets(edits)} ({digest(edits)})"


def edit_budgets(edits: Mapping[str, Json]) -> str:
    """Word the budgets of stored edits: '2 substitutions, 1 insertion, 2 edits in all'."""
    counts = [(edits.get(name), nouns) for name, nouns in EDIT_NOUNS.items()]
    parts = [f"{count} {nouns[count != 1]}" for count, nouns in counts if isinstance(count, int) and count]
    total = edits.get("total")
    parts += [f"{total} edit{'' if total == 1 else 's'} in all"] if total is not None else []
    if edits.get("length") is not None:
        parts.append(f"with the first {value_text(edits['length'])} tokens read")
    return ", ".join(parts)


def _outputs(which: str, question: "Question") -> str:
    """Name the outputs that are part of the question; a monitor of classes compares the most likely one."""
    if question.command.startswith("monitor") and which == "{'kind': 'classes'}":
        return "where the answer is the most likely class"
    if question.asked.quantiles is not None and are_levels(which):
        level = "median" if which == "median" else f"level {value_text(which)}"
        return f"of the {level} of the quantiles {value_text(question.asked.quantiles)} alone"
    return f"of the outputs {value_text(which)} alone"


def are_levels(which: str) -> bool:
    """Whether stored outputs are levels of quantiles, such as 'median' and '0.9', not numbers of outputs."""
    return which == "median" or "." in which


def _quantiles(levels: str, question: "Question") -> str:
    """Name the quantiles where all of them must stay; else the clause of the outputs names them."""
    which = question.asked.outputs
    return (
        ""
        if which is not None and are_levels(which)
        else f"of a forecast of the quantiles {value_text(levels)}"
    )


REGION_COMMANDS = ("worst", "risk")  # commands about a property over a region around each input


@dataclass(frozen=True)
class Request:
    """What the results depend on besides the network and the input. Fields that do not apply are None."""

    norm: str | None = _option(  # a number, "words" or "edits"
        "how distances are measured",
        _norm,
        metavar="P",
        help={
            "": "Norm of the perturbation: 1, 2, inf or any p >= 1.",
            "radius": "Norm of the perturbation: 1, 2, inf or any p >= 1; 0 counts changed pixels, frames or "
            "features (DeepTRE, L0-TRE).",
        },
        commands=("radius", *REGION_COMMANDS),
    )
    radius: float | str | None = _option(
        "the perturbation radius",
        lambda radius, _: f"by at most {value_text(radius)}",
        metavar="NUMBER",
        help={
            "": "Perturbation radius, in the units of --domain.",
            "reach": "With --data: half the width of the boxes.",
            "harden": "Perturbation radius to train for, in the units of --domain. Not with --substitutes.",
        },
        commands=("reach", *REGION_COMMANDS),
    )
    frames: str | None = _option(
        "which frames or words are perturbed, and whether together",
        _frames,
        metavar="WHICH",
        help={
            "": "Which frames or words are perturbed: all (one ball for each, of one radius), each (one at a "
            "time), or numbers as in 0,3. Default: one ball around the whole input.",
            "harden": "Perturb all frames, or those with these numbers, as in 0,3. Default: one ball around "
            "the whole input.",
        },
        commands=("radius",),
        summarise=describe_numbers,
    )
    drift: bool | None = _option(
        "one offset for each feature, the same in every frame",
        _drift,
        panel=PERTURBATION,
        help={
            "": "For windows (frames, features): add one offset to each feature, the same in every frame. "
            "--shares scales the offsets."
        },
        commands=("radius", *REGION_COMMANDS),
        absent=False,
    )
    shares: str | None = _option(
        "the scale of the radius for each feature or frame",
        _shares,
        metavar="NUMBERS",
        panel=PERTURBATION,
        help={
            "": "Scale of the radius for each feature, as in 1,1,0.5; the same in every frame of a window.",
            "radius": "Scale of the radius for each feature, as in 1,1,0.5; 0 keeps it fixed. With --frames: "
            "for each frame.",
        },
        commands=("radius", *REGION_COMMANDS),
        summarise=describe_numbers,
    )
    targets: str | None = _option(
        "the class to which a change counts",
        lambda targets, _: f"for the target {value_text(targets)}",
        metavar="CLASSES",
        panel=PROPERTY,
        help={
            "": "With --property targeted or reach: one class for all inputs, or one for each, as in 3,3,7.",
            "radius": "Count only a change to this class (targeted): runner-up, one class for all inputs, or "
            "one for each, as in 3,3,7.",
        },
        commands=("radius", *REGION_COMMANDS),
        summarise=describe_numbers,
    )
    substitutes: Json = _option(  # noqa: RUF009  a field
        "the words that may replace a word",
        lambda sets, _: f"each word only by its substitutes ({count_phrase(sets, 'set')})",
        metavar="FILE",
        help={
            "": 'Word substitution: JSON, {"word": ["substitute", ...]}, or for each text a list of '
            "substitutes for each word. The radius counts replaced words.",
            "harden": 'JSON, {"word": ["substitute", ...]}: train for every word replaced by any of its '
            "substitutes, all at once.",
        },
        commands=("radius",),
        summarise=lambda sets: [f"{len(sets)} sets", hash_argument(sets)],
    )
    edits: Json = _option(  # noqa: RUF009  a field
        "which edits of a text count, and with which words",
        _edits,
        metavar="EDITS",
        panel=PERTURBATION,
        help={
            "": "For texts: count edits of words. A JSON file, or as text: "
            "substitute=2,delete=1,insert=1,insertions=the|a. Other keys: swap, duplicate, total, as the "
            "arguments of hf.Edits."
        },
        commands=("radius",),
        summarise=lambda edits: edits.stored(),
    )
    unit: str | None = _option(
        "what counts as one change under norm 0",
        lambda unit, _: f"counted in units of one {value_text(unit)}",
        metavar="WHAT",
        panel=PERTURBATION,
        help={
            "": "With --norm 0: count changed pixels, frames or numbers (pixel, frame, number). Default: "
            "pixel for images."
        },
        commands=("radius", "saliency", "testgen"),
    )
    free: str | None = _option(  # the hash of the mask's file
        "which units may change under norm 0",
        _free,
        metavar="FILE",
        panel=PERTURBATION,
        help={
            "": "With --norm 0: .npy mask, true where a unit may change; one for all inputs or one for each."
        },
        commands=("radius",),
        summarise=hash_argument,
    )
    values: str | None = _option(
        "the values that a changed number may take",
        lambda values, _: f"changed numbers only to the values {value_text(values)}",
        metavar="NUMBERS",
        panel=PERTURBATION,
        help={
            "": "With --norm 0: values that a changed number may take, as in 0,1 or 0:255 for bytes.",
            "saliency": "Values that a changed number may take, as in 0,1 or 0:255. Default: the smallest "
            "and largest of the domain.",
        },
        main=("saliency",),
        commands=("radius", "saliency"),
        summarise=describe_numbers,
    )
    patch: str | None = _option(
        "the part of the input that may move",
        lambda square, _: f"only the square {value_text(square)} (top,left,size) moving",
        metavar="TOP,LEFT,SIZE",
        panel=PERTURBATION,
        help={
            "": "Perturb only this square of the images. Without --radius its pixels may take any value of "
            "the domain."
        },
        commands=REGION_COMMANDS,
    )
    property: str | None = _option(
        "what must hold",
        lambda name, _: f"where the property is {value_text(name)}",
        metavar="WHAT",
        help={
            "": "robustness, confidence (runner-up, targeted, least), uncertainty, tie or reach (the "
            "properties of DeepQuant), or package.module:score, a function of the outputs that is positive "
            "where the property holds."
        },
        commands=REGION_COMMANDS,
    )
    epsilon: float | None = _option(
        "the margin by which the property must hold",
        lambda margin, _: f"by a margin of more than {value_text(margin)}",
        metavar="NUMBER",
        panel=PROPERTY,
        help={
            "": "Margin by which the property must hold. confidence, tie: difference between classes. reach: "
            "increase of the output. uncertainty: KL divergence."
        },
        commands=REGION_COMMANDS,
    )
    within: str | None = _option(
        "how far outputs may move from the forecast",
        lambda width, _: f"where outputs must stay within {value_text(width)} of the forecast",
        metavar="WIDTH",
        panel=PROPERTY,
        help={
            "": "For forecasts: outputs must stay within this distance of the forecast for the unperturbed "
            "input: 10%, or 0.5 in units of the output; one for each output as in 0.5,2. Needs no labels."
        },
        commands=("radius", *REGION_COMMANDS),
    )
    threshold: float | None = _option(
        "the number on whose side every output must stay",
        lambda at, _: f"where every output must stay on its side of {value_text(at)}",
        metavar="NUMBER",
        panel=PROPERTY,
        help={
            "": "For a single score or several labels: every output must stay on its side of this number. "
            "The side is given by the label (0 or 1), or without labels by the unperturbed input. 0 for "
            "logits, 0.5 for probabilities."
        },
        commands=("radius", *REGION_COMMANDS),
    )
    softmax: bool | None = _option(
        "whether the property is of the softmax of the outputs",
        _softmax,
        panel=PROPERTY,
        help={"": "Apply the property to the softmax of the outputs (default), or to the outputs."},
        commands=REGION_COMMANDS,
    )
    sigma: float | None = _option(
        "the width of the noise that smooths",
        lambda sigma, _: f"under Gaussian noise of width {value_text(sigma)}",
        metavar="NUMBER",
        help={"": "Standard deviation of the noise, in the units of --domain."},
        commands=("smoothing",),
    )
    confidence: float | None = _option(
        "the confidence of each sampled bound",
        lambda share, _: f"with confidence {value_text(share)} for each",
        metavar="SHARE",
        help={"": "Confidence of each radius (not of all together)."},
        commands=("smoothing",),
    )
    box: str | None = _option(  # the hash of the bounds
        "the smallest and largest value of each input",
        _box,
        metavar="BOX",
        help={
            "": "low:high for each input, as in 0:10,-1:1, or one for all; or a .csv file with a line "
            "low,high for each input; or a .npy file with the smallest and the largest values."
        },
        commands=("reach",),
    )
    outputs: str | None = _option(
        "which outputs",
        _outputs,
        metavar="NUMBERS",
        panel=PROPERTY,
        help={
            "": "With --within: numbers of the outputs that must stay, as in 0,2; with --quantiles also median, or "
            "levels as in 0.9. Default: all.",
            "reach": "Numbers of the outputs, as in 0,2. Default: all.",
        },
        main=("reach",),
        commands=("radius", "reach", *REGION_COMMANDS),
    )
    quantiles: str | None = _option(
        "the levels of the quantiles that the network forecasts",
        _quantiles,
        metavar="NUMBERS",
        panel=PROPERTY,
        help={
            "": "With --within, for a network that forecasts quantiles along the last axis of its answer: their levels, "
            "as in 0.1,0.5,0.9, so that --outputs median or --outputs 0.9 can name one."
        },
        commands=("radius", *REGION_COMMANDS),
    )
    tolerance: float | None = _option(
        "tolerance of the bounds of a range",
        lambda tolerance, _: f"each end to within {value_text(tolerance)}",
        metavar="NUMBER",
        help={"": "Stop when lower and upper bound differ by at most this."},
        commands=("reach",),
    )
    # VNN-LIB: names and hashes
    specification: Json = _option("the inputs of instances and what must hold", _specification)  # noqa: RUF009  a field
    criterion: str | None = _option(
        "what tests should cover", lambda criterion, _: f"by the criterion {value_text(criterion)}"
    )
    mutation: Json = _option(  # noqa: RUF009  a field
        "how sequences are changed", _mutation
    )
    # the type of each column, in order
    columns: Json = _option("what the columns of a table are", _columns)  # noqa: RUF009  a field
    # the name, unit, scale and limits of each feature of a window, in order
    channels: Json = _option("what the features of windows are", _channels)  # noqa: RUF009  a field

    @staticmethod
    def of_command(name: str, typed: object, **read: Json) -> "Request":
        """Return the request of a command from its options as typed.

        Args:
            name: the command.
            typed: its options, as attributes.
            read: values that are not stored as typed, such as the hash of a file; they come first.
        """
        found = {
            option: getattr(typed, option)
            for option, declared in options_of(Request).items()
            if name in declared.commands and option not in read
        }
        given = {key: value for key, value in found.items() if not _is_absent(key, value)}
        return Request(**given, **read)

    @staticmethod
    def of_arguments(**given: Any) -> "Request":
        """Return the request of a call from the arguments of a Python function; None: not given."""
        declared = options_of(Request)
        return Request(
            **{
                name: declared[name].summarise(value)
                for name, value in given.items()
                if not _is_absent(name, value)
            }
        )


def _is_absent(name: str, value: Any) -> bool:
    absent = options_of(Request)[name].absent
    return value is None or value is absent
