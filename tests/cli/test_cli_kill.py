"""kill -9 at random moments, resume, kill again: in the end the run holds what an undisturbed one holds."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_workshop import SOURCE, Ask

from holdfast.store import Store

Start = Callable[..., "subprocess.Popen[str]"]
DIGITS = ("-m", "holdfast.datasets.digits_networks:digits_cnn", "-d", "holdfast.datasets.digits:images", "--domain", "0,1")
IMAGES = ("-m", "cli_own_code:pooled", "-d", "images.npz", "--domain", "0,1")
COMMANDS = {
    "monitor": ("monitor", "evaluate", "--limit", "100", "--seed", "3"),
    "saliency": ("saliency", *DIGITS, "--limit", "40", "--batch", "1", "--pictures", "0"),
    "testgen": ("testgen", *IMAGES, "--criterion", "boundary", "--batch", "2", "--pictures", "0"),
    "testgen blind": (
        "testgen", "-m", "cli_own_code:black_box", "-d", "two.npz", "--domain", "0,1", "--criterion", "multisection", "--sections", "30",
        "--batch", "2", "--pictures", "0",
    ),
}  # fmt: skip
# The undisturbed run loads everything heavy, torch's tracer too; each of the others is a fork that dies without a word.
HARNESS = """
import contextlib, json, os, random, signal, sqlite3, sys, time
import holdfast.cli

begin, seed = json.loads(sys.argv[1]), int(sys.argv[2])

def ended(arguments):
    with open("said.txt", "w") as told, contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            holdfast.cli.main(arguments)
        except SystemExit as ending:
            return int(ending.code or 0)
    return 9

def run(arguments, enough=None):
    # False: it was killed, at some moment after so many records were finished
    child = os.fork()
    if child == 0:
        os._exit(ended(arguments))
    while enough is None or finished() < enough:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, (arguments, status, open("said.txt").read())
            return True
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False

def finished(folder="run"):
    try:
        with contextlib.closing(sqlite3.connect(f"file:{folder}/run.sqlite?mode=ro", uri=True)) as found:
            return found.execute("SELECT count(*) FROM record WHERE status IN ('finished', 'closed')").fetchone()[0]
    except sqlite3.Error:
        return -1

chance = random.Random(seed)
assert ended([*begin, "--out", "whole"]) == 0, open("said.txt").read()
kills, total = 0, finished("whole")
for left in (3, 2, 1, 0):
    now = max(0, finished())
    enough = now + chance.uniform(0.1, 0.6) * (total - now) if left else None
    begun = finished() >= 0
    if run(["resume", "run"] if begun else [*begin, "--out", "run"], enough):
        break
    kills += finished() < total
print(kills)
"""


def content(run: str) -> list[tuple[Any, ...]]:
    """All that a run knows but the clock."""
    with Store.open(run) as store:
        beside = {name: store.artefacts(name) for name in ("saliency", "made", "kept", "interval")}
        return [
            (
                str(r.key), r.goal, r.status, r.bracket, *(shown(end.evidence.witness) for end in (r.bracket.lower, r.bracket.upper)),
                *(shown(kept.get(r.key)) for kept in beside.values()),
            )
            for r in store.records()
        ]  # fmt: skip


def shown(tensor: Any) -> Any:
    return None if tensor is None else (tuple(tensor.shape), tensor.numpy().tobytes())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one(name: str, ask: Ask, workshop: Path) -> None:
    images = np.random.default_rng(0).random((5, 1, 6, 6), dtype=np.float32) * np.float32(0.4)
    np.savez("images.npz", x=images, y=np.arange(5) % 3)
    np.savez("two.npz", x=np.load("data.npz")["x"], y=np.zeros(6, int))
    seed = random.randrange(10**6)
    command = [sys.executable, "-c", HARNESS, json.dumps(COMMANDS[name]), str(seed)]
    around = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, env=around)
    assert said.returncode == 0, said.stderr
    assert int(said.stdout) >= 1, f"seed {seed}: it was never killed in the middle"
    assert content("run") == content("whole"), f"seed {seed}"
    for path in Path("whole").glob("*.npz"):
        with np.load(path) as one, np.load(Path("run") / path.name) as two:
            assert one.keys() == two.keys()
            for key in one:
                np.testing.assert_array_equal(one[key], two[key])
