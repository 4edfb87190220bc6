"""One picture of a run for a slide (16:9): the answer as its title, and the bounds of every input.

Up to MOST_BARS inputs get a bar each, the most fragile on top; more inputs become two curves, the share
certified and the share with a counterexample at each radius. Blue is proved, orange is a counterexample, grey
is unknown.
"""

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from holdfast.errors import BadInput, StoreError
from holdfast.files import new_file
from holdfast.foreign_text import printable
from holdfast.formatting import norm_name, shorten
from holdfast.question import Question
from holdfast.report.answer_sentence import answer_sentence
from holdfast.report.streaming import summary_parts
from holdfast.report.summary import InputRow, QuestionPart, class_name
from holdfast.report.text_difference import difference_text, text_difference
from holdfast.store import Store

INCHES = (12.8, 7.2)  # Size of the picture: 16:9, as slides are.
DPI = 150  # Pixels an inch of a .png: 1920 x 1080 in all.
MOST_BARS = 20  # Inputs with a bar of their own: what the height holds at a readable size.
TITLE_CHARACTERS = 84  # Characters of a line of the title at its font size.
PROVED, FOUND, UNKNOWN = "#0072b2", "#d55e00", "#d0d3d8"  # As on the report: Okabe and Ito's palette.


def write_slide(store: Store, path: Path, at: float | None = None) -> Path:
    """Draw the run into a .png or .svg file and return its path; at: the radius of the title.

    BadInput if the run has no radii or worst scores to draw, StoreError if the file cannot be written.
    """
    parts, inputs = summary_parts(store, MOST_BARS)
    part = parts[0]
    decided = bool(part.rows) and not part.name and part.rows[0].objective.decides_property
    if store.question.command == "verify" or not decided:
        raise BadInput(
            f"{path}: a slide shows radii or worst scores, and this run has none. Write a page: --out "
            "report.html."
        )
    title = answer_sentence(store.question, parts, len(inputs - part.answered), at)
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.subplots()
    rows = list(part.rows)
    limit = _axis_limit(rows)
    if len(rows) <= MOST_BARS:
        _draw_bars(axes, rows, store.question, limit)
    else:
        _draw_curves(axes, rows, limit)
    axes.set_xlabel(_unit(store.question, part), fontsize=15)
    axes.tick_params(labelsize=13)
    axes.spines[["top", "right"]].set_visible(False)
    plain: dict[str, Any] = {
        "parse_math": False,
        "usetex": False,
    }  # Names are no formulas, whatever a matplotlibrc says.
    figure.suptitle(
        textwrap.fill(printable(title), TITLE_CHARACTERS),
        fontsize=17,
        x=0.02,
        ha="left",
        fontweight="bold",
        **plain,
    )
    example = _edited_example(rows, store.question)
    if example:
        axes.set_title(textwrap.fill(printable(example), TITLE_CHARACTERS), fontsize=13, loc="left", **plain)
    foot = f"{printable(shorten(_describe_names(store.question)))}  ·  holdfast"
    figure.supxlabel(foot, fontsize=10, color="#5a616b", x=0.02, ha="left", **plain)
    drawing = io.BytesIO()
    kind = path.suffix.removeprefix(".")
    figure.savefig(drawing, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as stream:
            stream.write(drawing.getvalue())
    except OSError as error:
        raise StoreError(f"{path}: the picture cannot be written ({error}). Choose another place.") from error
    return path


def _edited_example(rows: Sequence[InputRow], question: Question) -> str:
    """The counterexample with the fewest edits, as a text with [+inserted+] and [-deleted-] words."""
    shown = [
        row
        for row in rows
        if question.asked.norm == "edits"
        and row.witness is not None
        and row.source is not None
        and row.source.tokens is not None
        and not row.fails_at_once
    ]
    if not shown:
        return ""
    row = min(shown, key=lambda one: (one.bracket.upper.value, one.index))
    assert row.source is not None
    assert row.source.tokens is not None
    assert row.witness is not None
    words = text_difference(row.source.tokens, row.witness, question.model.vocabulary or ())
    return f"input {row.name}: {difference_text(words)}"


def _axis_limit(rows: Sequence[InputRow]) -> tuple[float, float]:
    """The smallest and largest value of the axis: all finite bounds and 0, with 5 % more on the right."""
    finite = [
        bound.value
        for row in rows
        for bound in (row.bracket.lower, row.bracket.upper)
        if bound.known and math.isfinite(bound.value)
    ]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    return low, high + 0.05 * (high - low) if high > low else low + 1.0


def _draw_bars(axes: Axes, rows: Sequence[InputRow], question: Question, limit: tuple[float, float]) -> None:
    """One bar for each input, the most fragile on top: proved, unknown, and from the counterexample on."""
    ordered = sorted(rows, key=lambda row: (-row.bracket.upper.value, -row.bracket.lower.value, -row.index))
    low, high = limit
    for place, row in enumerate(ordered):
        lower, upper = row.bracket.lower, row.bracket.upper
        proved = min(max(lower.value, low), high) if lower.known or math.isfinite(lower.value) else low
        found = min(max(upper.value, low), high)
        axes.barh(place, proved - low, left=low, height=0.62, color=PROVED)
        axes.barh(place, found - proved, left=proved, height=0.62, color=UNKNOWN)
        if math.isfinite(upper.value):
            axes.barh(place, high - found, left=found, height=0.62, color=FOUND, alpha=0.25)
            axes.plot([found, found], [place - 0.31, place + 0.31], color=FOUND, linewidth=4)
    names = [_row_name(row, question) for row in ordered]
    axes.set_yticks(range(len(ordered)), names)
    for label in axes.get_yticklabels():
        label.set(parse_math=False, usetex=False)
    axes.set_xlim(low, high)
    _legend(axes, ("proved: no change of this size", "unknown", "a counterexample changes it"))


def _draw_curves(axes: Axes, rows: Sequence[InputRow], limit: tuple[float, float]) -> None:
    """The share of inputs certified at each value, and the share without a counterexample.

    Between them: unknown.
    """
    low, high = limit
    proved = sorted(row.bracket.lower.value for row in rows)
    found = sorted(row.bracket.upper.value for row in rows)
    at = [low, *(value for value in sorted({*proved, *found}) if low < value < high), high]
    certified = [100 * sum(value >= x for value in proved) / len(rows) for x in at]
    standing = [100 * sum(value >= x for value in found) / len(rows) for x in at]
    axes.fill_between(at, 0, certified, step="pre", color=PROVED, linewidth=0)
    axes.fill_between(at, certified, standing, step="pre", color=UNKNOWN, linewidth=0)
    axes.fill_between(at, standing, 100, step="pre", color=FOUND, alpha=0.25, linewidth=0)
    axes.step(at, standing, where="pre", color=FOUND, linewidth=3)
    axes.set_xlim(low, high)
    axes.set_ylim(0, 100)
    axes.set_ylabel("share of inputs in %", fontsize=15)
    _legend(axes, ("certified", "unknown", "with a counterexample"))


def _legend(axes: Axes, texts: Sequence[str]) -> None:
    colours = ((PROVED, 1.0), (UNKNOWN, 1.0), (FOUND, 0.4))
    handles = [Patch(color=c, alpha=a, label=text) for (c, a), text in zip(colours, texts, strict=True)]
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, fontsize=13, frameon=False
    )


def _row_name(row: InputRow, question: Question) -> str:
    """The number of the input, its file name or its label."""
    label = class_name(question, row.source.label) if row.source is not None else ""
    name = row.display_name[-24:] or label
    return printable(f"{row.name}: {name}" if name else f"input {row.name}")


def _describe_names(question: Question) -> str:
    """The names of the model and the data, for the foot of the picture."""
    return f"model {question.model.name or 'the network'}, data {question.data.name or 'the data'}"


def _unit(question: Question, part: QuestionPart) -> str:
    """What the axis shows."""
    asked = question.asked
    if not part.rows[0].objective.bounds_radius:
        return f"{part.sense.quantity} (positive: the property holds)"
    if asked.norm == "words":
        return "number of replaced words"
    if asked.norm == "edits":
        return "number of edits"
    if asked.norm == "0":
        return f"number of changed {asked.unit or 'unit'}s"
    return f"perturbation radius ({norm_name(asked.norm)} norm)"
