"""Norm balls over groups of features: one group is a Ball, one group a frame is Frames. All their mathematics is here."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.random_streams import Chance
from holdfast.region.base import EVERYWHERE, Domain, Family, check_centre, check_norm, step_from
from holdfast.region.norms import direction, dual, norm, norm_above, project, steepest
from holdfast.rounding import TINY, gamma

ROUNDS = 4  # of looking for features that reach the end of their domain


@dataclass(frozen=True, eq=False)
class NormFamily(Family):
    """All x with ||x_g - centre_g||_p <= radius * free_g for every group g, inside the domain; a group with free_g = 0 stays."""

    p: float = math.inf
    domain: Domain = EVERYWHERE

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "p", check_norm(self.p))
        object.__setattr__(self, "domain", Domain.of(self.domain))
        check_centre(self.centre, self.domain)

    @property
    def boxed(self) -> bool:
        return math.isinf(self.p)

    @abstractmethod
    def group_features(self, x: Tensor) -> Tensor:
        """(..., *shape) -> (..., groups, n)."""

    @abstractmethod
    def free(self) -> Tensor:
        """-> (batch, groups) float64 >= 0: the share of the radius by which each group may move."""

    def _moving(self) -> Tensor:
        """-> (batch, *shape) bool: the features that may move."""
        return self._each(self.free() > 0)

    def _each(self, group: Tensor) -> Tensor:
        """(batch, groups) -> (batch, *shape): what holds for a group, for each of its features."""
        return group[..., None].expand(self.group_features(self.centre).shape).reshape(self.centre.shape)

    def spans(self) -> Tensor:
        """-> (batch, *shape) float64: how far the group of each feature may move, rounded up."""
        return self._each(self._span())

    def _span(self) -> Tensor:
        """-> (batch, groups) float64: how far each group may move, rounded up; zero for one that stays, at any radius."""
        free, radius = self.free(), self.radius.double()[:, None]
        return torch.where(
            (free > 0) & (radius > 0), torch.nextafter(radius * free, torch.full_like(free, torch.inf)), 0
        )

    def balls(self) -> tuple[Tensor, Tensor]:
        """-> (batch, *shape): the number of each feature's group; (batch, groups): how far each group may move, rounded up."""
        span = self._span()
        return self._each(torch.arange(span.shape[1], device=span.device).expand(span.shape)), span

    @cached_property
    def _most_moving(self) -> int:
        """How many groups may move in the row where most do."""
        return int((self._span() > 0).sum(1).max())

    def length(self, delta: Tensor) -> Tensor:
        """(..., batch, *shape) -> (..., batch): the radius it takes to move so far; differentiable, plain rounding."""
        free = self.free().to(delta)
        return (norm(self.group_features(delta), self.p) * torch.where(free > 0, 1 / free, 0)).amax(-1)

    def distance(self, x: Tensor) -> Tensor:
        delta = x.double() - self.centre.double()
        away = self._radius_above(norm_above(self.group_features(delta), self.p))
        still = self.flatten((delta == 0) | self._moving()).all(-1)
        inside = self.flatten(self.domain.contains(x)).all(-1)
        return torch.where(still & inside & away.isfinite(), away, torch.inf)

    def contains(self, x: Tensor) -> Tensor:
        distance = self.distance(x)
        return (distance <= self.radius) & distance.isfinite()

    def _radius_above(self, away: Tensor) -> Tensor:
        """(..., batch, groups) norms of a change -> (..., batch): the radius it takes, rounded up; a group that stays takes none."""
        free = self.free()
        needed = torch.nextafter(away / free, torch.full_like(away, torch.inf))
        return torch.where((free == 0) | (away == 0), 0, needed).amax(-1)

    def limit(self) -> Tensor:
        """The distance to the corner of the domain that is furthest; infinite where the domain is."""
        corner = norm_above(self.group_features(furthest(self.centre, self.domain)), self.p) * (
            1 + 16 * gamma(self.centre[0].numel())
        )
        return self._radius_above(
            torch.nan_to_num(corner, nan=torch.inf, posinf=torch.inf)
        )  # inf / inf on the way

    def reach(self) -> Tensor:
        limit = self.limit()
        return torch.where(limit.isfinite(), limit, self.length(self.centre.double().abs() + 1))

    def _extent(self) -> Tensor:
        """-> (batch, groups), finite: how far each group has anything to look at."""
        radius = torch.minimum(self.radius.double(), self.limit())
        if bool(radius.isinf().any()):
            radius = torch.where(radius.isinf(), self.reach(), radius)
        return radius[:, None] * self.free()

    def slope(self, gradient: Tensor) -> Tensor:
        """(batch, *shape) -> (batch,): how fast a linear function falls with the radius."""
        return (norm(self.group_features(gradient.double()), dual(self.p)) * self.free()).sum(-1)

    def further(self, x: Tensor, factor: float) -> Tensor:
        """This many times as far from the centre, as far as the domain lets it."""
        return self.domain.clamp(self.centre + (x - self.centre) * factor)

    def project(self, x: Tensor) -> Tensor:
        # The distance is rounded up, so aim a hair below the radius; the clip to the domain only comes closer.
        target = self._span() / (1 + 40 * gamma(self.centre[0].numel()))
        delta = self.group_features((x.double() - self.centre.double()) * self._moving())
        pulled = project(delta, target.expand(delta.shape[:-1]), self.p).reshape(x.shape)
        there = self.contains(x)[(..., *(None for _ in self.shape))]
        return self.domain.clamp(torch.where(there, x, step_from(self.centre, pulled, x)))

    def sample(self, count: int, chance: Chance) -> Tensor:
        like = self.group_features(self.centre)
        away = direction(count, self.p, chance, like)
        # Half the points on the surface, half anywhere inside.
        share = chance.uniform(count, (*like.shape[1:-1], 1), like).mul(2).clamp_max(1)
        return self.project(
            self.centre
            + (away * share * self._extent().to(like)[..., None]).reshape(count, *self.centre.shape)
        )

    def vertex(self, a: Tensor) -> Tensor:
        """Exact for p = inf and p = 1, for other p before the clip to the domain."""
        extent = self._extent().to(a)[..., None]
        grouped = self.group_features(torch.where(self._moving(), a, torch.zeros_like(a)))
        if self.p == 1 and self.domain.bounded:
            step = _knapsack(grouped, extent, *(self.group_features(room) for room in self._room(a)))
        else:
            step = steepest(grouped, self.p) * extent
        return self.project(self.centre.to(a) + step.reshape(a.shape))

    def _room(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """How far each feature may fall and rise inside the domain."""
        centre = self.centre.to(like)
        return centre - self.domain.lower.to(like), self.domain.upper.to(like) - centre

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        centre, span = self.centre.double(), self.spans()
        widened = torch.where(self._moving(), span + (centre.abs() + span) * gamma(1) + TINY, 0)
        return self.domain.clamp(centre - widened), self.domain.clamp(centre + widened)

    def minimise_linear(self, a: Tensor) -> Tensor:
        """The largest of some lower bounds: over the ball alone, over the box around it clipped to the domain, and for the norms 1 and 2
        over what both have in common."""
        flat, centre = self.flatten(a.double()), self.flatten(self.centre.double())[..., None]
        grouped, span, moving = self.group_features(a), self._span(), self._most_moving
        if moving < span.shape[1]:  # the others cost nothing: look at no more groups than move
            which = (span > 0).to(torch.uint8).topk(moving, dim=1).indices
            span = span.gather(1, which)
            grouped = grouped.gather(
                2, which[:, None, :, None].expand(*grouped.shape[:2], moving, grouped.shape[-1])
            )
        slopes, span = norm_above(grouped, dual(self.p)), span[:, None]
        fall = torch.where((slopes == 0) | (span == 0), 0, slopes * span).sum(
            -1
        )  # an infinite radius along no slope costs nothing
        at_centre, size = (flat @ centre).squeeze(-1), (flat.abs() @ centre.abs()).squeeze(-1)
        ball = at_centre - fall - 4 * gamma(flat.shape[-1]) * (size + fall) - TINY
        if self.domain.endless:
            return ball
        inside = torch.fmax(ball, minimise_over_box(a, *self.enclosing_box()))
        return torch.fmax(inside, self._minimise_inside(a, at_centre, size)) if self.p in (1, 2) else inside

    def _minimise_inside(self, a: Tensor, at_centre: Tensor, size: Tensor) -> Tensor:
        """For any price >= 0 of a group, no change d of length at most its span and between what the domain leaves has a . d below

            sum of min over d_i of (a_i d_i + price |d_i|^p)   -   price span^p,

        and some price makes that exact. The price is found in plain arithmetic; what it gives is rounded down.
        """
        centre, (lower, upper) = self.centre.double(), self.enclosing_box()
        down, up = (self.group_features(room)[:, None] for room in (centre - lower, upper - centre))
        steep, span = self.group_features(a.double()), self._span()[:, None, :, None]
        room = torch.where(steep > 0, down, up) * (1 + 2 * gamma(1)) + TINY
        steep = steep.abs()
        with torch.no_grad():
            price = (
                _price_of_length(steep, room, span) if self.p == 1 else _price_of_square(steep, room, span)
            )
        if self.p == 1:
            each, paid = (steep - price).clamp_min(0) * room, (price * span).squeeze(-1)
        else:
            step = torch.minimum(room, torch.nan_to_num(steep / (2 * price), torch.inf))
            each, paid = (steep - price * step) * step, (price * span * span).squeeze(-1)
        each = torch.where(steep == 0, 0, each)  # an endless room along no slope costs nothing
        fall = each.sum(-1) + paid
        weight = (torch.where(steep == 0, 0, steep * torch.minimum(room, span)).sum(-1) + paid).sum(-1)
        return (
            at_centre
            - fall.sum(-1)
            - 8 * gamma(self.flatten(a).shape[-1]) * (size + weight + fall.sum(-1).abs())
            - TINY
        )


def minimise_over_box(a: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(batch, rows, *shape), (batch, *shape) twice -> (batch, rows); result <= a.x for lower <= x <= upper."""
    flat = a.double().reshape(*a.shape[:2], -1)
    low, high = lower.reshape(len(lower), 1, -1), upper.reshape(len(upper), 1, -1)
    terms = torch.where(
        flat == 0, 0, torch.minimum(flat * low, flat * high)
    )  # 0 * inf is no number, but costs nothing
    return terms.sum(-1) - 2 * gamma(flat.shape[-1]) * terms.abs().sum(-1) - TINY


def _price_of_length(steep: Tensor, room: Tensor, span: Tensor) -> Tensor:
    """(..., n) sizes of slopes and how far each feature may go, (..., 1) how far all of them may together -> (..., 1): the slope of the
    last feature that is worth going along, the steepest first."""
    ordered, order = steep.sort(-1, descending=True)
    used = room.expand(steep.shape).gather(-1, order).cumsum(-1)
    last = (used < span).sum(-1, keepdim=True)
    return torch.where(last < steep.shape[-1], ordered.gather(-1, last.clamp_max(steep.shape[-1] - 1)), 0)


def _price_of_square(steep: Tensor, room: Tensor, span: Tensor) -> Tensor:
    """The same of squares: features go in proportion to their slopes, and those that reach their end leave more to the others."""
    price = torch.zeros_like(span)
    stopped = torch.zeros_like(steep, dtype=torch.bool) | (room <= 2 * TINY)
    for _ in range(ROUNDS):
        time_limit.check()
        left = (
            (span.square() - torch.where(stopped, room.square(), 0).sum(-1, keepdim=True)).clamp_min(0).sqrt()
        )
        price = torch.where(stopped, 0, steep).square().sum(-1, keepdim=True).sqrt() / (2 * left)
        stopped = stopped | (steep >= 2 * price * room)
    return torch.nan_to_num(price, 0.0, 0.0, 0.0)


def furthest(centre: Tensor, domain: Domain) -> Tensor:
    """(batch, *shape) -> the same, float64: how far each feature may move inside the domain, infinite where it has no end there."""
    centre = centre.double()
    return torch.maximum(centre - domain.lower.to(centre), domain.upper.to(centre) - centre)


def _knapsack(a: Tensor, extent: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """The change of L1 length at most `extent` (..., groups, 1), between -down and up, that lowers a.x the most: steepest first."""
    capacity = torch.where(a > 0, down, up).expand(a.shape)
    order = a.abs().argsort(-1, descending=True)
    filled = capacity.gather(-1, order)
    before = filled.cumsum(-1) - filled
    amount = torch.minimum(filled, (extent - before).clamp_min(0))
    return -a.sign() * torch.zeros_like(a).scatter(-1, order, amount)
