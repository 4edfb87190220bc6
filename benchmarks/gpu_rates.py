"""Network queries per second of mesh search and of the searches for few changed units, on a CPU and on a GPU.

python -m benchmarks.gpu_rates --devices cpu cuda

The network is convolutional, of MNIST's size, with random weights (only the number of queries matters).
Mesh: counterexamples in norm 2 by hf.attacks.Mesh. Sweeps: every unit of every image is set to its smallest
and largest value (hf.saliency). Greedy: few changed pixels. The first call of each is a warm-up and not
counted. Needs torch, numpy and scipy only.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import holdfast as hf

SIZES = {"cpu": 16, "cuda": 512}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(800, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    ).eval()


def rate(net: hf.Network, ask: Callable[[Tensor, Tensor], object], count: int) -> tuple[int, float]:
    x = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    y = net(x.to(net.device)).argmax(-1).cpu()
    ask(x[:2], y[:2])
    before, began = net.queries, time.perf_counter()
    ask(x, y)
    if net.device.type == "cuda":
        torch.cuda.synchronize()
    return net.queries - before, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", nargs="+", default=["cpu"])
    devices = parser.parse_args().devices
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    print(f"{machine}; {gpu}; torch {torch.__version__}\n")
    print("| what | device | images | queries | seconds | queries/s |\n|---|---|---|---|---|---|")
    for device in devices:
        net, count = hf.Network.from_torch(network(), domain=(0, 1), device=device), SIZES[device]
        ways: dict[str, Callable[[Tensor, Tensor], object]] = {
            "mesh, norm 2": lambda x, y, net=net: hf.radius(net, x, y, norm=2, methods=[hf.attacks.Mesh()]),
            "sweeps over single pixels": lambda x, y, net=net: hf.saliency(net, x, y),
            "greedy, norm 0": lambda x, y, net=net: hf.radius(
                net, x, y, norm=0, methods=[hf.hamming.Greedy()]
            ),
        }
        for name, ask in ways.items():
            asked, seconds = rate(net, ask, count)
            print(
                f"| {name} | {device} | {count} | {asked:,} | {seconds:.2f} | {asked / seconds:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
