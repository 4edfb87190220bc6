"""DeepTRE, section 5.3 (Figs. 8 and 9): how many pixels of a photograph must change, and which ones matter?

python -m benchmarks.imagenet pixels --networks efficientnet --count 20 --queries 600

Upper bounds are replayed counterexamples. No lower bound above 0 is proved here: the paper's lower bound at t = 1 is
that of its grid, 8 colours at each of 50,176 pixels, which are 401,408 queries for a photograph. The budget is a number
of queries of the model, so that the answers do not depend on the machine's speed; a gradient counts as one.

The last line gives the paper's global pair for all photographs of a network, (mean lower + mean upper) / 2 +- half of
the difference. With --maps, a saliency map of each photograph: the fall of the margin when one pixel of a grid becomes
a corner of the colour cube. --out draws photographs, adversarial photographs and maps.
"""

import argparse
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.imagenet.nets import SIZE, add_arguments, cpu_seconds, network, photographs
from holdfast.result import Record

DRAWN = 4  # Photographs in the figure; chosen by hand.


def arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument("--queries", type=int, default=600, help="queries of the model for each photograph")
    parser.add_argument(
        "--maps", type=int, default=0, help="pixels per side of the grid of a saliency map; 0: none"
    )
    parser.add_argument("--mapped", type=int, help="photographs with a saliency map; default: all")


@dataclass
class Watch:
    """Notes when the first and the last counterexample was reported, in CPU-seconds."""

    began: float = field(default_factory=cpu_seconds)
    first: float = math.nan
    last: float = math.nan
    best: float = math.inf

    def __call__(self, report: Any) -> None:
        for record in report.records:
            if record.bracket.upper.value < self.best:
                self.best, self.last = record.bracket.upper.value, cpu_seconds() - self.began
                self.first = self.last if math.isnan(self.first) else self.first


def main(chosen: argparse.Namespace) -> None:
    x = photographs(chosen.count)
    table = Table(
        ["network", "weights", "photographs", "found", "changed pixels", "median", "CPU-s to the first",
         "CPU-s to the best", "CPU-s in all", "queries"],
        chosen.out, "pixels",
    )  # fmt: skip
    remarks = []
    for name in chosen.networks:
        net, held = network(name, chosen.weights, chosen.device)
        y = net(x).argmax(1)
        watches, records = [], []
        for row in range(len(x)):
            watch = Watch()
            found = hf.radius(
                net, x[row : row + 1], y[row : row + 1], norm=0, unit="pixel", tier="search",
                stop=hf.Stop(queries=chosen.queries), progress=watch,
            )  # fmt: skip
            watches.append((watch, cpu_seconds() - watch.began))
            records.append(found.records[0])
        changed = [record.bracket.upper.value + 1 for record in records]
        some = [value for value in changed if math.isfinite(value)]
        table.add(
            name, held, len(x), len(some), f"{min(some):.0f} to {max(some):.0f}" if some else None,
            statistics.median(some) if some else None,
            _mean(watch.first for watch, _ in watches), _mean(watch.last for watch, _ in watches),
            _mean(whole for _, whole in watches), round(statistics.mean(record.queries for record in records)),
        )  # fmt: skip
        if some:
            # Pixels that may change: at least 0, at most one less than the counterexample changes.
            upper = statistics.mean(value - 1 for value in some)
            remarks.append(f"{name}: {upper / 2:.2f} +- {upper / 2:.2f} pixels over {len(some)} photographs")
        maps = None
        if chosen.maps:
            maps, remark = _map_pixels(chosen, net, name, x[: chosen.mapped], y[: chosen.mapped])
            remarks.append(remark)
        if chosen.out is not None:
            _draw(chosen.out / name, x, records, maps)
    for remark in remarks:
        table.say(remark)


def _mean(values: Any) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return statistics.mean(known) if known else None


def _draw(path: Path, x: Tensor, records: list[Record], maps: Tensor | None) -> None:
    """Draw photographs, adversarial photographs, the pixels that they change, and saliency maps (rows, side, side)."""
    from matplotlib.figure import Figure

    shown = [row for row, record in enumerate(records) if record.bracket.upper.evidence.witness is not None]
    shown = shown[:DRAWN]
    if not shown:
        return
    titles = ["photograph", "adversarial photograph", "changed pixels, enlarged"]
    titles += [] if maps is None else ["fall of the margin by one pixel"]
    figure = Figure(figsize=(2.6 * len(titles), 2.7 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), len(titles), squeeze=False)
    for line, row in enumerate(shown):
        witness = records[row].bracket.upper.evidence.witness
        assert witness is not None
        changed = (witness != x[row]).any(0)[None, None].float()
        # Pixels are drawn as squares of 5 x 5, since single ones cannot be seen.
        enlarged = torch.nn.functional.max_pool2d(changed, 5, stride=1, padding=2)[0, 0]
        pictures = [x[row].permute(1, 2, 0), witness.permute(1, 2, 0), enlarged]
        pictures += [] if maps is None else ([maps[row]] if row < len(maps) else [])
        for place, picture in enumerate(pictures):
            grey = {} if picture.dim() == 3 else {"cmap": "gray" if place == 2 else "inferno"}
            axes[line, place].imshow(picture.numpy(), **grey)
        count = int(changed.sum())
        axes[line, 2].set_xlabel(f"{count} pixel{'' if count == 1 else 's'}")
        for place, axis in enumerate(axes[line]):
            axis.set(xticks=[], yticks=[])
            axis.set_title(titles[place] if line == 0 else "", fontsize=9)
            axis.axis("on" if place < len(pictures) else "off")
    path.parent.mkdir(parents=True, exist_ok=True)
    for ending in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{ending}"), dpi=110)


def _map_pixels(
    chosen: argparse.Namespace, net: hf.Network, name: str, x: Tensor, y: Tensor
) -> tuple[Tensor, str]:
    """Measure the pixels of a grid; return the falls of the margin (rows, side, side), and what they show."""
    began, step = cpu_seconds(), SIZE // chosen.maps
    grid = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    grid[step // 2 :: step, step // 2 :: step] = True
    drops = hf.saliency(net, x, y, unit="pixel", free=grid, progress=False)
    falls = drops.reshape(len(x), SIZE, SIZE)[:, grid]
    side = len(range(step // 2, SIZE, step))
    return falls.reshape(len(x), side, side), (
        f"{name}: one changed pixel of {falls.shape[1]} lowers the margin by at most {float(falls.max()):.3g}, by "
        f"{float(falls.mean()):.3g} on average; {(cpu_seconds() - began) / len(x):.1f} CPU-s a photograph"
    )
