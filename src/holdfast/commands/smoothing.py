"""`holdfast smoothing`: radii of the smoothed classifier (randomised smoothing)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from holdfast.commands import options
from holdfast.commands.command import Command

if TYPE_CHECKING:
    from holdfast.commands.built import Built


@dataclass(frozen=True)
class SmoothingCommand(options.DataOptions, Command):
    """Estimate the majority class of each input under Gaussian noise, and the radius in which it stays.

    This is randomised smoothing (Cohen et al.): a radius of the smoothed classifier, with a confidence, not
    of the network itself.
    """

    name: ClassVar[str] = "smoothing"

    network: options.ModelOptions
    data: options.DataOption
    sigma: Annotated[float, options.request_option("sigma")]
    samples: Annotated[
        int,
        typer.Option(
            metavar="COUNT", min=1, help="Samples of each input that estimate how often it keeps its class."
        ),
    ] = 10_000
    choosing: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="Further samples of each input that choose its class.")
    ] = 100
    confidence: Annotated[float, options.request_option("confidence")] = 0.999
    scale: options.Scale = None
    limit: options.Limit = None
    seed: options.Seed = 0
    batch: options.Batch = None
    seconds: options.Seconds = None

    def build(self) -> "Built":
        from holdfast.certify.smoothing import Smoothing, smoothing_problem
        from holdfast.commands.built import Built, question_of
        from holdfast.commands.reading.model_and_data import load_both
        from holdfast.question import Request
        from holdfast.solver import Stop

        method, stop = Smoothing(self.sigma, self.samples, self.confidence, self.choosing), Stop(self.seconds)
        net, data = load_both(self.network, self.data, scale=self.scale, limit=self.limit, how=self)
        problem = smoothing_problem(net, data.stack_inputs(self.data))
        asked = Request.of_command("smoothing", self, norm="2")
        question = question_of(
            self, net, data, asked, methods="smoothing", queries=self.samples + self.choosing
        )
        return Built(net, question, [problem], [method], stop, data, self.seed, self.batch)
