"""`holdfast verify`: VNN-LIB queries, one in the output format of VNN-COMP or a list as a table."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from holdfast.commands.command import Command
from holdfast.commands.options import Certificates, ModelOptions, Names, Seed
from holdfast.errors import BadInput, HoldfastError
from holdfast.result import DONE, Bracket, Key, Record, trivial_bound

if TYPE_CHECKING:
    from holdfast.commands.built import Built
    from holdfast.execution import Executor, Task, TaskResult
    from holdfast.execution.task import Tell
    from holdfast.network import Network
    from holdfast.report.verdict_table import InstanceLine
    from holdfast.result import Key, Record
    from holdfast.solver import Progress, RunOutcome
    from holdfast.store import Store
    from holdfast.verification import Instance
    from holdfast.verification.vnnlib import Spec


# Seconds after its deadline at which an instance is interrupted if its search has not ended (a choice).
LATE = 3.0


@dataclass
class Instances:
    """A worker for instances: it reads models and properties, and caches the last of each.

    seconds: the budget of each instance; None: the one of its list. errors: why the files of an instance cannot
    be read. nobody: instances whose input constraints no input satisfies. spent: seconds for reading the
    property of an instance, which belong to its budget. unread: instances whose budget ended meanwhile.
    """

    network: ModelOptions
    every: "list[Instance]"
    seed: int = 0
    seconds: float | None = None
    errors: dict[int, str] = field(default_factory=dict)
    nobody: set[int] = field(default_factory=set)
    spent: dict[int, float] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)
    last: "tuple[tuple[Path, Path | None], Network, tuple[Network, ...]] | None" = None
    parsed: "tuple[Path, Spec] | None" = None  # The last property that was read: parsing can take a minute.

    def read_instance(self, place: int) -> "tuple[Network, tuple[Network, ...], Spec]":
        from holdfast.commands.reading.specification import load_networks

        instance = self.every[place]
        spec = self.spec(place)
        # Properties of version 1 that constrain outputs alone share the network of their file.
        shared = (instance.model, None if spec.is_plain and not spec.networks else instance.spec)
        if self.last is None or self.last[0] != shared:
            self.last = shared, *load_networks(self.network, spec, instance)
        return self.last[1], self.last[2], spec

    @property
    def model_file(self) -> Path | None:
        """The file of the network that was read last; None where several were combined."""
        return None if self.last is None or self.last[0][1] is not None else self.last[0][0]

    def spec(self, place: int) -> "Spec":
        """The property of an instance."""
        from holdfast.verification.vnnlib import read_vnnlib

        file = self.every[place].spec
        if self.parsed is None or self.parsed[0] != file:
            self.parsed = None  # Two large ones need not be held at once.
            self.parsed = file, read_vnnlib(file)
        return self.parsed[1]

    def budget(self, place: int) -> float:
        """Seconds for an instance, reading its property included."""
        seconds = self.every[place].seconds if self.seconds is None else self.seconds
        return math.inf if seconds is None else seconds

    def spec_in_time(self, place: int) -> "Spec | None":
        """The property of an instance; None if its budget ended while it was read."""
        from holdfast import time_limit

        if place in self.unread:
            return None
        began = time.monotonic()
        before = self.spent.get(place, 0.0)
        with time_limit.within(began + self.budget(place) - before):
            found = time_limit.in_time(lambda: self.spec(place), None)
        self.spent[place] = before + time.monotonic() - began
        if found is None:
            self.unread.add(place)
        return found

    def read_for_question(self, place: int) -> "tuple[Network, Spec | None]":
        """The network of an instance, and its property if its budget suffices for reading it.

        Without the property the network is the one in the file, which plain properties of VNN-LIB 1 are about.
        """
        from holdfast.commands.reading.model import load_network
        from holdfast.verification.verify import UNREAD

        if self.spec_in_time(place) is None:
            instance = self.every[place]
            try:
                return load_network(self.network, None if instance.typed else instance.model), None
            except HoldfastError as error:
                raise type(error)(
                    f"{instance.spec}: {UNREAD}. Without it the network cannot be opened: {error}"
                ) from error
        net, _, spec = self.read_instance(place)
        return net, spec

    def keys(self, place: int) -> "tuple[Key, ...]":
        """The keys of the cases of an instance.

        Empty if no input satisfies its constraints, or if its file cannot be read, or not in time; all three are
        recorded.
        """
        try:
            spec = self.spec_in_time(place)
        except HoldfastError as error:
            self.errors[place] = str(error)
            return ()
        if spec is None:
            return ()
        cases = len(spec.cases)
        if not cases:
            self.nobody.add(place)
        return tuple(Key(place, case) for case in range(cases))

    def answer(self, task: "Task", tell: "Tell") -> "TaskResult":
        from holdfast import time_limit
        from holdfast.execution import TaskResult
        from holdfast.execution.scheduler import InMemorySink
        from holdfast.solver import Stop
        from holdfast.verification.verify import answer_instance

        # Every case gets a record first, so that a killed run does not seem to have fewer cases.
        tell(
            [
                replace(blank, status="interrupted")
                for blank in self.unknown(task.keys)
                if blank.key not in task.known
            ],
            "",
        )
        place, until = task.keys[0].index, time.monotonic() + task.seconds
        known = InMemorySink(records={key: record for key, record in task.known.items() if record.question})

        def search() -> "list[Record]":
            net, judges, spec = self.read_instance(place)
            left = None if until == math.inf else max(0.0, until - time.monotonic())
            return answer_instance(
                (net, *judges),
                spec,
                Stop(seconds=left),
                index=place,
                seed=self.seed,
                store=known,
                progress=lambda now: tell(now.records, now.method),
            )

        nothing: list[Record] = []
        with time_limit.within(until):
            records = time_limit.interrupt_late(search, nothing, LATE)
        if not records:  # Interrupted: the records reported before are the answer.
            unread = self.parsed is None or self.parsed[0] != self.every[place].spec
            kept = [known.records.get(blank.key, blank) for blank in self.unknown(task.keys, unread=unread)]
            records = [
                record if record.status in DONE else replace(record, status="stopped") for record in kept
            ]
        return TaskResult(
            tuple(records), interrupted=any(record.status == "interrupted" for record in records)
        )

    def unread_record(self, place: int) -> "Record":
        """The record of an instance with an unknown number of cases; it is about the first of them."""
        (blank,) = self.unknown([Key(place, 0)], unread=True)
        return replace(blank, seconds=self.spent[place])

    def unknown(self, keys: "Sequence[Key]", *, unread: bool = False) -> "list[Record]":
        from holdfast.verification.verify import UNREAD

        nothing = Bracket(trivial_bound(-math.inf), trivial_bound(math.inf), note=UNREAD if unread else "")
        return [Record(key, nothing, "stopped", 0.0, 0, goal="worst") for key in keys]

    def question(self, key: "Key") -> str:
        return ""


@dataclass(frozen=True)
class Verify(Command):
    """Answer a VNN-LIB query: sat with a counterexample, unsat with a proof, timeout or unknown."""

    # Each case of each instance has a record.
    name: ClassVar[str] = "verify"

    network: ModelOptions
    spec: Annotated[
        str | None, typer.Argument(metavar="[PROPERTY]", help="A .vnnlib file, also compressed by gzip.")
    ] = None
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Stop after this many seconds for each instance. Default: the limit in the list of "
            "instances, else 120.",
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With a list: a .csv file of known answers to compare with."),
    ] = None
    networks: Annotated[
        list[str],
        typer.Option(
            "--net",
            metavar="NAME=FILE",
            help="A network that a VNN-LIB 2 property declares by this name; can be repeated. The network "
            "without a name is MODEL.",
        ),
    ] = field(default_factory=list)
    seed: Seed = 0
    certificates: Certificates = False
    names: Names = None

    def build(self) -> "Built":
        from holdfast.certificates.names import check_names, read_names
        from holdfast.commands.built import Built, question_of
        from holdfast.question import Request
        from holdfast.solver import Stop
        from holdfast.verification.instances import read_key

        asked, stop = self._asked(), Stop(seconds=self.seconds)
        if self.key is not None:
            read_key(self.key)
        wrong: HoldfastError | None = None
        for place in range(len(asked.every)):
            try:
                net, spec = asked.read_for_question(place)
                break
            except HoldfastError as error:
                wrong = wrong or error
        else:
            assert wrong is not None
            raise wrong  # None of the instances can be read.
        if self.names is not None and spec is not None:
            check_names(read_names(self.names), spec.inputs, spec.outputs, self.names)
        hashes = {
            path: _hash(path)
            for path in dict.fromkeys(path for i in asked.every for path in i.files)
            if path.is_file()
        }
        content = [[*i.name, *(hashes[path] for path in i.files if path in hashes)] for i in asked.every]
        question = question_of(self, net, None, Request(specification=content))
        return Built(net, question, stop=stop, seed=self.seed, total=len(asked.every), extra=asked)

    def _asked(self) -> Instances:
        return Instances(self.network, self._instances(), self.seed, self.seconds)

    def _instances(self) -> "list[Instance]":
        from holdfast.verification.instances import Instance, read_instances

        model = self.network.model
        named = tuple((name, Path(file)) for name, file in self._list_named_networks())
        if named and self.spec is None:
            raise BadInput(f"{model}: named networks need a property, as the next argument.")
        if model.startswith("["):
            return [Instance(named[0][1], Path(str(self.spec)), 120.0, named=named)]
        listed = Path(model).is_dir() or model.endswith(".csv")
        if listed and self.spec is not None:
            raise BadInput(
                f"{model} is a list of instances, which names its properties; leave {self.spec} out."
            )
        if not listed and self.spec is None:
            raise BadInput(
                f"{model}: a property is needed in addition to the model, as in 'holdfast verify {model} "
                "property.vnnlib'."
            )
        return (
            read_instances(model)
            if self.spec is None
            else [Instance(Path(model), Path(self.spec), 120.0, typed=True, named=named)]
        )

    def _list_named_networks(self) -> list[tuple[str, str]]:
        """The networks that were given with the name of their declaration."""
        from holdfast.verification.instances import parse_named_networks

        pairs = parse_named_networks(self.network.model, "MODEL")
        for text in self.networks:
            name, equals, file = text.partition("=")
            if not (name and equals and file):
                raise BadInput(f"network {text!r}: expected name=file, as in --net g=retrained.onnx.")
            pairs.append((name, file))
        twice = next((name for name, count in Counter(name for name, _ in pairs).items() if count > 1), None)
        if twice is not None:
            raise BadInput(f"network {twice!r} is given twice.")
        return pairs

    def notes(self, built: "Built") -> tuple[str, ...]:
        return ()  # Printed below the answer.

    def keep_inputs(self, store: "Store", built: "Built") -> None:
        import torch

        names = [" ".join(instance.name) for instance in built.extra.every]
        unknown = [None] * len(names)
        store.put_inputs([torch.zeros(0)] * len(names), unknown, unknown, names, unknown)

    def worker(self, built: "Built") -> Instances:
        asked: Instances = built.extra
        return asked

    def solve(
        self, store: "Store", built: "Built", progress: "Callable[[Progress], None]", executor: "Executor"
    ) -> "RunOutcome":
        """Answer instance by instance, each with its own deadline.

        An error in one does not stop the others.
        """
        from holdfast.certificates.names import read_names
        from holdfast.commands.stored_claims import keep_property_claims
        from holdfast.execution.scheduler import Scheduler, Unit, Workload

        asked, known = self.worker(built), _by_instance(store)
        names = {} if self.names is None else read_names(self.names)
        units, total = list[Unit](), 0
        for place in filter(built.mine, range(len(asked.every))):
            keys, found = asked.keys(place), known.get(place, [])
            if keys:  # The property of this instance is the one that was read last.
                keep_property_claims(store, place, asked.spec(place), asked.every[place], names)
            total += len(keys)
            if place in asked.unread:
                total += 1
                if not found:
                    store.write([asked.unread_record(place)])
            each = math.inf if built.stop.each is None else built.stop.each
            left = max(0.0, min(asked.budget(place), each) - asked.spent.get(place, 0.0))
            if keys and not (found and all(r.status in DONE for r in found)):
                units.append(Unit(keys, left, whole=True))
        if self.spec is not None and asked.errors:
            raise BadInput(asked.errors[0])
        dealer = Scheduler(
            asked,
            Workload(units, total, total - sum(len(unit.keys) for unit in units)),
            store,
            progress=progress,
            blanks=False,
            lenient=self.spec is None,
        )
        return dealer.run(executor)

    def portions(self, built: "Built") -> "Iterator[Built]":
        """One request for each instance."""
        from holdfast.solver import Stop
        from holdfast.verification.search import Scatter
        from holdfast.verification.specification import problem_of
        from holdfast.verification.verify import select_methods

        asked: Instances = built.extra
        for place, instance in enumerate(asked.every):
            net, judges, spec = asked.read_instance(place)
            if spec.cases:
                stop = Stop(seconds=instance.seconds if self.seconds is None else self.seconds, sign=True)
                problem = problem_of(net, spec, judges=judges, index=place)
                yield replace(
                    built,
                    net=net,
                    problems=[problem],
                    methods=select_methods(None, Scatter(), None),
                    stop=stop,
                    batch=len(problem),
                )

    def finish(self, store: "Store", built: "Built") -> None:
        """Nothing to add: there are no classes."""

    def lines(self, store: "Store", asked: Instances) -> "list[InstanceLine]":
        """Return a line for each instance that is answered, with its known answer."""
        from holdfast.report.verdict_table import InstanceLine
        from holdfast.verification import verdict
        from holdfast.verification.instances import read_key

        key, known = {} if self.key is None else read_key(self.key), _by_instance(store)
        lines = []
        for place, instance in enumerate(asked.every):
            found, expected = known.get(place, []), key.get(instance.name, "")
            failed = [r.bracket.note for r in found if r.status == "failed"]
            if place in asked.errors or failed:
                lines.append(InstanceLine(instance, [*failed, asked.errors.get(place, "")][0], expected))
            elif (found or place in asked.nobody) and not any(
                r.status in ("interrupted", "refuted") for r in found
            ):
                lines.append(
                    InstanceLine(
                        instance, verdict(found, cases=0 if place in asked.nobody else None), expected
                    )
                )
        return lines

    def exit_code(self, store: "Store") -> int:
        return int(self.key is not None and any(line.wrong for line in self.lines(store, self._asked())))


def _hash(path: Path) -> str:
    """The hash of a file; for an .onnx file, of its external data too."""
    from holdfast.network.fingerprint import of_file
    from holdfast.network.onnx import of_onnx

    if path.name.endswith((".onnx", ".onnx.gz")):
        with suppress(HoldfastError):  # The error is reported with its instance.
            return of_onnx(path)
    return of_file(path)


def _by_instance(store: "Store") -> "dict[int, list[Record]]":
    found: dict[int, list[Record]] = {}
    for record in store.records():
        found.setdefault(record.key.index, []).append(record)
    return found
