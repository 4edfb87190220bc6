"""`holdfast testgen`: tests that increase neuron coverage."""

from typing import TYPE_CHECKING, Any

import typer

from holdfast.cli.measuring import CommandView, register_measurement
from holdfast.commands.testgen import Testgen
from holdfast.foreign_text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.commands.built import Built
    from holdfast.coverage.testgen import Coverage
    from holdfast.store import Store

FILE = "tests.npz"
WHY = {
    "finished": "not reached",
    "stopped": "not reached before the limit",
    "interrupted": "not reached before the interruption",
}


class TestgenView(CommandView[Testgen]):
    __test__ = False  # Keeps pytest from collecting this class.

    def write_files(self, command: Testgen, store: "Store", built: "Built") -> None:
        """Write the tests as `holdfast radius --data` reads them, their properties, and pictures."""
        from holdfast.cli.views.output import write_arrays
        from holdfast.cli.views.pictures import draw_change, drawable, ends_of, save
        from holdfast.report.summary import class_name

        found, data = command.collect_tests(store, built), built.data
        assert data is not None
        arrays: dict[str, Any] = {
            "x": found.x,
            "y": data.y[found.seed],
            "originals": built.extra.seeds.cpu()[found.seed],
            "seeds": found.seed,
            "changed": found.changed,
            "targets": found.target,
            "covers": found.covers,
            "seed_classes": found.seed_class,
            "new_classes": found.new_class,
            "adversarial": found.adversarial,
            "layers": [layer.layer for layer in found.layers],
        }
        write_arrays(
            store.folder, FILE, arrays if data.classes is None else {**arrays, "classes": data.classes}
        )
        first = found.adversarial.int().argsort(descending=True, stable=True)[: command.pictures].tolist()
        for place in first if drawable(tuple(found.x.shape[1:])) else ():
            seed = int(found.seed[place])
            before, after = (
                class_name(built.question, int(said[place])) for said in (found.seed_class, found.new_class)
            )
            titles = f"input {seed}: {before}", f"test {place}: {after}"
            pictures = built.extra.seeds[seed].cpu().numpy(), found.x[place].numpy()
            figure = draw_change(
                *pictures, ends_of(built.net), titles, f"{int(found.changed[place])} changed"
            )
            save(figure, store.folder / f"test-{place:04d}.png")

    def show(self, command: Testgen, store: "Store", built: "Built", console: "Console") -> None:
        from rich.table import Table

        from holdfast.cli.views.output import line

        found = command.collect_tests(store, built)
        table = Table("layer", title=f"coverage, criterion {found.criterion}", title_justify="left")
        for column in ("neurons", "items", "before", "after"):
            table.add_column(column, justify="right")
        for layer in found.layers:
            table.add_row(*_cells(layer))
        if len(found.layers) > 1:
            table.add_section()
            table.add_row(*_cells(found.total), style="bold")
        console.print(table, highlight=False)
        for note in found.notes:
            line(console, "note", note, warns=True)
        mean = f", {found.changed.double().mean():.3g} changed units on average" if len(found) else ""
        line(console, "tests", f"{len(found)}, of which {int(found.adversarial.sum())} adversarial{mean}")
        left, every = found.total.items - found.total.after, found.total.items
        if left:
            line(
                console,
                "uncovered",
                f"{left} of {every} items, {WHY[found.status]}; this does not prove that they cannot be "
                "reached",
                warns=True,
            )
        line(console, "spent", f"{found.queries} network evaluations, {found.seconds:.1f} s")
        if (store.folder / FILE).exists():
            drawn = len(list(store.folder.glob("test-*.png")))
            line(console, "written", f"{store.folder / FILE}" + (f" and {drawn} pictures" if drawn else ""))


def _cells(of: "Coverage") -> tuple[str, ...]:
    share = (f"{100 * part / of.items:.1f}%" if of.items else "" for part in (of.before, of.after))
    return (printable(of.layer), str(of.neurons), str(of.items), *share)


def register(app: typer.Typer) -> None:
    register_measurement(app, Testgen, "vocabulary", "tokenizer", view=TestgenView())
