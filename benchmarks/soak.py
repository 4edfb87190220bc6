"""Random commands with random interruptions for half an hour: is a record ever lost or changed?

python -m benchmarks.soak --minutes 30

Each round runs one of the commands below in a forked child and interrupts it at a random moment: kill -9 of
the run, kill -9 of one of its workers (which the run must survive), SIGTERM or Ctrl-C. A run that ended is
resumed and interrupted again, up to three times. At the end its records are compared with those of an
uninterrupted run (see benchmarks/kills.py).
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kills import compared, forked, spent, unborn
from holdfast.store import FILE

NETWORKS, DIGITS = "holdfast.datasets.digits_networks", "holdfast.datasets.digits"
IMAGES = ("-m", f"{NETWORKS}:digits_cnn", "-d", f"{DIGITS}:images", "--domain", "0,1")
ROWS = ("-m", f"{NETWORKS}:digits_lstm", "-d", f"{DIGITS}:rows", "--domain", "0,1")
COMMANDS: dict[str, tuple[str, ...]] = {
    "radius": ("radius", *IMAGES, "--limit", "12", "--batch", "3"),
    "radius, two workers": ("radius", *IMAGES, "--limit", "12", "--batch", "2", "--workers", "2"),
    "radius of rows": ("radius", *ROWS, "--limit", "6", "--norm", "2", "--frames", "all", "--batch", "2"),
    "worst": ("worst", *IMAGES, "--limit", "10", "--radius", "0.02", "--batch", "3"),
    "risk": ("risk", *IMAGES, "--limit", "3", "--radius", "0.02", "--batch", "1"),
    "saliency": ("saliency", *IMAGES, "--limit", "12", "--batch", "2", "--pictures", "0"),
    "smoothing": (
        "smoothing",
        *IMAGES,
        "--limit",
        "12",
        "--sigma",
        "0.1",
        "--samples",
        "400",
        "--batch",
        "3",
    ),
    "monitor evaluate": ("monitor", "evaluate", "--limit", "40"),
}
DISTURBANCES = ("kill the run", "kill a worker", "terminate", "ctrl-c")


def children(process: int) -> list[int]:
    try:
        return [
            int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        ]
    except OSError:
        return []


def disturbed(arguments: Sequence[str], log: Path, after: float, how: str) -> tuple[int, bool]:
    """Run a command in a forked child and interrupt it after `after` seconds.

    Returns its exit code, and whether it was.
    """
    began, child, done = time.monotonic(), forked(arguments, log), False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), done
        if not done and time.monotonic() - began >= after:
            worker = children(child)
            if how == "kill a worker" and worker:
                os.kill(worker[0], signal.SIGKILL)
                done = True
            elif how != "kill a worker":
                os.kill(
                    child,
                    {"kill the run": signal.SIGKILL, "terminate": signal.SIGTERM, "ctrl-c": signal.SIGINT}[
                        how
                    ],
                )
                done = True
        time.sleep(0.001)


def one_round(
    arguments: Sequence[str], folder: Path, whole: float, chance: random.Random, counts: Counter[str]
) -> None:
    for turn in range(4):
        begun = (folder / FILE).is_file() and not unborn(folder)
        command = ["resume", str(folder), "--trust"] if begun else [*arguments, "--out", str(folder)]
        how = chance.choice(DISTURBANCES)
        code, done = disturbed(
            command, folder.with_suffix(".log"), chance.uniform(0, whole) if turn < 3 else 1e9, how
        )
        counts[how] += done
        if code not in (0, 1, 130, -signal.SIGKILL, -signal.SIGTERM):
            raise RuntimeError(
                f"{' '.join(command)} ended with {code}: {folder.with_suffix('.log').read_text()[-2000:]}"
            )
        if code == 0:  # 1: Ctrl-C before there was anything to save.
            return
    raise RuntimeError(f"{' '.join(arguments)} did not end: {folder.with_suffix('.log').read_text()[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance, until = random.Random(given.seed), time.monotonic() + given.minutes * 60
    counts, runs, same, wider, faults = Counter[str](), Counter[str](), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        calm: dict[str, float] = {}
        while time.monotonic() < until:
            name = chance.choice(list(COMMANDS))
            if name not in calm:
                code, calm[name] = spent([*COMMANDS[name], "--out", f"{place}/{name}"], Path(place, name))
                assert code == 0, (name, code, Path(place, f"{name}.log").read_text()[-2000:])
            folder = Path(place, f"run{sum(runs.values())}")
            one_round(COMMANDS[name], folder, calm[name], chance, counts)
            outcome = compared(folder, Path(place, name))
            runs[name] += 1
            same, wider, faults = (
                same + outcome.identical,
                wider + len(outcome.wider),
                faults + len(outcome.faults),
            )
            for text in [f"FAULT {name} {text}" for text in outcome.faults] + [
                f"wider: {name} {text}" for text in outcome.wider
            ]:
                print(text, flush=True)
    print("runs: " + ", ".join(f"{name} {count}" for name, count in runs.items()))
    print("disturbed: " + ", ".join(f"{how} {count}" for how, count in counts.items()))
    print(
        f"{same} records identical, {wider} with a wider gap than uninterrupted, {faults} lost, "
        "contradictory or with another status"
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
