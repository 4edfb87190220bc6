"""Lists of verification problems in the format of VNN-COMP: instances.csv, and known answers.

A line names a network, a property and a time limit. Since 2026, a property of several networks has a list of
(name, file) pairs in place of the network, as Python writes it: "[('f', 'f.onnx'), ('g', 'g.onnx')]".
"""

import ast
import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import BadInput, UnreadableFile
from holdfast.files import explained_errors, read_text

KNOWN = ("sat", "unsat")


@dataclass(frozen=True)
class Instance:
    """One line: a network, a property and a time limit in seconds.

    `typed`: the network was given on the command line, so it may be package.module:factory. A list may only
    name files. `named`: the files of the networks that the property names; `model` is the first of them, or
    the network without a name.
    """

    model: Path
    spec: Path
    seconds: float | None
    typed: bool = False
    named: tuple[tuple[str, Path], ...] = ()

    @property
    def name(self) -> tuple[str, str]:
        """Names of network and property in the key: file names without folders and endings."""
        models = dict.fromkeys([self.model, *(file for _, file in self.named)])
        return "+".join(map(plain, models)), plain(self.spec)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of its networks and of its property."""
        return tuple(dict.fromkeys([self.model, *(file for _, file in self.named), self.spec]))


def contradicts(answer: str, expected: str) -> bool:
    """Return whether a decided answer differs from a decided expectation."""
    return answer in KNOWN and expected in KNOWN and answer != expected


def plain(file: str | Path) -> str:
    """Return a file name without folders and without .gz, .onnx or .vnnlib."""
    return Path(file).name.removesuffix(".gz").removesuffix(".onnx").removesuffix(".vnnlib")


def read_instances(source: str | Path) -> list[Instance]:
    """Read lines `model,property[,seconds]` from a file, or from instances.csv in a folder.

    Paths are relative to the list's folder and must stay in it; .gz may be omitted.
    """
    path = Path(source)
    path = path / "instances.csv" if path.is_dir() else path
    found = []
    for number, row in _rows(path):
        if len(row) not in (2, 3):
            raise BadInput(f"{path}:{number}: expected model,property,seconds, found {len(row)} columns.")
        try:
            seconds = float(row[2]) if len(row) == 3 and row[2].strip() else None
            if seconds is not None and not 0 <= seconds < math.inf:
                raise ValueError
        except ValueError:
            raise BadInput(f"{path}:{number}: {row[2][:40]!r} is not a number of seconds.") from None
        spec = _find_listed_file(path, row[1].strip(), number)
        pairs = parse_named_networks(row[0].strip(), f"{path}:{number}")
        named = tuple((name, _find_listed_file(path, file, number)) for name, file in pairs)
        model = named[0][1] if named else _find_listed_file(path, row[0].strip(), number)
        found.append(Instance(model, spec, seconds, named=named))
    if not found:
        raise BadInput(f"{path}: has no line model,property,seconds.")
    return found


def parse_named_networks(text: str, where: str) -> list[tuple[str, str]]:
    """Return the pairs of "[('f', 'f.onnx'), ('g', 'g.onnx')]"; none if the text is a file name."""
    if not text.startswith("["):
        return []
    try:
        listed = ast.literal_eval(text)
        pairs = [(name, file) for name, file in listed if isinstance(name, str) and isinstance(file, str)]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        listed, pairs = (), []
    if not pairs or len(pairs) != len(listed):
        raise BadInput(
            f"{where}: {text[:60]!r} is no list of networks: expected [('f', 'f.onnx'), ('g', 'g.onnx')], with the "
            "names that the property declares."
        )
    if len({name for name, _ in pairs}) < len(pairs):
        raise BadInput(f"{where}: a network is named twice in {text[:60]!r}.")
    return pairs


def read_key(source: str | Path) -> Mapping[tuple[str, str], str]:
    """Read a CSV file with the columns network, property, expected."""
    path = Path(source)
    rows = [row for _, row in _rows(path)]
    if not rows or not {"network", "property", "expected"} <= set(rows[0]):
        raise BadInput(f"{path}: expected a header line with the columns network, property and expected.")
    places = [rows[0].index(name) for name in ("network", "property", "expected")]
    if any(len(row) <= max(places) for row in rows):
        raise BadInput(f"{path}: a line has fewer columns than the first.")
    named = ([row[place] for place in places] for row in rows[1:])
    return {(plain(network), plain(spec)): expected for network, spec, expected in named}


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the lines that are not empty, with their line numbers."""
    with explained_errors(
        path, "cannot be read as lines of text", "Give a folder with instances.csv, or such a file."
    ):
        lines = read_text(path).splitlines(keepends=True)
        return [
            (number, row)
            for number, row in enumerate(csv.reader(lines), 1)
            if any(cell.strip() for cell in row)
        ]


def _find_listed_file(path: Path, name: str, number: int) -> Path:
    """Resolve a path of a list: it must lie in the list's folder or below, also after links are resolved."""
    with explained_errors(
        f"{path}:{number}", f"{name[:60]!r} is not a file name", "Write model,property,seconds."
    ):
        for candidate in (path.parent / name, path.parent / f"{name}.gz"):
            if candidate.is_file():
                if not candidate.resolve().is_relative_to(path.parent.resolve()):
                    raise UnreadableFile(
                        f"{path}:{number}: {name!r} leads out of the folder {path.parent}. A list names "
                        "files in its own "
                        "folder or below it: put the file there, or put the list into a folder that holds "
                        "both."
                    )
                return candidate
    raise UnreadableFile(f"{path}:{number}: {name} does not exist in the folder of the list, nor {name}.gz.")
