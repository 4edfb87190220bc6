"""Read pictures (PNG and JPEG, with Pillow): a folder for each class, or a folder of pictures."""

import hashlib
import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from holdfast.errors import BadInput, MissingExtra, UnreadableFile
from holdfast.files import explained_errors, require_file, require_memory
from holdfast.network import Network
from holdfast.process_state import ignored_warnings
from holdfast.reading.loaded import LoadedData

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg")
OTHERS = (
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".heic",
    ".avif",
)  # Formats of pictures that are not read.
SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation")
LARGEST_FILE = 2**27  # Bytes of the largest picture file that is opened: 128 MiB (a choice).
MODES = {1: "L", 3: "RGB", 4: "RGBA"}

Bytes = npt.NDArray[np.uint8]


def read_pictures(folder: Path, net: Network, limit: int | None) -> LoadedData:
    """Read the first picture of every class, then the second, ..., so that few inputs cover all classes.

    limit: greatest number of pictures that are opened.
    """
    if net.vectors is not None:
        raise BadInput(
            f"{folder}: holds pictures, and {net.name} reads words. Give a .csv or .tsv file of texts."
        )
    below = {child.name: _pictures(child) for child in _visible(folder) if child.is_dir()}
    alone = _pictures(folder)
    classes = sorted(name for name in below if below[name] or not any(_visible(folder / name)))
    _check(folder, below, alone)
    if alone:
        chosen = [("", path) for path in alone]
    else:
        turns = itertools.zip_longest(*(below[name] for name in classes))
        chosen = [
            (name, path)
            for turn in turns
            for name, path in zip(classes, turn, strict=True)
            if path is not None
        ]
    chosen = chosen[:limit]
    digest, x = hashlib.sha256(), list[Bytes]()
    for label, path in chosen:
        data = require_file(path, LARGEST_FILE, "is larger than any picture that is read.").read_bytes()
        digest.update(f"{label} {path.name} {len(data)} ".encode("utf-8", "surrogateescape") + data)
        x.append(_read_picture(path, data, net))
        if len(x) == 1:
            require_memory(4 * len(chosen) * x[0].nbytes, folder)  # As float32.
    labels = None if alone else [label for label, _ in chosen]
    others = [
        path
        for part in (folder, *(folder / name for name in below))
        for path in _visible(part)
        if path.suffix.lower() in OTHERS
    ]
    first = others[0].name if others else ""
    note = f"{len(others)} pictures of {folder} are neither PNG nor JPEG and are left out, {first} first"
    return LoadedData(
        x,
        y=labels,
        names=[path.name if alone else f"{label}/{path.name}" for label, path in chosen],
        among=None if alone else classes,
        notes=(note,) if others else (),
        fingerprint=digest.hexdigest(),
        where=lambda place: str(chosen[place][1]),
    )


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if not child.name.startswith((".", "__")))
    except OSError as error:
        raise UnreadableFile(f"{folder}: the folder cannot be read ({error.strerror}).") from error


def _pictures(folder: Path) -> list[Path]:
    return [child for child in _visible(folder) if child.suffix.lower() in ENDINGS and child.is_file()]


def _check(folder: Path, below: dict[str, list[Path]], alone: Sequence[Path]) -> None:
    """Raise BadInput unless the folder holds pictures; the message says what it seems to hold."""
    if alone and any(below.values()):
        raise BadInput(
            f"{folder}: {len(alone)} pictures are next to the folders of classes. Move each into the folder "
            "of its class."
        )
    if alone or any(below.values()):
        return
    deeper = [
        name for name in below if any(_pictures(child) for child in _visible(folder / name) if child.is_dir())
    ]
    if deeper:
        split = next((name for name in deeper if name.casefold() in SPLITS), deeper[0])
        raise BadInput(
            f"{folder}: the pictures are one folder deeper. Give {folder / split}, with a folder for each "
            "class in it."
        )
    held = [
        path
        for part in (folder, *(folder / name for name in below))
        for path in _visible(part)
        if path.is_file()
    ]
    other = next((path for path in held if path.suffix.lower() in OTHERS), None)
    if other is not None:
        raise BadInput(f"{other}: pictures are read as PNG or JPEG; convert it.")
    files = f"; it holds {', '.join(path.name for path in held[:3])}" if held else ""
    raise BadInput(
        f"{folder}: no PNG or JPEG in it, nor in a folder of it{files}. Give a folder with a folder of "
        "pictures for each class, "
        f"named as the class, or one file: .csv, .parquet, .npz, .npy."
    )


def _read_picture(path: Path, data: bytes, net: Network) -> Bytes:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtra(
            "pictures need Pillow: pip install 'holdfast[images]'. Arrays (.npz) work without."
        ) from error
    with (
        explained_errors(path, "cannot be read as a picture", "Save it again as PNG or JPEG."),
        ignored_warnings(Image.DecompressionBombWarning),
    ):
        try:
            image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
        except UnidentifiedImageError as error:  # Its message would show a memory address.
            raise UnreadableFile(
                f"{path}: neither PNG nor JPEG, or damaged. Save it again as one of these."
            ) from error
        with image:
            pixels = image.width * image.height
            # Pillow only warns up to twice this size.
            if Image.MAX_IMAGE_PIXELS is not None and pixels > Image.MAX_IMAGE_PIXELS:
                raise Image.DecompressionBombError(
                    f"it has {pixels} pixels, more than {Image.MAX_IMAGE_PIXELS}"
                )
            return of_picture(image, net, str(path))


def of_picture(image: "Image", net: Network, where: str) -> Bytes:
    """The picture as the network takes it: grey or colour, channels first or last, or flat."""
    width, height = image.size
    shape = net.shape
    if image.mode.startswith(("I", "F")):
        raise BadInput(
            f"{where}: a picture of more than 8 bits a channel ({image.mode}). Save it with 8, or give the "
            "numbers as .npz."
        )
    if shape is None:
        channels, last = (1 if image.mode in ("1", "L", "LA") else 3), False
    else:
        channels, last = _channels(shape, width * height)
        sizes = shape[:2] if last else shape[-2:]
        known = [size for size in sizes if size is not None] if len(shape) > 1 else []
        if channels not in MODES:
            raise BadInput(
                f"{where}: a picture, and {net.name} takes inputs of shape {_describe_shape(shape)}. "
                f"Give them as .npz, prepared as for training."
            )
        if len(shape) > 1 and any(
            size is not None and size != own for size, own in zip(sizes, (height, width), strict=True)
        ):
            raise BadInput(
                f"{where}: {width} x {height} pixels, and {net.name} takes "
                f"{' x '.join(map(str, reversed(known)))}. Resize the "
                f"pictures as for the training of the network."
            )
    require_memory(4 * width * height, Path(where))
    numbers: Bytes = np.array(image.convert(MODES[channels]))
    layers = numbers[:, :, None] if numbers.ndim == 2 else numbers
    laid = layers if last else layers.transpose(2, 0, 1)
    if shape is not None and len(shape) == 2:
        return laid.reshape(height, width)
    return laid.reshape(-1) if shape is not None and len(shape) == 1 else np.ascontiguousarray(laid)


def _channels(shape: Sequence[int | None], pixels: int) -> tuple[int, bool]:
    """The number of channels, and whether they are the last axis; 0 if the network takes no pictures."""
    if len(shape) == 1 and shape[0] is not None:
        return (shape[0] // pixels if shape[0] % pixels == 0 else 0), False
    if len(shape) == 2:
        return 1, False
    if len(shape) != 3:
        return 0, False
    first, last = shape[0], shape[-1]
    return (last, True) if last in MODES and first not in MODES and last is not None else (first or 0, False)


def _describe_shape(shape: Sequence[Any]) -> str:
    return " x ".join("any" if size is None else str(size) for size in shape)
