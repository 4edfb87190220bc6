"""Line charts of time series: channels with names, the counterexample over the input, and a drift in numbers."""

import re
from pathlib import Path

import numpy as np
import pytest
from report_runs import Document

from holdfast.report.picture import show
from holdfast.report.series import MOST_POINTS, chart, describe_offsets, is_series

DAY = np.stack([np.sin(np.arange(24) / 4) * 5 + 15, np.linspace(1, 4, 24)], 1)
NAMES = ("temperature in °C", "wind in m/s")


@pytest.mark.parametrize(
    ("shape", "series"), [((24, 2), True), ((4, 1), True), ((3, 2), False), ((8, 8), False), ((200, 7), False), ((24,), False)]
)  # fmt: skip
def test_which_arrays_are_series(shape: tuple[int, ...], series: bool) -> None:
    assert is_series(np.random.default_rng(0).random(shape)) == series
    assert not is_series(np.full(shape, np.nan))


def test_a_chart_names_channels_units_and_time() -> None:
    document = Document(str(chart("input", DAY, None, NAMES)))
    for text in (*NAMES, "time step", "23", "1 to 4"):
        assert text in document.text
    assert 'aria-label="input: temperature in °C' in str(chart("input", DAY, None, NAMES))
    assert "channel 1" in Document(str(chart("input", DAY, None, ("one name",)))).text


def test_the_counterexample_lies_over_the_input_on_one_scale() -> None:
    moved = DAY.copy()
    moved[5, 0] += 30
    drawn = str(show(DAY, moved, NAMES).witness)
    lines = re.findall(r'<polyline class="(\w+)" points="([^"]*)"', drawn)
    assert [style for style, _ in lines] == ["was", "now", "was", "now"]
    same = [dict(lines[k : k + 2]) for k in (0, 2)]
    assert same[1]["was"] == same[1]["now"]  # the wind did not change
    before, after = (points.split() for points in (same[0]["was"], same[0]["now"]))
    assert [k for k, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [5]


def test_a_drift_is_given_in_numbers() -> None:
    drift = np.broadcast_to([0.25, -0.1], DAY.shape)
    assert describe_offsets(drift, NAMES) == "constant offset: temperature in °C +0.25, wind in m/s -0.1"
    assert "constant offset: channel 0 +0.25" in str(show(DAY, DAY + drift).change)
    noise = drift + np.random.default_rng(0).normal(0, 1e-2, DAY.shape)
    assert describe_offsets(noise) == ""
    assert describe_offsets(np.zeros_like(DAY)) == ""
    assert "<svg" in str(show(DAY, DAY + noise).change)


def test_rounding_does_not_hide_a_drift() -> None:
    moved = (DAY.astype(np.float32) + np.float32(0.3)).astype(np.float32)
    assert describe_offsets(moved.astype(float) - DAY.astype(np.float32).astype(float), NAMES).startswith(
        "constant"
    )


def test_long_series_stay_small_and_keep_their_peaks() -> None:
    x = np.zeros((10_000, 1))
    x[1234] = 7.0
    drawn = str(chart("input", x))
    assert len(drawn) < 4000
    points = re.findall(r'points="([^"]*)"', drawn)[0].split()
    assert len(points) <= MOST_POINTS
    assert len({point.split(",")[1] for point in points}) == 2


def test_constant_and_hostile_series_are_drawn(tmp_path: Path) -> None:
    drawn = str(chart("input", np.ones((8, 2)), None, ("<script>", '"')))
    assert "<script>" not in drawn
    assert Document(drawn).tags.count("polyline") == 2
