"""Estimate of the time and memory that a proof of one input takes on this machine, tier by tier.

One step of each phase of a tier is run and timed; the number of steps is known. Radii differ from input to
input, and so do the steps to them, so the result is an estimate and is reported as one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast import time_limit
from holdfast.bounding.crown import CPU_TENSOR_VALUES, LIVE_TENSORS, least_bytes
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.certify.joint_relaxation import JointRelaxation
from holdfast.certify.quadratic_training import (
    CoefficientTraining,
    InitialCoefficients,
    quadratic_of,
    why_untrainable,
)
from holdfast.certify.tight_tier import ClosedFormBounds, Tighten, TightState
from holdfast.certify.trained_linear_bounds import TrainedLinearBounds
from holdfast.memory_budget import elements_per_tensor
from holdfast.problem import Problem

MEASUREMENT_SECONDS = 5.0  # Time for all measurements together, in seconds (chosen by hand).
# Time of the later radii of the joint relaxation, as a share of the first: they begin with its dual variables
# (chosen by hand).
LATER_RADIUS_SHARE = 0.4
# Passes of linear bounds after which most searches end (see `Certify`); chosen by hand.
USUAL_PASSES = 5
# Largest number of values in the quadratic models of one input for which a bound is timed (chosen by hand).
MAX_TIMED_NUMBERS = 2**24
# Number of proofs after a block of training; see `quadratic_training.PROOF_SHARES`.
PROOFS_PER_BLOCK = 4

T = TypeVar("T")


@dataclass(frozen=True)
class Cost:
    """The cost of one input at one tier.

    Attributes:
        seconds: of a whole search: measured if `complete`, else extrapolated; None if nothing supports it.
        memory: an upper estimate, in bytes.
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


def costs(problem: Problem, limit: float = MEASUREMENT_SECONDS) -> list[Cost]:
    """Return the cost of tiers fast and tight for a radius of one input. Tier split uses all the time it is
    given.
    """
    method, graph = Tighten(), graph_of(problem)
    linear = max(
        8
        * LIVE_TENSORS
        * min(CPU_TENSOR_VALUES, elements_per_tensor(graph.device, CPU_TENSOR_VALUES, LIVE_TENSORS)),
        least_bytes(graph),
    )
    with time_limit.within(time.monotonic() + limit):
        state, fast = _time_call(_run_linear_bounds, method, problem)
        searched = not isinstance(state.phase, ClosedFormBounds)
        began = time.perf_counter()
        first = _fast_cost(state, fast, linear)
        seconds, memory, tier = fast, linear, "tight"
        if isinstance(state.phase, TrainedLinearBounds):
            (state, _), once = _time_call(method.advance, problem, state)
            seconds += method.trials * once
            if isinstance(state.phase, TrainedLinearBounds):
                state = method.begin_next_phase(problem, state)
        if isinstance(state.phase, JointRelaxation) and not time_limit.has_expired():
            (state, _), once = _time_call(method.advance, problem, state)
            seconds += (1 + LATER_RADIUS_SHARE * (method.radii - 1)) * once
            if isinstance(state.phase, JointRelaxation):
                state = method.begin_next_phase(problem, state)
        if isinstance(state.phase, InitialCoefficients):
            view = quadratic_of(problem)
            trainable = method.steps > 0 and not why_untrainable(problem)
            memory = max(linear, view.bytes(trainable))
            tier = tier if trainable else "tight, without training"
            if time_limit.has_expired() or view.numbers > MAX_TIMED_NUMBERS:
                seconds = math.inf
            else:
                (state, _), once = _time_call(method.advance, problem, state)
                seconds += method.first * once
                if trainable and not time_limit.has_expired():
                    step = _time_training_step(method, problem, state)
                    seconds += method.steps * (step + PROOFS_PER_BLOCK * once / method.block)
        known = searched and not time_limit.has_expired() and math.isfinite(seconds)
        return [first, Cost(tier, seconds if known else None, memory, time.perf_counter() - began)]


def _fast_cost(state: TightState, seconds: float, memory: int) -> Cost:
    """The measured cost of a finished search, or that extrapolated from the passes that were finished."""
    if not isinstance(state.phase, ClosedFormBounds):
        return Cost("fast", seconds, memory, seconds, complete=True)
    passes = int(state.phase.search.round.max())
    whole = seconds / passes * max(USUAL_PASSES, passes + 1) if passes else None
    return Cost("fast", whole, memory, seconds, passes=passes)


def _run_linear_bounds(method: Tighten, problem: Problem) -> TightState:
    """Run the first phase to its end or the deadline; return the state after it."""
    state = method.start(problem, 0)
    while isinstance(state.phase, ClosedFormBounds) and not time_limit.has_expired():
        state, _ = method.advance(problem, state)
    return state


def _time_training_step(method: Tighten, problem: Problem, state: TightState) -> float:
    """Return the seconds of one step of Adam on the coefficients."""
    if isinstance(state.phase, InitialCoefficients):
        state = method.begin_next_phase(problem, state)
    assert isinstance(state.phase, CoefficientTraining)
    training = replace(state.phase, settings=replace(method.training, block=1))
    _, seconds = _time_call(training.train_block, problem, state.low)
    return seconds


def _time_call(function: Callable[..., T], *arguments: object) -> tuple[T, float]:
    """Call the function; return its result and the seconds it took."""
    began = time.perf_counter()
    return function(*arguments), time.perf_counter() - began
