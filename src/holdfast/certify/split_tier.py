"""Tier `split`: branch and bound. Where one bound does not certify the whole region, the region is split into
subproblems.

Statement. If subproblems P_1, ..., P_k cover the perturbation set X, then

    min over x in X of s(f(x)) >= min over i of lower_bound(s, P_i).

A radius (or a score) is certified once the bound of every subproblem is positive (or above the score). The
subproblems are halves of inputs, signs of activations, or ranges of pre-activations, as `choose_branching` selects.

The search makes attempts at a target slightly above the certified bound. A successful attempt makes the next
step larger. An attempt that would take too many subproblems, or more time than there is, is given up and
makes the step smaller. If time is short, training before the first attempt gets a share of it, and continues
when no attempt is worthwhile any more.

References: S. Wang et al., Beta-CROWN, 2021 (splits by the sign of ReLUs); Z. Shi et al., Neural network
verification with branch-and-bound for general nonlinearities (GenBaB), 2024 (splits of ranges).

Assumption: those of the bounds that are used over subproblems (`crown`, `multipliers`, `smooth_split`).
"""

import math
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import relu_preactivations
from holdfast.bounding.bounder import ClosedForm
from holdfast.bounding.branching.branching_rule import choose_branching
from holdfast.bounding.branching.input_split import BoxSubproblems, Halving, InputSplit
from holdfast.bounding.branching.nonlinear_split import NonlinearSplit, RangeSubproblems
from holdfast.bounding.branching.relu_split import ActivationSplit, SignSubproblems
from holdfast.bounding.branching.subproblem_queue import (
    MAX_QUEUE_VALUES,
    BoundedSubproblems,
    Branching,
    CandidatePoints,
    PolytopeQuestion,
    all_open,
)
from holdfast.bounding.drift_parameters import reformulate_in_offsets
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS, graph_of, rows_of
from holdfast.bounding.pass_cost import least_pass_seconds
from holdfast.bounding.quadratic_models import ParabolaCoefficients
from holdfast.certify.quadratic_training import CoefficientTraining, boxes_at_once, quadratic_of
from holdfast.certify.tight_tier import Tighten, TightState
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import Avoid
from holdfast.region import Box, Region
from holdfast.result import Traits
from holdfast.rounding import add_rounding_down

BOXES_AT_ONCE = 256  # Largest number of boxes bounded in one batch (chosen by hand).
# Networks with at most this many pre-activations get new intermediate bounds in every subproblem (chosen by
# hand).
REFINED_PREACTIVATIONS = 256
# Number of pre-activations whose intermediate bounds are trained before signs are split (chosen by hand).
TRAINED_INTERMEDIATE_BOUNDS = 256
# Factors of the step after an attempt that succeeds or fails (chosen by hand).
STEP_GROWTH, STEP_REDUCTION = 2.0, 0.5
# The first step: a share of the certified radius, or of the gap between the certified score and the upper
# bound (chosen by hand).
FIRST_STEP = {"radius": 0.04, "worst": 0.5}
LARGEST_STEP = 0.5  # The largest step, in the same units (chosen by hand).
TRAINING_TIME_SHARE = 0.5  # Share of the time for training before the first attempt (chosen by hand).


@dataclass(frozen=True, eq=False)
class InputBoxParts(BoxSubproblems):
    """Boxes of inputs. Their bounds are computed in float32: they order the queue and prove nothing."""

    # (n,): number of boxes expected to come from this one if halving keeps its predicted gain
    ahead: Tensor = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class SplitState:
    """The state of the search, row by row, (batch,) each: `low` is certified, `aim` is attempted; both are a
    radius or a score.
    """

    training: TightState
    low: Tensor
    frontier: InputBoxParts | SignSubproblems | RangeSubproblems | None = None  # None while the training runs
    aim: Tensor = field(kw_only=True)
    push: Tensor = field(kw_only=True)  # size of the step beyond `low`
    bounded: Tensor = field(kw_only=True)  # subproblems bounded in this attempt
    upper: Tensor = field(kw_only=True)  # best upper bound of any method
    gap: Tensor = field(kw_only=True)  # gap between the bounds before the first attempt
    began: float = field(kw_only=True)  # start of the search by the monotonic clock, in seconds
    attempted: bool = False  # whether an attempt followed training
    pace: float = 0.0  # seconds for a subproblem in the last step
    # (batch, inputs + pre-activations) of `Ranges`: predicted gain of splitting the whole region, at another
    # radius
    gain: Tensor | None = None


@dataclass(frozen=True)
class Split(Method[SplitState]):
    """Do what `Tighten` does first, then split the region into subproblems where the predicted gain is
    largest.

    Attributes:
        boxes: subproblems of an attempt above which it is given up.
        steps: training steps before the first attempt.
        finest: smallest step, and smallest gap relative to the first one, that is still attempted.
    """

    finds: ClassVar[str] = "still larger certified lower bounds"
    help: ClassVar[str] = (
        "branch and bound over halves of inputs, signs of ReLUs or ranges of other pre-activations"
    )
    needs_graph: ClassVar[bool] = True
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    boxes: int = 1024
    steps: int = 80  # training steps before the first attempt
    finest: float = 0.005

    @property
    def _tighten(self) -> Tighten:
        return Tighten(steps=self.steps, few=REFINED_PREACTIVATIONS)

    def obstacle(self, problem: Problem) -> str | None:
        return self._tighten.obstacle(problem)

    def view(self, problem: Problem) -> Problem:
        return reformulate_in_offsets(problem)

    def least_seconds(self, problem: Problem) -> float:
        return least_pass_seconds(problem)

    def start(self, problem: Problem, seed: int) -> SplitState:
        training = self._tighten.start(problem, seed)
        none = torch.zeros_like(training.low)
        push, upper = torch.full_like(none, FIRST_STEP[problem.goal]), torch.full_like(none, torch.inf)
        return SplitState(
            training,
            training.low,
            aim=none,
            push=push,
            bounded=none,
            upper=upper,
            gap=none,
            began=time.monotonic(),
        )

    def update_bounds(self, problem: Problem, state: SplitState, lower: Tensor, upper: Tensor) -> SplitState:
        """Replace attempts at values that are certified already, or that a counterexample excludes."""
        training, better = (
            self._tighten.update_bounds(problem, state.training, lower, upper),
            lower.isfinite() & (lower > state.low),
        )
        state = replace(state, training=training, low=torch.where(better, lower, state.low), upper=upper)
        if state.frontier is None:
            return state
        waits = torch.zeros_like(better).index_fill(0, state.frontier.task, True)
        return self._attempting(problem, state, better & (lower >= state.aim) | waits & (upper <= state.aim))

    def step(self, problem: Problem, state: SplitState) -> tuple[SplitState | None, Claims]:
        if state.frontier is None:
            return self._step_training(problem, state)
        cut, question = (
            _splitting_rule(problem, state.training.coefficients),
            self._question(problem, state.aim),
        )
        assert not isinstance(cut, str)
        before = state.frontier.task.bincount(minlength=len(problem))
        began = time.monotonic()
        frontier, _ = cut.advance(question, state.frontier)
        state = replace(
            state, frontier=frontier, pace=(time.monotonic() - began) / max(1, sum(frontier.turn))
        )
        if isinstance(frontier, RangeSubproblems):
            gain = (
                torch.full((len(problem), frontier.whole.shape[1]), torch.nan).to(frontier.whole)
                if state.gain is None
                else state.gain
            )
            state = replace(state, gain=gain.index_copy(0, frontier.task, frontier.whole))
        state = self._judge_attempts(problem, state, before)
        claims = Claims(proved=state.low, assumptions=ASSUMPTIONS, checks=CHECKS)
        if state.frontier:
            return state, claims
        if self._tighten.done(problem, state.training):
            return None, claims
        # Training continues from what is certified, and attempts begin again.
        none = torch.zeros_like(state.low)
        training = self._tighten.update_bounds(problem, state.training, state.low, state.upper)
        return replace(
            state, training=training, frontier=None, push=none + FIRST_STEP[problem.goal], bounded=none
        ), claims

    def explain_interruption(self, state: SplitState) -> str:
        return "" if state.attempted else self._tighten.explain_interruption(state.training)

    def _step_training(self, problem: Problem, state: SplitState) -> tuple[SplitState | None, Claims]:
        """Run `Tighten` for its share of the time, and begin the first attempt afterwards."""
        shared = not state.attempted and isinstance(
            _splitting_rule(problem, state.training.coefficients), NonlinearSplit
        )
        share = (
            state.began + TRAINING_TIME_SHARE * (time_limit.deadline() - state.began) if shared else math.inf
        )
        # Once its share is spent, the preparation of attempts has all the time that remains.
        with time_limit.within(share if time.monotonic() < share else math.inf):
            training, claims = time_limit.in_time(
                partial(self._tighten.advance, problem, state.training), (state.training, Claims())
            )
        # Splitting follows, so an obstacle of the training is no obstacle of the tier.
        claims = replace(claims, obstacle="")
        state = replace(state, training=training, low=training.low)
        late = (
            time.monotonic() >= share
            and not time_limit.has_expired()
            and isinstance(training.phase, CoefficientTraining)
        )
        if not self._tighten.done(problem, training) and not late:
            return state, claims
        cut = _splitting_rule(problem, training.coefficients)
        if isinstance(cut, str):
            return None, replace(claims, obstacle=cut)
        state = replace(state, gap=state.upper - state.low, attempted=True)
        state = self._attempting(problem, state, torch.ones_like(state.low, dtype=torch.bool))
        if not state.frontier and not self._tighten.done(problem, training):
            return replace(state, frontier=None), claims
        return state if state.frontier else None, claims

    def _judge_attempts(self, problem: Problem, state: SplitState, before: Tensor) -> SplitState:
        """Decide the attempts by their remaining subproblems.

        Args:
            before: (batch,), the number of subproblems queued before the step.
        """
        frontier = state.frontier
        assert frontier is not None
        waiting = frontier.task.bincount(minlength=len(before))
        turn = torch.tensor(frontier.turn, dtype=torch.float64, device=before.device)
        bounded = (
            state.bounded
            if time_limit.has_expired()
            else state.bounded + torch.nn.functional.pad(turn, (0, len(before) - len(turn)))
        )
        ahead = torch.zeros_like(state.low).index_add(0, frontier.task, frontier.ahead)
        stuck = torch.zeros_like(before, dtype=torch.bool)
        stuck[list(frontier.given_up)] = True
        proved = (before > 0) & (waiting == 0) & ~stuck
        left = torch.maximum(ahead, waiting)
        lost = stuck | (waiting > 0) & ((bounded + left > self.boxes) | (left > self._affordable(state)))
        push = torch.where(
            proved,
            (STEP_GROWTH * state.push).clamp_max(LARGEST_STEP),
            torch.where(lost, STEP_REDUCTION * state.push, state.push),
        )
        low = torch.where(proved, state.aim, state.low)
        if not problem.bounds_radius and not isinstance(
            frontier, InputBoxParts
        ):  # Bounds of Halves are no proofs.
            least = torch.full_like(low, torch.inf).scatter_reduce(0, frontier.task, frontier.bound, "amin")
            # Settled subproblems lie above the aim; nothing more is known of them.
            least = least.clamp_max(0)
            met = add_rounding_down(state.aim, least)
            low = torch.where((waiting > 0) & ~stuck & met.isfinite(), torch.maximum(low, met), low)
        return self._attempting(problem, replace(state, low=low, push=push, bounded=bounded), proved | lost)

    def _affordable(self, state: SplitState) -> float:
        """Return the number of subproblems of each attempt that the remaining time allows; infinite if no
        other attempt could follow.
        """
        if not isinstance(state.frontier, RangeSubproblems) or time_limit.has_expired():
            return math.inf
        return (
            (time_limit.deadline() - time.monotonic())
            / max(state.pace, 1e-9)
            / max(1, len(state.frontier.task.unique()))
        )

    def _attempting(self, problem: Problem, state: SplitState, again: Tensor) -> SplitState:
        """Begin the next worthwhile attempt of the rows `again` (batch,) bool; their old subproblems are
        dropped.
        """
        cut = _splitting_rule(problem, state.training.coefficients)
        assert not isinstance(cut, str)
        aim, worth = self._aim(problem, state)
        aim, new = torch.where(again, aim, state.aim), (again & worth).nonzero().flatten()
        parts = [] if state.frontier is None else [batch.take(state.frontier, ~again[state.frontier.task])]
        if len(new):
            question = self._question(problem, aim)
            begun = replace(
                cut.start(question.graph, batch.take(question.region, new), batch.take(question.rules, new)),
                task=new,
            )
            if state.gain is not None:
                begun = replace(begun, gain=state.gain[new], whole=state.gain[new])
            parts.append(begun)
        elif not parts:
            return state
        frontier = replace(batch.concatenate(parts), given_up=frozenset())
        return replace(state, frontier=frontier, aim=aim, bounded=torch.where(again, 0, state.bounded))

    def _aim(self, problem: Problem, state: SplitState) -> tuple[Tensor, Tensor]:
        """Return the next target of each row, and whether it is worth an attempt."""
        low, upper, worth = state.low, state.upper, state.push >= self.finest
        if not problem.bounds_radius:
            return low + state.push * (upper - low), worth & low.isfinite() & upper.isfinite() & (
                upper - low > self.finest * state.gap
            )
        family = problem.family
        further = torch.minimum(low * (1 + state.push), family.limit())
        further = torch.where(upper.isfinite(), torch.minimum(further, low / 2 + upper / 2), further)
        # The target, rounded to the arithmetic of the family.
        aim = family.at(torch.where(low.isfinite(), further, 0)).radius.double()
        return aim, worth & (low > 0) & (low < family.limit()) & (aim > low * (1 + self.finest / 2)) & (
            low < upper
        )

    def _question(self, problem: Problem, aim: Tensor) -> PolytopeQuestion:
        """Return the query of branch and bound: is any point of the region below the target?"""
        graph = graph_of(problem)
        matrix, offset = rows_of(problem, graph)
        if not problem.bounds_radius:
            offset = add_rounding_down(offset, -aim[:, None])
            return PolytopeQuestion(graph, problem.region, Avoid.failing(matrix, torch.nan_to_num(offset)))
        return PolytopeQuestion(graph, problem.family.at(aim), Avoid.failing(matrix, offset))


def _splitting_rule(problem: Problem, coefficients: ParabolaCoefficients) -> Branching[Any] | str:
    """Return the splitting rule, or why nothing can be split."""
    region, graph = problem.region, graph_of(problem)
    if problem.bounds_radius:
        if not region.has_slope:
            return f"nothing is split, since the radius of {type(region).__name__} counts changes"
        region = problem.family.at(1.0)  # At radius 0, where searches begin, nothing can change.
    found = choose_branching(graph, region, models=bool(coefficients))
    if isinstance(found, InputSplit):
        return _InputBoxes(problem, coefficients)
    if isinstance(found, NonlinearSplit):
        return replace(found, view=quadratic_of(problem), coefficients=coefficients)
    assert isinstance(found, ActivationSplit)
    # An attempt at a radius is one of many, so it does not spend time on refining its own intermediate
    # bounds.
    return replace(
        found,
        refine=sum(node.size for node in relu_preactivations(graph)) <= REFINED_PREACTIVATIONS,
        ends=TRAINED_INTERMEDIATE_BOUNDS,
        passes=0,
    )


@dataclass(frozen=True, eq=False)
class _InputBoxes(Halving[PolytopeQuestion, InputBoxParts], Branching[InputBoxParts]):
    """Bounds of boxes by trained quadratic models, or by linear bounds where there are no quadratic
    models.
    """

    problem: Problem
    coefficients: ParabolaCoefficients  # coefficients of the quadratic models; empty if there are none

    def start(self, graph: Graph, region: Region, rules: Avoid) -> InputBoxParts:
        lower, upper = region.enclosing_box()
        row, none = torch.arange(len(lower), device=lower.device), torch.zeros_like(rules.offset[:, 0, 0])
        return InputBoxParts(row, all_open(rules), none - torch.inf, lower=lower, upper=upper, ahead=none)

    def at_once(self, question: PolytopeQuestion) -> int:
        return min(BOXES_AT_ONCE, boxes_at_once(self.problem, quadratic_of(self.problem), training=True))

    def most(self, graph: Graph) -> int:
        return MAX_QUEUE_VALUES // graph.entry.size

    def bound(self, question: PolytopeQuestion, parts: InputBoxParts) -> BoundedSubproblems[InputBoxParts]:
        proved, least, gain = (
            torch.zeros_like(parts.open[:, 0]),
            parts.bound.clone(),
            torch.zeros_like(parts.lower),
        )
        ahead = parts.ahead.clone()
        # Quadratic models hold only the inputs that can change, so boxes with the same ones share a batch.
        kinds = (parts.upper > parts.lower).flatten(1).unique(dim=0, return_inverse=True)[1]
        for kind in kinds.unique():
            if not time_limit.has_expired():
                some = (kinds == kind).nonzero().flatten()
                proved[some], found, slopes = self._bound_boxes(question, batch.take(parts, some))
                least[some], gain[some] = (
                    torch.nan_to_num(found, -torch.inf),
                    torch.nan_to_num(slopes, 0.0, 0.0, 0.0),
                )
                levels = -1.5 * least[some] / gain[some].flatten(1).amax(1).clamp_min(1e-300)
                ahead[some] = 2 ** levels.clamp(0, 60) / 2  # half of them for each half
        lower, upper = parts.lower[~proved], parts.upper[~proved]
        points = CandidatePoints(lower / 2 + upper / 2, lower, upper, parts.task[~proved])
        open_ = (~proved[:, None]).expand(parts.open.shape)
        return BoundedSubproblems(
            replace(parts, open=open_, bound=least, ahead=ahead), gain.flatten(1), points
        )

    def _bound_boxes(self, question: PolytopeQuestion, parts: InputBoxParts) -> tuple[Tensor, Tensor, Tensor]:
        """Return which boxes are proved (n,), their bounds (n,), and the gain of halving along each input (n,
        *shape).
        """
        matrix, offset = (part[parts.task, :, 0] for part in (question.rules.matrix, question.rules.offset))
        if not self.coefficients:
            return _bound_by_linear_bounds(question.graph, matrix, offset, parts)
        return _bound_by_quadratic_models(
            self.problem,
            {key: value[:, parts.task] for key, value in self.coefficients.items()},
            matrix,
            offset,
            parts,
        )


def _bound_by_quadratic_models(
    problem: Problem, coefficients: ParabolaCoefficients, matrix: Tensor, offset: Tensor, parts: InputBoxParts
) -> tuple[Tensor, Tensor, Tensor]:
    view = quadratic_of(problem)
    low, high = parts.lower.clone().requires_grad_(), parts.upper.clone().requires_grad_()
    with torch.enable_grad():
        first = view.least(Box.between(low, high), matrix, offset, coefficients).amin(1)
        falls, rises = torch.autograd.grad(first.sum(), [low, high])
    # To first order, the worse half gains half the width times the smaller of the two slopes.
    gain = torch.minimum(falls, -rises) * (parts.upper - parts.lower) / 2
    proved = first.detach() > 0
    if bool(proved.any()):
        sure = {key: value[:, proved].double() for key, value in coefficients.items()}
        region = Box.between(parts.lower[proved], parts.upper[proved])
        proved = proved.masked_scatter(
            proved, _positive(view.least(region, matrix[proved], offset[proved], sure).amin(1))
        )
    return proved, first.detach().double(), gain


def _bound_by_linear_bounds(
    graph: Graph, matrix: Tensor, offset: Tensor, parts: InputBoxParts
) -> tuple[Tensor, Tensor, Tensor]:
    """Bound boxes by linear bounds, where there are no quadratic models; the gain follows the slopes of the
    worst bound.
    """
    found, linear = ClosedForm(graph).bound(Box.between(parts.lower, parts.upper), matrix)
    assert linear is not None
    least, worst = add_rounding_down(found, offset).min(1)
    slope = linear.coefficients[torch.arange(len(worst), device=worst.device), worst]
    return _positive(least), least, slope.abs() * (parts.upper - parts.lower) / 4


def _positive(score: Tensor) -> Tensor:
    """Return whether the score is finite and positive: a bound that overflows proves nothing."""
    return score.isfinite() & (score > 0)
