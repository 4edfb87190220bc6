"""`holdfast saliency`: how far the margin can fall when a single pixel, frame or feature changes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from holdfast.commands.command import Command
from holdfast.commands.options import (
    Batch,
    DataOption,
    DataOptions,
    Limit,
    ModelOptions,
    Pictures,
    Scale,
    Seconds,
    Unit,
    request_option,
)
from holdfast.commands.parse import unit_option, values_option

if TYPE_CHECKING:
    from holdfast.commands.built import Built


@dataclass(frozen=True)
class SaliencyCommand(DataOptions, Command):
    """Map how far the margin can fall when a single pixel, frame or feature changes."""

    name: ClassVar[str] = "saliency"

    network: ModelOptions
    data: DataOption
    unit: Unit = None
    values: Annotated[str | None, request_option("values", command="saliency")] = None
    scale: Scale = None
    limit: Limit = None
    pictures: Pictures = 20
    batch: Batch = None
    seconds: Seconds = None

    def build(self) -> "Built":
        from holdfast import hamming
        from holdfast.commands.built import Built, question_of
        from holdfast.commands.reading.model_and_data import load_both
        from holdfast.hamming.saliency import saliency_problem
        from holdfast.question import Request
        from holdfast.solver import Stop

        unit, values, stop = unit_option(self.unit), values_option(self.values), Stop(self.seconds)
        net, data = load_both(self.network, self.data, scale=self.scale, limit=self.limit, how=self)
        problem = saliency_problem(net, data.stack_inputs(self.data), data.y, unit=unit, values=values)
        problem.check()
        asked = Request.of_command("saliency", self, norm="0", radius=1.0)
        return Built(
            net,
            question_of(self, net, data, asked),
            [problem],
            [hamming.Saliency()],
            stop,
            data,
            batch=self.batch,
        )
