"""`holdfast risk`: worst score, Lipschitz metric Q and radius of a property (DeepQuant)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from holdfast.commands import options
from holdfast.commands.command import Command
from holdfast.commands.parse import one_of
from holdfast.commands.region_options import RegionOptions

if TYPE_CHECKING:
    from holdfast.commands.built import Built


@dataclass(frozen=True)
class RiskCommand(RegionOptions, Command):
    """Measure the worst score, the Lipschitz metric Q and the radius of a property near each input.

    These are the quantities of DeepQuant. Q = sup |s(x) - s(x')| / ||x - x'||_p over the region:
    counterexamples come from gradients and mesh search (TP-MADS), upper bounds from proofs.
    """

    name: ClassVar[str] = "risk"

    queries: Annotated[
        int,
        typer.Option(
            metavar="COUNT", min=1, help="Evaluations of the network for each input in the search for Q."
        ),
    ] = 2000
    pictures: options.Pictures = 20
    methods: options.Methods = None

    def build(self) -> "Built":
        from holdfast.api.methods import Tier
        from holdfast.api.risk import methods_by_part, risk_methods, risk_problems
        from holdfast.commands.built import Built, methods_named, question_of
        from holdfast.solver import Stop

        methods, stop = risk_methods(one_of(self.tier, "tier", Tier), self.queries), Stop(self.seconds)
        if self.methods is not None:
            methods_named(self.methods, ())
        net, data, whole, region, prop = self.read_inputs()
        problems = risk_problems(whole, region, prop)
        for problem in problems:
            problem.check()
        if self.methods is not None:
            methods = methods_by_part(methods_named(self.methods, problems), self.queries, methods)
        return Built(
            net,
            question_of(self, net, data, self.to_request()),
            problems,
            methods,
            stop,
            data,
            self.seed,
            self.batch,
        )
