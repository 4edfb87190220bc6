"""`holdfast monitor evaluate`: a fitted monitor against test data."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from holdfast.commands.command import Command
from holdfast.commands.options import LabelColumn, Seconds, Seed, TextColumn, TrustRun
from holdfast.reading.read_settings import ReadSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands.built import Built
    from holdfast.execution import Executor
    from holdfast.monitor import Monitor
    from holdfast.solver import Progress, RunOutcome, SequentialQuestions
    from holdfast.store import Store

Folder = Annotated[
    str,
    typer.Argument(
        metavar="[MONITOR]",
        help="Folder that fit wrote. Default: helpdesk, an LSTM that ships with holdfast.",
    ),
]
Sequences = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        metavar="DATA",
        help="Sequences: a .txt file of sentences, a .csv or .parquet table, a .tsv file of label and text, "
        "a .npz file with x and y, or "
        "package.module:function.",
    ),
]
Limit = Annotated[
    int | None, typer.Option(metavar="COUNT", min=1, help="Use only the first COUNT sequences.")
]
Device = Annotated[str | None, typer.Option(metavar="WHERE", help="cpu or cuda. Default: as given to fit.")]


@dataclass(frozen=True)
class Evaluate(Command):
    """Evaluate a monitor on test data: error against enumeration, attack success, and calibration."""

    name: ClassVar[str] = "monitor evaluate"

    folder: Folder = "helpdesk"
    data: Sequences = None
    text_column: TextColumn = None
    label_column: LabelColumn = None
    limit: Limit = None
    seed: Seed = 0
    seconds: Seconds = None
    device: Device = None
    trust: TrustRun = False

    def build(self) -> "Built":
        from holdfast.commands.built import Built, question_of
        from holdfast.commands.reading.monitors import open_monitor, rows_for
        from holdfast.monitor.evaluate import keys_of
        from holdfast.network.callable_fingerprint import of_value
        from holdfast.question import DataDescription, Request
        from holdfast.solver import Stop

        stop, notes = Stop(self.seconds), list[str]()
        how = ReadSettings(text_column=self.text_column, label_column=self.label_column)
        opened = open_monitor(self.folder, notes.append, self.device, trust=self.trust)
        rows, monitor = rows_for(opened, self.data, self.limit, notes.append, how), opened.monitor
        read = [monitor.read(sequence) for sequence in rows.sequences]
        asked = Request(
            mutation=[monitor.mutation.kind, of_value(_of(monitor))], outputs=str(monitor.outputs.settings())
        )
        question = question_of(self, monitor.net, None, asked, mode=monitor.settings.mode)
        known = DataDescription(
            self.data or "helpdesk",
            of_value(read),
            len(read),
            None if rows.classes is None else tuple(rows.classes),
        )
        asks = [
            (keys_of(place, len(one)), of_value([monitor.net.fingerprint, _of(monitor), self.seed, one]))
            for place, one in enumerate(read)
        ]
        total = sum(len(keys) for keys, _ in asks)
        return Built(
            monitor.net,
            replace(question, data=known),
            stop=stop,
            total=total,
            extra=(monitor, rows.names, read, asks, notes),
        )

    def notes(self, built: "Built") -> tuple[str, ...]:
        return (*built.extra[-1], *super().notes(built))

    def keep_inputs(self, store: "Store", built: "Built") -> None:
        _, names, read, _, _ = built.extra
        nothing = [None for _ in read]
        store.put_inputs(
            read, nothing, nothing, names, [None if one.is_floating_point() else one.tolist() for one in read]
        )

    def worker(self, built: "Built") -> "SequentialQuestions":
        from holdfast.monitor.evaluate import score_sequence
        from holdfast.solver import SequentialQuestions

        made, _, read, asks, _ = built.extra
        return SequentialQuestions(asks, lambda i: score_sequence(made, read[i], i, self.seed), "probability")

    def solve(
        self, store: "Store", built: "Built", progress: "Callable[[Progress], None]", executor: "Executor"
    ) -> "RunOutcome":
        from holdfast.solver import answer_in_turn

        mine = [place for place in range(len(built.extra[2])) if built.mine(place)]
        return answer_in_turn(
            self.worker(built), mine, built.stop, store=store, progress=progress, executor=executor
        )


def _of(made: "Monitor") -> list[Any]:
    """Everything that the scores of a monitor depend on, except the network."""
    tensors = {**made.mutation.tensors(), **({} if made.tree is None else made.tree.tensors())}
    return [made.mutation.settings(), made.outputs.settings(), str(made.settings), tensors]
