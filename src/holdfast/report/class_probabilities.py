"""The most likely classes before and after a perturbation, and saliency maps, packed into attributes of a
table row.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from holdfast.formatting import format_nearest, percent_digits
from holdfast.question import Question
from holdfast.report.picture import channels_last, shades
from holdfast.report.summary import InputRow, class_name
from holdfast.result import Answers, Likely

Array = NDArray[Any]


@dataclass(frozen=True)
class Map:
    """A saliency map: base64 of a PNG, and its description; both are empty without a map."""

    png: str = ""
    words: str = ""


def pack_answers(answers: Answers | None) -> str:
    """Pack answers as '3 98.1 12.07,5 1.5 7.9;5 60 9.1' for the page's script.

    Each entry holds class, percent and output; the answers at the input come before the semicolon, those at
    the counterexample after it.
    """
    return (
        ""
        if answers is None
        else ";".join(",".join(map(_pack_answer, side)) for side in (answers.before, answers.after))
    )


def _pack_answer(one: Likely) -> str:
    return f"{one.label} {percent_digits(one.share)} {format_nearest(one.output)}"


def names_of(rows: Iterable[InputRow], question: Question) -> dict[int, str]:
    """Return names by number for the classes in the answers of these rows; classes without a name are left
    out.
    """
    labels = {one.label for row in rows if row.answers for one in (*row.answers.before, *row.answers.after)}
    return {label: name for label in sorted(labels) if (name := class_name(question, label)) != str(label)}


def map_of(found: Array | None) -> Map:
    """Draw a saliency map: orange, strongest where one change lowers the margin most; grey where not
    measured.
    """
    if found is None or not found.size or not np.isfinite(found).any():
        return Map()
    return Map(base64.b64encode(shades(channels_last(flatten_map(found)))).decode(), words_of(found, "grey"))


def map_image(drawn: Map) -> Markup:
    """The map as an HTML image; empty without one."""
    if not drawn.png:
        return Markup()
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(drawn.words, drawn.png)


def flatten_map(found: Array) -> Array:
    """(..., h, w) or (n,) -> (h, w): the maximum over channels.

    NaN where a channel was not measured; positions that may not change (minus infinity) become 0.
    """
    filled = found.astype(float).clip(0)  # np.clip keeps NaN.
    plane: Array = (
        filled.reshape(-1, *filled.shape[-2:]).max(0) if filled.ndim >= 2 else filled.reshape(1, -1)
    )
    return plane


def not_measured(found: Array) -> int:
    """Count the units of a map that were not measured."""
    return int(np.isnan(found).sum())


def words_of(found: Array, shown_as: str = "") -> str:
    """Describe the maximum of a map and count unmeasured units. shown_as: how the picture shows
    the latter.
    """
    plane, missing = flatten_map(found), not_measured(found)
    open_ = (
        f"{missing} of {found.size} units not measured" + (f" ({shown_as})" if shown_as else "")
        if missing
        else ""
    )
    if np.isnan(plane).all():
        return open_
    most = float(np.nanmax(plane))
    if most <= 0:
        found_text = "no single change that was tried lowers the margin"
    else:
        row, column = np.unravel_index(int(np.nanargmax(plane)), plane.shape)
        place = f"number {column}" if len(plane) == 1 else f"row {row}, column {column}"
        found_text = f"one change lowers the margin by up to {format_nearest(most)}, at {place} (estimated)"
    return "; ".join(filter(None, (found_text, open_)))
