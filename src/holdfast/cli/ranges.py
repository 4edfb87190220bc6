"""What `holdfast reach` does: the box as people write it, the ranges as a table and as JSON."""

import csv
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from holdfast.cli.output import line
from holdfast.cli.parse import ModelOptions
from holdfast.cli.reading.data import load_data
from holdfast.cli.reading.model import load_network
from holdfast.cli.reading.source import readable, utf8
from holdfast.errors import BadInput, StoreError, UnreadableFile
from holdfast.network import Network
from holdfast.report.summary import at_least, at_most
from holdfast.result import Bracket
from holdfast.solver import Stop
from holdfast.verification import Range, reach
from holdfast.verification.verify import input_shape

SHOWN = 8  # inputs of a witness that fit on a line


@dataclass(frozen=True)
class RangeQuestion:
    """A whole `holdfast reach` command."""

    network: ModelOptions
    box: str | None
    data: str | None
    radius: float | None
    outputs: list[int] | None
    tolerance: float
    seconds: float
    scale: float | None = None
    limit: int | None = None
    seed: int = 0


def show(q: RangeQuestion, out: Path | None, console: Console) -> None:
    _check(q, out)
    net = load_network(q.network)
    names, ends = _ends(q, net)
    found = reach(net, ends, q.outputs, tolerance=q.tolerance, stop=Stop(seconds=q.seconds), seed=q.seed)
    if out is not None:
        out.write_text(json.dumps([_plain(r, names) for r in found], indent=1) + "\n", encoding="utf-8")
    console.print(_table(found, names), highlight=False)
    _tell(found, net, console)
    if out is not None:
        line(console, "written", str(out))
    if any(r.note == "interrupted" for r in found):
        sys.exit(130)


def _check(q: RangeQuestion, out: Path | None) -> None:
    """What can be known to be wrong before the model is read."""
    if (q.box is None) == (q.data is None):
        raise BadInput("say over which box: --box, or --input with --radius.")
    if (q.data is None) != (q.radius is None):
        raise BadInput("--input and --radius belong together: the inputs, and how far each number of them may move.")
    if q.radius is not None and not 0 <= q.radius < math.inf:
        raise BadInput(f"radius {q.radius}: it must be a number, not below 0.")
    if out is not None and out.exists():
        raise StoreError(f"{out} exists already. Choose another file with --out.")
    if out is not None and (out.suffix != ".json" or not out.absolute().parent.is_dir()):
        raise StoreError(f"{out}: give a .json file in a folder that exists.")


def _ends(q: RangeQuestion, net: Network) -> tuple[list[str] | None, tuple[Tensor, Tensor]]:
    """-> names of the boxes where they have some, and their ends (boxes, *shape) or (*shape)."""
    if q.data is None:
        assert q.box is not None
        return None, box_option(q.box, net)
    data = load_data(q.data, net, scale=q.scale).limited(q.limit)
    x = data.stacked(q.data).double()
    if net.vectors is not None:
        raise BadInput(f"{net.name} reads tokens, which cannot move by a radius; ask for the radius of words with 'holdfast radius'.")
    return data.names, (net.domain.clamp(x - q.radius), net.domain.clamp(x + q.radius))  # type: ignore[operator]


def box_option(text: str, net: Network) -> tuple[Tensor, Tensor]:
    """'0:10,-1:1', one 'low:high' for all inputs, or a .csv or .npy file -> lower, upper."""
    if text.endswith(".npy"):
        return _npy(Path(text))
    pairs = _csv(Path(text)) if text.endswith(".csv") else _written(text)
    if len(pairs) == 1 and net.shape is not None and None not in net.shape:
        pairs = pairs * math.prod(size for size in net.shape if size is not None)
    shape = input_shape(net, len(pairs), f"box {text!r}")
    lower, upper = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    return lower.reshape(shape), upper.reshape(shape)


def _written(text: str) -> list[list[float]]:
    try:
        pairs = [[float(end) for end in part.split(":")] for part in text.split(",")]
    except ValueError:
        pairs = [[]]
    if any(len(pair) != 2 for pair in pairs):
        raise BadInput(f"box {text!r}: expected low:high for each input, as in 0:10,-1:1, or a .csv or .npy file.")
    return pairs


def _csv(path: Path) -> list[list[float]]:
    pairs = []
    for number, row in enumerate(csv.reader(utf8(path).splitlines()), 1):
        if not any(cell.strip() for cell in row):
            continue
        try:
            low, high = (float(cell) for cell in row)
        except ValueError:
            raise BadInput(f"{path}:{number}: expected low,high, two numbers, got {','.join(row)[:60]!r}.") from None
        pairs.append([low, high])
    if not pairs:
        raise BadInput(f"{path}: holds no line low,high.")
    return pairs


def _npy(path: Path) -> tuple[Tensor, Tensor]:
    readable(path)
    try:
        ends = torch.from_numpy(np.load(path, allow_pickle=False))
    except MemoryError:
        raise
    except Exception as error:  # a damaged file fails in any layer
        raise UnreadableFile(f"{path}: cannot be read as .npy ({error}). Write it by numpy.save, with plain numbers.") from error
    if ends.dim() < 2 or len(ends) != 2 or ends.is_complex() or ends.dtype == torch.bool:
        raise BadInput(f"{path}: holds shape {tuple(ends.shape)}; expected the lower and the upper ends, (2, *shape of an input).")
    return ends[0].double(), ends[1].double()


def _table(found: list[Range], names: list[str] | None) -> Table:
    several = names is not None or found[-1].box > 0
    view = Table(caption_justify="left")
    for column in (["input" if names else "box"] if several else []) + ["output", "smallest", "largest"]:
        view.add_column(column, justify="right", no_wrap=True)
    view.add_column("gap", justify="right")
    for r in found:
        which = [names[r.box] if names else str(r.box)] if several else []
        smallest, largest = r.minimum, r.maximum
        view.add_row(
            *which, str(r.output), f"{at_least(smallest.lower.value, 6)} .. {at_most(smallest.upper.value, 6)}",
            f"{at_least(largest.lower.value, 6)} .. {at_most(largest.upper.value, 6)}", f"{r.gap:.2g}", style="" if r.closed else "yellow",
        )  # fmt: skip
    closed = sum(r.closed for r in found)
    known = f"{closed} of {len(found)} known to {found[0].tolerance:g}."
    view.caption = f"{known} Values stay between the outer numbers (proved); the inner ones were met."
    return view


def _tell(found: list[Range], net: Network, console: Console) -> None:
    for note in dict.fromkeys([*net.notes, *(r.note for r in found if r.note)]):
        line(console, "note", note, warns=True)
    most = max(max(r.widened) for r in found)
    if most:
        own = str(net.dtype).removeprefix("torch.")
        line(console, "note", f"proved ends were moved out by up to {most:.2g}, to what the network itself gives in {own}", warns=True)
    if len(found) == 1 and found[0].low_at.numel() <= SHOWN:
        for kind, at in (("smallest at", found[0].low_at), ("largest at", found[0].high_at)):
            line(console, kind, ", ".join(f"{value:.6g}" for value in at.flatten().tolist()))
    line(console, "work", f"{found[0].nodes} parts bounded, {found[0].queries} queries, {found[0].seconds:.2f} s")


def _plain(r: Range, names: list[str] | None) -> dict[str, Any]:
    """For JSON, which has no infinity: null."""
    return {
        "box": names[r.box] if names else r.box,
        "output": r.output,
        "smallest": _ends_of(r.minimum, "proved", "met"),
        "largest": _ends_of(r.maximum, "met", "proved"),
        "smallest at": r.low_at.tolist(),
        "largest at": r.high_at.tolist(),
        "tolerance": r.tolerance,
        "closed": r.closed,
        "widened": list(r.widened),
        "seconds": r.seconds,
        "parts": r.nodes,
        "queries": r.queries,
        "note": r.note,
    }


def _ends_of(bracket: Bracket, low: str, high: str) -> dict[str, float | None]:
    values = {low: bracket.lower.value, high: bracket.upper.value}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
