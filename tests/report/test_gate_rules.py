"""The gate: what lets a run through, what stops it, and the files that say so."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from report_runs import record

import holdfast as hf
from holdfast.cli import main
from holdfast.errors import BadInput
from holdfast.report.gate import Decision, Rules, gate
from holdfast.report.gate_files import MOST_NAMED, as_json, junit, summary
from holdfast.report.pairing import load

NewStore = Callable[..., hf.Store]
Ends = Sequence[tuple[float, float]]
HOSTILE = "</failure><script>|`*_\x00\x1b[31m"


def fill(
    store: hf.Store, ends: Ends, *, wrong: Sequence[int] = (), unanswered: int = 0, name: str = "", status: str = "finished"
) -> hf.Store:  # fmt: skip
    count = len(ends) + unanswered
    x = [torch.full((2,), float(k)) for k in range(count)]
    store.put_inputs(
        x, [1] * count, [0 if k in wrong else 1 for k in range(count)], [name] * count, [None] * count
    )
    note = dict.fromkeys(wrong, "the property fails at the input itself")
    store.write([record(k, *pair, note=note.get(k, ""), status=status) for k, pair in enumerate(ends)])
    return store


def judge(store: hf.Store, rules: Rules, baseline: hf.Store | None = None) -> Decision:
    return gate(load(store), rules, None if baseline is None else load(baseline, "before"))


TEN: Ends = [(0.1, 0.2)] * 9 + [(0.01, 0.2)]


@pytest.mark.parametrize(
    ("ends", "wanted", "passes"),
    [
        (TEN, 0.9, True),
        (TEN, 0.91, False),
        ([(0.05, 0.05)] * 3, 1.0, True),  # a radius is certified up to its lower end, including it
        ([(0.04999, 0.05)], 0.01, False),
        ([(0.0, math.inf)], 0.0, True),
        ([(math.inf, math.inf)], 1.0, True),
    ],
)
def test_the_share_certified(new_store: NewStore, ends: Ends, wanted: float, passes: bool) -> None:
    assert judge(fill(new_store(), ends), Rules(at=0.05, min_certified=wanted)).passed is passes


def test_with_a_confidence_the_share_of_the_population_counts(new_store: NewStore) -> None:
    """9 of 10 certified: at least 60.6 % of the population with confidence 95 %."""
    store = fill(new_store(), TEN)
    assert judge(store, Rules(at=0.05, min_certified=0.6, confidence=0.95)).passed
    decision = judge(store, Rules(at=0.05, min_certified=0.61, confidence=0.95))
    assert not decision.passed
    assert (
        "at least 60.5 % of the population (Clopper and Pearson), if the inputs were drawn"
        in decision.checks[0].found
    )
    assert "of the population with confidence 95" in decision.checks[0].wanted


def test_unknown_inputs_are_not_certified_and_are_named(new_store: NewStore) -> None:
    store = fill(
        new_store(), [(0.1, 0.2), (0.0, math.inf), (0.01, 0.02), (0.0, 0.0)], wrong=[3], unanswered=2
    )
    decision = judge(store, Rules(at=0.05, min_certified=0.5))
    [check] = decision.checks
    assert not check.passed
    assert "1 certified, 2 broken, 3 unknown, 2 of these without any answer, of 6" in check.found
    assert sorted(line.split(" (")[0] for line in check.details) == [
        "input 1: unknown", "input 2: broken", "input 3: broken", "input 4: unknown, no answer", "input 5: unknown, no answer",
    ]  # fmt: skip


def test_broken_and_accuracy(new_store: NewStore) -> None:
    store = fill(new_store(), [(0.1, 0.2), (0.0, 0.0), (0.1, 0.2), (0.01, 0.02)], wrong=[1])
    assert judge(store, Rules(at=0.05, max_broken=0.5)).passed
    assert not judge(store, Rules(at=0.05, max_broken=0.25)).passed
    assert judge(store, Rules(min_accuracy=0.75)).passed
    decision = judge(store, Rules(min_accuracy=0.76))
    assert not decision.passed
    assert decision.checks[0].details == ("input 1: misclassified",)


def test_against_a_baseline_by_the_share_at_a_radius(new_store: NewStore) -> None:
    before, same = fill(new_store(), TEN), fill(new_store(), TEN)
    worse = fill(new_store(), [(0.1, 0.2)] * 8 + [(0.01, 0.2), (0.2, 0.3)])
    lost = fill(new_store(), [(0.1, 0.2)] * 7 + [(0.01, 0.2)] * 3)
    assert judge(same, Rules(at=0.05), before).passed
    assert judge(worse, Rules(at=0.05), before).passed  # one lost, one won
    decision = judge(lost, Rules(at=0.05), before)
    assert [check.passed for check in decision.checks] == [True, True, True, False]
    assert decision.checks[3].details == (
        "input 7: was certified, is unknown",
        "input 8: was certified, is unknown",
    )
    assert judge(lost, Rules(at=0.05, slack=0.2), before).passed


def test_against_a_baseline_by_the_mean_radius(new_store: NewStore) -> None:
    before = fill(new_store(), [(0.1, 0.2), (0.3, 0.4)])
    assert judge(fill(new_store(), [(0.2, 0.2), (0.25, 0.4)]), Rules(), before).passed
    worse = fill(new_store(), [(0.05, 0.08), (0.3, 0.4)])
    decision = judge(worse, Rules(slack=0.1), before)
    assert not decision.passed
    assert decision.checks[-1].details == ("input 0: at most 0.08, was at least 0.1",)
    assert judge(worse, Rules(slack=0.13), before).passed
    never = fill(new_store(), [(math.inf, math.inf), (0.1, 0.2)])
    assert judge(never, Rules(), never).passed
    assert not judge(fill(new_store(), [(5.0, 6.0), (0.1, 0.2)]), Rules(), never).passed


def test_accuracy_that_falls_and_inputs_that_are_missing_stop_a_run(new_store: NewStore) -> None:
    before = fill(new_store(), [(0.1, 0.2)] * 4)
    wrong = judge(fill(new_store(), [(0.5, 0.6)] * 3 + [(0.0, 0.0)], wrong=[3]), Rules(), before)
    assert [check.name for check in wrong.checks if not check.passed] == ["accuracy kept"]
    fewer = judge(fill(new_store(), [(0.5, 0.6)] * 3), Rules(), before)
    assert [check.name for check in fewer.checks if not check.passed] == ["same inputs"]


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({}, "nothing to check"),
        ({"at": 0.1}, "nothing to check"),
        ({"min_certified": 0.9}, "say which, as in --at"),
        ({"min_certified": 90.0, "at": 0.1}, "must lie between 0 and 1"),
        ({"at": math.nan}, "not a number"),
    ],
)
def test_rules_that_ask_nothing_are_refused(new_store: NewStore, rules: dict[str, float], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        judge(fill(new_store(), TEN), Rules(**rules))


def test_an_empty_run_is_refused(new_store: NewStore) -> None:
    with pytest.raises(BadInput, match="is empty"):
        judge(new_store(), Rules(at=0.1, min_certified=0.5))


OUT_OF_TIME: Ends = [(0.0, math.inf)] * 40


def test_unknown_inputs_may_break_unless_it_is_allowed(new_store: NewStore) -> None:
    """40 inputs of which nobody knows anything do not pass for 0 broken ones."""
    store = fill(new_store(), OUT_OF_TIME, status="stopped")
    decision = judge(store, Rules(at=0.05, max_broken=0.0))
    assert not decision.passed
    [check] = decision.checks
    assert "unknown ones included" in check.wanted
    assert "0 broken, 40 unknown, 40 of these unfinished" in check.found
    assert len(check.details) == 40
    assert judge(store, Rules(at=0.05, max_broken=0.0, max_unknown=1.0)).passed
    most = judge(store, Rules(at=0.05, max_broken=0.0, max_unknown=0.9))
    assert [(check.name, check.passed) for check in most.checks] == [
        ("broken at 0.05", True),
        ("unknown at 0.05", False),
    ]
    assert not judge(store, Rules(at=0.05, max_unknown=0.5)).passed
    decided = fill(new_store(), [(0.1, 0.2)] * 4)
    assert judge(decided, Rules(at=0.05, max_broken=0.0)).passed


@pytest.mark.parametrize("status", ["stopped", "interrupted"])
@pytest.mark.parametrize("rules", [{}, {"at": 0.05}])
def test_a_baseline_that_ran_out_of_time_lets_nothing_through(
    new_store: NewStore, status: str, rules: dict[str, float]
) -> None:
    before, now = fill(new_store(), OUT_OF_TIME, status=status), fill(new_store(), OUT_OF_TIME, status=status)
    decision = judge(now, Rules(**rules), before)
    assert [check.name for check in decision.checks if not check.passed] == ["baseline measured"]
    [check] = [check for check in decision.checks if check.name == "baseline measured"]
    assert check.found == "0 of 40 measured (40 not measured: resume the baseline)"
    assert judge(now, Rules(**rules, max_unknown=1.0), before).passed
    finished = fill(new_store(), OUT_OF_TIME)  # every method has ended: nothing can be proved of these inputs
    assert judge(now, Rules(**rules), finished).passed


def test_a_baseline_that_was_measured_only_in_part_is_said_to_be(new_store: NewStore) -> None:
    before = fill(new_store(), [(0.1, 0.2)] * 3, unanswered=1)
    before.write([record(3, 0.01, math.inf, status="stopped")])
    now = fill(new_store(), [(0.1, 0.2)] * 4)
    assert judge(now, Rules(), before).passed  # what the baseline proved is known, however little it is
    decision = judge(now, Rules(at=0.05), before)
    assert [check.name for check in decision.checks if not check.passed] == ["baseline measured"]
    assert judge(now, Rules(at=0.05, max_unknown=0.25), before).passed


def test_junit_is_red_exactly_when_the_gate_is_closed(new_store: NewStore) -> None:
    store = fill(new_store(model={"name": HOSTILE}), [(0.0, math.inf)] * (MOST_NAMED + 7), name=HOSTILE)
    for wanted, failures in ((0.0, "0"), (0.5, "1")):
        [suite] = ElementTree.fromstring(junit(judge(store, Rules(at=0.05, min_certified=wanted))))
        assert (suite.get("tests"), suite.get("failures")) == ("1", failures)
        assert len(suite.findall(".//failure")) == int(failures)
    told = suite.find(".//failure")
    assert told is not None
    assert (told.text or "").endswith("... and 7 more")
    assert "</failure><script>" in (told.text or "")


def test_markdown_is_safe_and_says_the_verdict_first(new_store: NewStore) -> None:
    store = fill(new_store(model={"name": HOSTILE}), [(0.0, math.inf)], name=HOSTILE)
    text = summary(judge(store, Rules(at=0.05, min_certified=0.5)))
    assert text.startswith("## Robustness gate: FAILED\n")
    assert "<script>" not in text.replace("\\<", "").replace("`</failure>", "`").split("\n", 3)[3]
    [row] = [line for line in text.splitlines() if line.startswith("| **FAIL**")]
    assert row.count(" | ") == 3
    assert summary(judge(store, Rules(at=0.05, min_certified=0.0))).startswith("## Robustness gate: passed\n")


def test_json_counts(new_store: NewStore) -> None:
    told = json.loads(
        json.dumps(
            as_json(judge(fill(new_store(), TEN, unanswered=1), Rules(at=0.05, min_certified=0.5))),
            allow_nan=False,
        )
    )
    assert told["passed"] is True
    assert told["counts"] == {"certified": 9, "broken": 0, "unknown": 2, "unanswered": 1, "not_measured": 1}


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ending:
        main(["gate", *map(str, arguments)])
    return int(ending.value.code or 0)


def test_exit_codes_and_files(
    new_store: NewStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = fill(new_store(), TEN), fill(new_store(), [(0.01, 0.2)] * 10)
    asked = ["--at", 0.05, "--min-certified", 0.9]
    assert command(good.folder, *asked) == 0
    assert command(bad.folder, *asked) == 1
    assert command(bad.folder, "--against", good.folder) == 1
    assert command(good.folder, "--against", bad.folder) == 0
    assert command(good.folder) == 2
    assert command(tmp_path / "nowhere", *asked) == 2
    idle = fill(new_store(), OUT_OF_TIME, status="stopped")
    assert command(idle.folder, "--at", 0.05, "--max-broken", 0) == 1
    assert command(idle.folder, "--at", 0.05, "--max-broken", 0, "--max-unknown", 1) == 0
    assert command(idle.folder, "--against", idle.folder) == 1
    assert command(good.folder, *asked, "--against", fill(new_store(norm="2"), TEN).folder) == 2
    capsys.readouterr()
    files = [
        "--junit",
        tmp_path / "out/j.xml",
        "--markdown",
        tmp_path / "m.md",
        "--json",
        tmp_path / "g.json",
    ]
    assert command(bad.folder, *asked, *files) == 1
    assert ElementTree.parse(tmp_path / "out/j.xml").getroot().tag == "testsuites"
    assert (tmp_path / "m.md").read_text().startswith("## Robustness gate: FAILED")
    assert json.loads((tmp_path / "g.json").read_text())["passed"] is False
    assert "input 3" in capsys.readouterr().out
