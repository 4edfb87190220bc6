"""Inputs in the terminal: images of half blocks, waveforms and strokes as lines, shaded words.

Only the command line imports this module.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.style import Style
from rich.text import Text

from holdfast.formatting import format_nearest
from holdfast.report.heat_map import Heat
from holdfast.report.picture import LESS, MORE, blocks_of, channels_last, drawable, largest_known, value_range
from holdfast.report.rasterise import Ink, is_strokes, is_wave, strokes, wave
from holdfast.report.sentence import shown_positions
from holdfast.report.summary import weakest_frames, word_name
from holdfast.result import Record

Array = NDArray[Any]
WIDEST, WIDEST_WAVE = 36, 72  # Columns of an image and of a waveform: two images fit on 80 columns.
UPPER_HALF = "▀"  # Its foreground colour is the upper pixel, its background the lower one.
SHADES = " ░▒▓█"
NOT_MEASURED = "/"


def picture(x: Array, other: Array | None = None, *, colour: bool = True) -> Text:
    """Draw an input, on the common scale with `other`; without colours in five shades."""
    like = x if other is None else other
    if not (np.isfinite(x).all() and np.isfinite(like).all()):
        return _numbers(x, other)
    if is_strokes(like) or is_strokes(x):
        return _draw_ink(strokes(x, other))
    both = np.stack([x, like])
    if is_wave(x):
        return _draw_ink(wave(x, float(both.min()), float(both.max()), WIDEST_WAVE))
    if not drawable(x):
        return _numbers(x, other)
    low, high = value_range(both)
    share = ((blocks_of(channels_last(x.astype(float)), WIDEST).mean(-1) - low) / ((high - low) or 1.0)).clip(
        0, 1
    )
    if not colour:
        return _signs(np.array(list(SHADES))[(share.mean(-1) * (len(SHADES) - 1)).round().astype(int)])
    return _halves(np.broadcast_to((share * 255).round().astype(int), (*share.shape[:2], 3)))


def heat_map(plane: Array, *, colour: bool = True) -> Text:
    """Draw (h, w) numbers >= 0, light for large ones.

    NaN (not measured) is blue, or a slash without colours.
    """
    largest = largest_known(channels_last(plane), WIDEST)
    known = ~np.isnan(largest)
    share = np.nan_to_num(largest) / ((float(largest[known].max()) if known.any() else 0.0) or 1.0)
    if not colour:
        signs = np.array(list(SHADES))[(share * (len(SHADES) - 1)).round().astype(int)]
        return _signs(np.where(known, signs, NOT_MEASURED))
    grey = np.broadcast_to((share * 255).round().astype(int)[..., None], (*share.shape, 3))
    return _halves(np.where(known[..., None], grey, np.array(LESS)))


def change(before: Array, after: Array, *, colour: bool = True) -> Text:
    """Draw a change: blue for a decrease, orange for an increase, black for none; without colours - and +."""
    difference = after.astype(float) - before.astype(float)
    if is_wave(difference):
        most = float(np.abs(difference).max())
        return _draw_ink(wave(difference, -most, most, WIDEST_WAVE))
    if not drawable(difference):
        return Text()
    strongest = blocks_of(channels_last(difference), WIDEST).mean(-1)
    strongest = np.take_along_axis(strongest, np.abs(strongest).argmax(-1)[..., None], -1)
    share = strongest / (np.abs(strongest).max() or 1.0)
    if not colour:
        return _signs(np.array(list("-·+"))[np.sign(share[..., 0]).astype(int) + 1])
    colours = np.where(share < 0, np.array(LESS), np.array(MORE))
    return _halves((np.abs(share) * colours).round().astype(int))


def sentence(
    tokens: Sequence[int], vocabulary: Sequence[str], frames: Sequence[Record] = (), moved: Sequence[int] = ()
) -> Text:
    """Render words, shaded where each was queried alone, changed ones underlined; long texts are
    shortened.
    """
    heat = Heat.within(frames)
    brackets = {record.key.frame: record.bracket for record in frames}
    words = Text()
    last = -1
    for place in shown_positions(len(tokens), moved or weakest_frames(frames)):
        words.append(" " if place == last + 1 else " … ")
        style = Style(underline=place in moved, bold=place in moved)
        if place in brackets:
            end = brackets[place].lower if heat.by_lower else brackets[place].upper
            style += _shade(heat.level(end, brackets[place]))
        words.append(word_name(int(tokens[place]), vocabulary), style)
        last = place
    words.append("" if last + 1 >= len(tokens) else f" … ({len(tokens)} words)")
    return words


def _shade(level: str) -> Style:
    if level == "open":
        return Style(dim=True)
    share = 0.15 + 0.85 * int(level[1:]) / 9
    red, green, blue = (round(part * share) for part in MORE)
    return Style(color="white", bgcolor=Color.from_rgb(red, green, blue))


def _halves(pixels: Array) -> Text:
    """Draw (height, width, 3) values of 0..255, two rows per line; narrow images are doubled."""
    each = 2 if pixels.shape[1] <= WIDEST // 2 else 1
    rows = np.repeat(np.repeat(pixels, each, 1), each, 0)
    if len(rows) % 2:
        rows = np.concatenate([rows, np.zeros_like(rows[:1])])
    text = Text()
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
            text.append(UPPER_HALF, Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below)))
        text.append("\n")
    text.rstrip()
    return text


def _signs(signs: Array) -> Text:
    """Draw (height, width) characters, each twice, because a terminal cell is twice as high as wide."""
    return Text("\n".join("".join(sign * 2 for sign in line) for line in signs.tolist()))


def _draw_ink(ink: Ink) -> Text:
    """Draw ink without colours, two rows per line."""
    rows = np.concatenate([ink, np.zeros((len(ink) % 2, ink.shape[1]))]) > 0.5
    signs = np.array([[" ", "▄"], ["▀", "█"]])
    lines = signs[rows[::2].astype(int), rows[1::2].astype(int)]
    return Text("\n".join("".join(line) for line in lines))


def _numbers(x: Array, other: Array | None) -> Text:
    """Render up to 64 numbers, changed ones underlined; of more only shape and range."""
    if not 0 < x.size <= 64:
        ends = f", {format_nearest(float(x.min()))} to {format_nearest(float(x.max()))}" if x.size else ""
        return Text(f"{' x '.join(map(str, x.shape))} numbers{ends}")
    moved = np.zeros(x.size, bool) if other is None else x.ravel() != other.ravel()
    return Text(", ").join(
        Text(format_nearest(float(v)), "bold underline" if new else "")
        for v, new in zip(x.ravel(), moved, strict=True)
    )
