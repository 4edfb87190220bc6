"""Pictures are real PNG files that show the numbers they were made from."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from holdfast.report.picture import (
    LARGEST_SIDE,
    LONGEST_SIDE,
    blue_or_orange,
    describe_change,
    grey_or_rgb,
    ink_png,
    show,
    side_for,
)
from holdfast.report.rasterise import SIDE, is_strokes, is_wave, strokes, wave


def decoded(data: bytes) -> np.ndarray:
    picture = Image.open(io.BytesIO(data))
    return np.asarray(picture.convert("RGBA") if picture.mode == "P" else picture) / 255


def test_grey_levels_survive() -> None:
    x = np.random.default_rng(0).integers(0, 16, (5, 7)) / 15
    assert np.allclose(decoded(grey_or_rgb(x[..., None], 0, 1)), x)


def test_colours_survive() -> None:
    x = np.random.default_rng(0).random((6, 5, 3))
    assert np.allclose(decoded(grey_or_rgb(x, 0, 1)), x, atol=1 / 255)


def test_changes_are_blue_down_orange_up_and_clear_where_nothing_changed() -> None:
    pixels = decoded(blue_or_orange(np.array([[-1.0, 0.0, 0.5, 1.0]])[..., None]))
    assert pixels.shape == (1, 4, 4)
    down, same, half, up = pixels[0]
    assert down[2] > down[0]
    assert up[0] > up[2]
    assert same[3] == 0
    assert 0 < half[3] < up[3] == 1


@pytest.mark.parametrize("shape", [(100, 30), (1, 97, 301), (3, 49, 48)])
def test_large_pictures_shrink(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random(shape)
    pixels = decoded(base64.b64decode(show(x, None).input.split("base64,")[1].split('"')[0]))
    assert max(pixels.shape[:2]) <= LONGEST_SIDE


def test_one_changed_pixel_of_a_large_picture_stays_visible() -> None:
    change = np.zeros((200, 200, 3))
    change[77, 123, 1] = -0.5
    assert decoded(blue_or_orange(change))[..., 3].max() == 1


def test_constant_and_broken_inputs_do_not_fail() -> None:
    constant = np.full((4, 4), 7.0)
    assert "<img" in show(constant, constant).change
    assert "<img" not in show(np.full((4, 4), np.nan), None).input
    assert describe_change(np.array([0.0, 0.25])) == "1 of 2, ±0.25"


def test_strokes_are_known_and_drawn_where_the_pen_was_down() -> None:
    right, down = [10.0, 0.0, 0.0, 0.0], [0.0, 10.0, 0.0, 0.0]
    corner = np.array([[0.0, 0.0, 0, 0], right, down, [0.0, 0.0, 1, 1]])
    assert is_strokes(corner)
    assert not is_strokes(np.random.default_rng(0).random((9, 4)))
    ink = strokes(corner, corner)
    assert ink[1, 1 : SIDE - 1].all()
    assert ink[1 : SIDE - 1, SIDE - 2].all()
    assert not ink[SIDE // 2 :, : SIDE // 2].any()
    lifted = corner.copy()
    lifted[1, 2] = 1  # the pen goes up after the first line
    assert not strokes(lifted, corner)[5 : SIDE - 5, SIDE - 2].any()


def test_a_waveform_shows_its_envelope() -> None:
    x = np.sin(np.linspace(0, 20, 4000))
    assert is_wave(x)
    assert not is_wave(x[:5])
    ink = wave(x, -1, 1)
    assert ink.any(0).all()  # some ink in every column
    assert ink[0].any()
    assert ink[-1].any()
    assert np.allclose(decoded(ink_png(ink))[..., 3], ink)


def test_the_change_of_a_waveform_is_given_in_decibels_of_its_peak() -> None:
    x = np.sin(np.linspace(0, 20, 4000))
    assert "-60.0 dB of the peak" in show(x, x + 1e-3 * np.abs(x).max()).change
    assert "dB" not in show(x, x).change  # nothing changed: no decibels
    assert "dB" not in show(x[:12], x[:12] + 1e-3).change  # a few numbers are no waveform


def test_a_row_of_a_table_marks_what_the_witness_changes() -> None:
    shown = show(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.5, 3.0]))
    assert "<mark>" not in shown.input
    assert "1, <mark>2.5</mark>, 3" in shown.witness


def test_few_large_images_are_shown_larger_within_the_budget() -> None:
    photo = np.random.default_rng(0).random((3, 224, 224))
    assert side_for(photo, 1000, 450_000) == LONGEST_SIDE
    assert side_for(photo, 1, 450_000) == LARGEST_SIDE
    for rows in (4, 12, 20):
        side = side_for(photo, rows, 450_000)
        drawn = show(photo, photo * 0.5, side=side)
        if side > LONGEST_SIDE:
            assert (
                rows * sum(len(part) for part in (drawn.input, drawn.witness, drawn.change)) < 1.1 * 450_000
            )
    assert side_for(photo[:1], 12, 450_000) > side_for(photo, 12, 450_000)
