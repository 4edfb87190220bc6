"""A CNN on CIFAR-10: changed pixels by every search. All colour channels of a pixel count as one change.

python -m benchmarks.hamming cifar --count 30

The network is trained on 10,000 images only. sigma-zero, VFGA and FMN minimise the number of changed
channels, not of pixels; the table therefore gives changed channels ("colours") as well.
"""

import argparse

from benchmarks.certify.table import Table
from benchmarks.hamming.measure import (
    FOUND,
    beside,
    draw_attacks,
    options,
    peer_options,
    prove,
    search,
    wake,
)
from benchmarks.hamming.nets import case
from benchmarks.hamming.peers import OWN
from holdfast.hamming.greedy import Greedy


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, count=30, seconds=0)
    peer_options(parser, [*OWN, "sigma-zero", "VFGA", "FMN-L0", "Brendel-Bethge L0", "Pointwise"])


def main(chosen: argparse.Namespace) -> None:
    asked = case("cifar", chosen.data, chosen.device)
    x, y = asked.right(chosen.count)
    table = Table(["changed pixels by", *FOUND, "mean colours", "median"], chosen.out, "hamming-cifar")
    wake(asked)
    greedy = search(asked, x, y, Greedy())
    table.add("Greedy", *greedy.cells(), None, None)
    colours = search(asked, x, y, Greedy(), unit="number")
    found, mean, median, seconds = colours.cells()
    table.add("Greedy on colours", found, None, None, seconds, mean, median)
    others = beside(table, asked, x, y, chosen.peers, units=("pixel", "number"))
    if chosen.out:
        draw_attacks({"Greedy": greedy, **others}, chosen.out / "hamming-cifar")
    table.say(f"Accuracy {asked.accuracy:.1%} on {len(asked.x)} test images.")
    if chosen.seconds:
        lower = [
            prove(asked, image, label, chosen.seconds).bracket.lower.value
            for image, label in zip(x, y, strict=True)
        ]
        table.say(
            f"Certified within {chosen.seconds:g} s: "
            + ", ".join(f"t >= {t}: {sum(v >= t for v in lower)}" for t in (1, 2, 3))
            + "."
        )
