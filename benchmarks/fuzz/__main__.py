"""python -m benchmarks.fuzz [--count 2000] [--seed 0] [--only NAME ...] [--keep FOLDER]

Damage valid files of every kind that holdfast reads, then read them, each reader in a process of its own.
Only a HoldfastError is acceptable. Any other exception, a crash of the process, or a file that takes longer
than the limit counts as an escape. --keep saves the files that cause one. The exit code is 1 after any
escape.
"""

import argparse
import multiprocessing
import resource
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.fuzz import seeds
from benchmarks.fuzz.attempts import Count, tried
from benchmarks.fuzz.readers import Readers

ROOM = 4 * 2**30  # Bytes that a reader may allocate. A larger allocation fails and counts as an escape.
HEAD = ("reader", "tried", "read", "refused", "escaped", "slowest", "memory", "what escaped")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count", type=int, default=2000, help="files for each reader; slow readers get fewer"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args()
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD), flush=True)
    torch.set_num_threads(1)  # a forked child cannot use the threads of its parent
    escaped = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        honest = Path(place)
        seeds.made(honest)
        for reader in Readers(honest).all():
            if chosen.only and reader.name not in chosen.only:
                continue
            found = _apart(honest, reader.name, chosen.seed, max(1, chosen.count // reader.cost), chosen.keep)
            escaped += found.escaped
            print(_row(reader.name, found), flush=True)
    sys.exit(1 if escaped else 0)


def _apart(honest: Path, name: str, seed: int, count: int, keep: Path | None) -> Count:
    """Run a reader in child processes.

    After a crash, count it and continue with the next file in a new process.
    """
    found = Count()
    context = multiprocessing.get_context("fork")  # torch is imported once
    while found.tried < count:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(there, honest, name, seed, found.tried, count, keep))
        process.start()
        there.close()
        try:
            while True:
                found = found.plus(here.recv())
        except EOFError:
            process.join()
        if process.exitcode:
            found = found.plus(Count(1, escapes={f"the process ended with {process.exitcode}": 1}))
    return found


def _work(
    pipe: Connection, honest: Path, name: str, seed: int, begin: int, end: int, keep: Path | None
) -> None:
    [reader] = [reader for reader in Readers(honest).all() if reader.name == name]
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, held + ROOM))
    for number in range(begin, end):
        pipe.send(tried(reader, honest, seed, number, keep))


def _row(name: str, found: Count) -> str:
    told = "; ".join(
        f"{what}: {count}" for what, count in sorted(found.escapes.items(), key=lambda item: -item[1])
    )
    cells = (
        name,
        found.tried,
        found.read,
        found.refused,
        found.escaped,
        f"{found.slowest:.2f} s",
        f"{found.memory / 2**20:.0f} MiB",
        told,
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    main()
