"""Search for a large Q without gradients: several radii along rays from the input; blocks of features are
flipped to find better rays.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.attacks.descent import broadcast_rows
from holdfast.lipschitz.ratio import QueryTally
from holdfast.random_streams import RandomStreams
from holdfast.region import Family
from holdfast.region.norms import direction, norm


@dataclass(frozen=True, eq=False)
class BestRay:
    """The best ray of each row: its direction u, the radius along it, and the ratio there."""

    u: Tensor  # (batch, n)
    radius: Tensor  # (batch,)
    ratio: Tensor  # (batch,)

    def best(self, u: Tensor, radii: Tensor, ratio: Tensor) -> "BestRay":
        """Return the better of this ray and of the rays (k, batch, n) with their radii and ratios (k,
        batch).
        """
        top, which = ratio.max(0)
        better = top > self.ratio
        other = u.gather(0, which[None, :, None].expand(1, *self.u.shape)).squeeze(0)
        return BestRay(
            torch.where(better[:, None], other, self.u),
            torch.where(better, radii.gather(0, which[None]).squeeze(0), self.radius),
            torch.where(better, top, self.ratio),
        )

    def where(self, rows: Tensor, other: "BestRay") -> "BestRay":
        """Select this ray in the rows (batch,) that are true, the other ray elsewhere."""
        return BestRay(
            torch.where(rows[:, None], self.u, other.u),
            torch.where(rows, self.radius, other.radius),
            torch.where(rows, self.ratio, other.ratio),
        )


@dataclass(frozen=True, eq=False)
class RaySearchState:
    """The search on one side (the score falls, or it rises); `other` is the best ray of the side that is
    searched afterwards.
    """

    end: int  # queries after which the whole search ends
    until: int  # queries after which this side ends
    began: int
    ray: BestRay
    side: Tensor  # (batch,) -1 where the score is to decrease, 1 where it is to increase
    other: BestRay | None
    chance: RandomStreams
    place: int = 0  # features of this order that were flipped already
    size: int = 1  # features in a block
    order: Tensor | None = None  # (batch, n) the order in which features are flipped


@dataclass(frozen=True)
class Rays:
    """Flip blocks of features, several blocks in one batch; combine the best one with all that improve, at
    slightly smaller and larger radii too.

    Blocks shrink from a share `first` of all features to single features. Half the budget is spent on the
    side that looks better at first, half on the other side where it can occur at all.
    """

    starts: int = 24  # random rays
    radii: int = 7  # radii along each ray, halved from the largest
    blocks: int = 12  # blocks in one batch
    first: float = 0.25
    spread: float = 1.3  # initial factor to smaller and larger radii

    def start(self, tally: QueryTally, end: int, chance: RandomStreams) -> RaySearchState:
        falls, rises = self._begin(tally, end, chance)
        first = falls.ratio >= rises.ratio
        better, other, side = (
            falls.where(first, rises),
            rises.where(first, falls),
            torch.where(first, -1.0, 1.0),
        )
        return RaySearchState(
            end, tally.queries + (end - tally.queries) // 2, tally.queries, better, side, other, chance
        )

    def advance(self, tally: QueryTally, state: RaySearchState) -> RaySearchState:
        """Flip a few blocks."""
        if tally.queries >= state.until and state.other is not None:
            seen = state.other.ratio > 0
            ray, side = state.other.where(seen, state.ray), torch.where(seen, -state.side, state.side)
            return RaySearchState(state.end, state.end, tally.queries, ray, side, None, state.chance)
        (rows, n), chance = state.ray.u.shape, state.chance.substream(tally.queries)
        place, size, order = state.place, state.size, state.order
        done = (tally.queries - state.began) / (state.until - state.began)
        if order is None or place >= n:  # All features were flipped: draw a new order and use smaller blocks.
            place, size = 0, max(1, int(n * self.first * (1 - done) ** 4)) if done < 0.5 else 1
            order = chance.uniform(1, (n,), state.ray.u)[0].argsort(-1)
        count = min(self.blocks, math.ceil((n - place) / size), state.until - tally.queries)
        block = (
            (torch.arange(n, device=order.device) - place).div(size, rounding_mode="floor").expand(rows, n)
        )
        block = torch.zeros_like(order).scatter(-1, order, block)
        spread = 1 + (self.spread - 1) * (1 - done)
        ray = self._turn(tally, state.until, state.ray, state.side, block, count, spread, chance)
        return replace(state, ray=ray, place=place + count * size, size=size, order=order)

    def _begin(self, tally: QueryTally, end: int, chance: RandomStreams) -> tuple[BestRay, BestRay]:
        """Return the best initial rays: those along which the score falls, and those along which it rises."""
        family = tally.problem.family
        flat = family.flatten(family.centre)
        known = family.flatten(tally.point - family.centre)
        drawn = direction(self.starts, norm_of(family), chance, flat)
        rays = torch.cat([known[None], torch.ones_like(drawn[:1]), -torch.ones_like(drawn[:1]), drawn])
        rays = rays[0 if tally.queries > 1 else 1 :]  # Before the first query no row has a known best point.
        halving = 2.0 ** -torch.arange(self.radii, device=flat.device, dtype=torch.float64)[:, None]
        falls = rises = BestRay(drawn[0], tally.radius, torch.full_like(tally.ratio, -1.0))
        for place, ray in enumerate(rays):
            if place and time_limit.has_expired():
                break
            u = ray.expand(self.radii, *ray.shape)[: end - tally.queries]
            if len(u):
                radii = (tally.radius * halving)[: len(u)]
                change, ratio = tally.query(points_on_rays(family, u, radii))
                falls = falls.best(u, radii, torch.where(change < 0, ratio, -1.0))
                rises = rises.best(u, radii, torch.where(change > 0, ratio, -1.0))
        return falls, rises

    def _turn(
        self,
        tally: QueryTally,
        end: int,
        ray: BestRay,
        side: Tensor,
        block: Tensor,
        count: int,
        spread: float,
        chance: RandomStreams,
    ) -> BestRay:
        """Flip blocks 0 to count - 1; block (batch, n) holds the number of each feature's block."""
        other = turn_direction(ray.u, norm_of(tally.problem.family), chance)
        inside = block == torch.arange(count, device=block.device)[:, None, None]
        u = torch.where(inside, other, ray.u)
        radii = ray.radius.expand(count, -1)
        ratio = _ask(tally, u, radii, side)
        gains = ((ratio > ray.ratio)[..., None] & inside).any(0)
        single = ray.best(u, radii, ratio)
        u = torch.stack([torch.where(gains, other, ray.u)] * 3 + [single.u] * 2)[: end - tally.queries]
        if not len(u):
            return single
        factor = torch.tensor(
            [1.0, spread, 1 / spread, spread, 1 / spread], dtype=torch.float64, device=u.device
        )[: len(u), None]
        radii = torch.minimum(factor * ray.radius, tally.radius)
        return single.best(u, radii, _ask(tally, u, radii, side))


def _ask(tally: QueryTally, u: Tensor, radii: Tensor, side: Tensor) -> Tensor:
    """Return the ratios of these rays (k, batch) where the score changes in the given direction, -1
    elsewhere.
    """
    change, ratio = tally.query(points_on_rays(tally.problem.family, u, radii))
    return torch.where(change.sign() == side, ratio, -1.0)


def turn_direction(u: Tensor, p: float, chance: RandomStreams) -> Tensor:
    """Return the alternative value of every feature: in the maximum norm the opposite; in other norms also
    larger, smaller or redrawn.
    """
    if math.isinf(p):
        return -u
    kind = chance.integers(1, u.shape[1:], 0, 4)[0]
    redrawn = torch.where(chance.uniform(1, u.shape[1:], u)[0] < 0.5, -1.0, 1.0).to(u) * u.abs().amax(
        -1, keepdim=True
    )
    return torch.where(kind == 0, -u, torch.where(kind == 1, 2 * u, torch.where(kind == 2, u / 4, redrawn)))


def norm_of(family: Family) -> float:
    """Return the order p of the family's norm; infinity for families without one."""
    ball = family.as_norm_family()
    return math.inf if ball is None else ball.norm


def points_on_rays(family: Family, u: Tensor, radii: Tensor) -> Tensor:
    """Map rays (k, batch, n) and radii (k, batch) to the points (k, batch, *shape) of the region at these
    distances.
    """
    away = u.reshape(*u.shape[:2], *family.shape).to(family.centre)
    ball = family.as_norm_family()
    if ball is not None:
        grouped = ball.group_features(away)
        unit = grouped / norm(grouped, ball.norm).unsqueeze(-1).clamp_min(torch.finfo(grouped.dtype).tiny)
        away = (unit * ball.free().to(unit)[..., None]).reshape(away.shape)
    x = family.centre + away * broadcast_rows(radii, family).to(away)
    return regions_at_radii(family, radii).project(x.flatten(0, 1)).reshape(x.shape)


def regions_at_radii(family: Family, radii: Tensor) -> Family:
    """Map radii (k, batch) to the regions of all k * batch rows: the whole batch at the first radius, then at
    the second, and so on.
    """
    rows = torch.arange(len(family), device=family.centre.device).repeat(len(radii))
    return batch.take(family, rows).at(radii.flatten())
