"""Carlini and Wagner's attack (2017), in the form that POPQORN adapts to sequences (C&W-Ada).

The attack minimises

    q(x) + (1[q(x) <= 0] + c) * max_k ||delta_k||_p,   q(x) = max(score(x), 0),

where delta_k is the perturbation of time step k and c is a small fixed weight. Outside the adversarial region
the first term pushes the point over the decision boundary; inside it the second term pulls the point back to
the input. For a region of a single group of features (a `Ball`) the maximum is the norm of the whole
perturbation.

References: N. Carlini, D. Wagner, Towards evaluating the robustness of neural networks, 2017; C.-Y. Ko et
al., POPQORN: quantifying robustness of recurrent neural networks, 2019.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.attacks.descent import broadcast_rows, pull_closer, select_nearest
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.region.normed import NormFamily
from holdfast.result import Goal, Traits


@dataclass(frozen=True)
class CarliniState:
    """The current point of the attack, the moments of Adam and the nearest counterexample."""

    x: Tensor  # (batch, *shape)
    first: Tensor
    second: Tensor
    witness: Tensor
    distance: Tensor  # (batch,)
    count: int


@dataclass(frozen=True)
class CarliniWagner(Method[CarliniState]):
    """Run `rounds` steps of the search, each with `steps` steps of Adam on the adapted objective; the
    learning rate falls linearly over all of them.
    """

    finds: ClassVar[str] = "witnesses"
    help: ClassVar[str] = "Carlini and Wagner: gradients on distance and score together"
    keyword: ClassVar[str] = "carlini"
    traits: ClassVar[Traits] = Traits(glass=True)
    goals: ClassVar[tuple[Goal, ...]] = ("radius",)

    rounds: int = 4
    steps: int = 60
    rate: float = 0.02  # Learning rate of Adam, as a share of the width of each feature's domain.
    weight: float = 0.05  # The weight c of the distance outside the adversarial region.

    def obstacle(self, problem: Problem) -> str | None:
        if not problem.network.differentiable:
            return "needs gradients, and the network is a black box"
        if problem.region.as_norm_family() is None:
            return "searches the smallest norm of a perturbation; this problem has another region"
        return None

    def start(self, problem: Problem, seed: int) -> CarliniState:
        family, centre = problem.family, problem.region.centre
        whole = family.at(family.reach()).as_norm_family()
        assert whole is not None
        # The search does not start at the input itself: the norm has no gradient there.
        x = centre + 0.01 * (whole.sample(1, RandomStreams.of(problem.keys, seed, centre.device))[0] - centre)
        zero = torch.zeros_like(x)
        return CarliniState(
            x,
            zero,
            zero,
            centre,
            torch.full((len(problem),), torch.inf, dtype=torch.float64, device=x.device),
            0,
        )

    def step(self, problem: Problem, state: CarliniState) -> tuple[CarliniState | None, Claims]:
        family = problem.region.as_norm_family()
        assert family is not None
        whole = family.at(torch.inf)
        if family.domain.bounded:
            spread = (family.domain.upper - family.domain.lower).to(state.x)
        else:
            spread = 1 + family.centre.abs()
        for _ in range(self.steps):
            if time_limit.has_expired():
                break
            score, slope = problem.score_and_gradient(state.x)
            over = ~(score > 0)
            away = torch.where(over, family.distance(state.x), torch.inf)
            witness, distance = select_nearest(
                family, torch.stack([state.witness, state.x]), torch.stack([state.distance, away])
            )
            pull = (
                broadcast_rows(over, family) * (1 + self.weight) + broadcast_rows(~over, family) * self.weight
            )
            gradient = torch.where(broadcast_rows(over, family), 0, slope) + pull * _length_slope(
                family, state.x
            )
            count = state.count + 1
            first, second = 0.9 * state.first + 0.1 * gradient, 0.999 * state.second + 0.001 * gradient**2
            rate = self.rate * (1 - count / (self.rounds * self.steps + 1))
            move = (first / (1 - 0.9**count)) / ((second / (1 - 0.999**count)).sqrt() + 1e-12)
            x = whole.project(state.x - rate * spread * move)
            state = CarliniState(x, first, second, witness, distance, count)
        closer, distance = pull_closer(problem, state.witness, state.distance.isfinite())
        state = replace(state, witness=closer, distance=distance)
        done = state.count >= self.rounds * self.steps
        return None if done else state, Claims(witness=state.witness, found=state.distance.isfinite())


def _length_slope(family: NormFamily, x: Tensor) -> Tensor:
    """Return the gradient of the largest group norm of x - centre, (batch, *shape)."""
    with torch.enable_grad():
        delta = (x - family.centre).detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(family.length(delta).sum(), delta)
    return torch.nan_to_num(slope)
