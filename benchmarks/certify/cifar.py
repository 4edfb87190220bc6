"""A residual network on CIFAR-10: seconds, memory and maximum-norm radii of single images.

python -m benchmarks.certify cifar --count 5
python -m benchmarks.certify cifar --tiers fast tight --seconds 60 --device cuda

The network has seven 3x3 convolutions in three stages, about 74,000 neurons. It is trained on 10,000 images
only, in about three minutes of one core. Images are certified one by one, so that the seconds are those of
one image; the attack is timed separately.
"""

import argparse
import math
import resource
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.measure import proofs, tiers
from benchmarks.certify.nets import accuracy, correct
from benchmarks.certify.table import Table
from benchmarks.hamming.nets import cifar, shifted, trained
from holdfast.api.radius import default_methods


class Block(nn.Module):
    """relu(conv(relu(conv(x))) + x); where the size changes, a 1x1 convolution is applied to x."""

    def __init__(self, read: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(read, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made))
        self.short = nn.Identity() if read == made and stride == 1 else nn.Conv2d(read, made, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.short(x))


def residual(width: int = 16) -> nn.Module:
    """(batch, 3, 32, 32) -> (batch, 10)."""
    module = nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # trains faster on a CPU


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tiers", nargs="+", choices=tiers(), default=["fast"])
    parser.add_argument("--count", type=int, default=5, help="images")
    parser.add_argument("--seconds", type=float, help="limit of every tier for one image")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    x_train, y_train, x, y = cifar(chosen.data)
    module = trained(
        "cifar_residual", residual, x_train, y_train, epochs=5, augment=shifted, device=chosen.device
    )
    right = accuracy(module, x, y)
    x, y, _ = correct(module, x, y, chosen.count)
    net = hf.Network.from_torch(module, domain=(0, 1), device=chosen.device)
    hf.radius(
        net, x[:1], y[:1], norm=math.inf, methods=[hf.certify.Certify(rounds=1)]
    )  # Trace the network and warm up the device.
    columns = [column for tier in chosen.tiers for column in (tier, "seconds", "/ attack")]
    table = Table(["image", "attack", "seconds", *columns, "GiB"], chosen.out, "cifar")
    kept: list[list[float]] = []
    for number in range(len(x)):
        image, label = x[number : number + 1], y[number : number + 1]
        broken, spent = asked(net, image, label, "search", None)
        row = [broken, spent]
        for tier in chosen.tiers:
            proved, spent = asked(net, image, label, tier, chosen.seconds)
            if proved > broken:
                raise SystemExit(
                    f"image {number}: the attack succeeds inside a certified ball. The proof is wrong."
                )
            row += [proved, spent, proved / broken]
        kept.append(row)
        table.add(number, *row, memory(net.device))
    table.add("median", *torch.tensor(kept).median(0).values.tolist(), memory(net.device))
    table.say(f"Accuracy {right:.1%} on the test images; {chosen.threads} thread(s) on {net.device}.")


def asked(net: hf.Network, x: Tensor, y: Tensor, tier: str, seconds: float | None) -> tuple[float, float]:
    """Radius of one image (a tier's lower bound, or the attacks' upper bound for tier 'search'), and wall
    seconds.
    """
    methods = proofs(net, tier) or default_methods(net, "radius", "search")
    began = time.perf_counter()
    (found,) = hf.radius(net, x, y, norm=math.inf, methods=methods, stop=hf.Stop(seconds=seconds))
    assert isinstance(found, hf.Bracket)
    return (found.upper if tier == "search" else found.lower).value, time.perf_counter() - began


def memory(device: torch.device) -> float:
    """Peak memory in GiB: of the device, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
