"""DeepTRE, section 5.3 (Figs. 8 and 9): how many pixels of a photograph must change, and which ones matter?

python -m benchmarks.imagenet pixels --networks efficientnet --count 20 --queries 600

Upper bounds are replayed counterexamples. No lower bound above 0 is proved here: the paper's lower bound at t = 1 is
that of its grid, 8 colours at each of 50,176 pixels, which are 401,408 queries for a photograph. The budget is a number
of queries of the model, so that the answers do not depend on the machine's speed; a gradient counts as one.

The last line gives the paper's global pair for all photographs of a network, (mean lower + mean upper) / 2 +- half of
the difference. With --maps, a saliency map of each photograph: the fall of the margin when one pixel of a grid becomes
a corner of the colour cube. --out writes adversarial images and maps.
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


def arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument("--queries", type=int, default=600, help="queries of the model for each photograph")
    parser.add_argument(
        "--maps", type=int, default=0, help="pixels per side of the grid of a saliency map; 0: none"
    )


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
        if chosen.out is not None:
            _write_pictures(chosen.out, name, x, records)
        if chosen.maps:
            remarks.append(_write_maps(chosen, net, name, x, y))
    for remark in remarks:
        table.say(remark)


def _mean(values: Any) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return statistics.mean(known) if known else None


def _write_pictures(out: Path, name: str, x: Tensor, records: list[Record]) -> None:
    """Write each adversarial photograph next to the original."""
    for row, record in enumerate(records):
        witness = record.bracket.upper.evidence.witness
        if witness is not None:
            _save(out / f"{name}-{row}-adversarial.png", torch.cat([x[row], witness], 2).permute(1, 2, 0))


def _write_maps(chosen: argparse.Namespace, net: hf.Network, name: str, x: Tensor, y: Tensor) -> str:
    """Measure the pixels of a grid; return what they show."""
    began, step = cpu_seconds(), SIZE // chosen.maps
    grid = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    grid[step // 2 :: step, step // 2 :: step] = True
    drops = hf.saliency(net, x, y, unit="pixel", free=grid, progress=False)
    falls = drops.reshape(len(x), SIZE, SIZE)[:, grid]
    if chosen.out is not None:
        side = len(range(step // 2, SIZE, step))
        for row, fall in enumerate(falls):
            _save(chosen.out / f"{name}-{row}-saliency.png", fall.reshape(side, side))
    return (
        f"{name}: one changed pixel of {falls.shape[1]} lowers the margin by at most {float(falls.max()):.3g}, by "
        f"{float(falls.mean()):.3g} on average; {(cpu_seconds() - began) / len(x):.1f} CPU-s a photograph"
    )


def _save(path: Path, values: Tensor) -> None:
    import matplotlib.image

    path.parent.mkdir(parents=True, exist_ok=True)
    matplotlib.image.imsave(path, values.clamp(0, None).numpy(), cmap="inferno")
