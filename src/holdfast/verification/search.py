"""Search for low margins over boxes: from many points, and where bounds are weakest."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.attacks.descent import descend
from holdfast.bounding.branching.subproblem_queue import CandidatePoints
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Avoid, LinearProperty
from holdfast.random_streams import RandomStreams
from holdfast.region import Box
from holdfast.result import Traits

# Between proofs, descend from this many points for this many steps (chosen by hand).
DESCENT_POINTS, SHORT_DESCENT = 64, 12
MOST_DESCENT_STEPS = 100  # Limit for the number of descent steps if there are fewer points (chosen by hand).
# A black box is searched in cycles of this many rounds: in the whole box, then in smaller and smaller boxes around the
# best point (chosen by hand).
CYCLE_ROUNDS = 8
# Each round of the first search descends from this many times as many points as the one before.
STAGE_FACTOR = 4
# Largest number of elements of the rules of all points of one search (128 MiB): every point has its own copy, and a box of
# a property with many polytopes suggests a point for each of them (chosen by hand).
MOST_RULE_VALUES = 2**24
POINTS_PER_DESCENT = 8  # Random points for each start of a descent, before the last stage.
# Shares of the remaining time for a round of the first search before the proofs, for each of its later rounds, and for the
# descents between two batches of proofs. A convolutional network otherwise spends its whole budget on attacks (chosen by
# hand).
ROUND_TIME_SHARE, LATER_TIME_SHARE, DESCENT_TIME_SHARE = 0.1, 0.05, 0.05
NEEDS = "needs the worst score of a property in linear rows (Avoid, Linear, Robustness, ...) over a Box"


@dataclass(frozen=True, eq=False)
class SearchRound:
    """State of the search: the best point for each polytope of each row."""

    chance: RandomStreams
    number: int
    at: Tensor | None = None  # (rows * polytopes, *shape)


@dataclass(frozen=True)
class Scatter(Method[SearchRound]):
    """Search each polytope of each row separately, from many points of the box at once.

    The first rounds descend from few points, then from four times as many, up to `downhill`; only the first of them
    comes before the proofs. Each later round searches a smaller box around the best point found. A round ends once it
    has used its share of the remaining time. Without gradients there is no descent: the boxes shrink more slowly, over
    the rounds of a cycle, and the next cycle begins in the whole box again.
    """

    finds: ClassVar[str] = "witnesses"
    help: ClassVar[str] = "descent from many points of a box, then around the best of them"
    traits: ClassVar[Traits] = Traits(glass=True)
    has_opening: ClassVar[bool] = True
    long_steps: ClassVar[bool] = True

    places: int = 2048  # points for each polytope of each row
    most: int = 2048  # limit for the number of points of all polytopes
    numbers: int = 2**19  # limit for the number of elements of all points: large inputs get fewer points
    downhill: int = 2048  # number of best points from which the search descends
    first: int = 32  # the same in the first round
    steps: int = 30
    zoom: float = 1 / 16
    rounds: int = 1
    cycles: int = 64  # of a black box; without a budget its search ends after these (chosen by hand)

    @staticmethod
    def closely(questions: int) -> "Scatter":
        """Return settings for a value that must be tight, not only its sign."""
        return Scatter(
            places=1024,
            most=1024 * questions,
            numbers=2**22,
            downhill=16,
            first=16,
            steps=24,
            rounds=3,
            cycles=2,
        )

    def obstacle(self, problem: Problem) -> str | None:
        return obstacle(problem)

    def is_opening(self, state: SearchRound) -> bool:
        return state.number == 0 or self._stages == 0

    @property
    def _stages(self) -> int:
        """The number of rounds before the first one with all points."""
        return max(0, math.ceil(math.log(self.downhill / self.first, STAGE_FACTOR)))

    def start(self, problem: Problem, seed: int) -> SearchRound:
        return SearchRound(RandomStreams.of(problem.keys, seed, problem.region.centre.device), 0)

    def step(self, problem: Problem, state: SearchRound) -> tuple[SearchRound | None, Claims]:
        rules, inside, smooth = as_polytopes(problem), problem_box(problem), problem.network.differentiable
        each = torch.arange(len(problem), device=inside.centre.device).repeat_interleave(
            rules.offset.shape[1]
        )
        boxes = batch.take(inside, each)
        stage = min(state.number, self._stages) if smooth else self._stages
        downhill = min(self.downhill, self.first * STAGE_FACTOR**stage)
        places = self.places if stage == self._stages else min(self.places, POINTS_PER_DESCENT * downhill)
        turn = state.number - stage if smooth else state.number % CYCLE_ROUNDS
        half = (boxes.upper / 2 - boxes.lower / 2) * (self.zoom if smooth else 0.5) ** turn
        middle = boxes.centre if state.at is None else state.at
        around = (
            boxes if turn == 0 else Box.between(boxes.project(middle - half), boxes.project(middle + half))
        )
        aims = margin_problem(
            problem.network,
            around,
            Avoid(rules.matrix.flatten(0, 1)[:, None], rules.offset.flatten(0, 1)[:, None]),
        )
        size = boxes.centre[0].numel()
        count = max(1, min(places, min(self.most, self.numbers // size) // len(aims)))
        polytope = torch.arange(len(each), device=each.device) % rules.offset.shape[1]
        tried = scatter_points(
            around, count, state.chance.substream(state.number).take(each).substream(polytope)
        )
        tried[0] = around.project(middle)
        share = LATER_TIME_SHARE if state.number else ROUND_TIME_SHARE
        if smooth and count > downhill:
            tried = _select_starts(aims, tried, downhill, share / 2)
        with time_limit.within(time_limit.share_of_remaining(share)):
            found, score = descend_from(aims, tried, self.steps)
        least, which = torch.where(score.isnan(), torch.inf, score).min(0)
        at = found[which, torch.arange(len(aims), device=which.device)]
        rounds = self._stages + self.rounds if smooth else self.cycles * CYCLE_ROUNDS
        following = SearchRound(state.chance, state.number + 1, at) if state.number + 1 < rounds else None
        return following, select_lowest(problem, at, each, least)


def _select_starts(aims: Problem, tried: Tensor, count: int, share: float) -> Tensor:
    """The `count` best of the points tried (points, rows, *shape) for each row.

    They are scored until this share of the remaining time is used; points that were not scored come last.
    """
    least = torch.full(tried.shape[:2], torch.inf, device=tried.device, dtype=tried.dtype)
    with time_limit.within(time_limit.share_of_remaining(share)):
        for places in torch.arange(len(tried), device=tried.device).split(max(1, count // 4)):
            score = time_limit.in_time(partial(aims.score, tried[places]), None)
            if score is None:
                break
            least[places] = score.to(least)
            if time_limit.has_expired():
                break
    order = least.topk(count, dim=0, largest=False).indices
    return tried.gather(0, order[(..., *(None for _ in tried.shape[2:]))].expand(-1, *tried.shape[1:]))


def obstacle(problem: Problem) -> str | None:
    fits = (
        problem.objective.scored
        and isinstance(problem.property, Avoid | LinearProperty)
        and _box(problem) is not None
    )
    return None if fits else NEEDS


def as_polytopes(problem: Problem) -> Avoid:
    """Return the property as polytopes: a minimum over rows becomes one polytope for each row."""
    required = problem.property
    if isinstance(required, Avoid):
        return Avoid(required.matrix, required.offset)
    assert isinstance(required, LinearProperty)
    matrix, offset = required.rows(problem.network.outputs_for(problem.region.centre))
    matrix, offset = (
        part.expand(len(problem), *part.shape[1:]).to(problem.region.centre.device)
        for part in (matrix, offset)
    )
    return Avoid.failing(matrix, offset)


def problem_box(problem: Problem) -> Box:
    """Return the region's numbers in the network's own dtype."""
    box = _box(problem)
    assert box is not None
    return box.numbers(problem.network.dtype)


def _box(problem: Problem) -> Box | None:
    return problem.region if isinstance(problem.region, Box) else None


def margin_problem(net: Network, region: Box, rules: Avoid) -> Problem:
    return Problem(net, region, rules, "worst")


def descend_from(problem: Problem, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Descend from start (..., batch, *shape): the lowest points and their scores.

    A black box returns its start.
    """
    return descend(problem, start, steps) if problem.network.differentiable else (start, problem.score(start))


def scatter_points(region: Box, count: int, chance: RandomStreams) -> Tensor:
    """Draw (count, batch, *shape) points: each feature at its lower or upper bound or between, 1/3 each."""
    share = (3 * chance.uniform(count, region.shape, region.centre) - 1).clamp(0, 1)
    return region.project(region.lower + share * (region.upper - region.lower))


def search_weakest(
    net: Network,
    inside: Box,
    rules: Avoid,
    points: CandidatePoints,
    chance: RandomStreams,
    *,
    downhill: bool,
    longest: int = MOST_DESCENT_STEPS,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield candidates x (n, *shape), their rows of the rules (n,) and their scores (n,).

    First the points where the bounds are weakest, or random points of the same subproblems, whichever scores
    lower; then the results of at most `longest` descent steps from the best of them. Of more points than the memory
    allows, some are left out, evenly.
    """
    if not len(points.task):
        return
    most = max(1, MOST_RULE_VALUES // rules.matrix[0].numel())
    if len(points.task) > most:
        spread = torch.linspace(0, len(points.task) - 1, most, dtype=torch.float64, device=points.task.device)
        points = batch.take(points, spread.long())
    around = batch.take(inside, points.task)
    boxes = Box.between(*(around.project(end.to(around.centre)) for end in (points.lower, points.upper)))
    problem = margin_problem(net, boxes, batch.take(rules, points.task))
    chance = chance.take(points.task).substream(torch.arange(len(points.task), device=points.task.device))
    tried = torch.cat([boxes.project(points.x.to(boxes.centre))[None], scatter_points(boxes, 1, chance)])
    score, which = problem.score(tried).min(0)
    tried = torch.where(boxes.per_row(which == 0), tried[0], tried[1])
    yield tried, points.task, score
    if downhill and net.differentiable and not time_limit.has_expired():
        chosen = score.topk(min(DESCENT_POINTS, len(score)), largest=False).indices
        steps = min(longest, SHORT_DESCENT * DESCENT_POINTS // len(chosen))
        with time_limit.within(time_limit.share_of_remaining(DESCENT_TIME_SHARE)):
            found, score = descend_from(problem.take(chosen), tried[chosen][None], steps)
        yield found[0], points.task[chosen], score[0]


def select_lowest(problem: Problem, x: Tensor, row: Tensor, score: Tensor) -> Claims:
    """Select the lowest candidate of each row from x (n, *shape), rows (n,), scores (n,), in float64."""
    order = torch.where(score.isnan(), torch.inf, score).argsort(stable=True)
    order = order[row[order].argsort(stable=True)]
    first = torch.ones_like(order, dtype=torch.bool)
    first[1:] = row[order][1:] != row[order][:-1]
    chosen = order[first]
    points, found = (
        problem.region.centre.double().clone(),
        torch.zeros(len(problem), dtype=torch.bool, device=score.device),
    )
    points[row[chosen]], found[row[chosen]] = x[chosen].double(), True
    return Claims(witness=problem.region.project(points), found=found)
