"""Decide a question about a loop by splitting the box of initial states (branch and bound over inputs).

Statement. Times are counted in periods. Over a subproblem (a box of initial states) the enclosures of `flow` give,
for every moment tau of a grid and for every interval between two neighbours, bounds of the rows A x of the
polytope { A x <= b }. A moment or an interval is *inside* if all upper bounds are at most b, and *outside* if some
lower bound is above b. With the moments and intervals of the question's window,

    stay   is proved if all are inside,     violated if one is outside;
    avoid  is proved if all are outside,    violated if one is inside;
    reach  is proved if one is inside,      violated if all are outside.

The intervals cover the window, so stay and avoid hold at every real time. A question is proved if it is proved for
all subproblems, and violated if it is violated over the box of a single initial state: that is a theorem about the
solution that starts there, not an observation of a simulation.

Reference: Moore, Kearfott, Cloud, "Introduction to interval analysis" (2009), chapter 11 for subdivision.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast import batch
from holdfast.memory_budget import allowed_bytes, free_bytes
from holdfast.reachability.affine_sets import AffineSet, reduce_order
from holdfast.reachability.conditions import Polytope
from holdfast.reachability.flow import TUBE_PARTS, Enclosure, upper_bounds
from holdfast.reachability.model import LoopModel

Kind = Literal["stay", "avoid", "reach"]

BATCH = 64  # Subproblems that are enclosed together (chosen by hand).
FINEST = 8  # A period is divided into at most 2^FINEST steps (chosen by hand).
# A pass gives up boxes whose remainder is too large at the shortest step after this number of these steps (chosen by hand:
# such a box has to be split, and a period may have 2^FINEST of them).
MOST_INEXACT_STEPS = 32
# Boxes without an a-priori box at steps 2^PATIENCE times shorter than the last ones are given up, if others of the
# batch have one (chosen by hand).
PATIENCE = 3
# A step is short enough if the remainder is at most this share of the radius of the set (chosen by hand) ...
REMAINDER_SHARE = 2e-3
# ... or of the width of the a-priori box, where the set is nearly a point (chosen by hand).
REMAINDER_OF_BOX = 1e-5
# ... or this one in a state that is nearly known, if others are not (chosen by hand). Nearly known is a state whose
# radius is at most KNOWN_SHARE of the width of the a-priori box.
REMAINDER_OF_KNOWN = 1e-3
KNOWN_SHARE = 1e-2
# A step may be doubled if its remainder is this many times below what is allowed (chosen by hand: the remainder
# of order k + 1 grows by 2^(k+1)).
EASY = 64.0
SYMBOLS_OF_A_STATE = 16  # Noise symbols kept for each state and control (chosen by hand).
SAMPLES = 512  # Trajectories that are simulated first (chosen by hand).
REFINEMENTS = 4  # Rounds of a local search from the worst trajectories (chosen by hand).
CANDIDATES = 4  # Initial states whose violation is verified together (chosen by hand).
# float64 tensors of the size of all forms that are alive at once, for planning memory (chosen by hand).
COPIES = 8


@dataclass(frozen=True)
class LoopQuestion:
    """A question: a polytope, how states relate to it, and the window of time, in periods."""

    kind: Kind
    polytope: Polytope
    begin: float
    end: float

    def excess(self, states: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
        """How far simulated trajectories (batch, times, n) are from the answer yes: (batch,), positive for a
        violation; and the number of the decisive moment.
        """
        over = self.polytope.excess(states).amax(-1)
        over = -over if self.kind == "avoid" else over
        inside = (moments >= self.begin - 1e-9) & (moments <= self.end + 1e-9)
        worst = over.masked_fill(~inside, torch.inf if self.kind == "reach" else -torch.inf)
        found = worst.min(1) if self.kind == "reach" else worst.max(1)
        return found.values, found.indices


@dataclass(frozen=True)
class BoxRun:
    """What one pass over a batch of boxes found; not-a-number where nothing was computed.

    Attributes:
        proved, violated: (batch,) bool.
        excess: (batch,), an upper bound of how far a state is from the answer yes; infinite if unknown.
        share: (batch, n): the share of each initial state in the width that decides.
        ends: (batch, steps + 1, n, 2), bounds of the states at the beginning of each period and at the last end.
        tube: (batch, steps, n, 2), bounds over each period.
        complete: whether the time sufficed.
    """

    proved: Tensor
    violated: Tensor
    excess: Tensor
    share: Tensor
    ends: Tensor
    tube: Tensor
    complete: bool


class Runner:
    """Passes over batches of boxes."""

    def __init__(
        self, enclosure: Enclosure, question: LoopQuestion, steps: int, period: float, discrete: bool
    ) -> None:
        self.enclosure, self.question, self.steps = enclosure, question, steps
        self.period, self.discrete = period, discrete
        n = enclosure.states
        one = torch.eye(n, dtype=torch.float64)
        rows = question.polytope.rows
        self.rows = torch.cat([rows, -rows, one, -one])
        self.most = SYMBOLS_OF_A_STATE * (n + enclosure.controller.output.size)
        self.level = 0  # A step is period / 2^level.

    def run(
        self, lower: Tensor, upper: Tensor, *, until: float, whole: bool, steps: int | None = None
    ) -> BoxRun:
        """Enclose all trajectories that start in the boxes (batch, n).

        Args:
            until: the moment of time.monotonic() at which to stop.
            whole: whether rows that are decided continue, so that the tube is complete.
            steps: the number of periods; default: all.
        """
        steps = self.steps if steps is None else steps
        self.results = _Results(self.question, self.rows, len(lower), lower.shape[1], self.steps)
        self.rows_left = torch.arange(len(lower))
        self.state = AffineSet.box(lower, upper)
        self.inexact = 0  # Steps of the shortest length whose remainder was too large.
        complete = True
        for k in range(steps):
            if time.monotonic() >= until:
                complete = False
                break
            if not self._period(k, until):
                complete = False
                break
            if not whole:
                going = ~self.results.find_decided_rows()[self.rows_left]
                self._keep(going)
            if not len(self.rows_left):
                break
        if complete and self.discrete and len(self.rows_left):
            self._record_moment(steps)
        if complete:
            self.results.note_share(self.rows_left, self.state)
            self.results.finish(self.rows_left)
        return self.results.answer(complete)

    def _keep(self, going: Tensor) -> None:
        """Continue with some of the remaining rows."""
        if not bool(going.all()):
            self.results.note_share(self.rows_left[~going], batch.take(self.state, ~going))
            self.rows_left, self.state = self.rows_left[going], batch.take(self.state, going)

    def _record_moment(self, k: int) -> None:
        """Record the set at the beginning of period k of a discrete loop."""
        at = upper_bounds(self.state, self.rows)[:, None]
        self.results.moment(self.rows_left, float(k), at[:, 0], self.state)
        self.results.keep_end(self.rows_left, k, at[:, 0])

    def _period(self, k: int, until: float) -> bool:
        """Advance by one period; False if the time ran out."""
        n = self.enclosure.states
        if self.discrete:
            self._record_moment(k)
            self._keep(self.state.radius.isfinite().all(1))
            if len(self.rows_left):
                z = self.enclosure.control(self.state)
                self.state = reduce_order(self.enclosure.discrete(z), self.most, n)
                at = upper_bounds(self.state, self.rows)
                self.results.widen_tube(self.rows_left, k, at)
                lost = ~at.isfinite().all(1)
                self.results.lose(self.rows_left[lost])
                self._keep(~lost)
            return True
        z = self.enclosure.control(self.state)
        place, whole, usual = 0, 2**FINEST, self.level
        while place < whole and len(self.rows_left):
            if time.monotonic() >= until:
                return False
            while place % (whole >> self.level):
                self.level += 1
            step, valid = self.enclosure.flow(z, self.period / 2**self.level)
            easy, fine = self._quality(z, step)
            patient = self.level < usual + PATIENCE or not bool((valid & fine).any())
            if not bool((valid & fine).all()) and self.level < FINEST and patient:
                self.level += 1
                continue
            self.inexact += self.level == FINEST and not bool(fine.all())
            if self.inexact > MOST_INEXACT_STEPS:
                valid = valid & fine
            if not bool(valid.all()):
                self.results.lose(self.rows_left[~valid])
                self._keep(valid)
                z, step = batch.take(z, valid), step.take(valid)
                if not len(self.rows_left):
                    break
            span = (whole >> self.level) / whole
            begin = k + place / whole
            at, between = step.row_bounds(self.rows)
            for i in range(TUBE_PARTS):
                left, right = begin + span * i / TUBE_PARTS, begin + span * (i + 1) / TUBE_PARTS
                self.results.moment(self.rows_left, left, at[:, i], self.state)
                self.results.interval(self.rows_left, left, right, between[:, i], self.state)
                self.results.widen_tube(self.rows_left, k, between[:, i])
            if place == 0:
                self.results.keep_end(self.rows_left, k, at[:, 0])
            place += whole >> self.level
            if place == whole:
                self.results.moment(self.rows_left, float(k + 1), at[:, -1], self.state)
                self.results.keep_end(self.rows_left, k + 1, at[:, -1])
            end = step.end()
            held = z.part(n, z.centre.shape[1]).with_symbols(end.symbols)
            z = AffineSet(
                torch.cat([end.centre, held.centre], 1),
                torch.cat([end.generators, held.generators], 2),
                torch.cat([end.error, held.error], 1),
            )
            z = reduce_order(z, self.most, n)
            self.state = z.part(0, n)
            usual = self.level
            if easy and self.level:
                self.level -= 1
        return True

    def _quality(self, z: AffineSet, step: Any) -> tuple[bool, Tensor]:
        """Whether a step twice as long would do, and (batch,) bool: where the remainder is small enough."""
        low, high = step.rest(step.length)
        half = high / 2 - low / 2 - step.disturbed
        radius, width = z.radius[:, : half.shape[1]], step.box[1] - step.box[0]
        known = radius <= KNOWN_SHARE * width
        # A state that is known exactly, in a set that is not, need not be enclosed as closely as a single trajectory.
        share = torch.where(known & ~known.all(1, keepdim=True), REMAINDER_OF_KNOWN, REMAINDER_OF_BOX)
        allowed = REMAINDER_SHARE * radius + share * width
        fine = (half <= allowed).all(1)
        return bool((EASY * half <= allowed).all()), fine


class _Results:
    """What a pass has found so far, for all rows of the batch."""

    def __init__(self, question: LoopQuestion, rows: Tensor, count: int, n: int, steps: int) -> None:
        self.question, self.r, self.n = question, len(question.polytope.rows), n
        self.all_inside = torch.ones(count, dtype=torch.bool)
        self.all_outside = torch.ones(count, dtype=torch.bool)
        self.any_inside = torch.zeros(count, dtype=torch.bool)
        self.any_outside = torch.zeros(count, dtype=torch.bool)
        self.lost = torch.zeros(count, dtype=torch.bool)
        self.finished = torch.zeros(count, dtype=torch.bool)
        reach = question.kind == "reach"
        self.excess = torch.full((count,), torch.inf if reach else -torch.inf, dtype=torch.float64)
        self.share = torch.zeros((count, n), dtype=torch.float64)
        self.ends = torch.full((count, steps + 1, n, 2), torch.nan, dtype=torch.float64)
        self.tube = torch.full((count, steps, n, 2), torch.nan, dtype=torch.float64)

    def moment(self, rows: Tensor, tau: float, upper: Tensor, state: AffineSet) -> None:
        if self.question.begin <= tau <= self.question.end:
            self._judge(rows, upper, state)

    def interval(self, rows: Tensor, left: float, right: float, upper: Tensor, state: AffineSet) -> None:
        if left < self.question.end and right > self.question.begin:
            self._judge(rows, upper, state)

    def _judge(self, rows: Tensor, upper: Tensor, state: AffineSet) -> None:
        bound, r, kind = self.question.polytope.bound, self.r, self.question.kind
        above, below = upper[:, :r], -upper[:, r : 2 * r]
        inside, outside = (above <= bound).all(1), (below > bound).any(1)
        self.all_inside[rows] &= inside
        self.any_inside[rows] |= inside
        self.all_outside[rows] &= outside
        self.any_outside[rows] |= outside
        over = -(below - bound).amax(1) if kind == "avoid" else (above - bound).amax(1)
        # One unit more than the rounded difference: it is shown as a proved margin.
        over = torch.nextafter(over, torch.full_like(over, torch.inf))
        over = torch.nan_to_num(over, torch.inf, torch.inf, -torch.inf)
        before = self.excess[rows]
        worse = over < before if kind == "reach" else over > before
        self.excess[rows] = torch.where(worse, over, before)
        normal = self.question.polytope.rows[(above - bound).argmax(1)]
        effect = (state.generators[:, : self.n] @ normal[..., None]).squeeze(-1).abs()
        self.share[rows] = torch.where(worse[:, None], effect, self.share[rows])

    def note_share(self, rows: Tensor, state: AffineSet) -> None:
        """Attribute the width of rows that end here to their initial states, where no row of the polytope did."""
        sizes = (state.generators[:, : self.n].abs() / state.radius.clamp_min(1e-300)[:, None]).sum(2)
        some = self.share[rows]
        self.share[rows] = torch.where((some > 0).any(1, keepdim=True), some, torch.nan_to_num(sizes))

    def widen_tube(self, rows: Tensor, k: int, upper: Tensor) -> None:
        states = self._states(upper)
        before = self.tube[rows, k]
        self.tube[rows, k] = torch.stack(
            [torch.fmin(before[..., 0], states[..., 0]), torch.fmax(before[..., 1], states[..., 1])], -1
        )

    def keep_end(self, rows: Tensor, k: int, upper: Tensor) -> None:
        self.ends[rows, k] = self._states(upper)

    def _states(self, upper: Tensor) -> Tensor:
        high, low = upper[:, 2 * self.r : 2 * self.r + self.n], -upper[:, 2 * self.r + self.n :]
        return torch.stack([low, high], -1)

    def lose(self, rows: Tensor) -> None:
        """Nothing is known from here on in these rows."""
        self.lost[rows] = True

    def finish(self, rows: Tensor) -> None:
        self.finished[rows] = True

    def find_decided_rows(self) -> Tensor:
        """(batch,) bool: rows whose answer cannot change any more, or is no longer a proof."""
        kind = self.question.kind
        if kind == "reach":
            return self.any_inside | self.lost
        return (~self.all_inside if kind == "stay" else ~self.all_outside) | self.lost

    def answer(self, complete: bool) -> BoxRun:
        kind, whole = self.question.kind, self.finished & ~self.lost
        if kind == "reach":
            proved, violated = self.any_inside, self.all_outside & whole
        elif kind == "stay":
            proved, violated = self.all_inside & whole, self.any_outside
        else:
            proved, violated = self.all_outside & whole, self.any_inside
        unknown = ~whole & ~proved if kind != "reach" else ~self.any_inside & ~whole
        excess = torch.where(unknown & (self.excess <= 0), torch.inf, self.excess)
        return BoxRun(proved, violated, excess, self.share, self.ends, self.tube, complete)


StartBox = tuple[list[float], list[float]]  # lower, upper bounds of the initial states


@dataclass(frozen=True)
class ProvedBox:
    """A box of initial states that is proved, with its bounds and the shares of its states in their width."""

    box: StartBox
    ends: Tensor
    tube: Tensor
    share: Tensor


@dataclass
class SearchState:
    """Everything that a search knows; it can be stored and continued."""

    open: "deque[StartBox]"  # Boxes that are not decided.
    # Proved boxes whose tube at the end is wider than asked.
    coarse: "deque[ProvedBox]" = field(default_factory=deque)
    proved: int = 0  # Boxes that are proved.
    proved_volume: float = 0.0  # Their share of the initial box.
    passes: int = 0  # Boxes that were enclosed.
    seconds: float = 0.0
    # The largest proved upper bound of the excess over the proved boxes.
    excess: float = -math.inf
    # Bounds over the proved boxes that are not coarse, and over the whole initial box: (steps + 1, n, 2), (steps, n, 2).
    ends: Tensor | None = None
    tube: Tensor | None = None
    first_ends: Tensor | None = None
    first_tube: Tensor | None = None
    witness: list[float] | None = None


@dataclass
class Search:
    """The search for an answer about one loop, question and box of initial states.

    Attributes:
        width_ratio: after a proof, split on until the tube at the end is at most this many times as wide as the
            sampled trajectories, in every state; None: stop at the proof.
    """

    model: LoopModel
    question: LoopQuestion
    start: tuple[Tensor, Tensor]
    steps: int
    until: float
    max_boxes: float
    seed: int
    width_ratio: float | None = None
    progress: Callable[["Search"], None] | None = None
    state: SearchState = field(default_factory=lambda: SearchState(deque()))
    trajectories: Tensor | None = None
    sampled_excess: float = math.nan
    sampled_from: Tensor | None = None

    def __post_init__(self) -> None:
        self.runner = Runner(
            self.model.enclosure(self.start),
            self.question,
            self.steps,
            self.model.period,
            self.model.discrete,
        )
        self.generator = torch.Generator().manual_seed(self.seed)

    # ---- simulations

    @property
    def moments(self) -> Tensor:
        """The times of the simulated states, in periods."""
        assert self.trajectories is not None
        return torch.arange(self.trajectories.shape[1]) * (self.steps / (self.trajectories.shape[1] - 1))

    def sample(self) -> Tensor | None:
        """Simulate trajectories; the initial states (k, n) that seem to violate, worst first, or None."""
        points = self._points(*self.start, SAMPLES)
        self.trajectories = self.model.simulate(points, self.steps)
        excess, _ = self.question.excess(self.trajectories, self.moments)
        width = (self.start[1] - self.start[0]) / 4
        for _ in range(REFINEMENTS):
            if time.monotonic() >= self.until:
                break
            best = points[excess.topk(min(8, len(points))).indices]
            near = best.repeat(8, 1)
            near = near + width * torch.randn(near.shape, generator=self.generator, dtype=torch.float64)
            near = torch.minimum(torch.maximum(near, self.start[0]), self.start[1])
            more, _ = self.question.excess(self.model.simulate(near, self.steps), self.moments)
            points, excess, width = torch.cat([points, near]), torch.cat([excess, more]), width / 3
        return self._note(points, excess)

    def _points(self, lower: Tensor, upper: Tensor, count: int) -> Tensor:
        """Random points of a box, a third of them with every state at a bound."""
        share = torch.rand((count, len(lower)), generator=self.generator, dtype=torch.float64)
        share[: count // 3] = share[: count // 3].round()
        return torch.minimum(torch.maximum(lower + share * (upper - lower), lower), upper)

    def _note(self, points: Tensor, excess: Tensor) -> Tensor | None:
        """Remember the worst simulation; the initial states that seem to violate."""
        excess = torch.nan_to_num(excess, torch.inf)
        worst = int(excess.argmax())
        if not float(excess[worst]) <= self.sampled_excess:
            self.sampled_excess, self.sampled_from = float(excess[worst]), points[worst]
        wrong = excess > 0
        if not bool(wrong.any()):
            return None
        order = excess.argsort(descending=True)
        return points[order[: min(CANDIDATES, int(wrong.sum()))]]

    def verify(self, points: Tensor) -> bool:
        """Whether the solution from one of these initial states provably violates; it becomes the witness."""
        steps = min(self.steps, math.ceil(self.question.end))
        # Without disturbance: zero is one of the disturbances that are allowed.
        quiet = Enclosure(
            self.runner.enclosure.controller,
            self.runner.enclosure.plant,
            self.runner.enclosure.states,
            torch.zeros_like(self.runner.enclosure.disturbance),
        )
        runner = Runner(quiet, self.question, self.steps, self.model.period, self.model.discrete)
        found = runner.run(points, points, until=self.until, whole=True, steps=steps)
        if bool(found.violated.any()):
            self.state.witness = points[int(found.violated.nonzero()[0, 0])].tolist()
            return True
        return False

    # ---- proofs

    def run(self) -> Iterator[None]:
        """Search until the question is decided, the time is up or `max_boxes` boxes were enclosed; yields after
        every pass.
        """
        began, spent = time.monotonic(), self.state.seconds
        state = self.state
        wrong = self.sample()
        if wrong is not None and state.witness is None:
            self.verify(wrong)
        if state.passes == 0:  # After a violation too: the page shows the tube.
            self._first()
            state.seconds = spent + time.monotonic() - began
            yield
        while (state.open or state.coarse) and not self._is_over():
            if not state.open:
                if not self._refine():
                    break
                state.seconds = spent + time.monotonic() - began
                yield
                continue
            rows = int(min(self._rows_at_once(), len(state.open), max(1, self.max_boxes - state.passes)))
            boxes = [state.open.popleft() for _ in range(rows)]
            lower, upper = (torch.tensor(ends, dtype=torch.float64) for ends in zip(*boxes, strict=True))
            whole = self.width_ratio is not None
            found = self.runner.run(
                lower,
                upper,
                until=self.until,
                whole=whole,
                steps=None if whole else math.ceil(self.question.end),
            )
            if found.complete:
                self._take(boxes, found)
            else:
                state.open.extendleft(reversed(boxes))  # Nothing is kept of a pass that was cut short.
            state.seconds = spent + time.monotonic() - began
            yield
        state.seconds = spent + time.monotonic() - began

    def _is_over(self) -> bool:
        state = self.state
        return state.witness is not None or time.monotonic() >= self.until or state.passes >= self.max_boxes

    def _first(self) -> None:
        """The pass over the whole initial box."""
        state, (lower, upper) = self.state, self.start
        found = self.runner.run(lower[None], upper[None], until=self.until, whole=True)
        state.first_ends, state.first_tube = found.ends[0], found.tube[0]
        state.passes += 1
        box = lower.tolist(), upper.tolist()
        if bool(found.proved[0]):
            self._accept(box, found, 0)
        elif not found.complete:
            state.open.append(box)
        else:
            self._split(box, found.share[0])

    def _narrow_enough(self, ends: Tensor) -> bool:
        """Whether the tube at the end exceeds the samples by no more than `width_ratio` allows."""
        if self.width_ratio is None:
            return True
        assert self.trajectories is not None
        last = self.trajectories[:, -1]
        low, high = last.amin(0), last.amax(0)
        beyond = (self.width_ratio - 1) / 2 * (high - low) + 1e-12
        return bool(((ends[-1, :, 0] >= low - beyond) & (ends[-1, :, 1] <= high + beyond)).all())

    def _accept(self, box: StartBox, found: BoxRun, row: int, parent: ProvedBox | None = None) -> None:
        """Count a box as proved; parent: the proved box of which it is a half."""
        state = self.state
        ends, tube = self._complete(found, row)
        if parent is not None:
            ends, tube = _both(ends, parent.ends), _both(tube, parent.tube)
        else:
            state.proved += 1
            state.proved_volume += self._share_of_start(box)
            state.excess = max(state.excess, float(found.excess[row]))
        if self._narrow_enough(ends):
            state.ends = ends if state.ends is None else _hull(state.ends, ends)
            state.tube = tube if state.tube is None else _hull(state.tube, tube)
        else:
            state.coarse.append(ProvedBox(box, ends, tube, found.share[row]))

    def tube(self) -> tuple[Tensor | None, Tensor | None]:
        """Bounds of all trajectories: at the ends of the periods (steps + 1, n, 2), and over each period.

        Boxes that are not proved have the bounds of the first pass over the whole initial box.
        """
        state = self.state
        if state.first_ends is None or state.first_tube is None:
            return None, None
        parts = [(box.ends, box.tube) for box in state.coarse]
        if state.ends is not None and state.tube is not None:
            parts.append((state.ends, state.tube))
        if state.open or not parts:
            return state.first_ends, state.first_tube
        ends, tube = parts[0]
        for more_ends, more_tube in parts[1:]:
            ends, tube = _hull(ends, more_ends), _hull(tube, more_tube)
        return ends, tube

    def _complete(self, found: BoxRun, row: int) -> tuple[Tensor, Tensor]:
        """The tube of a row, with that of the whole initial box where it was not computed."""
        state = self.state
        assert state.first_ends is not None
        assert state.first_tube is not None
        return (
            torch.where(found.ends[row].isnan(), state.first_ends, found.ends[row]),
            torch.where(found.tube[row].isnan(), state.first_tube, found.tube[row]),
        )

    def _refine(self) -> bool:
        """Halve some proved boxes whose tube is too wide; False if the time did not suffice."""
        state = self.state
        count = int(
            min(max(1, self._rows_at_once() // 2), len(state.coarse), max(1, self.max_boxes - state.passes))
        )
        parents = [state.coarse.popleft() for _ in range(count)]
        halves = [(half, parent) for parent in parents for half in self._halves(parent.box, parent.share)]
        lower, upper = (
            torch.tensor(ends, dtype=torch.float64)
            for ends in zip(*(half for half, _ in halves), strict=True)
        )
        found = self.runner.run(lower, upper, until=self.until, whole=True)
        if not found.complete:
            state.coarse.extendleft(reversed(parents))
            return False
        state.passes += len(halves)
        for row, (half, parent) in enumerate(halves):
            self._accept(half, found, row, parent)
        return True

    def _take(self, boxes: list[StartBox], found: BoxRun) -> None:
        """Accept what is proved, split the rest, and look for violations there."""
        state = self.state
        state.passes += len(boxes)
        failed = []
        for row, box in enumerate(boxes):
            if bool(found.proved[row]):
                self._accept(box, found, row)
            else:
                failed.append(box)
                self._split(box, found.share[row])
        if failed:
            count = max(1, SAMPLES // 8 // len(failed))
            ends = [tuple(torch.tensor(end, dtype=torch.float64) for end in box) for box in failed]
            points = torch.cat([self._points(low, high, count) for low, high in ends])
            excess, _ = self.question.excess(self.model.simulate(points, self.steps), self.moments)
            wrong = self._note(points, excess)
            if wrong is not None:
                self.verify(wrong)

    def _split(self, box: StartBox, share: Tensor) -> None:
        """Halve a box that is not proved."""
        self.state.open.extend(self._halves(box, share))

    def _halves(self, box: StartBox, share: Tensor) -> list[StartBox]:
        """The halves of a box along the initial state with the largest share of the width; the box itself if no
        float lies between its bounds.
        """
        lower, upper = box
        widths = torch.tensor(upper) - torch.tensor(lower)
        score = torch.where(widths > 0, torch.nan_to_num(share), -1.0)
        if not bool((score > 0).any()):
            score = widths / (self.start[1] - self.start[0]).clamp_min(1e-300)
        i = int(score.argmax())
        middle = lower[i] / 2 + upper[i] / 2
        if not lower[i] < middle < upper[i]:
            return [box]
        return [
            (lower, [*upper[:i], middle, *upper[i + 1 :]]),
            ([*lower[:i], middle, *lower[i + 1 :]], upper),
        ]

    def _share_of_start(self, box: StartBox) -> float:
        share = 1.0
        for low, high, first, last in zip(*box, *(end.tolist() for end in self.start), strict=True):
            share *= (high - low) / (last - first) if last > first else 1.0
        return share

    def _rows_at_once(self) -> int:
        """How many boxes are enclosed together, given the memory."""
        plant = self.runner.enclosure.plant
        largest = plant.step if plant.coefficients is None else plant.coefficients
        values = self.runner.most * sum(node.size for node in largest.nodes)
        controller = self.runner.enclosure.controller
        values += max(node.size for node in controller.nodes) * sum(node.size for node in controller.nodes)
        allowed = free_bytes(torch.device("cpu")) if math.isinf(allowed_bytes()) else allowed_bytes()
        return int(max(1, min(BATCH, allowed // (8 * COPIES * values))))


def _hull(one: Tensor, other: Tensor) -> Tensor:
    """Bounds of both: lower in [..., 0], upper in [..., 1]; not-a-number where one of them is unknown."""
    low = torch.minimum(one[..., 0], other[..., 0])
    return torch.stack([low, torch.maximum(one[..., 1], other[..., 1])], -1)


def _both(one: Tensor, other: Tensor) -> Tensor:
    """The intersection of two bounds, where both are known."""
    low = torch.fmax(one[..., 0], other[..., 0])
    return torch.stack([low, torch.fmin(one[..., 1], other[..., 1])], -1)
