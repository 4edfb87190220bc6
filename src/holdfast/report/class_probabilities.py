"""The likeliest classes before and after, and which places matter, small enough to ride on a row of the page."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from holdfast.formatting import about, hundredths
from holdfast.question import Question
from holdfast.report.picture import planes_of, shades
from holdfast.report.summary import InputRow, class_name
from holdfast.result import Answers, Likely

Array = NDArray[Any]


@dataclass(frozen=True)
class Map:
    """A saliency map as base64 of a PNG, and what it says in words; both empty where there is none."""

    png: str = ""
    words: str = ""


def pack_answers(answers: Answers | None) -> str:
    """'3 98.1 12.07,5 1.5 7.9;5 60 9.1': class, percent, output; before; after. The page's script makes lists of it."""
    return (
        ""
        if answers is None
        else ";".join(",".join(map(_pack_answer, side)) for side in (answers.before, answers.after))
    )


def _pack_answer(one: Likely) -> str:
    return f"{one.label} {hundredths(one.share)} {about(one.output)}"


def names_of(rows: Iterable[InputRow], question: Question) -> dict[int, str]:
    """The names of the classes that rows speak of; those without a name are left out."""
    labels = {one.label for row in rows if row.answers for one in (*row.answers.before, *row.answers.after)}
    return {label: name for label in sorted(labels) if (name := class_name(question, label)) != str(label)}


def map_of(found: Array | None) -> Map:
    """Shades of orange, the strongest where one change lowers the margin most; grey where nothing was measured."""
    if found is None or not found.size or not np.isfinite(found).any():
        return Map()
    return Map(base64.b64encode(shades(planes_of(flat(found)))).decode(), words_of(found, "grey"))


def map_image(drawn: Map) -> Markup:
    """The map as an HTML image; empty without one."""
    if not drawn.png:
        return Markup()
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(drawn.words, drawn.png)


def flat(found: Array) -> Array:
    """(..., h, w) or (n,) -> (h, w): of channels the one that matters most. NaN where a channel was not measured; places that may not
    change (minus infinity) matter not."""
    filled = found.astype(float).clip(0)  # NaN stays
    plane: Array = (
        filled.reshape(-1, *filled.shape[-2:]).max(0) if filled.ndim >= 2 else filled.reshape(1, -1)
    )
    return plane


def not_measured(found: Array) -> int:
    """Units of a map of which nothing is known."""
    return int(np.isnan(found).sum())


def words_of(found: Array, shown_as: str = "") -> str:
    """Where a map is largest, and how many units were not measured. shown_as: how the picture shows these."""
    plane, missing = flat(found), not_measured(found)
    open_ = (
        f"{missing} of {found.size} units not measured" + (f" ({shown_as})" if shown_as else "")
        if missing
        else ""
    )
    if np.isnan(plane).all():
        return open_
    most = float(np.nanmax(plane))
    if most <= 0:
        told = "no single change that was tried lowers the margin"
    else:
        row, column = np.unravel_index(int(np.nanargmax(plane)), plane.shape)
        place = f"number {column}" if len(plane) == 1 else f"row {row}, column {column}"
        told = f"one change lowers the margin by up to {about(most)}, at {place} (estimated)"
    return "; ".join(filter(None, (told, open_)))
