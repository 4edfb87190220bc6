"""`holdfast verify`: the competition's format for one question, a table for a list of them, one clear line for what is wrong."""

import gzip
import importlib
import json
import math
import re
import signal
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cli_workshop import Ask
from onnx import TensorProto, helper, numpy_helper

import holdfast as hf
from clocks import TestClock
from holdfast import time_limit
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.problem import Problem
from holdfast.store import Store
from holdfast.verification import BranchAndBound, verdict, vnnlib
from holdfast.verification.verify import UNREAD
from holdfast_check import check

SQUARE = (
    "".join(f"(declare-const X_{i} Real)\n(assert (>= X_{i} -1))\n(assert (<= X_{i} 1))\n" for i in range(2))
    + "(declare-const Y_0 Real)\n"
)


def write_net(file: Path, *, batched: bool = True) -> None:
    """Y_0 = max(X_0 + X_1, 0) - max(X_0 - X_1, 0), from -2 to 2 on the square."""
    shape = [1, 2] if batched else [2]
    first, last = np.array([[1, 1], [1, -1]], np.float32), np.array([[1], [-1]], np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "last"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1] if batched else [1])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(last, "last")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), file)


@pytest.fixture
def small(workshop: Path) -> Path:
    write_net(workshop / "small.onnx")
    (workshop / "sat.vnnlib").write_text(SQUARE + "(assert (>= Y_0 1.9))\n")
    (workshop / "unsat.vnnlib").write_text(SQUARE + "(assert (>= Y_0 2.1))\n")
    return workshop


def test_sat_is_followed_by_a_counterexample_that_can_be_read_back(small: Path, ask: Ask) -> None:
    said = ask("verify", "small.onnx", "sat.vnnlib")
    assert said.code == 0
    first, rest = said.out.split("\n", 1)
    assert first == "sat"
    found = {name: float(value) for name, value in re.findall(r"\((\w_\d+) ([^()]+)\)", rest.split(";")[0])}
    assert sorted(found) == ["X_0", "X_1", "Y_0"]
    assert rest.startswith("((X_0 ")
    assert rest.split(";")[0].strip().endswith("))")
    net = hf.Network.from_onnx(small / "small.onnx")
    assert float(net(torch.tensor([[found["X_0"], found["X_1"]]]))) == found["Y_0"] >= 1.9
    assert "replayed" in rest


def test_unsat_says_what_was_proved(small: Path, ask: Ask) -> None:
    said = ask("verify", "small.onnx", "unsat.vnnlib", "--seconds", "30")
    assert said.out.startswith("unsat\n; proved in float64")
    assert "real arithmetic" in said.out
    assert "sat\n(" not in said.out


def test_files_may_be_packed_and_without_a_batch_axis(small: Path, ask: Ask) -> None:
    write_net(small / "single.onnx", batched=False)
    for name in ("single.onnx", "small.onnx", "unsat.vnnlib"):
        (small / f"{name}.gz").write_bytes(gzip.compress((small / name).read_bytes()))
        (small / name).unlink()
    assert ask("verify", "small.onnx.gz", "unsat.vnnlib.gz").out.startswith("unsat\n")
    assert ask("verify", "single.onnx.gz", "unsat.vnnlib.gz").out.startswith("unsat\n")
    assert ask("verify", "single.onnx.gz", "sat.vnnlib").out.startswith("sat\n")


def test_a_recurrent_network(small: Path, ask: Ask) -> None:
    """The workshop's LSTM over a small box: its first output stays near what it says in the middle."""
    middle = torch.full((1, 3, 2), 0.5)
    says = float(hf.Network.from_onnx(small / "lstm.onnx")(middle)[0, 0])
    box = "".join(
        f"(declare-const X_{i} Real)\n(assert (>= X_{i} 0.45))\n(assert (<= X_{i} 0.55))\n" for i in range(6)
    )
    outputs = "".join(f"(declare-const Y_{i} Real)\n" for i in range(3))
    for shift, answer in ((0.2, "unsat"), (1e-4, "sat")):
        (small / "lstm.vnnlib").write_text(f"{box}{outputs}(assert (>= Y_0 {says + shift!r}))")
        assert ask("verify", "lstm.onnx", "lstm.vnnlib").out.startswith(f"{answer}\n")


def test_a_budget_that_runs_out(small: Path, ask: Ask) -> None:
    said = ask("verify", "small.onnx", "unsat.vnnlib", "--seconds", "0")
    assert said.out.startswith("timeout\n")
    assert "proved) and" in said.out


def test_a_network_that_cannot_be_bounded_is_unknown(small: Path, ask: Ask) -> None:
    box = "".join(
        f"(declare-const X_{i} Real)\n(assert (>= X_{i} -1))\n(assert (<= X_{i} 1))\n" for i in range(4)
    )
    (small / "waving.vnnlib").write_text(
        box + "".join(f"(declare-const Y_{i} Real)" for i in range(3)) + "(assert (>= Y_0 1000))"
    )
    said = ask("verify", "cli_own_code:waving", "waving.vnnlib", "--shape", "4")
    assert said.out.startswith("unknown\n; ")
    assert "no bound" in said.out


def instances(folder: Path, *lines: str) -> None:
    (folder / "instances.csv").write_text("\n".join(lines) + "\n")


def test_one_question_can_be_kept_and_taken_up_again(small: Path, ask: Ask) -> None:
    said = ask("verify", "small.onnx", "unsat.vnnlib", "--seconds", "0", "--out", "run")
    assert said.out.startswith("timeout\n")
    assert ask("resume", "run").out.startswith("timeout\n")
    assert ask("verify", "small.onnx", "unsat.vnnlib", "--out", "other").out.startswith("unsat\n; proved")
    assert ask("resume", "other").out.startswith("unsat\n; proved")


def test_a_list_becomes_a_table_and_a_run(small: Path, ask: Ask) -> None:
    (small / "other.vnnlib").write_text(SQUARE + "(assert (<= Y_0 -3)")  # damaged
    instances(small, "small.onnx,sat.vnnlib,20", "small.onnx,unsat.vnnlib,20", "small.onnx,other.vnnlib,20")
    (small / "key.csv").write_text(
        "network,property,expected\nsmall.onnx,sat.vnnlib,sat\nsmall.onnx,unsat.vnnlib,unsat?\n"
    )
    said = ask("verify", ".", "--key", "key.csv", "--out", "run")
    assert said.code == 0, said
    assert "2 of 3 solved; 2 agree with the key, 0 contradict it" in " ".join(said.out.split())
    assert "never closed" in said.out
    with Store.open("run") as store:
        records = store.records()
        assert [given.name for given in store.inputs()] == ["small sat", "small unsat", "small other"]
    assert [(r.key.index, verdict([r]).answer) for r in records] == [(0, "sat"), (1, "unsat")]
    assert ask("export", "run", "answers.csv").code == 0
    assert len(Path("answers.csv").read_text().splitlines()) == 3
    again = ask("verify", "instances.csv", "--out", "run")
    assert again.code == 2
    assert "already holds a run" in again.err
    later = ask("resume", "run")
    assert later.code == 0, later
    assert "2 of 3 solved; 2 agree with the key, 0 contradict it" in " ".join(later.out.split())
    (small / "sat.vnnlib").write_text(SQUARE + "(assert (>= Y_0 1.8))\n")
    changed = ask("resume", "run")
    assert changed.code == 2
    assert "the specification is not what this run was begun with" in changed.err


@pytest.fixture
def slow_reader(monkeypatch: pytest.MonkeyPatch, still_clock: TestClock) -> None:
    """A millisecond for every token of a property."""
    read = vnnlib.SpecReader.read_token

    def slow(reader: vnnlib.SpecReader, token: str, line: int) -> None:
        still_clock.advance(0.001)
        read(reader, token, line)

    monkeypatch.setattr(vnnlib.SpecReader, "read_token", slow)
    monkeypatch.setattr(time_limit, "ITEMS_PER_CHECK", 100)


@pytest.mark.usefixtures("slow_reader")
def test_a_budget_that_ends_while_the_property_is_read(small: Path, ask: Ask) -> None:
    text = SQUARE + "(assert (<= X_0 1))\n" * 2000  # 8 seconds; not the question that is asked below
    (small / "large.vnnlib").write_text(text + "(assert (>= Y_0 2.1))\n")
    arguments = "verify", "small.onnx", "large.vnnlib", "--executor", "here", "--seconds"
    for option in ((), ("--out", "run")):
        began = time.monotonic()
        said = ask(*arguments, "2", *option)
        assert (said.code, said.out.splitlines()[:2]) == (0, ["timeout", f"; {UNREAD}"]), said
        assert 2 <= time.monotonic() - began <= 3
    with Store.open("run") as store:
        (record,) = store.records()
    assert (record.status, record.bracket.note, record.bracket.lower.value) == ("stopped", UNREAD, -math.inf)
    assert ask("resume", "run").out.startswith(f"timeout\n; {UNREAD}\n")
    assert ask("resume", "run", "--seconds", "1000").out.startswith("unsat\n; proved")
    began = time.monotonic()
    assert ask(*arguments, "9").out.startswith("unsat\n; proved")
    assert 8 <= time.monotonic() - began <= 9  # It was read once.
    assert ask("resume", "run", "--seconds", "1").out.startswith("unsat\n")  # What was proved stays.


def test_a_budget_that_ends_while_the_search_is_prepared(
    small: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch, still_clock: TestClock
) -> None:
    def slow(_: Problem) -> None:
        still_clock.advance(10)
        time_limit.raise_if_expired()

    monkeypatch.setattr(Problem, "check", slow)
    said = ask("verify", "small.onnx", "unsat.vnnlib", "--executor", "here", "--seconds", "5")
    assert (said.code, said.out.partition("\n")[0]) == (0, "timeout"), said


@pytest.mark.usefixtures("slow_reader")
def test_instances_whose_property_is_not_read_in_time_stop_no_others(small: Path, ask: Ask) -> None:
    (small / "large.vnnlib").write_text(SQUARE + "(assert (<= X_0 1))\n" * 2000 + "(assert (>= Y_0 3))\n")
    large, others = "small.onnx,large.vnnlib,2", ("small.onnx,sat.vnnlib,20", "small.onnx,unsat.vnnlib,20")
    for place in (0, 1):  # The network of the run is that of the first instance.
        instances(small, *others[:place], large, *others[place:])
        said = ask("verify", ".", "--executor", "here", "--out", f"run{place}")
        assert said.code == 0, said
        (spent,) = re.findall(f"small large: timeout ([0-9.]+) s  {UNREAD}", said.out)
        assert 2 <= float(spent) <= 3
        assert "2 of 3 solved" in said.out
        with Store.open(f"run{place}") as store:
            statuses = [record.status for record in sorted(store.records(), key=lambda r: r.key.index)]
        assert [status == "stopped" for status in statuses] == [k == place for k in range(3)]
        later = ask("resume", f"run{place}", "--seconds", "1000")
        assert "3 of 3 solved" in later.out


def test_an_answer_against_the_key_is_loud(small: Path, ask: Ask) -> None:
    instances(small, "small.onnx,sat.vnnlib,20")
    (small / "key.csv").write_text("network,property,expected\nsmall.onnx,sat.vnnlib,unsat\n")
    said = ask("verify", "instances.csv", "--key", "key.csv")
    assert said.code == 1
    assert "(the key says unsat)" in said.out
    assert "1 contradict it" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("small.onnx",), ["a property is needed in addition to the model"]),
        ((".", "sat.vnnlib"), ["is a list of instances"]),
        (("small.onnx", "none.vnnlib"), ["none.vnnlib: no such file"]),
        (("none.onnx", "sat.vnnlib"), ["none.onnx: no such file"]),
        (("small.onnx", "open.vnnlib"), ["open.vnnlib:7: ", "never closed"]),
        (("small.onnx", "wide.vnnlib"), ["has 3 inputs", "takes 2"]),
        (("none.csv",), ["none.csv: no such file"]),
        (("small.onnx", "sat.vnnlib", "--seconds", "-1"), ["seconds must not be negative"]),
    ],
)
def test_what_a_user_gets_wrong(
    small: Path, refused: Ask, arguments: tuple[str, ...], words: list[str]
) -> None:
    (small / "open.vnnlib").write_text(SQUARE.rstrip("\n") + "(assert (<= Y_0 1)")
    (small / "wide.vnnlib").write_text(
        SQUARE + "(declare-const X_2 Real)(assert (<= X_2 1))(assert (>= X_2 1))"
    )
    said = refused("verify", *arguments)
    for word in words:
        assert word in said.err, said.err


def test_ctrl_c_never_says_unsat(small: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while the first part is looked at; without it the answer would be unsat."""
    look = InputSplit.look

    def interrupted(self: InputSplit, *arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return look(self, *arguments)

    monkeypatch.setattr(InputSplit, "look", interrupted)
    monkeypatch.setattr(BranchAndBound, "_bound_quickly", lambda self, state: state)
    monkeypatch.setattr(
        importlib.import_module("holdfast.verification.branch_and_bound"), "fixes_inputs", lambda *_: False
    )
    said = ask("verify", "small.onnx", "unsat.vnnlib")
    assert said.code == 130
    assert said.out.startswith("unknown\n; interrupted\n")
    instances(small, "small.onnx,sat.vnnlib,20", "small.onnx,unsat.vnnlib,20")
    listed = ask("verify", ".")
    assert listed.code == 130
    assert "interrupted: 1 of 2 are answered." in listed.out
    assert "unsat:" not in listed.out.replace("small unsat:", "")


def test_a_property_is_read_once(small: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some take a minute, and were read three times, twice of them outside the budget."""
    read: list[object] = []
    inner = vnnlib.read_vnnlib
    monkeypatch.setattr(vnnlib, "read_vnnlib", lambda file: read.append(file) or inner(file))
    assert ask("verify", "small.onnx", "unsat.vnnlib", "--executor", "here").out.startswith("unsat")
    assert len(read) == 1


def test_an_instance_that_does_not_end_by_itself_is_ended(
    small: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(
        "holdfast.verification.verify"
    )  # the package gives its name to a function
    monkeypatch.setattr(module, "answer_instance", lambda *_, **__: time.sleep(600))
    monkeypatch.setattr(importlib.import_module("holdfast.commands.verify"), "LATE", 0.1)
    assert ask(
        "verify", "small.onnx", "unsat.vnnlib", "--seconds", "0.2", "--executor", "here"
    ).out.startswith("timeout")


def test_page_bundle_certificate_and_checker_state_the_claim_with_names(small: Path, ask: Ask) -> None:
    """One sentence everywhere, apart from how the model is named; names of variables that do not exist are refused at once."""
    names = small / "names.csv"
    names.write_text("variable,name,unit,scale,shift\nX_0,speed,m/s,10,25\nX_1,gap,m,,\nY_0,brake,,,\n")
    said = ask("verify", "small.onnx", "unsat.vnnlib", "--names", names, "--out", "named", "--certificates")
    assert said.code == 0
    told = "for all speed 15 to 35 m/s, gap -1 to 1 m: brake < 2.1; largest proved value "
    assert ask("report", "named").code == 0
    report = (small / "named" / "report.html").read_text()
    assert told.replace("<", "&lt;") in report
    assert "1 of 1 unsat answers has an accepted certificate" in report
    [proof] = (small / "named" / "proofs").glob("*.proof")
    verdict = check(small / "small.onnx", proof)
    assert verdict.accepted
    assert verdict.claim.startswith(told)
    assert ask("bundle", "named", "-o", "named.zip").code == 0
    with zipfile.ZipFile(small / "named.zip") as bundle:
        [record] = json.loads(bundle.read("claims.json"))["records"]
        assert record["claim"]["sentence"].startswith(told)
        assert record["claim"]["inputs"]["ranges"][0] == {
            "name": "speed", "unit": "m/s", "scale": 10.0, "shift": 25.0, "lower": -1.0, "upper": 1.0
        }  # fmt: skip
        attributes = json.loads(bundle.read("statement.json"))["predicate"]["attributes"]
        assert "model small.onnx, sha256 of the file " in record["claim"]["sentence"]
        assert attributes[0]["conditions"]["claims"] == [record["claim"]["sentence"]]
    checked = ask("verify-bundle", "named.zip")
    assert "page: ok" in checked.out
    assert checked.code == 2
    names.write_text("variable,name\nX_2,speed\n")
    said = ask("verify", "small.onnx", "unsat.vnnlib", "--names", names)
    assert said.code == 2
    assert "X_2 does not exist: the network has 2 inputs, from X_0." in said.err
