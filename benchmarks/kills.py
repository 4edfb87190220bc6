"""Runs that are killed with -9 at random moments and resumed: do they end with the same results?

python -m benchmarks.kills --kills 20 -- reach my.module:net --shape 2 --box 0:10
python -m benchmarks.kills --kills 20 -- radius -m net.onnx -d data.npz --limit 8

After -- comes any measuring command, without --out. It runs once without interruption. Then it runs again and
again, killed at a random moment within the time that the first run took, resumed, and possibly killed again.
Every command runs in a forked child, so that it is killed during its work and not during imports.

At the end the records are compared: the same inputs, the same statuses, no bounds that contradict the other
run, for verify the same verdicts, and no gap wider than --gap or that of the uninterrupted run. Without
--strict, wider gaps are only counted, since an interrupted search may end with other bounds.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn

from holdfast.cli import main as holdfast
from holdfast.cli import run as _imported  # noqa: F401  before any child is forked
from holdfast.network import Network
from holdfast.result import Record
from holdfast.store import FILE, Store
from holdfast.verification import verdict

DONE = ("closed", "finished")


@dataclass(frozen=True)
class Outcome:
    """One run that was killed: how often, and how its records compare with those of the uninterrupted run."""

    kills: int
    identical: int
    wider: tuple[str, ...]
    faults: tuple[str, ...]


def spent(arguments: Sequence[str], folder: Path, seconds: float | None = None) -> tuple[int, float]:
    """Run `holdfast ARGUMENTS` in a forked child, killed after `seconds`.

    Returns its exit code (-9: killed) and seconds.
    """
    began, child = time.monotonic(), forked(arguments, folder.with_suffix(".log"))
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        passed = time.monotonic() - began
        if done:
            return os.waitstatus_to_exitcode(status), passed
        if seconds is not None and passed >= seconds:
            os.kill(child, signal.SIGKILL)
            seconds = None
        time.sleep(0.001)


def forked(arguments: Sequence[str], log: Path) -> int:
    """Run `holdfast ARGUMENTS` in a forked copy of this process and return its process id."""
    _warm()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(written, 1)
            os.dup2(written, 2)
            torch.set_num_threads(1)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            holdfast(list(arguments))
            code = 0
        except SystemExit as ending:
            code = int(ending.code or 0)
        finally:
            os._exit(code)
    return child


@cache
def _warm() -> None:
    """Trace a small network, since torch imports its tracer at the first trace."""
    Network.from_torch(nn.Sequential(nn.Linear(1, 1)).eval(), shape=(1,)).program(torch.zeros(1, 1))


def killed(arguments: Sequence[str], folder: Path, whole: float, chance: random.Random, most: int = 3) -> int:
    """Start a run and kill it at a random moment; resume and kill it up to `most` times; finish it.

    Returns the kills.
    """
    count = 0
    for turn in range(most + 1):
        begun = (folder / FILE).is_file() and not unborn(folder)
        command = ["resume", str(folder), "--trust"] if begun else [*arguments, "--out", str(folder)]
        last = turn == most or (turn > 0 and chance.random() < 0.5)
        code, _ = spent(command, folder, None if last else chance.uniform(0, whole))
        if code == -signal.SIGKILL:
            count += 1
        elif code not in (0, 1):
            raise RuntimeError(
                f"holdfast {' '.join(command)} ended with {code}: "
                f"{folder.with_suffix('.log').read_text()[-2000:]}"
            )
        else:
            return count
    return count


def unborn(folder: Path) -> bool:
    """Whether the run was killed before its first transaction, so that it must be started again."""
    try:
        Store.open(folder).close()
    except Exception as error:
        return "damaged" in str(error)
    return False


def compared(folder: Path, calm: Path, kills: int = 0) -> Outcome:
    """Compare the records of a killed run with those of an uninterrupted one."""
    with Store.open(folder) as mine, Store.open(calm) as theirs:
        gap, command = theirs.question.means.gap, theirs.question.command
        ours, others = ({r.key: r for r in store.records()} for store in (mine, theirs))
    faults = [f"input {key}: only one of the runs has it" for key in ours.keys() ^ others.keys()]
    wider, identical = [], 0
    for key in sorted(ours.keys() & others.keys()):
        a, b = ours[key].bracket, others[key].bracket
        identical += (a.lower.value, a.upper.value, ours[key].status) == (
            b.lower.value,
            b.upper.value,
            others[key].status,
        )
        slack = sum(end.slack for end in (a.lower, a.upper, b.lower, b.upper))
        if a.lower.value > b.upper.value + slack or b.lower.value > a.upper.value + slack:
            faults.append(f"input {key}: {a} and {b} contradict each other")
        if (ours[key].status in DONE) != (others[key].status in DONE):
            faults.append(f"input {key}: {ours[key].status} here, {others[key].status} undisturbed")
        if command != "verify" and a.gap > max(gap, b.gap) * (1 + 1e-9):
            wider.append(f"input {key}: {a} is wider than {b}, by {a.gap - b.gap:.2g}")
    if command == "verify":
        said = [
            {i: verdict([r for k, r in run.items() if k.index == i]).answer for i in {k.index for k in run}}
            for run in (ours, others)
        ]
        faults += [
            f"instance {i}: {said[0].get(i)} here, {said[1].get(i)} undisturbed"
            for i in said[1]
            if said[0].get(i) != said[1][i]
        ]
    return Outcome(kills, identical, tuple(wider), tuple(faults))


def records_of(folder: Path) -> list[Record]:
    with Store.open(folder) as store:
        return store.records()


def main() -> None:
    given = sys.argv[1:]
    place = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="minimum number of kills in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strict", action="store_true", help="count a wider gap as a fault")
    chosen, command = parser.parse_args(given[:place]), given[place + 1 :]
    if not command:
        parser.error("give a command after --, as in: -- reach my.module:net --shape 2 --box 0:10")
    chance, kills, wrong, runs = random.Random(chosen.seed), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="kills-") as place_:
        folder = Path(place_)
        code, whole = spent([*command, "--out", str(folder / "calm")], folder / "calm")
        print(
            f"uninterrupted: exit code {code}, {whole:.1f} s, {len(records_of(folder / 'calm'))} records",
            flush=True,
        )
        while kills < chosen.kills:
            runs += 1
            name = folder / f"run{runs}"
            outcome = compared(name, folder / "calm", killed(command, name, whole, chance))
            kills += outcome.kills
            whole *= 1 if outcome.kills else 0.8  # The first run may have taken longer than the others.
            faults = [*outcome.faults, *(outcome.wider if chosen.strict else ())]
            wrong += bool(faults)
            print(
                f"run {runs}: {outcome.kills} kills, {outcome.identical} records identical, "
                f"{len(outcome.wider)} with a wider gap",
                flush=True,
            )
            for text in faults:
                print(f"  FAULT {text}", flush=True)
    print(f"{kills} kills in {runs} runs, {wrong} runs with faults")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
