"""The least value of a quadratic function over a product of Euclidean unit balls, from below: a price of length for each ball.

For any prices p_g >= 0 and M = Q + P, P with the prices on its diagonal, any x, and v in the balls,

    J v + v'Q v  >=  J v + v'M v - sum of p_g  =  (v + x)'M (v + x) + (J - 2 M x) v - x'M x - sum of p_g.

The first term is at least -lack |v + x|^2 if no eigenvalue of M is below -lack, which is shown by comparing M with a factor times itself,
wherever the factor comes from; the second is at least minus the lengths of J - 2 M x. Prices and x are searched in plain arithmetic.
"""

import numpy as np

from holdfast_check.arithmetic import TINY, Array, gamma

ROUNDS = 5  # of looking for prices


def least(J: Array, Q: Array, starts: Array) -> Array:
    """(n, d), (n, d, d), where each ball starts -> (n,): no J v + v'Q v is below."""
    try:
        return _least(J, Q, starts)
    except np.linalg.LinAlgError:
        return np.full(len(J), -np.inf)


def _least(J: Array, Q: Array, starts: Array) -> Array:
    d, runs = J.shape[1], np.diff([*starts, J.shape[1]])

    def lengths(x: Array) -> Array:
        return np.sqrt(np.add.reduceat(x * x, starts, 1) + TINY)

    def priced(prices: Array) -> Array:
        return Q + np.repeat(prices, runs, 1)[:, None] * np.eye(d)

    Q = (Q + Q.swapaxes(1, 2)) / 2
    floor = np.maximum(0.0, -np.linalg.eigvalsh(Q)[:, :1]) + 1e-12 * np.abs(Q).sum((1, 2))[:, None] + 1e-100
    prices, kept, x, best = floor + lengths(J) / 2, floor + lengths(J), np.zeros_like(J), np.full(len(J), -np.inf)
    for _ in range(ROUNDS):
        found = np.linalg.solve(priced(prices), J[..., None] / 2)[..., 0]
        value = -(J * found).sum(1) / 2 - prices.sum(1)
        better = (value > best)[:, None]
        best, kept, x = np.maximum(best, value), np.where(better, prices, kept), np.where(better, found, x)
        prices = np.maximum(floor, np.where(better, kept * np.clip(lengths(x), 0.2, 5.0), (prices + kept) / 2))
    M = priced(kept)
    factor = np.linalg.cholesky(M)
    sizes, product = np.abs(M), np.abs(factor) @ np.abs(factor).swapaxes(1, 2)
    off = np.abs(factor @ factor.swapaxes(1, 2) - M) + 4 * gamma(d + 16) * (product + sizes)
    lack = off.sum(2).max(1) + TINY  # of a symmetric matrix no eigenvalue is larger than the sizes in a row
    image = (M @ x[..., None])[..., 0]
    missed = lengths(J - 2 * image).sum(1) + lack * (np.sqrt(len(starts)) + np.abs(x).sum(1)) ** 2
    moved = (sizes @ np.abs(x)[..., None])[..., 0]
    total = np.abs(J).sum(1) + (moved * (2 + np.abs(x))).sum(1) + sizes.sum((1, 2)) + kept.sum(1) + missed
    bound: Array = -(x * image).sum(1) - kept.sum(1) - missed - 16 * gamma(2 * d + 32) * total - TINY
    return bound
