"""Tier `fast`: the largest perturbation radius that linear bounds certify.

Statement. Let X(r) be the perturbation set of radius r around an input, X(r) a subset of X(r') for r <= r',
and s the score of the specification (positive exactly where it holds). The radius r is certified if

    lower_bound(s, X(r)) > 0,   where lower_bound(s, X) <= min over x in X of s(f(x)),

with the lower bound by backward linear bound propagation (CROWN) with linear relaxations in closed form; the
intermediate bounds of recurrent networks come from affine forms too (`bounding.first_bounds`). Then
the specification holds at every point of X(r), and of X(r') for all r' < r. The search over r only decides
which radii are tried.

Assumptions: f is the network in real arithmetic with its weights as stored (`arithmetic="real"`), or as
executed in its own arithmetic (`arithmetic="executed"`). Rounding errors of the proof are part of the bound
(docs/rounding.md).

References: H. Zhang et al., Efficient neural network robustness certification with general activation
functions (CROWN), 2018; C.-Y. Ko et al., POPQORN: quantifying robustness of recurrent neural networks, 2019.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast import batch, memory_budget, time_limit
from holdfast.bounding.crown import least_bytes, lower_bound, reusable_nodes
from holdfast.bounding.first_bounds import describe_forms, plan_forms, propagate_first
from holdfast.bounding.graph.equivalence_check import values
from holdfast.bounding.graph.graph import Graph, Node, Relaxed
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS, checked_graph, graph_of, rows_of
from holdfast.bounding.node_bounds import Boxes, IntervalBounds
from holdfast.bounding.pass_cost import least_pass_seconds
from holdfast.errors import UnsupportedLayer
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import BoundedProperty, LinearProperty
from holdfast.region import Family, Region
from holdfast.result import Traits

# Assumptions of proofs about the network as executed, stored with the record.
AS_EXECUTED = (
    "the network computes as its graph says, sums in any order, without TF32, NNPACK or transforms that "
    "trade rounding for speed",
    "its activations are within twenty units of rounding",
)
Arithmetic = Literal["real", "executed"]
# The first radius tried, where a single frame changes, as a share of the radius at which the linearised score
# would be zero. Linear bounds certify about this much there (chosen by hand; it only affects speed).
FIRST_RADIUS_SHARE = 0.7
# Long recurrent networks with more activations than this behind the first frame that moves try a first radius
# that is smaller in proportion (tuned on cert-rnn's practice images; it only affects speed).
DEPTH_OF_FULL_SHARE = 1.2
# Stacks of layers, with more activations than this on every path, try one that is smaller again in proportion: a first radius that fails costs the time of a certified one, and a budget may end after it (chosen by hand:
# two layers keep their radius, and cert-rnn's LSTM stacked to seven certifies its first one; it only affects speed).
LEAST_DEPTH_OF_FULL_SHARE = 2.0
# Where a share s of the score is lost to relaxations, a radius that is larger by this number over s is often not
# certified any more (tuned on the same images).
DISTANCE_TO_SUDDEN_LOSS = 0.02
# Relative accuracy of the radius there: every pass takes long (chosen by hand).
CLOSE_OF_LONG_NETWORKS = 0.01
# A score below this share of the one at the input itself is about to be lost (tuned on the same images).
SCORE_NEAR_SUDDEN_LOSS = 0.2
# From one certified radius, the share q of it in the largest one follows from the share l of the score that is lost:
# l = LOSS_SCALE q^2 / (LOSS_END - q) (fitted to the searches of cert-rnn's practice images 11, 13 and 14).
LOSS_SCALE, LOSS_END = 0.045, 1.05
# The next radius goes this share of the way to that largest one (chosen by hand). It grows by the second factor at most:
# the first radius may be far too small, as where all words of a text move (chosen by hand).
SHARE_OF_THE_WAY, LARGEST_GROWTH = 0.5, 4.0
# The share of the predicted distance that a radius stays below the predicted zero (chosen by hand).
NEAR_SUDDEN_LOSS = 0.1
# Largest number of float64 values in all nodes while the centres are evaluated (128 MiB; chosen by hand).
MAX_VALUES_OF_POINTS = 2**24
# What a record says of an input of which nothing is proved for lack of time.
NO_PASS_ENDED = (
    "the time ended before the first linear bounds were complete, so nothing is proved; `holdfast "
    "inspect --seconds` measures how long they take"
)
NO_RADIUS_CERTIFIED = (
    "the time ended before a radius was small enough to be certified, so nothing is proved: give more seconds"
)
SEARCH_STATE_KEY = "where Certify is"  # The name of the extra of a record that holds the state of the search.


@dataclass(frozen=True)
class KnownBounds:
    """Intermediate bounds of some nodes, found at a radius, row by row.

    They hold at every smaller radius too, where they save most of the backward passes.
    """

    radius: Tensor  # (batch,); -inf where no bounds are known
    ends: Mapping[Node, IntervalBounds]

    def bounds_at(self, rows: Tensor, radius: Tensor) -> dict[Node, IntervalBounds]:
        """Return the bounds that hold for some rows at these radii; infinite where the radius is larger than
        the known one.
        """
        beyond = radius > self.radius[rows]

        def some(end: Tensor, nothing: float) -> Tensor:
            return torch.where(beyond.reshape(-1, *(1 for _ in end.shape[1:])), nothing, end[rows])

        return {
            node: (some(low, -torch.inf), some(high, torch.inf)) for node, (low, high) in self.ends.items()
        }

    def with_bounds(
        self, rows: Tensor, radius: Tensor, found: Mapping[Node, IntervalBounds]
    ) -> "KnownBounds":
        """Return this with the bounds found for some rows at these radii."""

        def merge(node: Node, side: int) -> Tensor:
            end = found[node][side]
            before = (
                self.ends[node][side]
                if node in self.ends
                else end.new_zeros((len(self.radius), *end.shape[1:]))
            )
            return before.index_copy(0, rows, end)

        return KnownBounds(
            self.radius.index_copy(0, rows, radius),
            {node: (merge(node, 0), merge(node, 1)) for node in found},
        )


@dataclass(frozen=True)
class RadiusSearch:
    """The state of the search, row by row: certified at `low`, not certified at `high`, and the lower bounds
    of the score there.
    """

    low: Tensor  # (batch,)
    high: Tensor  # (batch,)
    low_score: Tensor  # NaN if another method certified `low`
    high_score: Tensor  # NaN before any radius failed
    first: Tensor  # score at the input itself
    linear: Tensor  # radius at which the linearised score is zero
    slow: Tensor  # number of rounds in which the interval hardly became shorter
    round: Tensor
    known: KnownBounds  # intermediate bounds at radii that were not certified
    before: Tensor  # the radius certified before `low`; NaN if there is none
    before_score: Tensor

    def resumable_state(self) -> Tensor:
        """Return (batch, 8): everything that cannot be computed again."""
        kept = self.low, self.high, self.low_score, self.high_score, self.slow, self.round
        return torch.stack([*kept, self.before, self.before_score], dim=1)


@dataclass(frozen=True)
class Certify(Method[RadiusSearch]):
    """Certify by linear bounds in closed form, at up to `rounds` radii one after the other.

    The next radius lies slightly below the zero of a parabola through the known scores; if that converges
    slowly, in the middle of the interval. A row is done when its bounds are `close`, or when the parabola
    predicts that at most half of the interval is certifiable; most rows need four or five rounds.
    """

    finds: ClassVar[str] = "certified lower bounds"
    help: ClassVar[str] = "linear bounds (CROWN) with relaxations in closed form"
    needs_graph: ClassVar[bool] = True
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    rounds: int = 24
    close: float = 0.002  # relative accuracy of the radius
    arithmetic: Arithmetic = "real"  # "executed": the network as it runs, in its own arithmetic

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.property, BoundedProperty):
            return (
                "proofs need a property whose score is computed from linear rows (Robustness, Targeted, "
                "Linear, Confidence, ...)"
            )
        if self.arithmetic == "executed" and not isinstance(problem.property, LinearProperty):
            return (
                "a proof about the network as executed needs a property in linear rows, since any other "
                "score is rounded itself"
            )
        try:
            graph = checked_graph(problem, executed=self.arithmetic == "executed")
        except UnsupportedLayer as error:
            return str(error)
        if least_bytes(graph) > memory_budget.allowed_bytes():
            return (
                f"linear bounds of a single row take {least_bytes(graph) / 2**20:.1f} MiB, more than the "
                "planned memory: allow more (--memory)"
            )
        return _obstacle_as_executed(problem, graph) if self.arithmetic == "executed" else None

    def least_seconds(self, problem: Problem) -> float:
        return least_pass_seconds(problem)

    def start(self, problem: Problem, seed: int) -> RadiusSearch:
        none = torch.zeros(len(problem), dtype=torch.float64, device=problem.region.centre.device)
        if not problem.bounds_radius:
            return RadiusSearch(
                none, none, none, none, none, none, none, none, KnownBounds(none, {}), none, none
            )
        linear = linearised_radius(problem)
        first = _score_at_centre(problem.tile_radii(none[None]), self.arithmetic)
        # A linear score seldom decreases more slowly further out (see `_widen`); a probability may.
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
            KnownBounds(none - torch.inf, {}),
            torch.full_like(none, torch.nan),
            torch.full_like(none, torch.nan),
        )

    def resume_state(
        self, problem: Problem, state: RadiusSearch, aside: Mapping[str, Tensor]
    ) -> RadiusSearch:
        """Restore the search row by row, so that a resumed run tries the same radii as an undisturbed one."""
        if SEARCH_STATE_KEY not in aside:
            return state
        stored = aside[SEARCH_STATE_KEY].to(state.low)
        # Records of earlier versions hold six columns.
        stored = torch.nn.functional.pad(stored, (0, 8 - stored.shape[1]), value=torch.nan)
        low, high, low_score, high_score, slow, turn, before, before_score = stored.unbind(1)
        pairs = {
            "low": low,
            "high": high,
            "low_score": low_score,
            "high_score": high_score,
            "slow": slow,
            "round": turn,
            "before": before,
            "before_score": before_score,
        }
        kept = {name: torch.where(turn.isnan(), getattr(state, name), value) for name, value in pairs.items()}
        return replace(state, **kept)  # type: ignore[arg-type]

    def update_bounds(
        self, problem: Problem, state: RadiusSearch, lower: Tensor, upper: Tensor
    ) -> RadiusSearch:
        """Continue the search from a certified bound of another method, unless that bound is about another
        arithmetic.
        """
        better = lower.isfinite() & (lower > state.low)
        if not problem.bounds_radius or self.arithmetic == "executed" or not bool(better.any()):
            return state
        return replace(
            state,
            low=torch.where(better, lower, state.low),
            low_score=torch.where(better, torch.nan, state.low_score),
        )

    def step(self, problem: Problem, state: RadiusSearch) -> tuple[RadiusSearch | None, Claims]:
        if not problem.bounds_radius:
            score = proved_score(problem, self.arithmetic)
            return state if time_limit.has_expired() and bool(score.isnan().any()) else None, self._claims(
                problem, score
            )
        state = _widen(problem.family, state)
        first = state.linear * _first_radius_share(problem)
        long, close = _loses_bounds_suddenly(problem), self.close
        if long:
            close = max(close, CLOSE_OF_LONG_NETWORKS)
            radius = _next_radius_of_long_network(state, first, close)
        else:
            radius = _next_radius(problem.family, state, first, close)
        radius = torch.minimum(radius, problem.family.limit())
        score = torch.full_like(radius, torch.nan)
        end = state.high if long else _prospective_end(state)
        near = (end <= state.low * (1 + close)) | (state.round >= self.rounds)
        if long:
            near |= (state.low > 0) & (state.low_score < SCORE_NEAR_SUDDEN_LOSS * state.first)
        radius, open_ = torch.where(near, state.high, radius), (~near).nonzero().flatten()
        if len(open_):
            asked = problem.take(open_)
            asked = asked.tile_radii(radius[open_][None])
            # The radius that is certified, rounded to the arithmetic of the family.
            radius[open_] = asked.family.radius.double()
            score[open_], found = _score_with_bounds(
                asked, self.arithmetic, state.known.bounds_at(open_, radius[open_])
            )
            failed = (score[open_].isfinite() & (score[open_] <= 0)).nonzero().flatten()
            ends = {node: (low[failed], high[failed]) for node, (low, high) in found.items()}
            state = replace(state, known=state.known.with_bounds(open_[failed], radius[open_[failed]], ends))
        search = _narrow(state, radius, score, ~near & score.isnan())
        done = bool((search.round >= self.rounds).all()) or not len(open_)
        return None if done else search, replace(
            self._claims(problem, search.low),
            aside={SEARCH_STATE_KEY: search.resumable_state()},
            fallback=self.explain_interruption(search) if time_limit.has_expired() else "",
        )

    def explain_interruption(self, state: RadiusSearch) -> str:
        if bool((state.low > 0).any()):
            return ""
        return NO_RADIUS_CERTIFIED if bool((state.round > 0).any()) else NO_PASS_ENDED

    def _claims(self, problem: Problem, proved: Tensor) -> Claims:
        if self.arithmetic == "real":
            forms = describe_forms(graph_of(problem), _unit_region(problem))
            settings = {"intermediate_bounds": forms} if forms else {}
            return Claims(proved=proved, assumptions=ASSUMPTIONS, checks=CHECKS, settings=settings)
        return Claims(proved=proved, assumptions=AS_EXECUTED, checks=CHECKS, dtype=str(problem.network.dtype))


def _obstacle_as_executed(problem: Problem, graph: Graph) -> str | None:
    """Return why the rounding errors of this network as executed cannot be bounded; None if they can."""
    if problem.network.dtype not in (torch.float32, torch.float64):
        return (
            "a proof about the network as executed needs float32 or float64, and this one is "
            f"{problem.network.dtype}"
        )
    kernels = _imprecise_kernels(problem.network.device)
    if kernels is not None:
        return kernels
    if graph.folded:
        return (
            f"{graph.folded[0]}: computes a constant from weights, whose rounding as executed is not "
            "bounded here, so nothing is proved; attacks, and proofs in real arithmetic, still work"
        )
    if graph.fused:
        return (
            f"{graph.fused[0]}: torch sums in a kernel of its own, whose rounding as executed is not "
            "bounded here, so nothing is proved; attacks, and proofs in real arithmetic, still work"
        )
    for node in graph.nodes:
        box = tuple(torch.ones(1, dtype=torch.float64) for _ in node.inputs)
        if (
            isinstance(node, Relaxed)
            and node.relaxation.executed_error(box, box, problem.network.dtype) is None
        ):
            return (
                f"{node.name}: the rounding of {type(node.relaxation).__name__} as executed is not bounded "
                "here, so nothing is proved; attacks, and proofs in real arithmetic, still work"
            )
    return None


def _imprecise_kernels(device: torch.device) -> str | None:
    """Return which settings allow torch to use kernels that round more than sums of products do; None if
    there is none.
    """
    if torch.get_float32_matmul_precision() != "highest":
        return (
            "a proof about the network as executed needs full float32 products, and "
            "torch.set_float32_matmul_precision allows shorter ones "
            "here: set it to 'highest'"
        )
    if (
        device.type == "cpu"
        and not torch._C._get_mkldnn_enabled()
        and torch.backends.nnpack.is_available()
        and torch._C._get_nnpack_enabled()
    ):
        return (
            "a proof about the network as executed needs convolutions that are plain sums, and without "
            "oneDNN torch takes NNPACK's, which "
            "transform: turn oneDNN on, or NNPACK off (torch.backends.nnpack.set_flags(False))"
        )
    return None


def _widen(family: Family, state: RadiusSearch) -> RadiusSearch:
    """Extend the search to the merge reach where the score was certified as far as the linearised score is
    positive.
    """
    further = state.high_score.isnan() & (state.low >= 0.999 * state.linear)
    return replace(
        state, high=torch.where(further, torch.maximum(state.high, family.reach().to(state.high)), state.high)
    )


def _next_radius(family: Family, state: RadiusSearch, first: Tensor, close: float) -> Tensor:
    """Return the radius to try next, (batch,); `first` before any other."""
    plain: Tensor = family.between(state.low, state.high, 1)[0]
    if family.counted:
        return plain
    predicted, usable = _zero_from_one_score(state), _is_usable(state)
    predicted = torch.where(
        state.low > 0, torch.minimum(predicted, 8 * state.low), torch.maximum(predicted, state.high / 10)
    )
    # Slightly below the predicted zero, so that the attempt succeeds and is the last one.
    found = torch.where((state.low > 0) & usable, _zero_from_two_scores(state), predicted) * (1 - close / 10)
    trusted = found.isfinite() & ((state.low > 0) | usable) & (state.slow < 2)
    found = torch.where(trusted, found, torch.where(state.low > 0, plain, state.high / 3))
    inside = state.low + (state.high - state.low) * 0.02
    found = torch.minimum(torch.maximum(found, inside), state.high - (state.high - state.low) * 0.02)
    return torch.where(state.round > 0, found, torch.where(first > state.low, first, plain))


def _first_radius_share(problem: Problem) -> Tensor | float:
    """Return the share of the linearised radius to try first: linear bounds lose more the more frames change
    and the deeper the network is.

    For perturbations of the merge input the share is that of about a dozen frames.
    """
    frames = problem.family.count_moving_frames()
    plan = plan_forms(graph_of(problem))
    share: Tensor | float = FIRST_RADIUS_SHARE
    if plan is not None and _loses_bounds_suddenly(problem):
        lower, upper = problem.family.at(torch.ones_like(problem.family.radius)).enclosing_box()
        moves = problem.region.flatten(lower < upper)
        depth = torch.where(moves, plan.depth_of_inputs.to(moves.device), 0).amax(1).clamp_min(1)
        share = FIRST_RADIUS_SHARE * (DEPTH_OF_FULL_SHARE / depth).clamp_max(1.0)
        share = share * min(1.0, LEAST_DEPTH_OF_FULL_SHARE / max(1, plan.least_depth))
    return share / (3.5 if frames is None else frames.clamp_min(1).sqrt())


def _loses_bounds_suddenly(problem: Problem) -> bool:
    """Whether affine forms alone bound the network: over many steps their errors multiply, so that the bound
    of the score hardly changes up to some radius and is lost a little further out.
    """
    plan = None if problem.family.counted else plan_forms(graph_of(problem), _unit_region(problem))
    return plan is not None and not plan.walks


def _unit_region(problem: Problem) -> Region:
    """The perturbation set with radius 1: the same inputs vary for every positive radius. A score has one region."""
    if not problem.bounds_radius:
        return problem.region
    return problem.family.at(torch.ones_like(problem.family.radius))


def _next_radius_of_long_network(state: RadiusSearch, first: Tensor, close: float) -> Tensor:
    """Return the radius to try next where the bound is lost suddenly, (batch,); `first` before any other.

    Scores beyond that radius say nothing. From two certified radii the next one is predicted
    (`_zero_of_sudden_loss`); before, radii grow by `_growth_after_one_radius`, or shrink after a failure.
    """
    low, high = state.low, state.high
    failed = state.high_score.isfinite()
    lost = (state.first * (1 - low / state.linear) - state.low_score).clamp_min(0)
    growth = _growth_after_one_radius(lost / state.first)
    zero = _zero_of_sudden_loss(state)
    # Slightly below: a certified radius is worth more than one that fails.
    found = low + (zero - low) * (1 - NEAR_SUDDEN_LOSS) - close / 10 * low
    most = growth.clamp_min(2.0) * low
    found = torch.where(found.isfinite() & (found > low), torch.minimum(found, most), growth * low)
    found = torch.minimum(found, low * (1 + DISTANCE_TO_SUDDEN_LOSS * state.first / lost))
    middle = low / 2 + high / 2
    found = torch.where(failed & ~(found < middle), middle, torch.where(found > low, found, growth * low))
    found = torch.where(low > 0, torch.minimum(found, high), high / 3)
    return torch.where(state.round > 0, found, torch.where(first > low, first, middle))


def _growth_after_one_radius(lost: Tensor) -> Tensor:
    """Return the factor to the next radius where a share `lost` of the score, at least 0, is lost at the last one."""
    share = ((lost.square() + 4 * LOSS_SCALE * LOSS_END * lost).sqrt() - lost) / (2 * LOSS_SCALE)
    growth = 1 + SHARE_OF_THE_WAY * (1 - share).clamp_min(0) / share
    return torch.nan_to_num(growth, LARGEST_GROWTH).clamp_max(LARGEST_GROWTH)


def _zero_of_sudden_loss(state: RadiusSearch) -> Tensor:
    """Return the zero of first (1 - r / linear) - b r^2 / (1 - r / end), with b and `end` from the scores at two
    certified radii; NaN or infinite where they do not fit.
    """
    lost = [
        (state.first * (1 - r / state.linear) - score) / r.square()
        for r, score in ((state.before, state.before_score), (state.low, state.low_score))
    ]
    # lost = b / (1 - r / end): 1 / end, which is negative where the loss does not accelerate.
    inverse = (lost[1] - lost[0]) / (lost[1] * state.low - lost[0] * state.before)
    inverse = inverse.clamp_min(0)
    b = lost[1] * (1 - state.low * inverse)
    # b r^2 = first (1 - r / linear) (1 - r inverse)
    square = state.first * inverse / state.linear - b
    slope = -state.first * (1 / state.linear + inverse)
    root = (slope.square() - 4 * square * state.first).sqrt()
    return 2 * state.first / (root - slope)


def _is_usable(state: RadiusSearch) -> Tensor:
    """Whether the score at `high` is usable for interpolation: far beyond the certifiable radius it says
    nothing about where its zero is.
    """
    return state.high_score > -8 * state.first


def _zero_from_one_score(state: RadiusSearch) -> Tensor:
    """Return the zero of first - (first / linear) r - b r^2, with b from one known score."""
    known = torch.where(state.low > 0, state.low, state.high)
    score = torch.where(state.low > 0, state.low_score, state.high_score)
    curvature = (state.first * (1 - known / state.linear) - score) / known.square()
    slope = state.first / state.linear
    return 2 * state.first / (slope + (slope.square() + 4 * curvature.clamp_min(0) * state.first).sqrt())


def _zero_from_two_scores(state: RadiusSearch) -> Tensor:
    """Return the zero of the parabola through the scores at 0, low and high."""
    width = state.high - state.low
    steep = (state.high_score - state.low_score) / width
    curvature = (steep - (state.low_score - state.first) / state.low) / state.high
    start = curvature * width - steep  # minus the slope of the parabola at low
    return state.low + 2 * state.low_score / (
        start + (start.square() - 4 * curvature * state.low_score).sqrt()
    )


def _prospective_end(state: RadiusSearch) -> Tensor:
    """Return (batch,): the radius beyond which hardly anything is certifiable: `high`, or twice as far from
    `low` as the predicted zero.
    """
    end = state.low + 2 * (_zero_from_two_scores(state) - state.low)
    return torch.where(
        _is_usable(state) & (state.low > 0) & (end > state.low), torch.minimum(end, state.high), state.high
    )


def _narrow(state: RadiusSearch, radius: Tensor, score: Tensor, late: Tensor) -> RadiusSearch:
    """Update the interval after trying radii; rows that are `late` (batch,) bool had no time left and are
    tried again.
    """
    proved = score.isfinite() & (score > 0)
    failed = ~proved & ~late & (radius < state.high)
    proved &= radius >= state.low
    known = proved & state.low_score.isfinite() & (state.low > 0) & (radius > state.low)
    before = torch.where(known, state.low, state.before)
    before_score = torch.where(known, state.low_score, state.before_score)
    low, low_score = torch.where(proved, radius, state.low), torch.where(proved, score, state.low_score)
    high, high_score = torch.where(failed, radius, state.high), torch.where(failed, score, state.high_score)
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
        before=before,
        before_score=before_score,
    )


def proved_score(problem: Problem, arithmetic: Arithmetic = "real") -> Tensor:
    """Lower-bound the score over the region: result[b] <= min of the score, (batch,); -inf if nothing is
    proved, NaN if there was no time.
    """
    return _score_with_bounds(problem, arithmetic, {})[0]


def _score_with_bounds(
    problem: Problem, arithmetic: Arithmetic, known: Mapping[Node, IntervalBounds]
) -> tuple[Tensor, dict[Node, IntervalBounds]]:
    """Do the same as `proved_score`, given intermediate bounds that hold in the region.

    Returns also the intermediate bounds found, for rows with a score that is not NaN.
    """
    graph = graph_of(problem, executed=arithmetic == "executed")
    plan = plan_forms(graph, problem.region) if arithmetic == "real" else None
    assert isinstance(problem.property, BoundedProperty)
    score = torch.full((len(problem),), torch.nan, dtype=torch.float64, device=graph.device)
    ends = {
        node: (score.new_empty((len(problem), *node.shape)), score.new_empty((len(problem), *node.shape)))
        for node in reusable_nodes(graph)
    }

    def score_rows(rows: Tensor) -> tuple[Tensor, Boxes]:
        part = problem.take(rows)
        matrix, offset = rows_of(part, graph)
        held = {node: (low[rows], high[rows]) for node, (low, high) in known.items()}
        executed = None if arithmetic == "real" else problem.network.dtype
        boxes = propagate_first(graph, part.region, executed, held)
        assert isinstance(part.property, BoundedProperty)
        least = part.property.least(lower_bound(graph, boxes, matrix, offset))
        return torch.where(least.isnan(), -torch.inf, least), boxes  # A bound that overflows proves nothing.

    for portion in time_limit.portions(problem.region.centre):
        # Rows in which the same frames change are neighbours: this makes backward passes cheaper (see
        # `bounding.crown`), and affine forms, whose noise symbols begin with the first row that varies.
        ordered = portion[_first_moving_feature(batch.take(problem.region, portion)).argsort()]
        parts = 1 if plan is None else math.ceil(len(ordered) / plan.rows_at_once(graph.device))
        for rows in ordered.tensor_split(parts):
            found = time_limit.in_time(partial(score_rows, rows), None)
            if found is None:
                return score, ends
            score[rows], boxes = found
            for node, (low, high) in ends.items():
                low[rows], high[rows] = boxes.lower[node], boxes.upper[node]
    return score, ends


def _score_at_centre(problem: Problem, arithmetic: Arithmetic) -> Tensor:
    """Return (batch,): the score at the centres, in float64. It only guides the search and proves nothing.

    It is computed from the graph, which omits a final softmax.
    """
    graph = graph_of(problem, executed=arithmetic == "executed")
    assert isinstance(problem.property, BoundedProperty)
    matrix, offset = rows_of(problem, graph)
    centre = problem.region.centre.to(graph.device, torch.float64)
    parts = centre.split(max(1, MAX_VALUES_OF_POINTS // sum(node.size for node in graph.nodes)))
    outputs = torch.cat([values(graph, part)[graph.output].flatten(1) for part in parts])
    return problem.property.least((matrix @ outputs[..., None]).squeeze(-1) + offset)


def _first_moving_feature(region: Region) -> Tensor:
    """Return (batch,): the index of the first feature that can change."""
    lower, upper = region.enclosing_box()
    return region.flatten(lower < upper).to(torch.uint8).argmax(-1)


def linearised_radius(problem: Problem) -> Tensor:
    """Return (batch,): the radius at which the linearised score is zero, which linear bounds hardly ever
    certify.
    """
    family = problem.family
    if family.slope(torch.zeros_like(family.centre)) is None:
        return (family.reach() + 1) / 2  # The radius is a count: nothing beyond twice this value is tried.
    score, gradient = problem.score_and_gradient(family.centre)
    slope = family.slope(gradient)
    assert slope is not None
    return torch.minimum(score.double() / slope.clamp_min(1e-300), family.reach())
