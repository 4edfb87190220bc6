"""Translate the engine's trained quadratic relaxations (parabolas) into the checker's numbering of activation
functions.

Any parabolas are sound for the checker, so nothing here is trusted. Two elements with the same pre-activation and the
same activation at every sample point are taken for the same (`matching`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from holdfast import time_limit
from holdfast.bounding.graph.equivalence_check import sampled_points, values
from holdfast.bounding.graph.graph import Relaxed
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.bounding.quadratic_models import ParabolaCoefficients
from holdfast.certificates.matching import match_columns
from holdfast.certify.quadratic_training import no_models, quadratic_of
from holdfast.certify.tight_tier import coefficients
from holdfast.errors import HoldfastError
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.region import Region
from holdfast_check import Rejected
from holdfast_check.functions import ProductFunction
from holdfast_check.steps import ElementFunction, FunctionStep, Program

STEPS = 60  # Optimisation steps for the coefficients.
Array = np.ndarray[Any, Any]
Holds = Callable[
    [float, Mapping[str, Array]], bool
]  # Whether the checker accepts this fraction of a claim with these arrays.


class Parabolas:
    """The parabolas of a problem with one row, in the numbering of the checker's program."""

    def __init__(self, part: Problem, program: Program) -> None:
        self.part, self.program = part, program
        self.coefficients: ParabolaCoefficients | None = None
        self.matched: dict[
            tuple[int, int], Array
        ] = {}  # (step, argument) -> the engine's element for each of its elements
        curved = any(
            isinstance(step, FunctionStep) and isinstance(step.function, ProductFunction)
            for step in program.steps
        )
        try:
            if curved and isinstance(part.property, LinearProperty) and no_models(part) is None:
                self._match()
        except HoldfastError:
            self.matched = {}

    def _match(self) -> None:
        graph, view = graph_of(self.part), quadratic_of(self.part)
        points = sampled_points(self.part.region).double()
        steps = [step for step in view.steps if isinstance(step.node, Relaxed)]
        known = values(graph, points.to(graph.device), {source for step in steps for source in step.inputs})
        reads, made = [], []
        for step in steps:
            assert isinstance(step.node, Relaxed)
            for source, curve in zip(step.inputs, step.node.relaxation.curves() or (), strict=True):
                if curve is not None:
                    v = known[source].flatten(1)
                    reads.append(v.cpu().numpy())
                    made.append(curve.function(v).cpu().numpy())
        if not reads:  # Only products, which quadratic models represent without parabolas.
            return
        engine = np.concatenate([np.concatenate(reads, 1), np.concatenate(made, 1)])
        x = points.cpu().numpy().reshape(len(points), -1)
        for place, argument, function, read in arguments(self.program, x):
            element = match_columns(engine, np.concatenate([read, function.value(read)]))
            if bool((element >= 0).all()):
                self.matched[place, argument] = element

    def largest(
        self,
        shares: Sequence[float],
        region: Callable[[float], Region],
        radius: float,
        holds: Holds,
        until: float,
    ) -> tuple[float, dict[str, Array]] | None:
        """Return the largest accepted fraction of `shares` (in descending order) with its arrays, or None.

        The coefficients are optimised at the radius, or over the region where the problem has no radius. The
        optimisation ends as soon as a fraction other than the last is accepted.
        """
        every = coefficients(
            self.part,
            torch.full((1,), radius, dtype=torch.float64, device=self.part.region.centre.device),
            STEPS,
        )
        best: tuple[float, dict[str, Array]] | None = None
        with time_limit.within(until):
            for chosen in every if self.matched else ():
                self.coefficients = chosen
                for share in shares if best is None else shares[:-1]:
                    arrays = self.arrays(region(share), chosen)
                    if not time_limit.has_expired() and certainly_holds(holds, share, arrays):
                        best = share, arrays
                        break
                if best is not None and best[0] != shares[-1]:
                    break
        return best

    def arrays(self, region: Region, coefficients: ParabolaCoefficients) -> dict[str, Array]:
        """Return the arrays `parabolas/K` of the coefficients over a region."""
        found = quadratic_of(self.part).parabolas(region, coefficients)
        flat = np.concatenate([value[:, 0].cpu().numpy() for value in found.values()], 1).astype(np.float32)
        arrays: dict[str, Array] = {}
        for (place, argument), element in self.matched.items():
            step = self.program.steps[place]
            array = arrays.setdefault(
                f"parabolas/{place}", np.zeros((1, 2, len(step.parts), step.size), dtype=np.float32)
            )
            array[0, :, argument] = flat[:, element]
        return {name: array for name, array in arrays.items() if bool(np.isfinite(array).all())}


def certainly_holds(holds: Holds, share: float, arrays: Mapping[str, Array]) -> bool:
    """Whether the checker accepts; a rejection counts as no."""
    try:
        return holds(share, arrays)
    except Rejected:
        return False


def arguments(program: Program, x: Array) -> Iterator[tuple[int, int, ElementFunction, Array]]:
    """Yield step, argument, activation function, and its pre-activations at these points, (points, n)."""
    known = program.values(x)
    for place, step in enumerate(program.steps):
        if isinstance(step, FunctionStep):
            for argument, (part, curve) in enumerate(zip(step.parts, step.function.curves, strict=True)):
                if curve != ProductFunction("identity"):
                    yield place, argument, curve, part.take_elements(known[part.source])
