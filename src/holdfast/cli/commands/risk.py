"""`holdfast risk`: what can go wrong near each input, how fast, and how far away?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from holdfast.cli import options
from holdfast.cli.around import Around
from holdfast.cli.command import Command
from holdfast.cli.parse import ModelOptions

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.cli.run import Built
    from holdfast.store import Store


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=options.MEASURE)(risk)


@dataclass(frozen=True)
class Risk(Around, Command):
    name: ClassVar[str] = "risk"

    queries: int = 2000
    pictures: int = 20

    def build(self) -> "Built":
        from holdfast.api.risk import risk_methods, risk_problems
        from holdfast.cli.parse import tier_option
        from holdfast.cli.run import Built, question_of
        from holdfast.question import Means
        from holdfast.solver import Stop

        tier = tier_option(self.tier)
        methods, stop = risk_methods(tier, self.queries), Stop(self.seconds)
        net, data, whole, region, prop = self.read()
        problems = risk_problems(whole, region, prop)
        for problem in problems:
            problem.check()
        means = Means(tier, seed=self.seed, seconds=self.seconds, queries=self.queries)
        question = question_of(self, self.network, net, data, self.asked(), means, source=self.data)
        return Built(net, question, problems, methods, stop, data, self.seed, self.batch)

    def finish(self, store: "Store", built: "Built") -> None:
        from holdfast.cli.around import keep_classes
        from holdfast.cli.views.risk import draw

        keep_classes(store, built)
        draw(store, built.net, self.pictures)

    def show(self, store: "Store", built: "Built", console: "Console") -> None:
        from holdfast.cli.views.risk import table

        console.print(table(store), highlight=False)


@options.measures(Risk, "vocabulary")
def risk(
    network: ModelOptions,
    data: options.DataOption,
    out: options.Out,
    property: options.Property = "robustness",
    radius: options.HowFar = None,
    norm: options.Norm = "inf",
    epsilon: options.Epsilon = 0.0,
    targets: options.Targets = None,
    patch: options.Square = None,
    shares: options.Shares = None,
    softmax: options.Softmax = True,
    queries: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Network evaluations an input for the search of Q.")] = 2000,
    scale: options.Scale = None,
    limit: options.Limit = None,
    tier: options.Tier = "fast",
    pictures: options.Pictures = 20,
    seed: options.Seed = 0,
    batch: options.Batch = 128,
    seconds: options.Seconds = None,
) -> None:
    """What can go wrong near each input, how fast, and how far away?"""
