"""Convert labels, numbers or names, into indices of the outputs of the network."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.files import explained_errors, read_array, read_text
from holdfast.network.classes import list_names, numbers_of
from holdfast.reading.loaded import LoadedData, real_numbers

WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
DIGITS = 18  # Digits of the longest label: every such number fits into 64 bits.
NUMBERED = (
    "Labels are indices of the outputs of the network, from 0, or names. Fill it in, or leave that input out."
)


def read_labels(path: Path) -> Any:
    """Read a .npy file, or a .txt file with one label a line."""
    if path.suffix == ".npy":
        return read_array(path, "Write it by numpy.save, with plain numbers or texts.")
    if path.suffix == ".txt":
        return read_text(path).removesuffix("\n").split("\n")
    raise BadInput(f"{path}: labels are read from a .npy file, or from a .txt file with one on each line.")


def number_labels(
    found: LoadedData, source: str, ours: Sequence[str] | None, outputs: Callable[[], int]
) -> tuple[Tensor, list[str] | None, tuple[str, ...]]:
    """The class of each input, the names of the classes if known, and notes for the user.

    ours: the names of the outputs of the network, if known. outputs: their number, computed only if needed.
    """
    theirs = None if found.classes is None else [str(name) for name in found.classes]
    y = _plain(found.y, source)
    if isinstance(y, Tensor):
        y = _finite(y, found, source)
        if ours is not None and theirs is not None and list(ours) != theirs and not y.is_floating_point():
            names = [theirs[k] if 0 <= k < len(theirs) else str(k) for k in y.flatten().tolist()]
            note = (
                f"the classes of {source} have another order than the outputs of the network: matched by name"
            )
            return _by_names(names, ours, found, source), list(ours), (note,)
        return y, theirs if ours is None else list(ours), ()
    empty = next((place for place, text in enumerate(y) if not text), None)
    if empty is not None:
        raise BadInput(
            f"{source}, {found.where(empty)}: the label is missing. Fill it in, or leave that input out."
        )
    known = ours if ours is not None else theirs
    if known is not None and set(y) <= set(known):
        return _by_names(y, known, found, source), list(known), ()
    if all(map(WHOLE.fullmatch, y)):
        return _whole(y, found, source), None if known is None else list(known), ()
    if known is not None:
        return _by_names(y, known, found, source), list(known), ()
    if all(map(NUMBER.fullmatch, y)):
        return (
            _finite(torch.tensor([float(text) for text in y], dtype=torch.float64), found, source),
            None,
            (),
        )
    classes = sorted(set(y if found.among is None else found.among))
    if len(classes) != outputs() != 1:
        many = "1 name" if len(classes) == 1 else f"{len(classes)} names"
        raise BadInput(
            f"{source}: the labels have {many} ({list_names(classes)}), and the network has {outputs()} "
            "outputs. "
            f"Give --classes with all names in the order of the outputs."
        )
    numbered = list_names(f"{k} {name}" for k, name in enumerate(classes))
    note = (
        f"labels are names, assigned to the outputs in sorted order: {numbered}. If the network has another "
        "order, give --classes"
    )
    return _by_names(y, classes, found, source), classes, (note,)


def _whole(texts: Sequence[str], found: LoadedData, source: str) -> Tensor:
    """Parse whole numbers without floats, which would round those of more than fifteen digits."""
    digits = [text.partition(".")[0] for text in texts]
    odd = next((place for place, text in enumerate(digits) if len(text) > DIGITS), None)
    if odd is not None:
        raise BadInput(
            f"{source}, {found.where(odd)}: the label {texts[odd][:40]!r} has {len(digits[odd])} digits. "
            f"{NUMBERED}"
        )
    return torch.tensor([int(text) for text in digits], dtype=torch.int64)


def _finite(y: Tensor, found: LoadedData, source: str) -> Tensor:
    """The labels; BadInput if one is not finite: a missing label often becomes NaN."""
    if y.dtype == torch.uint64:  # torch supports few operations on it.
        y = (
            torch.where(y.to(torch.int64) < 0, torch.inf, y.to(torch.float64))
            if bool((y.to(torch.int64) < 0).any())
            else y.to(torch.int64)
        )
    wrong = (
        ~y.isfinite().reshape(len(y), -1).all(-1) if y.dim() and len(y) else torch.zeros(0, dtype=torch.bool)
    )
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise BadInput(
            f"{source}, {found.where(place)}: the label is missing, or not a finite number. {NUMBERED}"
        )
    return y


def _plain(y: Any, source: str) -> Tensor | list[str]:
    """Numbers as a tensor, anything else as strings."""
    if not isinstance(y, Tensor):
        with explained_errors(source, "y cannot be read as numbers or names", NUMBERED, BadInput):
            y = y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
            if y.dtype.kind == "O" and not any(isinstance(one, str) for one in y.flat):
                y = np.asarray(y.tolist())
            if y.dtype.kind in "UO":
                return [
                    "" if one is None or one != one else str(one).strip() for one in y.reshape(-1).tolist()
                ]
    values = real_numbers(y, "y", source)
    return values.long() if values.dtype == torch.bool else values


def _by_names(names: Sequence[str], classes: Sequence[str], found: LoadedData, source: str) -> Tensor:
    return torch.tensor(numbers_of(names, classes, lambda place: f"{source}, {found.where(place)}"))
