"""`holdfast worst`: how low can the score of a property fall near each input?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import typer

from holdfast.cli import options
from holdfast.cli.around import Around
from holdfast.cli.command import Command
from holdfast.cli.parse import ModelOptions

if TYPE_CHECKING:
    from holdfast.cli.run import Built
    from holdfast.store import Store


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=options.MEASURE)(worst)


@dataclass(frozen=True)
class Worst(Around, Command):
    name: ClassVar[str] = "worst"

    arithmetic: str = "real"
    methods: str | None = None
    queries: int | None = None
    gap: float = 0.0

    def build(self) -> "Built":
        from holdfast.api.methods import score_methods
        from holdfast.cli.parse import arithmetic_option, tier_option
        from holdfast.cli.run import Built, methods_named, question_of
        from holdfast.problem import Problem
        from holdfast.question import Means
        from holdfast.result import Key
        from holdfast.solver import Stop

        tier, arithmetic = tier_option(self.tier), arithmetic_option(self.arithmetic)
        stop = Stop(self.seconds, self.queries, self.gap)
        if self.methods is not None:
            methods_named(self.methods, ())
        net, data, whole, region, prop = self.read()
        problem = Problem(whole, region, prop, "worst", tuple(Key(i) for i in range(len(region))))
        problem.check()
        methods = score_methods(problem, tier, arithmetic) if self.methods is None else methods_named(self.methods, [problem])
        means = Means(tier, None, self.methods, arithmetic, self.seed, self.seconds, self.queries, self.gap)
        question = question_of(self, self.network, net, data, self.asked(), means, source=self.data)
        return Built(net, question, [problem], methods, stop, data, self.seed, self.batch)

    def finish(self, store: "Store", built: "Built") -> None:
        from holdfast.cli.around import keep_classes

        keep_classes(store, built)


@options.measures(Worst, "vocabulary")
def worst(
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
    scale: options.Scale = None,
    limit: options.Limit = None,
    tier: options.Tier = "fast",
    arithmetic: options.Arithmetic = "real",
    methods: options.Methods = None,
    seed: options.Seed = 0,
    batch: options.Batch = 128,
    seconds: options.Seconds = None,
    queries: options.Queries = None,
    gap: options.Gap = 0.0,
) -> None:
    """How low can the score of a property fall near each input? Above zero, it always holds there."""
