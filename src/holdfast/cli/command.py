"""A command that measures: its options as plain data, how they become problems, and how the answers are shown. Nothing heavy is imported
here, so that `--help` answers at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.cli.options import ModelOptions
from holdfast.errors import StoreError

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.cli.run import Built
    from holdfast.execution import Executor, Worker
    from holdfast.solver import Ended, Progress
    from holdfast.store import Store

BESIDE = "shard", "seconds_each"  # kept with the options of a run, and no options of its command
COMMANDS: dict[str, "type[Command]"] = {}


@dataclass(frozen=True)
class Command(ABC):
    """Fields are the options as they stand on the command line. A run keeps them, so that `resume` asks the very same thing."""

    name: ClassVar[str]
    predicts: ClassVar[bool] = (
        True  # the outputs of the model at the inputs are kept with them, where they are classes
    )
    parts: ClassVar[bool] = (
        True  # its questions are independent of each other: they can be answered in portions, and elsewhere
    )

    def __init_subclass__(cls) -> None:
        ours = cls.name in COMMANDS and all(
            k.__module__.startswith("holdfast.") for k in (cls, COMMANDS[cls.name])
        )
        assert not ours, f"two commands are called {cls.name}"
        COMMANDS[cls.name] = cls

    @abstractmethod
    def build(self) -> "Built":
        """Everything read and checked; whatever can be wrong is found here, before a folder is made."""

    def show_question(self, built: "Built", console: "Console") -> None:
        """What is asked, before the search, in the words that stand over its answers everywhere."""
        from holdfast.cli.views.output import paragraph
        from holdfast.question_text import describe_question

        paragraph(console, "question", describe_question(built.question))

    def notes(self, built: "Built") -> tuple[str, ...]:
        """What is told before the search."""
        return built.net.notes if built.data is None else (*built.net.notes, *built.data.notes)

    def keep_inputs(self, store: "Store", built: "Built") -> None:
        """What the store keeps of the inputs, before the first answer."""
        from holdfast.cli.run import keep_inputs

        if built.data is not None:
            keep_inputs(store, built)

    def worker(self, built: "Built") -> "Worker":
        """Who answers, in a process of its own that has built the same."""
        from holdfast.batch_solver import BatchWorker

        return BatchWorker(built.problems, built.methods, built.stop, built.seed)

    def solve(
        self, store: "Store", built: "Built", progress: "Callable[[Progress], None]", executor: "Executor"
    ) -> "Ended":
        """Answer into the store. Commands differ in what they ask, seldom in this."""
        from holdfast.cli.run import keep_outputs
        from holdfast.solver import ask

        heard = keep_outputs(store, built) if self.predicts else None
        many = sum(len(problem) for problem in built.problems)
        batch = (
            built.batch
            if executor.slots == 1
            else min(built.batch or 128, max(1, -(-many // executor.slots)))
        )
        return ask(
            built.problems, built.methods, built.stop, seed=built.seed, batch=batch, store=store, progress=progress, executor=executor,
            outputs=heard,
        )  # fmt: skip

    def portions(self, built: "Built") -> "Iterator[Built]":
        """What was asked, so that it can be asked again: problems, methods and limits that belong together."""
        yield built

    def finish(self, store: "Store", built: "Built") -> None:
        """What is kept beside the answers, once they are known and the run was not interrupted: the classes that the network says at the
        inputs and at the witnesses, also where something made of its outputs was asked about."""
        from holdfast.cli.views.answers import keep_answers

        keep_answers(
            store,
            [replace(problem, network=built.net) for problem in built.problems],
            min(built.batch or 128, 128),
        )

    def show(self, store: "Store", built: "Built", console: "Console") -> None:
        """Print the answers: by default a table, and a sentence that answers the question."""
        from holdfast.cli.views.results import show_results

        show_results(store, console, built.sort, built.at)

    def exit_code(self, store: "Store") -> int:
        return 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        network, stored = (
            stored.get("network"),
            {name: value for name, value in stored.items() if name not in BESIDE},
        )
        return cls(
            **{**stored, "network": ModelOptions(**network)} if isinstance(network, Mapping) else stored
        )


def command_of(name: str, options: Mapping[str, Any]) -> Command:
    """The command that a run was begun with. StoreError where it holds none: it was made by a program, or by another version."""
    from holdfast.cli import commands  # noqa: F401  all of them are known by now

    try:
        return COMMANDS[name].from_json(options)
    except (KeyError, TypeError, ValueError) as error:
        known = {f.name for f in fields(COMMANDS[name])} if name in COMMANDS else set()
        unknown = sorted(set(options) - known - set(BESIDE))
        why = f"option {unknown[0]} is unknown" if unknown else "its options are not all there"
        raise StoreError(
            f"the run was not begun by 'holdfast {name}' as it is now ({why}), so it cannot be asked again. "
            "'holdfast report' and "
            f"'holdfast export' still read it."
        ) from error
