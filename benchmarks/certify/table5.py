"""POPQORN's Table 5: MNIST in 4, 7 and 14 frames: certified radius, CLEVER-RNN and C&W-Ada.

python -m benchmarks.certify train --device cuda --out NETS
python -m benchmarks.certify table5 --device cuda --nets NETS --out RESULTS
python -m benchmarks.certify table5 --only rnn-4x32 --norms 2 --count 10          a small part on the CPU

The set-up follows the paper and its published scripts: pixels in [-1, 1] that may leave this range, 100
correctly classified test images, a random other class as target, mean and standard deviation. The networks
are ours, so only the magnitudes can be compared with the paper's. "Overall distortion" is the paper's footnote
5: a radius eps for each of m frames allows a distortion of m^(1/p) eps of the whole input.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import holdfast as hf
from benchmarks.certify.nets import CACHE, TABLE5, correct, recipe, trained
from benchmarks.certify.table import Table

# Ko et al. 2019, Table 5: network -> norm -> (certified, CLEVER-RNN, C&W-Ada), means over their inputs. One
# entry is unreadable in our copy.
PAPER: dict[str, dict[float, tuple[float, float | None, float]]] = {
    "rnn-4x32": {
        math.inf: (0.0190, 0.0831, 0.2561),
        2: (0.2026, 0.8860, 1.3768),
        1: (1.0551, 5.0033, 5.1592),
    },
    "rnn-4x64": {
        math.inf: (0.0219, 0.1099, 0.2957),
        2: (0.2487, 1.2006, 1.7072),
        1: (1.3199, 6.4128, 6.9347),
    },
    "rnn-4x128": {
        math.inf: (0.0243, 0.1405, 0.3537),
        2: (0.2818, 1.4698, 2.1666),
        1: (1.4362, 7.7504, 8.8906),
    },
    "rnn-7x32": {
        math.inf: (0.0131, 0.0841, 0.2424),
        2: (0.1045, 0.6846, 1.0300),
        1: (0.4492, 3.2046, 2.9425),
    },
    "rnn-7x64": {
        math.inf: (0.0131, 0.1013, 0.2660),
        2: (0.1113, 0.8121, 1.1454),
        1: (0.4499, 3.5476, 3.4262),
    },
    "rnn-14x32": {
        math.inf: (0.0083, 0.0931, 0.2891),
        2: (0.0493, 0.5074, 0.7577),
        1: (0.1459, 1.9323, 1.6339),
    },
    "rnn-14x64": {
        math.inf: (0.0087, 0.1259, 0.3267),
        2: (0.0526, 0.6864, 0.9278),
        1: (0.1578, 2.6018, 2.1149),
    },
    "lstm-4x32": {
        math.inf: (0.0202, 0.0765, 0.2546),
        2: (0.2321, 0.8302, 1.3321),
        1: (1.1913, 4.6858, 4.9689),
    },
    "lstm-4x64": {
        math.inf: (0.0218, 0.1032, 0.2893),
        2: (0.2448, 1.0947, 1.6888),
        1: (1.2644, 6.0216, 6.6931),
    },
    "lstm-4x128": {
        math.inf: (0.0218, 0.1227, 0.3303),
        2: (0.2491, 1.3225, 1.9379),
        1: (1.2839, 6.8665, 7.7319),
    },
    "lstm-7x32": {
        math.inf: (0.0165, 0.0924, 0.2635),
        2: (0.1400, 0.7287, 1.0733),
        1: (0.5680, 3.2266, 3.2309),
    },
    "lstm-14x32": {
        math.inf: (0.0099, 0.1220, 0.3148),
        2: (0.0593, 0.6688, 0.9088),
        1: (0.1805, None, 2.0035),
    },
}
METHODS: dict[str, hf.Method[Any]] = {
    "certified": hf.certify.Certify(),
    "second order": hf.certify.Tighten(steps=0),
    "CLEVER-RNN": hf.attacks.CLEVER(weibull=False),
    "C&W-Ada": hf.attacks.CarliniWagner(),
}


def random_targets(y: Tensor, seed: int = 0) -> Tensor:
    return (y + torch.randint(1, 10, y.shape, generator=torch.Generator().manual_seed(seed))) % 10


def asked(
    net: hf.Network, x: Tensor, y: Tensor, targets: Tensor, norm: float, name: str
) -> tuple[Tensor, float]:
    """Radii (inputs,) by one method alone, and wall seconds for all of them."""
    began = time.perf_counter()
    brackets = hf.radius(net, x, y, norm=norm, frames="all", targets=targets, methods=[METHODS[name]])
    seconds = time.perf_counter() - began
    ends = {
        "certified": lambda b: b.lower.value,
        "second order": lambda b: b.lower.value,
        "CLEVER-RNN": lambda b: b.estimates[-1].value,
        "C&W-Ada": lambda b: b.upper.value,
    }
    return torch.tensor([ends[name](b) for b in brackets]), seconds


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", metavar="NET", help="such as lstm-4x64; default: all")
    parser.add_argument("--norms", nargs="+", type=float, default=[math.inf, 2.0, 1.0])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--count", type=int, default=100, help="inputs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--nets", type=Path, default=CACHE, help="folder of trained networks; missing ones are trained"
    )
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    asked_for = [name for name in METHODS if name in chosen.methods]
    paper = [f"paper: {name}" for name in METHODS if name != "second order"]
    columns = [
        "network",
        "norm",
        *asked_for,
        *paper,
        "overall distortion m^(1/p) eps",
        "paper's certified / C&W",
        *(f"{name} s" for name in asked_for),
    ]
    table = Table(columns, chosen.out, "table5")
    for wanted in [recipe(name) for name in chosen.only] if chosen.only else TABLE5:
        module = trained(wanted, chosen.nets, chosen.device, chosen.data)
        x, y, _ = correct(module, *wanted.inputs("test", chosen.data), chosen.count)
        net = hf.Network.from_torch(module, device=chosen.device)
        asked(net, x[:1], y[:1], random_targets(y[:1]), 2, "certified")  # Trace the network first; not timed.
        for norm in chosen.norms:
            found = {name: asked(net, x, y, random_targets(y), norm, name) for name in asked_for}
            proved = [found[name][0] for name in ("certified", "second order") if name in found]
            if "C&W-Ada" in found and any(bool((radii > found["C&W-Ada"][0]).any()) for radii in proved):
                raise SystemExit(
                    f"{wanted}, norm {norm}: an attack succeeds inside a certified ball. The proof is wrong."
                )
            theirs = PAPER.get(str(wanted), {}).get(norm)
            shown = [f"{radii.mean():.4f}/{radii.std():.4f}" for radii, _ in found.values()]
            share = theirs[0] / theirs[2] if theirs else None
            overall = None
            if "certified" in found:
                overall = float(found["certified"][0].mean()) * wanted.frames ** (1 / norm)
            table.add(
                str(wanted),
                f"{norm:g}",
                *shown,
                *(theirs or (None, None, None)),
                overall,
                share,
                *(s for _, s in found.values()),
            )
