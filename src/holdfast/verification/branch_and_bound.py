"""Branch and bound: certified bounds on the smallest margin over a box, or on its sign.

Every row r has a threshold t_r. A subproblem (a subset of the box) is settled when its certified lower bound
shows margin > t_r. If only the sign matters, t_r = 0. If the value matters, t_r is the lowest attained margin
minus the tolerance (`gap`).

Correctness. Thresholds never increase. So every subproblem that was settled under an earlier threshold is
above the current one. Every other subproblem is in the queue with a lower bound, or was given up with a lower
bound because it cannot be split further. The subproblems cover the box, hence for every x in it

    margin(x) >= min(current threshold, lower bounds in the queue, lower bounds of subproblems given up).

A bound that was proved once stays valid, so the maximum over time is kept, and the search can end at any
time. When the queue is empty and nothing was given up, upper and lower bound differ by at most the
gap.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding import crown
from holdfast.bounding.branching.branching_rule import choose_branching
from holdfast.bounding.branching.constraint_split import ConstraintSplit, fixes_inputs
from holdfast.bounding.branching.input_split import InputSplit, fixes_most_inputs
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.branching.subproblem_queue import Branching, SubproblemQueue, all_open
from holdfast.bounding.graph.fusion import prepare_graph
from holdfast.bounding.graph.graph import Affine, Graph
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS
from holdfast.derivations import (
    SUM_OF_TWO,
)
from holdfast.errors import UnsupportedLayer
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import Avoid
from holdfast.random_streams import RandomStreams
from holdfast.region import Box
from holdfast.replay import SMALLEST
from holdfast.result import Setting, Traits
from holdfast.rounding import add_rounding_down, charge
from holdfast.verification.combined_network import choose_graph
from holdfast.verification.search import (
    MOST_DESCENT_STEPS,
    as_polytopes,
    descend_from,
    margin_problem,
    obstacle,
    problem_box,
    scatter_points,
    search_weakest,
    select_lowest,
)
from holdfast.verification.specification import Forbidden

QUEUE_FACTOR = 8  # Stop if the queue exceeds this multiple of the rule's preferred length (chosen by hand).
# Descend after each of the first EARLY_BATCHES batches of subproblems, later after every fourth (chosen by
# hand).
EARLY_BATCHES = 16
DESCENT_STEPS = 24  # Number of descent steps (chosen by hand).
# Number of random points from which a final search tries to refute a complete proof (chosen by hand).
RESTARTS = 8
# Limit for the elements of the linear bounds of one batch, so that they fit the CPU cache.
CACHED_ELEMENTS = 2**21
# Share of the gap that thresholds use; the rest covers rounding of the bound difference.
GAP_SHARE = 1 - 2.0**-20
# Networks with convolutions are split at once, with the intermediate bounds of the whole region: refining these first,
# or bounding them again for each subproblem, takes most of a minute on a core, in which hundreds of subproblems a second
# are bounded otherwise (tuned on oval21 of `benchmarks.lipschitz practice`).
EARLY_SPLITS = ActivationSplit(steps=8, refine=False, passes=0)
NO_CHARGE = (
    "the outputs have no finite bounds, so the rounding error of the property's factors cannot be bounded"
)


@dataclass(frozen=True, eq=False)
class BoxTree:
    """State of the search for all rows. Tensors are (batch,) float64 unless noted."""

    inside: Box  # the numbers that the network's dtype represents
    rules: Avoid
    chance: RandomStreams
    threshold: Tensor
    proved: Tensor  # certified lower bounds
    given_up: Tensor  # certified lower bounds on the subproblems that were given up
    upper: Tensor  # lowest attained margins, by any method
    at: Tensor  # (batch, *shape): the point of the lowest margin that this method found
    low: Tensor  # the lowest margin that this method found
    trunk: "Trunk | None" = None
    steps: int = 0
    paid: bool = False  # whether the last descent improved the upper bound

    def conclude(self, done: Tensor) -> "BoxTree":
        """Update the certified lower bounds from the queue.

        `done` is the bound of rows with an empty queue.
        """
        assert self.trunk is not None
        frontier = self.trunk.frontier
        waiting = torch.full_like(self.threshold, torch.inf).scatter_reduce(
            0, frontier.task, frontier.bound, "amin"
        )
        bound = torch.minimum(_below(self.threshold, waiting), self.threshold)
        low = torch.where(waiting == torch.inf, done, torch.where(bound.isnan(), -torch.inf, bound))
        return replace(self, proved=torch.maximum(self.proved, torch.minimum(low, self.given_up)))

    def open_subproblems(self) -> int:
        """The length of the queue."""
        assert self.trunk is not None
        return len(self.trunk.frontier)

    def giving_up(self, tasks: Tensor) -> "BoxTree":
        """Attribute the bound on given-up subproblems to every row that had one in this batch."""
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
        """Lower the thresholds.

        Queue bounds are relative to them, so they rise; subproblems that this settles are removed.
        """
        before, threshold = self.threshold, torch.minimum(self.threshold, threshold)
        if self.trunk is None or torch.equal(before, threshold):
            return replace(self, threshold=threshold)
        frontier = self.trunk.frontier
        fallen, bound = (before - threshold)[frontier.task], frontier.bound
        size = bound.abs() + 2 * (fallen + before.abs()[frontier.task])
        raised = torch.where(
            (fallen > 0) & bound.isfinite(), bound + fallen - charge(size, SUM_OF_TWO), bound
        )
        left = batch.take(replace(frontier, bound=raised), ~(raised > 0))
        return replace(self, threshold=threshold, trunk=replace(self.trunk, frontier=left))


@dataclass(frozen=True, eq=False)
class Trunk:
    """What branching needs: created when the first bound is computed."""

    graph: Graph
    region: Box  # float64
    rules: Avoid  # with the rounding error of the factors added
    cut: Branching[Any]
    frontier: SubproblemQueue
    started: bool = False  # whether the branching rule has made the queue


@dataclass(frozen=True)
class BranchAndBound(Method[BoxTree]):
    """Branch and bound, worst lower bounds first, with searches for low margins where the bounds are weakest.

    When a proof is complete, a final search tries to refute it.

    Attributes:
        cut: the branching rule (default: split inputs where few of them vary, else activations).
        gap: tolerance of the value; None: stop when the sign of the margin is known.
    """

    finds: ClassVar[str] = "certified lower bounds"
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
        inside, rules = problem_box(problem), as_polytopes(problem)
        most = torch.full((len(problem),), torch.inf, dtype=torch.float64, device=inside.centre.device)
        threshold = torch.zeros_like(most) if self.gap is None else most
        chance = RandomStreams.of(problem.keys, seed, most.device)
        return BoxTree(inside, rules, chance, threshold, -most, most, most, inside.centre, most)

    def update_bounds(self, problem: Problem, state: BoxTree, lower: Tensor, upper: Tensor) -> BoxTree:
        state = replace(state, upper=upper)
        return state if self.gap is None else state.falling(upper - GAP_SHARE * self.gap)

    def step(self, problem: Problem, state: BoxTree) -> tuple[BoxTree | None, Claims]:
        try:
            if state.trunk is None:
                state = self._bound_quickly(self._bound_root(problem, state))
                if state.open_subproblems():  # report the first bounds before the better ones are computed
                    first: dict[str, Setting] = {"parts": 0}
                    return state, Claims(
                        proved=state.proved, assumptions=ASSUMPTIONS, checks=CHECKS, settings=first
                    )
            state = self._start_queue(state)
        except UnsupportedLayer as error:
            return None, Claims(obstacle=f"nothing is proved: {error}")
        trunk = state.trunk
        assert trunk is not None
        met: list[tuple[Tensor, Tensor, Tensor]] = []
        if len(trunk.frontier):
            state, met = self._grown(problem, state)
            trunk = state.trunk
            assert trunk is not None
        # Conclude before new candidates lower the thresholds: the bound must not exceed what was proved
        # before.
        state = state.conclude(
            torch.full_like(state.threshold, SMALLEST) if self.gap is None else state.threshold
        )
        done, obstacle = not len(trunk.frontier), ""
        if done and not time_limit.has_expired():
            met.append(self._search_again(problem, state))
        elif len(trunk.frontier) > QUEUE_FACTOR * trunk.cut.most(trunk.graph):
            done, obstacle = (
                True,
                f"{len(trunk.frontier)} subproblems are queued, more than the memory limit allows",
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
        graph = choose_graph(problem.network, graph, region, rules)
        cut = self.cut or choose_branching(graph, region)
        if self.cut is None and self.gap is None and fixes_inputs(graph, region, rules):
            cut = ConstraintSplit()
        elif self.cut is None and self.gap is None and isinstance(cut, ActivationSplit) and _convolves(graph):
            cut = EARLY_SPLITS
        elif self.cut is None and self.gap is None and isinstance(cut, InputSplit):
            cut = replace(cut, intervals=fixes_most_inputs(*region.enclosing_box()))
        if self.cut is None and self.gap is not None and isinstance(cut, InputSplit):
            cut = replace(cut, walks=False, elements=CACHED_ELEMENTS)
        nothing = torch.full_like(rules.offset[:, 0, 0], -torch.inf)
        rows = torch.arange(len(region), device=graph.device)
        frontier = SubproblemQueue(rows, all_open(rules), nothing)
        return replace(state, trunk=Trunk(graph, region, rules, cut, frontier))

    def _start_queue(self, state: BoxTree) -> BoxTree:
        """Let the branching rule make the queue of the rows that are open, which may take many passes."""
        trunk = state.trunk
        assert trunk is not None
        if trunk.started or not len(trunk.frontier):
            return state
        made = trunk.cut.start(trunk.graph, trunk.region, trunk.rules)
        made = batch.take(made, torch.isin(made.task, trunk.frontier.task))
        return replace(state, trunk=replace(trunk, frontier=made, started=True))

    def _bound_quickly(self, state: BoxTree) -> BoxTree:
        """First lower bounds, which take one pass through the network, and the queue without the rows they settle.

        Interval arithmetic bounds every node, then CROWN walks back once from the polytopes' rows. For x in the box
        some row of each polytope is at least its bound, so the score, the minimum over the polytopes of the largest
        row, is at least the minimum over the polytopes of the largest bound.
        """
        trunk = state.trunk
        assert trunk is not None
        boxes = crown.intervals(trunk.graph, trunk.region)
        matrix, offset = trunk.rules.matrix, trunk.rules.offset
        rows = crown.lower_bound(trunk.graph, boxes, matrix.flatten(1, 2), offset.flatten(1))
        rows = rows.nan_to_num(-torch.inf, torch.inf, -torch.inf).reshape(offset.shape)
        first = rows.amax(2).amin(1)
        left = batch.take(trunk.frontier, ~(first > state.threshold)[trunk.frontier.task])
        return replace(state, proved=torch.maximum(state.proved, first), trunk=replace(trunk, frontier=left))

    def _grown(self, problem: Problem, state: BoxTree) -> tuple[BoxTree, list[tuple[Tensor, Tensor, Tensor]]]:
        """Bound one batch of subproblems; return candidates from where the bounds are weakest."""
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
        # Input splitting produces many boxes soon: leave long searches to the method before this one.
        few = self.gap is not None or isinstance(trunk.cut, InputSplit | ConstraintSplit)
        downhill, longest = self._downhill(state), DESCENT_STEPS if few else MOST_DESCENT_STEPS
        chance = state.chance.substream(state.steps)
        found = search_weakest(
            problem.network, state.inside, state.rules, points, chance, downhill=downhill, longest=longest
        )
        return state, list(found)

    def _downhill(self, state: BoxTree) -> bool:
        step = state.steps - 1
        return step % 4 == 0 or (step < EARLY_BATCHES if self.gap is None else state.paid)

    def _search_again(self, problem: Problem, state: BoxTree) -> tuple[Tensor, Tensor, Tensor]:
        """Try to refute a complete proof: search from the best points, the centre and random points."""
        few = max(1, min(RESTARTS, 2**16 // state.at.numel()))
        start = torch.cat(
            [
                state.at[None],
                state.inside.centre[None],
                scatter_points(state.inside, few, state.chance.substream(0)),
            ]
        )
        found, score = descend_from(
            margin_problem(problem.network, state.inside, state.rules), start, DESCENT_STEPS
        )
        every = torch.arange(len(state.at), device=start.device).repeat(len(start))
        return found.flatten(0, 1), every, score.flatten()

    def _receive_candidates(
        self, problem: Problem, state: BoxTree, met: Iterable[tuple[Tensor, Tensor, Tensor]]
    ) -> tuple[BoxTree, Claims]:
        """Select the lowest candidate of each row if it improves the upper bound.

        If the value matters, candidates are evaluated in float64, in which the proofs are computed.
        """
        kept = [parts for parts in met if len(parts[0])]
        if not kept:
            return state, Claims()
        x, row, score = (torch.cat(parts) for parts in zip(*kept, strict=True))
        if self.gap is not None:
            twin = problem.network.double(state.inside.centre) or problem.network
            score = batch.take(state.rules, row).score(
                twin(batch.take(problem.region, row).project(x.double()))
            )
        claims = select_lowest(problem, x, row, score)
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


def _convolves(graph: Graph) -> bool:
    """Whether the network has a convolution or a pooling."""
    return any(isinstance(node, Affine) and node.kernel is not None for node in graph.nodes)


def _cut_settings(cut: Branching[Any]) -> dict[str, Setting]:
    return {"method": type(cut).__name__, **asdict(cut)}  # type: ignore[call-overload]


def _below(threshold: Tensor, bound: Tensor) -> Tensor:
    """Return threshold + bound, rounded down. A sum with zero is exact."""
    total = threshold + bound
    exact = (threshold == 0) | (bound == 0) | ~total.isfinite()
    return torch.where(exact, total, add_rounding_down(threshold, bound))
