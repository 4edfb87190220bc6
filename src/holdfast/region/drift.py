"""Sensor drift: one offset for each feature, added to every frame (time step) of the window.

    D = { x : x_t = c_t + o for all frames t, ||o / s||_p <= r }   with factors s >= 0 (`shares`)

A linear function depends on o only through the sum of its coefficients over the frames:

    min over x in D of a . x = a . c + min over o of (sum over t of a_t) . o.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.derivations import (
    DRIFT_BOX,
    DRIFT_MINIMUM,
    DRIFT_ROUNDING,
    POINT_IN_DRIFT,
)
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region.ball import Ball
from holdfast.region.base import EVERYWHERE, Domain, Family, check_centre, check_norm, step_from
from holdfast.region.features import check_shares
from holdfast.region.norms import dual, norm, norm_above
from holdfast.region.unit_box import DriftBox
from holdfast.rounding import charge, round_down, round_up


@dataclass(frozen=True, eq=False)
class Drift(Family):
    """All x with x_t = centre_t + offset in every frame t, ||offset / shares||_p <= radius, inside the
    domain.

    Inputs are (frames, *features). shares is (batch, *features) >= 0 (default: all 1); a feature with share 0
    stays.

    centre + offset is seldom representable in the network's dtype. So a window is accepted if it equals an
    exact drift up to rounding, |x_t - centre_t - offset| <= 2 eps (|centre_t| + |x_t - centre_t|), and its
    distance is computed from the largest change of each feature over the frames. A witness must fail both as
    rounded and as exact drift (`stand_ins`). Bounds on linear functions and boxes cover both. A proof over
    the offsets alone (`holdfast.bounding.drift_parameters`) covers exact drifts, as proofs in real arithmetic
    do.
    """

    norm: float = math.inf
    domain: Domain = EVERYWHERE
    shares: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "norm", check_norm(self.norm))
        object.__setattr__(self, "domain", Domain.of(self.domain))
        check_centre(self.centre, self.domain)
        if not self.shape:
            raise BadInput("a drift needs windows of shape (batch, frames, ...); these inputs are scalars.")
        features = (len(self), *self.shape[1:])
        shares = (
            torch.ones(features, dtype=torch.float64)
            if self.shares is None
            else torch.as_tensor(self.shares).double()
        )
        if tuple(shares.shape) != features:
            raise BadInput(
                f"shares of a drift have shape {tuple(shares.shape)}, expected {features}: "
                "one number for each feature of each input."
            )
        check_shares(shares, "a feature drifts")
        object.__setattr__(self, "shares", shares.to(self.centre.device))

    # ---- windows and offsets; offsets are (..., batch, features), divided by their shares

    def scales(self) -> Tensor:
        """Return the shares, (batch, features) float64."""
        assert self.shares is not None
        return self.shares.reshape(len(self), -1)

    def offsets(self) -> Ball:
        """The set of offsets / shares: a ball around 0, clipped so that all frames are in the domain."""
        none = torch.zeros_like(self.scales())
        down, up = (self._in_shares(headroom.amin(1)) for headroom in self._headroom())
        return Ball(none, self.radius, self.norm, Domain(-down, up))

    def offset(self, x: Tensor) -> Tensor:
        """(..., batch, frames, *features) -> (..., batch, features): mean offset / shares."""
        return self._in_shares((self._frames(x.double()) - self._frames(self.centre.double())).mean(-2))

    def windows(self, offset: Tensor, like: Tensor) -> Tensor:
        """(..., batch, features) offsets -> (..., batch, frames, *features), rounded towards the centre."""
        away = round_down(offset.double() * self.scales(), POINT_IN_DRIFT, offset.shape[-1])
        every = away.unsqueeze(-2).expand(*away.shape[:-1], self.shape[0], away.shape[-1])
        return self.domain.clamp(step_from(self.centre, every.reshape(*away.shape[:-1], *self.shape), like))

    def scale_perturbation(self, x: Tensor, factor: float) -> Tensor:
        ball = self.offsets()
        return self.windows(ball.domain.clamp(self.offset(x) * factor), x)

    def stand_ins(self, x: Tensor) -> Tensor:
        """Return the window itself, and the exact drift that it equals up to rounding."""
        low, high = self._common(x)
        least = torch.where(low > 0, low, torch.where(high < 0, high, 0))
        exact = self._frames(self.centre.double()) + least.unsqueeze(-2)
        return torch.stack([x.double(), exact.reshape(x.shape)])

    def assumptions(self, row: int) -> tuple[str, ...]:
        return (
            "the window is an exact drift up to the rounding of its numbers, and the exact drift fails too",
        )

    def _frames(self, x: Tensor) -> Tensor:
        """(..., frames, *features) -> (..., frames, features), features flattened."""
        rest = len(self.shape) - 1
        return x.flatten(x.dim() - rest) if rest else x.unsqueeze(-1)

    def _in_shares(self, value: Tensor) -> Tensor:
        """(..., batch, features) divided by the shares; 0 where the share is 0."""
        scales = self.scales()
        return torch.where(scales > 0, value / torch.where(scales > 0, scales, 1), 0)

    def _headroom(self) -> tuple[Tensor, Tensor]:
        """Return (batch, frames, features) twice: how far each may decrease and increase."""
        centre = self.centre.double()
        lower, upper = self.domain.lower.to(centre), self.domain.upper.to(centre)
        return self._frames((centre - lower).clamp_min(0)), self._frames((upper - centre).clamp_min(0))

    def _rounding(self, away: Tensor) -> Tensor:
        """Bound the rounding error of numbers that moved by `away`, (..., batch, frames, features)."""
        unit = torch.finfo(self.centre.dtype)
        return 2 * unit.eps * (self._frames(self.centre.double()).abs() + away.abs()) + unit.tiny

    def _common(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Lower, upper (..., batch, features): the interval of offsets consistent with every frame of x."""
        away = self._frames(x.double()) - self._frames(self.centre.double())
        blur = self._rounding(away)
        down, up = (headroom.amin(1) for headroom in self._headroom())
        return torch.maximum((away - blur).amax(-2), -down), torch.minimum((away + blur).amin(-2), up)

    # ---- operations of every family

    def box_map(self) -> DriftBox:
        offsets = self.offsets().box_map()
        return DriftBox(self, offsets.low, offsets.high, offsets)

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
        """(..., batch, features), changes -> (..., batch): the radius that allows them, rounded up."""
        each = self._in_shares(away)
        above = torch.where(away > 0, torch.nextafter(each, torch.full_like(each, torch.inf)), 0)
        return torch.nan_to_num(norm_above(above, self.norm), torch.inf, torch.inf)

    def limit(self) -> Tensor:
        centre = self._frames(self.centre.double()).abs().amax(1)
        most = torch.maximum(*(headroom.amin(1) for headroom in self._headroom()))
        unit = torch.finfo(self.centre.dtype)
        widened = most + 8 * unit.eps * (centre + most) + 8 * unit.tiny
        return self._radius_above(torch.where(self.scales() > 0, widened, 0))

    def reach(self) -> Tensor:
        limit = self.limit()
        far = norm(self._in_shares(self._frames(self.centre.double()).abs().amax(1) + 1), self.norm)
        return torch.where(limit.isfinite(), limit, far)

    def slope(self, gradient: Tensor) -> Tensor:
        return norm(self._frames(gradient.double()).sum(-2) * self.scales(), dual(self.norm))

    def project(self, x: Tensor) -> Tensor:
        there = self.contains(x)[(..., *(None for _ in self.shape))]
        return torch.where(there, x, self.windows(self.offsets().project(self.offset(x)), x))

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        return self.windows(self.offsets().sample(count, chance), self.centre)

    def vertex(self, a: Tensor) -> Tensor:
        return self.windows(self.offsets().vertex(self._frames(a.double()).sum(-2) * self.scales()), a)

    def _span(self) -> Tensor:
        """Return (batch, features) float64: how far each feature may move, rounded up."""
        low, high = self.offsets().enclosing_box()
        furthest = torch.maximum(low.abs(), high.abs()) * self.scales()
        return torch.where(furthest > 0, torch.nextafter(furthest, torch.full_like(furthest, torch.inf)), 0)

    def _blur(self) -> Tensor:
        """Return (batch, frames, features): bounds on rounding errors; 0 for fixed features."""
        span = self._span()[:, None]
        return torch.where(span > 0, self._rounding(span * (1 + 1e-6)) * (1 + 1e-6), 0)

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        centre, scales, blur = self.centre.double(), self.scales()[:, None], self._blur()
        low, high = (
            torch.where(scales > 0, end[:, None] * scales, 0) for end in self.offsets().enclosing_box()
        )
        slack = torch.where(
            blur > 0, blur + charge(self._frames(centre).abs() + self._span()[:, None], DRIFT_BOX), 0
        )
        ends = (self._frames(centre) + low - slack, self._frames(centre) + high + slack)
        lower, upper = (self.domain.clamp(end.reshape(centre.shape)) for end in ends)
        return lower, upper

    def minimise_linear(self, a: Tensor) -> Tensor:
        """Return a . centre + the minimum over the offsets - a bound on all rounding errors."""
        frames, centre = self._frames(a.double()), self._frames(self.centre.double())[:, None]
        span, blur = self._span()[:, None, None], self._blur()[:, None]
        summed = frames.sum(-2) * self.scales()[:, None]
        fall = self.offsets().minimise_linear(summed)
        size = (frames.abs() * centre.abs()).sum((-2, -1))
        # Where the coefficient is 0, an infinite span contributes nothing.
        spread = torch.where(frames == 0, 0, frames.abs() * span).sum((-2, -1))
        lost = torch.where((frames == 0) | (blur == 0), 0, frames.abs() * blur).sum((-2, -1))
        terms = a[0, 0].numel()
        return torch.nan_to_num(
            (frames * centre).sum((-2, -1))
            + fall
            - round_up(lost, DRIFT_ROUNDING, terms)
            - charge(size + spread, DRIFT_MINIMUM, terms),
            -torch.inf,
            torch.inf,
            -torch.inf,
        )
