"""Branch and bound as a method: how low does a score get over a box? Proved to a gap, or until its sign is known.

Every row has a threshold, and a part of its box is settled when its bounds say score > threshold. Where the sign is asked for, that is
zero. Where a value is, it is the lowest that a concrete input was seen to reach less the gap.

Why the proved bound holds. A threshold only ever falls, when a lower value is met. So every part that was settled, under whatever
threshold, lies above the one in force now. What is not settled waits with a lower bound of its own, and so does what was given up because
nothing is left to cut. These three cover the box, hence

    score >= min(threshold in force, bounds of the parts that wait, bounds of the parts given up)   everywhere in it.

A bound proved once stays true, so the best of them all is kept; the search may end at any time. Once nothing waits, the two ends
are a gap apart.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.branching.branching_rule import cut_for
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.branching.subproblem_queue import Branching, Frontier
from holdfast.bounding.graph.fusion import prepare_graph
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS
from holdfast.errors import UnsupportedLayer
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import Avoid
from holdfast.random_streams import Chance
from holdfast.region import Box
from holdfast.replay import SMALLEST
from holdfast.result import Setting, Traits
from holdfast.rounding import gamma
from holdfast.verification.search import (
    LONGEST,
    avoid,
    descend_from,
    lowest,
    near,
    obstacle,
    problem_box,
    scatter_points,
    task,
)
from holdfast.verification.specification import Forbidden

FULL = 8  # times what a method likes to have waiting; depth first that takes very long
OFTEN = 16  # batches of parts after each of which the search goes downhill; later, after every fourth
STEPS = 24  # of a search for a value
DOUBTS = 8  # places from which the search goes on again when a proof is complete
CACHED = 2**21  # numbers in the forms of one batch of boxes: few enough to stay near the processor
SHY = 1 - 2.0**-20  # of the gap: what is left pays for rounding the difference of both bounds
NO_CHARGE = (
    "nothing bounds the outputs, so what rounding the factors of the property misses cannot be charged"
)


@dataclass(frozen=True, eq=False)
class BoxTree:
    """What is known of all rows. Tensors are (batch,) float64, unless they say more."""

    inside: Box  # the numbers that the network can be asked about
    rules: Avoid
    chance: Chance
    threshold: Tensor
    proved: Tensor  # lower bounds of all scores
    given_up: Tensor  # and of those on parts that were given up
    upper: Tensor  # the lowest scores met by anyone
    at: Tensor  # (batch, *shape): where the lowest was met here
    low: Tensor
    trunk: "Trunk | None" = None
    steps: int = 0
    paid: bool = False  # whether the last search went anywhere

    def conclude(self, done: Tensor) -> "BoxTree":
        """With what the parts of the boxes prove now. done: of rows where nothing waits."""
        assert self.trunk is not None
        frontier = self.trunk.frontier
        waiting = torch.full_like(self.threshold, torch.inf).scatter_reduce(
            0, frontier.task, frontier.bound, "amin"
        )
        bound = torch.minimum(_below(self.threshold, waiting), self.threshold)
        low = torch.where(waiting == torch.inf, done, torch.where(bound.isnan(), -torch.inf, bound))
        return replace(self, proved=torch.maximum(self.proved, torch.minimum(low, self.given_up)))

    def giving_up(self, tasks: Tensor) -> "BoxTree":
        """A frontier says how low its given up parts may get, but not whose they were: any of those that waited."""
        assert self.trunk is not None
        lost = self.trunk.frontier.lost
        if lost == math.inf:
            return self
        given_up = self.given_up.clone()
        given_up[tasks] = torch.minimum(
            given_up[tasks], _below(self.threshold[tasks], torch.full_like(given_up[tasks], lost))
        )
        return replace(
            self,
            given_up=given_up,
            trunk=replace(self.trunk, frontier=replace(self.trunk.frontier, lost=math.inf)),
        )

    def falling(self, threshold: Tensor) -> "BoxTree":
        """Thresholds fall to what was met by now. Bounds are relative to them, so they rise; what is settled by that waits no more."""
        before, threshold = self.threshold, torch.minimum(self.threshold, threshold)
        if self.trunk is None or torch.equal(before, threshold):
            return replace(self, threshold=threshold)
        frontier = self.trunk.frontier
        fallen, bound = (before - threshold)[frontier.task], frontier.bound
        size = bound.abs() + 2 * (fallen + before.abs()[frontier.task])
        raised = torch.where((fallen > 0) & bound.isfinite(), bound + fallen - 4 * gamma(1) * size, bound)
        left = batch.take(replace(frontier, bound=raised), ~(raised > 0))
        return replace(self, threshold=threshold, trunk=replace(self.trunk, frontier=left))


@dataclass(frozen=True, eq=False)
class Trunk:
    """What branches: made when the first bound is asked for."""

    graph: Graph
    region: Box  # float64
    rules: Avoid  # with what their rounding misses
    cut: Branching[Any]
    frontier: Frontier


@dataclass(frozen=True)
class BranchAndBound(Method[BoxTree]):
    """Parts of the boxes with the worst bounds first. Where bounds are worst it also looks for low scores, and when all is proved once
    more from the lowest places: an honest proof has nothing to fear from that.

    cut  how parts are cut; by default, by inputs where few of them move, else by activations.
    gap  how near to the truth; None: until the sign of the score is known.
    """

    finds: ClassVar[str] = "proved lower ends"
    help: ClassVar[str] = "branch and bound over inputs or activations (ReLU splitting), for boxes"
    keyword: ClassVar[str] = "bab"
    traits: ClassVar[Traits] = Traits(glass=True)
    long_steps: ClassVar[bool] = True

    cut: Branching[Any] | None = None
    gap: float | None = None

    def settings(self) -> dict[str, Setting]:
        return {"gap": self.gap, **(_cut_settings(self.cut) if self.cut is not None else {})}

    def obstacle(self, problem: Problem) -> str | None:
        return obstacle(problem)

    def start(self, problem: Problem, seed: int) -> BoxTree:
        inside, rules = problem_box(problem), avoid(problem)
        most = torch.full((len(problem),), torch.inf, dtype=torch.float64, device=inside.centre.device)
        threshold = torch.zeros_like(most) if self.gap is None else most
        chance = Chance.of(problem.keys, seed, most.device)
        return BoxTree(inside, rules, chance, threshold, -most, most, most, inside.centre, most)

    def update_bounds(self, problem: Problem, state: BoxTree, lower: Tensor, upper: Tensor) -> BoxTree:
        state = replace(state, upper=upper)
        return state if self.gap is None else state.falling(upper - SHY * self.gap)

    def step(self, problem: Problem, state: BoxTree) -> tuple[BoxTree | None, Claims]:
        if state.trunk is None:
            try:
                state = self._bound_root(problem, state)
            except UnsupportedLayer as error:
                return None, Claims(obstacle=f"nothing is proved: {error}")
        trunk = state.trunk
        assert trunk is not None
        met: list[tuple[Tensor, Tensor, Tensor]] = []
        if len(trunk.frontier):
            state, met = self._grown(problem, state)
            trunk = state.trunk
            assert trunk is not None
        # Before what is met now is heard: it must not pass what was proved before.
        state = state.conclude(
            torch.full_like(state.threshold, SMALLEST) if self.gap is None else state.threshold
        )
        done, obstacle = not len(trunk.frontier), ""
        if done and not time_limit.has_expired():
            met.append(self._search_again(problem, state))
        elif len(trunk.frontier) > FULL * trunk.cut.most(trunk.graph):
            done, obstacle = (
                True,
                f"{len(trunk.frontier)} parts wait to be cut further, more than memory should hold",
            )
        state, witnesses = self._receive_candidates(problem, state, met)
        settings = {**_cut_settings(trunk.cut), "parts": trunk.frontier.looked}
        proof = Claims(
            proved=state.proved, assumptions=ASSUMPTIONS, checks=CHECKS, settings=settings, obstacle=obstacle
        )
        return None if done else state, replace(proof, witness=witnesses.witness, found=witnesses.found)

    def _bound_root(self, problem: Problem, state: BoxTree) -> BoxTree:
        graph = prepare_graph(problem.network, state.inside)
        region = Box.between(*problem.region.enclosing_box())
        rules: Avoid | None = state.rules
        if isinstance(problem.property, Forbidden):
            rules = problem.property.charge_rounding(graph, region)
        if rules is None:
            raise UnsupportedLayer(NO_CHARGE)
        cut = self.cut or cut_for(graph, region)
        if self.cut is None and self.gap is not None and isinstance(cut, InputSplit):
            cut = replace(cut, walks=False, elements=CACHED)
        return replace(state, trunk=Trunk(graph, region, rules, cut, cut.start(graph, region, rules)))

    def _grown(self, problem: Problem, state: BoxTree) -> tuple[BoxTree, list[tuple[Tensor, Tensor, Tensor]]]:
        """One batch of parts looked at, and candidates from where their bounds are worst."""
        trunk = state.trunk
        assert trunk is not None
        tasks = trunk.frontier.task.unique()
        rules = replace(trunk.rules, offset=_below(trunk.rules.offset, -state.threshold[:, None, None]))
        frontier, points = trunk.cut.step(
            trunk.graph, trunk.region, rules, trunk.frontier, time_limit.deadline()
        )
        state = replace(state, trunk=replace(trunk, frontier=frontier), steps=state.steps + 1).giving_up(
            tasks
        )
        # Boxes of few inputs are soon many: where only a few wait, a long search is left to the one before.
        few = self.gap is not None or isinstance(trunk.cut, InputSplit)
        downhill, longest = self._downhill(state), STEPS if few else LONGEST
        chance = state.chance.apart(state.steps)
        found = near(
            problem.network, state.inside, state.rules, points, chance, downhill=downhill, longest=longest
        )
        return state, list(found)

    def _downhill(self, state: BoxTree) -> bool:
        step = state.steps - 1
        return step % 4 == 0 or (step < OFTEN if self.gap is None else state.paid)

    def _search_again(self, problem: Problem, state: BoxTree) -> tuple[Tensor, Tensor, Tensor]:
        """Once more downhill: from the lowest places that were met here, the middle, and others."""
        few = max(1, min(DOUBTS, 2**16 // state.at.numel()))
        start = torch.cat(
            [
                state.at[None],
                state.inside.centre[None],
                scatter_points(state.inside, few, state.chance.apart(0)),
            ]
        )
        found, score = descend_from(task(problem.network, state.inside, state.rules), start, STEPS)
        every = torch.arange(len(state.at), device=start.device).repeat(len(start))
        return found.flatten(0, 1), every, score.flatten()

    def _receive_candidates(
        self, problem: Problem, state: BoxTree, met: Iterable[tuple[Tensor, Tensor, Tensor]]
    ) -> tuple[BoxTree, Claims]:
        """The lowest candidate of each row, if it is below what is known. A value that is asked for is taken in float64, as proofs are."""
        kept = [parts for parts in met if len(parts[0])]
        if not kept:
            return state, Claims()
        x, row, score = (torch.cat(parts) for parts in zip(*kept, strict=True))
        if self.gap is not None:
            twin = problem.network.double(state.inside.centre) or problem.network
            score = batch.take(state.rules, row).score(
                twin(batch.take(problem.region, row).project(x.double()))
            )
        claims = lowest(problem, x, row, score)
        score = torch.where(score.isnan(), torch.inf, score.double())
        low = torch.full_like(state.low, torch.inf).scatter_reduce(0, row, score, "amin")
        assert claims.witness is not None
        at = torch.where(
            state.inside.per_row(low < state.low), state.inside.project(claims.witness.to(state.at)), state.at
        )
        paid = (
            self.gap is not None and self._downhill(state) and bool((state.upper - low > self.gap / 4).any())
        )
        state = replace(state, at=at, low=torch.minimum(low, state.low), paid=paid)
        return state, replace(claims, found=low < state.upper)


def _cut_settings(cut: Branching[Any]) -> dict[str, Setting]:
    return {"method": type(cut).__name__, **asdict(cut)}  # type: ignore[call-overload]


def _below(threshold: Tensor, bound: Tensor) -> Tensor:
    """threshold + bound, rounded down; the sum with zero is exact."""
    total = threshold + bound
    exact = (threshold == 0) | (bound == 0) | ~total.isfinite()
    return torch.where(exact, total, total - 4 * gamma(1) * (threshold.abs() + bound.abs()))
