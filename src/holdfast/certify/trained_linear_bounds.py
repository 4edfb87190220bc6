"""Phase of tier `tight`: linear bounds whose lower slopes at unstable ReLU-like neurons are trained
(alpha-CROWN).

Statement. Any slopes of the linear relaxation within their admissible range give a lower bound of the score,
so

    max over slopes a of lower_bound(s, X; a) <= min over x in X of s(f(x)).

Training (in float32) only selects the slopes; the bound is then computed in float64 with all rounding errors.

Assumption: as `bounding.alpha_beta_crown`.

References: K. Xu et al., Fast and complete: enabling complete neural network verification with rapid and
massively parallel incomplete verifiers (alpha-CROWN), 2021.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.bounder import TrainedBounder
from holdfast.bounding.graph.problem_graph import graph_of, rows_of
from holdfast.certify.phase import Phase, PhaseStep, RadiusTrial
from holdfast.problem import Problem
from holdfast.rounding import add_rounding_down

# Factor to the next radius as long as no radius has failed (chosen by hand; trained slopes gain less than the
# later phases).
GROWTH = 1.08
# A row is done when the failed and the certified radius differ by this factor; no other phase may follow
# (chosen by hand).
CLOSE = 1.01


@dataclass(frozen=True)
class TrainedLinearBounds(Phase):
    """The search over radii with trained linear bounds; for a score, a single bound over the region.

    Attributes:
        start: (batch,), the bounds that linear bounds in closed form certified.
        radii: number of radii that are tried.
    """

    trial: RadiusTrial
    start: Tensor
    radii: int

    @staticmethod
    def begin(low: Tensor, radii: int) -> "TrainedLinearBounds":
        return TrainedLinearBounds(RadiusTrial.above(low, GROWTH, CLOSE), low, radii)

    def step(self, problem: Problem, low: Tensor, upper: Tensor | None) -> PhaseStep:
        """Bound the score over the region at one radius."""
        if not problem.bounds_radius:
            return PhaseStep(
                torch.fmax(low, bound_score(problem)), self, finished=not time_limit.has_expired()
            )
        family = problem.family
        radius = family.at(torch.minimum(self.trial.next_radius(low), family.limit())).radius.double()
        score = torch.full_like(radius, -torch.inf)  # Stays -inf in rows that cannot gain.
        rows = ((low > 0) & (radius > low) & self.trial.is_open(low)).nonzero().flatten()
        if len(rows):
            score[rows] = bound_score(problem.take(rows).tile_radii(radius[rows][None]))
        if time_limit.has_expired():
            # Training that was cut short says nothing about what it could have certified.
            score = torch.where(score > 0, score, torch.nan)
        low = torch.where(score > 0, torch.maximum(low, radius), low)
        trial = self.trial.add_score(radius, score)
        return PhaseStep(low, replace(self, trial=trial), finished=trial.is_done(low, self.radii))

    def raise_bounds(
        self, problem: Problem, lower: Tensor, upper: Tensor, better: Tensor
    ) -> "TrainedLinearBounds":
        return replace(self, trial=self.trial.forget_low_scores(better))


def bound_score(problem: Problem) -> Tensor:
    """Lower-bound the score over the region by trained linear bounds, (batch,); -inf if nothing is proved in
    time.
    """
    graph = graph_of(problem)
    matrix, offset = rows_of(problem, graph)
    # Training may stop at these values: a radius needs a positive score, and no score exceeds that of the
    # centre.
    if problem.bounds_radius:
        enough = -offset
    else:
        enough = problem.score(problem.region.centre).double()[:, None] - offset
    bounds, _ = TrainedBounder(graph, enough).bound(problem.region, matrix)
    score = add_rounding_down(bounds, offset).amin(1)
    return torch.where(score.isfinite(), score, -torch.inf)
