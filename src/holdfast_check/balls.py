"""Quadratic functions over a product of Euclidean unit balls (of one number each, in a box), from below: a price of length for each ball.

For any prices p_g >= 0 and M = Q + P, P with the prices on its diagonal, any x, and v in the balls,

    J v + v'Q v  >=  J v + v'M v - sum of p_g  =  (v + x)'M (v + x) + (J - 2 M x) v - x'M x - sum of p_g.

The first term is at least -lack |v + x|^2 if no eigenvalue of M is below -lack, which is shown by comparing M with a factor times itself,
wherever the factor comes from; the second is at least minus the lengths of J - 2 M x. Prices and x are searched in plain arithmetic.

With remainders, |r_j| <= 1, and C_j the columns of C: v'C r is at most the sum of |C_j v| <= (w_j + (C_j v)^2 / w_j) / 2, for any w_j > 0.
So v'Q v + v'C r <= v'(Q + K) v + 1/2 sum of w_j with K = 1/2 sum of C_j C_j' / w_j, and v'(Q + K) v is at most the sum of prices and lack
for every ball, where P - (Q + K) has no eigenvalue below -lack. K is off by gamma of its own sums, over all v by |C_j|_1^2 / w_j at most.
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

    def evaluate_prices(prices: Array) -> Array:
        return Q + np.repeat(prices, runs, 1)[:, None] * np.eye(d)

    Q = (Q + Q.swapaxes(1, 2)) / 2
    floor = np.maximum(0.0, -np.linalg.eigvalsh(Q)[:, :1]) + 1e-12 * np.abs(Q).sum((1, 2))[:, None] + 1e-100
    prices, kept, x, best = (
        floor + lengths(J) / 2,
        floor + lengths(J),
        np.zeros_like(J),
        np.full(len(J), -np.inf),
    )
    for _ in range(ROUNDS):
        found = np.linalg.solve(evaluate_prices(prices), J[..., None] / 2)[..., 0]
        value = -(J * found).sum(1) / 2 - prices.sum(1)
        better = (value > best)[:, None]
        best, kept, x = np.maximum(best, value), np.where(better, prices, kept), np.where(better, found, x)
        prices = np.maximum(
            floor, np.where(better, kept * np.clip(lengths(x), 0.2, 5.0), (prices + kept) / 2)
        )
    M = evaluate_prices(kept)
    sizes, lack = np.abs(M), _lack(M)
    image = (M @ x[..., None])[..., 0]
    missed = lengths(J - 2 * image).sum(1) + lack * (np.sqrt(len(starts)) + np.abs(x).sum(1)) ** 2
    moved = (sizes @ np.abs(x)[..., None])[..., 0]
    total = np.abs(J).sum(1) + (moved * (2 + np.abs(x))).sum(1) + sizes.sum((1, 2)) + kept.sum(1) + missed
    bound: Array = -(x * image).sum(1) - kept.sum(1) - missed - 16 * gamma(2 * d + 32) * total - TINY
    return bound


def _lack(M: Array) -> Array:
    """(n, d, d) -> (n,): no eigenvalue of these symmetric matrices is below minus this."""
    factor = np.linalg.cholesky(M)
    product = np.abs(factor) @ np.abs(factor).swapaxes(1, 2)
    off = np.abs(factor @ factor.swapaxes(1, 2) - M) + 4 * gamma(M.shape[1] + 16) * (product + np.abs(M))
    lack: Array = (
        off.sum(2).max(1) + TINY
    )  # of a symmetric matrix no eigenvalue is larger than the sizes in a row
    return lack


def reach(Q: Array, C: Array, starts: Array) -> tuple[Array, Array]:
    """(n, d, d), (n, d, m), where each ball starts -> low, high (n,): v'Q v + v'C r lies between them."""
    try:
        return _reach(Q, C, starts)
    except np.linalg.LinAlgError:
        return np.full(len(Q), -np.inf), np.full(len(Q), np.inf)


def _reach(Q: Array, C: Array, starts: Array) -> tuple[Array, Array]:
    (d, m), runs = C.shape[1:], np.diff([*starts, C.shape[1]])

    def scale(form: Array) -> Array:
        """The usual length of a row in each ball: prices are a multiple of these."""
        rows = np.sqrt(np.add.reduceat((form * form).sum(2), starts, 1) / runs)
        longer: Array = rows + 1e-6 * rows.max(1, keepdims=True) + 1e-100
        return longer

    def largest(form: Array, rows: Array) -> Array:
        root = np.sqrt(np.repeat(rows, runs, 1))
        found: Array = np.maximum(np.linalg.eigvalsh(form / root[:, :, None] / root[:, None])[:, -1], 0.0)
        return found

    def trace_of_eigenvectors(form: Array, rows: Array) -> tuple[Array, Array]:
        """-> |C_j| in a matrix Z near the largest eigenvectors of the form, with a trace of about one in each ball, and these traces."""
        root = np.sqrt(np.repeat(rows, runs, 1))
        Z = form / root[:, :, None] / root[:, None]
        Z = Z / (np.sqrt((Z * Z).sum((1, 2), keepdims=True)) + 1e-100) + np.eye(d) / 2
        for _ in range(3):
            Z = Z @ Z
            Z = Z / np.einsum("nii->n", Z)[:, None, None]
        Z = Z / root[:, :, None] / root[:, None]
        traces = np.add.reduceat(np.einsum("nii->ni", Z), starts, 1)
        unit = (traces * rows).sum(1, keepdims=True) / rows.sum(1, keepdims=True)
        return np.sqrt(np.maximum(((Z @ C) * C).sum(1), 0.0) / unit), traces / unit

    Q, columns = (Q + Q.swapaxes(1, 2)) / 2, np.sqrt((C * C).sum(1)) + 1e-100
    K, first = (C / columns[:, None]) @ C.swapaxes(1, 2), scale(Q)
    share = np.clip(
        np.sqrt(largest(K, first) * first.sum(1) / (columns.sum(1) + 1e-100)), 1e-3, 1e3
    )  # where both parts cost the same
    first = np.sqrt(first**2 + scale(K / (2 * share[:, None, None])) ** 2)
    ends = []
    for side in (Q, -Q):
        w, rows = share[:, None] * columns, first
        for way in (
            0.5,
            0.3,
            None,
        ):  # the best w are those lengths, the best prices have equal traces: some of the way there, twice
            form = side + (C / (2 * w[:, None])) @ C.swapaxes(1, 2)
            if way is not None:
                length, traces = trace_of_eigenvectors(form, rows)
                w, rows = (
                    w * np.clip(length / w, 0.05, 20.0) ** way,
                    rows * np.clip(traces, 0.05, 20.0) ** way,
                )
        prices = (largest(form, rows) + 1e-6 * np.abs(form).max((1, 2)) / rows.max(1))[:, None] * rows + 1e-90
        lack = _lack(np.repeat(prices, runs, 1)[:, None] * np.eye(d) - form)
        end = prices.sum(1) + len(starts) * lack + w.sum(1) / 2
        total = np.abs(Q).sum((1, 2)) + w.sum(1) + (np.abs(C).sum(1) ** 2 / w).sum(1) + end
        ends.append(end + 16 * gamma(2 * (d + m) + 32) * total + TINY)
    return -ends[1], ends[0]
