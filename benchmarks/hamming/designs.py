"""DeepTRE's Figures 10 and 11: seven MNIST designs with and without batch norm, and the paper's three findings.

python -m benchmarks.hamming designs --count 50 --train 8000 --epochs 3 --seeds 2 --out DIR

For each network the table gives the global pair U_c and U_r at t = 1 (`Grid`, the paper's rule), the means and
standard deviations of d_m's estimate over images (Figure 11), and the mean number of pixels that `Greedy`
changes (beam 1) minus one, an upper bound of d_m that is closer. All networks are evaluated on the same images:
those that every network classifies correctly. The paper prints its designs in an appendix of its long version.
These are ours: DNN-1 to DNN-7 have more and more convolutions, then dense layers.

Findings tested, each as a mean of paired differences over images and seeds with the normal interval at 95 %:
deep networks are less robust (DNN-7 against the mean of DNN-1 to DNN-5); one more convolution makes a network
less robust (DNN-6 against DNN-5); batch norm improves robustness (every design with against without it). The
interval is over images; other training seeds move a network as well, which "seeds" shows.
"""

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.charts import draw_bars, new_figure, save
from benchmarks.hamming.measure import search
from benchmarks.hamming.nets import Case, mnist, trained
from benchmarks.hamming.subspaces import Interval, evaluate
from holdfast.hamming.greedy import Greedy

# Convolutions and dense hidden layers of each design; the first two convolutions have stride 2.
DESIGNS = {
    "DNN-1": (1, 0),
    "DNN-2": (2, 0),
    "DNN-3": (2, 1),
    "DNN-4": (3, 1),
    "DNN-5": (4, 1),
    "DNN-6": (5, 1),
    "DNN-7": (7, 2),
}
CHANNELS, HIDDEN = 16, 64


def build(name: str, *, norm: bool, seed: int) -> nn.Module:
    """The network; another seed starts it at other weights."""
    convolutions, dense = DESIGNS[name]
    torch.manual_seed(1000 + seed)
    layers: list[nn.Module] = []
    before, side = 1, 28
    for place in range(convolutions):
        stride = 2 if place < 2 else 1
        layers.append(nn.Conv2d(before, CHANNELS, 3, stride=stride, padding=1))
        layers += [nn.BatchNorm2d(CHANNELS)] if norm else []
        layers.append(nn.ReLU())
        before, side = CHANNELS, side // stride
    layers.append(nn.Flatten())
    features = before * side * side
    for _ in range(dense):
        layers += [nn.Linear(features, HIDDEN), nn.ReLU()]
        features = HIDDEN
    return nn.Sequential(*layers, nn.Linear(features, 10))


@dataclass(frozen=True)
class Evaluated:
    """One trained network on the common images."""

    accuracy: float
    intervals: list[Interval]
    greedy: Tensor  # (images,) pixels that may change, at most

    @property
    def centres(self) -> list[float]:
        return [one.centre for one in self.intervals]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--count", type=int, default=50, help="images that every network classifies correctly"
    )
    parser.add_argument("--train", type=int, default=8000, help="training images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1, help="networks of each design")
    parser.add_argument("--designs", nargs="+", choices=list(DESIGNS), default=list(DESIGNS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="folder for the table and the figure")


def main(chosen: argparse.Namespace) -> None:
    x_train, y_train, x, y = mnist(chosen.data)
    x_train, y_train = x_train[: chosen.train], y_train[: chosen.train]
    cases: dict[tuple[str, bool, int], Case] = {}
    for name in chosen.designs:
        for norm in (False, True):
            for seed in range(chosen.seeds):
                key = f"mnist_design_{name}_{'bn' if norm else 'plain'}_{seed}_{chosen.train}_{chosen.epochs}"
                module = trained(
                    key,
                    lambda name=name, norm=norm, seed=seed: build(name, norm=norm, seed=seed),  # type: ignore[misc]
                    x_train,
                    y_train,
                    epochs=chosen.epochs,
                    device=chosen.device,
                )
                net = hf.Network.from_torch(module, domain=(0, 1), device=chosen.device)
                cases[name, norm, seed] = Case(net, x_train, x, y, module.to(chosen.device))
    first = x[: 8 * chosen.count].to(chosen.device)
    right = torch.stack([case.net(first).argmax(1).cpu() == y[: len(first)] for case in cases.values()]).all(
        0
    )
    rows = right.nonzero()[:, 0][: chosen.count]
    images, labels = x[rows], y[rows]
    columns = ["network", "batch norm", "accuracy", "U_c", "U_r", "sd of d_m's estimate", "converged"]
    table = Table([*columns, "Greedy: d_m at most", "of each seed"], chosen.out, "designs")
    found: dict[tuple[str, bool], list[Evaluated]] = {}
    for name in chosen.designs:
        for norm in (False, True):
            runs = [evaluated(cases[name, norm, seed], images, labels) for seed in range(chosen.seeds)]
            found[name, norm] = runs
            intervals = [one for run in runs for one in run.intervals]
            each = [float(run.greedy.mean()) for run in runs]
            table.add(
                name,
                "yes" if norm else "no",
                f"{statistics.mean(run.accuracy for run in runs):.2%}",
                statistics.mean(one.centre for one in intervals),
                statistics.mean(one.radius for one in intervals),
                statistics.pstdev(one.centre for one in intervals),
                f"{sum(one.converged for one in intervals)} of {len(intervals)}",
                statistics.mean(each),
                ", ".join(f"{mean:.2f}" for mean in each),
            )
    table.say(
        f"{len(rows)} images, {chosen.train:,} training images, {chosen.epochs} epochs, seeds {chosen.seeds}."
    )
    for line in findings(found):
        table.say(line)
    if chosen.out:
        draw(found, chosen.out / "designs")


def evaluated(case: Case, images: Tensor, labels: Tensor) -> Evaluated:
    changed = search(case, images, labels, Greedy(beam=1, lanes=1)).changed
    return Evaluated(
        case.accuracy, evaluate(case, images, labels, 1, None), torch.tensor(changed, dtype=torch.float64) - 1
    )


def findings(found: dict[tuple[str, bool], list[Evaluated]]) -> list[str]:
    """One line for each of the paper's three findings, and one for accuracy against robustness."""

    def greedy(name: str, norm: bool) -> Tensor:
        return torch.cat([run.greedy for run in found[name, norm]])

    names = [name for name in DESIGNS if (name, False) in found]
    shallow = [name for name in names if name <= "DNN-5"]
    lines = []
    for norm in (False, True):
        about = "with" if norm else "without"
        if "DNN-7" in names and shallow:
            usual = torch.stack([greedy(name, norm) for name in shallow]).mean(0)
            lines.append(
                _finding(
                    f"DNN-7 minus the mean of {shallow[0]} to {shallow[-1]}, {about} batch norm",
                    greedy("DNN-7", norm) - usual,
                )
            )
        if {"DNN-5", "DNN-6"} <= set(names):
            difference = greedy("DNN-6", norm) - greedy("DNN-5", norm)
            lines.append(_finding(f"DNN-6 minus DNN-5, {about} batch norm", difference))
    gains = {name: greedy(name, True) - greedy(name, False) for name in names}
    better = sum(float(gain.mean()) > 0 for gain in gains.values())
    lines.append(
        _finding("Batch norm: with minus without, all designs", torch.cat(list(gains.values())))
        + f" Designs where batch norm is better: {better} of {len(gains)}."
    )
    networks = [run for runs in found.values() for run in runs]
    if len({run.accuracy for run in networks}) > 2:
        correlation = statistics.correlation(
            [run.accuracy for run in networks], [float(run.greedy.mean()) for run in networks]
        )
        lines.append(
            f"Correlation of accuracy and Greedy's mean over {len(networks)} networks: {correlation:.2f}."
        )
    return lines


def _finding(what: str, difference: Tensor) -> str:
    mean = float(difference.mean())
    spread = 1.96 * float(difference.std()) / len(difference) ** 0.5
    return f"{what}: {mean:+.2f} ± {spread:.2f} pixels."


def draw(found: dict[tuple[str, bool], list[Evaluated]], file: Path) -> None:
    made = new_figure(10, 3.4)
    if made is None:
        return
    names = [name for name, norm in found if not norm]
    pairs, estimates = made.subplots(1, 2)
    series, errors = {}, {}
    for norm, about in ((False, "without batch norm"), (True, "with batch norm")):
        intervals = [[one for run in found[name, norm] for one in run.intervals] for name in names]
        series[about] = [statistics.mean(one.centre for one in some) for some in intervals]
        errors[about] = [statistics.mean(one.radius for one in some) for some in intervals]
    draw_bars(pairs, names, series, errors)
    pairs.set(ylabel="U_c ± U_r at t = 1, pixels", ylim=(0, None))
    greedy, spread = {}, {}
    for norm, about in ((False, "without batch norm"), (True, "with batch norm")):
        values = [torch.cat([run.greedy for run in found[name, norm]]) for name in names]
        greedy[about] = [float(some.mean()) for some in values]
        spread[about] = [float(some.std()) for some in values]
    draw_bars(estimates, names, greedy, spread)
    estimates.set(ylabel="Greedy: d_m at most, mean and sd", ylim=(0, None))
    save(made, file)
