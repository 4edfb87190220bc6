"""The 8 x 8 digits read as eight rows, an LSTM and a GRU of 32: from how few proofs to how many at 0.05, in the maximum norm, all rows?

python -m benchmarks.harden digits --cells lstm gru --seconds 90 --out build/harden

All networks begin at the embedded ones, which standard training made (scripts/train_digits.py), and go on from them for the same time, in
the usual way, adversarially, and hardened. 200 of the 1,297 training images are validation data.
"""

import argparse
from collections.abc import Callable

from torch import nn

from benchmarks.certify.data import digit_frames
from benchmarks.harden.measure import Split, options, shuffled, side_by_side, table
from holdfast.datasets.digits_networks import digits_gru, digits_lstm
from holdfast.hardening import Recipe

SHARE = 1.2  # of the radius that intervals are trained for; 0.6 to 2.4 were tried, on validation images
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
