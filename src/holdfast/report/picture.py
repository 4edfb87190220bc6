"""Thumbnails of an input, its counterexample and the change between them, for a table cell."""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from holdfast.formatting import format_nearest
from holdfast.report.rasterise import FEWEST_NUMBERS, Ink, is_strokes, is_wave, strokes, wave
from holdfast.report.series import chart, describe_offsets, is_series

Array = NDArray[Any]
# Pixels of a thumbnail; larger images are averaged. 1,000 of them fit into the page's budget.
LONGEST_SIDE = 48
LARGEST_SIDE = (
    160  # Pixels of a thumbnail where few inputs share the budget; three fit next to the numbers at 1400 px.
)
LEVELS = 7  # Levels of a change: three down, none, three up; they fit a palette of 4 bits.
LESS, MORE = (0, 114, 178), (213, 94, 0)
PEN = (104, 116, 132)  # A grey with contrast on white and on black.
UNKNOWN_LEVEL = 15  # The entry of a 16-colour palette for unmeasured pixels; entries 0 to 14 are shades.


@dataclass(frozen=True)
class Pictures:
    """HTML for three cells of the table."""

    input: Markup
    witness: Markup
    change: Markup


def show(x: Array, witness: Array | None, names: Sequence[str] = (), side: int = LONGEST_SIDE) -> Pictures:
    """Render an input, its counterexample and their difference.

    Images (H, W), (1, H, W), (3, H, W), pen strokes and waveforms become pictures; sensor series (time,
    channels) become line charts; other inputs become numbers. names: of the channels of a series.
    """
    # Token ids cannot be compared with word vectors.
    other = witness if witness is not None and witness.shape == x.shape else None
    if is_series(x) and not is_strokes(x) and (other is None or np.isfinite(other).all()):
        return _series(x, other, names)
    images = partial(_images, side=side)
    look = _strokes if is_strokes(x) else _waves if is_wave(x) else images if drawable(x) else _numbers
    if other is None:
        return Pictures(look("input", x, None), Markup(), Markup())
    if look is not _numbers and not np.isfinite(other).all():
        look = _numbers
    change = other.astype(float) - x.astype(float)
    size = Markup("<small>{}</small>").format(describe_change(change) + describe_decibels(change, x))
    return Pictures(look("input", x, other), look("witness", other, x), _change(change, side) + size)


def side_for(x: Array, rows: int, budget: int) -> int:
    """Return the side of thumbnails with which `rows` inputs like `x` fit into `budget` bytes, if none is
    compressible.

    A row has an input and a counterexample, of 3 bytes for each pixel in colour or half a byte in grey, and
    a change of half a
    byte; base64 makes each 4/3 as long.
    """
    colours = 3.0 if x.ndim == 3 and x.shape[0] == 3 else 0.5
    each = 4 / 3 * (2 * colours + 0.5)
    return max(LONGEST_SIDE, min(LARGEST_SIDE, int(math.sqrt(budget / max(1, rows) / each))))


def _series(x: Array, other: Array | None, names: Sequence[str]) -> Pictures:
    """Line charts of the input, of the counterexample over the input, and of the change, with a drift in
    numbers.
    """
    if other is None:
        return Pictures(chart("input", x, None, names), Markup(), Markup())
    change = other.astype(float) - x.astype(float)
    offsets = describe_offsets(change, names)
    size = "; ".join(filter(None, (offsets, describe_change(change))))
    return Pictures(
        chart("input", x, None, names),
        chart("counterexample over the input", other, x, names),
        ("" if offsets else chart("change", change, None, names)) + Markup("<small>{}</small>").format(size),
    )


def _images(name: str, x: Array, other: Array | None, side: int) -> Markup:
    low, high = value_range(x if other is None else np.stack([x, other]))
    return _image(name, grey_or_rgb(channels_last(x), low, high, side))


def _strokes(name: str, x: Array, other: Array | None) -> Markup:
    return _image(name, ink_png(strokes(x, other)))


def _waves(name: str, x: Array, other: Array | None) -> Markup:
    both = x if other is None else np.stack([x, other])
    return _image(name, ink_png(wave(x, float(both.min()), float(both.max()))))


def _change(change: Array, side: int) -> Markup:
    if is_wave(change):
        most = float(np.abs(change).max())
        return _image("change", ink_png(wave(change, -most, most)))
    return _image("change", blue_or_orange(channels_last(change), side)) if drawable(change) else Markup()


def describe_change(change: Array) -> str:
    """Return '44 of 64, ±0.11': the number of changed values and the largest change."""
    if not change.size:
        return ""
    return f"{np.count_nonzero(change)} of {change.size}, ±{float(np.abs(change).max()):.2g}"


def describe_decibels(change: Array, x: Array) -> str:
    """Return ', -70 dB of the peak' for a waveform: the largest change relative to its largest value."""
    most, peak = (float(np.abs(some).max(initial=0)) for some in (change, x))
    if not is_wave(x) or not most > 0 or not peak > 0:
        return ""
    return f", {20 * math.log10(most / peak):.1f} dB of the peak"


def drawable(x: Array) -> bool:
    """Return whether an array can be drawn as an image."""
    image = x.ndim == 3 and x.shape[0] in (1, 3)
    return x.size > 0 and (image or x.ndim == 2) and bool(np.isfinite(x).all())


def value_range(x: Array) -> tuple[float, float]:
    """Return the values of black and white: 0 and 1 if all numbers lie in [0, 1], else their minimum and
    maximum.
    """
    low, high = float(x.min()), float(x.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def channels_last(x: Array) -> Array:
    """Return (height, width, channels). Time runs down, or to the right for long sequences."""
    if x.ndim == 3:
        return np.moveaxis(x, 0, -1)
    return (x.T if len(x) > 2 * x.shape[1] else x)[..., None]


def blocks_of(planes: Array, side: int = LONGEST_SIDE) -> Array:
    """(h, w, c) -> (h', w', c, n) with h', w' <= side: the n numbers behind each pixel of a smaller
    picture.
    """
    height, width, channels = planes.shape
    step = math.ceil(max(height, width) / side)
    padded = np.pad(planes, ((0, -height % step), (0, -width % step), (0, 0)), mode="edge")
    split = padded.reshape(padded.shape[0] // step, step, padded.shape[1] // step, step, channels)
    return split.transpose(0, 2, 4, 1, 3).reshape(*split.shape[::2], step * step)


def grey_or_rgb(planes: Array, low: float, high: float, side: int = LONGEST_SIDE) -> bytes:
    """Encode (h, w, 1) in 16 greys, or (h, w, 3) in colour, as PNG."""
    share = ((blocks_of(planes, side).mean(-1) - low) / ((high - low) or 1.0)).clip(0, 1)
    if share.shape[-1] == 3:
        return png(
            (share * 255).round().astype(np.uint8).reshape(len(share), -1), share.shape[1], depth=8, colour=2
        )
    return png(_pack_levels((share[..., 0] * 15).round().astype(np.uint8)), share.shape[1], depth=4, colour=0)


def blue_or_orange(planes: Array, side: int = LONGEST_SIDE) -> bytes:
    """Encode (h, w, c) changes as PNG: transparent for no change, blue for a decrease, orange for an
    increase.
    """
    blocks = blocks_of(planes, side)
    blocks = blocks.reshape(*blocks.shape[:2], -1)
    strongest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)[..., 0]
    step = LEVELS // 2
    share = strongest / (np.abs(strongest).max() or 1.0)
    level = (np.sign(share) * np.ceil(np.abs(share) * step)).astype(int) + step
    palette = bytes(part for i in range(LEVELS) for part in (LESS if i < step else MORE))
    alpha = bytes(round(255 * abs(i - step) / step) for i in range(LEVELS))
    chunks = [(b"PLTE", palette), (b"tRNS", alpha)]
    return png(_pack_levels(level.astype(np.uint8)), level.shape[1], depth=4, colour=3, chunks=chunks)


def largest_known(planes: Array, side: int = LONGEST_SIDE) -> Array:
    """(h, w, 1) with NaN for unknown -> (h', w'): the largest known number of each block, NaN without one."""
    blocks = blocks_of(planes, side)[..., 0, :]
    largest: Array = np.where(np.isnan(blocks), -np.inf, blocks).max(-1)
    return np.where(np.isneginf(largest), np.nan, largest)


def shades(planes: Array) -> bytes:
    """Encode (h, w, 1) numbers >= 0 as PNG: transparent at 0, full orange at the maximum, grey for NaN."""
    largest = largest_known(planes)
    known = ~np.isnan(largest)
    most = float(largest[known].max()) if known.any() else 0.0
    level = np.where(
        known, (np.nan_to_num(largest) / (most or 1.0) * UNKNOWN_LEVEL - 0.5).round().clip(0), UNKNOWN_LEVEL
    ).astype(np.uint8)
    alpha = bytes(round(255 * k / (UNKNOWN_LEVEL - 1)) for k in range(UNKNOWN_LEVEL))
    chunks = [(b"PLTE", bytes(MORE * UNKNOWN_LEVEL + PEN)), (b"tRNS", alpha + b"\xff")]
    return png(_pack_levels(level), level.shape[1], depth=4, colour=3, chunks=chunks)


def ink_png(ink: Ink) -> bytes:
    """Encode (h, w) shares of ink as PNG, transparent without ink."""
    chunks = [(b"PLTE", bytes((255, 255, 255, *PEN))), (b"tRNS", b"\0")]
    return png(np.packbits(ink > 0.5, axis=1), ink.shape[1], depth=1, colour=3, chunks=chunks)


def _pack_levels(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(h, w) of 0..15 -> (h, ceil(w / 2)): two pixels per byte, the left one in the upper four bits."""
    even = np.pad(levels, ((0, 0), (0, levels.shape[1] % 2)))
    return (even[:, ::2] * 16 + even[:, 1::2]).astype(np.uint8)


def png(
    lines: NDArray[np.uint8],
    width: int,
    *,
    depth: int,
    colour: int,
    chunks: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """Encode lines (height, bytes) as a PNG file; depth and colour are the PNG standard's codes."""
    header = struct.pack(">IIBBBBB", width, len(lines), depth, colour, 0, 0, 0)
    unfiltered = np.pad(lines, ((0, 0), (1, 0))).tobytes()
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(unfiltered, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in parts)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _image(name: str, data: bytes) -> Markup:
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(
        name, base64.b64encode(data).decode()
    )


def _numbers(name: str, x: Array, other: Array | None) -> Markup:
    """Render a few numbers, and mark the ones that the counterexample changes; of many numbers only shape
    and range.
    """
    if not 0 < x.size <= FEWEST_NUMBERS:
        ends = f", {format_nearest(float(x.min()))} to {format_nearest(float(x.max()))}" if x.size else ""
        return Markup("<small>{}</small>").format(f"{' × '.join(map(str, x.shape))} numbers{ends}")
    moved = np.zeros(x.size, bool) if other is None or name == "input" else x.ravel() != other.ravel()
    marked = (
        Markup("<mark>{}</mark>" if new else "{}").format(format_nearest(float(v)))
        for v, new in zip(x.ravel(), moved, strict=True)
    )
    return Markup('<p class="row">{}</p>').format(Markup(", ").join(marked))
