"""Mesh adaptive direct search (Audet and Dennis 2006): many derivative-free searches over the unit box in one
batch.

The search is DeepQuant's TP-MADS with the orthogonal poll directions of OrthoMADS. Every row is a search of
its own, with its own incumbent, mesh size and poll. In each turn every row proposes a block of points, and
all blocks together are one batched query of the objective. A block holds points of the SEARCH step or the
next directions of the POLL step. A block that contains a success ends the poll of its row (opportunistic
polling), so all rows use the same, exact number of queries.

For a quasi-random integer vector q the poll directions are the columns of

    H = |q|^2 I - 2 q q^T

and their negatives. They are integer vectors, orthogonal to each other, all of length |q|^2 <= poll size /
mesh size. A column depends on q alone, so no n x n matrix is ever built.

References: C. Audet, J. E. Dennis, Mesh adaptive direct search algorithms for constrained optimization, 2006;
M. A. Abramson, C. Audet, J. E. Dennis, S. Le Digabel, OrthoMADS: a deterministic MADS instance with
orthogonal directions, 2009; P. Xu, W. Ruan, X. Huang, Quantifying safety risks of deep neural networks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams

# Quotient of the poll size and the mesh size; both are halved and doubled together, from 1 and 2^-10 of the
# box (chosen by hand).
POLL_OVER_MESH = 2**10
# A row restarts at a random point when its poll size, as a share of the box, falls below this (chosen by
# hand).
SMALLEST_POLL = 1e-6
# Value of `Mads.asked` for rows that are in the SEARCH step; values from 0 count polled directions.
SEARCHING = -1

# Maps points (count, rows, n) of the unit box to values (count, rows), which are minimised.
Objective = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Mads:
    """The whole state of the searches as tensors: a search that is resumed from a saved state continues
    exactly as if it had never stopped.
    """

    point: Tensor  # (rows, n) float64: the incumbent; the starting point until its value is known
    value: Tensor  # (rows,) float64: the incumbent's value, infinite before the first query
    poll: Tensor  # (rows,) float64: the poll size, as a share of the box
    # (rows,) int64: directions of this poll that were queried already; SEARCHING before the poll
    asked: Tensor
    heading: Tensor  # (rows, n): the last successful step
    basis: Tensor  # (rows, n): the vector q of this poll, integers stored as floats
    order: Tensor  # (rows, n) int64: the columns of H, those most parallel to the heading first
    turn: Tensor  # (rows,) int64: number of polls begun
    shift: Tensor  # (rows, n): starting point of the row's quasi-random sequence
    best: Tensor  # (rows, n): the best point over all restarts
    least: Tensor  # (rows,): its value
    restarts: Tensor  # (rows,) int64
    chance: Tensor  # (rows,) int64: seeds of the rows' random streams
    queries: int = 0  # number of queries of each row


def begin_search(start: Tensor, chance: RandomStreams) -> Mads:
    """Return the initial state of searches from start (rows, n) in the unit box; the starting point is
    queried first, among random points.
    """
    if start.dim() != 2 or 0 in start.shape or not bool(((start >= 0) & (start <= 1)).all()):
        raise BadInput(
            "mesh search: the start must be (rows, n) with numbers between 0 and 1, got shape "
            f"{tuple(start.shape)}."
        )
    point = start.double()
    rows, whole = point.new_zeros(len(point)), torch.zeros(len(point), dtype=torch.int64, device=point.device)
    shift = chance.uniform(1, point.shape[1:], point)[0]
    nothing = torch.zeros_like(point)
    return Mads(
        point,
        rows + torch.inf,
        rows + 1,
        whole + SEARCHING,
        nothing,
        nothing,
        torch.zeros_like(point, dtype=torch.int64),
        whole,
        shift,
        point,
        rows + torch.inf,
        whole,
        chance.rows,
    )


def minimise(objective: Objective, state: Mads, queries: int, block: int = 16) -> Mads:
    """Continue the searches until every row has made `queries` queries in all, or the deadline has passed."""
    if block < 1:
        raise BadInput(f"mesh search: a block has at least one point, got {block}.")
    while state.queries < queries and not (state.queries and time_limit.has_expired()):
        points = propose_points(state, min(block, queries - state.queries))
        state = update_state(state, points, objective(points))
    return state


def propose_points(state: Mads, count: int) -> Tensor:
    """Return (count, rows, n): the points that every row queries next."""
    points = state.point.expand(count, *state.point.shape).clone()
    searching = (state.asked == SEARCHING).nonzero().flatten()
    polling = (state.asked != SEARCHING).nonzero().flatten()
    if len(searching):
        points[:, searching] = _search(state, searching, count)
    if len(polling):
        points[:, polling] = _poll(state, polling, count)
    return points


def update_state(state: Mads, points: Tensor, values: Tensor) -> Mads:
    """Update the state by the values (count, rows) of the proposed points. NaN counts as the worst value."""
    count, n = len(points), points.shape[-1]
    lowest, which = torch.nan_to_num(values.double(), nan=torch.inf, posinf=torch.inf).min(0)
    found = points.gather(0, which[None, :, None].expand(1, -1, n)).squeeze(0)
    success, first = lowest < state.value, state.value.isinf()
    searching = state.asked == SEARCHING

    failed_search, over = searching & ~success, ~searching & ~success & (state.asked + count >= 2 * n)
    poll = torch.where(
        success & ~searching, (2 * state.poll).clamp_max(1), torch.where(over, state.poll / 2, state.poll)
    )
    asked = torch.where(
        failed_search, 0, torch.where(searching | success | over, SEARCHING, state.asked + count)
    )
    state = replace(
        state,
        poll=poll,
        asked=asked,
        queries=state.queries + count,
        point=torch.where(success[:, None], found, state.point),
        value=torch.where(success, lowest, state.value),
        heading=torch.where((success & ~first)[:, None], found - state.point, state.heading),
        best=torch.where((lowest < state.least)[:, None], found, state.best),
        least=torch.minimum(lowest, state.least),
    )
    return _renew_basis(_restart_collapsed(state, poll < SMALLEST_POLL), failed_search)


def _restart_collapsed(state: Mads, collapsed: Tensor) -> Mads:
    """Restart the rows (rows,) with a collapsed mesh at a random point; only their best point is kept."""
    if not bool(collapsed.any()):
        return state
    elsewhere = _chance(state).substream(0).uniform(1, state.point.shape[1:], state.point)[0]
    return replace(
        state,
        restarts=state.restarts + collapsed,
        point=torch.where(collapsed[:, None], elsewhere, state.point),
        value=torch.where(collapsed, torch.inf, state.value),
        poll=torch.where(collapsed, 1.0, state.poll),
        heading=torch.where(collapsed[:, None], 0.0, state.heading),
        asked=torch.where(collapsed, SEARCHING, state.asked),
    )


def _renew_basis(state: Mads, beginning: Tensor) -> Mads:
    """Draw a new basis for rows that begin a poll; its columns are sorted by their angle to the last
    success.
    """
    rows = beginning.nonzero().flatten()
    if not len(rows):
        return state
    turn = state.turn + beginning
    q = integer_direction(quasi_random(state.shift[rows], turn[rows]))
    along = _along(q, state.heading[rows]).abs()
    basis, order = state.basis.clone(), state.order.clone()
    basis[rows], order[rows] = q, along.argsort(dim=-1, descending=True, stable=True)
    return replace(state, turn=turn, basis=basis, order=order)


def quasi_random(shift: Tensor, turn: Tensor) -> Tensor:
    """Map (rows, n) shifts and (rows,) indices to (rows, n) points in (-1, 1) of the shifted Richtmyer
    sequence.

    The sequence holds the multiples of the square roots of the primes, modulo 1.
    """
    roots = _primes(shift.shape[-1]).to(shift).sqrt()
    return 2 * (shift + turn[:, None] * roots).frac() - 1


def integer_direction(v: Tensor) -> Tensor:
    """Round v (rows, n) to integer vectors q (rows, n), not all zero, with |q|^2 at most POLL_OVER_MESH and
    close to it.
    """
    v = v / v.abs().amax(-1, keepdim=True).clamp_min(1e-300)
    # At this scale only the largest entry rounds to a nonzero integer.
    low = torch.full_like(v[:, :1], 0.5 + 1e-9)
    high = torch.full_like(low, 2.0 * math.sqrt(POLL_OVER_MESH))
    for _ in range(16):
        middle = (low + high) / 2
        fits = (middle * v).round().square().sum(-1, keepdim=True) <= POLL_OVER_MESH
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    q = (low * v).round()
    one = torch.zeros_like(q).scatter(-1, q.abs().argmax(-1, keepdim=True), 1.0)
    return torch.where(
        # The fallback is needed where a great many entries of v have the same size.
        q.square().sum(-1, keepdim=True) <= POLL_OVER_MESH,
        q,
        one,
    )


def columns(q: Tensor, which: Tensor) -> Tensor:
    """Return the columns `which` (rows, count) int64 of |q|^2 I - 2 q q^T, for q (rows, n), as (rows, count,
    n).
    """
    dense = -2 * q.gather(-1, which)[..., None] * q[:, None, :]
    return dense.scatter_add(-1, which[..., None], q.square().sum(-1)[:, None, None].expand(*which.shape, 1))


def _along(q: Tensor, heading: Tensor) -> Tensor:
    """Return the inner products (rows, n) of every column of H with the heading; both arguments are (rows,
    n).
    """
    return q.square().sum(-1, keepdim=True) * heading - 2 * q * (q * heading).sum(-1, keepdim=True)


def _poll(state: Mads, rows: Tensor, count: int) -> Tensor:
    """Return the next `count` poll points: every column along the heading first, then against it; beyond 2n
    the same at half the length.
    """
    q, order, n = state.basis[rows], state.order[rows], state.point.shape[-1]
    place = state.asked[rows][:, None] + torch.arange(count, device=rows.device)
    within = place % (2 * n)
    which = order.gather(-1, torch.where(within < n, within, 2 * n - 1 - within))
    along = _along(q, state.heading[rows]).gather(-1, which)
    sign = torch.where(along < 0, -1.0, 1.0) * torch.where(within < n, 1.0, -1.0)
    steps = columns(q, which) * (sign * 0.5 ** (place // (2 * n)))[..., None]
    return _step_points(state.point[rows], steps.transpose(0, 1), state.poll[rows])


def _search(state: Mads, rows: Tensor, count: int) -> Tensor:
    """Return points of the SEARCH step: twice the last success, and random mesh points around the incumbent
    that change few or many features by much or little.

    Rows without an incumbent query their starting point, such points around it, and random points and corners
    of the box.
    """
    point, new = state.point[rows], state.value[rows].isinf()
    chance, shape = _chance(state).take(rows), point.shape[1:]
    uniform, kind = (
        chance.uniform(count, shape, point),
        chance.uniform(2 * count, (1,), point).unflatten(0, (2, count)),
    )
    share = 2.0 ** -(kind[0] * math.log2(2 * point.shape[-1]))  # share of the features that change
    moves = (chance.uniform(count, shape, point) < share) * (2 * uniform - 1).sign()
    near = _step_points(point, moves * POLL_OVER_MESH * 2.0 ** -torch.floor(4 * kind[1]), state.poll[rows])
    near[0] = (point + 2 * state.heading[rows]).clamp(0, 1)
    anywhere = torch.where(kind[1] < 0.25, uniform.round(), torch.where(kind[1] < 0.5, uniform, near))
    anywhere[0] = point
    return torch.where(new[:, None], anywhere, near)


def _chance(state: Mads) -> RandomStreams:
    """Return the random streams of the next turn. They depend on the number of queries only, not on what
    other rows draw.
    """
    return RandomStreams(state.chance).substream(state.queries)


def _step_points(point: Tensor, steps: Tensor, poll: Tensor) -> Tensor:
    """Move from the incumbent by whole mesh steps, clipped to the box."""
    mesh = (poll / POLL_OVER_MESH)[:, None]
    return (point + mesh * steps.round()).clamp(0, 1)


def _primes(count: int) -> Tensor:
    """Return the first `count` primes."""
    limit = max(16, int(count * (math.log(count + 1) + math.log(math.log(count + 3) + 1) + 1)) + 8)
    sieve = torch.ones(limit + 1, dtype=torch.bool)
    sieve[:2] = False
    for number in range(2, math.isqrt(limit) + 1):
        if bool(sieve[number]):
            sieve[number * number :: number] = False
    return sieve.nonzero().flatten()[:count]
