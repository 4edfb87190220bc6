"""What there was no time to measure is never counted as zero: totals, comparison, card, page, exports, smoothing, heat maps."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from report_runs import bracket, proof, record, sampled, witness

import holdfast as hf
from holdfast.certify.smoothing import smoothed_of
from holdfast.cli.views.smoothing import table as smoothing_table
from holdfast.report import card
from holdfast.report.compare import compare
from holdfast.report.compare_page import render as render_comparison
from holdfast.report.compare_table import as_json, run_table
from holdfast.report.heat_map import Heat
from holdfast.report.page import render
from holdfast.report.pairing import load
from holdfast.report.plots import band, two_bands
from holdfast.report.summary import rows_of, totals_of
from holdfast.report.verdict import tally
from holdfast.result import Bracket, Key, Record, Share, trivial_bound

NewStore = Callable[..., hf.Store]
HALF = [
    record(0, 0.1, 0.2),
    record(1, 0.3, 0.4),
    *(record(k, 0.0, math.inf, status="stopped") for k in (2, 3, 4)),
]


def kept(store: hf.Store, records: list[Record]) -> hf.Store:
    count = len(records)
    x = [torch.full((2,), float(k)) for k in range(count)]
    store.put_inputs(x, [1] * count, [1] * count, [""] * count, [None] * count)
    store.write(records)
    return store


def test_a_share_says_of_how_many() -> None:
    assert str(Share(31, 40, 100)) == "31 of 40 measured (60 not measured)"
    assert str(Share(0, 0, 100)) == "not measured (100 inputs)"
    assert math.isnan(Share(0, 0, 100).value)
    assert str(Share(3, 4, 4)) == "75.0% (3 of 4)"


def test_totals_leave_out_what_was_not_measured() -> None:
    totals = totals_of(rows_of(HALF))
    assert (totals.not_measured, totals.averaged, totals.proved, totals.stopped) == (3, 2, 2, 3)
    assert math.isclose(totals.mean_lower, 0.2)
    assert math.isclose(totals.median_lower, 0.2)
    assert str(totals.proved_share) == "2 of 2 measured (3 not measured)"
    finished = totals_of(rows_of([*HALF[:2], record(2, 0.0, math.inf)]))
    assert finished.not_measured == 0  # every method has ended: that nothing is proved is a result
    assert math.isclose(finished.mean_lower, 0.4 / 3)


def test_a_tally_tells_the_unknown_from_the_unmeasured() -> None:
    found = tally(
        rows_of([*HALF, record(5, 0.01, 0.2), record(6, 0.01, 0.2, status="stopped")]), 0.05, silent=2
    )
    assert (found.certified, found.unknown, found.not_measured, found.silent) == (2, 7, 6, 2)
    assert found.share == Share(2, 3, 9)


def test_a_comparison_means_and_ranks_only_what_was_measured(new_store: NewStore) -> None:
    """The second run is slightly worse, and finished; that the first ran out of time must not make it the worse one."""
    whole = [record(k, 0.05, 0.09) for k in range(5)]
    one, two = load(kept(new_store(), HALF), "one"), load(kept(new_store(), whole), "two")
    found = compare([one, two], radii=[0.05])
    first, second = found.sides
    assert (first.not_measured, second.not_measured) == (3, 0)
    assert math.isclose(first.mean_lower, 0.2)
    assert (first.rank_lower, second.rank_lower) == (1, 2)
    headings, cells = run_table(found)
    column = headings.index("certified at 0.05")
    assert [row[column] for row in cells] == ["2 of 2 measured (3 not measured)", "100 %"]
    assert any("one: 3 of 5 inputs are not measured" in note for note in found.notes)
    [duel] = found.duels
    assert duel.lower.count == 2
    assert math.isclose(duel.lower.mean, 0.15)
    assert as_json(found)["runs"][0]["tallies"][0]["not_measured"] == 3
    assert "nothing known, not measured" in render_comparison(found)


def test_a_comparison_of_runs_that_measured_nothing(new_store: NewStore) -> None:
    nothing = [record(k, 0.0, math.inf, status="stopped") for k in range(3)]
    found = compare([load(kept(new_store(), nothing), name) for name in "ab"], radii=[0.05])
    assert all(math.isnan(side.mean_lower) and side.rank_lower is None for side in found.sides)
    assert "not measured (3 inputs)" in str(run_table(found))
    assert "not measured" in render_comparison(found)


def test_card_and_page_say_how_many_were_not_measured(new_store: NewStore) -> None:
    store = kept(new_store(), HALF)
    text = card.render(store)
    assert "| not measured | 3, the run ended too early" in text
    assert "3 unknown (3 of these unfinished) of 5" in text
    page = render(store)
    assert "(3 of these unfinished)" in page
    assert "without the 3 not measured" in page
    assert "2 of 2 measured (3 not measured)" in page


def test_exports_leave_empty_what_nobody_found(new_store: NewStore, tmp_path: Path) -> None:
    records = [
        record(0, 0.1, 0.2),
        record(1, 0.0, math.inf, status="stopped"),
        record(2, 0.0, 0.3),
        record(3, 0.0, 0.0, note="the property fails at the input itself"),
    ]
    store = kept(new_store(), records)
    with store.export(tmp_path / "run.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    ends = [(row["lower"], row["lower_kind"], row["upper"], row["upper_kind"]) for row in rows]
    assert ends == [
        ("0.1", "proved", "0.2", "witnessed"),
        ("", "not measured", "", "not measured"),
        ("", "nothing proved", "0.3", "witnessed"),
        ("0.0", "proved", "0.0", "witnessed"),
    ]
    told = json.loads(store.export(tmp_path / "run.json").read_text())["records"]
    assert [(r["lower"]["kind"], r["upper"]["kind"]) for r in told] == [
        ("proved", "witnessed"), ("definition", "definition"), ("definition", "witnessed"), ("proved", "witnessed"),
    ]  # fmt: skip


def test_a_smoothed_class_that_was_not_sampled_is_no_abstention(new_store: NewStore) -> None:
    nothing = Bracket(trivial_bound(0.0), trivial_bound(math.inf))
    aside = {"counts": torch.tensor([9.0, 1.0]), "chosen": torch.tensor(0.0), "p_lower": torch.tensor(0.6)}
    done = Record(Key(0), nothing.with_estimate(_smoothing(0.1)), "finished", 1.0, 10, aside=aside)
    open_ = Record(Key(1), nothing, "stopped", 1.0, 0)
    assert [smoothed_of(r).measured for r in (done, open_)] == [True, False]
    store = kept(new_store(command="smoothing"), [done, open_])
    view = smoothing_table(store)
    assert str(list(view.columns[2].cells)[1]) == "not measured"
    assert str(list(view.columns[4].cells)[1]) == "–"
    assert "1 of 1 measured (1 not measured)" in str(view.caption)


def _smoothing(value: float) -> hf.result.Bound:
    found = sampled(value)
    return hf.result.Bound(
        value, hf.result.Evidence("sampled", "Smoothing", dict(found.evidence.settings), 0, confidence=0.999)
    )


def test_a_frame_that_was_not_measured_is_not_shaded_as_the_weakest() -> None:
    heat = Heat(0.0, 1.0, by_lower=True)
    half = Bracket(trivial_bound(0.0), witness(0.5))
    assert heat.level(half.lower, half) == "open"
    assert heat.level(half.upper, half) != "open"
    assert heat.level(proof(0.01), bracket(0.01, 0.5)) == "h9"


def test_plots_say_what_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(
        band, "_line", lambda axes, edges, values, colour, label: drawn.append(f"{label} {values.tolist()}")
    )
    band.draw([bracket(0.0, 0.5), bracket(0.1, 0.5)])
    assert drawn[0] == "proved [nan, 0.1]"
    svg = two_bands.draw([bracket(0.1, 0.2)], [], 0.1, asked=3)
    assert svg.startswith("<?xml")
