"""`holdfast worst`: the lowest score of a property near each input."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast.commands import options
from holdfast.commands.command import Command
from holdfast.commands.parse import one_of
from holdfast.commands.region_options import RegionOptions

if TYPE_CHECKING:
    from holdfast.commands.built import Built


@dataclass(frozen=True)
class Worst(RegionOptions, Command):
    """Bound the lowest score of a property near each input; above 0 the property holds."""

    name: ClassVar[str] = "worst"

    arithmetic: options.Arithmetic = "real"
    methods: options.Methods = None
    queries: options.Queries = None
    gap: options.Gap = 0.0
    certificates: options.Certificates = False
    names: options.Names = None

    def build(self) -> "Built":
        from holdfast.api.methods import Tier, score_methods
        from holdfast.certify import Arithmetic
        from holdfast.commands.built import Built, methods_named, question_of
        from holdfast.problem import Problem
        from holdfast.solver import Stop

        tier, arithmetic = one_of(self.tier, "tier", Tier), one_of(self.arithmetic, "arithmetic", Arithmetic)
        stop = Stop(self.seconds, self.queries, self.gap)
        if self.methods is not None:
            methods_named(self.methods, ())
        net, data, whole, region, prop = self.read_inputs()
        problem = Problem(whole, region, prop, "worst")
        problem.check()
        methods = (
            score_methods(problem, tier, arithmetic)
            if self.methods is None
            else methods_named(self.methods, [problem])
        )
        return Built(
            net,
            question_of(self, net, data, self.to_request()),
            [problem],
            methods,
            stop,
            data,
            self.seed,
            self.batch,
        )
