"""The search by itself, with a rule whose truth is known: intervals of numbers, on which a score is the distance to a target less a bit."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.branching.subproblem_queue import (
    BoundedSubproblems,
    CandidatePoints,
    SubproblemQueue,
    SubproblemSearch,
    count_within_capacity,
)


@dataclass(frozen=True, eq=False)
class Intervals(SubproblemQueue):
    lower: Tensor = field(kw_only=True)
    upper: Tensor = field(kw_only=True)


@dataclass(frozen=True)
class Asked:
    target: Tensor  # (tasks,)
    margin: (
        float  # the score is |x - target| - margin: above zero everywhere only where the target is far enough
    )
    graph: Any = None


@dataclass(frozen=True)
class Middle(SubproblemSearch[Asked, Intervals]):
    together: int = 4
    waiting: int = 1000
    finest: float = 1e-3
    heavy: bool = False

    def at_once(self, question: Asked) -> int:
        return self.together

    def most(self, graph: Any) -> int:
        return self.waiting

    def fits(self, question: Asked, parts: Intervals) -> int:
        return count_within_capacity(torch.full((len(parts),), 3), 7) if self.heavy else len(parts)

    def bound(self, question: Asked, parts: Intervals) -> BoundedSubproblems[Intervals]:
        target = question.target[parts.task]
        least = torch.maximum(parts.lower - target, target - parts.upper).clamp_min(0) - question.margin
        least = torch.where(least.isnan(), -math.inf, least)
        left = ~(least > 0)
        middle = (parts.lower + parts.upper)[left, None] / 2
        points = CandidatePoints(middle, parts.lower[left, None], parts.upper[left, None], parts.task[left])
        return BoundedSubproblems(
            replace(parts, open=left[:, None], bound=least), parts.lower[:, None], points
        )

    def cut(self, question: Asked, parts: Intervals, gain: Tensor) -> tuple[Intervals, Tensor]:
        middle, stuck = (parts.lower + parts.upper) / 2, parts.upper - parts.lower < self.finest
        halves = replace(parts, upper=middle), replace(parts, lower=middle)
        return batch.concatenate([batch.take(half, ~stuck) for half in halves]), stuck


def start(tasks: int) -> Intervals:
    one = torch.ones(tasks, dtype=torch.float64)
    return Intervals(torch.arange(tasks), one.bool()[:, None], one - math.inf, lower=0 * one, upper=one)


def run(rule: Middle, question: Asked, frontier: Intervals) -> Iterator[tuple[Intervals, CandidatePoints]]:
    while len(frontier):
        frontier, points = rule.advance(question, frontier)
        yield frontier, points


def test_what_can_be_proved_is_and_what_cannot_is_given_up_by_name() -> None:
    question = Asked(torch.tensor([2.0, 0.3, -1.0, 0.7], dtype=torch.float64), 0.01)
    *_, (frontier, _) = run(Middle(), question, start(4))
    assert frontier.given_up == {1, 3}
    assert -0.01 <= frontier.lost <= 0
    assert frontier.least == frontier.lost
    *_, (frontier, _) = run(Middle(), Asked(torch.tensor([2.0, -1.0], dtype=torch.float64), 0.5), start(2))
    assert (frontier.given_up, frontier.lost, frontier.looked) == (frozenset(), math.inf, 2)


def test_every_task_has_its_turn_and_the_worst_parts_come_first() -> None:
    question = Asked(torch.tensor([0.3, 0.7, 0.5], dtype=torch.float64), 0.01)
    rule, frontier = Middle(together=3), start(3)
    for _ in range(4):
        chosen = rule._chosen(question, frontier)
        assert sorted(frontier.task[chosen].tolist()) == [0, 1, 2]
        worst = torch.full((3,), math.inf, dtype=torch.float64).scatter_reduce(
            0, frontier.task, frontier.bound, "amin"
        )
        assert torch.equal(frontier.bound[chosen], worst[frontier.task[chosen]])
        frontier, _ = Middle(together=6).advance(question, frontier)
    alone = batch.take(frontier, frontier.task == 0)
    assert alone.bound[Middle(together=1)._chosen(question, alone)] == alone.bound.min()


def test_where_too_many_wait_it_goes_deep() -> None:
    question = Asked(torch.linspace(0.1, 0.9, 8, dtype=torch.float64), 0.05)
    longest = {
        w: max(len(frontier) for frontier, _ in run(Middle(waiting=w, together=8), question, start(8)))
        for w in (8, 10**6)
    }
    assert longest[8] < longest[10**6]


def test_a_look_takes_no_more_than_fits_and_no_less_than_one() -> None:
    question = Asked(torch.tensor([0.3, 0.7, 0.5], dtype=torch.float64), 0.01)
    after, _ = Middle(heavy=True).advance(question, start(3))
    assert after.looked == 2
    assert count_within_capacity(torch.tensor([9, 1]), 5) == 1


def test_bounds_of_children_are_never_below_those_of_their_parents() -> None:
    question = Asked(torch.tensor([0.3], dtype=torch.float64), 0.01)
    frontier = replace(start(1), bound=torch.tensor([-0.005], dtype=torch.float64))
    after, _ = Middle().advance(question, frontier)
    assert after.bound.tolist() == [-0.005, -0.005]


def test_with_the_clock_nothing_is_cut_and_nothing_is_lost() -> None:
    question = Asked(torch.tensor([0.3, 2.0], dtype=torch.float64), 0.01)
    with time_limit.within(0.0):
        after, _ = Middle().advance(question, start(2))
    assert after.task.tolist() == [0]  # the other was settled by the look itself
    assert (after.lower.tolist(), after.upper.tolist()) == ([0.0], [1.0])


@dataclass(frozen=True)
class Crowded(Middle):
    """Has room for so many parts only."""

    room: int = 2

    def bound(self, question: Asked, parts: Intervals) -> BoundedSubproblems[Intervals]:
        if len(parts) > self.room:
            raise torch.OutOfMemoryError("no room")
        return super().bound(question, parts)


def test_parts_without_room_are_looked_at_fewer_at_a_time() -> None:
    question = Asked(torch.tensor([2.0, 0.3, -1.0, 0.7], dtype=torch.float64), 0.01)
    *_, (frontier, _) = run(Crowded(together=64), question, start(4))
    *_, (roomy, _) = run(Middle(), question, start(4))
    assert frontier.given_up == roomy.given_up == {1, 3}
    assert frontier.lost == roomy.lost


def test_a_single_part_without_room_is_said() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        Crowded(room=0).advance(Asked(torch.tensor([0.3], dtype=torch.float64), 0.01), start(1))
