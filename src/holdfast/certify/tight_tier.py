"""Tier `tight`: five proof techniques, one after the other, each starting from what the previous ones
certified.

    1. linear bounds in closed form (`certify`, tier `fast`),
    2. trained linear bounds, if the network has ReLU-like activations (`trained_linear_bounds`),
    3. the joint relaxation of unstable ReLU-like neurons, if it applies (`joint_relaxation`),
    4. quadratic models with their initial coefficients, if the network has such models
        (`quadratic_training`),
    5. quadratic models with trained coefficients.

Each technique gives a lower bound of the score over a perturbation set, and a radius is certified if that
bound is positive. The certified bound is the best of all of them, so the order affects the running time only.
Training works in float32, since any coefficients are sound; what it reaches is then proved in float64 with
every rounding error.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding import joint_relu
from holdfast.bounding.alpha_beta_crown import relu_like_functions, relu_preactivations
from holdfast.bounding.bounder import TrainedBounder
from holdfast.bounding.drift_parameters import reformulate_in_offsets
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS, graph_of
from holdfast.bounding.pass_cost import least_pass_seconds
from holdfast.bounding.quadratic_models import ParabolaCoefficients
from holdfast.certify.certify import Certify, RadiusSearch
from holdfast.certify.joint_relaxation import JointRelaxation
from holdfast.certify.phase import Phase, PhaseStep
from holdfast.certify.quadratic_training import (
    CoefficientTraining,
    InitialCoefficients,
    TrainingSettings,
    models_lack,
    no_models,
    train_coefficients,
    why_untrainable,
)
from holdfast.certify.trained_linear_bounds import TrainedLinearBounds
from holdfast.memory_budget import format_bytes, free_bytes
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.result import Traits

# A phase gains something if it raises a bound by more than this share of it; smaller gains are rounding
# (chosen by hand).
RELATIVE_GAIN = 1e-6
TIME_ENDED_EARLY = (
    "the time ended during the search by linear bounds in closed form; the techniques of tier tight that prove "
    "more were not begun"
)


@dataclass(frozen=True)
class ClosedFormBounds(Phase):
    """The first phase: the search of `Certify`, with linear bounds in closed form."""

    search: RadiusSearch

    def step(self, problem: Problem, low: Tensor, upper: Tensor | None) -> PhaseStep:
        search, claims = Certify().step(problem, self.search)
        if claims.proved is None:  # The deadline passed before anything was proved.
            return PhaseStep(low, self, finished=False, claims=claims)
        low = torch.fmax(low, claims.proved)
        if search is None:
            return PhaseStep(low, self, finished=True, claims=claims)
        return PhaseStep(low, ClosedFormBounds(search), finished=False, claims=claims)

    def raise_bounds(
        self, problem: Problem, lower: Tensor, upper: Tensor, better: Tensor
    ) -> "ClosedFormBounds":
        return ClosedFormBounds(Certify().update_bounds(problem, self.search, lower, upper))


@dataclass(frozen=True)
class TightState:
    """The state of tier `tight`.

    Attributes:
        low: (batch,), certified bounds: a radius or a score.
        phase: the current phase; None if all applicable phases are finished. The training of coefficients
            stays
            here after its last step, since tier `split` uses its coefficients.
        upper: (batch,), bounds of counterexamples, if known.
    """

    low: Tensor
    phase: Phase | None
    upper: Tensor | None = None

    @property
    def coefficients(self) -> ParabolaCoefficients:
        """The best coefficients of quadratic models; empty before such models are used."""
        if isinstance(self.phase, CoefficientTraining):
            return self.phase.best
        return self.phase.coefficients if isinstance(self.phase, InitialCoefficients) else {}


@dataclass(frozen=True)
class Tighten(Method[TightState]):
    """Certify by the phases of tier `tight`, at radii that grow as the bounds improve.

    Attributes:
        steps: steps of Adam on the coefficients of quadratic models.
        block: steps between two proofs.
        rate: initial learning rate.
        push: relative growth of the radius in training after it has been passed.
        trials: radii for trained linear bounds.
        first: radii for quadratic models before training, whose steps each take as long as a radius.
        radii: radii for the joint relaxation.
        few: networks with at most this many pre-activations skip the joint relaxation, since splitting signs
            is faster.
    """

    finds: ClassVar[str] = "larger certified lower bounds"
    help: ClassVar[str] = (
        "linear bounds, then trained slopes (alpha-CROWN), joint ReLU relaxation and trained second-order "
        "models"
    )
    needs_graph: ClassVar[bool] = True
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    steps: int = 40
    block: int = 10
    rate: float = 0.02
    push: float = 0.01
    trials: int = 4
    first: int = 6
    radii: int = 6
    few: int = 0

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.property, LinearProperty):
            return "proofs by training need a property in linear rows (Robustness, Targeted, Linear)"
        return Certify().obstacle(problem)

    def view(self, problem: Problem) -> Problem:
        return reformulate_in_offsets(problem)

    @property
    def training(self) -> TrainingSettings:
        return TrainingSettings(self.steps, self.block, self.rate, self.push)

    def least_seconds(self, problem: Problem) -> float:
        return least_pass_seconds(problem)

    def start(self, problem: Problem, seed: int) -> TightState:
        none = torch.zeros(len(problem), dtype=torch.float64, device=problem.region.centre.device)
        low = none if problem.bounds_radius else none - torch.inf
        return TightState(low, ClosedFormBounds(Certify().start(problem, seed)))

    def update_bounds(self, problem: Problem, state: TightState, lower: Tensor, upper: Tensor) -> TightState:
        """Continue beyond the bounds that other methods certified."""
        state, better = replace(state, upper=upper), lower.isfinite() & (lower > state.low)
        if not bool(better.any()):
            return state
        phase = state.phase and state.phase.raise_bounds(problem, lower, upper, better)
        return replace(state, low=torch.where(better, lower, state.low), phase=phase)

    def step(self, problem: Problem, state: TightState) -> tuple[TightState | None, Claims]:
        state, claims = self.advance(problem, state)
        return None if self.done(problem, state) else state, claims

    def done(self, problem: Problem, state: TightState) -> bool:
        if isinstance(state.phase, CoefficientTraining):
            return state.phase.is_over or bool(why_untrainable(problem))
        return state.phase is None

    def advance(self, problem: Problem, state: TightState) -> tuple[TightState, Claims]:
        """Run one step of the current phase, and begin the next phase if it is finished.

        The claims name the phases that were left out for lack of memory, size or time.
        """
        phase = state.phase
        assert phase is not None
        found = phase.step(problem, state.low, state.upper)
        after = replace(state, low=found.low, phase=found.phase)
        notes = list(_crowding_notes(problem, phase, found.phase))
        if found.finished:
            notes += self._omissions(problem, phase)
            after = self.begin_next_phase(problem, after)
        elif isinstance(phase, ClosedFormBounds) and time_limit.has_expired():
            notes.append(self.explain_interruption(after))
        claims = found.claims or Claims(proved=found.low, assumptions=ASSUMPTIONS, checks=CHECKS)
        obstacle = self._obstacle(problem, state, after, finished=found.finished)
        return after, replace(claims, obstacle=obstacle, fallback="; ".join(notes))

    def explain_interruption(self, state: TightState) -> str:
        phase = state.phase
        if isinstance(phase, ClosedFormBounds):
            nothing = bool(((state.low == 0) | (state.low == -torch.inf)).all())
            return Certify().explain_interruption(phase.search) if nothing else TIME_ENDED_EARLY
        if isinstance(phase, TrainedLinearBounds | InitialCoefficients) and phase.trial.round == 0:
            kind = (
                "trained linear bounds" if isinstance(phase, TrainedLinearBounds) else "second-order models"
            )
            return f"the time ended before the first bounds by {kind} were complete; what was proved before is kept"
        return ""

    def begin_next_phase(self, problem: Problem, state: TightState) -> TightState:
        """Return the state at the beginning of the phase that follows the current one, whether or not that is
        finished.
        """
        phase, low = state.phase, state.low
        if phase is None or isinstance(phase, CoefficientTraining):
            return state
        graph = graph_of(problem)
        following: Phase | None = None
        if isinstance(phase, InitialCoefficients):
            following = CoefficientTraining.begin(problem, low, phase.coefficients, self.training)
        elif isinstance(phase, ClosedFormBounds) and self._why_no_gain(problem):
            following = None
        elif isinstance(phase, ClosedFormBounds) and relu_like_functions(graph):
            following = TrainedLinearBounds.begin(low, self.trials)
        elif (
            isinstance(phase, TrainedLinearBounds)
            and self._wants_joint(problem)
            and joint_relu.obstacle(graph, problem.region_with_extent()) is None
        ):
            following = JointRelaxation.begin(low, phase.start, self.radii)
        elif no_models(problem) is None:
            following = InitialCoefficients.begin(problem, low, self.first)
        return replace(state, phase=following)

    def _wants_joint(self, problem: Problem) -> bool:
        return sum(node.size for node in relu_preactivations(graph_of(problem))) > self.few

    def _why_no_gain(self, problem: Problem) -> str:
        """Return why no phase can gain anything over linear bounds in closed form; empty if one may."""
        if problem.region.counted:
            return "tier tight proves no more than tier fast of counts of changes"
        obstacle = None if relu_like_functions(graph_of(problem)) else no_models(problem)
        return "" if obstacle is None else f"tier tight proves no more than tier fast here: {obstacle}"

    def _obstacle(self, problem: Problem, before: TightState, after: TightState, *, finished: bool) -> str:
        """Return that the tier gained nothing, if it ends with this step (or its time does); else empty."""
        phase = before.phase
        if isinstance(phase, ClosedFormBounds):
            return self._why_no_gain(problem) if finished and not models_lack(problem) else ""
        if isinstance(phase, TrainedLinearBounds):
            gained = _has_gained(before.low, after.low) or not bool(phase.trial.low_score.isnan().all())
            same_phase = isinstance(after.phase, TrainedLinearBounds)
            continues = not time_limit.has_expired() if same_phase else after.phase is not None
            if gained or continues:
                return ""
            late = " in the time there was" if time_limit.has_expired() else ""
            return f"trained linear bounds prove no more than tier fast{late}"
        if (
            isinstance(phase, JointRelaxation)
            and after.phase is None
            and not _has_gained(phase.start, after.low)
        ):
            return "trained linear bounds and the joint ReLU relaxation prove no more than tier fast"
        return ""

    def _omissions(self, problem: Problem, phase: Phase) -> Iterator[str]:
        """Yield the phases after `phase` that are limited or left out, each with the reason and what is used
        instead.

        Phases that could not help such a network are not named.
        """
        if isinstance(phase, CoefficientTraining):
            return
        graph = graph_of(problem)
        if isinstance(phase, InitialCoefficients):
            lack = why_untrainable(problem)
            if self.steps and lack:
                yield (
                    f"tier tight without training, which {lack}; second-order models with their first "
                    "coefficients were "
                    "used instead"
                )
            return
        relu_like = bool(relu_like_functions(graph))
        instead = (
            f"{'trained linear bounds' if relu_like else 'linear bounds in closed form'} were used instead"
        )
        if isinstance(phase, ClosedFormBounds) and relu_like and not self._why_no_gain(problem):
            needed = TrainedBounder(graph).bytes_of_a_row()
            available = free_bytes(problem.region.centre.device)
            if needed > available:
                yield (
                    f"trained linear bounds take {format_bytes(needed)} for a single row, and "
                    f"{format_bytes(available)} may "
                    "be used: they were trained row by row, beyond that limit"
                )
            return
        if isinstance(phase, TrainedLinearBounds) and self._wants_joint(problem):
            obstacle = joint_relu.obstacle(graph, problem.region_with_extent())
            if obstacle is None:
                return
            if obstacle == joint_relu.TOO_LARGE:
                yield f"the joint ReLU relaxation was left out ({obstacle}); {instead}"
        lack = models_lack(problem)
        if lack and not problem.region.counted:
            yield f"second-order models were left out ({lack}); {instead}"


def _crowding_notes(problem: Problem, before: Phase, after: Phase) -> Iterator[str]:
    """Yield a note when the joint relaxation has too many variables for the first time."""
    if not isinstance(before, JointRelaxation) or not isinstance(after, JointRelaxation):
        return
    if after.crowded and not before.crowded:
        most = joint_relu.most_variables(graph_of(problem))
        yield (
            f"the joint ReLU relaxation was left out at some radii (more variables than {most}); trained "
            "linear bounds were used instead"
        )


def _has_gained(before: Tensor, after: Tensor) -> bool:
    """Whether a bound has risen by more than rounding."""
    return bool((after > before + RELATIVE_GAIN * before.abs()).any())


def coefficients(problem: Problem, radius: Tensor, steps: int) -> Iterator[ParabolaCoefficients]:
    """Yield the coefficients of quadratic models as `steps` steps of training improve them; see
    `train_coefficients`.
    """
    return train_coefficients(problem, radius, Tighten(steps=steps).training)
