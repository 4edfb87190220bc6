"""python -m benchmarks.ROOM NAME ...: parse, and hand over to the benchmark of that name."""

import argparse
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.certify.data import SHARED


def main(room: str, benchmarks: Mapping[str, tuple[str, str]], words: Sequence[str] | None = None) -> None:
    """benchmarks: name -> the module of the room that measures it, and what it says of itself in a line.

    words    the name of a benchmark and its options; if not said, those of the command line.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{room}", description=f"Measure the room {room}."
    )
    commands = parser.add_subparsers(dest="name", required=True)
    modules = {}
    for name, (module, says) in benchmarks.items():
        modules[name] = importlib.import_module(f"benchmarks.{room}.{module}")
        command = commands.add_parser(
            name, help=says, description=modules[name].__doc__, formatter_class=argparse.RawTextHelpFormatter
        )
        command.add_argument("--data", type=Path, default=SHARED, help="the folder of the shared data")
        command.add_argument("--threads", type=int, default=1, help="of torch, in each process")
        modules[name].arguments(command)
    chosen = parser.parse_args(words)
    torch.set_num_threads(chosen.threads)
    modules[chosen.name].main(chosen)
