"""`holdfast testgen`: tests that increase neuron coverage."""

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from holdfast.cli.command import Command
from holdfast.cli.options import (
    MEASURE,
    DataOption,
    DataOptions,
    Limit,
    ModelOptions,
    Queries,
    Scale,
    Seconds,
    Seed,
    Unit,
    measures,
)
from holdfast.foreign_text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from holdfast.cli.run import Built
    from holdfast.coverage.testgen import Coverage, Tests
    from holdfast.execution import Executor
    from holdfast.problem import Problem
    from holdfast.solver import Progress, RunOutcome
    from holdfast.store import Store

FILE = "tests.npz"
# Limit on neurons times batch items of one step: 1 GiB of float32 values.
VALUES = 2**28
# Seed inputs with more numbers than this in all (256 MiB of float32) are not saved in the run.
KEPT = 2**26
WHY = {
    "finished": "not reached",
    "stopped": "not reached before the limit",
    "interrupted": "not reached before the interruption",
}


def register(app: typer.Typer) -> None:
    app.command("testgen", rich_help_panel=MEASURE)(measures(Testgen, "vocabulary", "tokenizer"))


@dataclass(frozen=True)
class Testgen(DataOptions, Command):
    """Generate tests near your inputs that cover neurons, or parts of their range, not covered yet."""

    name: ClassVar[str] = "testgen"
    predicts: ClassVar[bool] = False  # `keep_inputs` saves the predictions already.
    parts: ClassVar[bool] = False  # One suite: a test must not cover what another one covers.
    __test__: ClassVar[bool] = False  # Keeps pytest from collecting this class.

    network: ModelOptions
    data: DataOption
    criterion: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="neuron: every neuron is active once. multisection: its value falls in every section of its "
            "range. boundary: "
            "it falls below and above that range.",
        ),
    ] = "neuron"
    train: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="Training data that define the ranges of neurons. Default: --data."
        ),
    ] = None
    layers: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Only these layers, by the names that 'holdfast inspect' prints."),
    ] = None
    per: Annotated[
        str, typer.Option(metavar="WHAT", help="What is one neuron: element (of a feature map) or channel.")
    ] = "element"
    threshold: Annotated[
        float, typer.Option(metavar="NUMBER", help="A neuron is active above this value.")
    ] = 0.0
    sections: Annotated[
        int,
        typer.Option(
            metavar="COUNT", min=1, help="With multisection: number of sections of the range of a neuron."
        ),
    ] = 10
    unit: Unit = None
    changes: Annotated[
        int | None, typer.Option(metavar="COUNT", min=1, help="Change at most COUNT units in a test.")
    ] = None
    tests: Annotated[
        int | None, typer.Option(metavar="COUNT", min=1, help="Generate at most COUNT tests.")
    ] = None
    pictures: Annotated[
        int,
        typer.Option(metavar="COUNT", min=0, help="Draw at most COUNT pictures; adversarial tests first."),
    ] = 20
    scale: Scale = None
    limit: Limit = None
    seed: Seed = 0
    batch: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="Neurons in one batch; fewer need less memory.")
    ] = 32
    seconds: Seconds = None
    queries: Queries = None

    def build(self) -> "Built":
        from holdfast.cli.parse import one_of, unit_option
        from holdfast.cli.reading.model_and_data import load_both
        from holdfast.cli.run import Built, question_of
        from holdfast.coverage.criteria import check_criterion
        from holdfast.coverage.neurons import Per
        from holdfast.coverage.testgen import pursuit, suite_of
        from holdfast.formatting import exact_text
        from holdfast.question import Request
        from holdfast.reading.data import load_data
        from holdfast.solver import Stop

        stop, unit = Stop(self.seconds, self.queries), unit_option(self.unit)
        check_criterion(self.criterion, self.threshold, self.sections)
        per = one_of(self.per, "per", Per)
        method = pursuit(stop, changes=self.changes, tests=self.tests, block=self.batch)
        net, data = load_both(self.network, self.data, scale=self.scale, limit=self.limit, how=self)
        train = (
            None
            if self.train is None
            else load_data(self.train, net, scale=self.scale, how=DataOptions(label_column=self.label_column))
        )
        suite = suite_of(
            net,
            data.stack_inputs(self.data),
            self.criterion,  # type: ignore[arg-type]
            y=data.y,
            train=None if train is None else train.stack_inputs(str(self.train)),
            layers=None if self.layers is None else self.layers.split(","),
            per=per,
            threshold=self.threshold,
            sections=self.sections,
            unit=unit,
        )
        if len(suite):
            suite.problem(suite.order[:1]).check()
        ranges = "" if train is None else f", ranges of {train.fingerprint}"
        layers, above = self.layers or "all layers", exact_text(self.threshold)
        criterion = f"{self.criterion} of {layers} per {self.per}, {above}, {self.sections}{ranges}"
        question = question_of(self, net, data, Request(norm="0", unit=self.unit, criterion=criterion))
        together = max(1, min(len(suite), VALUES // sum(layer.neurons for layer in suite.neurons.layers)))
        return Built(net, question, suite.problems, [method], stop, data, self.seed, together, extra=suite)

    def keep_inputs(self, store: "Store", built: "Built") -> None:
        """Save, for each coverage item, the input that comes closest to covering it."""
        assert built.data is not None
        for _ in built.problems:  # Empty if the items are worked on in many blocks.
            if len(built.extra) * built.extra.seeds[0].numel() <= KEPT:
                place = built.extra.nearest[:, 0].tolist()
                said = built.net(built.extra.seeds).argmax(-1).tolist()
                x, known = [built.data.x[at] for at in place], built.data.labelled
                y = [int(built.data.y[at]) if known else None for at in place]
                store.put_inputs(x, y, [said[at] for at in place], built.extra.names(), [None for _ in place])

    def solve(
        self, store: "Store", built: "Built", progress: "Callable[[Progress], None]", executor: "Executor"
    ) -> "RunOutcome":
        """Search block by block. A limit on tests includes those found earlier."""
        from holdfast.coverage.testgen import in_blocks
        from holdfast.solver import RunOutcome

        assert not callable(built.methods)
        (method,), ends = built.methods, list[RunOutcome]()
        batch = built.batch

        def ask(problem: "Problem", seconds: float | None, known: int) -> bool:
            again, stop = [replace(method, known=known)], replace(built.stop, seconds=seconds)  # type: ignore[call-arg]
            block = replace(
                built,
                problems=[problem],
                methods=again,
                stop=stop,
                batch=None if batch is None else min(batch, len(problem)),
            )
            ends.append(super(Testgen, self).solve(store, block, progress, executor))
            return ends[-1].interrupted

        until = math.inf if built.stop.seconds is None else time.monotonic() + built.stop.seconds
        in_blocks(built.extra, store.records, ask, until, self.tests)
        faults = tuple(fault for ended in ends for fault in ended.faults)
        return RunOutcome(
            any(ended.interrupted for ended in ends), sum(ended.failed for ended in ends), faults
        )

    def portions(self, built: "Built") -> "Iterator[Built]":
        """One request for each block of items."""
        for items in built.extra.order.split(built.extra.block):
            yield replace(built, problems=[built.extra.problem(items)])

    def finish(self, store: "Store", built: "Built") -> None:
        """Write the tests as `holdfast radius --data` reads them, their properties, and pictures."""
        import torch

        from holdfast.cli.views.output import write_arrays
        from holdfast.cli.views.pictures import draw_change, drawable, ends_of, save
        from holdfast.report.summary import class_name

        shown = [
            record.key.index for record in store.stream(light=True) if record.bracket.upper.value < math.inf
        ]
        for items in torch.tensor(shown, dtype=torch.int64).split(built.extra.block) if shown else ():
            super().finish(
                store, replace(built, problems=[built.extra.problem(items.to(built.extra.order.device))])
            )
        found, data = self._collect_tests(store, built), built.data
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
        first = found.adversarial.int().argsort(descending=True, stable=True)[: self.pictures].tolist()
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

    def show(self, store: "Store", built: "Built", console: "Console") -> None:
        from rich.table import Table

        from holdfast.cli.views.output import line

        found = self._collect_tests(store, built)
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

    def _collect_tests(self, store: "Store", built: "Built") -> "Tests":
        from holdfast.coverage.pursuit import PROVENANCE_KEY

        found: Tests = built.extra.tests(store.records(), store.artefacts(PROVENANCE_KEY), self.tests)
        return found


def _cells(of: "Coverage") -> tuple[str, ...]:
    share = (f"{100 * part / of.items:.1f}%" if of.items else "" for part in (of.before, of.after))
    return (printable(of.layer), str(of.neurons), str(of.items), *share)
