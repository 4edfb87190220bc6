"""python -m benchmarks.certify NAME ...: parse, and hand over to the benchmark of that name."""

import argparse
import importlib
from pathlib import Path

import torch

from benchmarks.certify.data import SHARED

BENCHMARKS = {
    "train": ("nets", "train the MNIST networks"),
    "anchors": ("anchors", "digits: every tier, the attack and the peer side by side"),
    "table5": ("table5", "POPQORN's Table 5 on MNIST"),
    "titles": ("titles", "news titles: the words that hold the class"),
    "g2pm": ("g2pm", "g2pM: a network that nobody here trained"),
    "mnist_fc": ("mnist_fc", "VNN-COMP's fully connected networks"),
    "imdb": ("imdb", "256 words, 128 hidden units: seconds and memory"),
    "cost": ("cost", "seconds against frames and inputs"),
    "gpu": ("gpu", "1,000 inputs end to end, and the share of the device's peak"),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certify", description="Measure room 1.")
    commands = parser.add_subparsers(dest="name", required=True)
    modules = {}
    for name, (module, says) in BENCHMARKS.items():
        modules[name] = importlib.import_module(f"benchmarks.certify.{module}")
        command = commands.add_parser(name, help=says, description=modules[name].__doc__, formatter_class=argparse.RawTextHelpFormatter)
        command.add_argument("--data", type=Path, default=SHARED, help="the folder of the shared data")
        command.add_argument("--threads", type=int, default=1)
        modules[name].arguments(command)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    modules[chosen.name].main(chosen)


if __name__ == "__main__":
    main()
