"""DeepTRE's Fig. 1: lower bound, upper bound and the grid's estimate over time. Fig. 3: all bounds in order.

python -m benchmarks.hamming curves --network digits --count 50 --seconds 60 --out DIR

Search, grid and proof take turns on one image, and on a set. `--out` gets .csv files of every moment and of
the final bounds and, with matplotlib, a figure.
"""

import argparse
import csv
import math
import time
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.charts import new_figure, save
from benchmarks.hamming.measure import options, question, wake
from benchmarks.hamming.nets import Case, case
from holdfast.hamming.branch import Branch
from holdfast.hamming.greedy import Greedy
from holdfast.hamming.grid import Grid
from holdfast.result import Record
from holdfast.solver import Progress

MOMENTS = (0.1, 0.3, 1, 3, 10, 30, 100, 300)


@dataclass(frozen=True)
class Moment:
    """Means over the images.

    The upper bound is infinite until each image has one; a missing estimate counts 0.
    """

    seconds: float
    method: str
    lower: float
    upper: float
    estimate: float
    closed: int


def watched(asked: Case, count: int, seconds: float, *, skip: int = 0) -> tuple[list[Moment], list[Record]]:
    """The progress reports of a search over images skip, skip + 1, ..., and the final records."""
    x, y = asked.right(skip + count)
    moments: list[Moment] = []
    began = time.perf_counter()

    def note(progress: Progress) -> None:
        whole = hf.result.overall(r.bracket for r in progress.records)
        guessed = [max([e.value for e in r.bracket.estimates], default=0.0) for r in progress.records]
        passed = time.perf_counter() - began
        moments.append(
            Moment(
                passed, progress.method, whole.lower, whole.upper, sum(guessed) / len(guessed), whole.closed
            )
        )

    records = hf.solve(
        [question(asked, x[skip:], y[skip:])],
        [Greedy(), Grid(t=2), Branch()],
        hf.Stop(seconds=seconds),
        batch=count,
        progress=note,
    )
    return moments, records


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, count=50, seconds=60)
    parser.add_argument("--network", choices=("digits", "mnist", "cifar"), default="digits")
    parser.add_argument("--image", type=int, default=0, help="index of the single image")


def main(chosen: argparse.Namespace) -> None:
    asked = case(chosen.network, chosen.data, chosen.device)
    wake(asked)
    alone, _ = watched(asked, 1, chosen.seconds, skip=chosen.image)
    every, records = watched(asked, chosen.count, chosen.seconds)
    table = Table(
        ["s", "one: lower", "upper", "estimate", "all: lower", "upper", "estimate", "closed"],
        chosen.out,
        "hamming-curves",
    )
    for moment in MOMENTS:
        one, whole = ([m for m in moments if m.seconds <= moment] for moments in (alone, every))
        if not whole or moment > 2 * every[-1].seconds:
            continue
        cells = [one[-1].lower, one[-1].upper, one[-1].estimate] if one else [None] * 3
        table.add(
            moment,
            *cells,
            whole[-1].lower,
            whole[-1].upper,
            whole[-1].estimate,
            f"{whole[-1].closed} of {len(records)}",
        )
    table.say(
        f"{chosen.network}: image {chosen.image} alone, and {len(records)} images in one call of "
        f"{every[-1].seconds:.1f} s."
    )
    if chosen.out:
        ends = sorted((r.bracket.lower.value, r.bracket.upper.value) for r in records)
        for name, moments in (("hamming-curves", every), ("hamming-curves-image", alone)):
            _write(chosen.out / f"{name}.csv", list(vars(moments[0])), [[*vars(m).values()] for m in moments])
        _write(chosen.out / "hamming-curves-brackets.csv", ["lower", "upper"], [[*pair] for pair in ends])
        plot(chosen.out / "hamming-curves.png", alone, every, ends)


def _write(file: Path, columns: list[str], rows: list[list[object]]) -> None:
    with file.open("w", newline="") as opened:
        lines = csv.writer(opened)
        lines.writerow(columns)
        lines.writerows(rows)


def plot(file: Path, alone: list[Moment], every: list[Moment], ends: list[tuple[float, float]]) -> None:
    made = new_figure(11, 3.4)
    if made is None:
        return
    axes = made.subplots(1, 3)
    for where, moments, title in zip(
        axes, (alone, every), ("one image", f"mean of {len(ends)} images"), strict=False
    ):
        times = [m.seconds for m in moments]
        for name, colour, style in (
            ("upper", "#b03a2e", "-"),
            ("lower", "#1f4e79", "-"),
            ("estimate", "#909090", "--"),
        ):
            values = [getattr(m, name) for m in moments]
            where.step(
                times,
                [v if math.isfinite(v) else math.nan for v in values],
                style,
                where="post",
                color=colour,
                label=name,
            )
        where.set(xscale="log", xlabel="seconds (log scale)", ylabel="pixels that may change", title=title)
        ticks = [s for s in MOMENTS if times[0] / 2 <= s <= 2 * times[-1]]
        where.set_xticks(ticks, [f"{s:g}" for s in ticks])
        where.tick_params(axis="x", which="minor", labelbottom=False)
        where.legend(frameon=False)
    places = range(len(ends))
    highest = max((high for _, high in ends if math.isfinite(high)), default=1)
    axes[2].vlines(
        places, [low for low, _ in ends], [min(high, 2 * highest) for _, high in ends], color="#b0b0b0"
    )
    axes[2].plot(places, [low for low, _ in ends], "_", color="#1f4e79", label="lower")
    axes[2].plot(
        places,
        [high if math.isfinite(high) else math.nan for _, high in ends],
        "_",
        color="#b03a2e",
        label="upper",
    )
    axes[2].set(xlabel="images in order", ylabel="pixels that may change", title="final bounds")
    axes[2].legend(frameon=False)
    save(made, file)
