"""`holdfast check`: an honest run of every command holds, and whatever somebody changed by hand is found, with new seals too."""

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_workshop import Ask
from test_cli_verify import SQUARE, write_net

from holdfast.cli import main
from holdfast.store import Store
from holdfast.store.rows import change_digest, pack, record_of, seal, unpack
from holdfast.store.tables import INPUT, RECORD

OWN = """
import torch
from torch import nn

def small(seed=0):
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Flatten(), nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)).eval()
    with torch.no_grad():
        for weights in made.parameters():
            weights *= 6  # so much curvature that proof and witness stay apart
    return made

def other():
    return small(1)

def inputs():
    x = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0))
    return {"x": x, "y": small()(x).argmax(-1)}

def wrong():
    found = inputs()
    return {**found, "y": (found["y"] + 1) % 3}

def flat():
    return {"x": torch.zeros(2, 7), "y": [0, 1]}
"""
LINEAR = ("--model", "cli_own_code:linear", "--domain", "0,1", "--data", "data.npz", "--limit", "2")
OWN_FILES = ("--model", "cli_own_network:small", "--data", "cli_own_network:inputs")
HONEST: dict[
    str, tuple[tuple[str, ...], int]
] = {  # and the exit code: 2 where the answer is none that can be checked
    "counts": (("radius", *LINEAR, "--norm", "0"), 0),
    "frames": (("radius", *LINEAR, "--norm", "2", "--frames", "each"), 0),
    "worst": (("worst", *LINEAR, "--radius", "0.05"), 0),
    "risk": (("risk", *LINEAR[:-1], "1", "--radius", "0.05", "--queries", "50", "--pictures", "0"), 0),
    "reach": (
        (
            "reach",
            "cli_own_code:linear",
            "--domain",
            "0,1",
            "--data",
            "data.npz",
            "--radius",
            "0.1",
            "--limit",
            "1",
        ),
        0,
    ),
    "verify": (("verify", "instances.csv"), 0),
    "smoothing": (("smoothing", *LINEAR, "--sigma", "0.1", "--samples", "50"), 2),
    "saliency": (("saliency", *LINEAR, "--pictures", "0"), 2),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a small network."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "cli_own_network.py").write_text(OWN)
    asked = (
        "--model",
        "cli_own_network:small",
        "--data",
        "cli_own_network:inputs",
        "--methods",
        "pgd,certify",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ending:
            main(["radius", *asked, "--out", "run", "--executor", "here"])
        assert not ending.value.code
    return folder


@pytest.fixture
def run(made: Path, workshop: Path) -> Path:
    """A copy of it."""
    shutil.copytree(made / "run", workshop / "run")
    shutil.copy(made / "cli_own_network.py", workshop)
    return workshop / "run"


def change_record(
    run: Path, change: Callable[[dict[str, Any], list[Any]], None], *, sealed: bool = True, index: int = 0
) -> None:
    """change: given what the record says, and its columns: position, frame, part, lower, upper, status, body, witnesses, news, seal."""
    with closing(sqlite3.connect(run / "run.sqlite")) as connection, connection:
        [row] = connection.execute(f"SELECT {RECORD} FROM record WHERE position = ?", (index,)).fetchall()
        columns = list(row)
        body = json.loads(columns[6])
        change(body, columns)
        columns[3:5] = (
            float(body[side]["value"]) if body[side]["value"] != "inf" else None
            for side in ("lower", "upper")
        )
        columns[6] = json.dumps(body)
        if sealed:
            columns[10] = seal(tuple(columns[:10]))
            with suppress(Exception):  # ends that exclude each other make no record
                columns[9] = change_digest(record_of(tuple(columns)))
            columns[10] = seal(tuple(columns[:10]))
        names = ", ".join(f"{name} = ?" for name in RECORD.split(", "))
        connection.execute(f"UPDATE record SET {names} WHERE position = ?", (*columns, index))


def change_input(run: Path, label: int) -> None:
    with closing(sqlite3.connect(run / "run.sqlite")) as connection, connection:
        [row] = connection.execute(f"SELECT {INPUT} FROM input WHERE position = 0").fetchall()
        columns = (row[0], label, *row[2:-1])
        connection.execute("UPDATE input SET label = ?, seal = ? WHERE position = 0", (label, seal(columns)))


def change_question(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with closing(sqlite3.connect(run / "run.sqlite")) as connection, connection:
        told = dict(connection.execute("SELECT name, value FROM meta"))
        question = json.loads(told["question"])
        change(question)
        text = json.dumps(question)
        for name, value in (("question", text), ("seal", seal((text, told["provenance"])))):
            connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_run_holds(workshop: Path, ask: Ask, name: str) -> None:
    if name == "verify":
        write_net(workshop / "small.onnx")
        for answer, least in (("sat", 1.9), ("unsat", 2.1)):
            (workshop / f"{answer}.vnnlib").write_text(SQUARE + f"(assert (>= Y_0 {least}))\n")
        (workshop / "instances.csv").write_text("small.onnx,sat.vnnlib,20\nsmall.onnx,unsat.vnnlib,20\n")
    arguments, code = HONEST[name]
    assert ask(*arguments, "--out", "mine", "--executor", "here").code == 0
    said = ask("check", "mine", *(() if name == "verify" else LINEAR[:2]))
    assert said.code == code, said.out
    assert "differs" not in said.out
    for what in ("seals", "model", "question", "inputs", "records", "witnesses", "proofs"):
        assert f"{what}: ok" in said.out
    assert ("not checked" in said.out) == (code == 2)


def test_files_are_where_the_auditor_has_them_and_the_folder_stays_as_it_is(workshop: Path, ask: Ask) -> None:
    """Words, whose run names four files. A log that nobody brought in is read too."""
    asked = (
        "radius",
        "--model",
        "reader.onnx",
        "--vocabulary",
        "words.txt",
        "--data",
        "text.tsv",
        "--substitutes",
        "substitutes.json",
    )
    assert ask(*asked, "--limit", "1", "--out", "mine", "--executor", "here").code == 0
    with Store.open("mine") as store:
        store.replace([replace(record, seconds=9.0) for record in store.records()])
        shutil.copytree("mine", "received", ignore=shutil.ignore_patterns("*-shm"))
    assert (workshop / "received" / "run.sqlite-wal").stat().st_size
    elsewhere = workshop / "elsewhere"
    elsewhere.mkdir()
    for name in ("reader.onnx", "words.txt", "text.tsv", "substitutes.json"):
        shutil.move(workshop / name, elsewhere / f"a-{name}")
    before = {file.name: file.read_bytes() for file in (workshop / "received").iterdir()}
    given = ("--model", "elsewhere/a-reader.onnx", "--data", "elsewhere/a-text.tsv")
    said = ask("check", "received", *given)
    assert said.code == 2
    assert "question: unchecked" in said.out
    assert "words.txt" in said.out
    more = (
        "--with",
        "vocabulary=elsewhere/a-words.txt",
        "--with",
        "substitutes=elsewhere/a-substitutes.json",
    )
    said = ask("check", "received", *given, *more)
    assert said.code == 0, said.out
    assert {file.name: file.read_bytes() for file in (workshop / "received").iterdir()} == before


def test_a_number_that_was_changed_by_hand(run: Path, ask: Ask) -> None:
    change_record(run, lambda body, columns: body["lower"].update(value=body["upper"]["value"]), sealed=False)
    said = ask("check", "run", *OWN_FILES)
    assert said.code == 1
    assert "seals: differs" in said.out
    assert "input 0: the record of input 0 was changed since it was written" in said.out.replace("0/-1/", "0")


@pytest.mark.parametrize("method", ["Certify", "definition"])
def test_a_lower_end_that_was_raised_with_a_new_seal(run: Path, ask: Ask, method: str) -> None:
    def raised(body: dict[str, Any], columns: list[Any]) -> None:
        between = (body["lower"]["value"] + body["upper"]["value"]) / 2
        assert between > 1.01 * body["lower"]["value"]
        body["lower"].update(value=between, method=method)

    change_record(run, raised)
    said = ask("check", "run", *OWN_FILES)
    assert said.code == 1
    assert "seals: ok" in said.out
    assert "proofs: differs, 1 of 2 were proved again" in said.out
    assert "was not proved again, only" in said.out


def test_a_lower_end_above_what_can_be_met_is_a_contradiction(run: Path, ask: Ask) -> None:
    """Though the witness that shows it was taken out of the run."""

    def false(body: dict[str, Any], columns: list[Any]) -> None:
        body["lower"]["value"] = 2 * body["upper"]["value"]
        body["upper"].update(value="inf", kind="proved", method="definition")
        columns[8] = None

    change_record(run, false)
    said = ask("check", "run", *OWN_FILES, "--out", "findings.json")
    assert said.code == 1
    assert "seals: ok" in said.out
    assert "contradiction: differs" in said.out
    assert "PGD found" in said.out
    told = json.loads(Path("findings.json").read_text())
    assert told["answer"] == "something differs"
    assert {one["what"]: one["state"] for one in told["findings"]}["contradiction"] == "differs"


def test_ends_that_exclude_each_other(run: Path, ask: Ask) -> None:
    change_record(run, lambda body, columns: body["lower"].update(value=2 * body["upper"]["value"]))
    said = ask("check", "run", *OWN_FILES)
    assert said.code == 1
    assert said.out.startswith("contradiction: differs")


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_a_witness_that_was_moved(run: Path, ask: Ask, share: float) -> None:
    """Nearer it shows nothing, farther it shows less than the record says."""
    with Store.read(run) as store:
        centre = torch.from_numpy(store.inputs()[0].x)

    def moved(body: dict[str, Any], columns: list[Any]) -> None:
        witness = unpack(columns[8])
        columns[8] = pack(centre.to(witness) + share * (witness - centre.to(witness)))

    change_record(run, moved)
    said = ask("check", "run", *OWN_FILES, "--sample", "0")
    assert said.code == 1
    assert "seals: ok" in said.out
    assert "witnesses: differs, 1 of 2" in said.out
    assert "input 0: its witness should show" in said.out


def test_another_model_and_other_data(run: Path, ask: Ask) -> None:
    said = ask("check", "run", *OWN_FILES, "--model", "cli_own_network:other", "--sample", "0")
    assert said.code == 1
    assert "model: differs" in said.out
    assert "data: ok" in said.out
    assert "records: differs, 2 of 2" in said.out
    said = ask("check", "run", *OWN_FILES, "--data", "cli_own_network:wrong", "--sample", "0")
    assert said.code == 1
    assert "data: differs" in said.out
    assert "model: ok" in said.out
    assert "inputs: differs" in said.out
    said = ask("check", "run", *OWN_FILES, "--data", "cli_own_network:flat")
    assert said.code == 2
    assert "question: unchecked" in said.out


def test_a_label_and_a_question_that_were_changed_with_new_seals(run: Path, workshop: Path, ask: Ask) -> None:
    shutil.copytree(run, workshop / "other")
    change_input(run, 7)
    said = ask("check", "run", *OWN_FILES, "--sample", "0")
    assert said.code == 1
    assert "inputs: differs" in said.out
    assert "labelled 7" in said.out
    change_question(workshop / "other", lambda question: question["asked"].update(norm="2"))
    said = ask("check", "other", *OWN_FILES, "--sample", "0")
    assert said.code == 1
    assert "question: differs, norm is 2 in the run, inf by its options" in said.out


def test_the_sample_is_drawn_by_its_seed_and_all_means_all(run: Path, ask: Ask) -> None:
    one, every = (
        ask("check", "run", *OWN_FILES, *more).out for more in (("--sample", "1", "--seed", "5"), ("--all",))
    )
    assert "proofs: ok, 1 of 1 were proved again, drawn with seed 5 from 2" in one
    assert "proofs: ok, 2 of 2 were proved again" in every


def test_no_time_and_no_sample_are_no_proof(run: Path, ask: Ask) -> None:
    said = ask("check", "run", *OWN_FILES, "--sample", "0")
    assert said.code == 2
    assert "proofs: unchecked, none of 2 were proved again" in said.out
    said = ask("check", "run", *OWN_FILES, "--seconds", "0")
    assert said.code == 1
    assert "proofs: differs, 0 of 2 were proved again" in said.out
    assert "this does not refute the others" in said.out


def test_what_cannot_be_checked(workshop: Path, ask: Ask, run: Path) -> None:
    assert ask("check", "nowhere").code == 2
    assert "--with" in ask("check", "run", "--with", "words").err
    said = ask("check", "run", "--with", "substitutes=x.json", "--with", "spec=x")
    assert said.code == 2
    assert "has no spec" in said.out
    Store.create(workshop / "bare").close()
    said = ask("check", "bare")
    assert said.code == 2
    assert "question: unchecked" in said.out
    (workshop / "bare" / "run.sqlite").write_bytes(b"no database")
    said = ask("check", "bare")
    assert said.code == 1
    assert "seals: differs" in said.out


def test_code_that_only_the_run_names_is_not_run(
    run: Path, workshop: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "cli_own_network", raising=False)
    (workshop / "cli_own_network.py").write_text("open('ran', 'w').close()\n" + OWN)
    said = ask("check", "run")
    assert said.code == 2
    assert "model 'cli_own_network:small' is code, and a file names it" in said.out
    assert not (workshop / "ran").exists()
    shutil.copytree(run, workshop / "tokens")
    change_question(
        workshop / "tokens",
        lambda question: question["options"]["network"].update(tokenizer="cli_own_network:small"),
    )
    assert (
        "tokenizer 'cli_own_network:small' is code"
        in ask("check", "tokens", "--model", "lstm.onnx", *OWN_FILES[2:]).out
    )
    shutil.copytree(run, workshop / "other")
    change_question(
        workshop / "other",
        lambda question: question["options"]["network"].update(model="lstm.pt2", trust=True),
    )
    said = ask("check", "other", *OWN_FILES[2:])
    assert said.code == 2
    assert "--trust" in said.out


def test_a_model_that_was_not_hashed_is_said_to_be_unchecked(workshop: Path, ask: Ask) -> None:
    (workshop / "cli_own_factor.py").write_text(
        "import numpy as np\ndef reads():\n    return lambda x: x.reshape(len(x), -1)[:, :3] * float(open('factor.txt').read())\n"
    )
    (workshop / "factor.txt").write_text("1.0")
    asked = (
        "radius",
        "--model",
        "cli_own_factor:reads",
        "--data",
        "data.npz",
        "--limit",
        "1",
        "--methods",
        "mesh",
        "--queries",
        "50",
    )
    assert ask(*asked, "--out", "mine").code == 0
    said = ask("check", "mine", "--model", "cli_own_factor:reads")
    assert said.code == 2
    assert "model: unchecked" in said.out
    assert "witnesses: ok" in said.out


def test_the_same_in_python(run: Path) -> None:
    import holdfast as hf

    found = hf.check(run, model="cli_own_network:small", data="cli_own_network:inputs", sample=None)
    assert found, str(found)
    assert {one.what for one in found.findings} >= {"seals", "records", "witnesses", "proofs"}
    assert str(found).endswith("check: all held")
    another = hf.check(run, model="cli_own_network:other", data="cli_own_network:inputs", sample=0)
    assert another.state == "differs", str(another)
    assert "something differs" in str(another)
    with pytest.raises(hf.HoldfastError, match="data is dict"):
        hf.check(run, data={})
