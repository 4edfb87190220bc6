"""`holdfast testgen`: tests that increase neuron coverage."""

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from holdfast.commands.command import Command
from holdfast.commands.options import (
    DataOption,
    DataOptions,
    Limit,
    ModelOptions,
    Queries,
    Scale,
    Seconds,
    Seed,
    Unit,
)
from holdfast.commands.parse import one_of, unit_option
from holdfast.formatting import exact_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.commands.built import Built
    from holdfast.coverage.testgen import Tests
    from holdfast.execution import Executor
    from holdfast.problem import Problem
    from holdfast.solver import Progress, RunOutcome
    from holdfast.store import Store

# Limit on neurons times batch items of one step: 1 GiB of float32 values.
VALUES = 2**28
# Seed inputs with more numbers than this in all (256 MiB of float32) are not saved in the run.
KEPT = 2**26


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
        from holdfast.commands.built import Built, question_of
        from holdfast.commands.reading.model_and_data import load_both
        from holdfast.coverage.criteria import CoverageGoal
        from holdfast.coverage.neurons import Per
        from holdfast.coverage.testgen import pursuit, suite_of
        from holdfast.question import Request
        from holdfast.reading.data import load_data
        from holdfast.solver import Stop

        stop, unit = Stop(self.seconds, self.queries), unit_option(self.unit)
        per = one_of(self.per, "per", Per)
        layers = None if self.layers is None else self.layers.split(",")
        criterion: Any = self.criterion  # CoverageGoal refuses unknown ones.
        goal = CoverageGoal(criterion, layers, per, self.threshold, self.sections)
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
            goal,
            y=data.y,
            train=None if train is None else train.stack_inputs(str(self.train)),
            unit=unit,
        )
        if len(suite):
            suite.problem(suite.order[:1]).check()
        ranges = "" if train is None else f", ranges of {train.fingerprint}"
        names, above = self.layers or "all layers", exact_text(self.threshold)
        covered = f"{self.criterion} of {names} per {self.per}, {above}, {self.sections}{ranges}"
        question = question_of(
            self, net, data, Request.of_command("testgen", self, norm="0", criterion=covered)
        )
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
        """Save the most likely classes at the tests, block by block."""
        import torch

        shown = [
            record.key.index for record in store.stream(light=True) if record.bracket.upper.value < math.inf
        ]
        for items in torch.tensor(shown, dtype=torch.int64).split(built.extra.block) if shown else ():
            super().finish(
                store, replace(built, problems=[built.extra.problem(items.to(built.extra.order.device))])
            )

    def collect_tests(self, store: "Store", built: "Built") -> "Tests":
        from holdfast.coverage.pursuit import PROVENANCE_KEY

        found: Tests = built.extra.tests(store.records(), store.artefacts(PROVENANCE_KEY), self.tests)
        return found
