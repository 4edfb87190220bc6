"""Judgement of outputs by searches over changed units."""

import torch
from torch import Tensor

from holdfast import batch
from holdfast.problem import Problem


def judge_outputs(problem: Problem, row: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores (n,) of outputs (n, outputs) for rows (n,) of the problem, and which of them
    certainly fail (n,).

    A counterexample must fail in float64 too, so a score within rounding error of zero does not count as
    failing: another change that fails by more is found as easily. An exact tie counts, since it is no effect
    of rounding. If the goal is the lowest score, nothing fails.
    """
    score = batch.take(problem.property, row).score(outputs)
    rounded = problem.network.differentiable and outputs.dtype != torch.float64
    doubt = 32 * torch.finfo(outputs.dtype).eps * outputs.abs().amax(-1) if rounded else 0
    fails = ~(score > -doubt) | (score == 0)
    return score.nan_to_num(nan=-torch.inf), fails & problem.bounds_radius
