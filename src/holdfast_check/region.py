"""Perturbation sets: a box, or the points of a box within a distance of a centre in the norm 1 or 2, per
group of elements.

Statement: `CheckedRegion.minimum` returns m with m <= min over x in the region of row . x, rounding included.
Over a box the minimum is the sum of min(row_i l_i, row_i u_i). For the norms 1 and 2 weak Lagrangian duality
bounds it (`_near`): any multiplier >= 0 is sound.

Assumption: bounds, centre and spans are the float64 numbers of the proof; `down` and `up` widen differences.

Reference: Boyd, Vandenberghe, "Convex optimization" (2004), section 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from holdfast_check.arithmetic import BALL, BOX, Array, charge, down, up
from holdfast_check.errors import Rejected, zip_equal

# The number of bisection steps of the search for a multiplier (chosen by hand; it affects tightness only).
ROUNDS = 50


@dataclass(frozen=True)
class CheckedRegion:
    """All x with lower <= x <= upper and, in each of `groups` equal runs of elements, |x - centre|_norm <=
    spans[group]. Norm inf: the box alone. The leading axis is a batch of subproblems.
    """

    lower: Array  # (batch, n)
    upper: Array
    norm: float = np.inf
    centre: Array | None = None  # (n,)
    spans: Array | None = None  # (groups,)

    @staticmethod
    def ball(
        centre: Array, radius: float, norm: float, shares: Array, lower: Array, upper: Array
    ) -> CheckedRegion:
        """The ball of a radius around a centre, intersected with [lower, upper]; the radius of a run of
        elements is `radius` times its share. All bounds are rounded outwards.
        """
        spans = np.where((shares > 0) & (radius > 0), up(radius * shares), 0.0)
        each = np.repeat(spans, centre.size // spans.size)
        moves = each > 0
        low, high = (
            np.where(moves, np.maximum(down(centre - each), lower), centre),
            np.where(moves, np.minimum(up(centre + each), upper), centre),
        )
        return CheckedRegion(low[None], high[None], norm, centre, spans)

    def within(self, lower: Array, upper: Array) -> CheckedRegion:
        """Subproblems of a box."""
        return replace(self, lower=lower, upper=upper)

    def minimum(self, rows: Array) -> Array:
        """(batch, rows, n) -> (batch, rows): lower bounds of row . x over the region.

        Rounding: every product and sum is within gamma(n + 8) of the sum of absolute values.
        """
        ends = np.minimum(rows * self.lower[:, None], rows * self.upper[:, None])
        least: Array = ends.sum(-1) - charge(np.abs(ends).sum(-1), BOX, rows.shape[-1])
        return least if np.isinf(self.norm) else np.maximum(least, self._near(rows))

    def _near(self, rows: Array) -> Array:
        """Lower bounds of row . x over a ball inside a box, by weak duality.

        Let t_i be how far element i moves against the sign of row_i; the box bounds it by reach_i. For any
        multiplier lambda >= 0 of a group,

            sum |row_i| t_i <= sum max over t_i of (|row_i| t_i - lambda t_i^norm) + lambda span^norm,

        because the t_i^norm add up to at most span^norm. The multiplier is searched in plain floating point.
        The right side is a sum of at most n + 64 products; 4 gamma of their absolute values is added.
        """
        if self.centre is None or self.spans is None:
            raise Rejected("a norm without a centre")
        shape = (*rows.shape[:2], len(self.spans), -1)
        reach = np.where(
            rows > 0, up(self.centre - self.lower)[:, None], up(self.upper - self.centre)[:, None]
        )
        steep, reach, square = (
            np.abs(rows).reshape(shape),
            np.maximum(reach, 0.0).reshape(shape),
            self.norm == 2,
        )
        span = self.spans[:, None]
        low, high = np.zeros((*steep.shape[:-1], 1)), steep.max(-1, keepdims=True) * (1e6 if square else 1.0)

        def power(length: Array) -> Array:
            return length * length if square else length

        def moves(price: Array) -> Array:
            if not square:
                return np.where(steep > price, reach, 0.0)
            return np.where(steep >= 2 * price * reach, reach, steep / np.where(price > 0, 2 * price, 1.0))

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
        least: Array = centre - fall - charge(size, BALL, many)
        return least


def inside(
    x: Array, centre: Array, radius: float, norm: float, shares: Array, lower: Array, upper: Array
) -> bool:
    """Whether a point lies in the ball, decided in rational arithmetic without rounding."""
    exact = [Fraction(value) for value in x.tolist()]
    if not all(
        low <= value <= high for value, low, high in zip_equal(x.tolist(), lower.tolist(), upper.tolist())
    ):
        return False
    away = [abs(value - Fraction(at)) for value, at in zip_equal(exact, centre.tolist())]
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
