"""What a proof of one input takes on this machine, tier by tier: the parts of a tier are run once and timed, the rest is counted.

Radii differ from input to input, and so do the steps to them: this is an estimate, and called one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast import time_limit
from holdfast.bounding.crown import ALIVE, ELEMENTS, least_bytes
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.certify.tight_tier import Tighten, Training, quadratic_of
from holdfast.memory_budget import numbers
from holdfast.problem import Problem

LIMIT = 5.0  # seconds for all measurements together
LATER = 0.4  # of the time of the first radius at which neurons are bounded together the next ones take, which begin with its numbers
USUAL_PASSES = 5  # Passes of linear bounds after which most searches end (see `Certify`).
QUICK = 2**24  # numbers in second-order models up to which a pass is tried

T = TypeVar("T")


@dataclass(frozen=True)
class Cost:
    """The cost of one input at one tier.

    seconds: of a whole search: measured if `complete`, else extrapolated; None if nothing supports it.
    memory: an upper bound, in bytes.
    measured: seconds that the measurement of this tier took.
    complete: the search was run to its end, so that `seconds` equals `measured`.
    passes: passes of linear bounds that were finished (tier fast).
    """

    tier: str
    seconds: float | None
    memory: int
    measured: float = 0.0
    complete: bool = False
    passes: int = 0


def costs(problem: Problem, limit: float = LIMIT) -> list[Cost]:
    """For a radius question about one input: tiers fast and tight. Tier split goes on for as long as it is given."""
    method, graph = Tighten(), graph_of(problem)
    planes = max(8 * ALIVE * min(ELEMENTS, numbers(graph.device, ELEMENTS, ALIVE)), least_bytes(graph))
    with time_limit.within(time.monotonic() + limit):
        state, fast = _time_call(_simulate_search, method, problem)
        began = time.perf_counter()
        first = _fast_cost(state, fast, planes)
        seconds, memory, tier = fast, planes, "tight"
        if state.planes is not None:
            (state, _), once = _time_call(method.advance, problem, state)
            seconds += method.trials * once
            state = method._start_joint_relus(problem, replace(state, planes=None))
        if state.joint is not None and not time_limit.has_expired():
            (state, _), once = _time_call(method.advance, problem, state)
            seconds += (1 + LATER * (method.radii - 1)) * once
            state = method._start_models(problem, replace(state, joint=None))
        if state.trial is not None:
            trainable = not method.done(problem, replace(state, trial=None))
            memory, tier = (
                max(planes, quadratic_of(problem).bytes(trainable)),
                tier if trainable else "tight, without training",
            )
            if not time_limit.has_expired() and quadratic_of(problem).numbers <= QUICK:
                (state, _), once = _time_call(method.advance, problem, state)
                seconds += method.first * once
                if trainable and not time_limit.has_expired():
                    _, climb = _time_call(
                        replace(method, block=1)._train_block, problem, replace(state, trial=None)
                    )
                    seconds += method.steps * (climb + 4 * once / method.block)
            else:
                seconds = math.inf
        known = state.search is None and not time_limit.has_expired() and math.isfinite(seconds)
        return [first, Cost(tier, seconds if known else None, memory, time.perf_counter() - began)]


def _fast_cost(state: Training, seconds: float, memory: int) -> Cost:
    """The measured cost of a finished search, or that extrapolated from the passes that were finished."""
    if state.search is None:
        return Cost("fast", seconds, memory, seconds, complete=True)
    passes = int(state.search.round.max())
    whole = seconds / passes * max(USUAL_PASSES, passes + 1) if passes else None
    return Cost("fast", whole, memory, seconds, passes=passes)


def _simulate_search(method: Tighten, problem: Problem) -> Training:
    state = method.start(problem, 0)
    while state.search is not None and not time_limit.has_expired():
        state, _ = method.advance(problem, state)
    return state


def _time_call(work: Callable[..., T], *asked: object) -> tuple[T, float]:
    began = time.perf_counter()
    return work(*asked), time.perf_counter() - began
