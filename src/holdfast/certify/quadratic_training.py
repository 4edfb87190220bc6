"""Phases of tier `tight` with quadratic (Taylor) models: first with their initial coefficients, then with
trained ones.

Statement. Any coefficients c of the relaxations yield models that enclose the network, so

    max over c of lower_bound(s, X; c) <= min over x in X of s(f(x)).

Training works in float32 and only selects coefficients. What it reaches is proved afterwards in float64, with
all rounding errors, by quadratic models and linear bounds together (`Quadratic.least_with_crown`).

Assumption: every activation has a parabolic relaxation (`bounding.relax`). References:
`bounding.quadratic_models`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import relu_like_functions
from holdfast.bounding.coefficient_training import CoefficientAscent, OptimiserState
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.quadratic_models import ParabolaCoefficients, Quadratic
from holdfast.certify.phase import TRAINING_START, Phase, PhaseStep, RadiusTrial
from holdfast.memory_budget import format_bytes, free_bytes
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.region import Region

GROWTH = 1.25  # Factor to the next radius as long as no radius has failed (chosen by hand).
# Training begins when the failed and the certified radius differ by at most this factor (chosen by hand).
CLOSE = 1.02
# Intermediate bounds for training are computed at this multiple of the radius in training, and again when it
# is passed (chosen by hand).
INTERMEDIATE_BOUNDS_AHEAD = 1.03
# Largest number of float32 values in the models of one input that are trained on a CPU (chosen by hand).
MAX_CPU_NUMBERS = 2**25
# Number of such values that a CPU core trains in a second (chosen by hand; it only appears in a message).
CPU_NUMBERS_PER_SECOND = 1e7
# Radii that are proved after a block of training, as shares of the way from just below to just above the
# radius reached (chosen by hand).
PROOF_SHARES = (0.0, 0.5, 0.95, 1.0)


@dataclass(frozen=True)
class TrainingSettings:
    """How coefficients are trained.

    Attributes:
        steps: number of steps of Adam.
        block: number of steps between two proofs.
        rate: initial learning rate; it falls by a factor of ten until the last step.
        push: relative growth of the radius in training after it has been passed.
    """

    steps: int
    block: int
    rate: float
    push: float

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.rate * math.pow(0.1, step / self.steps)


@dataclass(frozen=True)
class InitialCoefficients(Phase):
    """The search over radii with the initial coefficients; for a score, a single bound over the region.

    Attributes:
        coefficients: the initial coefficients, float32.
        radii: number of radii that are tried.
    """

    coefficients: ParabolaCoefficients
    trial: RadiusTrial
    radii: int

    @staticmethod
    def begin(problem: Problem, low: Tensor, radii: int) -> "InitialCoefficients":
        coefficients = quadratic_of(problem).zero_coefficients(len(problem), torch.float32)
        return InitialCoefficients(coefficients, RadiusTrial.above(low, GROWTH, CLOSE), radii)

    def step(self, problem: Problem, low: Tensor, upper: Tensor | None) -> PhaseStep:
        """Bound the score over the region at one radius."""
        if not problem.bounds_radius:
            score = prove_score(problem, problem.region, self.coefficients)
            return PhaseStep(torch.fmax(low, score), self, finished=not bool(score.isnan().any()))
        family = problem.family
        region = family.at(torch.minimum(self.trial.next_radius(low), family.limit()))
        score = prove_score(problem, region, self.coefficients)
        radius = region.radius.double()
        low = torch.where(score > 0, torch.maximum(low, radius), low)
        trial = self.trial.add_score(radius, score)
        return PhaseStep(low, replace(self, trial=trial), finished=trial.is_done(low, self.radii))

    def raise_bounds(
        self, problem: Problem, lower: Tensor, upper: Tensor, better: Tensor
    ) -> "InitialCoefficients":
        return replace(self, trial=self.trial.forget_low_scores(better))


@dataclass(frozen=True)
class CoefficientTraining(Phase):
    """Blocks of Adam steps on the coefficients, every row at its own growing radius; each block ends with a
    proof.

    Attributes:
        coefficients: the current coefficients.
        best: the coefficients with which `reached` was passed.
        trying: (batch,), the radius in training; unused if the goal is a score.
        reached: (batch,), the largest radius (or score) passed in training.
        count: number of steps done.
        memory: state of Adam.
    """

    settings: TrainingSettings
    coefficients: ParabolaCoefficients
    best: ParabolaCoefficients
    trying: Tensor
    reached: Tensor
    count: int = 0
    memory: OptimiserState | None = None

    @staticmethod
    def begin(
        problem: Problem, low: Tensor, coefficients: ParabolaCoefficients, settings: TrainingSettings
    ) -> "CoefficientTraining":
        trying = TRAINING_START * low if problem.bounds_radius else torch.zeros_like(low)
        return CoefficientTraining(settings, coefficients, coefficients, trying, low)

    @property
    def is_over(self) -> bool:
        """Whether all steps are done."""
        return self.count >= self.settings.steps

    def step(self, problem: Problem, low: Tensor, upper: Tensor | None) -> PhaseStep:
        """Train one block, and prove what it reached."""
        trained = self.train_block(problem, low)
        proved = torch.fmax(low, trained._prove(problem, low))
        if problem.bounds_radius:
            further = torch.where(proved > low, TRAINING_START * proved, 0)
            trained = replace(trained, trying=torch.maximum(trained.trying, further))
        return PhaseStep(proved, trained, finished=trained.is_over)

    def raise_bounds(
        self, problem: Problem, lower: Tensor, upper: Tensor, better: Tensor
    ) -> "CoefficientTraining":
        if not problem.bounds_radius:
            return self
        further = torch.maximum(self.trying, TRAINING_START * lower)
        return replace(self, trying=torch.where(better, further, self.trying))

    def train_block(self, problem: Problem, low: Tensor) -> "CoefficientTraining":
        """Return the phase after `block` steps of Adam, fewer if the deadline passes; nothing is proved."""
        radial = problem.bounds_radius
        view = quadratic_of(problem)
        ascent = CoefficientAscent(list(self.coefficients.values()), memory=self.memory)
        coefficients = dict(zip(self.coefficients, ascent.values, strict=True))
        best = {key: value.clone() for key, value in self.best.items()}
        trying, reached = self.trying.clone(), self.reached.clone()
        parts = [
            _TrainedRows(view, problem.take(rows), rows) for rows in _batches(problem, view, training=True)
        ]
        step, last = self.count, min(self.settings.steps, self.count + self.settings.block)
        while step < last:
            slopes = [torch.zeros_like(value) for value in ascent.values]
            for part in parts:
                rows = part.rows
                mine = {key: v.detach()[:, rows].requires_grad_() for key, v in coefficients.items()}
                found = None
                if not time_limit.has_expired():
                    found = time_limit.in_time(partial(part.score_and_gradients, trying[rows], mine), None)
                if found is None:
                    last = step
                    break
                score, gradients = found
                better = score > 0 if radial else score > reached[rows]
                reached[rows] = torch.where(better, trying[rows] if radial else score, reached[rows])
                trying[rows] = torch.where(better, trying[rows] * (1 + self.settings.push), trying[rows])
                # Where models alone pass no radius yet, models and linear bounds together may: keep the
                # latest.
                kept = better | ~_has_passed(problem, reached[rows], low[rows])
                for slope, gradient, (key, value) in zip(slopes, gradients, mine.items(), strict=True):
                    slope[:, rows] = gradient
                    best[key][:, rows] = torch.where(kept[:, None], value.detach(), best[key][:, rows])
            else:
                ascent.step(slopes, self.settings.rate_at(step))
                step += 1
        trained = {key: value.detach() for key, value in coefficients.items()}
        return replace(
            self,
            coefficients=trained,
            best=best,
            trying=trying,
            reached=reached,
            count=step,
            memory=ascent.memory,
        )

    def _prove(self, problem: Problem, low: Tensor) -> Tensor:
        """Return (batch,): the largest of a few radii around the one reached that is certified in float64, or
        the score.
        """
        if not problem.bounds_radius:
            return prove_score(problem, problem.region, self.best)
        proved, passed = torch.full_like(low, -torch.inf), _has_passed(problem, self.reached, low)
        for share in PROOF_SHARES:
            if share and time_limit.has_expired():
                break
            around = self.reached * (1 + self.settings.push * (share - 0.05))
            # In rows in which training passed nothing: between the certified radius and the one in training.
            between = low + (self.trying - low) * (1 + 3 * share) / 4
            region = problem.family.at(torch.where(passed, around, between))
            score = prove_score(problem, region, self.best)
            proved = torch.where(score > 0, torch.maximum(proved, region.radius.double()), proved)
        return proved


def prove_score(problem: Problem, region: Region, coefficients: ParabolaCoefficients) -> Tensor:
    """Lower-bound the score over the region with these coefficients, (batch,) float64; NaN if there was no
    time.
    """
    assert isinstance(problem.property, LinearProperty)
    view = quadratic_of(problem)
    score = torch.full((len(problem),), torch.nan, dtype=torch.float64, device=view.graph.device)
    matrix, offset = problem.property.rows(view.graph.output.size)
    for rows in _batches(problem, view, training=False):
        if time_limit.has_expired():
            break
        mine = {key: value[:, rows].double() for key, value in coefficients.items()}
        part = batch.take(region, rows)
        bounds = time_limit.in_time(
            partial(view.least_with_crown, part, matrix[rows], offset[rows], mine), None
        )
        if bounds is None:
            break
        lowest = bounds.amin(1)
        # A bound that overflows proves nothing.
        score[rows] = torch.where(lowest.isfinite(), lowest, -torch.inf)
    return score


def _has_passed(problem: Problem, reached: Tensor, low: Tensor) -> Tensor:
    """Return (rows,) bool: whether training has passed more than is certified; always true for scores."""
    return reached > low if problem.bounds_radius else torch.ones_like(low, dtype=torch.bool)


class _TrainedRows:
    """Rows that are trained together, with their intermediate bounds."""

    def __init__(self, view: Quadratic, problem: Problem, rows: Tensor) -> None:
        assert isinstance(problem.property, LinearProperty)
        self.view, self.problem, self.rows = view, problem, rows
        self.matrix, self.offset = problem.property.rows(view.graph.output.size)
        self.boxes: Boxes | None = None
        # (rows,), the radii of the region for which the intermediate bounds were computed
        self.reach = torch.zeros(len(problem), dtype=torch.float64, device=rows.device)

    def score_and_gradients(
        self, radius: Tensor, coefficients: ParabolaCoefficients
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the lower bounds of the score (rows,), in the arithmetic of the coefficients, and the ascent
        directions.
        """
        radial = self.problem.bounds_radius
        if self.boxes is None or (radial and bool((radius > self.reach).any())):
            # Intermediate bounds over a larger region hold in a smaller one.
            self.reach = radius * INTERMEDIATE_BOUNDS_AHEAD
            initial = self.view.zero_coefficients(len(self.rows), torch.float64)
            region = self.problem.family.at(self.reach) if radial else self.problem.region
            self.boxes = self.view.boxes(region, initial)
        region = self.problem.family.at(radius) if radial else self.problem.region
        with torch.enable_grad():
            margins = self.view.least(region, self.matrix, self.offset, coefficients, self.boxes)
            # The worst row of the specification, and all rows that are not yet proved.
            objective = margins.amin(1).sum() + margins.clamp_max(0).sum()
        return margins.detach().amin(1).double(), torch.autograd.grad(objective, list(coefficients.values()))


def train_coefficients(
    problem: Problem, radius: Tensor, settings: TrainingSettings
) -> Iterator[ParabolaCoefficients]:
    """Yield coefficients for the models at these radii (rows,), or over the region, as training improves
    them, in float64.

    These are the initial coefficients, the first that pass at all rows, and those after every block of steps.
    Only the initial ones are yielded if training takes too much memory or time, and none after the deadline.
    """
    view = quadratic_of(problem)
    part = _TrainedRows(view, problem, torch.arange(len(problem), device=radius.device))
    initial, passed = view.zero_coefficients(len(problem), torch.float32), False
    last = 0 if why_untrainable(problem) else settings.steps
    ascent = CoefficientAscent(list(initial.values()))
    for step in range(last + 1):
        if time_limit.has_expired():
            return
        values = (value.detach().clone().requires_grad_() for value in ascent.values)
        coefficients = dict(zip(initial, values, strict=True))
        if step % settings.block == 0:
            yield {key: value.detach().double() for key, value in coefficients.items()}
        if step == last:
            return
        score, gradients = part.score_and_gradients(radius, coefficients)
        if not passed and bool((score > 0).all()) and step % settings.block:
            yield {key: value.detach().double() for key, value in coefficients.items()}
        passed = passed or bool((score > 0).all())
        ascent.step(gradients, settings.rate_at(step))


def no_models(problem: Problem) -> str | None:
    """Return why quadratic models are not used; None if they are.

    With untrained coefficients they gain nothing over trained linear bounds.
    """
    view = quadratic_of(problem)
    lack = why_untrainable(problem) if view.obstacle is None and relu_like_functions(view.graph) else ""
    return f"their training {lack}" if lack else view.obstacle


def models_lack(problem: Problem) -> str:
    """Return what quadratic models would need that is not available; empty if they are used or cannot help
    such a network.
    """
    view = quadratic_of(problem)
    if view.obstacle is not None:
        return view.missing_requirement
    lack = why_untrainable(problem)
    return f"their training {lack}" if relu_like_functions(view.graph) and lack else ""


def why_untrainable(problem: Problem) -> str:
    """Return what training takes of memory or time, if that is more than is available; else empty."""
    view, device = quadratic_of(problem), problem.region.centre.device
    needed, available = view.bytes(training=True), free_bytes(device)
    if needed > available:
        return f"would take {format_bytes(needed)} where {format_bytes(available)} may be used"
    if device.type == "cpu" and view.numbers > MAX_CPU_NUMBERS:
        seconds = view.numbers / CPU_NUMBERS_PER_SECOND
        return f"would take about {seconds:.0f} s for a step and an input, on a GPU less"
    return ""


def _batches(problem: Problem, view: Quadratic, training: bool) -> Iterator[Tensor]:
    """Yield rows that fit into memory together; the same inputs change in all of them, since models hold only
    these.
    """
    lower, upper = problem.region_with_extent().enclosing_box()
    kinds = (upper > lower).flatten(1).unique(dim=0, return_inverse=True)[1]
    for kind in kinds.unique():
        yield from (kinds == kind).nonzero().flatten().split(boxes_at_once(problem, view, training))


def boxes_at_once(problem: Problem, view: Quadratic, training: bool) -> int:
    """Return the number of inputs that fit into memory; training keeps all models until the gradient is
    computed.
    """
    return max(1, free_bytes(problem.region.centre.device) // view.bytes(training))


_views: "WeakKeyDictionary[Graph, Quadratic]" = WeakKeyDictionary()


def quadratic_of(problem: Problem) -> Quadratic:
    """Return the quadratic view of the problem's graph, created once for each graph."""
    graph = graph_of(problem)
    if graph not in _views:
        _views[graph] = Quadratic(graph)
    return _views[graph]
