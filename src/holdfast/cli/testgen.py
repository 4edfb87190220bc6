"""`holdfast testgen`: new inputs that make neurons do what the given ones did not, as one .npz file and as pictures."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from holdfast.cli.output import check_folder, line, write_arrays
from holdfast.cli.parse import ModelOptions, unit_option
from holdfast.cli.pictures import draw_input, draw_map, drawable, ends_of
from holdfast.cli.reading.data import Data, load_data
from holdfast.cli.reading.model import load_network
from holdfast.coverage.criteria import Criterion
from holdfast.coverage.neurons import Per
from holdfast.coverage.testgen import Coverage, Progress, Tests, check_options, testgen
from holdfast.network import Network
from holdfast.solver import Stop

FILE = "tests.npz"


@dataclass(frozen=True)
class TestsQuestion:
    """A whole `holdfast testgen` command."""

    network: ModelOptions
    data: str
    train: str | None = None
    criterion: str = "neuron"
    layers: str | None = None
    per: str = "element"
    threshold: float = 0.0
    sections: int = 10
    unit: str | None = None
    changes: int | None = None
    tests: int | None = None
    pictures: int = 20
    scale: float | None = None
    limit: int | None = None
    seed: int = 0
    batch: int = 32
    seconds: float | None = None
    queries: int | None = None


def generate(q: TestsQuestion, folder: Path, console: Console) -> None:
    """Everything that can be wrong is found before the search, and the folder is made after it."""
    stop = Stop(q.seconds, q.queries)
    check_options(q.criterion, q.per, q.threshold, q.sections, stop)
    unit = unit_option(q.unit)
    check_folder(folder, FILE)
    net = load_network(q.network)
    data = load_data(q.data, net, scale=q.scale).limited(q.limit)
    x = data.stacked(q.data)
    train = None if q.train is None else load_data(q.train, net, scale=q.scale).stacked(q.train)
    criterion: dict[str, Criterion] = {name: name for name in get_args(Criterion)}
    per: dict[str, Per] = {name: name for name in get_args(Per)}
    with _live(console) as progress:
        found = testgen(
            net, x, criterion[q.criterion], y=data.y, train=train, layers=None if q.layers is None else q.layers.split(","), per=per[q.per],
            threshold=q.threshold, sections=q.sections, unit=unit, changes=q.changes, tests=q.tests, batch=q.batch, stop=stop,
            seed=q.seed, progress=progress,
        )  # fmt: skip
    _write(found, x, data, folder)
    drawn = _draw(found, x, net, data, folder, q.pictures)
    _tell(found, net.notes, folder, drawn, console)
    if found.status == "interrupted":
        sys.exit(130)


@contextmanager
def _live(console: Console) -> Iterator[Any]:
    """A bar on a terminal; a file or a pipe sees nothing of it."""
    bar = Bar(
        TextColumn("[bold]covered"), BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[tests]} tests"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    task = bar.add_task("", total=None, tests=0)

    def show(now: Progress) -> None:
        bar.update(task, completed=now.covered, total=now.items, tests=now.tests)

    with bar:
        yield show


# ---- what is written


def _write(found: Tests, x: torch.Tensor, data: Data, folder: Path) -> None:
    """x and y as `holdfast radius --data` reads them, and what else is known of the tests."""
    arrays: dict[str, Any] = {
        "x": found.x, "y": data.y[found.seed], "originals": x[found.seed], "seeds": found.seed, "changed": found.changed,
        "targets": found.target, "covers": found.covers, "seed_classes": found.seed_class, "classes": found.new_class,
        "adversarial": found.adversarial,
    }  # fmt: skip
    write_arrays(folder, FILE, {"layers": [layer.layer for layer in found.layers], **arrays})


def _draw(found: Tests, x: torch.Tensor, net: Network, data: Data, folder: Path, most: int) -> int:
    """A picture of each of the first tests, adversarial ones before the others; how many were drawn."""
    if not drawable(tuple(found.x.shape[1:])):
        return 0
    chosen = found.adversarial.int().argsort(descending=True, stable=True)[:most].tolist()
    for place in chosen:
        seed = int(found.seed[place])
        name = data.classes.__getitem__ if data.classes else str
        titles = (f"input {seed}: {name(int(found.seed_class[place]))}", f"test {place}: {name(int(found.new_class[place]))}")
        figure = _figure(x[seed].numpy(), found.x[place].numpy(), ends_of(net), titles, int(found.changed[place]))
        figure.savefig(folder / f"test-{place:04d}.png", dpi=100)
    return len(chosen)


def _figure(before: NDArray[Any], after: NDArray[Any], ends: tuple[float, float], titles: tuple[str, str], changed: int) -> Figure:
    """The input, the test, and the difference between them."""
    figure = Figure(figsize=(6, 2.4), layout="constrained")
    change = (after - before).reshape(-1, *after.shape[-2:])
    strongest = np.take_along_axis(change, np.abs(change).argmax(0)[None], 0)[0]
    reach = float(np.abs(strongest).max()) or 1.0
    first, second, third = figure.subplots(1, 3)
    draw_input(first, before, ends, titles[0])
    draw_input(second, after, ends, titles[1])
    draw_map(third, strongest, "RdBu_r", (-reach, reach), f"{changed} changed")
    return figure


# ---- what is told


def _tell(found: Tests, notes: Sequence[str], folder: Path, drawn: int, console: Console) -> None:
    table = Table("layer", title=f"coverage, criterion {found.criterion}", title_justify="left")
    for column in ("neurons", "items", "before", "after"):
        table.add_column(column, justify="right")
    for layer in found.layers:
        table.add_row(*_cells(layer))
    if len(found.layers) > 1:
        table.add_section()
        table.add_row(*_cells(found.total), style="bold")
    console.print(table, highlight=False)
    for note in (*notes, *found.notes):
        line(console, "note", note, warns=True)
    mean = f", {found.changed.double().mean():.3g} changed units on average" if len(found) else ""
    line(console, "tests", f"{len(found)}, of which {int(found.adversarial.sum())} adversarial{mean}")
    left = found.total.items - found.total.after
    if left:
        why = {"finished": "not reached", "stopped": "not reached before the limit", "interrupted": "not reached before the interruption"}
        line(
            console,
            "uncovered",
            f"{left} of {found.total.items} items, {why[found.status]}; nothing proves that they cannot be",
            warns=True,
        )
    line(console, "spent", f"{found.queries} network evaluations, {found.seconds:.1f} s")
    line(console, "written", f"{folder / FILE}" + (f" and {drawn} pictures" if drawn else ""))


def _cells(of: Coverage) -> tuple[str, ...]:
    share = (f"{100 * part / of.items:.1f}%" if of.items else "" for part in (of.before, of.after))
    return (escape(of.layer), str(of.neurons), str(of.items), *share)
