"""Runs as folders: two at once, damaged and salvaged, cut into parts and merged, all by the command line."""

import contextlib
import os
import sqlite3
from pathlib import Path

from cli_workshop import Ask

from holdfast.store import FILE, Store

BEGIN = (
    "radius",
    "-m",
    "cli_own_code:linear",
    "-d",
    "data.npz",
    "--limit",
    "3",
    "--methods",
    "pgd",
    "--batch",
    "1",
    "--out",
    "whole",
)


def told(folder: str) -> list[object]:
    with Store.read(folder) as store:
        return [(r.key, r.bracket, r.status) for r in store.stream()]


def test_a_damaged_run_goes_on_from_what_was_saved(ask: Ask) -> None:
    assert ask(*BEGIN).code == 0
    before = told("whole")
    with contextlib.closing(sqlite3.connect(f"whole/{FILE}")) as connection, connection:
        connection.execute(
            "UPDATE record SET body = replace(body, '\"value\": ', '\"value\": 1') WHERE position = 1"
        )
    for command in (
        ("report", "whole"),
        ("gate", "whole", "--at", "0.1", "--min-certified", "0"),
        ("compare", "whole", "whole"),
        ("export", "whole", "records.csv"),
        ("resume", "whole", "--trust"),
    ):
        said = ask(*command)
        assert said.code == 2, said
        assert "the record of input 1 was changed since it was written" in said.err
        assert "holdfast salvage whole --out NEW" in said.err
    said = ask("salvage", "whole", "--out", "saved")
    assert said.code == 0, said
    assert "2 of 3 records saved; 1 are not as they were written and are left out" in said.out
    assert ask("resume", "saved", "--trust").code == 0
    assert told("saved") == before
    assert "is taken" in ask("salvage", "whole", "--out", "saved").err


def test_parts_of_a_run_are_merged_and_the_rest_is_asked(ask: Ask) -> None:
    assert ask(*BEGIN).code == 0
    before = told("whole")
    for name, gone in (("one", "position = 0"), ("two", "position != 0")):
        assert ask("merge", "whole", "-o", name).code == 0
        with contextlib.closing(sqlite3.connect(f"{name}/{FILE}")) as connection, connection:
            connection.execute(f"DELETE FROM record WHERE {gone}")
    with contextlib.closing(sqlite3.connect(f"one/{FILE}")) as connection, connection:
        connection.execute("DELETE FROM record WHERE position = 2")  # nobody has it
    said = ask("merge", "one", "two", "--out", "joined")
    assert (said.code, said.out) == (0, "run: joined\n"), said
    assert [key for key, _, _ in told("joined")] == [key for key, _, _ in before[:2]]
    assert ask("resume", "joined", "--trust").code == 0
    assert told("joined") == before
    assert ask("radius", *BEGIN[1:-1], "other", "--seed", "1").code == 0
    said = ask("merge", "whole", "other", "--out", "never")
    assert said.code == 2
    assert "seed is 0 there and 1 here" in said.err
    assert not Path("never").exists()


def test_two_at_once_and_readers_meanwhile(ask: Ask) -> None:
    assert ask(*BEGIN).code == 0
    with Store.open("whole"):
        said = ask("resume", "whole", "--trust")
        assert said.code == 2
        assert f"being written by process {os.getpid()} on " in said.err
        for command in (
            ("report", "whole"),
            ("show", "whole"),
            ("export", "whole", "records.csv"),
            ("compare", "whole", "whole"),
        ):
            assert ask(*command).code == 0
    assert ask("resume", "whole", "--trust").code == 0


COUNTED = """
import os, time
import numpy as np

def data():
    x = np.random.RandomState(0).rand(6, 4).astype("float32")
    x[3, 0] = np.float32(0.01234567)
    return {"x": x, "y": [0] * 6}

def model():
    def asked(x):
        with open("calls.txt", "a") as calls:
            calls.write(f"{os.getpid()} {len(x)}\\n")
        if FAULT and (x[:, 0] == np.float32(0.01234567)).any():
            time.sleep(600)
        return np.stack([x.sum(1) + 9, -x.sum(1)], 1)
    return asked
"""


def counted(workshop: Path, fault: bool) -> tuple[str, ...]:
    """The question about a model that notes its calls, and may hang at one input."""
    name = f"counted_{fault}"  # a module is imported once
    (workshop / f"{name}.py").write_text(COUNTED.replace("FAULT", str(fault)))
    model = ("-m", f"{name}:model", "--fingerprint", f"{name}.py", "-d", f"{name}:data", "--domain", "0,1")
    return ("radius", *model, "--methods", "corners", "-o", "run")


def test_the_run_asks_the_model_nothing_after_the_search(workshop: Path, ask: Ask) -> None:
    """Classes come from the workers, and what the page shows beside them from a watched copy of the run."""
    assert ask(*counted(workshop, fault=False)).code == 0
    with Store.open("run") as store:
        assert [stored.prediction for stored in store.inputs()] == [0] * 6
    calls = [line.split() for line in Path("calls.txt").read_text().splitlines()]
    own = [int(rows) for process, rows in calls if int(process) == os.getpid()]
    assert own, "it asks about two inputs before"
    assert max(own) <= 2


def test_a_model_that_hangs_at_one_input_ends_with_the_budget(workshop: Path, ask: Ask) -> None:
    assert ask(*counted(workshop, fault=True), "--seconds", "1").code == 0
    with Store.open("run") as store:
        (stuck,) = [stored for stored in store.inputs() if stored.index == 3]
        assert stuck.prediction is None, "what is not known is shown as not known"
