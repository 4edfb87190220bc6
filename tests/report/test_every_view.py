"""Every measuring command's run in every view: page, card, terminal, one input, comparison, gate, export."""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from kinds import IMAGES, KINDS, made
from report_runs import MODEL, Document, bracket, question, record
from rich.console import Console
from test_accessibility import Outline
from test_schemas import faults, schema

import holdfast as hf
from holdfast.cli import main
from holdfast.errors import BadInput
from holdfast.evidence.statement import _describe_question
from holdfast.question_text import describe_question
from holdfast.report import write_report
from holdfast.report.compare import compare, outcome
from holdfast.report.gate import Rules, gate
from holdfast.report.index import write_index
from holdfast.report.pairing import load, usual_radii
from holdfast.report.standard import properties_of
from holdfast.report.summary import parts_of, rows_of, totals_of
from holdfast.report.table import table
from holdfast.report.verdict import verdict, verdict_text
from holdfast.report.wording import QUANTITIES, quantity_of
from holdfast.result import Answers, Key, Likely

NewStore = Callable[..., hf.Store]
Ask = Callable[..., tuple[int, str, str]]
EVERY = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ending:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return int(ending.value.code or 0), out, err

    return run


def words(text: str) -> str:
    return " ".join(text.split())


# ---------------------------------------------------------------- rows


def test_cases_frames_and_places_make_one_row_by_their_goal() -> None:
    for goal, ends in (
        ("radius", (0.1, 0.3)),
        ("worst", (0.1, 0.3)),
        ("probability", (0.1, 0.3)),
        ("steepness", (0.2, 0.9)),
    ):
        [row] = rows_of([record(0, 0.1, 0.9, frame=0, goal=goal), record(0, 0.2, 0.3, frame=1, goal=goal)])
        assert (row.bracket.lower.value, row.bracket.upper.value) == ends, goal
        assert len(row.frames) == 2


def test_every_output_is_a_row_and_every_part_a_table(new_store: NewStore) -> None:
    small, large = parts_of(rows_of(made(new_store, "reach").records()))
    assert [
        (row.index, row.output, row.bracket.lower.value, row.bracket.upper.value) for row in small.rows
    ] == [
        (0, 0, -1.25, -1.0),
        (0, 1, 0.5, 0.75),
    ]
    assert [row.name for row in large.rows] == ["0, output 0", "0, output 1"]
    assert large.sense.proved_bound(large.rows[1].bracket).value == math.inf
    one = parts_of(row for row in (*small.rows, *large.rows) if row.output == 1)
    assert [part.heading for part in one] == [
        "the smallest value of output 1",
        "the largest value of output 1",
    ]
    assert [part.name for part in parts_of(rows_of(made(new_store, "risk").records()))] == [
        "radius",
        "worst",
        "steepness",
    ]
    assert [part.heading for part in parts_of([])] == ["the radius"]


@pytest.mark.parametrize(
    ("goal", "ends", "said"),
    [
        ("radius", (0.5, 0.5), "certified"),
        ("radius", (0.1, 0.4), "broken"),
        ("worst", (0.5, 0.9), "unknown"),  # it must stay above
        ("worst", (0.6, 0.9), "certified"),
        ("worst", (0.1, 0.5), "broken"),
        ("largest", (0.1, 0.5), "unknown"),  # it must stay below
        ("largest", (0.1, 0.4), "certified"),
        ("largest", (0.5, math.inf), "broken"),
        ("steepness", (0.1, 0.5), "certified"),
        ("steepness", (0.6, math.inf), "broken"),
        ("steepness", (0.4, 0.6), "unknown"),
        ("probability", (0.5, 1.0), "certified"),
        ("probability", (0.1, 0.4), "broken"),
    ],
)
def test_verdicts_follow_the_goal(goal: str, ends: tuple[float, float], said: str) -> None:
    [row] = rows_of([record(0, *ends, goal=goal)])
    assert verdict(row, 0.5) == said


def test_verdicts_agree_with_every_truth_inside_the_bracket() -> None:
    generator = np.random.default_rng(0)
    holds = {
        "radius": lambda truth, at: truth >= at,
        "worst": lambda truth, at: truth > at,
        "largest": lambda truth, at: truth < at,
        "steepness": lambda truth, at: truth <= at,
        "probability": lambda truth, at: truth >= at,
    }
    for goal, test in holds.items():
        for _ in range(100):
            low, at, high = *np.sort(generator.random(2)).tolist(), generator.random()
            low, high, at = min(low, at), max(low, at), high
            [row] = rows_of([record(0, low, high, goal=goal)])
            truths = generator.uniform(low, high, 50)
            if verdict(row, at) != "unknown":
                assert all(test(truth, at) == (verdict(row, at) == "certified") for truth in truths), goal


def test_vnnlib_has_words_of_its_own() -> None:
    assert [verdict_text(said, "verify") for said in ("certified", "broken", "unknown")] == [
        "certified (unsat)",
        "broken (sat)",
        "unknown",
    ]
    assert verdict_text("certified", "radius") == "certified"


def test_what_is_open_is_what_a_witness_would_show() -> None:
    rows = rows_of([record(0, -math.inf, 1.0, goal="largest"), record(1, 0.5, math.inf, goal="largest")])
    assert (totals_of(rows).open_above, totals_of(rows).proved, totals_of(rows).mean_found) == (1, 1, 0.5)


@EVERY
def test_the_standard_and_the_headline_know_every_command(kind: str) -> None:
    asked = question(command=kind, **KINDS[kind].said)
    assert tuple(p.name for p in properties_of(asked)) == KINDS[kind].properties
    assert KINDS[kind].headline in describe_question(asked)
    assert [p.name for p in properties_of(question(frames="each"))] == ["stability", "relevance"]


def test_all_goals_have_a_sense() -> None:
    assert {
        quantity_of(goal).quantity for goal in ("radius", "worst", "largest", "steepness", "probability")
    } <= {sense.quantity for sense in QUANTITIES.values()}


# ---------------------------------------------------------------- the page and the card


@EVERY
def test_the_page(new_store: NewStore, tmp_path: Path, kind: str) -> None:
    store, known = made(new_store, kind), KINDS[kind]
    html = write_report(store, tmp_path / "report.html").read_text(encoding="utf-8")
    document = Document(html)
    assert known.headline in document.text
    assert len(document.rows) == known.rows
    assert len(set(document.ids)) == len(document.ids)
    assert "nan" not in document.text.lower().split()
    if len(known.headings) > 1:
        places = [document.text.index(f"\n{heading[0].upper()}{heading[1:]}\n") for heading in known.headings]
        assert places == sorted(places)
        things = "Outputs" if kind == "reach" else "Inputs"
        assert all(f"{things}: {heading}" in document.text for heading in known.headings)
    else:
        assert "\nSummary\n" in document.text
    assert all(f"{name} (clause" in document.text for name in known.properties)
    assert ("misclassified" in document.text) == (
        "the radius" in known.headings and kind not in ("smoothing", "testgen")
    )
    outline = Outline(html)
    assert outline.faults == []


def test_the_page_of_a_verification_says_sat_and_unsat(new_store: NewStore, tmp_path: Path) -> None:
    document = Document(write_report(made(new_store, "verify"), tmp_path / "r.html").read_text())
    assert [row[4] for row in document.rows] == ["certified (unsat)", "broken (sat)", "unknown"]
    sentence = "1 of 3 properties holds (unsat, proved); 1 violated (sat, with a replayed counterexample); 1 not decided."
    assert document.text.index(sentence) < document.text.index("Verdicts")
    assert "acas_1.onnx prop_1.vnnlib" in document.text
    assert "frame" not in document.text.replace("weakest frame", "frame")


def test_the_ends_of_a_page_are_coloured_by_what_they_are(new_store: NewStore, tmp_path: Path) -> None:
    document = Document(write_report(made(new_store, "risk"), tmp_path / "r.html").read_text())
    steep = document.rows[6]
    assert steep[6].startswith("2witnessed, PGD")
    assert steep[7].startswith("4proved, Certify")
    assert document.rows[8][7] == "-nothing proved yet"
    assert "At each steepness: proved to stay below it, shown to rise above it, or unknown." in document.text


def test_a_refuted_answer_is_shown(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store()
    store.write(
        [record(0, 0.0, math.inf, status="refuted", note="one of the two is wrong"), record(1, 0.1, 0.2)]
    )
    assert "1 refuted" in Document(write_report(store, tmp_path / "r.html").read_text()).text


@EVERY
def test_the_card(new_store: NewStore, tmp_path: Path, kind: str) -> None:
    card = write_report(made(new_store, kind), tmp_path / "card.md").read_text()
    assert all(f"{name} (clause" in card for name in KINDS[kind].properties)
    for heading in KINDS[kind].headings if len(KINDS[kind].headings) > 1 else ():
        assert f"### {heading[0].upper()}{heading[1:]}\n" in card
    assert ("(unsat)" in card) == (kind == "verify")


# ---------------------------------------------------------------- the terminal


@EVERY
@pytest.mark.parametrize("width", [80, 140])
def test_the_table(new_store: NewStore, kind: str, width: int) -> None:
    stream = io.StringIO()
    Console(file=stream, width=width).print(table(made(new_store, kind)))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert all(
        word in words(text) for word in ("input", "status", "finished" if kind != "monitor" else "closed")
    )
    for heading in KINDS[kind].headings if len(KINDS[kind].headings) > 1 else ():
        assert f"{heading[0].upper()}{heading[1:]}" in text
    assert ("label" in text) == KINDS[kind].labelled
    if kind == "verify":
        assert "1 certified (unsat), 1 broken (sat), 1 unknown" in text
    if kind in ("smoothing", "monitor"):
        assert "0.999" in text


@EVERY
def test_one_input(new_store: NewStore, ask: Ask, kind: str) -> None:
    store = made(new_store, kind)
    code, out, err = ask("show", store.folder, "--input", len(KINDS[kind].x) - 1)
    assert (code, err) == (0, "")
    for heading in KINDS[kind].headings if len(KINDS[kind].headings) > 1 else ():
        assert heading in out
    assert max(map(len, out.splitlines())) <= 80
    assert ("unknown, stopped" in out) == (kind == "verify")
    assert ask("show", store.folder, "--input", 99)[0] == 2


# ---------------------------------------------------------------- compare and gate


@EVERY
def test_a_comparison(new_store: NewStore, tmp_path: Path, ask: Ask, kind: str) -> None:
    """One network against itself: nobody wins, nobody lies."""
    stores = [made(new_store, kind, model=MODEL), made(new_store, kind, model=MODEL)]
    for ending in ("html", "json", "md"):
        code, out, _ = ask("compare", *(store.folder for store in stores), "-o", tmp_path / f"c.{ending}")
        assert code == 0
        assert ("right" in out) == KINDS[kind].labelled
    told, rules = json.loads((tmp_path / "c.json").read_text()), schema("comparison")
    assert faults(told, rules, rules) == []
    assert (told["duels"][0]["wins"], told["duels"][0]["losses"]) == (0, 0)
    assert Outline((tmp_path / "c.html").read_text()).faults == []


@pytest.mark.parametrize(
    ("kind", "part", "goal", "quantity"),
    [
        ("risk", None, "radius", "radius"),
        ("risk", "worst", "worst", "worst score"),
        ("risk", "steepness", "steepness", "steepness"),
        ("reach", None, "worst", "smallest value"),
        ("reach", "largest", "largest", "largest value"),
        ("radius", "radius", "radius", "radius"),
    ],
)
def test_parts_are_compared_and_judged_one_at_a_time(
    new_store: NewStore, tmp_path: Path, ask: Ask, kind: str, part: str | None, goal: str, quantity: str
) -> None:
    one, two = made(new_store, kind), made(new_store, kind)
    chosen = [] if part is None else ["--part", part]
    code, out, _ = ask("compare", one.folder, two.folder, *chosen, "-o", tmp_path / "c.json")
    told = json.loads((tmp_path / "c.json").read_text())
    assert (code, told["goal"], told["part"]) == (0, goal, load(one, part=part).part.name)
    assert f"mean proved {quantity}" in words(out.replace("│", " "))
    assert ask("gate", one.folder, *chosen, "--against", two.folder, "--json", tmp_path / "g.json")[0] == 0
    decided, rules = json.loads((tmp_path / "g.json").read_text()), schema("gate")
    assert decided["goal"] == goal
    assert decided["checks"][-1]["name"] == f"mean proved {quantity} kept"
    assert faults(decided, rules, rules) == []
    code, _, err = ask("gate", one.folder, "--part", "colour", "--at", 0, "--min-certified", 0.5)
    assert code == 2
    assert "no part colour; there is" in err


def test_where_smaller_is_better_the_smaller_one_wins(new_store: NewStore) -> None:
    steep = QUANTITIES["steepness"]
    assert outcome(bracket(1.0, 2.0), bracket(3.0, 4.0), steep) == "first"
    assert outcome(bracket(3.0, 4.0), bracket(1.0, 2.0), steep) == "second"
    runs = []
    for name, ends in (("a", [(1.0, 2.0), (2.0, 4.0)]), ("b", [(3.0, 4.0), (1.0, 5.0)])):
        store = new_store(command="risk")
        store.write([record(k, *pair, goal="steepness", part="steepness") for k, pair in enumerate(ends)])
        runs.append(load(store, name))
    found = compare(runs, radii=[2.5])
    assert found.duels[0].outcomes == ("first", "undecided")
    assert [side.rank_upper for side in found.sides] == [1, 2]  # by what is proved
    assert [side.rank_lower for side in found.sides] == [1, 2]
    assert [side.tallies[0].certified for side in found.sides] == [1, 0]
    truth = (found.duels[0].least, found.duels[0].most)
    assert truth == (((1 - 4) + (2 - 5)) / 2, ((2 - 3) + (4 - 1)) / 2)


@pytest.mark.parametrize("goal", ["radius", "worst", "largest", "steepness", "probability"])
def test_runs_of_one_network_may_not_exclude_each_other_whatever_the_goal(
    new_store: NewStore, goal: str
) -> None:
    runs = []
    for name, ends in (("a", (0.5, 0.6)), ("b", (0.1, 0.2))):
        store = new_store(command="risk", model=MODEL)
        store.write([record(0, *ends, goal=goal, part="some")])
        runs.append(load(store, name))
    with pytest.raises(hf.Contradiction, match=r"a: .* says at least 0.5 .*b: .* says at most 0.2"):
        compare(runs)


def test_the_parts_that_are_not_compared_may_not_exclude_each_other_either(new_store: NewStore) -> None:
    runs = []
    for name, ends in (("a", (0.5, 0.6)), ("b", (0.1, 0.2))):
        store = new_store(command="risk", model=MODEL)
        store.write(
            [record(0, 0.1, 0.2, part="radius"), record(0, *ends, goal="steepness", part="steepness")]
        )
        runs.append(load(store, name))
    with pytest.raises(hf.Contradiction):
        compare(runs)


def test_a_hair_of_rounding_is_no_contradiction_between_runs(new_store: NewStore) -> None:
    runs = []
    for name, ends, slack in (("a", (0.5, 0.6), 0.0), ("b", (-math.inf, 0.5 - 1e-9), 1e-8)):
        store = new_store(command="worst", model=MODEL)
        made_up = record(0, *ends, goal="worst")
        upper = made_up.bracket.upper
        object.__setattr__(upper, "slack", slack)
        store.write([made_up])
        runs.append(load(store, name))
    assert compare(runs).duels[0].outcomes == ("first",)


@EVERY
def test_a_gate(new_store: NewStore, tmp_path: Path, ask: Ask, kind: str) -> None:
    store = made(new_store, kind)
    known = KINDS[kind]
    at = [] if known.headings[0] == "the worst score" else ["--at", 0.5]
    files = ["--json", tmp_path / "g.json", "--junit", tmp_path / "g.xml", "--markdown", tmp_path / "g.md"]
    assert ask("gate", store.folder, *at, "--min-certified", 0, "--max-broken", 1, *files)[0] == 0
    told, rules = json.loads((tmp_path / "g.json").read_text()), schema("gate")
    assert faults(told, rules, rules) == []
    assert sum(told["counts"][name] for name in ("certified", "broken", "unknown")) == len(load(store).rows)
    assert ElementTree.parse(tmp_path / "g.xml").getroot().tag == "testsuites"
    assert ask("gate", store.folder, *at, "--min-certified", 1)[0] == 1
    assert ask("gate", store.folder, "--against", store.folder)[0] == 0
    assert ask("gate", store.folder, "--min-accuracy", 0.5)[0] == (0 if known.labelled else 2)


def test_for_scores_zero_is_the_usual_threshold(new_store: NewStore, ask: Ask) -> None:
    store = made(new_store, "verify")
    _, out, _ = ask("gate", store.folder, "--min-certified", 0.5)
    assert "1 certified (unsat), 1 broken (sat), 1 unknown" in words(out.replace("│", " "))
    assert "input 1 (acas_1.onnx prop_1.vnnlib): broken (sat)" in words(out)
    assert usual_radii(store.question, load(store).rows) == (0.0,)
    with pytest.raises(BadInput, match="is one at a steepness: say which, as in --at"):
        gate(load(made(new_store, "risk"), part="steepness"), Rules(min_certified=0.5))


@pytest.mark.parametrize(
    ("goal", "before", "after", "told"),
    [
        ("worst", (0.5, 1.0), (-math.inf, 1.0), "nothing is proved of it any more"),
        ("worst", (0.5, 1.0), (0.1, 0.2), "at most 0.2, was at least 0.5"),
        ("steepness", (1.0, 2.0), (1.0, math.inf), "nothing is proved of it any more"),
        ("steepness", (1.0, 2.0), (3.0, 4.0), "at least 3, was at most 2"),
    ],
)
def test_what_was_proved_and_no_longer_is_closes_the_gate(
    new_store: NewStore, goal: str, before: tuple[float, float], after: tuple[float, float], told: str
) -> None:
    stores = [new_store(), new_store()]
    for store, ends in zip(stores, (before, after), strict=True):
        store.write([record(0, *ends, goal=goal), record(1, 1.0, 2.0, goal=goal)])
    old, new = map(load, stores)
    decision = gate(new, Rules(), old)
    assert not decision.passed
    assert decision.checks[-1].details == (f"input 0: {told}",)
    assert gate(old, Rules(), new).passed


# ---------------------------------------------------------------- out


@EVERY
def test_exports_carry_part_and_goal(new_store: NewStore, tmp_path: Path, kind: str) -> None:
    store = made(new_store, kind)
    known = [(str(r.key.index), r.key.part, r.goal) for r in store.records()]
    with store.export(tmp_path / "r.csv").open(newline="") as stream:
        assert [(row["input"], row["part"], row["goal"]) for row in csv.DictReader(stream)] == known
    told, rules = json.loads(store.export(tmp_path / "r.json").read_text()), schema("run")
    assert faults(told, rules, rules) == []
    assert [(str(r["input"]), r["part"], r["goal"]) for r in told["records"]] == known
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(store.export(tmp_path / "r.parquet")).column("goal").to_pylist() == [
        goal for _, _, goal in known
    ]


def test_witnesses_of_either_end_are_exported(new_store: NewStore, tmp_path: Path) -> None:
    with np.load(made(new_store, "reach").export(tmp_path / "w.npz")) as found:
        assert sorted(found) == ["0_0_largest", "0_0_smallest", "0_1_largest", "0_1_smallest"]
        assert np.array_equal(found["0_1_largest"], IMAGES[0].numpy())


def test_answers_belong_to_the_witness_of_either_end(new_store: NewStore) -> None:
    store, said = new_store(), Answers((Likely(0, 1.0, 0.9),), (Likely(1, 1.0, 0.9),))
    store.write([record(0, 1.0, 4.0, goal="steepness", part="steepness")])
    key = Key(0, part="steepness")
    store.put_answers({key: said})
    store.write(
        [record(0, 1.0, 3.0, goal="steepness", part="steepness")]
    )  # a better proof is no other witness
    assert store.answers() == {key: said}
    store.write([record(0, 2.0, 3.0, goal="steepness", part="steepness")])
    assert store.answers() == {}


@EVERY
def test_every_view_of_a_run_has_the_sentence_of_its_question(
    new_store: NewStore, tmp_path: Path, ask: Ask, kind: str
) -> None:
    """A number that is quoted without its conditions misleads: how far a drift may go says nothing of a single frame."""
    store = made(new_store, kind, shares="0.1,1,0.5", drift=True, free="one", outputs="0,2")
    sentence = describe_question(store.question)
    assert "drift" in sentence
    assert "0.1,1,0.5" in sentence
    page = Document(write_report(store, tmp_path / "r.html").read_text())
    assert page.text.count(sentence) >= 2  # heading and provenance
    html = (tmp_path / "r.html").read_text()
    assert f"<title>tiny, {kind} · holdfast</title>" in html
    assert re.search(r'<meta name="description" content="([^"]*)"', html)[1].endswith(sentence)  # type: ignore[index]
    assert (
        sentence
        in Document(write_index("all", [("run", store.folder)], tmp_path / "i.html").read_text()).text
    )
    card = write_report(store, tmp_path / "card.md").read_text()
    assert sentence in card.replace("\\", "")
    with store.export(tmp_path / "r.csv").open(newline="") as stream:
        assert {row["question"] for row in csv.DictReader(stream)} == {sentence}
    parquet = pytest.importorskip("pyarrow.parquet")
    assert set(parquet.read_table(store.export(tmp_path / "r.parquet")).column("question").to_pylist()) == {
        sentence
    }
    assert _describe_question(store.question)["sentence"] == sentence
    assert words(sentence) in words(ask("show", store.folder, "--input", 0)[1])
    at = [] if KINDS[kind].headings[0] == "the worst score" else ["--at", 0.5]
    out = ask("gate", store.folder, *at, "--min-certified", 0, "--markdown", tmp_path / "g.md")[1]
    assert words(sentence) in words(out)
    assert sentence in (tmp_path / "g.md").read_text().replace("\\", "")
    out = ask("compare", store.folder, store.folder, "-o", tmp_path / "c.html")[1]
    assert words(out).count(words(sentence)) == 2
    assert Document((tmp_path / "c.html").read_text()).text.count(sentence) == 2


def test_hostile_part_names_stay_text(new_store: NewStore, tmp_path: Path) -> None:
    hostile: Any = '"><script>alert(1)</script>'
    store = new_store()
    store.write([record(0, 0.1, 0.2, part=hostile), record(0, 0.1, 0.2, part="b")])
    assert Document(write_report(store, tmp_path / "r.html").read_text()).tags.count("script") == 1
