"""python -m benchmarks.hamming NAME ...: parse, and hand over to the benchmark of that name."""

import argparse
import importlib
from pathlib import Path

import torch

from benchmarks.certify.data import SHARED

BENCHMARKS = {
    "digits": ("digits", "digits CNN: every search and peer side by side, exact brackets, the paper's rule"),
    "mnist": ("mnist", "ConvSmall on MNIST: every search and peer side by side, what is proved in a minute"),
    "cifar": ("cifar", "CIFAR-10: every search and peer side by side, a pixel counts once"),
    "words": ("words", "news titles: how many words must be replaced by neighbours"),
    "bytes": ("bytes", "news titles by their bytes, a black box: how many bytes must change"),
    "architectures": ("architectures", "DeepTRE's Fig. 10: seven digit networks, accuracy beside robustness"),
    "curves": ("curves", "DeepTRE's Figs. 1 and 3: both ends over time"),
    "cost": ("cost", "questions, domains and seconds against the number of pixels and of changes"),
    "gpu": ("gpu", "on a graphics card: domains a second, what is proved in a minute, 1,000 upper ends"),
    "coverage": ("coverage", "DeepTRE's Table 1: coverage by generated tests, beside random mutation"),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hamming", description="Measure room 2.")
    commands = parser.add_subparsers(dest="name", required=True)
    modules = {}
    for name, (module, says) in BENCHMARKS.items():
        modules[name] = importlib.import_module(f"benchmarks.hamming.{module}")
        command = commands.add_parser(name, help=says, description=modules[name].__doc__, formatter_class=argparse.RawTextHelpFormatter)
        command.add_argument("--data", type=Path, default=SHARED, help="the folder of the shared data")
        command.add_argument("--threads", type=int, default=1)
        modules[name].arguments(command)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    modules[chosen.name].main(chosen)


if __name__ == "__main__":
    main()
