"""Can the forbidden happen? VNN-LIB questions, answered by a counterexample that was replayed or by a proof that there is none."""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding.branch import Branching, Frontier, Points
from holdfast.bounding.graph import Graph
from holdfast.bounding.prepare import prepared
from holdfast.bounding.question import ASSUMPTIONS, CHECKS
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.lipschitz.search import FULL, OFTEN, lowered, method_for, near, problem_of, scattered
from holdfast.network import Network
from holdfast.property import Avoid
from holdfast.region import Box
from holdfast.result import Evidence
from holdfast.solver import Stop
from holdfast.vnnlib import Case, Spec, read_vnnlib

Answer = Literal["sat", "unsat", "unknown", "timeout"]
ROUNDED_FACTORS = "factors of outputs that float64 cannot write are taken as the nearest number that it can"
STARTS, STEPS = 2048, 30  # of the search before any proof: places, and steps from each
NUMBERS = 2**19  # in all these places; fewer places for large inputs
REPLAYED = 32  # candidates of one batch that are replayed at most


@dataclass(frozen=True)
class Verdict:
    """sat: `witness` is a counterexample, replayed. unsat: proved that there is none. timeout: the budget ran out before either.
    unknown: nothing more can be tried, or the search was interrupted.

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
    method: Branching[Any] | None = None,
    judges: Sequence[Network] = (),
) -> Verdict:
    """Can anything that the property describes happen?

    spec    a VNN-LIB file, or what `read_vnnlib` made of one.
    stop    its seconds end the search with `timeout`. Without any it ends when the question is settled, which may be never.
    method  InputSplit or ActivationSplit; if not said, the first where few inputs move.
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
        search.run(method, math.inf if seconds is None else began + seconds)
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
        self.inside = Box.between(*_within(spec, shape, net))  # nothing that it forbids is inside, and in the network's arithmetic
        self.rules = batch.move(spec.rules(), net.device)
        self.rules.check(cases, net.outputs_for(self.inside.centre))
        twin = net.double(self.inside.centre)
        self.judges = [net, *([] if twin is None or twin is net else [twin]), *judges]
        self.generator = torch.Generator().manual_seed(seed)
        self.answer: Answer = "unknown"
        self.note = ""
        self.witness: tuple[Tensor, Tensor] | None = None  # the input, and the outputs there
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
        self._prove(graph, chosen, deadline)

    def _prove(self, graph: Graph, method: Branching[Any], deadline: float) -> None:
        self.frontier = frontier = method.start(graph, self.region, self.rules)
        for step in itertools.count():
            if not len(frontier):
                break
            if time.monotonic() >= deadline:
                self.answer = "timeout"
                return
            self.frontier, points = method.step(graph, self.region, self.rules, frontier, deadline)
            frontier = self.frontier
            self._search(points, downhill=step < OFTEN or step % 4 == 0)
            if self.witness is not None:
                return
            if len(frontier) > FULL * method.most(graph):
                self.note = f"{len(frontier)} parts wait to be cut further, more than memory should hold"
                return
        self.answer = "unsat" if frontier.lost == math.inf else "unknown"

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
        for i in score.argsort()[:REPLAYED].tolist():
            if float(score[i]) > 0:
                return
            if self._replayed(x[i], self.spec.cases[int(task[i])]):
                self.answer = "sat"
                return

    def _replayed(self, x: Tensor, case: Case) -> bool:
        """The network itself, its twin in float64 and every judge must say what the file forbids, compared without rounding."""
        exact = _as_written(x.double().flatten().tolist(), case)
        point = torch.tensor(exact, dtype=torch.float64).reshape(1, *x.shape)
        if not case.holds(exact):
            return False
        said = [judge(point).double().flatten().cpu() for judge in self.judges]
        if not all(bool(y.isfinite().all()) and case.met(y.tolist()) for y in said):
            return False
        self.witness = point[0], said[0]
        return True

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
            assumed = ASSUMPTIONS if self.spec.exact else (*ASSUMPTIONS, ROUNDED_FACTORS)
            return Evidence("proved", "verify", self.settings, self.seed, dtype="torch.float64", assumptions=assumed, checks=CHECKS)
        if self.witness is not None:
            return Evidence("witnessed", "verify", self.settings, self.seed, dtype=str(self.net.dtype), witness=self.witness[0])
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


def _within(spec: Spec, shape: tuple[int, ...], net: Network) -> tuple[Tensor, Tensor]:
    """-> lower, upper (cases, *shape) in the network's arithmetic: all of its numbers between the ends as written, or the nearest one."""
    ends = []
    for side, away in (("lower", math.inf), ("upper", -math.inf)):
        written = [case.lower if side == "lower" else case.upper for case in spec.cases]
        value = torch.tensor([[float(end.value) for end in row] for row in written], dtype=torch.float64)
        strict = torch.tensor([[end.strict for end in row] for row in written])
        near = value.to(net.dtype)
        short = (near.double() < value if away > 0 else near.double() > value) | (strict & (near.double() == value))
        ends.append((torch.where(short, torch.nextafter(near, torch.full_like(near, away)), near), near))
    (lower, near), (upper, _) = ends
    empty = lower > upper
    lower, upper = (torch.where(empty, near, end).reshape(-1, *shape).to(net.device) for end in (lower, upper))
    return lower, upper


def _as_written(x: list[float], case: Case) -> list[float]:
    """Where the network's arithmetic has no number between two ends, the end itself."""
    ends = zip(x, case.lower, case.upper, strict=True)
    return [min(max(value, float(low.value)), float(high.value)) for value, low, high in ends]
