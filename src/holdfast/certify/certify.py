"""The largest radius that bound propagation proves, by trying several radii at once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast import batch, memory_budget, time_limit
from holdfast.bounding.crown import intervals, least_bytes, lower_bound, propagate, worth_knowing
from holdfast.bounding.graph.graph import Graph, Node, Relaxed
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS, checked_graph, graph_of, rows_of
from holdfast.bounding.node_bounds import Boxes, Ends
from holdfast.errors import UnsupportedLayer
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import BoundedProperty, LinearProperty
from holdfast.region import Drift, Family, Frames, Region, Rows
from holdfast.region.base import Counted
from holdfast.region.normed import NormFamily
from holdfast.result import Traits

AS_EXECUTED = (
    "the network computes as its graph says, sums in any order, without TF32, NNPACK or transforms that trade rounding for speed",
    "its activations are within twenty units of rounding",
)
Arithmetic = Literal["real", "executed"]
USUAL = (
    0.7  # of the distance at which a linear score would vanish: about what planes prove where one frame moves
)


KEPT = "where Certify is"  # beside a record


@dataclass(frozen=True)
class Known:
    """Ends of some nodes, found at a radius, row by row: they hold at every smaller one too, where they save most of the walks."""

    radius: Tensor  # (batch,); -inf where there are none
    ends: Mapping[Node, Ends]

    def below(self, rows: Tensor, radius: Tensor) -> dict[Node, Ends]:
        """What is known of some rows at these radii."""
        apart = radius > self.radius[rows]

        def some(end: Tensor, nothing: float) -> Tensor:
            return torch.where(apart.reshape(-1, *(1 for _ in end.shape[1:])), nothing, end[rows])

        return {
            node: (some(low, -torch.inf), some(high, torch.inf)) for node, (low, high) in self.ends.items()
        }

    def put(self, rows: Tensor, radius: Tensor, found: Mapping[Node, Ends]) -> "Known":
        """With what was found of some rows at these radii."""

        def whole(node: Node, side: int) -> Tensor:
            end = found[node][side]
            before = (
                self.ends[node][side]
                if node in self.ends
                else end.new_zeros((len(self.radius), *end.shape[1:]))
            )
            return before.index_copy(0, rows, end)

        return Known(
            self.radius.index_copy(0, rows, radius),
            {node: (whole(node, 0), whole(node, 1)) for node in found},
        )


@dataclass(frozen=True)
class RadiusSearch:
    """Row by row: proved at `low`, not proved at `high`, and the scores there."""

    low: Tensor  # (batch,)
    high: Tensor  # (batch,)
    low_score: Tensor  # NaN where others proved it
    high_score: Tensor  # NaN before any radius failed
    first: Tensor  # the score at the input itself
    linear: Tensor  # where the score would vanish if it fell as fast everywhere as it does there
    slow: Tensor  # for how many rounds the ends have hardly come closer
    round: Tensor
    known: Known  # at radii that were not proved

    def resumable_state(self) -> Tensor:
        """-> (batch, 6): all that cannot be computed again."""
        return torch.stack(
            [self.low, self.high, self.low_score, self.high_score, self.slow, self.round], dim=1
        )


@dataclass(frozen=True)
class Certify(Method[RadiusSearch]):
    """Backward linear bounds with closed-form planes, at `rounds` radii one after the other.

    The next radius lies a little below where a parabola through the known scores crosses zero; where that is slow, in the middle. A row is
    done when its ends are `close`, or that parabola says that less than half of it is left to prove, most after four or five rounds.
    """

    finds: ClassVar[str] = "proved lower ends"
    help: ClassVar[str] = "linear bounds (CROWN) with closed-form planes"
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    rounds: int = 24
    close: float = 0.002  # share of the radius to which it is found
    arithmetic: Arithmetic = "real"  # or the network as it runs, in its own arithmetic

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.property, BoundedProperty):
            return "proofs need a property whose score is known from linear rows (Robustness, Targeted, Linear, Confidence, ...)"
        if self.arithmetic == "executed" and not isinstance(problem.property, LinearProperty):
            return "a proof about the network as executed needs a property in linear rows, since any other score is rounded itself"
        try:
            graph = checked_graph(problem, executed=self.arithmetic == "executed")
        except UnsupportedLayer as error:
            return str(error)
        if least_bytes(graph) > memory_budget.allowed_bytes():
            return f"planes of a single row take {least_bytes(graph) / 2**20:.1f} MiB, more than may be planned for: allow more (--memory)"
        return _obstacle_as_executed(problem, graph) if self.arithmetic == "executed" else None

    def start(self, problem: Problem, seed: int) -> RadiusSearch:
        none = torch.zeros(len(problem), dtype=torch.float64, device=problem.region.centre.device)
        if problem.goal == "worst":
            return RadiusSearch(none, none, none, none, none, none, none, none, Known(none, {}))
        linear = first_guess(problem)
        # Not the property's own score: a last softmax is left out. At points intervals are as good as planes.
        first, _ = _score_with_bounds(problem.tile_radii(none[None]), self.arithmetic, {}, at_points=True)
        # A score that is linear seldom falls slower further out (see `_widen`); a probability may.
        end = (
            2 * linear
            if isinstance(problem.property, LinearProperty)
            else torch.maximum(2 * linear, problem.family.reach())
        )
        return RadiusSearch(
            none,
            end,
            first,
            torch.full_like(none, torch.nan),
            first,
            linear,
            none,
            none,
            Known(none - torch.inf, {}),
        )

    def resume_state(
        self, problem: Problem, state: RadiusSearch, aside: Mapping[str, Tensor]
    ) -> RadiusSearch:
        """Row by row where it was, so that a run that was killed asks the radii that an undisturbed one asks."""
        if KEPT not in aside:
            return state
        low, high, low_score, high_score, slow, turn = aside[KEPT].to(state.low).unbind(1)
        pairs = {
            "low": low,
            "high": high,
            "low_score": low_score,
            "high_score": high_score,
            "slow": slow,
            "round": turn,
        }
        kept = {name: torch.where(turn.isnan(), getattr(state, name), value) for name, value in pairs.items()}
        return replace(state, **kept)  # type: ignore[arg-type]

    def update_bounds(
        self, problem: Problem, state: RadiusSearch, lower: Tensor, upper: Tensor
    ) -> RadiusSearch:
        """The search goes on from what is proved, unless that speaks of another arithmetic."""
        better = lower.isfinite() & (lower > state.low)
        if problem.goal == "worst" or self.arithmetic == "executed" or not bool(better.any()):
            return state
        return replace(
            state,
            low=torch.where(better, lower, state.low),
            low_score=torch.where(better, torch.nan, state.low_score),
        )

    def step(self, problem: Problem, state: RadiusSearch) -> tuple[RadiusSearch | None, Claims]:
        if problem.goal == "worst":
            score = proved_score(problem, self.arithmetic)
            return state if time_limit.has_expired() and bool(score.isnan().any()) else None, self._claims(
                problem, score
            )
        state = _widen(problem.family, state)
        radius = torch.minimum(_next_radius(problem.family, state, self.close), problem.family.limit())
        score = torch.full_like(radius, torch.nan)
        near = (_end(state) <= state.low * (1 + self.close)) | (state.round >= self.rounds)
        radius, open_ = torch.where(near, state.high, radius), (~near).nonzero().flatten()
        if len(open_):
            asked = problem.take(open_)
            asked = asked.tile_radii(radius[open_][None])
            radius[open_] = (
                asked.family.radius.double()
            )  # what was asked, in the arithmetic of the family's radius
            score[open_], found = _score_with_bounds(
                asked, self.arithmetic, state.known.below(open_, radius[open_])
            )
            lost = (score[open_].isfinite() & (score[open_] <= 0)).nonzero().flatten()
            ends = {node: (low[lost], high[lost]) for node, (low, high) in found.items()}
            state = replace(state, known=state.known.put(open_[lost], radius[open_[lost]], ends))
        search = _narrow(state, radius, score, ~near & score.isnan())
        done = bool((search.round >= self.rounds).all()) or not len(open_)
        return None if done else search, replace(
            self._claims(problem, search.low), aside={KEPT: search.resumable_state()}
        )

    def _claims(self, problem: Problem, proved: Tensor) -> Claims:
        if self.arithmetic == "real":
            return Claims(proved=proved, assumptions=ASSUMPTIONS, checks=CHECKS)
        return Claims(proved=proved, assumptions=AS_EXECUTED, checks=CHECKS, dtype=str(problem.network.dtype))


def _obstacle_as_executed(problem: Problem, graph: Graph) -> str | None:
    """Why nothing is known about the rounding of this network as it runs."""
    if problem.network.dtype not in (torch.float32, torch.float64):
        return f"a proof about the network as executed needs float32 or float64, and this one is {problem.network.dtype}"
    kernels = _blurred_kernels(problem.network.device)
    if kernels is not None:
        return kernels
    if graph.folded:
        return f"{graph.folded[0]}: computes a constant from weights, whose rounding as executed is not bounded here"
    if graph.fused:
        return f"{graph.fused[0]}: torch sums in a kernel of its own, whose rounding as executed is not bounded here"
    for node in graph.nodes:
        box = tuple(torch.ones(1, dtype=torch.float64) for _ in node.inputs)
        if (
            isinstance(node, Relaxed)
            and node.relaxation.executed_error(box, box, problem.network.dtype) is None
        ):
            return f"{node.name}: the rounding of {type(node.relaxation).__name__} as executed is not bounded here"
    return None


def _blurred_kernels(device: torch.device) -> str | None:
    """Which settings of torch let it take kernels that round more than sums of products do; None where there is none."""
    if torch.get_float32_matmul_precision() != "highest":
        return (
            "a proof about the network as executed needs full float32 products, and torch.set_float32_matmul_precision allows shorter ones "
            "here: set it to 'highest'"
        )
    if (
        device.type == "cpu"
        and not torch._C._get_mkldnn_enabled()
        and torch.backends.nnpack.is_available()
        and torch._C._get_nnpack_enabled()
    ):
        return (
            "a proof about the network as executed needs convolutions that are plain sums, and without oneDNN torch takes NNPACK's, which "
            "transform: turn oneDNN on, or NNPACK off (torch.backends.nnpack.set_flags(False))"
        )
    return None


def _widen(family: Family, state: RadiusSearch) -> RadiusSearch:
    """Where the score is proved as far as it would have vanished, had it fallen as it does at the input, it may hold anywhere."""
    further = state.high_score.isnan() & (state.low >= 0.999 * state.linear)
    return replace(
        state, high=torch.where(further, torch.maximum(state.high, family.reach().to(state.high)), state.high)
    )


def _next_radius(family: Family, state: RadiusSearch, close: float) -> Tensor:
    plain: Tensor = family.between(state.low, state.high, 1)[0]
    if isinstance(family, Counted):  # radii that count
        return plain
    once, tame = _from_one(state), _tame(state)
    once = torch.where(
        state.low > 0, torch.minimum(once, 8 * state.low), torch.maximum(once, state.high / 10)
    )
    found = torch.where((state.low > 0) & tame, _from_both(state), once) * (
        1 - close / 10
    )  # so that it is proved, and the last
    trusted = found.isfinite() & ((state.low > 0) | tame) & (state.slow < 2)
    found = torch.where(trusted, found, torch.where(state.low > 0, plain, state.high / 3))
    inside = state.low + (state.high - state.low) * 0.02
    found = torch.minimum(torch.maximum(found, inside), state.high - (state.high - state.low) * 0.02)
    first = state.linear * _usual_share(family)
    return torch.where(state.round > 0, found, torch.where(first > state.low, first, plain))


def _usual_share(family: Family) -> Tensor | float:
    """Planes lose more the more frames move; where the whole input does, as much as with a dozen."""
    if not isinstance(family, Frames):
        return USUAL / 3.5
    return USUAL / (family.free() > 0).sum(1).clamp_min(1).sqrt()


def _tame(state: RadiusSearch) -> Tensor:
    """Far beyond what can be proved a score may be anything, and says nothing about where it crosses zero."""
    return state.high_score > -8 * state.first


def _from_one(state: RadiusSearch) -> Tensor:
    """Where first - first / linear r - b r^2, with b from one known score, crosses zero."""
    known = torch.where(state.low > 0, state.low, state.high)
    score = torch.where(state.low > 0, state.low_score, state.high_score)
    bend = (state.first * (1 - known / state.linear) - score) / known.square()
    slope = state.first / state.linear
    return 2 * state.first / (slope + (slope.square() + 4 * bend.clamp_min(0) * state.first).sqrt())


def _from_both(state: RadiusSearch) -> Tensor:
    """Where the parabola through the scores at 0, low and high crosses zero."""
    width = state.high - state.low
    steep = (state.high_score - state.low_score) / width
    bend = (steep - (state.low_score - state.first) / state.low) / state.high
    start = bend * width - steep  # minus the slope of the parabola at low
    return state.low + 2 * state.low_score / (start + (start.square() - 4 * bend * state.low_score).sqrt())


def _end(state: RadiusSearch) -> Tensor:
    """-> (batch,): there is hardly anything to prove beyond: the radius that failed, or twice as far from what is proved as scores say."""
    end = state.low + 2 * (_from_both(state) - state.low)
    return torch.where(
        _tame(state) & (state.low > 0) & (end > state.low), torch.minimum(end, state.high), state.high
    )


def _narrow(state: RadiusSearch, radius: Tensor, score: Tensor, late: Tensor) -> RadiusSearch:
    """late (batch,) bool: what the clock left no time for is asked again."""
    proved = score.isfinite() & (score > 0)
    lost = ~proved & ~late & (radius < state.high)
    proved &= radius >= state.low
    low, low_score = torch.where(proved, radius, state.low), torch.where(proved, score, state.low_score)
    high, high_score = torch.where(lost, radius, state.high), torch.where(lost, score, state.high_score)
    closer = (high / low).log() < (state.high / state.low).log() / 2
    slow = torch.where(late, state.slow, torch.where(closer | (state.slow >= 2), 0, state.slow + 1))
    return replace(
        state,
        low=low,
        high=high,
        low_score=low_score,
        high_score=high_score,
        slow=slow,
        round=state.round + ~late,
    )


def proved_score(problem: Problem, arithmetic: Arithmetic = "real") -> Tensor:
    """-> (batch,): the score is at least this everywhere in the region; -inf where nothing is known, NaN where there was no time."""
    return _score_with_bounds(problem, arithmetic, {})[0]


def _score_with_bounds(
    problem: Problem, arithmetic: Arithmetic, known: Mapping[Node, Ends], *, at_points: bool = False
) -> tuple[Tensor, dict[Node, Ends]]:
    """The same with ends of nodes that are known to hold in the region; and those that were found, of rows whose score is no NaN."""
    graph = graph_of(problem, executed=arithmetic == "executed")
    assert isinstance(problem.property, BoundedProperty)
    score = torch.full((len(problem),), torch.nan, dtype=torch.float64, device=graph.device)
    ends = {
        node: (score.new_empty((len(problem), *node.shape)), score.new_empty((len(problem), *node.shape)))
        for node in worth_knowing(graph)
    }

    def score_rows(rows: Tensor) -> tuple[Tensor, Boxes]:
        part = problem.take(rows)
        matrix, offset = rows_of(part, graph)
        held = {node: (low[rows], high[rows]) for node, (low, high) in known.items()}
        executed = None if arithmetic == "real" else problem.network.dtype
        boxes = (
            intervals(graph, part.region, executed)
            if at_points
            else propagate(graph, part.region, executed, held)
        )
        assert isinstance(part.property, BoundedProperty)
        least = part.property.least(lower_bound(graph, boxes, matrix, offset))
        return torch.where(least.isnan(), -torch.inf, least), boxes  # what overflows proves nothing

    for portion in time_limit.portions(problem.region.centre):
        rows = portion[
            _what_moves_first(batch.take(problem.region, portion)).argsort()
        ]  # that move the same frames side by side: see the crown
        found = time_limit.in_time(partial(score_rows, rows), None)
        if found is None:
            break
        score[rows], boxes = found
        for node, (low, high) in ends.items():
            low[rows], high[rows] = boxes.lower[node], boxes.upper[node]
    return score, ends


def _what_moves_first(region: Region) -> Tensor:
    """-> (batch,): the place of the first feature that moves."""
    lower, upper = region.enclosing_box()
    return region.flatten(lower < upper).to(torch.uint8).argmax(-1)


def first_guess(problem: Problem) -> Tensor:
    """-> (batch,): the distance at which the score would vanish if it were linear: planes hardly ever prove as much."""
    family = problem.family
    if not isinstance(family, NormFamily | Drift | Rows):
        return (family.reach() + 1) / 2  # radii that count: nothing is proved beyond twice this
    score, gradient = problem.score_and_gradient(family.centre)
    return torch.minimum(score.double() / family.slope(gradient).clamp_min(1e-300), family.reach())
