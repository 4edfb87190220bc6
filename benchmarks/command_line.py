"""The command line of a benchmark package: python -m benchmarks.PACKAGE NAME ..."""

import argparse
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.certify.data import SHARED
from holdfast.errors import HoldfastError


def main(package: str, benchmarks: Mapping[str, tuple[str, str]], words: Sequence[str] | None = None) -> None:
    """Parse the command line of a package and run one of its benchmarks.

    Args:
        benchmarks: name -> (module of the package that runs it, one line of help).
        words: the name of a benchmark and its options; default: the command line.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{package}", description=f"Benchmarks of {package}."
    )
    commands = parser.add_subparsers(dest="name", required=True)
    modules = {}
    for name, (module, says) in benchmarks.items():
        modules[name] = importlib.import_module(f"benchmarks.{package}.{module}")
        command = commands.add_parser(
            name, help=says, description=modules[name].__doc__, formatter_class=argparse.RawTextHelpFormatter
        )
        command.add_argument(
            "--data", type=Path, default=SHARED, help="folder of the shared data (benchmarks/data.md)"
        )
        command.add_argument("--threads", type=int, default=1, help="torch threads in each process")
        modules[name].arguments(command)
    chosen = parser.parse_args(words)
    torch.set_num_threads(chosen.threads)
    try:
        modules[chosen.name].main(chosen)
    except HoldfastError as error:
        raise SystemExit(f"error: {error}") from error
