"""What the page says in two places is the same, and nothing that it shows looks like a contradiction."""

import io
import math
import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import typer.main
from kinds import KINDS, made
from report_runs import Document, bracket, proof, record, witness
from rich.console import Console

import holdfast as hf
from holdfast.batch_solver import NOTHING_MOVES
from holdfast.cli import app
from holdfast.commands.command import COMMANDS
from holdfast.commands.options import ModelOptions
from holdfast.formatting import format_bounds, format_lower, format_range, format_upper
from holdfast.report import card, write_report
from holdfast.report.answers import answer_table
from holdfast.report.compare import compare
from holdfast.report.compare_page import render, thumbnails
from holdfast.report.compare_table import comparison_sentence, run_table
from holdfast.report.gate import Rules, gate
from holdfast.report.heat_map import Heat
from holdfast.report.index import comparison_entry, word_scores, write_index
from holdfast.report.page import render_pages
from holdfast.report.pairing import load
from holdfast.report.plots import canvas, curves, two_bands
from holdfast.report.plots.convergence import followed_inputs, mean_over_time
from holdfast.report.question import command_line, preparation
from holdfast.report.summary import rows_of, totals_of
from holdfast.report.table import table
from holdfast.report.wording import quantity_of
from holdfast.result import Bound, Bracket, Key, Record, trivial_bound
from holdfast.store import Event

NewStore = Callable[..., hf.Store]


def page(store: hf.Store) -> Document:
    return Document(next(render_pages(store, "report-{}.html".format)))


def still(index: int, frame: int | None = None) -> Record:
    end = proof(math.inf)
    lower = replace(
        end, evidence=replace(end.evidence, method="the input itself", assumptions=(NOTHING_MOVES,))
    )
    return Record(
        Key(index, frame), Bracket(lower, trivial_bound(math.inf), note=NOTHING_MOVES), "closed", 0.0, 0
    )


def told(store: hf.Store) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(store))
    return " ".join(console.export_text().split())


def test_both_curves_of_the_history_speak_of_the_same_inputs() -> None:
    """Input 0 is proved far and never broken, input 1 is broken early: alone, their means would cross."""
    history = [
        Event(Key(0), 1.0, 1, 2.0, math.inf),
        Event(Key(1), 1.0, 1, 0.1, 0.4),
        Event(Key(2), 1.0, 1, -math.inf, 0.5),
    ]
    chosen = followed_inputs(history)
    assert chosen.lower == chosen.upper == {Key(1)}
    assert chosen.count == 3
    lower = mean_over_time(
        [(e.key, e.seconds, e.lower) for e in history if e.key in chosen.lower], largest=True
    )
    upper = mean_over_time(
        [(e.key, e.seconds, e.upper) for e in history if e.key in chosen.upper], largest=False
    )
    assert lower.values[-1] <= upper.values[-1]


def test_the_history_ends_where_the_numbers_above_it_are(new_store: NewStore) -> None:
    store = new_store()
    store.write([record(k, 0.05 * (k + 1), 0.1 * (k + 1) + 1 / 2) for k in range(6)])
    last = [record(k, 0.1 * (k + 1), 0.1 * (k + 1) + 1 / 3) for k in range(6)]
    store.write([replace(found, seconds=found.seconds + 10) for found in last])
    html = next(render_pages(store, "report-{}.html".format))
    totals = totals_of(rows_of(store.records()))
    for shown in (format_lower(totals.mean_lower), format_upper(totals.mean_upper)):
        assert html.count(f">{shown}</text>") == 1


def test_where_no_input_has_both_ends_one_curve_is_drawn() -> None:
    chosen = followed_inputs(
        [
            Event(Key(0), 1.0, 1, 2.0, math.inf),
            Event(Key(1), 1.0, 1, -math.inf, 0.4),
            Event(Key(2), 1.0, 1, -math.inf, 0.4),
        ]
    )
    assert (chosen.lower, chosen.upper) == (frozenset(), {Key(1), Key(2)})


@pytest.mark.parametrize(
    ("lower", "upper", "shown"),
    [
        (4 / 9, 4 / 9, "0.4444"),
        (4 / 9, 5 / 9, "0.4444 to 0.5556"),
        (math.inf, math.inf, "∞"),
        (5e-324, 2.0, ">0 to 2"),
        (-2 / 3, -2 / 3, "-0.6667"),
    ],
)
def test_one_number_is_shown_as_one(lower: float, upper: float, shown: str) -> None:
    assert format_range(lower, upper) == shown
    assert float("-inf") <= lower <= upper
    if lower == upper:
        assert len(set(format_bounds(lower, upper))) == 1


def test_a_mean_that_is_known_is_one_number_everywhere(new_store: NewStore) -> None:
    store = new_store(norm="words")
    store.write([record(k, value, value) for k, value in enumerate([0.0, 1.0, 1.0])])
    text = page(store).text
    assert "mean = 0.6667" in text
    assert "0.6666" not in text
    assert "0.6666" not in told(store)
    assert "| mean radius of 3 | 0.6667 |" in card.render(store)


def test_inputs_where_nothing_may_change_are_told_apart(new_store: NewStore) -> None:
    store = new_store(norm="words")
    store.write([still(0), still(1), record(2, math.inf, math.inf), record(3, 1.0, 2.0)])
    totals = totals_of(rows_of(store.records()))
    assert (totals.unbreakable, totals.still, totals.averaged, totals.closed, totals.proved) == (
        1,
        2,
        1,
        3,
        2,
    )
    text = page(store).text
    assert "1cannot be broken" in text
    assert "2hold because nothing may change there" in text
    assert "1 of 4 cannot be broken; 2 of 4 hold because nothing may change" in told(store)


def test_a_sentence_with_one_word_that_may_change_is_not_still() -> None:
    [row] = rows_of([still(0, 0), Record(Key(0, 1), bracket(math.inf, math.inf), "closed", 0.0, 0)])
    assert totals_of([row]).unbreakable == 1
    assert totals_of(rows_of([still(0, 0), still(0, 1)])).still == 1


def test_inputs_that_failed_are_not_answered(new_store: NewStore) -> None:
    store = new_store()
    failed = [record(k, 0.0, math.inf, status="failed", note="it crashed") for k in range(3)]
    store.write([*failed, record(3, 0.2, 0.4), record(4, 0.4, 0.6)])
    text = page(store).text
    assert "2inputs answered, of 5" in text
    assert "3failed: no answer" in text
    assert "3 of 5 inputs failed or were refuted." in text
    assert "0.3 ≤ mean ≤ 0.5" in text
    assert "3 of 5 failed" in told(store)


def test_compare_and_gate_say_the_same_of_one_run(new_store: NewStore) -> None:
    """A mean by another order of summation, or a share in other digits, would be another number."""
    values = [0.1, 0.2, 0.3, 0.4, 0.7, 0.9]
    stores = [new_store(), new_store()]
    for store in stores:
        store.put_inputs(
            [torch.full((2,), float(k)) for k in range(6)], [0] * 6, [0] * 6, [""] * 6, [None] * 6
        )
        store.write([record(k, value, value + 0.1) for k, value in enumerate(values)])
    first, second = (load(store, name) for store, name in zip(stores, "ab", strict=True))
    headings, rows = run_table(compare([first, second], radii=[0.3]))
    mean = rows[0][headings.index("mean proved radius")]
    share = rows[0][headings.index("certified at 0.3")]
    [*_, kept] = gate(second, Rules(), first).checks
    assert kept.found == f"{mean} over 6 inputs"
    [certified] = gate(second, Rules(at=0.3, min_certified=0.5)).checks
    assert certified.found.startswith(f"{share}:")
    assert "input 0: broken (0.1 to 0.2, finished)" in certified.details


def test_a_sentence_is_shaded_by_its_own_range() -> None:
    """With one scale for all, the words of a sentence that breaks early would share one shade."""
    frames = [
        Record(Key(0, k), bracket(0.01, upper), "finished", 1.0, 1)
        for k, upper in enumerate((0.02, 0.03, 0.04))
    ]
    heat = Heat.within(frames)
    assert [heat.level(r.bracket.upper, r.bracket) for r in frames] == ["h9", "h5", "h0"]
    assert not heat.by_lower


def test_words_are_words_and_the_witness_marks_what_it_moves(new_store: NewStore) -> None:
    store = new_store(frames="each", norm="2", vocabulary=["the", "film", "was", "good"])
    store.put_inputs([torch.tensor([0, 1, 3])], [0], [0], [""], [[0, 1, 3]])
    moved = torch.zeros(3, 2)
    store.write(
        [
            replace(
                record(0, 0.1, 0.5 - 0.1 * k, frame=k),
                bracket=Bracket(proof(0.1), witness(0.5 - 0.1 * k, moved)),
            )
            for k in range(3)
        ]
    )
    document = page(store)
    assert "one word at a time" in document.text
    assert "frame" not in document.text.replace("frames each", "").replace("frames\neach", "").replace(
        "frameseach", ""
    )
    assert document.rows[0][2] == "the film good"
    assert document.rows[0][3] == "moves the vector of good"


# ---------------------------------------------------------------- tables of their own


@pytest.mark.parametrize(
    ("kind", "heading", "cells"),
    [
        (
            "verify",
            "Verdicts",
            [("answer", ["unsat", "sat", "timeout"]), ("property", [f"prop_{k}.vnnlib" for k in range(3)])],
        ),
        (
            "reach",
            "Ranges",
            [
                ("never below", ["-1.25", "0.5"]),
                ("reached: largest", ["1", "2"]),
                ("never above", ["1.5", "∞"]),
            ],
        ),
        (
            "risk",
            "Risks",
            [
                ("in the region", ["not known", "holds", "holds"]),
                ("radius", ["nothing proved to 0.2", "0.1 to 0.300000000001", "0.2 to 0.4"]),
            ],
        ),
        (
            "testgen",
            "Coverage",
            [("items open before", ["3"]), ("reached by a new input", ["2"]), ("not reached", ["1"])],
        ),
    ],
)
def test_the_answer_of_a_command_comes_first(
    new_store: NewStore, kind: str, heading: str, cells: list[tuple[str, list[str]]]
) -> None:
    store = made(new_store, kind)
    found = answer_table(store)
    assert found is not None
    names = [name for name, _ in found.columns]
    for name, wanted in cells:
        column = [Document(str(row[names.index(name)])).text for row in found.rows]
        assert column == wanted, name
    text = page(store).text
    assert text.index(found.hint[:40]) < text.index("numbers, charts and the bounds")
    assert f"\n{heading}\n" in text


def test_a_verdict_carries_its_counterexample_and_the_hashes(new_store: NewStore) -> None:
    files = [[f"net_{k}.onnx", f"prop_{k}.vnnlib", "a" * 64, "b" * 64] for k in range(3)]
    found = answer_table(made(new_store, "verify", specification=files))
    assert found is not None
    counterexample, hashes = (str(row) for row in (found.rows[1][5], found.rows[0][-1]))
    assert "X_0 = " in counterexample
    assert found.rows[0][5] == ""
    assert "a" * 64 in hashes
    assert "b" * 64 in hashes


@pytest.mark.parametrize(
    "kind", sorted(set(KINDS) - {"verify", "reach", "risk", "saliency", "smoothing", "testgen"})
)
def test_other_commands_need_no_table_of_their_own(new_store: NewStore, kind: str) -> None:
    assert answer_table(made(new_store, kind)) is None


# ---------------------------------------------------------------- how to repeat it


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_a_repeated_command_exists(name: str) -> None:
    """All that a run may keep of its options, said back as the command line takes it."""
    command = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]  # type: ignore[attr-defined]
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    options = {f.name: "-1" for f in fields(COMMANDS[name]) if f.name != "network"}
    network = {
        f.name: "1"
        for f in fields(ModelOptions)
        if f"--{f.name.replace('_', '-')}" in known or f.name in ("model", "constants")
    }
    has_network = any(f.name == "network" for f in fields(COMMANDS[name]))
    asked = hf.question.Question(
        command=name, options={"network": network, **options} if has_network else options
    )
    said = shlex.split(command_line(asked, "run"))
    assert said[: 1 + len(name.split())] == ["holdfast", *name.split()]
    given = {word.partition("=")[0] for word in said if word.startswith("--")}
    assert given - known == set()


def test_how_to_repeat_it_stands_on_the_page(new_store: NewStore) -> None:
    options = {
        "network": {"model": "m.onnx", "mean": "0.5", "trust": True, "pool": None},
        "data": "my data.npz",
        "softmax": False,
        "limit": 3,
    }
    store = new_store(
        options=options, model={"name": "m.onnx", "prepared": {"mean": "0.5"}, "fingerprint": "f"}
    )
    store.write([record(0, 0.1, 0.2)])
    line = (
        "holdfast radius --model m.onnx --mean 0.5 --trust --data 'my data.npz' --no-softmax --limit 3 --out"
    )
    text = page(store).text
    assert line in text
    assert "(x - mean) / std with mean 0.5 and std 1" in text
    assert command_line(replace(store.question, options={}), "run") == ""
    assert "divided by 255" in preparation(replace(store.question, options={"scale": 255}))


# ---------------------------------------------------------------- several runs


def test_a_comparison_shows_names_and_pictures(new_store: NewStore) -> None:
    stores = [made(new_store, "radius"), made(new_store, "radius")]
    found = compare([load(store, name) for store, name in zip(stores, "ab", strict=True)])
    document = Document(render(found, thumbnails(stores[0])))
    assert sum(link.startswith("data:image/png") for link in document.links) == 3
    assert not any(link.startswith("data:image") for link in Document(render(found)).links)


def test_one_page_leads_to_the_reports_of_several_runs(new_store: NewStore, tmp_path: Path) -> None:
    stores = [made(new_store, "radius"), made(new_store, "risk")]
    for store in stores:
        store.close()
    index = write_index(
        "two <runs>",
        [("first & best", stores[0].folder), ("second", stores[1].folder)],
        tmp_path / "index.html",
    )
    document = Document(index.read_text())
    assert [link for link in document.links if "report" in link] == [
        f"{s.folder.name}/report.html" for s in stores
    ]
    assert "two <runs>" in document.text
    assert "first & best" in document.text
    assert (
        sum(link.startswith("data:image/png") for link in document.links) >= 4
    )  # inputs and counterexamples
    assert "counterexample" in document.text
    assert "share-of-run-0" in index.read_text()


def test_the_index_compares_runs_in_a_sentence_and_a_chart(new_store: NewStore, tmp_path: Path) -> None:
    stores = [made(new_store, "radius"), made(new_store, "radius")]
    found = compare([load(store, name) for store, name in zip(stores, ("old", "<new>"), strict=True)])
    entry = comparison_entry("old and new", found, "how to read it", "compare.html")
    index = write_index("all", [], tmp_path / "index.html", [entry])
    document = Document(index.read_text())
    assert comparison_sentence(found) in document.text
    assert "compare.html" in document.links
    assert "<new>" not in index.read_text()
    for colour in (curves.COLOURS[0], curves.COLOURS[1]):
        assert colour in index.read_text()


def test_words_on_the_index_are_shaded_by_their_scores() -> None:
    shown = word_scores([("<the>", None), ("film", 1.0), ("was", 0.0), ("good", 0.5)], "good & bad")
    assert shown == (
        '&lt;the&gt; <b class="h0">film <small>1.00</small></b> <b class="h9">was <small>0.00</small></b> '
        '<b class="h5">good <small>0.50</small></b> → good &amp; bad'
    )


def test_before_and_after_have_colours_that_mean_nothing_else() -> None:
    """Blue, orange and green mean proved, witnessed and estimated on every page."""
    one = Bracket(proof(1.0), witness(2.0))
    drawn = two_bands.draw([one], [one], 0.5).lower()
    assert curves.COLOURS[0] in drawn
    assert curves.COLOURS[1] in drawn
    for reserved in (canvas.PROVED, canvas.WITNESSED, canvas.ESTIMATED):
        assert reserved not in drawn


def test_a_bound_that_is_only_known_to_be_positive_sorts_as_one(new_store: NewStore) -> None:
    store = new_store(command="worst", norm=None)
    positive = Bracket(Bound(5e-324, proof(1.0).evidence), witness(2.0))
    store.write([Record(Key(0), positive, "finished", 1.0, 1, goal="worst")])
    document = next(render_pages(store, "report-{}.html".format))
    assert 'data-l="5e-324"' in document
    assert ">&gt;0<small>" in document


def test_equal_words_are_not_shown_as_the_weakest() -> None:
    """Where no word breaks before another, none is dark; a probability of 1 is the lightest shade, 0 the darkest."""
    frames = [record(0, 3.0, 3.0, frame=k) for k in range(3)]
    heat = Heat.within(frames)
    assert {heat.level(f.bracket.upper, f.bracket) for f in frames} == {"h0"}
    at_once = [record(0, 0.0, 0.0, frame=k) for k in range(3)]
    heat = Heat.within(at_once)
    assert {heat.level(f.bracket.upper, f.bracket) for f in at_once} == {"h9"}
    sure = [
        record(0, 1.0, 1.0, frame=0, goal="probability"),
        record(0, 0.0, 0.0, frame=1, goal="probability"),
    ]
    heat = Heat.within(sure)
    assert [heat.level(f.bracket.upper, f.bracket) for f in sure] == ["h0", "h9"]
    assert heat.level(record(0, 0.6, 0.6).bracket.upper, record(0, 0.6, 0.6).bracket) == "h4"


def test_a_smoothed_network_has_estimates_and_no_bounds(new_store: NewStore, tmp_path: Path) -> None:
    """Nothing of the network itself was asked, so no row says that nothing is proved yet."""
    store = made(new_store, "smoothing", sigma=0.25)
    own = answer_table(store)
    assert own is not None
    assert str(own.rows[0][3]) == "no majority"
    assert all("sampled" in str(row[2]) for row in own.rows)
    page = write_report(store, tmp_path / "smoothing.html").read_text()
    assert "nothing proved yet" not in page
    assert "Lower and upper bounds" not in page
    assert "data-bounds" not in page.split("<script>")[0] + page.split("</script>")[1]


def test_the_two_answers_of_a_monitor_have_two_headings() -> None:
    now, final = (quantity_of("probability", part).heading for part in ("now", "final"))
    assert now != final
    assert quantity_of("probability").heading not in (now, final)
