"""`holdfast smoothing`: what the network says most often around each input under noise, and how far that holds (randomised smoothing)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from holdfast.cli import options
from holdfast.cli.command import Command
from holdfast.cli.parse import ModelOptions

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.cli.run import Built
    from holdfast.store import Store


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=options.MEASURE)(smoothing)


@dataclass(frozen=True)
class Smooth(Command):
    name: ClassVar[str] = "smoothing"

    network: ModelOptions
    data: str
    sigma: float
    samples: int = 10_000
    choosing: int = 100
    confidence: float = 0.999
    scale: float | None = None
    limit: int | None = None
    seed: int = 0
    batch: int = 128
    seconds: float | None = None

    def build(self) -> "Built":
        from holdfast.certify.smoothing import Smoothing, smoothing_problem
        from holdfast.cli.reading.data import load_data
        from holdfast.cli.reading.model import load_network
        from holdfast.cli.run import Built, question_of
        from holdfast.question import Asked, Means
        from holdfast.solver import Stop

        method, stop = Smoothing(self.sigma, self.samples, self.confidence, self.choosing), Stop(self.seconds)
        net = load_network(self.network)
        data = load_data(self.data, net, scale=self.scale).limited(self.limit)
        problem = smoothing_problem(net, data.stacked(self.data))
        asked = Asked(norm="2", sigma=self.sigma, confidence=self.confidence)
        means = Means(methods="smoothing", seed=self.seed, seconds=self.seconds, queries=self.samples + self.choosing)
        question = question_of(self, self.network, net, data, asked, means, source=self.data)
        return Built(net, question, [problem], [method], stop, data, self.seed, self.batch)

    def show(self, store: "Store", built: "Built", console: "Console") -> None:
        from holdfast.cli.views.smoothing import table

        console.print(table(store), highlight=False)


@options.measures(Smooth)
def smoothing(
    network: ModelOptions,
    data: options.DataOption,
    out: options.Out,
    sigma: Annotated[float, typer.Option(metavar="NUMBER", help="The width of the noise, in the units of the domain.")],
    samples: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Of each input, to see how often it keeps its class.")] = 10_000,
    choosing: Annotated[int, typer.Option(metavar="COUNT", min=1, help="More samples of each input, to choose its class.")] = 100,
    confidence: Annotated[float, typer.Option(metavar="SHARE", help="Of each radius, by itself.")] = 0.999,
    scale: options.Scale = None,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    batch: options.Batch = 128,
    seconds: options.Seconds = None,
) -> None:
    """What does the network say most often around each input under noise, and how far does that hold? Sampled, with a confidence."""
