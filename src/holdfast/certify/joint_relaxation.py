"""Phase of tier `tight`: the joint (semidefinite) relaxation of all unstable ReLU-like neurons.

Statement. `bounding.joint_relu` bounds a linear function of the outputs by a feasible point of the Lagrangian
dual of Shor's relaxation. By weak duality every such point is a lower bound over the region, rounding
included. This phase only chooses the radii at which that bound is computed.

Assumption: all unstable activations have a single kink, at zero. References: `bounding.sdp_dual`.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding import joint_relu
from holdfast.bounding.graph.problem_graph import graph_of, rows_of
from holdfast.certify.phase import Phase, PhaseStep, RadiusTrial
from holdfast.problem import Problem

# Factor to the next radius where no upper bound is known and no radius has failed (chosen by hand).
GROWTH = 1.25
# A row is done when the failed and the certified radius differ by at most this factor (chosen by hand).
CLOSE = 1.015
# The first radius, as the exponent of the geometric interpolation between the certified radius (0) and the
# upper bound (1). It is high since dual variables trained at a larger radius soon prove a smaller one (chosen
# by hand).
FIRST_RADIUS_EXPONENT = 0.7
# At the failed radius the bound falls this many times as fast as on average from the centre (chosen by hand).
STEEPENING = 1.8


@dataclass(frozen=True)
class JointRelaxation(Phase):
    """The search over radii with the joint relaxation; for a score, a single bound over the region.

    Attributes:
        start: (batch,), the bounds that linear bounds in closed form certified.
        radii: number of radii that are tried.
        memory: dual variables with which the next radius begins.
        crowded: at some radius there were more variables than `joint_relu.most_variables`.
    """

    trial: RadiusTrial
    start: Tensor
    radii: int
    memory: joint_relu.Memory = field(default_factory=dict)
    crowded: bool = False

    @staticmethod
    def begin(low: Tensor, start: Tensor, radii: int) -> "JointRelaxation":
        return JointRelaxation(RadiusTrial.above(low, GROWTH, CLOSE), start, radii)

    def step(self, problem: Problem, low: Tensor, upper: Tensor | None) -> PhaseStep:
        """Bound the score over the region at one radius, between the certified radius and the upper bound or
        a failed radius.
        """
        graph = graph_of(problem)
        matrix, offset = rows_of(problem, graph)
        if not problem.bounds_radius:
            score = joint_relu.smallest_row_bounds(graph, problem.region, matrix, offset, sign=False)
            crowded = self.crowded or bool((score == -torch.inf).any())
            return PhaseStep(
                torch.fmax(low, score),
                replace(self, crowded=crowded),
                finished=not time_limit.has_expired(),
            )
        trial = self.trial
        radius = self._next_radius(problem, low, upper)
        score = torch.full_like(radius, -torch.inf)  # Stays -inf in rows that cannot gain.
        rows = ((low > 0) & (radius > low) & trial.is_open(low)).nonzero().flatten()
        memory, crowded = self.memory, self.crowded
        if len(rows):
            memory = dict(self.memory)
            region = problem.take(rows).family.at(radius[rows])
            score[rows] = joint_relu.smallest_row_bounds(
                graph, region, matrix[rows], offset[rows], sign=True, memory=memory, inputs=rows.tolist()
            )
            crowded = crowded or bool((score[rows] == -torch.inf).any())
        low = torch.where(score > 0, torch.maximum(low, radius), low)
        trial = trial.add_score(radius, score)
        # If there are too many variables at one radius, there are too many at the next.
        finished = trial.is_done(low, self.radii) or bool((score == -torch.inf).all())
        return PhaseStep(low, replace(self, trial=trial, memory=memory, crowded=crowded), finished)

    def _next_radius(self, problem: Problem, low: Tensor, upper: Tensor | None) -> Tensor:
        """Return (batch,): the radius to try next, in the arithmetic of the family."""
        upper = torch.full_like(low, torch.inf) if upper is None else upper
        first = torch.where(upper.isfinite(), low * (upper / low) ** FIRST_RADIUS_EXPONENT, GROWTH * low)
        radius = torch.where(self.trial.high.isinf(), first, self._interpolate(problem, low))
        return problem.family.at(torch.minimum(radius, problem.family.limit())).radius.double()

    def _interpolate(self, problem: Problem, low: Tensor) -> Tensor:
        """Return (batch,): a radius between the certified and the failed one.

        As long as this phase has certified no radius, the score missing at the failed radius determines how
        much smaller the next radius is.
        """
        trial = self.trial
        lack, score = -trial.high_score, problem.score(problem.region.centre).double()
        smaller = trial.high * (1 - lack / (STEEPENING * (score + lack).clamp_min(1e-12)))
        share = torch.where(
            trial.low_score.isnan(), ((smaller - low) / (trial.high - low)).nan_to_num(0.5), 0.5
        )
        return low + share.clamp(0.1, 0.9) * (trial.high - low)
