"""Drifting sensors: one offset a feature, the same in every frame of the window."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.random_streams import Chance
from holdfast.region.ball import Ball
from holdfast.region.base import EVERYWHERE, Domain, Family, check_centre, check_norm, step_from
from holdfast.region.features import check_shares
from holdfast.region.norms import dual, norm, norm_above
from holdfast.rounding import TINY, gamma


@dataclass(frozen=True, eq=False)
class Drift(Family):
    """All x with x_t = centre_t + offset in every frame t, ||offset / shares||_p <= radius, inside the domain.

    Inputs are (frames, *features); shares (batch, *features) are numbers >= 0, and a feature with none stays. Left out, all are 1.

    What a network reads are numbers of its arithmetic, and centre + offset seldom is one. So a window stands for an exact one that it is up
    to rounding, |x_t - centre_t - offset| <= 2 eps (|centre_t| + |x_t - centre_t|); its distance is that of the furthest its numbers go.
    A witness is asked both ways, rounded and exact (`stand_ins`). What is said of linear functions and boxes here holds for both; a proof
    over the offsets alone (`bounding.offsets`) holds for exact windows, as proofs in real arithmetic do.
    """

    p: float = math.inf
    domain: Domain = EVERYWHERE
    shares: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "p", check_norm(self.p))
        object.__setattr__(self, "domain", Domain.of(self.domain))
        check_centre(self.centre, self.domain)
        if not self.shape:
            raise BadInput(
                "a drift needs windows of shape (batch, frames, ...); these inputs are single numbers."
            )
        features = (len(self), *self.shape[1:])
        shares = (
            torch.ones(features, dtype=torch.float64)
            if self.shares is None
            else torch.as_tensor(self.shares).double()
        )
        if tuple(shares.shape) != features:
            raise BadInput(
                f"shares of a drift have shape {tuple(shares.shape)}, expected {features}: a number for each feature of each input."
            )
        check_shares(shares, "a feature drifts")
        object.__setattr__(self, "shares", shares.to(self.centre.device))

    # ---- windows and offsets, the latter (..., batch, features) in shares

    def scales(self) -> Tensor:
        """-> (batch, features) float64."""
        assert self.shares is not None
        return self.shares.reshape(len(self), -1)

    def offsets(self) -> Ball:
        """The offsets in their shares: a ball around none, as far as the domain lets every frame go."""
        none = torch.zeros_like(self.scales())
        down, up = (self._in_shares(room.amin(1)) for room in self._room())
        return Ball(none, self.radius, self.p, Domain(-down, up))

    def offset(self, x: Tensor) -> Tensor:
        """(..., batch, frames, *features) -> (..., batch, features): the mean over the frames, in shares."""
        return self._in_shares((self._frames(x.double()) - self._frames(self.centre.double())).mean(-2))

    def windows(self, offset: Tensor, like: Tensor) -> Tensor:
        """(..., batch, features) offsets of the ball -> (..., batch, frames, *features), no number further than asked."""
        away = offset.double() * self.scales() * (1 - 80 * gamma(offset.shape[-1]))
        every = away.unsqueeze(-2).expand(*away.shape[:-1], self.shape[0], away.shape[-1])
        return self.domain.clamp(step_from(self.centre, every.reshape(*away.shape[:-1], *self.shape), like))

    def further(self, x: Tensor, factor: float) -> Tensor:
        """The windows whose offsets are this many times theirs, as far as the domain lets them."""
        ball = self.offsets()
        return self.windows(ball.domain.clamp(self.offset(x) * factor), x)

    def stand_ins(self, x: Tensor) -> Tensor:
        """The window itself, and the exact one that it is up to rounding."""
        low, high = self._common(x)
        least = torch.where(low > 0, low, torch.where(high < 0, high, 0))
        exact = self._frames(self.centre.double()) + least.unsqueeze(-2)
        return torch.stack([x.double(), exact.reshape(x.shape)])

    def assumptions(self, row: int) -> tuple[str, ...]:
        return (
            "the window is an exact drift up to the rounding of its numbers, and the exact one fails too",
        )

    def _frames(self, x: Tensor) -> Tensor:
        """(..., frames, *features) -> (..., frames, features flat)."""
        rest = len(self.shape) - 1
        return x.flatten(x.dim() - rest) if rest else x.unsqueeze(-1)

    def _in_shares(self, value: Tensor) -> Tensor:
        """(..., batch, features) -> the same in shares; nothing for what stays."""
        scales = self.scales()
        return torch.where(scales > 0, value / torch.where(scales > 0, scales, 1), 0)

    def _room(self) -> tuple[Tensor, Tensor]:
        """(batch, frames, features) twice: how far each number may fall and rise inside the domain."""
        centre = self.centre.double()
        lower, upper = self.domain.lower.to(centre), self.domain.upper.to(centre)
        return self._frames((centre - lower).clamp_min(0)), self._frames((upper - centre).clamp_min(0))

    def _rounding(self, away: Tensor) -> Tensor:
        """(..., batch, frames, features), how far numbers went -> how far rounding may have taken them."""
        unit = torch.finfo(self.centre.dtype)
        return 2 * unit.eps * (self._frames(self.centre.double()).abs() + away.abs()) + unit.tiny

    def _common(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """-> (..., batch, features) twice: the offsets that every frame may have had, from the one end to the other."""
        away = self._frames(x.double()) - self._frames(self.centre.double())
        blur = self._rounding(away)
        down, up = (room.amin(1) for room in self._room())
        return torch.maximum((away - blur).amax(-2), -down), torch.minimum((away + blur).amin(-2), up)

    # ---- what every family answers

    def distance(self, x: Tensor) -> Tensor:
        away = (self._frames(x.double()) - self._frames(self.centre.double())).abs().amax(-2)
        low, high = self._common(x)
        one = (
            (low <= high).all(-1)
            & ((away == 0) | (self.scales() > 0)).all(-1)
            & self.flatten(self.domain.contains(x)).all(-1)
        )
        return torch.where(one, self._radius_above(away), torch.inf)

    def contains(self, x: Tensor) -> Tensor:
        distance = self.distance(x)
        return (distance <= self.radius) & distance.isfinite()

    def _radius_above(self, away: Tensor) -> Tensor:
        """(..., batch, features), how far each may have gone -> (..., batch): the radius it takes, rounded up."""
        each = self._in_shares(away)
        above = torch.where(away > 0, torch.nextafter(each, torch.full_like(each, torch.inf)), 0)
        return torch.nan_to_num(norm_above(above, self.p), torch.inf, torch.inf)

    def limit(self) -> Tensor:
        centre = self._frames(self.centre.double()).abs().amax(1)
        most = torch.maximum(*(room.amin(1) for room in self._room()))
        unit = torch.finfo(self.centre.dtype)
        widened = most + 8 * unit.eps * (centre + most) + 8 * unit.tiny
        return self._radius_above(torch.where(self.scales() > 0, widened, 0))

    def reach(self) -> Tensor:
        limit = self.limit()
        far = norm(self._in_shares(self._frames(self.centre.double()).abs().amax(1) + 1), self.p)
        return torch.where(limit.isfinite(), limit, far)

    def slope(self, gradient: Tensor) -> Tensor:
        """(batch, frames, *features) -> (batch,): how fast a linear function falls with the radius."""
        return norm(self._frames(gradient.double()).sum(-2) * self.scales(), dual(self.p))

    def project(self, x: Tensor) -> Tensor:
        there = self.contains(x)[(..., *(None for _ in self.shape))]
        return torch.where(there, x, self.windows(self.offsets().project(self.offset(x)), x))

    def sample(self, count: int, chance: Chance) -> Tensor:
        return self.windows(self.offsets().sample(count, chance), self.centre)

    def vertex(self, a: Tensor) -> Tensor:
        return self.windows(self.offsets().vertex(self._frames(a.double()).sum(-2) * self.scales()), a)

    def _span(self) -> Tensor:
        """-> (batch, features) float64: how far each number may go, rounded up."""
        low, high = self.offsets().enclosing_box()
        furthest = torch.maximum(low.abs(), high.abs()) * self.scales()
        return torch.where(furthest > 0, torch.nextafter(furthest, torch.full_like(furthest, torch.inf)), 0)

    def _blur(self) -> Tensor:
        """-> (batch, frames, features): what rounding may add anywhere in the region; nothing to what stays."""
        span = self._span()[:, None]
        return torch.where(span > 0, self._rounding(span * (1 + 1e-6)) * (1 + 1e-6), 0)

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        centre, scales, blur = self.centre.double(), self.scales()[:, None], self._blur()
        low, high = (
            torch.where(scales > 0, end[:, None] * scales, 0) for end in self.offsets().enclosing_box()
        )
        slack = torch.where(
            blur > 0, blur + (self._frames(centre).abs() + self._span()[:, None]) * 4 * gamma(1) + TINY, 0
        )
        ends = (self._frames(centre) + low - slack, self._frames(centre) + high + slack)
        lower, upper = (self.domain.clamp(end.reshape(centre.shape)) for end in ends)
        return lower, upper

    def minimise_linear(self, a: Tensor) -> Tensor:
        """a . centre, the smallest over the offsets of their sums over the frames, and what rounding may take besides."""
        frames, centre = self._frames(a.double()), self._frames(self.centre.double())[:, None]
        span, blur = self._span()[:, None, None], self._blur()[:, None]
        summed = frames.sum(-2) * self.scales()[:, None]
        fall = self.offsets().minimise_linear(summed)
        size = (frames.abs() * centre.abs()).sum((-2, -1))
        spread = torch.where(frames == 0, 0, frames.abs() * span).sum(
            (-2, -1)
        )  # an endless span along no slope costs nothing
        lost = torch.where((frames == 0) | (blur == 0), 0, frames.abs() * blur).sum((-2, -1))
        count = gamma(a[0, 0].numel())
        return torch.nan_to_num(
            (frames * centre).sum((-2, -1))
            + fall
            - lost * (1 + 4 * count)
            - 8 * count * (size + spread)
            - TINY,
            -torch.inf,
            torch.inf,
            -torch.inf,
        )
