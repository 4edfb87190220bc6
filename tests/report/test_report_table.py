"""The table in the terminal."""

import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from report_runs import record
from rich.console import Console

import holdfast as hf
from holdfast.formatting import format_lower, format_upper, norm_name
from holdfast.report import write_report
from holdfast.report.table import table
from holdfast.result import Bound, Evidence, Record, overall


def printed(source: hf.Store | list[Record], most: int = 20) -> str:
    stream = io.StringIO()
    Console(file=stream, width=140).print(table(source, most=most))
    return stream.getvalue()


def test_ends_kinds_status_and_means() -> None:
    text = printed([record(0, 0.1, 0.4), record(1, 0.3, 0.3)])
    assert "0.1 proved" in text
    assert "0.4 witnessed" in text
    assert "closed" in text
    assert "mean of 2: lower 0.2, upper 0.35" in text
    assert "label" not in text


@pytest.mark.parametrize("count", [0, 1, 20, 100])
def test_the_rest_is_counted(count: int) -> None:
    text = printed([record(i, 0.1, 0.4) for i in range(count)])
    assert ("... and 80 more" in text) == (count == 100)
    assert text.count("witnessed") == min(count, 20)


def test_open_ends() -> None:
    text = printed([record(0, 0.0, math.inf), record(1, 0.1, 0.4)])
    assert text.count("nothing known") == 2
    assert "1 open, no witness; the others 0.4" in " ".join(text.split())


def test_names_from_the_store_are_not_read_as_markup(new_store: Callable[..., hf.Store]) -> None:
    store = new_store(classes=["[red]cat[/red]"])
    store.put_inputs([torch.zeros(2)], [0], [0], [""], [None])
    store.write([record(0, 0.1, 0.4, note="[bold]odd")])
    text = printed(store)
    assert "[red]cat[/red]" in text
    assert "[bold]odd" in text


def test_frames_make_one_line() -> None:
    text = printed([record(0, 0.1, 0.4, frame=0), record(0, 0.05, 0.9, frame=1, status="interrupted")])
    assert "0.05 proved" in text
    assert "0.4 witnessed" in text
    assert "weakest of 2 frames" in text
    assert "interrupted" in text


def test_the_weakest_frames_come_first_and_words_are_marked(new_store: Callable[..., hf.Store]) -> None:
    text = printed([record(0, 0.1 * k, 0.9, frame=k) for k in (3, 1, 5, 2)])
    assert "weakest of 4 frames: 1, 2, 3" in text
    store = new_store(vocabulary=["the", "film", "was", "good", "[b]bad"])
    store.put_inputs([torch.zeros(5)] * 2, [0, 0], [0, 0], ["", ""], [[0, 1, 2, 3, 4]] * 2)
    store.write([record(0, 0.0, upper, frame=k) for k, upper in enumerate((9.0, 0.5, math.inf, 0.1, 0.2))])
    store.write([record(1, math.inf, math.inf, frame=k, note="nothing can") for k in range(5)])
    assert "weakest of 5 words: good, [b]bad, film" in printed(store)
    assert "none of 5 words breaks it" in printed(store)
    assert "nothing can" not in printed(store)
    stream = io.StringIO()
    Console(file=stream, width=140, force_terminal=True, color_system="standard").print(table(store))
    for word in ("film", "good", "[b]bad"):
        assert f"\x1b[1;4m{word}\x1b[0m" in stream.getvalue()
    assert "\x1b[1;4mwas" not in stream.getvalue()


def test_what_nothing_breaks_is_infinite_and_counted_apart() -> None:
    text = printed([record(0, math.inf, math.inf, note="nothing may change here"), record(1, 0.1, 0.4)])
    assert "∞ proved" in text
    assert "nothing known" not in text
    assert "mean of 1: lower 0.1, upper 0.4, centre 0.25 +- 0.15; 1 of 2 cannot be broken" in " ".join(
        text.split()
    )
    assert "nothing may change here" in text
    alone = printed([record(0, math.inf, math.inf)])
    assert "1 of 1 cannot be broken" in alone
    assert "mean" not in alone


def guessed(index: int, upper: float, guess: float) -> Record:
    """As the grid leaves it: nothing proved, a witness, and so many changed units taken to be safe."""
    found = record(index, 0.0, upper)
    return replace(found, bracket=found.bracket.with_estimate(Bound(guess, Evidence("estimated", "Grid"))))


def test_the_centre_of_a_grid_is_that_of_the_paper(
    new_store: Callable[..., hf.Store], tmp_path: Path
) -> None:
    """DeepTRE, Definition 4: ((l + u) / 2, (u - l) / 2), where l is what the grid takes to be safe, and not what is proved."""
    records = [guessed(0, 1.0, 1.0), guessed(1, 2.0, 2.0)]
    text = " ".join(printed(records).split())
    assert (
        "mean of 2: lower 0, upper 1.5, centre 1.5 +- 0 (DeepTRE's Definition 4: its lower bounds are estimates"
        in text
    )
    half = " ".join(printed([guessed(0, 2.0, 1.0), record(1, 0.0, 2.0)]).split())
    assert "lower 0, upper 2, centre 1.25 +- 0.75 (DeepTRE" in half
    store = new_store(norm="0", mode="grid")
    store.write(records)
    assert "| centre and radius | 1.5 ± 0 (DeepTRE" in write_report(store, tmp_path / "card.md").read_text()
    assert "1.5 ± 0" in write_report(store, tmp_path / "r.html").read_text()
    found = overall([r.bracket for r in records], "Grid")
    assert (found.centre, found.radius) == (1.5, 0.0)
    assert overall([r.bracket for r in records]).centre == 0.75


def test_an_estimate_that_a_witness_refutes_is_shown_as_refuted(
    new_store: Callable[..., hf.Store], tmp_path: Path
) -> None:
    """And is never averaged beyond what the witness leaves."""
    wrong = guessed(0, 1.0, 2.0)
    assert "2 estimated, refuted by the witness" in " ".join(printed([wrong]).replace("│", " ").split())
    assert "refuted" not in printed([guessed(0, 2.0, 2.0)])
    assert overall([wrong.bracket], "Grid").lower == 1.0
    store = new_store()
    store.write([wrong])
    assert "estimated, refuted by the witness, Grid" in write_report(store, tmp_path / "r.html").read_text()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_shown_still_holds(value: float) -> None:
    assert float(format_lower(value)) <= value <= float(format_upper(value))


@pytest.mark.parametrize(
    ("norm", "name"), [("inf", "L∞"), (math.inf, "L∞"), (2.0, "L2"), (0, "L0"), (1.5, "L1.5"), ("2", "L2")]
)
def test_norm_names(norm: object, name: str) -> None:
    assert norm_name(norm) == name
