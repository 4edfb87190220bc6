"""The digits CNN: changed pixels by every search, bounds for each image, the paper's rule.

python -m benchmarks.hamming digits --count 100 --seconds 60

Searches run on all images in one call, bounds one image after the other. `changed` is the number of pixels
that change the class, so d_m, the number of pixels that may change safely, is at most one less. Adversarial
examples of published attacks are replayed through our network and their changed pixels counted again.
"""

import argparse
import statistics

import torch
from torch import Tensor

from benchmarks.certify.table import Table
from benchmarks.hamming.measure import (
    FOUND,
    beside,
    draw_attacks,
    listed,
    options,
    peer_options,
    prove,
    search,
    wake,
)
from benchmarks.hamming.nets import Case, case
from benchmarks.hamming.peers import OWN
from holdfast.hamming.greedy import Greedy
from holdfast.hamming.grid import Grid


def single_subspace(asked: Case, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The paper's lower bound at t = 1, over the smallest and largest value of each pixel.

    Returns: (images, 2) bool: the pixel value with the largest drop of the confidence, or of the logit, keeps
    the class. (images,) bool: some pixel value changes the class.
    """
    safe, broken = [], []
    for image, label in zip(x.to(asked.net.device), y, strict=True):
        pixels = image[0].numel()
        every = torch.eye(pixels, device=image.device, dtype=torch.bool).reshape(pixels, 1, *image.shape[1:])
        changed = torch.cat([torch.where(every, value, image) for value in (0.0, 1.0)])
        outputs = asked.net(changed)
        keeps = outputs.argmax(1) == label
        safe.append([bool(keeps[score[:, label].argmin()]) for score in (outputs.softmax(1), outputs)])
        broken.append(not bool(keeps.all()))
    return torch.tensor(safe), torch.tensor(broken)


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, count=100, seconds=60)
    peer_options(
        parser,
        [
            *OWN,
            "sigma-zero",
            "VFGA",
            "FMN-L0",
            "Brendel-Bethge L0",
            "Pointwise",
            "salt and pepper",
            "JSMA",
            "OnePixel",
            "Pixle",
        ],
    )


def main(chosen: argparse.Namespace) -> None:
    asked = case("digits", chosen.data, chosen.device)
    x, y = asked.right(chosen.count)
    table = Table(["changed pixels by", *FOUND], chosen.out, "hamming-digits")
    wake(asked)
    found = {
        "Greedy": search(asked, x, y, Greedy()),
        "Greedy, beam 1": search(asked, x, y, Greedy(beam=1, lanes=1)),
        "Grid, t = 1, margin": search(asked, x, y, Grid(t=1)),
        "Grid, t = 1, confidence": search(asked, x, y, Grid(t=1, rule="confidence")),
    }
    for name, result in found.items():
        table.add(name, *result.cells())
    found |= beside(table, asked, x, y, chosen.peers)
    if chosen.out:
        draw_attacks(found, chosen.out / "hamming-digits")

    proofs = [prove(asked, image, label, chosen.seconds) for image, label in zip(x, y, strict=True)]
    listed(proofs, chosen.out, "hamming-digits-brackets")
    closed = [p for p in proofs if p.bracket.closed]
    lower, upper = (
        statistics.mean(values)
        for values in ([p.bracket.lower.value for p in proofs], [p.bracket.upper.value for p in proofs])
    )
    spent = [p.seconds for p in proofs]
    table.say(
        f"Bounds: {len(closed)} of {len(proofs)} images closed, {statistics.mean(spent):.2f} s/image "
        f"(median {statistics.median(spent):.2f}, "
        f"most {max(spent):.1f}); mean d_m between {lower:.2f} and {upper:.2f}."
    )
    if closed:
        exact = statistics.mean(p.bracket.upper.value + 1 for p in closed)
        table.say(
            f"Fewest pixels that change the class, over images with closed bounds: mean {exact:.3f}, exact."
        )
    safe, broken = single_subspace(asked, x, y)
    witnessed = broken | torch.tensor([p.bracket.upper.value == 0 for p in proofs])
    for place, what in enumerate(("confidences", "logits")):
        wrong = int((safe[:, place] & witnessed).sum())
        table.say(
            f"The paper's rule on {what} declares {int(safe[:, place].sum())} of {len(x)} images safe at t "
            f"= 1; for {wrong} of these one "
            f"pixel changes the class, as it does for {int(witnessed.sum())} images in all."
        )
