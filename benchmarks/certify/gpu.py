"""1,000 MNIST inputs of a 4-frame, 64-hidden LSTM, all other classes at once: seconds and device utilisation.

python -m benchmarks.certify gpu --device cuda --nets NETS

The paper's implementation took about four hours on sixteen K80s for 1,000 inputs of LSTMs with four frames.
FLOPs are those of the matrix products, counted on a few inputs and scaled. The peak is measured: a large
square float64 product on the same device.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import holdfast as hf
from benchmarks.certify.nets import CACHE, correct, recipe, trained
from benchmarks.certify.table import Table
from holdfast.api.radius import radius_problems


class Flops(TorchDispatchMode):
    """Counts the operations of matrix products. (torch's FlopCounterMode fails on gradients taken inside.)"""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=found)
        return found


def certify(net: hf.Network, x: Tensor, y: Tensor, norm: float, batch: int) -> tuple[Tensor, float]:
    """Certified radii (inputs,) and wall seconds, including everything but the tracing of the network."""
    _wait(net.device)
    began = time.perf_counter()
    records = hf.solve(
        radius_problems(net, x, y, norm=norm, frames="all"), [hf.certify.Certify()], batch=batch
    )
    _wait(net.device)
    return torch.tensor([r.bracket.lower.value for r in records]), time.perf_counter() - began


def peak(device: torch.device) -> float:
    """Measured FLOP/s of a square float64 product, the best of five."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, dtype=torch.float64, device=device)
    best = math.inf
    for _ in range(6):
        _wait(device)
        began = time.perf_counter()
        _ = a @ a
        _wait(device)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--net", default="lstm-4x64")
    parser.add_argument("--norm", type=float, default=2.0)
    parser.add_argument("--count", type=int, default=1000, help="inputs")
    parser.add_argument("--batch", type=int, default=1000, help="inputs in one batch")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--nets", type=Path, default=CACHE, help="folder of trained networks; missing ones are trained"
    )
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    wanted = recipe(chosen.net)
    module = trained(wanted, chosen.nets, chosen.device, chosen.data)
    x, y, _ = correct(module, *wanted.inputs("test", chosen.data), chosen.count)
    net = hf.Network.from_torch(module, device=chosen.device)
    few = min(8, len(x))
    certify(net, x[:few], y[:few], chosen.norm, chosen.batch)  # Trace the network and warm up the device.
    with Flops() as counter:
        certify(net, x[:few], y[:few], chosen.norm, chosen.batch)
    flops = counter.total * len(x) / few
    radii, seconds = certify(net, x, y, chosen.norm, chosen.batch)
    best = peak(net.device)
    used = torch.cuda.max_memory_allocated() / 2**30 if net.device.type == "cuda" else None
    speed = ["seconds", "inputs / s", "TFLOP", "TFLOP/s", "peak TFLOP/s", "share", "GiB"]
    table = Table(["network", "norm", "inputs", "batch", "mean radius", *speed], chosen.out, "gpu")
    rate = flops / seconds
    table.add(
        str(wanted), f"{chosen.norm:g}", len(x), chosen.batch, float(radii.mean()), seconds, len(x) / seconds,
        flops / 1e12, rate / 1e12, best / 1e12, f"{rate / best:.1%}", used,
    )  # fmt: skip
