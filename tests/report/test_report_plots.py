"""Every plot draws none, one and many, and stays small."""

import math
import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest
from report_runs import bracket, estimate, proof

from holdfast.report.plots import band, convergence, curves, share, times
from holdfast.report.plots.convergence import mean_over_time
from holdfast.report.summary import rows_of, totals_of
from holdfast.result import Bracket, Key, Record, trivial_bound
from holdfast.store import Event
from sizes import combinations

CASES: dict[str, list[tuple[float, float]]] = {
    "none": [],
    "one": [(0.1, 0.3)],
    "closed": [(0.2, 0.2)],
    "zero": [(0.0, 0.0)],
    "open": [(0.1, math.inf)],
    "all open": [(0.0, math.inf)] * 3,
    "safe everywhere": [(math.inf, math.inf), (0.1, 0.2)],
    "scores": [(-2.0, -1.0), (-math.inf, 0.5), (0.1, 0.1), (-math.inf, -1.0)],
    "tiny": [(1e-300, 2e-300)],
    "huge": [(1e12, 3e12), (0.0, 1e-9)],
    "many": [(i / 5000, i / 5000 + 0.1 * (i % 7)) for i in range(5000)],
}
every_case = pytest.mark.parametrize("ends", CASES.values(), ids=CASES.keys())


def check(svg: str) -> str:
    ElementTree.fromstring(svg)
    assert svg.startswith("<svg")
    assert "nan" not in re.sub(r"<text.*?</text>", "", svg).lower()
    assert "var(--ink" in svg
    assert not re.findall(r'href="(?!#)', svg)
    assert len(svg) < 200_000
    return svg


@every_case
@pytest.mark.parametrize("draw", [band.draw, share.draw])
def test_brackets(draw: Callable[[list[Bracket]], str], ends: list[tuple[float, float]]) -> None:
    svg = check(draw([bracket(lower, upper) for lower, upper in ends]))
    assert ("no answers yet" in svg) == (not ends)


@every_case
def test_history(ends: list[tuple[float, float]]) -> None:
    check(
        convergence.draw(
            [Event(Key(i % 10), 0.1 * i, i, lower, upper) for i, (lower, upper) in enumerate(ends)]
        )
    )


def test_many_are_thinned_and_it_says_so() -> None:
    assert "200 of 5000 drawn" in band.draw([bracket(*ends) for ends in CASES["many"]])
    assert "drawn, evenly" not in band.draw([bracket(0.1, 0.2)] * 200)


def test_open_ends_and_estimates_are_named_only_where_there_are_some() -> None:
    assert "open, no witness" in band.draw([bracket(0.1, math.inf), bracket(0.1, 0.2)])
    assert "open, no witness" not in band.draw([bracket(0.1, 0.2)])
    assert "estimate" in band.draw([bracket(0.1, 0.2).with_estimate(estimate(0.15))])


def test_an_upper_end_by_definition_is_not_drawn_as_found() -> None:
    three_words = Bracket(proof(1.0), trivial_bound(math.inf))
    assert "open, no witness" in band.draw([three_words])
    assert ">witnessed<" not in band.draw([three_words])
    assert totals_of(rows_of([Record(Key(0), three_words, "finished", 1, 1)])).open_above == 1
    settled = Bracket(proof(math.inf), trivial_bound(math.inf))
    assert "open, no witness" not in band.draw([settled])
    assert totals_of(rows_of([Record(Key(0), settled, "closed", 1, 1)])).open_above == 0


def test_the_same_run_draws_the_same_picture() -> None:
    assert band.draw([bracket(0.1, 0.2)]) == band.draw([bracket(0.1, 0.2)])


def test_the_mean_waits_for_everyone_and_never_gets_worse() -> None:
    a, b, never = Key(0), Key(1), Key(2)
    moments = [(a, 1.0, 4.0), (never, 1.0, math.inf), (b, 2.0, 2.0), (a, 3.0, 5.0), (b, 4.0, 1.0)]
    curve = mean_over_time(moments, largest=False)
    assert curve.seconds == [2.0, 3.0, 4.0]
    assert curve.values == [3.0, 3.0, 2.5]


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
@pytest.mark.parametrize("spread", [1.0, 1e-6])
def test_times_of_none_one_and_many(count: int, spread: float) -> None:
    seconds = {"finished": [0.5 + spread * k for k in range(count)], "stopped": [1e-4][:count], "closed": []}
    svg = check(times.draw(seconds))
    assert ("no answers yet" in svg) == (count == 0)
    assert (f"finished ({count})" in svg) == (count > 0)
    assert "closed (" not in svg


@pytest.mark.parametrize(("case", "runs"), combinations(list(CASES), [0, 1, 2, 9]))
def test_curves_of_none_one_and_many_runs(case: str, runs: int) -> None:
    ends = CASES[case]
    rows = rows_of([Record(Key(i), bracket(*pair), "finished", 1.0, 1) for i, pair in enumerate(ends[:500])])
    names = [f"_run$ <{k}>" for k in range(runs)]
    svg = check(curves.draw(names, [rows] * runs))
    if runs and any(math.isfinite(end) for pair in ends for end in pair):
        assert svg.count("&lt;0&gt;") == 1
        assert "&lt;8&gt;" not in svg  # more runs than colours are left to the table


def test_curves_say_what_the_ends_say() -> None:
    rows = rows_of(
        [
            Record(Key(i), bracket(*pair), "finished", 1.0, 1)
            for i, pair in enumerate([(0.1, 0.3), (0.2, 0.4)])
        ]
    )
    grid = np.array([0.05, 0.1, 0.15, 0.25, 0.35, 0.45])
    assert curves._share(rows, grid, proved=True).tolist() == [1, 1, 0.5, 0, 0, 0]
    assert curves._share(rows, grid, proved=False).tolist() == [1, 1, 1, 1, 0.5, 0]
