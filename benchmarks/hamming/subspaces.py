"""DeepTRE's Figures 1 to 4: bounds of the maximum safe radius against t, the number of changed pixels.

python -m benchmarks.hamming subspaces --network sdnn --count 20 --t 2 --out DIR

For t = 1, 2, ... the method evaluates all sets of at most t pixels over a grid of values (`Grid`, the paper's
rule). As in the paper, the lower bound l_t is t where no grid point of the sets changes the class, the upper
bound u_t comes from accumulated and tightened changes, and an image has converged where both are equal. The
lower bound holds for the grid only: it is an estimate, not proved. U_c and U_r of Definition 4 are the mean of
(l_t + u_t) / 2 and of (u_t - l_t) / 2 over the images.

Networks: digits (8 x 8 images), sdnn (MNIST averaged to 14 x 14, the paper's sDNN) and dnn0 (MNIST 28 x 28,
the paper's DNN-0); both are trained on the first --train images. Seconds are CPU seconds for one image, from t
= 1 on. The figure has one panel with the means for each t, box plots of the seconds, and for each t a panel
with all images in the order of u_1, as in the paper's Figures 3 and 4.
"""

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.charts import COLOURS, new_figure, save
from benchmarks.hamming.measure import clock, question
from benchmarks.hamming.nets import Case, case, mnist, trained
from holdfast.hamming.grid import Grid


@dataclass(frozen=True)
class Interval:
    """Bounds of d_m of one image after t, and the seconds spent."""

    lower: int
    upper: int
    seconds: float

    @property
    def converged(self) -> bool:
        return self.lower == self.upper

    @property
    def centre(self) -> float:
        return (self.lower + self.upper) / 2

    @property
    def radius(self) -> float:
        return (self.upper - self.lower) / 2


def small_cnn(side: int) -> nn.Module:
    """The paper does not print its networks (an appendix of its long version does); this is ours."""
    half = -(-side // 2)
    quarter = -(-half // 2)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * quarter * quarter, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def resized(x: Tensor, side: int) -> Tensor:
    """MNIST images (n, 1, 28, 28) averaged to (n, 1, side, side)."""
    return nn.functional.adaptive_avg_pool2d(x, side) if side != 28 else x


def mnist_case(side: int, data: Path, train: int, epochs: int, device: str = "cpu") -> Case:
    x_train, y_train, x, y = mnist(data)
    x_train, x = resized(x_train[:train], side), resized(x, side)
    name = f"mnist_subspaces_{side}_{train}_{epochs}"
    module = trained(name, lambda: small_cnn(side), x_train, y_train[:train], epochs=epochs)
    return Case(hf.Network.from_torch(module, domain=(0, 1), device=device), x_train, x, y, module)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--network", choices=("digits", "sdnn", "dnn0"), default="digits")
    parser.add_argument("--count", type=int, default=20, help="correctly classified images")
    parser.add_argument("--t", type=int, default=2, help="largest number of pixels in a set")
    parser.add_argument("--train", type=int, default=10000, help="training images of sdnn and dnn0")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="folder for the table and the figure")


def main(chosen: argparse.Namespace) -> None:
    if chosen.network == "digits":
        asked = case("digits", chosen.data, chosen.device)
    else:
        side = 14 if chosen.network == "sdnn" else 28
        asked = mnist_case(side, chosen.data, chosen.train, chosen.epochs, chosen.device)
    x, y = asked.right(chosen.count)
    columns = ["network", "t", "images", "converged", "mean lower", "mean upper", "U_c", "U_r"]
    columns += ["seconds an image: median", "largest"]
    table = Table(columns, chosen.out, f"subspaces-{chosen.network}")
    rounds: list[list[Interval]] = []
    for t in range(1, chosen.t + 1):
        rounds.append(evaluate(asked, x, y, t, rounds[-1] if rounds else None))
        found = rounds[-1]
        table.add(
            chosen.network,
            t,
            len(found),
            sum(one.converged for one in found),
            statistics.mean(one.lower for one in found),
            statistics.mean(one.upper for one in found),
            statistics.mean(one.centre for one in found),
            statistics.mean(one.radius for one in found),
            statistics.median(one.seconds for one in found),
            max(one.seconds for one in found),
        )
    table.say(f"Accuracy {asked.accuracy:.2%}. Lower bounds are the grid's: estimates, not proofs.")
    first = statistics.mean(one.centre for one in rounds[0])
    last = statistics.mean(one.centre for one in rounds[-1])
    table.say(f"U_c at t = 1 is {first:.3f}, at t = {chosen.t} {last:.3f}.")
    if chosen.out:
        draw(rounds, chosen.out / f"subspaces-{chosen.network}")


def evaluate(asked: Case, x: Tensor, y: Tensor, t: int, before: list[Interval] | None) -> list[Interval]:
    """The intervals after all sets of t pixels; images that have converged are not evaluated again."""
    found = []
    for index, (image, label) in enumerate(zip(x, y, strict=True)):
        known = before[index] if before else None
        if known is not None and known.converged:
            found.append(known)
            continue
        began = clock(asked.net)
        (record,) = hf.solve([question(asked, image[None], label[None])], [Grid(t=t, rule="confidence")])
        spent = clock(asked.net) - began
        units = image[0].numel()
        upper = int(min(record.bracket.upper.value, units))
        found.append(Interval(min(t, upper), upper, spent))
    return found


def draw(rounds: list[list[Interval]], file: Path) -> None:
    made = new_figure(3.4 * (2 + len(rounds)), 3.2)
    if made is None:
        return
    axes = made.subplots(1, 2 + len(rounds))
    steps = list(range(1, len(rounds) + 1))
    for name, colour in (("upper", COLOURS[5]), ("lower", COLOURS[0]), ("centre", COLOURS[6])):
        means = [statistics.mean(getattr(one, name) for one in found) for found in rounds]
        axes[0].plot(steps, means, marker="o", color=colour, label=name)
    axes[0].set(xlabel="t", ylabel="pixels that may change", title="mean of all images", xticks=steps)
    axes[0].legend(frameon=False, fontsize=8)
    axes[1].boxplot([[one.seconds for one in found] for found in rounds])
    axes[1].set(xlabel="t", ylabel="CPU seconds an image", yscale="log", title="time")
    order = sorted(range(len(rounds[0])), key=lambda i: rounds[0][i].upper)
    for t, (where, found) in enumerate(zip(axes[2:], rounds, strict=True), 1):
        _draw_images(where, [found[i] for i in order], t)
    save(made, file)


def _draw_images(axes: Any, found: list[Interval], t: int) -> None:
    """All images in order: the interval, its centre, and which have converged."""
    places = range(len(found))
    axes.vlines(places, [one.lower for one in found], [one.upper for one in found], color="#b0b0b0")
    axes.plot(places, [one.upper for one in found], "_", color=COLOURS[5], label="upper")
    axes.plot(places, [one.lower for one in found], "_", color=COLOURS[0], label="lower")
    done = [place for place in places if found[place].converged]
    axes.plot(done, [found[place].upper for place in done], ".", color=COLOURS[2], label="converged")
    axes.set(xlabel="images by upper bound at t = 1", title=f"t = {t}", ylim=(-0.5, None))
    axes.legend(frameon=False, fontsize=7)
