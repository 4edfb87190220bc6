"""DeepQuant's Table 2: the smallest and largest output over [0, 10]^n, certified to 0.01.

python -m benchmarks.lipschitz table2 --seconds 60

ReLU-NN-0..5 are the published networks; tanh-NN-6..9 were retrained (see tanh_nets). The times of the other
tools are the paper's, each on its authors' machine. DeepQuant's ranges are not certified; SHERLOCK cannot
read tanh. Our times are CPU seconds of one core from the network to the range, with tracing and the search
for counterexamples, but without torch's imports at the first trace. Random search has as many queries; its
"short" columns say by how much it misses the extreme outputs that we observed.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.table import Table
from benchmarks.lipschitz import tanh_nets
from holdfast.verification import reach

SIDE = 10.0


@dataclass(frozen=True)
class Peers:
    """Seconds of the other tools in the paper."""

    deepquant: float
    deepgo: float
    sherlock: float | None = None


PAPER = {
    "relu_nn_0": Peers(1.80, 0.4, 1.9),
    "relu_nn_1": Peers(1.56, 1.0, 2.4),
    "relu_nn_2": Peers(1.21, 6.8, 17.8),
    "relu_nn_3": Peers(1.26, 5.3, 7.6),
    "relu_nn_4": Peers(1.21, 1.8, 477.8),
    "relu_nn_5": Peers(2.81, 15.1, 588.4),
    "tanh_nn_6": Peers(2.93, 14.8),
    "tanh_nn_7": Peers(8.92, 58.7),
    "tanh_nn_8": Peers(20.94, 394.1),
    "tanh_nn_9": Peers(129.81, 2680.4),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=list(PAPER), default=list(PAPER))
    parser.add_argument("--tolerance", type=float, default=1e-2)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each network")
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    columns = [
        "network",
        "inputs",
        "smallest",
        "largest",
        "gap",
        "CPU s",
        "wall s",
        "DeepQuant s",
        "DeepGO s",
        "SHERLOCK s",
    ]
    table = Table(
        [*columns, "subproblems", "queries", "random: short below, above", "random s"], chosen.out, "table2"
    )
    _warm()
    for name, net, inputs in _networks(chosen.only, chosen.data):
        ends = torch.zeros(inputs), torch.full((inputs,), SIDE)
        began, wall = time.process_time(), time.monotonic()
        (found,) = reach(net, ends, tolerance=chosen.tolerance, stop=hf.Stop(seconds=chosen.seconds))
        spent, wall = time.process_time() - began, time.monotonic() - wall
        low, high, searched = _random(net, inputs, found.queries)
        least, most = found.minimum.upper.value, found.maximum.lower.value
        paper = PAPER[name]
        table.add(
            name,
            inputs,
            f"{found.minimum.lower.value:.4f} .. {least:.4f}",
            f"{most:.4f} .. {found.maximum.upper.value:.4f}",
            found.gap,
            spent,
            wall,
            paper.deepquant,
            paper.deepgo,
            paper.sherlock,
            found.nodes,
            found.queries,
            f"{low - least:.4f}, {most - high:.4f}",
            searched,
        )


def _warm() -> None:
    """Trace a small network, since torch imports its tracer at the first trace."""
    torch.manual_seed(0)
    small = hf.Network.from_torch(
        nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).eval(), shape=(2,)
    )
    reach(small, (torch.zeros(2), torch.ones(2)))


def _networks(names: list[str], folder: Path) -> Iterator[tuple[str, hf.Network, int]]:
    for name in names:
        if name in tanh_nets.INPUTS:
            yield name, tanh_nets.load(name), tanh_nets.INPUTS[name]
        else:
            yield name, _published(shared("deepquant_nets", folder) / f"{name}.npz"), 2


def _published(file: Path) -> hf.Network:
    with np.load(file, allow_pickle=False) as arrays:
        layers: list[nn.Module] = []
        for k in range(sum(name.startswith("W") for name in arrays)):
            weight, bias = (torch.from_numpy(arrays[f"{what}{k}"]).float() for what in "Wb")
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.load_state_dict({"weight": weight, "bias": bias.flatten()})
            layers += [linear, nn.ReLU()]
        assert "mean" not in arrays, f"{file.name} shifts its inputs"
    return hf.Network.from_torch(nn.Sequential(*layers[:-1]).eval(), shape=(2,), name=file.stem)


def _random(net: hf.Network, inputs: int, queries: int) -> tuple[float, float, float]:
    """The smallest and largest output at random inputs, and CPU seconds."""
    began = time.process_time()
    x: Tensor = torch.rand(queries, inputs, generator=torch.Generator().manual_seed(0)) * SIDE
    value = net(x)
    return float(value.min()), float(value.max()), time.process_time() - began
