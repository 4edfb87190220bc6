"""The time that a pass of linear bounds takes at least, predicted before the model is traced.

Statement. Backward linear bound propagation of k rows through a network of n multiply-adds multiplies k rows of
coefficients with every weight, so it needs at least k n multiply-adds in float64: convolutions and linear layers are
passed by their transposes. Intermediate bounds come on top. With a rate of R multiply-adds a second, a pass takes
k n / R seconds or more.

The prediction only decides whether a proof is begun; no bound depends on it. R is measured once in a process by
products of matrices, the fastest operation there is, so the prediction is too low rather than too high. Layers that
torch's counter does not know count nothing.
"""

import functools
import time
import warnings

import torch

from holdfast.errors import HoldfastError
from holdfast.memory_budget import LARGE_INPUT_NUMBERS
from holdfast.problem import Problem
from holdfast.property import LinearProperty

SIDE = 512  # Rows and columns of the matrices whose product is timed; they fit into the second-level cache.
TRIALS = 3  # Products; the fastest counts (chosen by hand).
# A pass that has only few of its rows and nodes moving may be cheaper than the statement says; a proof is given up
# beforehand only if this share of the predicted time is too long (chosen by hand).
SAFE_SHARE = 0.25


def least_pass_seconds(problem: Problem) -> float:
    """Return the seconds that a pass of linear bounds for one row of the batch takes at least; 0 where nothing is
    predicted: small inputs, GPUs, black boxes.
    """
    size = problem.region.centre[0].numel()
    if size < LARGE_INPUT_NUMBERS or problem.region.centre.is_cuda or not problem.network.differentiable:
        return 0.0
    products = forward_products(problem)
    return SAFE_SHARE * products * _count_rows(problem) / product_rate() if products else 0.0


def forward_products(problem: Problem) -> int:
    """Return the multiply-adds of one forward pass, as far as torch counts them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own import uses what torch deprecates
        from torch.utils.flop_counter import (
            FlopCounterMode,
        )  # takes as long as the forward pass of a large network
    with FlopCounterMode(display=False) as counter:
        try:
            problem.network(problem.region.centre[:1])
        except (HoldfastError, RuntimeError, ValueError, TypeError, AssertionError):
            return 0  # the method's own examination reports what is wrong
    return int(counter.get_total_flops()) // 2


def _count_rows(problem: Problem) -> int:
    """Return the number of linear functions of the outputs that a proof bounds."""
    if not isinstance(problem.property, LinearProperty):
        return 1
    outputs = problem.network.outputs_for(problem.region.centre)
    return int(problem.property.rows(outputs)[0].shape[1])


@functools.cache
def product_rate() -> float:
    """Return the multiply-adds in float64 that this process does in a second."""
    one = torch.ones(SIDE, SIDE, dtype=torch.float64)
    best = float("inf")
    for _ in range(TRIALS):
        began = time.perf_counter()
        torch.mm(one, one)
        best = min(best, time.perf_counter() - began)
    return SIDE**3 / max(best, 1e-9)
