"""An LSTM autoencoder: how far may one frame move before the reconstruction error exceeds its threshold?

python -m benchmarks.certify autoencoder                every frame of the window, about a minute of CPU time
python -m benchmarks.certify autoencoder --frames 0 10  two of them

The network is cert-rnn-py's autoencoder M (Du et al. 2021, in the data of cert-rnn-py): an LSTM of 16 units reads 30
frames of 36 numbers, a second one reads the last state of the first at every frame, and a linear layer gives the
reconstruction. One frame moves in the maximum norm, the others stay, no domain. The input is accepted while the mean
squared error between input and reconstruction is at most 0.77; the network that is certified has this error as its
output, so the perturbed input counts on both sides. An attack by gradient steps looks for a counterexample at each
certified radius.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.table import Table

THRESHOLD = 0.77  # The mean squared error up to which an input is accepted (SOURCE.txt of the data).
PUBLISHED_MEAN = 0.01683  # cert-rnn-py, over all frames, in 21 s on its authors' machine (SOURCE.txt).
ATTACK_STEPS, ATTACK_STARTS = 30, 8  # Of the attack at every certified radius (chosen by hand).


class ReconstructionError(nn.Module):
    """(batch, frames, numbers) -> (batch, 1), the mean squared error of the autoencoder."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        (_, numbers), (_, units) = (weights[f"enc_cells.0.weight_{end}"].shape for end in ("ih", "hh"))
        self.encoder = nn.LSTM(numbers, units, batch_first=True)
        self.decoder = nn.LSTM(units, units, batch_first=True)
        self.head = nn.Linear(units, numbers)
        state = {f"head.{name}": weights[f"head.{name}"] for name in ("weight", "bias")}
        for part, cells in (("encoder", "enc_cells"), ("decoder", "dec_cells")):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                state[f"{part}.{name}_l0"] = weights[f"{cells}.0.{name}"]
        self.load_state_dict(state)

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)[0][:, -1:]
        found = self.head(self.decoder(code.expand(-1, x.shape[1], -1))[0])
        return torch.square(found - x).mean((1, 2))[:, None]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frames", nargs="*", type=int, help="frames that are perturbed; default: all")
    parser.add_argument("--rounds", type=int, default=4, help="radii tried for each frame at most")
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    folder = shared("recurrent", chosen.data)
    module = ReconstructionError(load_file(folder / "certrnn_ae_M.safetensors")).eval()
    x = torch.from_numpy(np.load(folder / "certrnn_ae_M_anchor.npy", allow_pickle=False)).float()[None]
    net = hf.Network.from_torch(module)
    frames = list(range(x.shape[1])) if chosen.frames is None else chosen.frames
    methods = [hf.certify.Certify(rounds=chosen.rounds)]
    # Trace the network first; this is not timed.
    hf.radius(net, x, property=hf.Threshold(THRESHOLD), frames=0, methods=[hf.certify.Certify(rounds=1)])
    began = time.process_time()
    [brackets] = hf.radius(net, x, property=hf.Threshold(THRESHOLD), frames="each", methods=methods)
    spent = time.process_time() - began
    table = Table(["frame", "certified radius", "error found there"], chosen.out, "autoencoder")
    radii = [brackets[frame].lower.value for frame in frames]
    for frame, radius in zip(frames, radii, strict=True):
        found = largest_error(module, x, frame, radius)
        if found > THRESHOLD:
            raise SystemExit("an attack succeeds inside a proved ball. The proof is wrong.")
        table.add(frame, radius, found)
    table.say(
        f"Mean radius {sum(radii) / len(radii):.5f} over {len(radii)} frames; published, over all: {PUBLISHED_MEAN}. "
        f"The search over all {x.shape[1]} frames took {spent:.0f} CPU-s."
    )


def largest_error(module: nn.Module, x: Tensor, frame: int, radius: float) -> float:
    """The largest mean squared error that steps of the gradient's sign find with one frame moved."""
    start = 2 * torch.rand((ATTACK_STARTS, x.shape[2]), generator=torch.Generator().manual_seed(0)) - 1
    away, best = start.sign() * radius, 0.0
    for _ in range(ATTACK_STEPS):
        away = away.detach().requires_grad_()
        moved = x.repeat(ATTACK_STARTS, 1, 1)
        moved[:, frame] += away
        error = module(moved)
        best = max(best, float(error.detach().max()))
        (slope,) = torch.autograd.grad(error.sum(), away)
        away = (away + radius / 5 * slope.sign()).clamp(-radius, radius)
    return best
