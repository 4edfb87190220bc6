"""lp balls over groups of features: one group (Ball), one per frame (Frames), or one per feature.

    B = { x : ||x_g - c_g||_p <= e_g for all groups g, l <= x <= u },   e_g = radius * free_g

Lower bounds on a linear function over B; the largest of them is used (q is the dual exponent, 1/p + 1/q = 1):

    ball    a . c - sum over g of e_g ||a_g||_q (Hoelder's inequality; exact without the domain)
    box     sum over i of min(a_i l'_i, a_i u'_i), where [l', u'] is the enclosing box clipped to the domain
    both    for p = 1 and p = 2: the Lagrangian dual bound of `_minimise_inside`, exact for optimal
            multipliers

All are computed in float64 with rounding-error bounds subtracted.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.derivations import (
    BALL_BOX,
    BALL_IN_BOX,
    BALL_LIMIT,
    BALL_MINIMUM,
    BOX_CORNER,
    HEADROOM,
    NONNEGATIVE_SUM,
    POINT_IN_BALL,
)
from holdfast.random_streams import RandomStreams
from holdfast.region.base import EVERYWHERE, Domain, Family, check_centre, check_norm, step_from
from holdfast.region.norms import direction, dual, norm, norm_above, project, steepest
from holdfast.region.unit_box import BoxMap, Radial
from holdfast.rounding import TINY, charge, round_down, round_up

# Number of rounds of the search for features that reach the domain's bound; any number gives a valid bound
# (chosen by hand).
MULTIPLIER_ROUNDS = 4


@dataclass(frozen=True, eq=False)
class NormFamily(Family):
    """All x with ||x_g - centre_g||_p <= radius * free_g for every group g, inside the domain."""

    has_slope: ClassVar[bool] = True

    norm: float = math.inf
    domain: Domain = EVERYWHERE

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "norm", check_norm(self.norm))
        object.__setattr__(self, "domain", Domain.of(self.domain))
        check_centre(self.centre, self.domain)

    @property
    def p(self) -> float:
        """The norm, under the letter that formulas use."""
        return self.norm

    @property
    def boxed(self) -> bool:
        return math.isinf(self.norm)

    def as_norm_family(self) -> Self:
        return self

    def box_map(self) -> BoxMap:
        """Return a map along rays for balls that are no boxes, else the enclosing box."""
        if math.isinf(self.norm) or not bool(self.radius.isfinite().all()):
            return super().box_map()
        low, high = (self.flatten(end) for end in self.enclosing_box())
        centre = self.flatten(self.centre.double())
        return Radial(self, -(low < centre).double(), (high > centre).double())

    @abstractmethod
    def group_features(self, x: Tensor) -> Tensor:
        """Group the features: (..., *shape) -> (..., groups, n)."""

    @abstractmethod
    def free(self) -> Tensor:
        """Return (batch, groups) float64 >= 0: the share of the radius by which each group may move."""

    def _moving(self) -> Tensor:
        """Return (batch, *shape) bool: the features that may move."""
        return self._each(self.free() > 0)

    def _each(self, group: Tensor) -> Tensor:
        """Expand a value for each group, (batch, groups), to its features, (batch, *shape)."""
        return group[..., None].expand(self.group_features(self.centre).shape).reshape(self.centre.shape)

    def spans(self) -> Tensor:
        """Return (batch, *shape) float64: how far the group of each feature may move, rounded up."""
        return self._each(self._span())

    def _span(self) -> Tensor:
        """(batch, groups) float64: how far each group may move, rounded up; 0 for a group that stays."""
        free, radius = self.free(), self.radius.double()[:, None]
        return torch.where(
            (free > 0) & (radius > 0), torch.nextafter(radius * free, torch.full_like(free, torch.inf)), 0
        )

    def balls(self) -> tuple[Tensor, Tensor]:
        """The group of each feature, (batch, *shape), and the span of each group, (batch, groups)."""
        span = self._span()
        return self._each(torch.arange(span.shape[1], device=span.device).expand(span.shape)), span

    @cached_property
    def _most_moving(self) -> int:
        """The largest number of groups that may move in any row."""
        return int((self._span() > 0).sum(1).max())

    def length(self, delta: Tensor) -> Tensor:
        """(..., batch, *shape) -> (..., batch): the radius of a perturbation, differentiable."""
        free = self.free().to(delta)
        return (norm(self.group_features(delta), self.norm) * torch.where(free > 0, 1 / free, 0)).amax(-1)

    def distance(self, x: Tensor) -> Tensor:
        delta = x.double() - self.centre.double()
        away = self._radius_above(norm_above(self.group_features(delta), self.norm))
        still = self.flatten((delta == 0) | self._moving()).all(-1)
        inside = self.flatten(self.domain.contains(x)).all(-1)
        return torch.where(still & inside & away.isfinite(), away, torch.inf)

    def contains(self, x: Tensor) -> Tensor:
        distance = self.distance(x)
        return (distance <= self.radius) & distance.isfinite()

    def _radius_above(self, away: Tensor) -> Tensor:
        """(..., batch, groups), norms of a change -> (..., batch): the radius that allows it, rounded up."""
        free = self.free()
        needed = torch.nextafter(away / free, torch.full_like(away, torch.inf))
        return torch.where((free == 0) | (away == 0), 0, needed).amax(-1)

    def limit(self) -> Tensor:
        """Return the distance to the furthest corner of the domain; infinite if the domain is unbounded."""
        corner = norm_above(self.group_features(furthest(self.centre, self.domain)), self.norm)
        corner = round_up(corner, BALL_LIMIT, self.centre[0].numel())
        # inf / inf gives NaN on the way.
        return self._radius_above(torch.nan_to_num(corner, nan=torch.inf, posinf=torch.inf))

    def reach(self) -> Tensor:
        limit = self.limit()
        return torch.where(limit.isfinite(), limit, self.length(self.centre.double().abs() + 1))

    def _extent(self) -> Tensor:
        """(batch, groups), finite: how far each group may move, limited to the domain or to `reach`."""
        radius = torch.minimum(self.radius.double(), self.limit())
        if bool(radius.isinf().any()):
            radius = torch.where(radius.isinf(), self.reach(), radius)
        return radius[:, None] * self.free()

    def slope(self, gradient: Tensor) -> Tensor:
        return (norm(self.group_features(gradient.double()), dual(self.norm)) * self.free()).sum(-1)

    def greatest_slope(self, gradient: Tensor, norm: float) -> Tensor:
        each = norm_above(self.group_features(gradient), dual(self.norm))
        free = self.free()[:, None]
        total = torch.where(free == 0, 0, each * free).sum(-1)
        return round_up(total, NONNEGATIVE_SUM, free.shape[-1])

    def scale_perturbation(self, x: Tensor, factor: float) -> Tensor:
        return self.domain.clamp(self.centre + (x - self.centre) * factor)

    def project(self, x: Tensor) -> Tensor:
        # The distance is rounded up, so aim slightly below the radius; clipping to the domain only reduces
        # the distance.
        target = round_down(self._span(), POINT_IN_BALL, self.centre[0].numel())
        delta = self.group_features((x.double() - self.centre.double()) * self._moving())
        pulled = project(delta, target.expand(delta.shape[:-1]), self.norm).reshape(x.shape)
        there = self.contains(x)[(..., *(None for _ in self.shape))]
        return self.domain.clamp(torch.where(there, x, step_from(self.centre, pulled, x)))

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        like = self.group_features(self.centre)
        away = direction(count, self.norm, chance, like)
        # Half of the points are on the surface, half inside.
        share = chance.uniform(count, (*like.shape[1:-1], 1), like).mul(2).clamp_max(1)
        return self.project(
            self.centre
            + (away * share * self._extent().to(like)[..., None]).reshape(count, *self.centre.shape)
        )

    def vertex(self, a: Tensor) -> Tensor:
        """Exact for p = inf and p = 1; for other p exact before clipping to the domain."""
        extent = self._extent().to(a)[..., None]
        grouped = self.group_features(torch.where(self._moving(), a, torch.zeros_like(a)))
        if self.norm == 1 and self.domain.bounded:
            step = _knapsack(
                grouped, extent, *(self.group_features(headroom) for headroom in self._headroom(a))
            )
        else:
            step = steepest(grouped, self.norm) * extent
        return self.project(self.centre.to(a) + step.reshape(a.shape))

    def _headroom(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far each feature may decrease and increase inside the domain."""
        centre = self.centre.to(like)
        return centre - self.domain.lower.to(like), self.domain.upper.to(like) - centre

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        centre, span = self.centre.double(), self.spans()
        widened = torch.where(self._moving(), span + charge(centre.abs() + span, BALL_BOX), 0)
        return self.domain.clamp(centre - widened), self.domain.clamp(centre + widened)

    def minimise_linear(self, a: Tensor) -> Tensor:
        """The largest of the lower bounds in the module's docstring: ball, box, and for p in {1, 2} both."""
        flat, centre = self.flatten(a.double()), self.flatten(self.centre.double())[..., None]
        grouped, span, moving = self.group_features(a), self._span(), self._most_moving
        if moving < span.shape[1]:  # fixed groups contribute nothing: compute with the variable ones only
            which = (span > 0).to(torch.uint8).topk(moving, dim=1).indices
            span = span.gather(1, which)
            grouped = grouped.gather(
                2, which[:, None, :, None].expand(*grouped.shape[:2], moving, grouped.shape[-1])
            )
        slopes, span = norm_above(grouped, dual(self.norm)), span[:, None]
        # Where the slope is 0, an infinite radius contributes nothing.
        fall = torch.where((slopes == 0) | (span == 0), 0, slopes * span).sum(-1)
        at_centre, size = (flat @ centre).squeeze(-1), (flat.abs() @ centre.abs()).squeeze(-1)
        ball = at_centre - fall - charge(size + fall, BALL_MINIMUM, flat.shape[-1])
        if self.domain.endless:
            return ball
        inside = torch.fmax(ball, minimise_over_box(a, *self.enclosing_box()))
        return (
            torch.fmax(inside, self._minimise_inside(a, at_centre, size)) if self.norm in (1, 2) else inside
        )

    def _minimise_inside(self, a: Tensor, at_centre: Tensor, size: Tensor) -> Tensor:
        """Lower-bound a . x over the ball intersected with the domain, by weak duality.

        For any multiplier multiplier >= 0 of a group, every d with ||d||_p <= span and d within the domain's
        bounds has

            a . d >= sum over i of min over d_i of (a_i d_i + multiplier |d_i|^p) - multiplier span^p,

        with equality for the optimal multiplier. The multiplier is computed in plain arithmetic, the bound
        with rounding down.
        """
        centre, (lower, upper) = self.centre.double(), self.enclosing_box()
        down, up = (self.group_features(headroom)[:, None] for headroom in (centre - lower, upper - centre))
        steep, span = self.group_features(a.double()), self._span()[:, None, :, None]
        headroom = round_up(torch.where(steep > 0, down, up), HEADROOM) + TINY
        steep = steep.abs()
        with torch.no_grad():
            multiplier = (
                _multiplier_for_l1(steep, headroom, span)
                if self.norm == 1
                else _multiplier_for_l2(steep, headroom, span)
            )
        if self.norm == 1:
            each, paid = (steep - multiplier).clamp_min(0) * headroom, (multiplier * span).squeeze(-1)
        else:
            step = torch.minimum(headroom, torch.nan_to_num(steep / (2 * multiplier), torch.inf))
            each, paid = (steep - multiplier * step) * step, (multiplier * span * span).squeeze(-1)
        each = torch.where(steep == 0, 0, each)  # where the slope is 0, infinite bounds contribute nothing
        fall = each.sum(-1) + paid
        weight = (torch.where(steep == 0, 0, steep * torch.minimum(headroom, span)).sum(-1) + paid).sum(-1)
        return (
            at_centre
            - fall.sum(-1)
            - charge(size + weight + fall.sum(-1).abs(), BALL_IN_BOX, self.flatten(a).shape[-1])
        )


def minimise_over_box(a: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(batch, rows, *shape), (batch, *shape) twice -> (batch, rows): result <= a . x on the box."""
    flat = a.double().reshape(*a.shape[:2], -1)
    low, high = lower.reshape(len(lower), 1, -1), upper.reshape(len(upper), 1, -1)
    # 0 * inf is NaN, but contributes nothing.
    terms = torch.where(flat == 0, 0, torch.minimum(flat * low, flat * high))
    return terms.sum(-1) - charge(terms.abs().sum(-1), BOX_CORNER, flat.shape[-1])


def _multiplier_for_l1(steep: Tensor, headroom: Tensor, span: Tensor) -> Tensor:
    """Return the optimal multiplier for p = 1: the slope at which a greedy allocation uses up the span.

    steep (..., n): absolute slopes. headroom (..., n): limits of each feature. span (..., 1): limit of all
    together.
    """
    ordered, order = steep.sort(-1, descending=True)
    used = headroom.expand(steep.shape).gather(-1, order).cumsum(-1)
    last = (used < span).sum(-1, keepdim=True)
    return torch.where(last < steep.shape[-1], ordered.gather(-1, last.clamp_max(steep.shape[-1] - 1)), 0)


def _multiplier_for_l2(steep: Tensor, headroom: Tensor, span: Tensor) -> Tensor:
    """The multiplier for p = 2: steps are proportional to slopes, except where a feature is at its limit."""
    multiplier = torch.zeros_like(span)
    stopped = torch.zeros_like(steep, dtype=torch.bool) | (headroom <= 2 * TINY)
    for _ in range(MULTIPLIER_ROUNDS):
        time_limit.raise_if_expired()
        left = (
            (span.square() - torch.where(stopped, headroom.square(), 0).sum(-1, keepdim=True))
            .clamp_min(0)
            .sqrt()
        )
        multiplier = torch.where(stopped, 0, steep).square().sum(-1, keepdim=True).sqrt() / (2 * left)
        stopped = stopped | (steep >= 2 * multiplier * headroom)
    return torch.nan_to_num(multiplier, 0.0, 0.0, 0.0)


def furthest(centre: Tensor, domain: Domain) -> Tensor:
    """(batch, *shape) -> the same, float64: how far each feature may move in the domain."""
    centre = centre.double()
    return torch.maximum(centre - domain.lower.to(centre), domain.upper.to(centre) - centre)


def _knapsack(a: Tensor, extent: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """Minimise a . d over ||d||_1 <= extent, -down <= d <= up: fractional knapsack, steepest first. extent:
    (..., groups, 1)."""
    capacity = torch.where(a > 0, down, up).expand(a.shape)
    order = a.abs().argsort(-1, descending=True)
    filled = capacity.gather(-1, order)
    before = filled.cumsum(-1) - filled
    amount = torch.minimum(filled, (extent - before).clamp_min(0))
    return -a.sign() * torch.zeros_like(a).scatter(-1, order, amount)
