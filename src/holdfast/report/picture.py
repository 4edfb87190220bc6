"""An input, its witness and the change between them, small enough to stand in a table."""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from holdfast.report.summary import about

Array = NDArray[Any]
LONGEST_SIDE = 48  # pixels; larger pictures are averaged down
FEW_NUMBERS = 4
LEVELS = 7  # of change: three down, none, three up
LESS, MORE = (0, 114, 178), (213, 94, 0)


@dataclass(frozen=True)
class Pictures:
    """HTML for three cells of the table."""

    input: Markup
    witness: Markup
    change: Markup


def show(x: Array, witness: Array | None) -> Pictures:
    """Images (H, W), (1, H, W), (3, H, W) and sequences (time, features) become pictures, all else a few numbers."""
    if witness is None or witness.shape != x.shape:  # token ids and word vectors cannot be laid side by side
        shown = _image("input", grey_or_rgb(_planes(x), *_range(x))) if _drawable(x) else _numbers(x)
        return Pictures(shown, Markup(), Markup())
    change = witness.astype(float) - x.astype(float)
    size = Markup("<small>{}</small>").format(describe_change(change))
    if not (_drawable(x) and _drawable(witness)):
        return Pictures(_numbers(x), _numbers(witness), size)
    low, high = _range(np.stack([x, witness]))
    return Pictures(
        _image("input", grey_or_rgb(_planes(x), low, high)),
        _image("witness", grey_or_rgb(_planes(witness), low, high)),
        _image("change", blue_or_orange(_planes(change))) + size,
    )


def describe_change(change: Array) -> str:
    if not change.size:
        return ""
    return f"{np.count_nonzero(change)} of {change.size}, ±{float(np.abs(change).max()):.2g}"


def _drawable(x: Array) -> bool:
    image = x.ndim == 3 and x.shape[0] in (1, 3)
    return x.size > 0 and (image or x.ndim == 2) and bool(np.isfinite(x).all())


def _range(x: Array) -> tuple[float, float]:
    """What is black and what is white: 0 and 1 if all numbers lie between them, else the smallest and the largest."""
    low, high = float(x.min()), float(x.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def _planes(x: Array) -> Array:
    """-> (height, width, channels). Time runs down, or to the right where there is much of it."""
    if x.ndim == 3:
        return np.moveaxis(x, 0, -1)
    return (x.T if len(x) > 2 * x.shape[1] else x)[..., None]


def _blocks(planes: Array) -> Array:
    """(h, w, c) -> (h', w', c, n): the n numbers that one pixel of a picture of at most LONGEST_SIDE stands for."""
    height, width, channels = planes.shape
    step = math.ceil(max(height, width) / LONGEST_SIDE)
    padded = np.pad(planes, ((0, -height % step), (0, -width % step), (0, 0)), mode="edge")
    split = padded.reshape(padded.shape[0] // step, step, padded.shape[1] // step, step, channels)
    return split.transpose(0, 2, 4, 1, 3).reshape(*split.shape[::2], step * step)


def grey_or_rgb(planes: Array, low: float, high: float) -> bytes:
    """PNG of (h, w, 1) in 16 greys, or of (h, w, 3) in colour."""
    share = ((_blocks(planes).mean(-1) - low) / ((high - low) or 1.0)).clip(0, 1)
    if share.shape[-1] == 3:
        return png((share * 255).round().astype(np.uint8).reshape(len(share), -1), share.shape[1], depth=8, colour=2)
    return png(_packed((share[..., 0] * 15).round().astype(np.uint8)), share.shape[1], depth=4, colour=0)


def blue_or_orange(planes: Array) -> bytes:
    """PNG of (h, w, c) changes: transparent where nothing changed, blue where numbers fell, orange where they rose."""
    blocks = _blocks(planes)
    blocks = blocks.reshape(*blocks.shape[:2], -1)
    strongest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)[..., 0]
    step = LEVELS // 2
    share = strongest / (np.abs(strongest).max() or 1.0)
    level = (np.sign(share) * np.ceil(np.abs(share) * step)).astype(int) + step
    palette = bytes(part for i in range(LEVELS) for part in (LESS if i < step else MORE))
    alpha = bytes(round(255 * abs(i - step) / step) for i in range(LEVELS))
    chunks = [(b"PLTE", palette), (b"tRNS", alpha)]
    return png(_packed(level.astype(np.uint8)), level.shape[1], depth=4, colour=3, chunks=chunks)


def _packed(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(h, w) of 0..15 -> (h, ceil(w / 2)): two pixels a byte, the left one in the upper half."""
    even = np.pad(levels, ((0, 0), (0, levels.shape[1] % 2)))
    return (even[:, ::2] * 16 + even[:, 1::2]).astype(np.uint8)


def png(lines: NDArray[np.uint8], width: int, *, depth: int, colour: int, chunks: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """lines (height, bytes) -> a PNG file; depth and colour as the PNG standard numbers them."""
    header = struct.pack(">IIBBBBB", width, len(lines), depth, colour, 0, 0, 0)
    unfiltered = np.pad(lines, ((0, 0), (1, 0))).tobytes()
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(unfiltered, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in parts)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _image(name: str, data: bytes) -> Markup:
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(name, base64.b64encode(data).decode())


def _numbers(x: Array) -> Markup:
    if x.size <= FEW_NUMBERS:
        return Markup("<small>{}</small>").format(", ".join(about(float(v)) for v in x.flatten()))
    text = f"{' × '.join(map(str, x.shape))} numbers, {about(float(x.min()))} to {about(float(x.max()))}"
    return Markup("<small>{}</small>").format(text)
