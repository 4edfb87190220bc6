"""Branch and bound: where one proof does not cover the region, parts of it are proved on their own.

The parts are halves of inputs, signs of activations or ranges of what other functions read, as `cut_for` says. All of them cover the
region, so a radius, or a score, holds once every part that its region was cut into is proved. Attempts are made at a little more than what
is proved: those that succeed make the next step larger, those that would take too many parts, or more time than there is, are given up and
make it smaller. Where time is short, training before the first attempt gets a share of it, and goes on once no attempt is worth making.
"""

import math
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import arguments
from holdfast.bounding.bounder import ClosedForm
from holdfast.bounding.branching.branching_rule import cut_for
from holdfast.bounding.branching.input_split import BoxParts, Halving, InputSplit
from holdfast.bounding.branching.nonlinear_split import NonlinearSplit, Ranges
from holdfast.bounding.branching.relu_split import ActivationSplit, Decisions
from holdfast.bounding.branching.subproblem_queue import (
    NUMBERS,
    Branching,
    Points,
    PolytopeQuestion,
    Seen,
    all_open,
)
from holdfast.bounding.drift_parameters import in_offsets
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS, graph_of, rows_of
from holdfast.bounding.quadratic_models import Bends
from holdfast.certify.tight_tier import Tighten, Training, boxes_at_once, quadratic_of
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import Avoid
from holdfast.region import Box, Patch, Region
from holdfast.region.normed import NormFamily
from holdfast.result import Traits
from holdfast.rounding import gamma

AT_ONCE = 256  # boxes that are looked at together
FEW = 256  # arguments up to which their ends are found again for every part
ENDS = 256  # arguments whose ends are trained before signs are decided
LARGER, SMALLER = 2.0, 0.5  # what an attempt that succeeds, or fails, makes of the next step
FIRST = {
    "radius": 0.04,
    "worst": 0.5,
}  # the first step: a share of what is proved; a share of the way to what was met
MOST = 0.5
TRAINING = 0.5  # of the time there is, for training before the first attempt


@dataclass(frozen=True, eq=False)
class Halves(BoxParts):
    """Boxes of inputs. Their bounds are those of float32, by which they are ordered and nothing is proved."""

    ahead: Tensor = field(
        kw_only=True
    )  # (n,): boxes that are still to come of it, if halving goes on to help as it promises


@dataclass(frozen=True, eq=False)
class Splitting:
    """Row by row, (batch,) each: proved is `low`, attempted `aim`, both a radius or a score."""

    training: Training
    low: Tensor
    frontier: Halves | Decisions | Ranges | None = None  # None: as long as the training goes on
    aim: Tensor = field(kw_only=True)
    push: Tensor = field(kw_only=True)  # how much further than what is proved
    looked: Tensor = field(kw_only=True)  # parts that were bounded, in this attempt
    upper: Tensor = field(kw_only=True)  # what was met by anyone
    gap: Tensor = field(kw_only=True)  # between the two, before the first attempt
    began: float = field(kw_only=True)  # by the monotonic clock
    attempted: bool = False  # what training has reached by its share of the time
    pace: float = 0.0  # seconds for a part, in the last step
    gain: Tensor | None = (
        None  # (batch, inputs + arguments) of `Ranges`: what cutting the whole region promised, at another radius
    )


@dataclass(frozen=True)
class Split(Method[Splitting]):
    """First what Tighten does, then more by cutting the region into parts, each where that promises most.

    An attempt that would take more than `boxes` parts is given up, and a smaller step is tried, until it is less than
    `finest`, or what is left between the ends is.
    """

    finds: ClassVar[str] = "still larger proved lower ends"
    help: ClassVar[str] = (
        "branch and bound over halves of inputs, signs of ReLUs or ranges of what other functions read"
    )
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    boxes: int = 1024
    steps: int = 80  # of training before
    finest: float = 0.005

    @property
    def _tighten(self) -> Tighten:
        return Tighten(steps=self.steps, few=FEW)

    def obstacle(self, problem: Problem) -> str | None:
        return self._tighten.obstacle(problem)

    def view(self, problem: Problem) -> Problem:
        return in_offsets(problem)

    def start(self, problem: Problem, seed: int) -> Splitting:
        training = self._tighten.start(problem, seed)
        none = torch.zeros_like(training.low)
        push, upper = torch.full_like(none, FIRST[problem.goal]), torch.full_like(none, torch.inf)
        return Splitting(
            training,
            training.low,
            aim=none,
            push=push,
            looked=none,
            upper=upper,
            gap=none,
            began=time.monotonic(),
        )

    def update_bounds(self, problem: Problem, state: Splitting, lower: Tensor, upper: Tensor) -> Splitting:
        """An attempt at what is proved already, or cannot be, gives way to another."""
        training, better = (
            self._tighten.update_bounds(problem, state.training, lower, upper),
            lower.isfinite() & (lower > state.low),
        )
        state = replace(state, training=training, low=torch.where(better, lower, state.low), upper=upper)
        if state.frontier is None:
            return state
        waits = torch.zeros_like(better).index_fill(0, state.frontier.task, True)
        return self._attempting(problem, state, better & (lower >= state.aim) | waits & (upper <= state.aim))

    def step(self, problem: Problem, state: Splitting) -> tuple[Splitting | None, Claims]:
        if state.frontier is None:
            return self._step_training(problem, state)
        cut, question = _cut(problem, state.training.best), self._question(problem, state.aim)
        assert not isinstance(cut, str)
        before = state.frontier.task.bincount(minlength=len(problem))
        began = time.monotonic()
        frontier, _ = cut.advance(question, state.frontier)
        state = replace(
            state, frontier=frontier, pace=(time.monotonic() - began) / max(1, sum(frontier.turn))
        )
        if isinstance(frontier, Ranges):
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
        none = torch.zeros_like(state.low)  # training goes on from what is proved, and attempts begin again
        training = self._tighten.update_bounds(problem, state.training, state.low, state.upper)
        return replace(
            state, training=training, frontier=None, push=none + FIRST[problem.goal], looked=none
        ), claims

    def _step_training(self, problem: Problem, state: Splitting) -> tuple[Splitting | None, Claims]:
        """What Tighten does, for its share of the time; and the first attempt."""
        shared = not state.attempted and isinstance(_cut(problem, state.training.best), NonlinearSplit)
        share = state.began + TRAINING * (time_limit.deadline() - state.began) if shared else math.inf
        # Once its share is spent, what attempts need before they begin has all the time that is left.
        with time_limit.within(share if time.monotonic() < share else math.inf):
            training, claims = time_limit.in_time(
                partial(self._tighten.advance, problem, state.training), (state.training, Claims())
            )
        claims = replace(claims, obstacle="")  # what is cut below has more to say
        state = replace(state, training=training, low=training.low)
        late = (
            time.monotonic() >= share
            and not time_limit.has_expired()
            and bool(training.bends)
            and training.trial is None
        )
        if not self._tighten.done(problem, training) and not late:
            return state, claims
        cut = _cut(problem, training.best)
        if isinstance(cut, str):
            return None, replace(claims, obstacle=cut)
        state = replace(state, gap=state.upper - state.low, attempted=True)
        state = self._attempting(problem, state, torch.ones_like(state.low, dtype=torch.bool))
        if not state.frontier and not self._tighten.done(problem, training):
            return replace(state, frontier=None), claims
        return state if state.frontier else None, claims

    def _judge_attempts(self, problem: Problem, state: Splitting, before: Tensor) -> Splitting:
        """What the parts that are left say of the attempts. before (batch,): how many waited."""
        frontier = state.frontier
        assert frontier is not None
        waiting = frontier.task.bincount(minlength=len(before))
        turn = torch.tensor(frontier.turn, dtype=torch.float64, device=before.device)
        looked = (
            state.looked
            if time_limit.has_expired()
            else state.looked + torch.nn.functional.pad(turn, (0, len(before) - len(turn)))
        )
        ahead = torch.zeros_like(state.low).index_add(0, frontier.task, frontier.ahead)
        stuck = torch.zeros_like(before, dtype=torch.bool)
        stuck[list(frontier.given_up)] = True
        proved = (before > 0) & (waiting == 0) & ~stuck
        left = torch.maximum(ahead, waiting)
        lost = stuck | (waiting > 0) & ((looked + left > self.boxes) | (left > self._affordable(state)))
        push = torch.where(
            proved, (LARGER * state.push).clamp_max(MOST), torch.where(lost, SMALLER * state.push, state.push)
        )
        low = torch.where(proved, state.aim, state.low)
        if problem.goal == "worst" and not isinstance(frontier, Halves):  # whose bounds are no proofs
            least = torch.full_like(low, torch.inf).scatter_reduce(0, frontier.task, frontier.bound, "amin")
            least = least.clamp_max(0)  # what is settled is above the aim, and no more is known of it
            met = state.aim + least - 4 * gamma(1) * (state.aim.abs() + least.abs())
            low = torch.where((waiting > 0) & ~stuck & met.isfinite(), torch.maximum(low, met), low)
        return self._attempting(problem, replace(state, low=low, push=push, looked=looked), proved | lost)

    def _affordable(self, state: Splitting) -> float:
        """How many parts of each attempt there is time for, where they take long; all, when there is none left to make another."""
        if not isinstance(state.frontier, Ranges) or time_limit.has_expired():
            return math.inf
        return (
            (time_limit.deadline() - time.monotonic())
            / max(state.pace, 1e-9)
            / max(1, len(state.frontier.task.unique()))
        )

    def _attempting(self, problem: Problem, state: Splitting, again: Tensor) -> Splitting:
        """These rows, (batch,) bool, with nothing but the next aim that is worth an attempt, if any is."""
        cut = _cut(problem, state.training.best)
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
        return replace(state, frontier=frontier, aim=aim, looked=torch.where(again, 0, state.looked))

    def _aim(self, problem: Problem, state: Splitting) -> tuple[Tensor, Tensor]:
        """-> what to try next, and where that is worth it."""
        low, upper, worth = state.low, state.upper, state.push >= self.finest
        if problem.goal == "worst":
            return low + state.push * (upper - low), worth & low.isfinite() & upper.isfinite() & (
                upper - low > self.finest * state.gap
            )
        family = problem.family
        further = torch.minimum(low * (1 + state.push), family.limit())
        further = torch.where(upper.isfinite(), torch.minimum(further, low / 2 + upper / 2), further)
        aim = family.at(
            torch.where(low.isfinite(), further, 0)
        ).radius.double()  # what is asked, in the arithmetic of the family's radius
        return aim, worth & (low > 0) & (low < family.limit()) & (aim > low * (1 + self.finest / 2)) & (
            low < upper
        )

    def _question(self, problem: Problem, aim: Tensor) -> PolytopeQuestion:
        """Is anything below what is attempted?"""
        graph = graph_of(problem)
        matrix, offset = rows_of(problem, graph)
        if problem.goal == "worst":
            offset = offset - aim[:, None] - 4 * gamma(1) * (offset.abs() + aim[:, None].abs())
            return PolytopeQuestion(graph, problem.region, Avoid.failing(matrix, torch.nan_to_num(offset)))
        return PolytopeQuestion(graph, problem.family.at(aim), Avoid.failing(matrix, offset))


def _cut(problem: Problem, bends: Bends) -> Branching[Any] | str:
    """How parts are cut, or why nothing is."""
    region, graph = problem.region, graph_of(problem)
    if problem.goal == "radius":
        if not isinstance(region, NormFamily | Patch):
            return f"nothing is cut, since the radius of {type(region).__name__} counts changes"
        region = region.at(1.0)  # where searches begin nothing moves
    found = cut_for(graph, region, models=bool(bends))
    if isinstance(found, InputSplit):
        return _SecondOrder(problem, bends)
    if isinstance(found, NonlinearSplit):
        return replace(found, view=quadratic_of(problem), bends=bends)
    assert isinstance(found, ActivationSplit)
    # An attempt at a radius is one of many, and may not take the time that ends of its own would.
    return replace(found, refine=sum(node.size for node in arguments(graph)) <= FEW, ends=ENDS, passes=0)


@dataclass(frozen=True, eq=False)
class _SecondOrder(Halving[PolytopeQuestion, Halves], Branching[Halves]):
    """Boxes by trained second-order models, or by planes where there are none."""

    problem: Problem
    bends: Bends  # of the second-order models, none where there are no such models

    def start(self, graph: Graph, region: Region, rules: Avoid) -> Halves:
        lower, upper = region.enclosing_box()
        row, none = torch.arange(len(lower), device=lower.device), torch.zeros_like(rules.offset[:, 0, 0])
        return Halves(row, all_open(rules), none - torch.inf, lower=lower, upper=upper, ahead=none)

    def at_once(self, question: PolytopeQuestion) -> int:
        return min(AT_ONCE, boxes_at_once(self.problem, quadratic_of(self.problem), training=True))

    def most(self, graph: Graph) -> int:
        return NUMBERS // graph.entry.size

    def bound(self, question: PolytopeQuestion, parts: Halves) -> Seen[Halves]:
        proved, least, gain = (
            torch.zeros_like(parts.open[:, 0]),
            parts.bound.clone(),
            torch.zeros_like(parts.lower),
        )
        ahead = parts.ahead.clone()
        kinds = (
            (parts.upper > parts.lower).flatten(1).unique(dim=0, return_inverse=True)[1]
        )  # models hold only what moves
        for kind in kinds.unique():
            if not time_limit.has_expired():
                some = (kinds == kind).nonzero().flatten()
                proved[some], found, slopes = self._look(question, batch.take(parts, some))
                least[some], gain[some] = (
                    torch.nan_to_num(found, -torch.inf),
                    torch.nan_to_num(slopes, 0.0, 0.0, 0.0),
                )
                levels = -1.5 * least[some] / gain[some].flatten(1).amax(1).clamp_min(1e-300)
                ahead[some] = 2 ** levels.clamp(0, 60) / 2  # half of them for each half
        lower, upper = parts.lower[~proved], parts.upper[~proved]
        points = Points(lower / 2 + upper / 2, lower, upper, parts.task[~proved])
        open_ = (~proved[:, None]).expand(parts.open.shape)
        return Seen(replace(parts, open=open_, bound=least, ahead=ahead), gain.flatten(1), points)

    def _look(self, question: PolytopeQuestion, parts: Halves) -> tuple[Tensor, Tensor, Tensor]:
        """-> proved (n,), the bound (n,), and what halving along each input may add to it, (n, *shape)."""
        matrix, offset = (part[parts.task, :, 0] for part in (question.rules.matrix, question.rules.offset))
        if not self.bends:
            return _by_planes(question.graph, matrix, offset, parts)
        return _by_models(
            self.problem,
            {key: value[:, parts.task] for key, value in self.bends.items()},
            matrix,
            offset,
            parts,
        )


def _by_models(
    problem: Problem, bends: Bends, matrix: Tensor, offset: Tensor, parts: Halves
) -> tuple[Tensor, Tensor, Tensor]:
    view = quadratic_of(problem)
    low, high = parts.lower.clone().requires_grad_(), parts.upper.clone().requires_grad_()
    with torch.enable_grad():
        first = view.least(Box.between(low, high), matrix, offset, bends).amin(1)
        falls, rises = torch.autograd.grad(first.sum(), [low, high])
    # To the first order, the worse half gains half the width times the smaller of the two slopes.
    gain = torch.minimum(falls, -rises) * (parts.upper - parts.lower) / 2
    proved = first.detach() > 0
    if bool(proved.any()):
        sure = {key: value[:, proved].double() for key, value in bends.items()}
        region = Box.between(parts.lower[proved], parts.upper[proved])
        proved = proved.masked_scatter(
            proved, _positive(view.least(region, matrix[proved], offset[proved], sure).amin(1))
        )
    return proved, first.detach().double(), gain


def _by_planes(graph: Graph, matrix: Tensor, offset: Tensor, parts: Halves) -> tuple[Tensor, Tensor, Tensor]:
    """Where there are no second-order models: planes, and the inputs over which the worst of them falls most."""
    found, linear = ClosedForm(graph).bound(Box.between(parts.lower, parts.upper), matrix)
    assert linear is not None
    least, worst = (found + offset - 4 * gamma(1) * (found.abs() + offset.abs())).min(1)
    slope = linear.coefficients[torch.arange(len(worst), device=worst.device), worst]
    return _positive(least), least, slope.abs() * (parts.upper - parts.lower) / 4


def _positive(score: Tensor) -> Tensor:
    """What overflows proves nothing."""
    return score.isfinite() & (score > 0)
