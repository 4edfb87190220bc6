"""What sums of trees can say over a region, leaf by leaf; exact for a single tree.

A leaf can be reached from a radius on: the distance of its box. At any radius each tree says at least the least of what its leaves within
reach say, and all trees together at least the sum of that. As the radius grows this sum falls in steps, at distances of leaves; up to the
first at which it is no longer positive nothing breaks. Trees cannot always all say their least at once, so for several the truth may be
larger.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.method import Claims, Method
from holdfast.network.trees import Trees
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.region import Ball, Box, ChangedColumns, Family, Region, Rows
from holdfast.replay import spot_points
from holdfast.result import Traits
from holdfast.rounding import gamma

ASSUMPTIONS = ("the inputs are float64 numbers; a larger class wins, and a tie counts as a change",)
CHECKS = (
    "the sum over the leaves is what the estimator answers, up to the rounding of its own sum: on both sides of its thresholds, at the "
    "inputs and at random points of the region",
)
ELEMENTS = 2**24  # numbers looked at at once
SAMPLES = 4  # inputs of whose regions points are asked


@dataclass(frozen=True)
class Leaves(Method[int]):
    """One look at each input."""

    finds: ClassVar[str] = "proved lower ends of trees and their sums"
    help: ClassVar[str] = "the leaves of trees within reach"
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    def obstacle(self, problem: Problem) -> str | None:
        trees = problem.network.trees
        if trees is None:
            return "proves by the leaves of trees, and the model is no sum of trees that could be read"
        if not isinstance(problem.property, LinearProperty):
            return "proofs by leaves need a property in linear rows (Robustness, Targeted, Linear)"
        if not isinstance(problem.region, Rows | ChangedColumns | Ball | Box) or (
            problem.goal == "radius" and not isinstance(problem.region, Rows | ChangedColumns)
        ):
            return "knows rows of tables, balls and boxes"
        columns = problem.network.columns
        if (
            isinstance(problem.region, Ball | Box)
            and columns is not None
            and any(c.values is not None for c in columns.each)
        ):
            return "the model reads words, and a ball or a box holds what is no word: ask about rows of the table"
        return None

    def start(self, problem: Problem, seed: int) -> int:
        return 0

    def step(self, problem: Problem, state: int) -> tuple[int | None, Claims]:
        """Some inputs after the other, as many as memory holds."""
        trees = problem.network.trees
        assert trees is not None
        if state == 0 and not _same(problem, trees):
            return None, Claims(
                obstacle="the sum over its leaves is not what the model answers here, so nothing is proved by them"
            )
        each = trees.lower.numel() * 8 + len(trees.tree) * 8 * trees.values.shape[1]
        rows = torch.arange(state, min(len(problem), state + max(1, ELEMENTS // each)))
        proved = torch.full((len(problem),), torch.nan, dtype=torch.float64)
        witness, found = problem.region.centre.clone(), torch.zeros(len(problem), dtype=torch.bool)
        part = problem.take(rows)
        if problem.goal == "radius":
            proved[rows], witness[rows] = _radius(part, trees)
            found[rows] = True
        else:
            proved[rows] = _worst(part, trees)
        following = state + len(rows)
        claims = Claims(proved=proved, witness=witness, found=found, assumptions=ASSUMPTIONS, checks=CHECKS)
        return following if following < len(problem) else None, claims


def _same(problem: Problem, trees: Trees) -> bool:
    """Whether the model answers as the sum over its leaves does at the inputs, and at points of the regions of the first of them."""
    region = problem.region
    some = problem.take(torch.arange(min(len(problem), SAMPLES), device=region.centre.device))
    grows = isinstance(region, Family) and not bool(region.radius.any())
    each = spot_points(some, torch.full((len(some),), torch.inf, dtype=torch.float64) if grows else None)
    points = torch.cat([region.centre, *(part.flatten(0, 1) for part in each)]).double()
    return bool(
        (
            (problem.network(points).double() - trees.sum(points)).abs() <= trees.rounding_error() + 1e-300
        ).all()
    )


def _leaf_contributions(problem: Problem, trees: Trees) -> tuple[Tensor, Tensor]:
    """-> (batch, rows, leaves): what each leaf adds to each row of the property; (batch, rows): what is added to all, less all roundings:
    those of the model's own sum, those of the base, which was read from it, those of probabilities, and those of the sums here."""
    assert isinstance(problem.property, LinearProperty)
    matrix, offset = problem.property.rows(trees.values.shape[1])
    said = torch.einsum("bro,lo->brl", matrix, trees.values)
    size = (matrix.abs() @ (trees.rounding_error() / (8 * trees.unit))[:, None]).squeeze(
        -1
    )  # above the sum of the largest values
    # Two classes whose scores are as near as this may have the same probability, and `predict` compares probabilities.
    near = 64 * trees.unit if problem.network.classes is not None else 0.0
    own = 4 * (matrix.abs() @ trees.rounding_error()[:, None]).squeeze(-1)
    lost = near + own + 8 * gamma(trees.count + matrix.shape[-1]) * (size + offset.abs())
    return said, (matrix @ trees.base[:, None]).squeeze(-1) + offset - lost


def _leaf_distances(region: Region, trees: Trees) -> tuple[Tensor, Tensor]:
    """-> (batch, leaves) float64: from which radius on each leaf may be reached, rounded down; (leaves, batch, features): where."""
    assert isinstance(region, Rows | ChangedColumns)
    points = region.nearest_in(trees.lower[:, None], trees.upper[:, None])
    missing = points.isnan().any(-1)
    points = torch.where(missing[..., None], region.centre.double(), points)
    away = region.distance(points.to(region.centre))
    if isinstance(region, Rows):
        away = away * (1 - 128 * gamma(points.shape[-1]))
    away = torch.where(away.isfinite(), away, 0)  # there is a point, whatever its distance
    return torch.where(missing, torch.inf, away).T, points


def _radius(problem: Problem, trees: Trees) -> tuple[Tensor, Tensor]:
    """(batch,) proved radii, and (batch, features) the point at which the last of the leaves comes within reach: of one tree a witness."""
    said, rest = _leaf_contributions(problem, trees)
    away, points = _leaf_distances(problem.region, trees)
    order = away.argsort(dim=1, stable=True)
    far, tree = away.gather(1, order), trees.tree[order]
    said = said.gather(2, order[:, None].expand(said.shape))
    # The least that a tree says of all leaves up to here: leaves by distance, sorted by tree.
    by_tree = tree.argsort(dim=1, stable=True)
    wide = by_tree[:, None].expand(said.shape)
    least = _running_least(said.gather(2, wide), tree.gather(1, by_tree))
    first = torch.nn.functional.pad(tree.gather(1, by_tree).diff(dim=1) != 0, (1, 0), value=True)[:, None]
    fall = torch.where(first, least, least - least.roll(1, dims=2))
    fall = torch.zeros_like(fall).scatter(2, wide, fall)
    total = fall.cumsum(2)
    # A tree of which no leaf is within reach yet has not spoken: there is one at distance zero, so from there on all have.
    total = total + rest[..., None] - 4 * gamma(said.shape[2]) * fall.abs().cumsum(2)
    breaks = ~(total > 0) & (far > 0)[:, None]
    at_once = ~((_last_at_zero(total, far) > 0).all(1))
    place = torch.where(breaks.any(2), breaks.to(torch.uint8).argmax(2), far.shape[1] - 1)
    broken = torch.where(breaks.any(2), far.gather(1, place), torch.inf).min(1)
    which = order.gather(1, place.gather(1, broken.indices[:, None])).squeeze(1)
    proved = _below(problem.region, broken.values)
    return torch.where(at_once, 0.0, proved), points[which, torch.arange(len(which))].to(
        problem.region.centre
    )


def _running_least(said: Tensor, tree: Tensor) -> Tensor:
    """(batch, rows, leaves), (batch, leaves) the tree of each, rising -> the least so far within each tree.

    Running minima of all leaves at once, doubling the distance looked back; never beyond the first of a tree.
    """
    back = 1
    while back < said.shape[2]:
        same = torch.nn.functional.pad(tree[:, back:] == tree[:, :-back], (back, 0), value=False)[:, None]
        said = torch.where(same, torch.minimum(said, said.roll(back, dims=2)), said)
        back *= 2
    return said


def _last_at_zero(total: Tensor, far: Tensor) -> Tensor:
    """(batch, rows): the sum at the input itself."""
    last = (far == 0).sum(1).sub(1).clamp_min(0)
    return total.gather(2, last[:, None, None].expand(*total.shape[:2], 1)).squeeze(2)


def _below(region: Region, distance: Tensor) -> Tensor:
    """The largest radius that does not reach so far."""
    if isinstance(region, ChangedColumns):
        return distance - 1
    return torch.nextafter(distance, torch.zeros_like(distance))


def _worst(problem: Problem, trees: Trees) -> Tensor:
    """(batch,): the score is at least this everywhere in the region."""
    said, rest = _leaf_contributions(problem, trees)
    lower, upper = problem.region.enclosing_box()
    within = ((trees.lower <= upper[:, None]) & (trees.upper >= lower[:, None])).all(-1)
    if isinstance(problem.region, Rows | ChangedColumns):
        within &= _leaf_distances(problem.region, trees)[0] <= problem.region.radius[:, None]
    said = torch.where(within[:, None], said, torch.inf)
    least = torch.full((*said.shape[:2], trees.count), torch.inf, dtype=torch.float64)
    least = least.scatter_reduce(2, trees.tree.expand(said.shape), said, "amin")
    return (least.sum(2) + rest).amin(1)
