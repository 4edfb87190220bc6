"""VNN-COMP's mnist_fc: ReLU networks with 2, 4 and 6 layers of 256, target the runner-up.

python -m benchmarks.certify mnist_fc --count 20 --peer CROWN

The table gives mean l_inf (or --norms) radii, with the CPU seconds of one core per input in brackets. Pixels
lie in [0, 1]; perturbed ones may leave that range.
"""

import argparse
import gzip
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify import peer
from benchmarks.certify.data import mnist_frames, shared
from benchmarks.certify.interval import bisect
from benchmarks.certify.measure import Column, measure, tiers
from benchmarks.certify.nets import correct
from benchmarks.certify.table import Table
from holdfast.region.norms import dual, norm


def plain(file: Path) -> nn.Sequential:
    """The same network as a plain torch module, for auto_LiRPA and interval bounds."""
    import onnx  # An optional package.
    from onnx import numpy_helper

    graph = onnx.load_from_string(gzip.decompress(file.read_bytes())).graph
    arrays = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in graph.initializer}
    layers: list[nn.Module] = []
    for node in graph.node:
        if node.op_type == "Gemm":
            weight, bias = (arrays[name] for name in node.input[1:])
            layers.append(nn.Linear(weight.shape[1], weight.shape[0]))
            layers[-1].load_state_dict({"weight": weight, "bias": bias})
        elif node.op_type == "Relu":
            layers.append(nn.ReLU())
    return nn.Sequential(*layers).eval()


def interval(module: nn.Sequential, x: Tensor, y: Tensor, targets: Tensor, p: float, most: Tensor) -> Column:
    x, layers = x.double(), list(module)

    def margin(radius: Tensor) -> Tensor:
        low, high = x, x
        for place, layer in enumerate(layers):
            if isinstance(layer, nn.ReLU):
                low, high = low.clamp_min(0), high.clamp_min(0)
                continue
            assert isinstance(layer, nn.Linear)
            weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
            if place == len(layers) - 1:
                row, offset = weight[y] - weight[targets], bias[y] - bias[targets]
                return torch.minimum(row * low, row * high).sum(1) + offset
            middle = (low + high) / 2 @ weight.t() + bias
            spread = (
                radius[:, None] * norm(weight, dual(p)) if place == 0 else (high - low) / 2 @ weight.abs().t()
            )
            low, high = middle - spread, middle + spread
        raise AssertionError("a network ends with a linear layer")

    began = time.process_time()
    found = bisect(margin, most.double())
    return Column(found, (time.process_time() - began) / len(x))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nets", nargs="+", default=["256x2", "256x4", "256x6"])
    parser.add_argument("--norms", nargs="+", type=float, default=[math.inf])
    parser.add_argument("--tiers", nargs="+", choices=tiers(), default=tiers())
    parser.add_argument("--peer", nargs="*", choices=("CROWN", "alpha-CROWN"), default=[])
    parser.add_argument("--count", type=int, default=20, help="inputs")
    parser.add_argument("--seconds", type=float, help="limit of every tier for one input")
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    reason = peer.absent() if chosen.peer else None
    peers = [] if reason else chosen.peer
    names = [*chosen.tiers, *peers]
    ratios = [f"{name} / {names[0]}" for name in names[1:]]
    columns = ["network", "norm", "interval", *names, *ratios, "attack", f"{chosen.tiers[-1]} / attack"]
    table = Table(columns, chosen.out, "mnist_fc")
    images, labels = mnist_frames(1, "test", chosen.data)
    images = (images[:, 0, :, None] + 1) / 2  # (n, 784, 1) in [0, 1]
    for name in chosen.nets:
        file = shared(f"vnncomp/mnist_fc/onnx/mnist-net_{name}.onnx.gz", chosen.data)
        net, module = hf.Network.from_onnx(file), plain(file)
        x, y, targets = correct(
            nn.Sequential(nn.Flatten(), module),
            images[: 10 * chosen.count],
            labels[: 10 * chosen.count],
            chosen.count,
        )
        assert torch.allclose(net(x), module(x.flatten(1)), atol=1e-4)
        for p in chosen.norms:
            proofs = [measure(net, x, y, targets, p, tier, None, chosen.seconds) for tier in chosen.tiers]
            attack = measure(net, x, y, targets, p, "search", None)
            found = [
                peer.radii(module, [x.flatten(1)], y, targets, p, proofs[0].radii, method=method)
                for method in peers
            ]
            others = [Column(radii, seconds / len(x)) for radii, seconds in found]
            gains = [c.mean / proofs[0].mean for c in [*proofs, *others][1:]]
            least = interval(module, x.flatten(1), y, targets, p, attack.radii)
            table.add(name, f"{p:g}", least, *proofs, *others, *gains, attack, proofs[-1].mean / attack.mean)
    if reason:
        table.say(f"No peer column: {reason}.")
