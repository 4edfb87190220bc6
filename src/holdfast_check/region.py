"""Where inputs may lie: a box, or the points of a box near a centre in the norm 1 or 2, frame by frame."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from holdfast_check.arithmetic import TINY, Array, down, gamma, up
from holdfast_check.errors import Rejected

ROUNDS = 50  # of looking for a price


@dataclass(frozen=True)
class CheckedRegion:
    """All x with lower <= x <= upper and, in each of `groups` equal runs of elements, |x - centre|_norm <= spans[group]. Norm inf: the
    box alone. A leading axis counts parts of the region that are looked at together."""

    lower: Array  # (batch, n)
    upper: Array
    norm: float = np.inf
    centre: Array | None = None  # (n,)
    spans: Array | None = None  # (groups,)

    @staticmethod
    def ball(
        centre: Array, radius: float, norm: float, shares: Array, lower: Array, upper: Array
    ) -> "CheckedRegion":
        """Runs of elements may move by the radius times their share, inside lower <= x <= upper; every end is rounded outwards."""
        spans = np.where((shares > 0) & (radius > 0), up(radius * shares), 0.0)
        each = np.repeat(spans, centre.size // spans.size)
        moves = each > 0
        low, high = (
            np.where(moves, np.maximum(down(centre - each), lower), centre),
            np.where(moves, np.minimum(up(centre + each), upper), centre),
        )
        return CheckedRegion(low[None], high[None], norm, centre, spans)

    def within(self, lower: Array, upper: Array) -> "CheckedRegion":
        """Parts of a box."""
        return replace(self, lower=lower, upper=upper)

    def minimum(self, rows: Array) -> Array:
        """(batch, rows, n) -> (batch, rows): no point of the region has a smaller row . x."""
        ends = np.minimum(rows * self.lower[:, None], rows * self.upper[:, None])
        least: Array = ends.sum(-1) - gamma(rows.shape[-1] + 8) * np.abs(ends).sum(-1) - TINY
        return least if np.isinf(self.norm) else np.maximum(least, self._near(rows))

    def _near(self, rows: Array) -> Array:
        """Let t_i be how far element i moves against the row, at most as far as the box lets it. For any price >= 0 of a group,

            sum of |row_i| t_i  <=  sum of max over t_i of (|row_i| t_i - price t_i^norm)  +  price span^norm,

        since the t_i^norm add up to no more than span^norm. The price is searched in plain arithmetic; what it yields is rounded up."""
        if self.centre is None or self.spans is None:
            raise Rejected("a norm without a centre")
        shape = (*rows.shape[:2], len(self.spans), -1)
        room = np.where(
            rows > 0, up(self.centre - self.lower)[:, None], up(self.upper - self.centre)[:, None]
        )
        steep, room, square = (
            np.abs(rows).reshape(shape),
            np.maximum(room, 0.0).reshape(shape),
            self.norm == 2,
        )
        span = self.spans[:, None]
        low, high = np.zeros((*steep.shape[:-1], 1)), steep.max(-1, keepdims=True) * (1e6 if square else 1.0)

        def power(length: Array) -> Array:
            return length * length if square else length

        def moves(price: Array) -> Array:
            if not square:
                return np.where(steep > price, room, 0.0)
            return np.where(steep >= 2 * price * room, room, steep / np.where(price > 0, 2 * price, 1.0))

        for _ in range(ROUNDS):
            price = np.sqrt(np.maximum(low, high * 1e-16) * high) if square else (low + high) / 2
            far = power(moves(price)).sum(-1, keepdims=True) > power(span)
            low, high = np.where(far, price, low), np.where(far, high, price)
        price = high
        moved = moves(price)
        paid = (price * power(span)).sum((-1, -2))
        fall = (steep * moved - price * power(moved)).sum((-1, -2)) + paid
        size = (steep * moved + price * power(moved)).sum((-1, -2)) + paid
        centre, many = rows @ self.centre, rows.shape[-1]
        size = size + np.abs(rows) @ np.abs(self.centre)
        least: Array = centre - fall - 4 * gamma(many + 64) * size - TINY
        return least


def inside(
    x: Array, centre: Array, radius: float, norm: float, shares: Array, lower: Array, upper: Array
) -> bool:
    """Does a single point lie in that ball? Rationals are compared, nothing is rounded."""
    exact = [Fraction(value) for value in x.tolist()]
    if not all(
        low <= value <= high
        for value, low, high in zip(x.tolist(), lower.tolist(), upper.tolist(), strict=True)
    ):
        return False
    away = [abs(value - Fraction(at)) for value, at in zip(exact, centre.tolist(), strict=True)]
    many = len(away) // len(shares)
    for group, share in enumerate(shares.tolist()):
        own, span = away[group * many : (group + 1) * many], Fraction(radius) * Fraction(share)
        if (
            (max(own) > span)
            if np.isinf(norm)
            else (sum(part ** int(norm) for part in own) > span ** int(norm))
        ):
            return False
    return True
