"""Retrain the tanh networks of DeepQuant's Table 2, which were never published, from the paper's description.

python -m benchmarks.lipschitz tanh_nets

Writes benchmarks/lipschitz/weights/tanh_nn_6..9.safetensors, in about half a minute each.

Each has six layers of 250 tanh neurons and one output, with x in [0, 10]^n for n = 2, 3, 4, 5. It is fitted
to a smooth random function, a sum of twelve waves whose lengths are about the width of the box. Weights are
stored in float16, and the stored weights define the network.
"""

import argparse
import math
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import holdfast as hf
from benchmarks.certify.data import ROOT

WEIGHTS = ROOT / "benchmarks" / "lipschitz" / "weights"
INPUTS = {"tanh_nn_6": 2, "tanh_nn_7": 3, "tanh_nn_8": 4, "tanh_nn_9": 5}
LAYERS, WIDTH, WAVES, SIDE = 6, 250, 12, 10.0
STEPS, BATCH, RATE = 1500, 256, 1e-3


def module(inputs: int) -> nn.Sequential:
    sizes = [inputs, *[WIDTH] * LAYERS]
    hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 1))


def load(name: str) -> hf.Network:
    from safetensors.torch import load_file

    made = module(INPUTS[name])
    made.load_state_dict(
        {key: value.float() for key, value in load_file(WEIGHTS / f"{name}.safetensors").items()}
    )
    return hf.Network.from_torch(made.eval(), shape=(INPUTS[name],), name=name)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=list(INPUTS), default=list(INPUTS))
    parser.add_argument("--folder", type=Path, default=WEIGHTS, help="folder where the weights are written")


def main(chosen: argparse.Namespace) -> None:
    from safetensors.torch import save_file

    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in chosen.only:
        made, error = trained(INPUTS[name], seed=list(INPUTS).index(name))
        save_file(
            {key: value.half() for key, value in made.state_dict().items()},
            chosen.folder / f"{name}.safetensors",
        )
        print(f"{name}: mean square error {error:.2g} of a function with variance 1", flush=True)


def trained(inputs: int, seed: int) -> tuple[nn.Sequential, float]:
    torch.manual_seed(seed)
    truth, made = _Waves(inputs), module(inputs)
    optimiser = torch.optim.Adam(made.parameters(), RATE)
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = RATE * (1 + math.cos(math.pi * step / STEPS)) / 2
        x = torch.rand(BATCH, inputs) * SIDE
        error = mse_loss(made(2 * x / SIDE - 1).squeeze(1), truth(x))
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
    first = made[0]  # The first layer absorbs the scaling x / 5 - 1 of training.
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        first.bias -= first.weight.sum(1)
        first.weight *= 2 / SIDE
    return made.eval(), float(error.detach())


class _Waves:
    """A sum of waves with variance 1."""

    def __init__(self, inputs: int) -> None:
        self.direction = torch.randn(inputs, WAVES) * math.pi / SIDE
        self.phase = torch.rand(WAVES) * 2 * math.pi

    def __call__(self, x: Tensor) -> Tensor:
        return torch.sin(x @ self.direction + self.phase).sum(1) * math.sqrt(2 / WAVES)
