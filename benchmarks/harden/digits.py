"""The 8 x 8 digits as eight rows, LSTM and GRU with 32 units: certified accuracy at radius 0.05.

python -m benchmarks.harden digits --cells lstm gru --seconds 90 --out build/harden

Maximum norm, all rows perturbed. All networks start from the embedded ones of standard training
(scripts/train_digits.py) and train on for the same time: standard, adversarial, and hardened. 200 of the
1,297 training images are validation data.
"""

import argparse
from collections.abc import Callable

from torch import nn

from benchmarks.certify.data import digit_frames
from benchmarks.harden.measure import Split, options, shuffled, side_by_side, table
from holdfast.datasets.digits_networks import digits_gru, digits_lstm
from holdfast.hardening import Recipe

# Radius of the trained intervals, as a multiple of the radius; best of 0.6 to 2.4 on validation images.
SHARE = 1.2
CELLS: dict[str, Callable[[], nn.Module]] = {"lstm": digits_lstm, "gru": digits_gru}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cells", nargs="+", default=["lstm", "gru"], choices=list(CELLS))
    parser.add_argument("--radius", type=float, default=0.05)
    options(parser, seconds=90)


def main(chosen: argparse.Namespace) -> None:
    rows = table(chosen, "digits")
    train, held = shuffled(*digit_frames(8, "train"), 200)
    for cell in chosen.cells:
        recipes = {
            "standard": Recipe("standard", batch=32, rate=2e-3),
            "pgd": Recipe("pgd", batch=32, rate=2e-3, attack=8),
            "hardened": Recipe("intervals", batch=32, weight=1.0, share=SHARE),
        }
        side_by_side(
            rows,
            chosen,
            f"digits {cell} 32",
            CELLS[cell],
            Split(train, held, digit_frames(8, "test")),
            chosen.radius,
            recipes,
        )
