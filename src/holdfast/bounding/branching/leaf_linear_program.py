"""Exact solution of subproblems in which every activation is decided, by a linear programme.

The network is affine there, so the programme

    minimise t    subject to    rows x + c <= t,    G x + h <= 0,    lower <= x <= upper

(G x + h <= 0 are the sign constraints) decides whether some x makes all rows at most zero.

Statement. For any weights w >= 0 with sum one and any multipliers p >= 0,

    max over the rows of (rows x + c)  >=  w . (rows x + c) + p . (G x + h)    for every x with G x + h <= 0,

and the right side is linear in x. By duality the best such bound is the optimum of the programme. So its
solution is either a candidate point or weights and multipliers that prove that there is none. SciPy solves
it in floating point and nothing is trusted: points are replayed, and multipliers are evaluated with all
rounding errors included (`RowTask.prove`).

Assumption: every pre-activation of the subproblem has a decided sign, so the network is affine there.

Reference: Boyd, Vandenberghe, "Convex optimization" (2004), chapter 5, for duality.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.bounding.alpha_beta_crown import RowTask, split_by_node
from holdfast.bounding.crown_with_fixed_bounds import combine_rows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """For each row task, the point at which the largest row is smallest, and multipliers that prove this."""

    point: Tensor  # (n, *shape)
    multiplier: Tensor  # (n, arguments)
    weight: Tensor  # (n, rows)


def solve(task: RowTask) -> Solution:
    """Solve one linear programme for each row task; all activations must be decided."""
    region = task.known.region
    lower, upper = (end.flatten(1).cpu().numpy() for end in region.enclosing_box())
    rows = combine_rows(
        task.graph, task.known, {task.node: task.matrix.reshape(*task.offset.shape, *task.node.shape)}
    )
    slope, constant = rows.coefficients.flatten(2).cpu().numpy(), (rows.constant + task.offset).cpu().numpy()
    found = []
    for k, sign in enumerate(task.sign):
        place = sign.nonzero().flatten()
        conditions = _conditions(task.take(torch.tensor([k], device=sign.device)), place)
        point, weight, some = _smallest(slope[k], constant[k], *conditions, lower[k], upper[k])
        multiplier = torch.zeros(sign.shape, dtype=torch.float64, device=sign.device)
        multiplier[place] = torch.from_numpy(some).to(multiplier)
        found.append(
            (
                torch.from_numpy(point).reshape(region.shape).to(multiplier),
                multiplier,
                torch.from_numpy(weight).to(multiplier),
            )
        )
    return Solution(*(torch.stack(parts) for parts in zip(*found, strict=True)))


def _conditions(task: RowTask, place: Tensor) -> tuple[Array, Array]:
    """G and h of one subproblem with the decided pre-activations `place`: its points satisfy G x + h <= 0."""
    slopes, constants = [], []
    one_hot = (
        torch.eye(task.sign.shape[1], dtype=torch.float64, device=place.device)[place]
        * -task.sign[0, place, None]
    )
    for node, rows in split_by_node(task.graph, one_hot).items():
        own = rows.flatten(1).any(1)
        if bool(own.any()):
            linear = combine_rows(task.graph, task.known, {node: rows[own][None]})
            slopes.append(linear.coefficients.flatten(2)[0].cpu())
            constants.append(linear.constant[0].cpu())
    inputs = task.known.region.enclosing_box()[0].flatten(1).shape[1]
    nothing = torch.zeros((0, inputs), dtype=torch.float64)
    return torch.cat([nothing, *slopes]).numpy(), torch.cat([nothing[:, 0], *constants]).numpy()


def _smallest(
    a: Array, c: Array, g: Array, h: Array, lower: Array, upper: Array
) -> tuple[Array, Array, Array]:
    """x, row weights and multipliers of the smallest t with a x + c <= t and g x + h <= 0 in the box.

    If no x satisfies g x + h <= 0, the multipliers prove that (a Farkas certificate).
    """
    from scipy.optimize import linprog  # imported here since the import is slow

    bounds = [*zip(lower, upper, strict=True), (None, None)]
    cost = np.concatenate([np.zeros(len(lower)), [1.0]])
    left = np.block([[a, -np.ones((len(a), 1))], [g, np.zeros((len(g), 1))]])
    found: Any = linprog(cost, A_ub=left, b_ub=-np.concatenate([c, h]), bounds=bounds)
    if found.status == 0:
        duals = np.maximum(-found.ineqlin.marginals, 0)
        return found.x[:-1], duals[: len(a)], duals[len(a) :]
    middle, even = (lower + upper) / 2, np.full(len(a), 1 / len(a))
    found = linprog(cost, A_ub=np.block([g, -np.ones((len(g), 1))]), b_ub=-h, bounds=bounds)
    if found.status != 0 or found.fun <= 0:
        return middle, even, np.zeros(len(g))
    # The constraints are infeasible: a large enough multiple of their sum exceeds the rows.
    row = even @ a
    least = np.minimum(row * lower, row * upper).sum() + even @ c
    return middle, even, np.maximum(-found.ineqlin.marginals, 0) * 2 * (1 + max(0.0, -least)) / found.fun
