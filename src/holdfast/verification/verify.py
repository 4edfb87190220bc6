"""Can the forbidden happen? VNN-LIB questions, answered by a counterexample that was replayed or by a proof that there is none."""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding.branching.frontier import Branching, Frontier, Points
from holdfast.bounding.crown_within import propagate
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.of_problem import ASSUMPTIONS, CHECKS
from holdfast.bounding.graph.prepare import prepared
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.network import Network
from holdfast.property import Avoid
from holdfast.region import Box
from holdfast.result import Bound, Evidence, contradiction
from holdfast.rounding import TINY, gamma
from holdfast.solver import Stop
from holdfast.verification.search import FULL, OFTEN, lowered, method_for, near, problem_of, rounding, scattered
from holdfast.verification.vnnlib import Spec, read_vnnlib

Answer = Literal["sat", "unsat", "unknown", "timeout"]
NEAREST = "inputs held where float64 has no number are taken at the nearest; both of its neighbours there give a counterexample too"
STARTS, STEPS = 2048, 30  # of the search before any proof: places, and steps from each
NUMBERS = 2**19  # in all these places; fewer places for large inputs
REPLAYED = 32  # candidates of one batch that are replayed at most
CASES = 64  # whose outputs are bounded together
DOUBTS = 8  # places that came nearest, from which the search goes on once more when a proof is complete
TOUCHES = "an input was met whose outputs are forbidden by less than float64 rounds, which the proof excludes for real arithmetic"


@dataclass(frozen=True)
class Verdict:
    """sat: `witness` is a counterexample, replayed. unsat: proved that there is none. timeout: the budget ran out before either.
    unknown: nothing more can be tried, or the search was interrupted. A proof and a counterexample that exclude each other are neither:
    they raise Contradiction.

    The score is positive exactly where nothing forbidden happens. least <= its smallest value <= lowest: the first is proved, the
    second was met by the network itself.
    """

    answer: Answer
    witness: Tensor | None  # (*shape) float64
    outputs: Tensor | None  # what the network says there
    least: float
    lowest: float
    nodes: int  # parts of the region that were bounded
    seconds: float
    evidence: Evidence | None
    note: str = ""

    @property
    def gap(self) -> float:
        """What is left to prove or to find; zero where the answer is known."""
        return 0.0 if self.answer in ("sat", "unsat") else self.lowest - self.least


def verify(
    net: Network,
    spec: Spec | str | Path,
    *,
    stop: Stop | None = None,
    seed: int = 0,
    branching: Branching[Any] | None = None,
    judges: Sequence[Network] = (),
) -> Verdict:
    """Can anything that the property describes happen?

    spec    a VNN-LIB file, or what `read_vnnlib` made of one.
    stop    its seconds end the search with `timeout`. Without any it ends when the question is settled, which may be never.
    branching  InputSplit or ActivationSplit; if not said, the first where few inputs move.
    judges  the same network on other machinery: a counterexample counts only where they agree.
    """
    seconds = (stop or Stop()).seconds
    if stop is not None and (stop.queries is not None or stop.gap):
        raise BadInput("a verification stops after seconds only: leave queries and gap out of stop.")
    asked = spec if isinstance(spec, Spec) else read_vnnlib(spec)
    began = time.monotonic()
    if not asked.cases:
        nobody = Evidence("proved", "definition", assumptions=("no input meets what the property asks of inputs",))
        return Verdict("unsat", None, None, math.inf, math.inf, 0, 0.0, nobody)
    search = _Search(net, asked, seed, judges)
    try:
        search.run(branching, math.inf if seconds is None else began + seconds)
    except KeyboardInterrupt:
        search.answer, search.note = "sat" if search.witness else "unknown", "interrupted"
    return search.verdict(time.monotonic() - began)


class _Search:
    """One question on its way to an answer."""

    def __init__(self, net: Network, spec: Spec, seed: int, judges: Sequence[Network]) -> None:
        self.net, self.spec, self.seed = net, spec, seed
        shape, cases = input_shape(net, spec.inputs, spec.name), len(spec.cases)
        lower, upper = (end.reshape(cases, *shape).to(net.device) for end in spec.box())
        self.region = Box.between(lower, upper)  # nothing that the file allows is outside
        self.allowed = _Allowed.by(spec, shape)
        self.inside = Box.between(*self.allowed.within(net))  # nothing that it forbids is inside, and in the network's arithmetic
        self.rules = batch.move(spec.rules(), net.device)
        self.rules.check(cases, net.outputs_for(self.inside.centre))
        twin = net.double(self.inside.centre)
        self.own = [net, *([] if twin is None or twin is net else [twin])]  # the network in all its arithmetics, the best one last
        self.judges = judges
        self.met: Bound | None = None  # the lowest score of a counterexample in all of them, believed by the judges or not
        self.missed = 0.0  # by rounding, of that score
        self.places: tuple[Tensor, Tensor, Tensor] | None = None  # that came nearest to being one, their cases, and their scores
        self.generator = torch.Generator().manual_seed(seed)
        self.answer: Answer = "unknown"
        self.note = ""
        self.witness: tuple[Tensor, Tensor] | None = None  # the input, and the outputs there
        self.nearest = False  # whether it stands for an input that float64 cannot write
        self.frontier: Frontier | None = None
        self.settings: dict[str, Any] = {}
        self.lowest = math.inf

    def run(self, method: Branching[Any] | None, deadline: float) -> None:
        self._attack()
        if self.witness is not None:
            return
        try:
            graph = prepared(self.net, self.inside)
        except UnsupportedLayer as error:
            self.note = str(error)
            return
        chosen = method or method_for(graph, self.region)
        self.settings = {"method": type(chosen).__name__, **asdict(chosen)}  # type: ignore[call-overload]
        rules = self._charged(graph)
        if rules is None:
            self.note = "nothing bounds the outputs, so what rounding the factors of the property misses cannot be charged"
            return
        self._prove(graph, chosen, rules, deadline)

    def _charged(self, graph: Graph) -> Avoid | None:
        """The rules with offsets so much lower that the factors as they are written forbid nothing else; None where no proof can know."""
        if self.spec.exact:
            return self.rules
        missed = self.spec.missed().to(self.net.device)
        parts = (batch.take(self.region, some) for some in torch.arange(len(self.region), device=self.net.device).split(CASES))
        largest = torch.cat([propagate(graph, part)[0].largest(graph.output).flatten(1) for part in parts])
        charge = torch.where(missed > 0, missed * largest[:, None, None], 0).sum(-1) * (1 + 4 * gamma(missed.shape[-1])) + TINY
        offset = self.rules.offset - torch.where((missed > 0).any(-1), charge, 0)
        offset = torch.nextafter(offset, torch.full_like(offset, -torch.inf))
        return replace(self.rules, offset=offset) if bool(offset.isfinite().all()) else None

    def _prove(self, graph: Graph, method: Branching[Any], rules: Avoid, deadline: float) -> None:
        self.frontier = frontier = method.start(graph, self.region, rules)
        for step in itertools.count():
            if not len(frontier):
                break
            if time.monotonic() >= deadline:
                self.answer = "timeout"
                return
            self.frontier, points = method.step(graph, self.region, rules, frontier, deadline)
            frontier = self.frontier
            self._agree()
            self._search(points, downhill=step < OFTEN or step % 4 == 0)
            if self.witness is not None:
                return
            if len(frontier) > FULL * method.most(graph):
                self.note = f"{len(frontier)} parts wait to be cut further, more than memory should hold"
                return
        self.answer = "unsat" if frontier.lost == math.inf else "unknown"
        if self.answer == "unsat" and time.monotonic() < deadline:
            self._doubt()

    def _agree(self) -> None:
        """Scores are positive where the proof is done, and nowhere below its bounds where it is not: a counterexample must leave that room.

        Its score counts as the network's twin in float64 sees it, up to what evaluating that may miss.
        """
        if self.frontier is None or self.met is None:
            return
        least = min(self.frontier.least, 0.0)
        if self.met.value + self.missed < least:
            proof = Evidence("proved", "verify", self.settings, self.seed, dtype="torch.float64", assumptions=ASSUMPTIONS)
            raise contradiction(Bound(least, proof), self.met, self.spec.name)
        if self.frontier.least == math.inf:
            self.note = TOUCHES

    def _doubt(self) -> None:
        """A proof that is complete must stand up to one more search, from the places that came nearest."""
        if self.places is not None:
            x, task, _ = self.places
            problem = problem_of(self.net, batch.take(self.inside, task), batch.take(self.rules, task))
            found, score = lowered(problem, x[None], STEPS)
            for i in (score[0] <= 0).nonzero().flatten().tolist():
                self._own(found[0, i], int(task[i]))
        self._agree()

    def _attack(self) -> None:
        """Every polytope of every case by itself, from many places at once."""
        each = torch.arange(len(self.inside), device=self.net.device).repeat_interleave(self.rules.offset.shape[1])
        boxes = batch.take(self.inside, each)
        aims = problem_of(self.net, boxes, Avoid(self.rules.matrix.flatten(0, 1)[:, None], self.rules.offset.flatten(0, 1)[:, None]))
        count = max(1, min(STARTS, NUMBERS // boxes.centre[0].numel()) // len(aims))
        start = scattered(boxes, count, self.generator)
        start[0] = boxes.centre
        points, score = lowered(aims, start, STEPS)
        self._hear(points.flatten(0, 1), each.repeat(count), score.flatten())

    def _search(self, points: Points, *, downhill: bool) -> None:
        for candidates in near(self.net, self.inside, self.rules, points, self.generator, downhill=downhill):
            self._hear(*candidates)
            if self.witness is not None:
                return

    def _hear(self, x: Tensor, task: Tensor, score: Tensor) -> None:
        """Candidates (n, *shape): the first that stands up to being replayed is the answer."""
        score = torch.nan_to_num(score, math.inf)
        self.lowest = min(self.lowest, float(score.min()))
        self._remember(x, task, score)
        for i in score.argsort()[:REPLAYED].tolist():
            if float(score[i]) > 0:
                return
            if self._replayed(x[i], int(task[i])):
                self.answer = "sat"
                return

    def _remember(self, x: Tensor, task: Tensor, score: Tensor) -> None:
        before = [] if self.places is None else [self.places]
        every = [torch.cat(parts) for parts in zip(*before, (x, task, score), strict=True)]
        nearest = every[2].topk(min(DOUBTS, len(every[2])), largest=False).indices
        self.places = every[0][nearest], every[1][nearest], every[2][nearest]

    def _replayed(self, x: Tensor, task: int) -> bool:
        """The network itself, its twin in float64 and every judge must say what the file forbids, compared without rounding."""
        found = self._own(x, task)
        if found is None:
            return False
        points, outputs = found
        self._agree()
        if not all(self._forbidden(judge(points).double().flatten(1).cpu(), task) for judge in self.judges):
            return False
        self.witness = points[0], outputs
        self.nearest = len(points) > 1
        return True

    def _own(self, x: Tensor, task: int) -> tuple[Tensor, Tensor] | None:
        """-> the points asked, and the network's outputs at the first, if it says what the file forbids in all its arithmetics."""
        points = self.allowed.points(x, task)
        if points is None:
            return None
        said = [one(points).double().flatten(1).cpu() for one in self.own]
        if not all(self._forbidden(outputs, task) for outputs in said):
            return None
        rules, best = batch.take(batch.move(self.rules, torch.device("cpu")), torch.tensor([task])), said[-1][:1]
        score = float(rules.score(best))
        if self.met is None or score < self.met.value:
            dtypes = ", ".join(str(one.dtype).removeprefix("torch.") for one in self.own)
            shown = Evidence("witnessed", "verify", {"replayed in": dtypes}, self.seed, dtype=str(self.own[-1].dtype), witness=points[0])
            self.met = Bound(score, shown)
            self.missed = float(rounding(rules.matrix, best.to(self.own[-1].dtype), rules.offset).max())
        return points, said[0][0]

    def _forbidden(self, outputs: Tensor, task: int) -> bool:
        case = self.spec.cases[task]
        return bool(outputs.isfinite().all()) and all(case.met(y) for y in outputs.tolist())

    def verdict(self, seconds: float) -> Verdict:
        frontier = self.frontier
        return Verdict(
            self.answer,
            self.witness[0] if self.witness else None,
            self.witness[1] if self.witness else None,
            -math.inf if frontier is None else frontier.least,
            self.lowest,
            0 if frontier is None else frontier.looked,
            seconds,
            self._evidence(),
            self.note,
        )

    def _evidence(self) -> Evidence | None:
        if self.answer == "unsat":
            return Evidence("proved", "verify", self.settings, self.seed, dtype="torch.float64", assumptions=ASSUMPTIONS, checks=CHECKS)
        if self.witness is not None:
            assumed, dtype = (NEAREST,) if self.nearest else (), str(self.net.dtype)
            return Evidence("witnessed", "verify", self.settings, self.seed, dtype=dtype, assumptions=assumed, witness=self.witness[0])
        return None


def input_shape(net: Network, inputs: int, name: str = "the property") -> tuple[int, ...]:
    """The shape of one input, which must hold as many numbers as the property speaks of; an open size follows from that."""
    known = (inputs,) if net.shape is None else net.shape
    fixed = math.prod(size for size in known if size is not None)
    if known.count(None) == 1 and fixed and inputs % fixed == 0:
        known = tuple(inputs // fixed if size is None else size for size in known)
    shape = tuple(size for size in known if size is not None)
    if not shape or len(shape) != len(known) or math.prod(shape) != inputs:
        shown = " x ".join("any" if size is None else str(size) for size in known) or "one number without a batch axis"
        raise BadInput(f"{name} speaks of {inputs} inputs, but {net.name} takes {shown}.")
    return shape


@dataclass(frozen=True)
class _Allowed:
    """What the file allows of inputs, without any rounding, each end (cases, *shape) float64."""

    lower: Tensor  # between the first two lie exactly the numbers of float64 that are allowed
    upper: Tensor
    below: Tensor  # and these are the nearest numbers that are not above, or not below, any that is
    above: Tensor
    nearest: Tensor  # to the lower end as it is written

    @staticmethod
    def by(spec: Spec, shape: tuple[int, ...]) -> "_Allowed":
        nearest = torch.tensor([[float(end.value) for end in case.lower] for case in spec.cases], dtype=torch.float64)
        return _Allowed(*(end.reshape(-1, *shape) for end in (*spec.inside(), *spec.box(), nearest)))

    def within(self, net: Network) -> tuple[Tensor, Tensor]:
        """-> lower, upper in the network's arithmetic: all of its numbers that are allowed, or the nearest one where there is none."""
        ends = []
        for end, away in ((self.lower, math.inf), (self.upper, -math.inf)):
            near = end.to(net.dtype)
            short = near.double() < end if away > 0 else near.double() > end
            ends.append(torch.where(short, torch.nextafter(near, torch.full_like(near, away)), near))
        lower, upper = ends
        largest = torch.finfo(net.dtype).max
        nearest = self.nearest.clamp(-largest, largest).to(net.dtype)
        empty = lower > upper
        return torch.where(empty, nearest, lower).to(net.device), torch.where(empty, nearest, upper).to(net.device)

    def points(self, x: Tensor, task: int) -> Tensor | None:
        """A candidate as the file allows it, in float64: (1, *shape). Where the network's arithmetic has no number between two ends it
        is moved to one. Where float64 has none either, it is the nearest, followed by its neighbours on both sides: (3, *shape)."""
        lower, upper, below, above, nearest = (end[task] for end in (self.lower, self.upper, self.below, self.above, self.nearest))
        point = torch.minimum(torch.maximum(x.double().cpu(), lower), upper)
        empty = lower > upper
        if not bool((point.isfinite() | empty).all()):
            return None
        if not bool(empty.any()):
            return point[None]
        return torch.stack([torch.where(empty, end, point) for end in (nearest, below, above)])
