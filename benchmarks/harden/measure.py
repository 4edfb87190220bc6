"""Train one architecture in several ways for the same time, then certify and attack each network.

Settings are chosen on validation data; test data are used once, after all training. Each row gives, for the
same test inputs: the accuracy (of all), the share of --count that is certified at the radius (tier fast, at
that radius alone), and for the first --radii of these by `hf.radius`: the share not attacked successfully at
the radius, the mean certified lower bound ("proved"), the mean upper bound ("witnessed"), and their ratio.
For replaced words there is no radius, and --count inputs are certified and attacked.
"""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.table import Table
from holdfast.api.radius import radius_problems
from holdfast.hardening import Recipe
from holdfast.hardening.evaluation import certified_share
from holdfast.hardening.examples import examples_of
from holdfast.hardening.hardened_model import hardened_network, user_module
from holdfast.hardening.initialisation import begin_afresh
from holdfast.hardening.training import HardeningSettings, prepare_training, train

COLUMNS = (
    "network",
    "radius",
    "training",
    "recipe",
    "budget s",
    "s",
    "epochs",
    "accuracy",
    "certified, validation",
    "proved",
    "not attacked",
    "mean proved",
    "mean witnessed",
    "witnessed / proved",
    "radii of",
)


@dataclass(frozen=True)
class Split:
    """Training, validation and test data: x (n, *shape) or lists of token ids, y (n,); test inputs in random
    order.
    """

    train: tuple[Any, Tensor]
    validation: tuple[Any, Tensor]
    test: tuple[Any, Tensor]


def options(parser: argparse.ArgumentParser, seconds: float) -> None:
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        help="training seconds of each network, evaluations on validation data included",
    )
    parser.add_argument(
        "--measure",
        type=float,
        default=300,
        help="seconds for proofs and attacks on test inputs, for each network; "
        "bounds are valid but looser at the limit",
    )
    parser.add_argument(
        "--count",
        type=int,
        default=200,
        help="test inputs that are certified at the radius; the accuracy is that of all",
    )
    parser.add_argument("--radii", type=int, default=50, help="number of these with bounds of the radius")
    parser.add_argument("--trainings", nargs="+", default=["standard", "pgd", "hardened"])
    parser.add_argument(
        "--recipe", help="recipe of the hardened network, if not the default; the options below change it"
    )
    parser.add_argument("--weight", type=float, help="weight of the bounds in its loss")
    parser.add_argument(
        "--share", type=float, help="radius that its loss bounds, as a multiple of the radius"
    )
    parser.add_argument("--rate", type=float, help="its learning rate")
    parser.add_argument("--batch", type=int, help="its batch size")
    parser.add_argument("--begin", choices=["given", "afresh"], help="its initial weights")
    parser.add_argument(
        "--warm", type=float, nargs=2, help="start and end of the radius ramp, as shares of training"
    )
    parser.add_argument(
        "--crown",
        type=float,
        nargs=2,
        help="crown-ibp: the share of CROWN bounds, at radius 0 and at the radius",
    )
    parser.add_argument(
        "--horizon",
        action="store_true",
        default=None,
        help="recurrent networks: perturb only the last frames at first",
    )
    parser.add_argument("--tight", type=float, help="weight of the penalty on the growth of intervals")
    parser.add_argument(
        "--jacobian", type=float, help="weight of the penalty on the margin's first-order decrease"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder where the tables are written")


CHANGED = ("weight", "share", "rate", "batch", "begin", "warm", "crown", "horizon", "tight", "jacobian")


def changed(recipe: Recipe, chosen: argparse.Namespace) -> Recipe:
    """The recipe of the hardened network with the options of the command line."""
    said = {name: getattr(chosen, name) for name in CHANGED if getattr(chosen, name) is not None}
    said |= {name: tuple(said[name]) for name in ("warm", "crown") if name in said}
    return replace(recipe, name=chosen.recipe or recipe.name, **said)


def shuffled(x: Tensor, y: Tensor, validation: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Split into training and validation data, in a fixed random order."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held, rest = order[:validation], order[validation:]
    return (x[rest], y[rest]), (x[held], y[held])


def side_by_side(
    table: Table,
    chosen: argparse.Namespace,
    name: str,
    make: Callable[[], nn.Module],
    split: Split,
    radius: float | None,
    recipes: Mapping[str, Recipe],
    *,
    network: Callable[[nn.Module], hf.Network] | None = None,
    freeze: tuple[str, ...] = (),
    **asked: Any,
) -> None:
    """Add a row for each way of training. recipes: by name of --trainings. radius None: replaced words."""
    for training in chosen.trainings:
        recipe = replace(recipes[training], epochs=None)
        if training == "hardened":
            recipe = changed(recipe, chosen)
        torch.manual_seed(chosen.seed)
        module = make().eval()
        build = network or (lambda made: hf.Network.from_torch(made, domain=(0, 1), device=chosen.device))
        net, at = build(module), 1.0 if radius is None else radius
        train_on, judge_by = (
            radius_problems(net, *part, **asked) for part in (split.train, split.validation)
        )
        live = prepare_training(net, freeze, words=radius is None)
        if recipe.begin == "afresh":
            begin_afresh(live.module, chosen.seed)
        found = train(live, train_on, judge_by, HardeningSettings(recipe, at, chosen.seconds, chosen.seed))
        live.load(found.state)
        made = hardened_network(net, live)
        print(f"  {name} {training}: {found.ended}, last {found.history[-1]}", flush=True)
        right, ends, many = standing(
            made, split.test, chosen, chosen.count if radius is None else chosen.radii, **asked
        )
        share = None if radius is None else proved(made, split.test, radius, chosen.count, **asked)
        at = math.inf if radius is None else radius
        lower, upper = ends.unbind(1)
        looked = [epoch.certified for epoch in found.history if epoch.certified is not None]
        finite = lower.isfinite() & upper.isfinite()
        low, high = float(lower[finite].mean()), float(upper[finite].mean())
        table.add(
            name,
            "all words" if radius is None else radius,
            training,
            recipe.name,
            chosen.seconds,
            round(found.seconds, 1),
            len(found.history),
            f"{right:.1%}",
            f"{max(looked):.1%}" if looked else "",
            f"{float((lower >= at).double().mean()) if share is None else share:.1%}",
            f"{float(((upper > at) | upper.isinf()).double().mean()):.1%}",
            low,
            high,
            high / low if low > 0 else math.nan,
            many,
        )
        if chosen.out is not None:
            torch.save(
                user_module(made).state_dict(),
                chosen.out / f"{name}-{training}-{radius or 'words'}.pt".replace(" ", "-"),
            )


def proved(net: hf.Network, test: tuple[Any, Tensor], radius: float, count: int, **asked: Any) -> float:
    """The share of the first test inputs whose class is certified in the whole ball."""
    x, y = test
    return (
        certified_share(
            net,
            [
                examples_of(problem, radius, None)
                for problem in radius_problems(net, x[:count], y[:count], **asked)
            ],
            count,
        )
        or 0.0
    )


def standing(
    net: hf.Network, test: tuple[Any, Tensor], chosen: argparse.Namespace, most: int, **asked: Any
) -> tuple[float, Tensor, int]:
    """Accuracy on all test inputs, radius bounds (count, 2) of the first, and their number."""
    x, y = test
    right = accuracy(net, x, y)
    many = min(most, len(x))
    found = hf.radius(net, x[:many], y[:many], stop=hf.Stop(seconds=chosen.measure), **asked)
    return right, torch.tensor([(b.lower.value, b.upper.value) for b in found], dtype=torch.float64), many


def accuracy(net: hf.Network, x: Any, y: Tensor) -> float:
    if isinstance(x, Tensor):
        return float((net(x).argmax(-1).cpu() == y).double().mean())
    groups: dict[int, list[int]] = {}
    for place, row in enumerate(x):
        groups.setdefault(len(row), []).append(place)
    right = 0
    for places in groups.values():
        said = (
            torch.cat(
                [net(net.embed(torch.stack([x[k] for k in some])).to(net.dtype)) for some in _parts(places)]
            )
            .argmax(-1)
            .cpu()
        )
        right += int((said == y[places]).sum())
    return right / len(x)


def _parts(places: list[int]) -> list[list[int]]:
    return [places[k : k + 1024] for k in range(0, len(places), 1024)]


def table(chosen: argparse.Namespace, name: str) -> Table:
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
    return Table(COLUMNS, chosen.out, name)
