"""python -m benchmarks.lipschitz NAME ...: parse, and hand over to the benchmark of that name."""

import argparse
import importlib
from pathlib import Path

import torch

from benchmarks.certify.data import SHARED

BENCHMARKS = {
    "prepare": ("prepare", "write networks and properties where machines without the shared data or onnx find them"),
    "acasxu": ("vnncomp", "ACAS Xu: 186 questions about 45 networks with 5 inputs"),
    "mnist_fc": ("vnncomp", "mnist_fc: 90 questions about 3 networks with 784 inputs"),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lipschitz", description="Measure room 3.")
    commands = parser.add_subparsers(dest="name", required=True)
    modules = {}
    for name, (module, says) in BENCHMARKS.items():
        modules[name] = importlib.import_module(f"benchmarks.lipschitz.{module}")
        command = commands.add_parser(name, help=says, description=modules[name].__doc__, formatter_class=argparse.RawTextHelpFormatter)
        command.add_argument("--data", type=Path, default=SHARED, help="the folder of the shared data")
        command.add_argument("--threads", type=int, default=1, help="of torch, in each process")
        modules[name].arguments(command)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    modules[chosen.name].main(chosen)


if __name__ == "__main__":
    main()
