"""What a run says in the end: the sorted table with file names, the sentence that answers, and the slide."""

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from cli_workshop import Ask
from PIL import Image

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.question import DataDescription, ModelDescription, Question, Request
from holdfast.report.answer_sentence import answer_of
from holdfast.result import Bound, Bracket, Evidence, Key, Record, trivial_bound

PROVED = Evidence("proved", "Certify")


def store_of(
    folder: Path, brackets: list[tuple[float, float]], shape: tuple[int, ...] = (1, 2, 2), **asked: Any
) -> hf.Store:
    """A run with these lower and upper bounds; infinite upper bounds have no counterexample."""
    request = Request(**{"norm": "inf", **asked})
    count = len(brackets)
    question = Question("radius", ModelDescription("m.onnx"), DataDescription("d.npz", count=count), request)
    store = hf.Store.create(folder, question)
    names = [f"photos/{k}.png" for k in range(count)]
    store.put_inputs([torch.zeros(shape)] * count, [0] * count, [0] * count, names, [None] * count)
    records = []
    for place, (low, high) in enumerate(brackets):
        found = Evidence("witnessed", "PGD", witness=torch.ones(shape))
        upper = Bound(high, found) if high < math.inf else trivial_bound(high)
        records.append(Record(Key(place), Bracket(Bound(low, PROVED), upper), "finished", 1.0, 10))
    store.write(records)
    return store


def sentence(store: hf.Store, at: float | None = None) -> str:
    with store:
        return answer_of(store, at, explain=True)


FOUR = [(0.06, 0.2), (0.051, 0.3), (0.01, 0.04), (0.02, math.inf)]


def test_the_sentence_counts_certified_changed_and_unknown_inputs(tmp_path: Path) -> None:
    assert sentence(store_of(tmp_path / "run", FOUR), 0.05) == (
        "2 of 4 images keep their class under any change of at most 0.05 per pixel; 1 is shown to change; "
        "1 is unknown."
    )


def test_the_default_radius_is_rounded_down_and_explained(tmp_path: Path) -> None:
    text = sentence(store_of(tmp_path / "run", [(0.01, 0.1), (0.05678, 0.1), (0.09, 0.1)]))
    assert text.startswith("2 of 3 images keep their class under any change of at most 0.056 per pixel;")
    assert "(0.056: the median certified radius, rounded down; --at names another radius.)" in text


@pytest.mark.parametrize(
    ("asked", "shape", "at", "expected"),
    [
        ({"norm": "2"}, (1, 2, 2), 0.05, "images keep their class under any change of L2 size at most 0.05;"),
        ({"frames": "each"}, (5, 2), 0.05, "inputs keep their class under any change of at most 0.05 per value in any single frame;"),
        ({"drift": True, "shares": "1,2"}, (5, 2), 0.05,
         "windows keep their class under any constant offset of at most 0.05 per feature, feature k by its share in 1,2;"),
        ({"within": "10%"}, (5,), 0.05, "inputs keep their forecast within 10% under any change of at most 0.05 per value;"),
        ({"threshold": "0.5"}, (5,), 0.05, "inputs keep every output on its side of 0.5 under"),
        ({"targets": "3"}, (5,), 0.05, "inputs are not classified as target 3 under"),
    ],
)  # fmt: skip
def test_the_sentence_names_units_and_restrictions(
    asked: dict[str, Any], shape: tuple[int, ...], at: float, expected: str, tmp_path: Path
) -> None:
    text = sentence(store_of(tmp_path / "run", FOUR, shape, **asked), at)
    assert text.startswith(f"2 of 4 {expected}")


def test_counts_of_changed_pixels_are_whole_numbers(tmp_path: Path) -> None:
    """The upper bound of a count is the last count that may hold: its counterexample has one change more."""
    counts = [(3.0, 3.0), (1.0, 2.0), (0.0, 1.0)]
    store = store_of(tmp_path / "run", counts, norm="0")
    assert sentence(store, 2) == (
        "1 of 3 images keeps its class when any 2 pixels or fewer change; 1 is shown to change; 1 is unknown."
    )
    again = hf.Store.read(tmp_path / "run")
    assert "any 2 pixels or fewer change; 1 is shown" in sentence(again, 2.9)


def test_the_table_sorts_by_fragility_and_shows_file_names(ask: Ask) -> None:
    store_of(Path("run"), [(0.06, 0.3), (0.051, 0.2), (0.01, 0.04)] + [(0.5, 0.9)] * 30).close()
    said = ask("show", "run", "--sort", "fragility", "--at", "0.05")
    assert said.code == 0, said.err
    rows = [line.split("│") for line in said.out.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows][:3] == ["2", "1", "0"]
    assert "photos/2.png" in said.out
    usual = [
        line.split("│")[1].strip() for line in ask("show", "run").out.splitlines() if line.startswith("│")
    ]
    assert usual[:3] == ["0", "1", "2"]
    assert len(rows) == len(usual) == 20
    text = " ".join(said.out.split())
    assert (
        "answer: 32 of 33 images keep their class under any change of at most 0.05 per pixel; 1 is shown"
        in text
    )


def test_a_run_of_one_input_shows_it(ask: Ask) -> None:
    store_of(Path("run"), [(0.06, 0.3)]).close()
    assert "input 0, photos/0.png" in ask("show", "run").out
    assert "answer: 1 of 1 image keeps" in ask("show", "run", "--at", "0.05").out


def test_radius_ends_with_the_answer(ask: Ask) -> None:
    said = ask(
        "radius", "-m", "lstm.onnx", "-d", "data.npz", "--domain", "0,1", "-o", "run", "--sort", "fragility"
    )
    assert said.code == 0, said.err
    assert "inputs keep their class under any change of at most" in " ".join(said.out.split())


@pytest.mark.parametrize("wrong", [("--sort", "size"), ("--at", "-1"), ("--at", "nan")])
def test_a_wrong_order_or_radius_is_refused_before_the_run(wrong: tuple[str, str], refused: Ask) -> None:
    said = refused("radius", "-m", "lstm.onnx", "-d", "data.npz", "-o", "run", *wrong)
    assert wrong[0][2:] in said.err


@pytest.mark.parametrize("count", [3, 50])
def test_a_slide_is_a_picture_of_16_to_9(count: int, ask: Ask) -> None:
    store_of(Path("run"), [(0.01 * k, 0.02 * k + 0.01) for k in range(count)]).close()
    assert ask("report", "run", "--out", "slide.png", "--at", "0.05").code == 0
    with Image.open("slide.png") as drawn:
        assert drawn.size == (1920, 1080)
    assert ask("report", "run", "--out", "slide.svg", "--at", "0.05").code == 0
    ElementTree.parse("slide.svg")
    first = Path("slide.svg").read_text()
    assert "keep their class" in first.replace("\n", " ")


def test_a_slide_of_a_run_without_radii_is_refused(tmp_path: Path) -> None:
    from holdfast.cli.views.slide import write_slide

    with (
        hf.Store.create(tmp_path / "run", Question("verify")) as store,
        pytest.raises(BadInput, match="slide"),
    ):
        write_slide(store, tmp_path / "slide.png")


def test_another_ending_is_refused_with_all_that_are_known(ask: Ask) -> None:
    store_of(Path("run"), [(0.06, 0.3)]).close()
    said = ask("report", "run", "--out", "slide.gif")
    assert said.code == 2
    for ending in (".html", ".md", ".json", ".png", ".svg"):
        assert ending in said.err
