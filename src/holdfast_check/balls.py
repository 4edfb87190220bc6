"""Lower bounds of quadratic functions over products of Euclidean unit balls, by Lagrangian duality.

Statement 1. Let v = (v_1, ..., v_G) with |v_g|_2 <= 1 (a box is a product of balls of one number each). For
any multipliers p_g >= 0, P = diag(p), M = Q + P and any x,

    J v + v'Q v  >=  J v + v'M v - sum p_g  =  (v + x)'M (v + x) + (J - 2 M x) v - x'M x - sum p_g.

If no eigenvalue of M is below -lack, the first term is at least -lack |v + x|^2. The second is at least minus
the sum of the Euclidean lengths of J - 2 M x over the balls.

Statement 2. For remainder variables |r_j| <= 1, columns C_j of C and any w_j > 0,

    v'C r <= sum |C_j v| <= sum (w_j + (C_j v)^2 / w_j) / 2,

so v'Q v + v'C r <= v'(Q + K) v + sum w_j / 2 with K = 1/2 sum C_j C_j' / w_j. If P - (Q + K) has no
eigenvalue below -lack, v'(Q + K) v <= sum p_g + G lack. The computed K is off by gamma times its own sums,
which for all v together are at most sum |C_j|_1^2 / w_j.

Here Q is the symmetric part of B without the factor 1/2 of docs/notation.md.

Rounding. Multipliers, w and x are found in plain floating point; any values are sound. `_lack` bounds the
smallest eigenvalue a posteriori: if F F' is a computed Cholesky factor times itself, then M = F F' + (M - F
F'), F F' is positive semidefinite, and the spectral norm of the symmetric matrix M - F F' is at most its
largest row sum of absolute values. Every other number is a sum of at most 2 (d + m) + 32 products, whose
absolute values are at most `total`; 16 gamma of it is subtracted.

References: Boyd and Vandenberghe 2004, sections 5.2 and B.1 (Lagrangian duality of quadratic problems);
Higham 2002, section 3.1.

Assumption: v lies in the product of balls; multipliers and w are finite, p_g >= 0 and w_j > 0.
"""

from __future__ import annotations

import numpy as np

from holdfast_check.arithmetic import BALL_DUAL, EIGENVALUE_BOUND, EIGENVALUE_DEFICIT, TINY, Array, charge

# The number of iterations of the search for multipliers (chosen by hand; it affects tightness only).
ROUNDS = 5


def least(J: Array, Q: Array, starts: Array) -> Array:
    """(n,): a lower bound of J v + v'Q v over the balls. J is (n, d), Q (n, d, d); `starts` holds the first
    index of every ball.
    """
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
    bound: Array = -(x * image).sum(1) - kept.sum(1) - missed - charge(total, BALL_DUAL, 2 * d)
    return bound


def _lack(M: Array) -> Array:
    """(n, d, d) -> (n,): numbers such that no eigenvalue of these symmetric matrices is below minus them."""
    factor = np.linalg.cholesky(M)
    product = np.abs(factor) @ np.abs(factor).swapaxes(1, 2)
    off = np.abs(factor @ factor.swapaxes(1, 2) - M)
    off = off + charge(product + np.abs(M), EIGENVALUE_DEFICIT, M.shape[1])
    # The largest row sum of absolute values bounds the spectral norm of a symmetric matrix.
    lack: Array = off.sum(2).max(1) + TINY
    return lack


def reach(Q: Array, C: Array, starts: Array) -> tuple[Array, Array]:
    """(low, high), each (n,): low <= v'Q v + v'C r <= high over the balls. Q is (n, d, d), C (n, d, m)."""
    try:
        return _reach(Q, C, starts)
    except np.linalg.LinAlgError:
        return np.full(len(Q), -np.inf), np.full(len(Q), np.inf)


def _reach(Q: Array, C: Array, starts: Array) -> tuple[Array, Array]:
    (d, m), runs = C.shape[1:], np.diff([*starts, C.shape[1]])

    def scale(form: Array) -> Array:
        """The root mean square length of a row in each ball; multipliers are proportional to it."""
        rows = np.sqrt(np.add.reduceat((form * form).sum(2), starts, 1) / runs)
        longer: Array = rows + 1e-6 * rows.max(1, keepdims=True) + 1e-100
        return longer

    def largest(form: Array, rows: Array) -> Array:
        root = np.sqrt(np.repeat(rows, runs, 1))
        found: Array = np.maximum(np.linalg.eigvalsh(form / root[:, :, None] / root[:, None])[:, -1], 0.0)
        return found

    def trace_of_eigenvectors(form: Array, rows: Array) -> tuple[Array, Array]:
        """|C_j| in the norm of Z, and the traces of Z in each ball; Z approximates the leading eigenspace."""
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
    # Choose the scale of w at which both terms of Statement 2 cost the same.
    share = np.clip(np.sqrt(largest(K, first) * first.sum(1) / (columns.sum(1) + 1e-100)), 1e-3, 1e3)
    first = np.sqrt(first**2 + scale(K / (2 * share[:, None, None])) ** 2)
    ends = []
    for side in (Q, -Q):
        w, rows = share[:, None] * columns, first
        # The optimal w are the lengths |C_j|, and the optimal multipliers have equal traces: move part of the
        # way, twice.
        for way in (
            0.5,
            0.3,
            None,
        ):
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
        ends.append(end + charge(total, EIGENVALUE_BOUND, 2 * (d + m)))
    return -ends[1], ends[0]
