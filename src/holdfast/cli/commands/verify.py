"""`holdfast verify`: VNN-LIB queries, one in the output format of VNN-COMP or a list as a table."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.measuring import CommandView, register_measurement
from holdfast.commands.options import OutOrNothing
from holdfast.commands.verify import Verify
from holdfast.foreign_text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.commands.built import Built
    from holdfast.store import Store

QUESTIONS = typer.Argument(
    metavar="MODEL",
    help="A .onnx or .pt2 file or package.module:factory; \"[('f', 'f.onnx'), ('g', 'g.onnx')]\" for a "
    "property of several networks; or a folder or .csv file that lists instances.",
)
NOT_ASKED = (
    "domain",
    "mean",
    "std",
    "input_scaler",
    "output_mean",
    "output_std",
    "output_scaler",
    "time_first",
    "pool",
    "vocabulary",
    "tokenizer",
    "black_box",
)  # Options left out: a VNN-LIB property is about the model without preprocessing.


class VerifyView(CommandView[Verify]):
    def show_question(self, command: Verify, built: "Built", console: "Console") -> None:
        """Print nothing for a single instance: its answer comes first, as in VNN-COMP."""
        if command.spec is None:
            super().show_question(command, built, console)

    def show(self, command: Verify, store: "Store", built: "Built", console: "Console") -> None:
        from rich.text import Text

        from holdfast.execution.asking import NotAnswered
        from holdfast.question_text import describe_question
        from holdfast.report.verdict_table import competition, verdict_table
        from holdfast.verification import verdict

        if command.spec is not None:
            spec = built.extra.spec_in_time(0)
            cases = None if spec is None else len(spec.cases)
            try:
                net = None if spec is None else built.net
                found = verdict(store.records(), net, cases=cases, spec=spec)
            except NotAnswered:  # The outputs at the counterexample are not known; the records are complete.
                found = verdict(store.records(), cases=cases)
            for text in competition(found, built.net, () if spec is None else built.extra.last[2]):
                print(text)
            print(f"; {printable(describe_question(built.question), None)}")
            return
        lines, total = command.lines(store, built.extra), len(built.extra.every)
        for line in lines:
            console.print(line.shown(), soft_wrap=True)
        if len(lines) < total:
            console.print(Text(f"interrupted: {len(lines)} of {total} are answered.", style="yellow"))
        console.print(verdict_table(lines, total))
        if any(line.wrong for line in lines):
            console.print(
                Text("An answer contradicts the key: please report it, and send the files.", style="bold red")
            )


def register(app: typer.Typer) -> None:
    register_measurement(
        app,
        Verify,
        *NOT_ASKED,
        view=VerifyView(),
        model=Annotated[str, QUESTIONS],
        out=OutOrNothing,
    )
