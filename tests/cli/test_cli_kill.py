"""kill -9 at random moments, resume, kill again: in the end the run holds what an undisturbed one holds."""

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_workshop import Ask, forked

from holdfast.certify.certify import SEARCH_STATE_KEY
from holdfast.cli import main
from holdfast.store import Store

DIGITS = (
    "-m",
    "holdfast.datasets.digits_networks:digits_cnn",
    "-d",
    "holdfast.datasets.digits:images",
    "--domain",
    "0,1",
)
IMAGES = ("-m", "cli_own_code:pooled", "-d", "images.npz", "--domain", "0,1")
COMMANDS = {
    "monitor": ("monitor", "evaluate", "--limit", "100", "--seed", "3"),
    "saliency": ("saliency", *DIGITS, "--limit", "20", "--batch", "1", "--pictures", "0"),
    "testgen": ("testgen", *IMAGES, "--criterion", "boundary", "--batch", "2", "--pictures", "0"),
    "testgen blind": (
        "testgen", "-m", "cli_own_code:black_box", "-d", "two.npz", "--domain", "0,1", "--criterion", "multisection", "--sections", "30",
        "--batch", "2", "--pictures", "0",
    ),
    "worst": ("worst", *IMAGES, "--radius", "0.2", "--batch", "1"),
}  # fmt: skip


def ended(arguments: Sequence[str]) -> int:
    """holdfast ARGUMENTS in this process; the exit code."""
    with open("said.txt", "w") as told, contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            main(arguments)
        except SystemExit as ending:
            return int(ending.code or 0)
    return 9


def finished(run: str) -> int:
    """So many records of the run are finished; -1: it has not begun."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{run}/run.sqlite?mode=ro", uri=True)) as found:
            (count,) = found.execute(
                "SELECT count(*) FROM record WHERE status IN ('finished', 'closed')"
            ).fetchone()
            return int(count)
    except sqlite3.Error:
        return -1


def lived(arguments: Sequence[str], enough: float | None, chance: random.Random) -> bool:
    """In a copy of this process, which dies without a word at some moment after so many records were finished."""
    child = forked(lambda: ended(arguments))
    while enough is None or finished("run") < enough:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, (arguments, status, Path("said.txt").read_text())
            return True
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def kills(begin: Sequence[str], chance: random.Random) -> int:
    """Once undisturbed (whole), then killed and resumed until it ends (run): how often it died before the last record."""
    assert ended([*begin, "--out", "whole"]) == 0, Path("said.txt").read_text()
    count, total = 0, finished("whole")
    for left in (3, 2, 1, 0):
        now = max(0, finished("run"))
        enough = now + chance.uniform(0.1, 0.6) * (total - now) if left else None
        if lived(
            ["resume", "run", "--trust"] if finished("run") >= 0 else [*begin, "--out", "run"], enough, chance
        ):
            break
        count += finished("run") < total
    return count


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
def test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one(
    name: str, ask: Ask, workshop: Path
) -> None:
    images = np.random.default_rng(0).random((5, 1, 6, 6), dtype=np.float32) * np.float32(0.4)
    np.savez("images.npz", x=images, y=np.arange(5) % 3)
    np.savez("two.npz", x=np.load("data.npz")["x"], y=np.zeros(6, int))
    seed = random.randrange(10**6)
    assert kills(COMMANDS[name], random.Random(seed)) >= 1, f"seed {seed}: it was never killed in the middle"
    assert content("run") == content("whole"), f"seed {seed}"
    with Store.open("run") as run, Store.open("whole") as whole:
        for mine, other in zip(run.records_with_artefacts(), whole.records_with_artefacts(), strict=True):
            assert mine.aside.keys() == other.aside.keys()
            for key in mine.aside.keys() - {SEARCH_STATE_KEY}:
                torch.testing.assert_close(mine.aside[key], other.aside[key], rtol=0, atol=0, equal_nan=True)
    for path in Path("whole").glob("*.npz"):
        with np.load(path) as one, np.load(Path("run") / path.name) as two:
            assert one.keys() == two.keys()
            for key in one:
                np.testing.assert_array_equal(one[key], two[key])
