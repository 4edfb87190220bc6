"""`holdfast risk`: worst score, metric and radius of a property near each input, and the inputs that show them."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor

from holdfast.api.risk import QUESTIONS, Risk, risk
from holdfast.cli.output import check_folder, line, write_arrays
from holdfast.cli.parse import ModelOptions, norm_option, numbers, one_of, targets_option, tier_option, whole_numbers
from holdfast.cli.pictures import draw_input, draw_map, drawable, ends_of
from holdfast.cli.reading.data import Data, load_data
from holdfast.cli.reading.model import load_network
from holdfast.cli.reading.source import named
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.result import Bracket
from holdfast.solver import Stop

FILE, LIST = "risk.npz", "risk.json"
SHOWN = 6  # examples on the way to the largest ratio, in a picture


@dataclass(frozen=True)
class RiskQuestion:
    """A whole `holdfast risk` command."""

    network: ModelOptions
    data: str
    property: str
    radius: float | None = None
    norm: str = "inf"
    epsilon: float = 0.0
    target: str | None = None
    patch: str | None = None
    units: str | None = None
    outputs: bool = False
    queries: int = 2000
    tier: str = "fast"
    seconds: float | None = None
    scale: float | None = None
    limit: int | None = None
    pictures: int = 20
    seed: int = 0


def quantify(q: RiskQuestion, folder: Path, console: Console) -> None:
    norm, tier, corner, units = norm_option(q.norm), tier_option(q.tier), whole_numbers(q.patch, "patch"), numbers(q.units, "units")
    if norm == 0:
        raise BadInput("risk measures distances: use a norm p >= 1. To count changed pixels there is 'holdfast radius --norm 0'.")
    asked: Any = named(q.property, "property")[0] if ":" in q.property else one_of(q.property, "property", QUESTIONS)
    check_folder(folder, FILE)
    net = load_network(q.network)
    data = load_data(q.data, net, scale=q.scale).limited(q.limit)
    x = data.stacked(q.data)
    patch = None if corner is None else _square(x, corner)
    found = risk(
        net, x, asked, norm=norm, radius=q.radius, patch=patch, shares=units, y=data.y, targets=_targets(q.target, len(x)),
        epsilon=q.epsilon, softmax=not q.outputs, queries=q.queries, tier=tier, stop=Stop(seconds=q.seconds), seed=q.seed,
    )  # fmt: skip
    write_arrays(folder, FILE, _arrays(x, data, found))
    (folder / LIST).write_text(json.dumps([_plain(r, data.names[i]) for i, r in enumerate(found)], indent=1) + "\n")
    drawn = _draw(net, x, data, found, folder, q.pictures)
    console.print(_table(found, data), highlight=False)
    for note in dict.fromkeys(note for r in found for note in r.notes):
        line(console, "note", note, warns=True)
    line(console, "written", f"{folder / FILE}, {folder / LIST}" + (f" and {drawn} pictures" if drawn else ""))


def _targets(text: str | None, count: int) -> list[int] | None:
    found = targets_option(text, count)
    if found == "runner-up":
        raise BadInput("target: name a class; against the runner-up there is --property runner-up.")
    return found


def _square(x: Tensor, corner: list[int]) -> Tensor:
    if len(corner) != 3 or x.dim() < 3:
        raise BadInput("patch: give top,left,size of a square, as in 2,2,3, for inputs that are images (..., height, width).")
    top, left, size = corner
    mask = torch.zeros(x.shape, dtype=torch.bool)
    mask[..., max(0, top) : top + size, max(0, left) : left + size] = True
    return mask


def _ends(bracket: Bracket | None) -> str:
    if bracket is None:
        return "-"
    return f"{bracket.lower.value:.4g} to {bracket.upper.value:.4g}"


def _table(found: list[Risk], data: Data) -> Table:
    table = Table(
        "input", "score", "worst score", "Q", "radius", "s/Q (estimate)",
        caption=f"{len(found)} inputs; from what is proved to what was found, for Q from what was found to what is proved; "
        f"{sum(r.queries for r in found) // len(found)} queries an input",
        caption_justify="left",
    )  # fmt: skip
    for name, r in list(zip(data.names, found, strict=True))[:40]:
        guess = "-" if r.estimate is None else f"{r.estimate.value:.4g}"
        table.add_row(name, f"{r.score:.4g}", _ends(r.worst), _ends(r.metric), _ends(r.radius), guess)
    return table


def _arrays(x: Tensor, data: Data, found: list[Risk]) -> dict[str, Any]:
    """NaN where no failing input was found."""
    blank = torch.full_like(x[0], torch.nan)
    examples = torch.stack([blank if r.example is None else r.example.to(x) for r in found])
    lowest = [r.worst.upper.evidence.witness for r in found]
    return {"x": x, "y": data.y, "example": examples, "worst": torch.stack([blank if w is None else w.to(x) for w in lowest])}


def _plain(r: Risk, name: str) -> dict[str, Any]:
    """Numbers and words for JSON; infinity is null, and the kinds say what it means."""
    return {
        "input": name,
        "score": r.score,
        **{key: _bracket(b) for key, b in (("worst", r.worst), ("metric", r.metric), ("radius", r.radius))},
        "estimate": None if r.estimate is None else r.estimate.value,
        "found": r.example is not None,
        "queries": r.queries,
        "seconds": r.seconds,
        "notes": list(r.notes),
    }


def _bracket(bracket: Bracket | None) -> dict[str, Any] | None:
    if bracket is None:
        return None
    ends = {"lower": bracket.lower, "upper": bracket.upper}
    return {
        **{k: b.value if math.isfinite(b.value) else None for k, b in ends.items()},
        **{f"{k}_kind": b.evidence.kind for k, b in ends.items()},
        **{f"{k}_method": b.evidence.method for k, b in ends.items()},
        "note": bracket.note,
    }


def _draw(net: Network, x: Tensor, data: Data, found: list[Risk], folder: Path, most: int) -> int:
    if not drawable(tuple(x.shape[1:])):
        return 0
    for place, r in enumerate(found[:most]):
        _figure(net, x[place], r, f"{data.names[place]}: {r.score:.3g}").savefig(folder / f"risk-{place:04d}.png", dpi=100)
    return min(most, len(found))


def _figure(net: Network, x: Tensor, r: Risk, title: str) -> Figure:
    """The input, the way to the largest ratio, the worst input of the region, the nearest that fails, and what changed there."""
    ends = ends_of(net)
    steps = [r.path[i] for i in sorted({int(i) for i in np.linspace(0, len(r.path) - 1, SHOWN)})] if r.path else []
    shown = [(x, title), *((e.point, f"{e.queries} queries\nQ >= {e.ratio:.3g}") for e in steps)]
    if r.worst.upper.evidence.witness is not None:
        shown.append((r.worst.upper.evidence.witness, f"worst found\n{r.worst.upper.value:.3g}"))
    if r.example is not None and r.radius is not None:
        shown.append((r.example, f"fails\nat {r.radius.upper.value:.3g}"))
    figure = Figure(figsize=(1.5 * (len(shown) + 1), 2.0), layout="constrained")
    axes = figure.subplots(1, len(shown) + 1)
    for axis, (image, text) in zip(axes, shown, strict=False):
        draw_input(axis, image.cpu().numpy(), ends, text)
    change = (shown[-1][0].cpu() - x).numpy()
    flat = change.reshape(-1, *change.shape[-2:])[0]
    draw_map(axes[-1], flat, "RdBu_r", (-float(np.abs(flat).max() or 1), float(np.abs(flat).max() or 1)), "what changed\nin the last")
    return figure
