"""Certified bounds of sums of decision trees from their leaves; exact for a single tree.

Statement. Let tree t add value v_l at leaf l, and let d_l be the distance of the input to the box of l. For a
row of the specification with a positive margin,

    s(x) >= offset + sum over t of min { v_l : l a leaf of t, d_l <= r }   for all x within distance r.

As r increases, the right-hand side decreases in steps at the distances of leaves. Every radius below the
first step at which it is no longer positive is certified. Several trees need not reach their minima at the
same point, so for more than one tree the true radius may be larger.

Assumptions: inputs are float64 numbers, and the sum over the leaves is what the model computes, up to the
rounding of its own sum; this is checked at the inputs and at points around them.

Reference: Chen et al., "Robustness verification of tree-based models" (2019).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.derivations import (
    TREE_CONSTANT,
    TREE_SUM,
)
from holdfast.method import Claims, Method
from holdfast.network.trees import Trees
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.replay import spot_points
from holdfast.result import Traits
from holdfast.rounding import charge

# Assumptions of these proofs, and what was checked about the model; both are stored with the record.
ASSUMPTIONS = ("the inputs are float64 numbers; a larger class wins, and a tie counts as a change",)
CHECKS = (
    "the sum over the leaves is what the estimator answers, up to the rounding of its own sum: on both "
    "sides of its thresholds, at the "
    "inputs and at random points of the region",
)
BATCH_NUMBERS = 2**24  # Largest number of values in the leaf tables of one batch (chosen by hand).
# Number of inputs around which the model is compared with the sum over the leaves (chosen by hand).
CHECKED_INPUTS = 4


@dataclass(frozen=True)
class Leaves(Method[int]):
    """Bound each input once by the leaves within the radius."""

    finds: ClassVar[str] = "certified lower bounds of trees and their sums"
    help: ClassVar[str] = "the leaves of trees within the radius"
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    def obstacle(self, problem: Problem) -> str | None:
        trees = problem.network.trees
        if trees is None:
            return "bounds sums of trees by their leaves, and no sum of trees could be read from the model"
        if not isinstance(problem.property, LinearProperty):
            return "proofs by leaves need a property in linear rows (Robustness, Targeted, Linear)"
        region = problem.region
        if not region.finds_nearest and (problem.bounds_radius or not region.has_slope):
            return "bounds rows of tables, balls and boxes only"
        columns = problem.network.columns
        reads_words = columns is not None and any(c.values is not None for c in columns.each)
        if reads_words and not region.finds_nearest:
            return (
                "the model reads words, and a ball or a box contains points that encode no word: use rows "
                "of the table"
            )
        return None

    def start(self, problem: Problem, seed: int) -> int:
        return 0

    def step(self, problem: Problem, state: int) -> tuple[int | None, Claims]:
        """Bound as many inputs as fit into memory."""
        trees = problem.network.trees
        assert trees is not None
        if state == 0 and not _model_equals_leaves(problem, trees):
            why = "the sum over its leaves is not what the model computes here, so nothing is proved by them"
            return None, Claims(obstacle=why)
        each = trees.lower.numel() * 8 + len(trees.tree) * 8 * trees.values.shape[1]
        rows = torch.arange(state, min(len(problem), state + max(1, BATCH_NUMBERS // each)))
        proved = torch.full((len(problem),), torch.nan, dtype=torch.float64)
        witness, found = problem.region.centre.clone(), torch.zeros(len(problem), dtype=torch.bool)
        part = problem.take(rows)
        if problem.bounds_radius:
            proved[rows], witness[rows] = _radius(part, trees)
            found[rows] = True
        else:
            proved[rows] = _worst(part, trees)
        following = state + len(rows)
        claims = Claims(proved=proved, witness=witness, found=found, assumptions=ASSUMPTIONS, checks=CHECKS)
        return following if following < len(problem) else None, claims


def _model_equals_leaves(problem: Problem, trees: Trees) -> bool:
    """Whether the model equals the sum over its leaves at the inputs, and at points of the regions of the
    first of them.
    """
    region = problem.region
    some = problem.take(torch.arange(min(len(problem), CHECKED_INPUTS), device=region.centre.device))
    infinite = torch.full((len(some),), torch.inf, dtype=torch.float64)
    each = spot_points(some, infinite if region.is_single_point else None)
    points = torch.cat([region.centre, *(part.flatten(0, 1) for part in each)]).double()
    return bool(
        (
            (problem.network(points).double() - trees.sum(points)).abs() <= trees.rounding_error() + 1e-300
        ).all()
    )


def _leaf_contributions(problem: Problem, trees: Trees) -> tuple[Tensor, Tensor]:
    """Return the value that each leaf adds to each row of the specification, (batch, rows, leaves), and the
    constants (batch, rows).

    All rounding errors are subtracted from the constants: those of the model's own sum, of the base read from
    the model, of probabilities, and of the sums computed here.
    """
    assert isinstance(problem.property, LinearProperty)
    matrix, offset = problem.property.rows(trees.values.shape[1])
    contribution = torch.einsum("bro,lo->brl", matrix, trees.values)
    # Above the sum of the largest absolute values of the trees.
    size = (matrix.abs() @ (trees.rounding_error() / (8 * trees.unit))[:, None]).squeeze(-1)
    # Two classes with scores this close may have the same probability, and `predict` compares probabilities.
    near = 64 * trees.unit if problem.network.classes is not None else 0.0
    own = 4 * (matrix.abs() @ trees.rounding_error()[:, None]).squeeze(-1)
    lost = near + own + charge(size + offset.abs(), TREE_CONSTANT, trees.count + matrix.shape[-1])
    return contribution, (matrix @ trees.base[:, None]).squeeze(-1) + offset - lost


def _radius(problem: Problem, trees: Trees) -> tuple[Tensor, Tensor]:
    """Return certified radii (batch,) and the points (batch, features) at which the decisive leaf comes
    within reach; for a single tree these are counterexamples.
    """
    contribution, constant = _leaf_contributions(problem, trees)
    away, points = problem.region.reach_boxes(trees.lower, trees.upper)
    order = away.argsort(dim=1, stable=True)
    far, tree = away.gather(1, order), trees.tree[order]
    contribution = contribution.gather(2, order[:, None].expand(contribution.shape))
    # The minimum of each tree over its leaves up to here: leaves in the order of distance, sorted by tree.
    by_tree = tree.argsort(dim=1, stable=True)
    wide = by_tree[:, None].expand(contribution.shape)
    least = _running_least(contribution.gather(2, wide), tree.gather(1, by_tree))
    first = torch.nn.functional.pad(tree.gather(1, by_tree).diff(dim=1) != 0, (1, 0), value=True)[:, None]
    fall = torch.where(first, least, least - least.roll(1, dims=2))
    fall = torch.zeros_like(fall).scatter(2, wide, fall)
    total = fall.cumsum(2)
    # A tree without a leaf within reach contributes nothing yet. Every tree has a leaf at distance zero, so
    # from distance zero on all trees contribute.
    total = total + constant[..., None] - charge(fall.abs().cumsum(2), TREE_SUM, contribution.shape[2])
    breaks = ~(total > 0) & (far > 0)[:, None]
    at_once = ~((_last_at_zero(total, far) > 0).all(1))
    place = torch.where(breaks.any(2), breaks.to(torch.uint8).argmax(2), far.shape[1] - 1)
    broken = torch.where(breaks.any(2), far.gather(1, place), torch.inf).min(1)
    which = order.gather(1, place.gather(1, broken.indices[:, None])).squeeze(1)
    proved = problem.family.strictly_below(broken.values)
    return torch.where(at_once, 0.0, proved), points[which, torch.arange(len(which))].to(
        problem.region.centre
    )


def _running_least(contribution: Tensor, tree: Tensor) -> Tensor:
    """Return the running minimum of the contributions (batch, rows, leaves) within each tree.

    Args:
        tree: (batch, leaves), the tree of each leaf, increasing.

    The minima of all leaves are computed at once by doubling the distance looked back, never beyond the first
    leaf of a tree.
    """
    back = 1
    while back < contribution.shape[2]:
        same = torch.nn.functional.pad(tree[:, back:] == tree[:, :-back], (back, 0), value=False)[:, None]
        contribution = torch.where(
            same, torch.minimum(contribution, contribution.roll(back, dims=2)), contribution
        )
        back *= 2
    return contribution


def _last_at_zero(total: Tensor, far: Tensor) -> Tensor:
    """Return (batch, rows): the sum at the input itself."""
    last = (far == 0).sum(1).sub(1).clamp_min(0)
    return total.gather(2, last[:, None, None].expand(*total.shape[:2], 1)).squeeze(2)


def _worst(problem: Problem, trees: Trees) -> Tensor:
    """Lower-bound the score over the region, (batch,)."""
    contribution, constant = _leaf_contributions(problem, trees)
    lower, upper = problem.region.enclosing_box()
    within = ((trees.lower <= upper[:, None]) & (trees.upper >= lower[:, None])).all(-1)
    if problem.region.finds_nearest:
        away, _ = problem.region.reach_boxes(trees.lower, trees.upper)
        within &= away <= problem.family.radius[:, None]
    contribution = torch.where(within[:, None], contribution, torch.inf)
    least = torch.full((*contribution.shape[:2], trees.count), torch.inf, dtype=torch.float64)
    least = least.scatter_reduce(2, trees.tree.expand(contribution.shape), contribution, "amin")
    return (least.sum(2) + constant).amin(1)
