"""Inputs, labels and substitutes from files and functions, checked before any long work."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.cli.options import ModelOptions
from holdfast.cli.reading.model import load_network
from holdfast.cli.reading.source import array, call
from holdfast.errors import BadInput
from holdfast.files import json_of, read_arrays, text_of
from holdfast.network import Network
from holdfast.network.fingerprint import joined, of_file, of_tensors, of_value
from holdfast.network.text import Texts, number_of

EXPECTED = (
    'Expected an object of lists, as in {"good": ["fine", "great"]}, or for each text a list with a list for each of its words, as in '
    '[[[], ["movie"]]].'
)
PLAIN = "It must be written by numpy.savez with plain arrays (no Python objects)."
Reading = Callable[[Sequence[str], Sequence[str] | None], Texts]


@dataclass(frozen=True)
class Data:
    """Inputs as people gave them: rows of numbers or of token ids, with what belongs to them."""

    x: list[Tensor]
    y: Tensor
    names: list[str]
    classes: list[str] | None
    lengths: list[int] | None
    fingerprint: str

    def limited(self, count: int | None) -> "Data":
        if count is None:
            return self
        lengths = None if self.lengths is None else self.lengths[:count]
        return Data(self.x[:count], self.y[:count], self.names[:count], self.classes, lengths, self.fingerprint)

    @property
    def rows(self) -> list[Tensor]:
        """The inputs without padding."""
        return self.x if self.lengths is None else [row[:length] for row, length in zip(self.x, self.lengths, strict=True)]

    def stacked(self, source: str) -> Tensor:
        """All inputs in one tensor."""
        shapes = sorted({tuple(row.shape) for row in self.rows})
        if len(shapes) > 1:
            raise BadInput(f"{source}: inputs of shapes {shapes[0]} and {shapes[1]}; here all must be of one, so ask about some of them.")
        return torch.stack(self.rows)


def load_both(model: ModelOptions, source: str, *, scale: float | None = None, limit: int | None = None) -> tuple[Network, Data]:
    """The network, and the inputs that are asked about."""
    net = load_network(model)
    return net, load_data(source, net, scale=scale).limited(limit)


def load_data(source: str, net: Network, *, scale: float | None = None, reading: Reading | None = None) -> Data:
    """A .npz file with x and y (and lengths, names, classes), a .tsv of label and text for a token network, or module:function.

    reading: texts and their places -> tokens, where that is not the network's own way.
    """
    found: Mapping[str, Any]
    if source.endswith(".npz"):
        found, fingerprint = read_arrays(Path(source), PLAIN), of_file(Path(source))
    elif source.endswith((".tsv", ".txt")):
        found = _text(Path(source), net, reading)
        fingerprint = joined(of_file(Path(source)), of_value(found["x"]))  # the tokens too: what cuts the text may be another one day
    elif ":" in source:
        found = call(source, "data")
        if not isinstance(found, Mapping):
            raise BadInput(f"data {source!r} returned {type(found).__name__}; expected a dict with x and y.")
        fingerprint = ""
    else:
        raise BadInput(f"data {source!r}: give a .npz file with x and y, a .tsv file of label and text, or package.module:function.")
    for key in ("x", "y"):
        if key not in found:
            raise BadInput(f"{source}: no array named {key!r}; it holds {', '.join(sorted(found)) or 'nothing'}.")
    if not isinstance(found["x"], list | tuple) and np.ndim(found["x"]) == 0:
        raise BadInput(f"{source}: x is a single number; give (inputs, ...) rows.")
    if len(found["x"]) == 0:
        raise BadInput(f"{source}: x is empty: there is no input to ask about.")
    if isinstance(found["x"], list | tuple) and all(isinstance(row, str) for row in found["x"]):
        texts = list(found["x"])
        places = [f"{source}, text {i}" for i in range(len(texts))]
        found = {"names": texts, **found, "x": read_texts(net, texts, source, places, reading).tokens}
    rows = [_scaled(_number(row, "x", source), scale, net, source) for row in found["x"]]
    y = _number(np.asarray(found["y"]), "y", source)
    count = len(rows)
    names = [str(n) for n in _counted(found.get("names", range(count)), count, "names", source)]
    classes = [str(c) for c in found["classes"]] if "classes" in found else None
    lengths = None
    if "lengths" in found:
        lengths = _number(np.asarray(_counted(found["lengths"], count, "lengths", source)), "lengths", source).long().tolist()
    if not fingerprint:
        fingerprint = of_tensors({**{str(i): row for i, row in enumerate(rows)}, "y": y})
    return Data([_fitted(row, net) for row in rows], _counted(y, count, "y", source), names, classes, lengths, fingerprint)


def _number(values: Any, what: str, source: str) -> Tensor:
    """Real numbers as a tensor."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{source}: {what} does not hold numbers ({error}).") from error
    if tensor.is_complex():
        raise BadInput(f"{source}: {what} holds complex numbers; give real ones.")
    return tensor


def _counted(values: Any, count: int, what: str, source: str) -> Any:
    """One for each input."""
    found = 1 if np.ndim(values) == 0 else len(values)
    if np.ndim(values) == 0 or found != count:
        raise BadInput(f"{source}: x has {count} rows, {what} has {found if np.ndim(values) else 'no axis'}; give one for each.")
    return values


def _text(path: Path, net: Network, reading: Reading | None) -> dict[str, Any]:
    """Lines of label, tab, text; labels are numbers."""
    texts, y, places = [], [], []
    for place, line in enumerate(text_of(path).split("\n"), 1):
        if not line.strip():
            continue
        label, tab, text = line.partition("\t")
        if not tab or not label.strip().isdecimal() or not text.strip():
            raise BadInput(f"{path}, line {place}: expected a class number, a tab and a text, got {line[:60]!r}.")
        texts.append(text)
        y.append(int(label))
        places.append(f"{path}, line {place}")
    return {"x": read_texts(net, texts, str(path), places, reading).tokens, "y": y, "names": [text.strip() for text in texts]}


def read_texts(net: Network, texts: Sequence[str], source: str, places: Sequence[str] | None, reading: Reading | None) -> Texts:
    """As tokens. What must be told of them becomes a note of the network's, which a run keeps and shows."""
    found = (reading or net.read_texts)(texts, places)
    net.notes = (*net.notes, *(f"{source}: {note}" if source else note for note in found.notes))
    return found


def load_mask(path: str, x: Sequence[Tensor]) -> Tensor:
    """.npy with true for the units that may change: one mask for all inputs, or one for each. Those beyond a limit are cut."""
    mask = array(Path(path), "truth values")
    if mask.dtype != torch.bool:
        raise BadInput(f"{path}: holds {mask.dtype}, expected truth values: true for the units that may change.")
    return mask[: len(x)] if mask.numel() > x[0].numel() else mask


def load_substitutes(path: str, net: Network) -> dict[int, list[int]] | list[list[list[int]]]:
    """JSON: an object, word -> words it may become, or for each text a list, for each of its words a list (words, or token numbers
    where the network has no vocabulary)."""
    if net.vectors is None:
        raise BadInput(f"{net.name} does not read tokens, so words cannot be substituted in it.")
    sets = json_of(Path(path), EXPECTED)
    number = number_of(net.vocabulary or [str(i) for i in range(len(net.vectors))])
    strange: list[str] = []

    def known(words: list[Any]) -> list[int]:
        strange.extend(str(s) for s in words if str(s) not in number)
        return [number[str(s)] for s in words if str(s) in number]

    found: dict[int, list[int]] | list[list[list[int]]]
    if isinstance(sets, dict) and all(isinstance(words, list) for words in sets.values()):
        # A word the network does not know never occurs in a sentence it reads, so its own set has no meaning.
        found = {number[word]: known(words) for word, words in sets.items() if word in number}
        if not found:
            raise BadInput(f"{path}: none of its {len(sets)} words is in the vocabulary of {net.name}, so no word could be replaced.")
    elif isinstance(sets, list) and all(isinstance(text, list) and all(isinstance(words, list) for words in text) for text in sets):
        found = [[known(words) for words in text] for text in sets]
    else:
        raise BadInput(f"{path}: {EXPECTED}")
    if strange:
        warnings.warn(f"{path}: {len(strange)} substitutes are not in the vocabulary and are left out ({', '.join(strange[:3])} ...).")
    return found


def _scaled(row: Tensor, scale: float | None, net: Network, source: str) -> Tensor:
    """Numbers as they are, what is divided in the network's arithmetic, or token ids for a network that reads tokens."""
    if scale is not None and not 0 < scale < math.inf:
        raise BadInput(f"scale {scale}: the data are divided by it, so it must be a number above 0.")
    if row.is_floating_point() or scale is not None:
        return (row.double() / scale).to(net.dtype) if scale is not None else net.exactly(row).to(row.device)
    if net.vectors is None:
        raise BadInput(
            f"{source}: x holds integers ({str(row.dtype).removeprefix('torch.')}), but {net.name} takes numbers. Say what to divide them "
            f"by: --scale 255 for bytes, --scale 1 to take them as they are. If they are token ids, say --vocabulary."
        )
    return row.long()


def _fitted(row: Tensor, net: Network) -> Tensor:
    """An input that only lacks axes of size one (a channel, say) is given them."""
    if net.shape is None or None in net.shape or net.vectors is not None:
        return row
    wanted = [d for d in net.shape if d is not None]
    squeezed = [d for d in wanted if d != 1]
    return row.reshape(wanted) if [d for d in row.shape if d != 1] == squeezed and list(row.shape) != wanted else row
