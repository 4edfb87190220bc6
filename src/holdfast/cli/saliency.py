"""`holdfast saliency`: which pixels, frames or features matter, as arrays and as pictures."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from holdfast.cli.output import check_folder, line, write_arrays
from holdfast.cli.parse import ModelOptions, unit_option, values_option
from holdfast.cli.pictures import draw_input, draw_map, drawable, ends_of
from holdfast.cli.reading.data import load_data
from holdfast.cli.reading.model import load_network
from holdfast.hamming.saliency import saliency

FILE = "saliency.npz"


@dataclass(frozen=True)
class SaliencyQuestion:
    """A whole `holdfast saliency` command."""

    network: ModelOptions
    data: str
    unit: str | None = None
    values: str | None = None
    scale: float | None = None
    limit: int | None = None
    pictures: int = 20


def show(q: SaliencyQuestion, folder: Path, console: Console) -> None:
    unit, values = unit_option(q.unit), values_option(q.values)
    check_folder(folder, FILE)
    net = load_network(q.network)
    data = load_data(q.data, net, scale=q.scale).limited(q.limit)
    x = data.stacked(q.data)
    maps = saliency(net, x, data.y, unit=unit, values=None if values is None else torch.tensor(values, dtype=torch.float64)).cpu()
    write_arrays(folder, FILE, {"x": x, "y": data.y, "saliency": maps})
    drawn = 0
    if drawable(tuple(x.shape[1:])):
        for place in range(min(q.pictures, len(x))):
            name = data.classes[int(data.y[place])] if data.classes else str(int(data.y[place]))
            _figure(x[place], maps[place], ends_of(net), f"input {place}: {name}").savefig(folder / f"saliency-{place:04d}.png", dpi=100)
            drawn += 1
    console.print(_table(maps), highlight=False)
    line(console, "written", f"{folder / FILE}" + (f" and {drawn} pictures" if drawn else ""))


def _figure(x: torch.Tensor, found: torch.Tensor, ends: tuple[float, float], title: str) -> Figure:
    figure = Figure(figsize=(4.2, 2.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_input(left, x.numpy(), ends, title)
    values = np.broadcast_to(found.double().numpy(), tuple(x.shape))
    flat = values.reshape(-1, *values.shape[-2:])[0]
    draw_map(right, flat, "viridis", (0.0, max(float(np.nanmax(flat)), 1e-12)), "fall of the margin")
    return figure


def _table(maps: torch.Tensor) -> Table:
    """The three units of each input that matter most."""
    table = Table("input", "units that matter most: how far the margin falls", caption=f"{len(maps)} inputs", caption_justify="left")
    for place, found in enumerate(maps[:20]):
        flat = found.flatten().nan_to_num(-1)
        best = flat.topk(min(3, len(flat))).indices.tolist()
        kept = [axis for axis, size in enumerate(found.shape) if size > 1] or [0]
        places = [torch.unravel_index(torch.tensor(k), found.shape) for k in best]
        table.add_row(str(place), ", ".join(f"{tuple(int(p[a]) for a in kept)} {flat[k]:.3g}" for p, k in zip(places, best, strict=True)))
    return table
