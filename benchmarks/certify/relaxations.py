"""POPQORN's Appendix B.1: certified radii with planes, lines or constants for the products of the gates.

python -m benchmarks.certify relaxations --cells lstm --frames 4 8 --count 10

The products sigmoid(v) z and sigmoid(v) tanh(z) of a gated cell are bounded by

    planes             a v + b z + c with slopes in closed form (holdfast's),
    planes by descent  a v + b z + c with slopes by subgradient descent, as in the paper's Appendix A.4,
    lines              a v + c or b z + c, whichever lies closer,
    constants          c.

Every intercept is the exact one for its slopes, so all four are sound. Only these two functions differ:
sigmoid and tanh of one pre-activation have holdfast's lines in all columns. As in the paper, intermediate bounds come from
backward passes; the last column adds the affine forms with which tier fast begins today. The descent minimises the mean
distance between plane and function over the box, for the lower and the upper plane apart:

    minimise over (a, b):  (a, b) . middle + max over the box of f(v, z) - a v - b z,

which is convex; a subgradient is middle - (the maximiser). Digits as frames, all frames perturbed, target the
runner-up.
"""

import argparse
import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import holdfast as hf
from benchmarks.certify.anchors import digits_recipe
from benchmarks.certify.measure import backward_passes_only, measure
from benchmarks.certify.nets import CACHE, CELLS, correct, trained
from benchmarks.certify.table import Table
from benchmarks.charts import draw_bars, new_figure, save
from holdfast.bounding.relax.base import Point, Relaxation, intercept
from holdfast.bounding.relax.gates import SigmoidTanh, SigmoidTimes

Slopes = Callable[[Relaxation, Point, Point], tuple[Point, Point]]
PRODUCTS = (SigmoidTimes, SigmoidTanh)
CLOSED_FORM = {kind: kind.slopes for kind in PRODUCTS}
DESCENT_STEPS = 30  # Subgradient steps for each plane (chosen by hand).
FIRST_STEP = 0.2  # Size of the first step, in units of the function's range over the box (chosen by hand).


def closed_form(relaxation: Relaxation, lower: Point, upper: Point) -> tuple[Point, Point]:
    return CLOSED_FORM[type(relaxation)](relaxation, lower, upper)  # type: ignore[index, arg-type]


def constants(relaxation: Relaxation, lower: Point, upper: Point) -> tuple[Point, Point]:
    level = tuple(torch.zeros_like(end) for end in lower)
    return level, level


def lines(relaxation: Relaxation, lower: Point, upper: Point) -> tuple[Point, Point]:
    """Slopes with one zero: of the line in v and the line in z the one whose strip is narrower."""
    (a, b), _ = closed_form(relaxation, lower, upper)
    zero = torch.zeros_like(a)
    first, second = (torch.nan_to_num(a), zero), (zero, torch.nan_to_num(b))
    widths = [high - low for low, high in (intercept(relaxation, lower, upper, s) for s in (first, second))]
    better = widths[0] <= widths[1]
    chosen = tuple(torch.where(better, one, other) for one, other in zip(first, second, strict=True))
    return chosen, chosen


def descended(relaxation: Relaxation, lower: Point, upper: Point) -> tuple[Point, Point]:
    """Slopes of the lower and the upper plane by subgradient descent (POPQORN, Appendix A.4)."""
    start = tuple(torch.nan_to_num(s, 0.0, 0.0, 0.0) for s in closed_form(relaxation, lower, upper)[0])
    return tuple(_descend(relaxation, lower, upper, start, sign) for sign in (-1.0, 1.0))  # type: ignore[return-value]


def _descend(relaxation: Relaxation, lower: Point, upper: Point, start: Point, sign: float) -> Point:
    """sign 1: the upper plane; sign -1: the lower one."""
    width = [high - low for low, high in zip(lower, upper, strict=True)]
    middle = [low / 2 + high / 2 for low, high in zip(lower, upper, strict=True)]
    level = tuple(torch.zeros_like(end) for end in lower)
    low, high = intercept(relaxation, lower, upper, level)
    size = high - low
    slope, best = start, start
    least = torch.full_like(size, torch.inf)
    for step in range(DESCENT_STEPS + 1):
        points = relaxation.candidates(lower, upper, slope)
        reach = torch.stack(
            [
                sign * (relaxation.function(*p) - sum(s * v for s, v in zip(slope, p, strict=True)))
                for p in points
            ]
        )
        top = reach.max(0)
        # Twice the half distance: the plane's height over the middle of the box.
        height = top.values + sign * sum(s * m for s, m in zip(slope, middle, strict=True))
        better = height < least
        least = torch.where(better, height, least)
        best = tuple(torch.where(better, s, b) for s, b in zip(slope, best, strict=True))
        rate = FIRST_STEP * size / math.sqrt(step + 1)
        moved = []
        for place, s in enumerate(slope):
            furthest = torch.stack([p[place] for p in points]).gather(0, top.indices[None])[0]
            wide = width[place] > 1e-9
            # In units of the box, position 0 .. 1 and slope s * width, the subgradient is 1/2 - position.
            relative = torch.where(
                wide, (middle[place] - furthest) / torch.where(wide, width[place], 1.0), 0.0
            )
            moved.append(s - sign * rate * relative / torch.where(wide, width[place], 1.0))
        slope = tuple(torch.nan_to_num(m, 0.0, 0.0, 0.0) for m in moved)
    return best


RELAXATIONS: dict[str, Slopes] = {
    "constants": constants,
    "lines": lines,
    "planes by descent": descended,
    "planes": closed_form,
}


@contextlib.contextmanager
def products_bounded_by(slopes: Slopes) -> Iterator[None]:
    """Bound the products of the gates with these slopes; nothing else changes."""
    try:
        for kind in PRODUCTS:
            kind.slopes = slopes  # type: ignore[method-assign, assignment]
        yield
    finally:
        for kind, own in CLOSED_FORM.items():
            kind.slopes = own  # type: ignore[method-assign]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cells", nargs="+", choices=[c for c in CELLS if c != "rnn"], default=["lstm"])
    parser.add_argument("--frames", nargs="+", type=int, choices=(1, 2, 4, 8, 16, 32), default=[4, 8])
    parser.add_argument("--norms", nargs="+", type=float, default=[math.inf, 2.0, 1.0])
    parser.add_argument("--count", type=int, default=10, help="inputs")
    parser.add_argument("--nets", type=Path, default=CACHE, help="folder of trained networks")
    parser.add_argument("--out", type=Path, help="folder for the table and the figure")


def main(chosen: argparse.Namespace) -> None:
    columns = ["cell", "frames", "norm", *RELAXATIONS, "planes / lines", "planes / constants"]
    table = Table([*columns, "descent / closed form", "with affine forms"], chosen.out, "relaxations")
    bars: dict[str, list[float]] = {name: [] for name in RELAXATIONS}
    groups: list[str] = []
    for cell in chosen.cells:
        for frames in chosen.frames:
            wanted = digits_recipe(cell, frames)
            module = trained(wanted, chosen.nets)
            net = hf.Network.from_torch(module)
            x, y, targets = correct(module, *wanted.inputs("test"), chosen.count)
            for norm in chosen.norms:
                found = {}
                for name, slopes in RELAXATIONS.items():
                    with products_bounded_by(slopes), backward_passes_only():
                        found[name] = measure(net, x, y, targets, norm, "fast", "all")
                today = measure(net, x, y, targets, norm, "fast", "all")
                mean = {name: column.mean for name, column in found.items()}
                ratios = [mean["planes"] / mean["lines"], mean["planes"] / mean["constants"]]
                ratios.append(mean["planes by descent"] / mean["planes"])
                table.add(cell, frames, f"{norm:g}", *(str(c) for c in found.values()), *ratios, str(today))
                groups.append(f"{cell} {frames}\nl{norm:g}")
                for name in RELAXATIONS:
                    bars[name].append(mean[name] / mean["planes"])
    if chosen.out:
        draw(groups, bars, chosen.out / "relaxations")


def draw(groups: list[str], bars: dict[str, list[float]], file: Path) -> None:
    made = new_figure(1.1 * len(groups) + 2, 3.2)
    if made is None:
        return
    axes = made.subplots()
    draw_bars(axes, groups, bars)
    axes.set_ylabel("certified radius / radius with planes")
    axes.set_title("Bounds of the gates' products", fontsize=10)
    save(made, file)
