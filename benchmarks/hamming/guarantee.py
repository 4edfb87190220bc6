"""DeepTRE's Appendix A.2: what a grid and a Lipschitz constant guarantee together.

python -m benchmarks.hamming guarantee --count 10 --levels 2 5 17

Statement. Let S be a set of t pixels, and X_S the box of all images that differ from the input in S only. Let
L_S be an upper bound of the dual norm of the margin's gradient over X_S, so that |m(x') - m(x)| <= L_S ||x' -
x||_1 there. Every point of X_S has a point of a grid with `levels` values for each pixel at a distance of at
most t h / 2 with h = 1 / (levels - 1). If m > L_S t h / 2 at every grid point, no change of S changes the
class; if this holds for all sets of t pixels, d_m >= t.

L_S is holdfast's proved constant (`slope_bound`), one for each set, so no constant is assumed. --constant adds a column
with a constant that is given for all sets, as in the paper; that column holds only if the constant does. The margins at
the grid points are evaluated in float64, and a relative error of 1e-6 is allowed for; the result is certified
up to that evaluation. Digits (8 x 8), t = 1. "grid alone" is the paper's estimate; "bounds alone" certifies each
box X_S by bound propagation (CROWN), without a grid.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.certify.table import Table
from benchmarks.hamming.nets import Case, case
from holdfast.errors import BadInput
from holdfast.lipschitz.metric_bound import bound_score_and_slope
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Box
from holdfast.result import Key

EVALUATION_ERROR = 1e-6  # Relative error allowed for the margins at grid points, far above that of float64.


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=10, help="correctly classified images")
    parser.add_argument("--levels", nargs="+", type=int, default=[2, 5, 17])
    parser.add_argument(
        "--constant",
        type=float,
        help="a Lipschitz constant of the margin in the 1-norm that is taken as true",
    )
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    if chosen.constant is not None and not 0 < chosen.constant < math.inf:
        raise BadInput(f"--constant {chosen.constant:g}: a Lipschitz constant is a positive number.")
    asked = case("digits", chosen.data)
    x, y = asked.right(chosen.count)
    table = Table(
        [
            "levels",
            "grid alone: d_m >= 1",
            "grid and constant: proved",
            *([] if chosen.constant is None else [f"grid and the given constant {chosen.constant:g}"]),
            "bounds alone: proved",
            "CPU-s an image",
        ],
        chosen.out,
        "guarantee",
    )
    bounds = [pixel_bounds(asked, image, label) for image, label in zip(x, y, strict=True)]
    alone = sum(bool((least > 0).all()) for least, _, _ in bounds)
    for levels in chosen.levels:
        began = time.process_time()
        margins = [grid_margins(asked, image, label, levels) for image, label in zip(x, y, strict=True)]
        spent = (time.process_time() - began) / len(x) + sum(s for _, _, s in bounds) / len(x)
        estimated = sum(bool((m > 0).all()) for m in margins)
        proved = sum(holds(m, slope, levels) for m, (_, slope, _) in zip(margins, bounds, strict=True))
        count = len(x)
        given = []
        if chosen.constant is not None:
            constants = [torch.full_like(slope, chosen.constant) for _, slope, _ in bounds]
            held = sum(holds(m, slope, levels) for m, slope in zip(margins, constants, strict=True))
            given = [f"{held} of {count}"]
        table.add(
            levels, f"{estimated} of {count}", f"{proved} of {count}", *given, f"{alone} of {count}", spent
        )


def holds(margins: Tensor, slope: Tensor, levels: int) -> bool:
    """Whether every pixel's grid margins (pixels, levels) exceed its constant (pixels,) times half the step."""
    needed = slope * (1 / (levels - 1)) / 2
    size = margins.abs().amax().clamp_min(1)
    return bool((margins.amin(1) > needed * (1 + EVALUATION_ERROR) + EVALUATION_ERROR * size).all())


def pixel_bounds(asked: Case, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor, float]:
    """For each pixel: the certified least margin and slope (pixels,) while it alone takes any value in [0, 1],
    and CPU seconds.
    """
    began = time.process_time()
    pixels = image[0].numel()
    chosen = torch.eye(pixels, dtype=torch.bool).reshape(pixels, 1, *image.shape[1:]).expand(-1, *image.shape)
    centre = image.expand(pixels, *image.shape)
    region = Box(centre, torch.where(chosen, 0.0, centre), torch.where(chosen, 1.0, centre))
    labels = label.expand(pixels)
    keys = tuple(Key(i) for i in range(pixels))
    problem = Problem(asked.net, region, Robustness(labels), "worst", keys)
    found = bound_score_and_slope(problem, norm=1.0)
    return found.least, found.slope, time.process_time() - began


def grid_margins(asked: Case, image: Tensor, label: Tensor, levels: int) -> Tensor:
    """(pixels, levels) float64: the margin with one pixel at each value."""
    pixels = image[0].numel()
    flat = image.flatten().double().expand(pixels, levels, -1).clone()
    values = torch.linspace(0, 1, levels, dtype=torch.float64)
    rows = torch.arange(pixels)
    flat[rows, :, rows] = values
    changed = flat.reshape(pixels * levels, *image.shape)
    twin = asked.net.double(changed[:1])
    assert twin is not None
    outputs = twin(changed)
    margin = Robustness(label.expand(len(changed))).score(outputs)
    if not math.isfinite(float(margin.sum())):
        raise BadInput("the network's outputs are not finite.")
    return margin.reshape(pixels, levels)
