"""A part in which every activation is decided: the network is affine there, and a linear programme says all there is to know.

Its solution is either the point to try, or multipliers that prove that there is none. The programme is solved in floating point by
SciPy and believed in nothing: the point is replayed, the multipliers are put into a bound with its roundings paid for (`Rows.prove`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor

from holdfast.bounding.alpha_beta_crown import RowTask, apart
from holdfast.bounding.crown_with_fixed_bounds import combine_rows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """Question by question: the point at which the largest of the rows is smallest, and what proves that it is no smaller."""

    point: Tensor  # (n, *shape)
    multiplier: Tensor  # (n, arguments)
    weight: Tensor  # (n, rows)


def solve(asked: RowTask) -> Solution:
    region = asked.known.region
    lower, upper = (end.flatten(1).cpu().numpy() for end in region.enclosing_box())
    rows = combine_rows(
        asked.graph, asked.known, {asked.node: asked.matrix.reshape(*asked.offset.shape, *asked.node.shape)}
    )
    slope, constant = rows.coefficients.flatten(2).cpu().numpy(), (rows.constant + asked.offset).cpu().numpy()
    found = []
    for k, sign in enumerate(asked.sign):
        place = sign.nonzero().flatten()
        conditions = _conditions(asked.take(torch.tensor([k], device=sign.device)), place)
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


def _conditions(asked: RowTask, place: Tensor) -> tuple[Array, Array]:
    """One part, and the places of the arguments that it decides -> g, h: its points have g x + h <= 0."""
    slopes, constants = [], []
    one_hot = (
        torch.eye(asked.sign.shape[1], dtype=torch.float64, device=place.device)[place]
        * -asked.sign[0, place, None]
    )
    for node, rows in apart(asked.graph, one_hot).items():
        own = rows.flatten(1).any(1)
        if bool(own.any()):
            linear = combine_rows(asked.graph, asked.known, {node: rows[own][None]})
            slopes.append(linear.coefficients.flatten(2)[0].cpu())
            constants.append(linear.constant[0].cpu())
    inputs = asked.known.region.enclosing_box()[0].flatten(1).shape[1]
    nothing = torch.zeros((0, inputs), dtype=torch.float64)
    return torch.cat([nothing, *slopes]).numpy(), torch.cat([nothing[:, 0], *constants]).numpy()


def _smallest(
    a: Array, c: Array, g: Array, h: Array, lower: Array, upper: Array
) -> tuple[Array, Array, Array]:
    """-> x, weights, multipliers: the smallest t with a x + c <= t and g x + h <= 0 in the box; or that no x meets the conditions."""
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
    # The conditions contradict each other; taken often enough, their sum outweighs the rows.
    row = even @ a
    least = np.minimum(row * lower, row * upper).sum() + even @ c
    return middle, even, np.maximum(-found.ineqlin.marginals, 0) * 2 * (1 + max(0.0, -least)) / found.fun
