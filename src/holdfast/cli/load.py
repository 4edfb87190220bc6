"""Models and data from what stands on the command line."""

import hashlib
import importlib
import json
import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.cli.question import ModelQuestion, numbers, pair, whole_numbers
from holdfast.errors import BadInput, UnreadableFile
from holdfast.network import Network

UNKNOWN = ("<unk>", "[UNK]", "<UNK>", "unk")
LARGEST_FILE = 8 * 2**30


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


def load_network(q: ModelQuestion) -> Network:
    """A .onnx or .pt2 file, or package.module:factory for a torch module, a Network, or a function of arrays."""
    domain, mean, std = pair(q.domain), numbers(q.mean, "mean"), numbers(q.std, "std")
    words = None if q.vocabulary is None else _vocabulary(q.vocabulary)
    if q.pool not in (None, "last", "mean", "max"):
        raise BadInput(f"pool {q.pool!r}: use last, mean or max.")
    shared: dict[str, Any] = {
        "domain": domain,
        "mean": mean[0] if mean is not None and len(mean) == 1 else mean,
        "std": std[0] if std is not None and len(std) == 1 else std,
        "time_first": q.time_first,
        "pool": q.pool,
        "vocabulary": words,
        "device": q.device,
    }
    if q.model.endswith((".onnx", ".onnx.gz")):
        constants = {name: _constant(name, value) for name, _, value in (c.partition("=") for c in q.constants)}
        return Network.from_onnx(q.model, black_box=q.black_box, batched=not q.unbatched, constants=constants, **shared)
    if q.model.endswith(".pt2"):
        return Network.from_export(q.model, trust=q.trust, **shared)
    if ":" not in q.model:
        kind = (
            "a checkpoint is weights without a network"
            if q.model.endswith((".pt", ".pth", ".bin", ".safetensors", ".ckpt"))
            else "unknown kind"
        )
        raise BadInput(
            f"model {q.model!r}: {kind}. Give a .onnx file, a .pt2 file (torch.export.save), or package.module:factory, a function "
            f"without arguments that returns your torch module."
        )
    made = _call(q.model, "model")
    if isinstance(made, Network):
        return made
    shape = whole_numbers(q.shape, "shape")
    if isinstance(made, nn.Module):
        return Network.from_torch(made, shape=shape, name=q.model.rpartition(":")[2], **shared)
    if callable(made):
        return Network.from_callable(made, domain=domain, shape=shape, name=q.model.rpartition(":")[2])
    raise BadInput(f"model {q.model!r} returned {type(made).__name__}; expected a torch module, a Network or a function.")


def _constant(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise BadInput(f"constant {name!r}: expected name=number, as in sr=16000, got {value!r}.") from None


def load_data(source: str, net: Network, *, scale: float = 1.0) -> Data:
    """A .npz file with x and y (and lengths, names, classes), a .tsv of label and text for a token network, or module:function."""
    if source.endswith(".npz"):
        found, fingerprint = _npz(Path(source)), _hash(Path(source))
    elif source.endswith((".tsv", ".txt")):
        found, fingerprint = _text(Path(source), net), _hash(Path(source))
    elif ":" in source:
        found = _call(source, "data")
        if not isinstance(found, Mapping):
            raise BadInput(f"data {source!r} returned {type(found).__name__}; expected a dict with x and y.")
        fingerprint = ""
    else:
        raise BadInput(f"data {source!r}: give a .npz file with x and y, a .tsv file of label and text, or package.module:function.")
    for key in ("x", "y"):
        if key not in found:
            raise BadInput(f"{source}: no array named {key!r}; it holds {', '.join(sorted(found)) or 'nothing'}.")
    rows = [_scaled(torch.as_tensor(row), scale, net) for row in found["x"]]
    y = torch.as_tensor(np.asarray(found["y"]))
    if len(rows) == 0:
        raise BadInput(f"{source}: x is empty: there is no input to ask about.")
    if len(rows) != len(y):
        raise BadInput(f"{source}: x has {len(rows)} rows, y has {len(y)}.")
    names = [str(n) for n in found.get("names", range(len(rows)))]
    classes = [str(c) for c in found["classes"]] if "classes" in found else None
    lengths = [int(n) for n in found["lengths"]] if "lengths" in found else None
    if not fingerprint:
        fingerprint = hashlib.sha256(b"".join(row.numpy().tobytes() for row in rows) + y.numpy().tobytes()).hexdigest()
    return Data([_fitted(row, net) for row in rows], y, names, classes, lengths, fingerprint)


def load_substitutes(path: str, net: Network) -> dict[int, list[int]]:
    """A JSON object: word -> words it may become (or token numbers where the network has no vocabulary)."""
    if net.vectors is None:
        raise BadInput(f"{net.name} does not read tokens, so words cannot be substituted in it.")
    try:
        sets = json.loads(_readable(Path(path)).read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UnreadableFile(f"{path}: not JSON ({error}).") from error
    if not isinstance(sets, dict) or not all(isinstance(v, list) for v in sets.values()):
        raise BadInput(f'{path}: expected an object of lists, as in {{"good": ["fine", "great"]}}.')
    number = {w: i for i, w in enumerate(net.vocabulary)} if net.vocabulary else {str(i): i for i in range(len(net.vectors))}
    # A word the network does not know never occurs in a sentence it reads, so its set has no meaning.
    return {number[w]: [number[str(s)] for s in many if str(s) in number] for w, many in sets.items() if w in number}


def _scaled(row: Tensor, scale: float, net: Network) -> Tensor:
    if net.vectors is not None and not row.is_floating_point():
        return row.long()
    return row.float() / scale if row.is_floating_point() or scale != 1 else row


def _fitted(row: Tensor, net: Network) -> Tensor:
    """An input that only lacks axes of size one (a channel, say) is given them."""
    if net.shape is None or None in net.shape or net.vectors is not None:
        return row
    wanted = [d for d in net.shape if d is not None]
    squeezed = [d for d in wanted if d != 1]
    return row.reshape(wanted) if [d for d in row.shape if d != 1] == squeezed and list(row.shape) != wanted else row


def _call(target: str, what: str) -> Any:
    """package.module:name, imported from the working folder too; a class or function is called without arguments."""
    module_name, _, name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise BadInput(f"{what} {target!r}: cannot import {module_name} ({error}).") from error
    factory: Callable[[], Any] | None = vars(module).get(name)
    if factory is None:
        raise BadInput(f"{what} {target!r}: {module_name} has no {name!r}.")
    if isinstance(factory, nn.Module | Network):
        return factory
    try:
        return factory()
    except TypeError as error:
        raise BadInput(f"{what} {target!r}: {name} must work without arguments ({error}).") from error


def _readable(path: Path) -> Path:
    if not path.is_file():
        raise UnreadableFile(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}.")
    if path.stat().st_size > LARGEST_FILE:
        raise UnreadableFile(f"{path}: larger than {LARGEST_FILE // 2**30} GiB. Split the data into several runs.")
    return path


def _npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(_readable(path), allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise UnreadableFile(
            f"{path}: cannot be read as .npz ({error}). It must be written by numpy.savez with plain arrays (no Python objects)."
        ) from error


def _text(path: Path, net: Network) -> dict[str, Any]:
    """Lines of label, tab, text; labels are numbers. Words are looked up as they stand, then in lower case."""
    if net.vocabulary is None:
        raise BadInput(f"{path}: text needs a network that reads tokens and its words (--vocabulary FILE, one word a line).")
    number = {word: i for i, word in enumerate(net.vocabulary)}
    unknown = next((number[u] for u in UNKNOWN if u in number), None)
    x, y, names = [], [], []
    try:
        lines = _readable(path).read_text().splitlines()
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{path}: not UTF-8 text ({error}).") from error
    for place, line in enumerate(lines, 1):
        label, tab, text = line.partition("\t")
        if not tab or not label.strip().isdigit() or not text.split():
            raise BadInput(f"{path}, line {place}: expected a class number, a tab and a text, got {line[:60]!r}.")
        tokens = [number.get(w, number.get(w.lower(), unknown)) for w in text.split()]
        if None in tokens:
            word = text.split()[tokens.index(None)]
            raise BadInput(f"{path}, line {place}: {word!r} is not in the vocabulary, which has no <unk> either.")
        x.append(torch.tensor(tokens))
        y.append(int(label))
        names.append(text.strip())
    return {"x": x, "y": y, "names": names}


def _vocabulary(path: str) -> Sequence[str]:
    try:
        return _readable(Path(path)).read_text().split("\n")[: -1 if Path(path).read_text().endswith("\n") else None]
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{path}: not UTF-8 text ({error}).") from error


def _hash(path: Path) -> str:
    with _readable(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
