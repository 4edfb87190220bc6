"""Digits as 4 and 8 frames, all frames perturbed, target the runner-up: every tier against the attack.

python -m benchmarks.certify anchors --tiers fast tight --count 10 --cells rnn lstm

The table gives mean radii, with the CPU seconds of one core per input in brackets; the proofs are timed
alone. With auto_LiRPA installed (see peer.py), --peer CROWN alpha-CROWN adds its columns, measured in the
same run.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

import holdfast as hf
from benchmarks.certify import interval, peer
from benchmarks.certify.measure import Column, measure, tiers
from benchmarks.certify.nets import CACHE, CELLS, Reader, Recipe, correct, trained
from benchmarks.certify.table import Table
from benchmarks.certify.unrolled import Unrolled


@dataclass(frozen=True)
class Case:
    """One network, its inputs, and the norm of the perturbation."""

    kind: str
    module: Reader
    net: hf.Network
    x: Tensor
    y: Tensor
    targets: Tensor
    norm: float
    seconds: float | None

    def ours(self, tier: str) -> Column:
        return measure(self.net, self.x, self.y, self.targets, self.norm, tier, "all", self.seconds)

    def interval(self, most: Tensor) -> Column:
        found, seconds = interval.radii(self.module, self.kind, self.x, self.y, self.targets, self.norm, most)
        return Column(found, seconds / len(self.x))

    def peer(self, method: str, guess: Tensor) -> Column:
        unrolled, frames = Unrolled(self.module, self.kind).eval(), self.x.unbind(1)
        found, seconds = peer.radii(unrolled, frames, self.y, self.targets, self.norm, guess, method=method)
        return Column(found, seconds / len(self.x))


def digits_recipe(cell: str, frames: int) -> Recipe:
    return Recipe(cell, frames, 32, data="digits", epochs=20, batch=64, rate=1e-2)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--frames", nargs="+", type=int, choices=(1, 2, 4, 8, 16, 32), default=[4, 8])
    parser.add_argument("--norms", nargs="+", type=float, default=[math.inf, 2.0, 1.0])
    parser.add_argument("--tiers", nargs="+", choices=tiers(), default=tiers())
    parser.add_argument(
        "--peer",
        nargs="*",
        choices=("CROWN", "alpha-CROWN"),
        default=[],
        help="alpha-CROWN takes minutes for an LSTM",
    )
    parser.add_argument("--count", type=int, default=10, help="inputs")
    parser.add_argument("--seconds", type=float, help="limit of every tier for one input")
    parser.add_argument(
        "--clip",
        action="store_true",
        help="perturbed pixels stay in [0, 1]; default: unrestricted, as in the papers",
    )
    parser.add_argument("--nets", type=Path, default=CACHE, help="folder of trained networks")
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    reason = peer.absent() if chosen.peer else None
    peers = [] if reason else chosen.peer
    names = [*chosen.tiers, *peers]
    ratios = [f"{name} / {names[0]}" for name in names[1:]]
    columns = [
        "cell",
        "frames",
        "norm",
        "interval",
        *names,
        *ratios,
        "attack",
        f"{chosen.tiers[-1]} / attack",
    ]
    table = Table(columns, chosen.out, "anchors")
    for cell in chosen.cells:
        for frames in chosen.frames:
            wanted = digits_recipe(cell, frames)
            module = trained(wanted, chosen.nets)
            net = hf.Network.from_torch(module, domain=(0, 1) if chosen.clip else None)
            inputs = correct(module, *wanted.inputs("test"), chosen.count)
            for norm in chosen.norms:
                case = Case(cell, module, net, *inputs, norm, chosen.seconds)
                proofs, attack = [case.ours(tier) for tier in chosen.tiers], case.ours("search")
                others = [case.peer(method, proofs[0].radii) for method in peers]
                gains = [c.mean / proofs[0].mean for c in [*proofs, *others][1:]]
                last = [attack, proofs[-1].mean / attack.mean]
                table.add(
                    cell, frames, f"{norm:g}", case.interval(attack.radii), *proofs, *others, *gains, *last
                )
    if reason:
        table.say(f"No peer column: {reason}.")
