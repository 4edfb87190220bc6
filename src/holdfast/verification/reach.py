"""What can come out? The smallest and largest value of outputs over boxes of inputs, each between a proof and a witness.

Every end of every output is a question of its own: how low does g = row . outputs get? (The largest value is the smallest of the
negative.) All are asked in one branch and bound. Each has a threshold, the lowest value that a concrete input was seen to reach less the
tolerance, and a part of the box is settled when its bounds say g > threshold.

Why the proved end holds. A threshold only ever falls, when a lower value is met. So every part that was settled, under whatever threshold,
lies above the one in force now. What is not settled waits with a lower bound of its own, and so does what was given up because
nothing is left to cut. These three cover the box, hence

    g >= min(threshold in force, bounds of the parts that wait, bounds of the parts given up)   everywhere in it.

A bound proved once stays true, so the best of them all is kept; the search may end at any time. Once nothing waits, the two ends
are a tolerance apart.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding.branching.frontier import Branching, Frontier
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.of_problem import ASSUMPTIONS, CHECKS
from holdfast.bounding.graph.prepare import prepared
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.network import Network
from holdfast.property import Avoid
from holdfast.region import Box
from holdfast.result import Bound, Bracket, Evidence, by_definition, contradiction
from holdfast.rounding import gamma
from holdfast.solver import Stop
from holdfast.verification.ranges import Range, box_of, rows_of, within
from holdfast.verification.search import FULL, lowered, method_for, near, problem_of, rounding, scattered

SAMPLES = 1024  # places that are tried for each question before any proof, in each round
NUMBERS = 2**22  # in all these places; fewer places for large inputs or many questions
STARTS, STEPS = 16, 24  # the best of them, from which the search goes downhill, and steps
ZOOM = 1 / 16  # each round looks in a box so much smaller around the best place so far
ROUNDS = 3
ROUNDS_BLACK_BOX = 12  # without gradients the boxes shrink slowly
CACHED = 2**21  # numbers in the forms of one batch of boxes: few enough to stay near the processor
SHY = 1 - 2.0**-20  # of the tolerance: what is left pays for rounding the difference of both ends
WIDENED = "the proof gives {proved!r}; widened to enclose {seen!r}, which the network itself was seen to give in {dtype}"


def reach(
    net: Network,
    box: Box | tuple[Tensor, Tensor],
    outputs: int | Sequence[int] | None = None,
    *,
    rows: Tensor | None = None,
    tolerance: float = 1e-2,
    stop: Stop | None = None,
    seed: int = 0,
    branching: Branching[Any] | None = None,
) -> list[Range]:
    """The smallest and largest value of outputs over a box, to a tolerance; one range for each output of each box, in order.

    box        a Box, which holds one for each row of its batch; or lower and upper ends, of one input or of a batch.
    outputs    which ones, by number; all if not said.
    rows       (questions, outputs): combinations row . outputs instead.
    stop       its seconds end the search with what is known by then. Without any it ends when all is known to the tolerance.
    branching  InputSplit or ActivationSplit; if not said, the first where few inputs move.

    The proved ends speak of the network in real arithmetic; the others were met by its twin in float64, or by itself where there is none.
    Where the network itself gives a value beyond a proved end by its own rounding, the end is moved out to it; a value of the twin beyond
    one is a Contradiction.
    """
    limit = stop or Stop()
    if limit.queries is not None or limit.gap:
        raise BadInput("reach stops after seconds only: leave queries out of stop, and say tolerance instead of gap.")
    if not 0 < tolerance < math.inf:
        raise BadInput(f"tolerance must be a number above 0, got {tolerance}.")
    began = time.monotonic()
    region = box_of(net, box)
    names, asked = rows_of(net.outputs_for(region.centre), outputs, rows)
    search = _Search(net, region, asked, tolerance, seed)
    try:
        search.run(branching, math.inf if limit.seconds is None else began + limit.seconds)
    except KeyboardInterrupt:
        search.note = "interrupted"
    return search.ranges(names, time.monotonic() - began)


class _Search:
    """All questions on their way to an answer. Question t is about a box, a row and an end: the largest values come second."""

    def __init__(self, net: Network, boxes: Box, rows: Tensor, tolerance: float, seed: int) -> None:
        self.net, self.tolerance, self.seed = net, tolerance, seed
        both = torch.stack([rows, -rows], dim=1).flatten(0, 1).to(net.device)  # (2 rows, outputs)
        self.region = batch.take(boxes, torch.arange(len(boxes), device=net.device).repeat_interleave(len(both)))
        self.matrix = both.repeat(len(boxes), 1)[:, None, None]
        self.inside = Box.between(*within(self.region, net.dtype))
        self.twin = net.double(self.inside.centre) or net
        self.coarse = math.sqrt(torch.finfo(net.dtype).eps)  # more than the network misses by rounding
        self.networks = {id(one): (one, one.queries) for one in (net, self.twin)}  # each with what it was asked before
        self.generator = torch.Generator().manual_seed(seed)
        self.best = torch.full((len(self.region),), torch.inf, dtype=torch.float64, device=net.device)  # lowest values met
        self.at = self.region.centre.clone()  # (questions, *shape), where
        self.threshold = self.best.clone()
        self.proved, self.given_up = -self.best, self.best.clone()  # lower bounds: of all values, and of those on parts given up
        self.settings: dict[str, Any] = {}
        self.frontier: Frontier | None = None
        self.note = ""

    @property
    def rules(self) -> Avoid:
        """Values at the threshold or below are what must not be."""
        return Avoid(self.matrix, -self.threshold[:, None, None])

    def run(self, method: Branching[Any] | None, deadline: float) -> None:
        self._hear(self.inside.centre, torch.arange(len(self.region), device=self.net.device))
        self._attack(deadline)
        try:
            graph = prepared(self.net, self.inside)
        except UnsupportedLayer as error:
            self.note = f"nothing is proved: {error}"
            return
        chosen = method or method_for(graph, self.region)
        if method is None and isinstance(chosen, InputSplit):
            chosen = replace(chosen, walks=False, elements=CACHED)
        self.settings = {"method": type(chosen).__name__, **asdict(chosen)}  # type: ignore[call-overload]
        self._prove(graph, chosen, deadline)
        if time.monotonic() < deadline:
            self._doubt()

    def _prove(self, graph: Graph, method: Branching[Any], deadline: float) -> None:
        self.frontier = method.start(graph, self.region, self.rules)
        paid = False  # whether the last search went anywhere
        for step in itertools.count():
            if not len(self.frontier):
                return
            if time.monotonic() >= deadline:
                self.note = "the time ran out"
                return
            tasks = self.frontier.task.unique()
            self.frontier, points = method.step(graph, self.region, self.rules, self.frontier, deadline)
            self._give_up(tasks)
            self._conclude()  # before the search: what is met now must not pass what was proved before
            before, downhill = self.best.clone(), paid or step % 4 == 0
            for x, task, _ in near(self.net, self.inside, self.rules, points, self.generator, downhill=downhill, longest=STEPS):
                self._hear(x, task)
            paid = downhill and bool((before - self.best > self.tolerance / 4).any())
            self._lower_thresholds()
            self._conclude()
            if len(self.frontier) > FULL * method.most(graph):
                self.note = f"{len(self.frontier)} parts wait to be cut further, more than memory should hold"
                return

    def _attack(self, deadline: float) -> None:
        """From many places at once, then in smaller and smaller boxes around the best."""
        smooth = self.net.differentiable
        width, size = self.inside.upper - self.inside.lower, self.inside.lower.numel()
        count = max(1, min(SAMPLES, NUMBERS // size))
        every = torch.arange(len(self.inside), device=self.net.device)
        for turn in range(ROUNDS if smooth else ROUNDS_BLACK_BOX):
            half = width / 2 * (ZOOM if smooth else 0.5) ** turn
            middle = self.at.to(width) if turn else self.inside.centre
            around = Box.between(self.inside.project(middle - half), self.inside.project(middle + half))
            problem = problem_of(self.net, around, self.rules)
            tried = scattered(around, count, self.generator)
            tried[0] = around.project(middle)
            if smooth:
                order = problem.score(tried).topk(min(STARTS, count), dim=0, largest=False).indices
                tried = tried.gather(0, order.reshape(*order.shape, *(1 for _ in around.shape)).expand(-1, *tried.shape[1:]))
            found, score = lowered(problem, tried, STEPS)
            lowest = torch.nan_to_num(score, math.inf).argmin(0)
            self._hear(found[lowest, every], every)
            if time.monotonic() >= deadline:
                return

    def _doubt(self) -> None:
        """Once more downhill from the best places: an honest proof has nothing to fear from that."""
        found, _ = lowered(problem_of(self.net, self.inside, self.rules), self.inside.project(self.at.to(self.inside.centre))[None], STEPS)
        self._hear(found[0], torch.arange(len(self.inside), device=self.net.device))

    @torch.no_grad()
    def _hear(self, x: Tensor, task: Tensor) -> None:
        """Candidates (n, *shape): the values there count as the twin sees them, in the box as it was given."""
        point = batch.take(self.region, task).project(x.double())
        value = self._values(self.twin(point), task)
        # The lowest candidate of each question: ordered by value, then by question.
        order = value.argsort(stable=True)
        order = order[task[order].argsort(stable=True)]
        first = torch.ones_like(order, dtype=torch.bool)
        first[1:] = task[order][1:] != task[order][:-1]
        chosen = order[first]
        chosen = chosen[value[chosen] < self.best[task[chosen]]]
        self.at[task[chosen]] = point[chosen]
        self.best[task[chosen]] = value[chosen]
        if self.frontier is None:
            self.threshold = self.best - SHY * self.tolerance

    def _values(self, outputs: Tensor, task: Tensor) -> Tensor:
        value = (self.matrix[task, 0, 0] * outputs.double()).sum(1)
        return torch.where(value.isfinite(), value, torch.inf)

    def _lower_thresholds(self) -> None:
        """To what was met by now. Bounds are relative to the threshold, so they rise; what is settled by that waits no more."""
        assert self.frontier is not None
        before, self.threshold = self.threshold, torch.minimum(self.threshold, self.best - SHY * self.tolerance)
        task, bound = self.frontier.task, self.frontier.bound
        fallen = before - self.threshold
        size = bound.abs() + 2 * (fallen + before.abs())[task]
        raised = torch.where(fallen[task] > 0, bound + fallen[task] - 4 * gamma(1) * size, bound)
        raised = torch.where(bound.isfinite(), raised, bound)
        frontier = replace(self.frontier, bound=raised)
        self.frontier = batch.take(frontier, ~(raised > 0))

    def _give_up(self, tasks: Tensor) -> None:
        """A frontier says how low its given up parts may get, but not whose they were: any of those that waited."""
        assert self.frontier is not None
        if self.frontier.lost < math.inf:
            low = _below(self.threshold[tasks], torch.full_like(self.threshold[tasks], self.frontier.lost))
            self.given_up[tasks] = torch.minimum(self.given_up[tasks], low)
            self.frontier = replace(self.frontier, lost=math.inf)

    def _conclude(self) -> None:
        assert self.frontier is not None
        waiting = torch.full_like(self.threshold, torch.inf).scatter_reduce(0, self.frontier.task, self.frontier.bound, "amin")
        low = torch.where(waiting < 0, _below(self.threshold, waiting), self.threshold)
        self.proved = torch.maximum(self.proved, torch.minimum(low, self.given_up))

    def ranges(self, names: Sequence[int], seconds: float) -> list[Range]:
        if self.frontier is not None:
            self._give_up(torch.arange(len(self.region), device=self.net.device))  # an interruption may have come before
            self._conclude()
        outputs = self.twin(self.at)
        self.best = self._values(outputs, torch.arange(len(self.at), device=self.net.device))  # replayed
        missed = rounding(self.matrix[:, 0, 0], outputs).tolist()
        queries = sum(one.queries - before for one, before in self.networks.values())
        nodes = 0 if self.frontier is None else self.frontier.looked
        alone = torch.cat([self.net(point[None]) for point in self.at]).double()
        executed = (self.matrix[:, 0, 0] * alone).sum(1).tolist()
        places = itertools.product(range(len(self.region) // (2 * len(names))), names)
        found = []
        for t, (box, name) in enumerate(places):
            ends = [self._bracket(k, executed[k], missed[k], f"box {box}, output {name}") for k in (2 * t, 2 * t + 1)]
            (low, below), (high, above) = ends
            low_at, high_at = (self.at[k].cpu() for k in (2 * t, 2 * t + 1))
            one = Range(box, name, low, high, low_at, high_at, self.tolerance, seconds, nodes, queries, self.note, (below, above))
            found.append(replace(one, note="") if one.closed else one)
        return found

    def _bracket(self, t: int, executed: float, missed: float, where: str) -> tuple[Bracket, float]:
        """Of the smallest or largest value, and how far its proved end was moved out. A proof of real arithmetic meets what its twin in
        float64 met; by more than rounding it must not pass that. What the network itself gave is enclosed, whatever its rounding."""
        turned = -1.0 if t % 2 else 1.0
        best, proved = float(self.best[t]), float(self.proved[t])
        said, point = {"as executed": turned * executed}, self.at[t].cpu().clone()
        seen = Evidence("witnessed", "reach", said, self.seed, dtype=str(self.twin.dtype), witness=point)
        settings = {"tolerance": self.tolerance, **self.settings}
        proof = Evidence("proved", "reach", settings, self.seed, dtype="torch.float64", assumptions=ASSUMPTIONS, checks=CHECKS)
        if proved > best + missed:
            raise contradiction(*_turned(Bound(proved, proof), Bound(best, seen), turned), where)
        end = min([proved, best, *([executed] if math.isfinite(executed) else [])])
        by = proved - end if end < proved < math.inf else 0.0
        if by:
            dtype = self.net.dtype if end == executed else self.twin.dtype
            told = WIDENED.format(proved=turned * proved, seen=turned * end, dtype=str(dtype).removeprefix("torch."))
            proof = replace(proof, assumptions=(*proof.assumptions, told))
        lower = Bound(end, proof) if end > -math.inf else by_definition(-math.inf)
        # A value that only float64 gives was not met by the network itself.
        met = max(best, executed) if math.isfinite(executed) and executed - best > self.coarse * (1 + abs(best)) else best
        return Bracket(*_turned(lower, Bound(met, seen), turned)), by


def _turned(lower: Bound, upper: Bound, side: float) -> tuple[Bound, Bound]:
    """Of the negative values: the ends of the values themselves."""
    return (lower, upper) if side > 0 else (Bound(-upper.value, upper.evidence), Bound(-lower.value, lower.evidence))


def _below(threshold: Tensor, bound: Tensor) -> Tensor:
    """threshold + bound, rounded down."""
    total = threshold + bound
    return torch.where(total.isfinite(), total - 4 * gamma(1) * (threshold.abs() + bound.abs()), total)
