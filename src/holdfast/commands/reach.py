"""`holdfast reach`: the range of each output over a box of inputs."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from holdfast.commands.command import Command
from holdfast.commands.options import (
    DataOptions,
    LabelColumn,
    ModelOptions,
    Names,
    Scale,
    Seed,
    request_option,
)
from holdfast.commands.parse import whole_numbers
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.commands.built import Built
    from holdfast.store import Store


@dataclass(frozen=True)
class ReachCommand(Command):
    """Bound the smallest and largest value of each output over a box of inputs."""

    # Each output of each box has two records: its smallest and its largest value.
    name: ClassVar[str] = "reach"
    predicts: ClassVar[bool] = False  # There are no classes.

    network: ModelOptions
    box: Annotated[str | None, request_option("box")] = None
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            metavar="DATA",
            help="Boxes around these inputs, in place of --box; needs --radius.",
        ),
    ] = None
    radius: Annotated[float | None, request_option("radius", command="reach")] = None
    outputs: Annotated[str | None, request_option("outputs", command="reach")] = None
    tolerance: Annotated[float, request_option("tolerance")] = 1e-2
    seconds: Annotated[
        float,
        typer.Option(
            metavar="NUMBER", help="Stop after this many seconds in all, with the bounds found by then."
        ),
    ] = 120.0
    scale: Scale = None
    limit: Annotated[
        int | None, typer.Option(metavar="COUNT", min=1, help="Use only the first COUNT inputs of --data.")
    ] = None
    label_column: LabelColumn = None
    names: Names = None
    seed: Seed = 0

    def build(self) -> "Built":
        from holdfast.commands.built import Built, question_of
        from holdfast.commands.reading.box import box_option
        from holdfast.commands.reading.model import load_network
        from holdfast.network.fingerprint import of_tensors
        from holdfast.question import Request
        from holdfast.reading.data import load_data
        from holdfast.solver import Stop
        from holdfast.verification.reach import reach_methods, reach_problems, reach_stop

        if (self.box is None) == (self.data is None):
            raise BadInput("give the box: --box, or --data with --radius.")
        if (self.data is None) != (self.radius is None):
            raise BadInput(
                "--data and --radius belong together: the inputs, and how far each of their numbers may move."
            )
        if self.radius is not None and not 0 <= self.radius < math.inf:
            raise BadInput(f"radius {self.radius}: it must be a number, not below 0.")
        outputs, stop = (
            whole_numbers(self.outputs, "outputs"),
            reach_stop(Stop(seconds=self.seconds), self.tolerance),
        )
        net, how = load_network(self.network), DataOptions(label_column=self.label_column)
        data = (
            None
            if self.data is None
            else load_data(self.data, net, scale=self.scale, limit=self.limit, how=how)
        )
        if data is None:
            assert self.box is not None
            ends = box_option(self.box, net)
        else:
            if net.vectors is not None:
                raise BadInput(
                    f"{net.name} reads tokens, which cannot move by a radius; ask for the radius of words "
                    "with 'holdfast radius'."
                )
            assert self.data is not None
            x, far = data.stack_inputs(self.data).double(), float(self.radius or 0)
            ends = net.domain.clamp(x - far), net.domain.clamp(x + far)
        problems = reach_problems(net, ends, outputs)
        box = of_tensors({"lower": ends[0], "upper": ends[1]})
        asked = Request.of_command("reach", self, box=box)
        question = question_of(self, net, data, asked, gap=self.tolerance)
        return Built(net, question, problems, reach_methods(problems, self.tolerance), stop, data, self.seed)

    def notes(self, built: "Built") -> tuple[str, ...]:
        return ()  # Printed below the table.

    def keep_inputs(self, store: "Store", built: "Built") -> None:
        """Save the centre of every box."""
        (problem, _), data = built.problems, built.data
        rows = {key.index: row for row, key in enumerate(problem.keys)}
        x, unknown = [problem.region.centre[row] for row in rows.values()], [None] * len(rows)
        store.put_inputs(x, unknown, unknown, [""] * len(x) if data is None else data.names, unknown)

    def finish(self, store: "Store", built: "Built") -> None:
        """Nothing to add: there are no classes."""
