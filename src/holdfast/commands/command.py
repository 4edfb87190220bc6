"""A measuring command: its options as plain data, and how they become problems and results.

Nothing heavy is imported here, so that `--help` answers at once.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.commands.options import ModelOptions
from holdfast.errors import StoreError

if TYPE_CHECKING:
    from holdfast.commands.built import Built
    from holdfast.execution import Executor, Worker
    from holdfast.solver import Progress, RunOutcome
    from holdfast.store import Store

# Options saved with a run that are fields of `Running`, not of its command.
RUNNING_OPTIONS = "shard", "seconds_each"
COMMANDS: dict[str, "type[Command]"] = {}


@dataclass(frozen=True)
class Command(ABC):
    """The fields are the options as typed. A run saves them, so that `resume` builds the same question."""

    name: ClassVar[str]
    predicts: ClassVar[bool] = True  # Save the predicted class of each input, if outputs are classes.
    parts: ClassVar[bool] = True  # Inputs are independent: shards and several workers are possible.

    def __init_subclass__(cls) -> None:
        ours = cls.name in COMMANDS and all(
            k.__module__.startswith("holdfast.") for k in (cls, COMMANDS[cls.name])
        )
        assert not ours, f"two commands are called {cls.name}"
        COMMANDS[cls.name] = cls

    @abstractmethod
    def build(self) -> "Built":
        """Read and check everything.

        Every error in the options is raised here, before a folder is created.
        """

    def notes(self, built: "Built") -> tuple[str, ...]:
        """Notes to print before the search."""
        return built.net.notes if built.data is None else (*built.net.notes, *built.data.notes)

    def keep_inputs(self, store: "Store", built: "Built") -> None:
        """Save the inputs before the first result."""
        from holdfast.commands.built import keep_inputs

        if built.data is not None:
            keep_inputs(store, built)

    def worker(self, built: "Built") -> "Worker":
        """The worker that solves the problems in another process, which has built the same command."""
        from holdfast.batch_solver import BatchWorker

        return BatchWorker(built.problems, built.methods, built.stop, built.seed)

    def solve(
        self, store: "Store", built: "Built", progress: "Callable[[Progress], None]", executor: "Executor"
    ) -> "RunOutcome":
        """Solve all problems and save the results."""
        from holdfast.commands.built import keep_outputs
        from holdfast.solver import BatchSettings, ask

        save_outputs = keep_outputs(store, built) if self.predicts else None
        count = sum(len(problem) for problem in built.problems)
        batch = (
            built.batch
            if executor.slots == 1
            else min(built.batch or 128, max(1, -(-count // executor.slots)))
        )
        return ask(
            built.problems,
            built.methods,
            built.stop,
            BatchSettings(built.seed, batch),
            store=store,
            progress=progress,
            executor=executor,
            outputs=save_outputs,
        )

    def portions(self, built: "Built") -> "Iterator[Built]":
        """The requests of the command, each with its problems, methods and limits, to recompute them."""
        yield built

    def finish(self, store: "Store", built: "Built") -> None:
        """After a complete search, save the most likely classes at inputs and counterexamples."""
        from holdfast.commands.answers import keep_answers

        keep_answers(
            store,
            [replace(problem, network=built.net) for problem in built.problems],
            min(built.batch or 128, 128),
        )

    def exit_code(self, store: "Store") -> int:
        return 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        network, stored = (
            stored.get("network"),
            {name: value for name, value in stored.items() if name not in RUNNING_OPTIONS},
        )
        return cls(
            **{**stored, "network": ModelOptions(**network)} if isinstance(network, Mapping) else stored
        )


def command_of(name: str, options: Mapping[str, Any]) -> Command:
    """The command that began a run. StoreError if there is none: a program or another version began it."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):  # Importing registers the commands.
        importlib.import_module(f"holdfast.commands.{module.name}")

    try:
        return COMMANDS[name].from_json(options)
    except (KeyError, TypeError, ValueError) as error:
        known = {f.name for f in fields(COMMANDS[name])} if name in COMMANDS else set()
        unknown = sorted(set(options) - known - set(RUNNING_OPTIONS))
        why = f"option {unknown[0]} is unknown" if unknown else "some of its options are missing"
        raise StoreError(
            f"the run was not begun by 'holdfast {name}' as it is now ({why}), so it cannot be continued. "
            "'holdfast report' and 'holdfast export' still read it."
        ) from error
