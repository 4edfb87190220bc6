"""The first line of the page: one sentence that answers the question, the same words for every view."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from kinds import IMAGES, KINDS, made
from report_runs import MODEL, Document, question, record
from test_accessibility import contrast

import holdfast as hf
from holdfast.question import Question
from holdfast.question_text import describe_question
from holdfast.report import write_report
from holdfast.report.answer_sentence import (
    answer_of,
    answer_sentence,
    decisive_radius,
    output_name,
    perturbation,
    radius_origin,
)
from holdfast.report.compare import compare
from holdfast.report.compare_table import comparison_sentence
from holdfast.report.pairing import load
from holdfast.report.plots import curves
from holdfast.report.plots.canvas import ESTIMATED, PROVED, WITNESSED
from holdfast.report.summary import parts_of, rows_of
from holdfast.report.verdict import tally

NewStore = Callable[..., hf.Store]
SENTENCES = {
    "radius": "1 of 3 inputs keeps its class under any change of at most 0.2 per value, values staying in [0, 1]; 2 are unknown.",
    "worst": "1 of 3 inputs keeps its class anywhere in the region; 1 is shown to change; 1 is unknown.",
    "verify": "1 of 3 properties holds (unsat, proved); 1 violated (sat, with a replayed counterexample); 1 not decided.",
    "reach": "Output 0 stays between -1.25 and 1.5; output 1 stays between 0.5 and ∞ in the box (proved).",
    "risk": "2 of 3 inputs keep their class in the region; 1 is unknown; the nearest failure found lies at distance 0.2.",
    "saliency": (
        "Changing one pixel is shown to change the class of 2 of 3 images; for the other 1 no change that was tried does (not a proof); "
        "the smallest margin found is -1.5."
    ),
    "testgen": (
        "2 of 3 coverage items that the given inputs leave open are reached by inputs that change 2 to 3 pixels; 1 not reached, "
        "which does not prove that they cannot be."
    ),
    "smoothing": (
        "The smoothed network keeps its class within a positive L2 radius for 2 of 3 images (median of these 0.375); sampled, not proved."
    ),
    "monitor": (
        "At its weakest position, the least stable of 2 texts keeps its class with probability 0.5 (all mutants counted); 1 not counted."
    ),
}


class Headings(HTMLParser):
    """Collects the text of <h1>."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.inside, self.text = False, ""
        self.feed(html)

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        self.inside = self.inside or tag == "h1"

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "h1"

    def handle_data(self, data: str) -> None:
        self.text += data if self.inside else ""


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_begins_with_the_sentence_that_other_views_get(
    new_store: NewStore, tmp_path: Path, kind: str
) -> None:
    store = made(new_store, kind)
    sentence = answer_of(store)
    assert sentence.replace("image", "input").replace("per pixel", "per value").replace("pixel", "?") == (
        SENTENCES[kind].replace("image", "input").replace("per pixel", "per value").replace("pixel", "?")
    )
    assert Headings(write_report(store, tmp_path / "r.html").read_text()).text == sentence


@pytest.mark.parametrize(
    ("said", "phrase"),
    [
        ({}, "under any change of at most 0.05 per value, values staying in [0, 1]"),
        ({"norm": "2"}, "under any change of L2 size at most 0.05, values staying in [0, 1]"),
        ({"frames": "each"}, "under any change of at most 0.05 per value in any single frame, values staying in [0, 1]"),
        ({"frames": "all"}, "under any change of at most 0.05 per value in every frame at once, values staying in [0, 1]"),
        ({"frames": "1,2"}, "under any change of at most 0.05 per value in the frames 1,2, values staying in [0, 1]"),
        ({"drift": True}, "under any constant offset of at most 0.05 per feature, values staying in [0, 1]"),
        (
            {"drift": True, "shares": "0.1,1"},
            "under any constant offset of at most 0.05 per feature, feature k by its share in 0.1,1, values staying in [0, 1]",
        ),
        ({"free": "abc"}, "under any change of at most 0.05 per value, only where the mask allows a change, values staying in [0, 1]"),
        (
            {"patch": "1,2,3"},
            "under any change of at most 0.05 per value, only inside the square 1,2,3 (top, left, size), values staying in [0, 1]",
        ),
    ],
)  # fmt: skip
def test_every_restriction_is_in_the_phrase(said: dict[str, Any], phrase: str) -> None:
    assert perturbation(question(**said), 0.05) == phrase


def test_counts_of_changes_are_whole_words() -> None:
    assert (
        perturbation(question(norm="0"), 1.0, image=True)
        == "when any 1 pixel changes, values staying in [0, 1]"
    )
    assert perturbation(question(norm="0", unit="frame"), 3.0).startswith("when any 3 frames or fewer change")
    assert perturbation(question(norm="words"), 2.0) == "when any 2 words or fewer are replaced"
    assert perturbation(question(norm="words"), 1.0) == "when any 1 word is replaced"


def test_the_counts_are_those_of_the_tables(new_store: NewStore) -> None:
    found = [record(k, 0.01 * k, 0.01 * k + 0.05) for k in range(8)]
    wrong = record(8, 0.0, 0.0, note="the property fails at the input itself")
    rows = rows_of([*found, wrong])
    asked = question()
    chosen = decisive_radius(asked, rows)
    assert chosen is not None
    counts = tally(rows, chosen[0], silent=2)
    sentence = answer_sentence(asked, parts_of(rows), silent=2)
    assert sentence.startswith(f"{counts.certified} of 11 inputs keep their class")
    assert counts.broken == 1
    assert "shown to change" not in sentence
    assert "; 1 is misclassified without any change; " in sentence
    assert f"{counts.unknown} are unknown (2 of these unfinished)" in sentence
    assert counts.certified >= len(found) / 2  # the median is rounded towards the certified side


def test_the_radius_of_the_question_is_used() -> None:
    rows = rows_of([record(0, 0.1, 0.4), record(1, 0.3, 0.5)])
    assert decisive_radius(question(radius=0.25), rows) == (0.25, "the radius of the question")
    assert "1 of 2 inputs keeps its class under any change of at most 0.25 per value" in answer_sentence(
        question(radius=0.25), parts_of(rows)
    )


def test_nothing_is_claimed_of_nothing() -> None:
    assert answer_sentence(question(), parts_of([])) == "There is no answer yet."
    rows = rows_of([record(0, 0.0, math.inf)])
    assert (
        answer_sentence(question(), parts_of(rows))
        == "No radius is certified for the input, and no counterexample was found."
    )


def test_what_is_proved_at_every_radius_is_no_failure() -> None:
    rows = rows_of([record(0, math.inf, math.inf), record(1, 0.0, math.inf)])
    assert answer_sentence(question(), parts_of(rows)).startswith(
        "1 of 2 inputs keeps its class under any change of any size"
    )
    for norm, phrase in (
        ("0", "when any number of numbers change"),
        ("words", "when any number of words are replaced"),
    ):
        assert phrase in answer_sentence(question(norm=norm), parts_of(rows))
    assert radius_origin(question(), parts_of(rows)) == ""


def test_the_radius_is_rounded_to_the_decided_side_and_explained(new_store: NewStore) -> None:
    certified = parts_of(rows_of([record(0, 0.01, 0.1), record(1, 0.05678, 0.1), record(2, 0.09, 0.1)]))
    assert "2 of 3 inputs keep their class under any change of at most 0.056 per value" in answer_sentence(
        question(), certified
    )
    assert radius_origin(question(), certified) == "0.056: the median certified radius, rounded down"
    found = parts_of(rows_of([record(k, 0.0, high) for k, high in enumerate((0.123, 0.2, 0.1))]))
    assert "of at most 0.13 per value, values staying in [0, 1]; 2 are shown to change; 1 is unknown" in (
        answer_sentence(question(), found)
    )
    assert radius_origin(question(), found) == "0.13: the median distance of the counterexamples, rounded up"
    assert radius_origin(question(radius=0.1), found) == ""
    store = new_store()
    store.write([record(0, 0.01, 0.1)])
    assert answer_of(store, explain=True).endswith("rounded down; --at names another radius.)")
    assert answer_of(store, 0.01, explain=True) == answer_of(store, 0.01)


def test_a_radius_is_never_rounded_over_what_is_proved() -> None:
    exact = 0.05678912
    parts = parts_of(rows_of([record(0, exact, 0.1)]))
    assert "1 of 1 input keeps its class under any change of at most 0.05678912 per" in answer_sentence(
        question(), parts, at=exact
    )
    assert "0 of 1 input" in answer_sentence(question(), parts, at=math.nextafter(exact, 1))


def test_forecasts_and_targets_have_words_of_their_own() -> None:
    parts = parts_of(rows_of([record(0, 0.1, 0.4), record(1, 0.3, 0.5)]))
    assert "keeps its forecast within 10%" in answer_sentence(question(radius=0.2, within="10%"), parts)
    assert "keeps every output on its side of 0.5" in answer_sentence(
        question(radius=0.2, threshold="0.5"), parts
    )
    asked = question(radius=0.2, within="2", outputs="0")
    assert "keeps its forecast within 2 (outputs 0)" in answer_sentence(asked, parts)
    asked = question(radius=0.2, property="confidence", epsilon=0.1)
    assert "keeps the property confidence by more than 0.1" in answer_sentence(asked, parts)
    asked = question(radius=0.2, arithmetic="executed")
    assert "outputs as computed in the arithmetic of the network" in answer_sentence(asked, parts)
    assert "is not classified as target 3" in answer_sentence(question(radius=0.2, targets="3"), parts)


def test_tiles_that_are_zero_and_charts_of_one_point_are_left_out(
    new_store: NewStore, tmp_path: Path
) -> None:
    store = new_store()
    store.write([record(0, 0.1, 0.2)])
    html = write_report(store, tmp_path / "r.html").read_text()
    text = Document(html).text
    assert "0misclassified" not in text
    assert "interrupted " not in text.replace("interrupted:", "")
    assert "<svg" not in html
    store.write([replace(record(1, 0.1, 0.2), status="stopped")])
    html = write_report(store, tmp_path / "r.html").read_text()
    assert "1timed out" in Document(html).text
    assert "<svg" in html


def test_pages_of_other_shapes_have_no_tiles_of_radii(new_store: NewStore, tmp_path: Path) -> None:
    for kind in ("reach", "saliency", "smoothing", "testgen", "verify"):
        text = Document(write_report(made(new_store, kind), tmp_path / f"{kind}.html").read_text()).text
        assert "bounds of the mean" not in text, kind
        assert "certifiedat" not in text, kind
    assert "Coverage items" in Document((tmp_path / "testgen.html").read_text()).text
    saliency = (tmp_path / "saliency.html").read_text()
    assert saliency.count('<img alt="one change lowers the margin') == len(IMAGES)
    assert torch.is_tensor(IMAGES)


def test_a_domain_without_bounds_is_no_restriction() -> None:
    assert (
        perturbation(question(model={**MODEL, "domain": "unbounded"}), 0.5)
        == "under any change of at most 0.5 per value"
    )


def test_the_radius_is_the_median_even_where_quartiles_agree() -> None:
    rows = rows_of([record(k, low, 9.0) for k, low in enumerate((1.3, 1.31, 1.9))])
    chosen = decisive_radius(question(), rows)
    assert chosen is not None
    assert chosen[0] == 1.3
    assert "3 of 3 inputs keep their class" in answer_sentence(question(), parts_of(rows))


def compared(new_store: NewStore, ends: Sequence[Sequence[tuple[float, float]]]) -> str:
    runs = []
    for name, brackets in zip("abcd", ends, strict=False):
        store = new_store()
        store.write([record(k, *pair) for k, pair in enumerate(brackets)])
        runs.append(load(store, name))
    return comparison_sentence(compare(runs))


def test_a_comparison_is_answered_in_one_sentence(new_store: NewStore) -> None:
    first, second = (
        [(0.5, 0.6), (0.1, 0.1), (0.1, 0.4), (0.1, 0.2)],
        [(0.1, 0.2), (0.1, 0.1), (0.1, 0.4), (0.3, 0.4)],
    )
    assert compared(new_store, [first, second]) == (
        "a is more robust than b on 1 of 4 inputs, b on 1; 1 is a tie; 1 is undecided."
    )
    assert compared(new_store, [second[2:3], first[2:3]]) == (
        "Neither a nor b is shown to be more robust on any of 1 input; 1 is undecided."
    )


def test_many_runs_are_summed_up(new_store: NewStore) -> None:
    ends = [[(0.1 * k, 0.1 * k + 0.05)] for k in range(1, 5)]
    assert compared(new_store, ends) == (
        "Proved wins over another run on one of 1 input: d 3, c 2, b 1, a 0; 0 of 6 comparisons are undecided."
    )


def test_the_colours_of_runs_mean_nothing_else() -> None:
    assert not set(curves.COLOURS) & {PROVED, WITNESSED, ESTIMATED}
    assert len(set(curves.COLOURS)) == len(curves.COLOURS) == len(curves.MARKS)
    for colour in curves.COLOURS:
        assert contrast(colour, "#ffffff") >= 3, colour
        assert contrast(colour, "#1c2026") >= 3, colour


def test_only_an_input_that_breaks_the_property_is_called_a_counterexample(
    new_store: NewStore, tmp_path: Path
) -> None:
    worst = write_report(made(new_store, "worst"), tmp_path / "worst.html").read_text()
    assert '<th scope="col">worst input found</th>' in worst
    assert '<th scope="col">counterexample</th>' not in worst
    radius = write_report(made(new_store, "radius"), tmp_path / "radius.html").read_text()
    assert '<th scope="col">counterexample</th>' in radius


def test_a_single_changed_unit_is_named_in_the_singular(new_store: NewStore, tmp_path: Path) -> None:
    store = made(new_store, "testgen")
    store.write([record(k, 0.0, 0.0 if k < 2 else math.inf) for k in range(3)])
    text = Document(write_report(store, tmp_path / "r.html").read_text()).text
    assert re.search(r"inputs that change 1 (pixel|unit);", text), text[:400]
    assert "1 to 1" not in text


def test_a_table_counts_changes_in_the_scale_of_each_column() -> None:
    """'0.5 per value' would be wrong where age is measured in units of 18 years."""
    plain = question(radius=0.5, model={"domain": None})

    def about(columns: hf.Columns) -> Question:
        return replace(plain, asked=replace(plain.asked, columns=columns.to_json()))

    parts = parts_of(rows_of([record(0, 0.1, 0.4), record(1, 0.3, 0.5)]))
    scaled = about(hf.Columns.named(["age", "debt"], scales={"age": 18.0, "debt": 0.3}))
    assert perturbation(scaled, 0.5) == "under any change of at most 0.5 times its scale in each column"
    assert "table rows" in answer_sentence(scaled, parts)
    assert "each change divided by the scale of its column: age 18, debt 0.3" in describe_question(scaled)
    unscaled = about(hf.Columns.named(["age", "debt"]))
    assert perturbation(unscaled, 0.5) == "under any change of at most 0.5 per value"


def test_outputs_with_names_are_called_by_them() -> None:
    named = question(command="reach", data={"classes": ["wind in m/s", "1"]})
    assert [output_name(named, k) for k in (0, 1, 2)] == ["wind in m/s", "1", "2"]
