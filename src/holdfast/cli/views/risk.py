"""The table and the pictures of a run of `holdfast risk`, from its store."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.table import Table
from rich.text import Text

from holdfast.api.risk import Risk, estimate_text, risks_of
from holdfast.formatting import format_lower, format_nearest, format_upper, shorten
from holdfast.network import Network
from holdfast.report.summary import bracket_text, class_name
from holdfast.result import Bracket
from holdfast.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from holdfast.cli.views.pictures import Array

SHOWN = 6  # Points on the search path to the largest ratio that a picture shows.


def table(store: Store, most: int = 40) -> Table:
    found, question = risks_of(store.records_with_artefacts()), store.question
    inputs = list(store.stream_inputs(light=True))
    labels = [
        class_name(question, stored.prediction if stored.label is None else stored.label) for stored in inputs
    ]
    view = Table(
        "input",
        "class",
        "score",
        "worst score",
        "Q",
        "radius",
        "s/Q (estimate)",
        caption=f"{len(found)} inputs; worst score and Q are those of the region, the radius may lie outside "
        "it; "
        "each from the proved to the found bound, for Q from the found to the proved one; s/Q at most the "
        "radius of "
        "the region (DeepQuant, Theorem 1), and refuted where a nearer counterexample exists; "
        f"{sum(r.queries for r in found) // max(1, len(found))} queries an input",
        caption_justify="left",
    )
    for stored, label, r in list(zip(inputs, labels, found, strict=False))[:most]:
        guess = estimate_text(r) or "-"
        view.add_row(
            Text(shorten(stored.name)),
            Text(label),
            format_nearest(r.score),
            _ends(r.worst),
            _ends(r.metric),
            _ends(r.radius),
            guess,
        )
    return view


def _ends(bracket: Bracket | None) -> str:
    return "-" if bracket is None else bracket_text(bracket)


def draw(store: Store, net: Network, most: int) -> None:
    """Write risk-0000.png, ... to the folder of the run, at most `most`."""
    if not most:
        return
    from holdfast.cli.views.pictures import (
        drawable,
        ends_of,
        save,
    )  # Here because matplotlib takes a second to import.

    for stored, r in list(zip(store.inputs(), risks_of(store.records_with_artefacts()), strict=False))[:most]:
        if drawable(stored.x.shape):
            figure = _figure(ends_of(net), stored.x, r, f"{stored.name}: {format_nearest(r.score, 3)}")
            save(figure, store.folder / f"risk-{stored.index:04d}.png")


def _figure(ends: tuple[float, float], x: "Array", r: Risk, title: str) -> "Figure":
    """Draw the input, the search path to the largest ratio, the worst input and the nearest failure."""
    from matplotlib.figure import Figure

    from holdfast.cli.views.pictures import draw_input, draw_map

    steps = (
        [r.path[i] for i in sorted({int(i) for i in np.linspace(0, len(r.path) - 1, SHOWN)})]
        if r.path
        else []
    )
    shown = [
        (torch.from_numpy(x), title),
        *((e.point, f"{e.queries} queries\nQ >= {format_lower(e.ratio, 3)}") for e in steps),
    ]
    if r.worst.upper.evidence.witness is not None:
        shown.append((r.worst.upper.evidence.witness, f"worst found\n{format_upper(r.worst.upper.value, 3)}"))
    if r.example is not None and r.radius is not None:
        shown.append((r.example, f"fails\nat {format_upper(r.radius.upper.value, 3)}"))
    figure = Figure(figsize=(1.5 * (len(shown) + 1), 2.0), layout="constrained")
    axes = figure.subplots(1, len(shown) + 1)
    for axis, (image, text) in zip(axes, shown, strict=False):
        draw_input(axis, image.numpy(), ends, text)
    change = shown[-1][0].numpy() - x
    flat = change.reshape(-1, *change.shape[-2:])[0]
    largest = float(np.abs(flat).max() or 1)
    draw_map(axes[-1], flat, "RdBu_r", (-largest, largest), "difference\nof the last")
    return figure
