"""Mesh adaptive direct search (TP-MADS of DeepQuant, polling as in OrthoMADS): many searches over the unit box at once, no gradients.

Every row is a search of its own, with its own incumbent, mesh and poll. In each turn every row asks about a block of points, and all
blocks together are one query of the network: points of the SEARCH, or the next directions of the POLL. A block with a success ends
the poll of its row (opportunistic), so the budget is the same for all rows and exact.

The poll directions are the columns of H = |q|^2 I - 2 q q^T and their negatives, for a quasi-random integer vector q: integers, orthogonal
to each other, all of length |q|^2 <= poll / mesh. A column needs nothing but q, so no n x n matrix is ever built.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.errors import BadInput
from holdfast.random_streams import Chance

POLL_OVER_MESH = 2**10  # they halve and double together, from 1 and 2^-10
SMALLEST = 1e-6  # a poll below this has collapsed: start again elsewhere
SEARCHING = -1

Objective = Callable[[Tensor], Tensor]  # (count, rows, n) in the unit box -> (count, rows), to be small


@dataclass(frozen=True, eq=False)
class Mads:
    """All that the search knows, as tensors: save them, and the search goes on from them as if it had never stopped."""

    point: Tensor  # (rows, n) float64: the incumbent; before its value is known, where to begin
    value: Tensor  # (rows,) float64: infinite before the first answer
    poll: Tensor  # (rows,) float64: how far the poll reaches, as a share of the box
    asked: Tensor  # (rows,) int64: directions of this poll that were asked already; SEARCHING before the poll
    heading: Tensor  # (rows, n): the last successful step
    basis: Tensor  # (rows, n): q of this poll, whole numbers
    order: Tensor  # (rows, n) int64: its columns, the ones most along the heading first
    turn: Tensor  # (rows,) int64: how many polls began
    shift: Tensor  # (rows, n): where the row's quasi-random sequence begins
    best: Tensor  # (rows, n): the best point of all restarts
    least: Tensor  # (rows,): its value
    restarts: Tensor  # (rows,) int64
    chance: Tensor  # (rows,) int64: the number from which a row's chance follows
    queries: int = 0  # for each row


def begin(start: Tensor, chance: Chance) -> Mads:
    """start (rows, n) in the unit box: asked first, among random points."""
    if start.dim() != 2 or 0 in start.shape or not bool(((start >= 0) & (start <= 1)).all()):
        raise BadInput(
            f"mesh search: the start must be (rows, n) with numbers between 0 and 1, got shape {tuple(start.shape)}."
        )
    point = start.double()
    rows, whole = point.new_zeros(len(point)), torch.zeros(len(point), dtype=torch.int64, device=point.device)
    shift = chance.uniform(1, point.shape[1:], point)[0]
    nothing = torch.zeros_like(point)
    return Mads(
        point, rows + torch.inf, rows + 1, whole + SEARCHING, nothing, nothing, torch.zeros_like(point, dtype=torch.int64), whole, shift,
        point, rows + torch.inf, whole, chance.rows,
    )  # fmt: skip


def minimise(objective: Objective, state: Mads, queries: int, block: int = 16) -> Mads:
    """Go on until every row has asked `queries` points in all, or the time is up."""
    if block < 1:
        raise BadInput(f"mesh search: a block has at least one point, got {block}.")
    while state.queries < queries and not (state.queries and time_limit.has_expired()):
        points = propose(state, min(block, queries - state.queries))
        state = learn(state, points, objective(points))
    return state


def propose(state: Mads, count: int) -> Tensor:
    """-> (count, rows, n): the next points that every row wants to know about."""
    points = state.point.expand(count, *state.point.shape).clone()
    searching = (state.asked == SEARCHING).nonzero().flatten()
    polling = (state.asked != SEARCHING).nonzero().flatten()
    if len(searching):
        points[:, searching] = _search(state, searching, count)
    if len(polling):
        points[:, polling] = _poll(state, polling, count)
    return points


def learn(state: Mads, points: Tensor, values: Tensor) -> Mads:
    """What the answers (count, rows) to the points change. NaN counts as the worst of all."""
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
        state, poll=poll, asked=asked, queries=state.queries + count,
        point=torch.where(success[:, None], found, state.point),
        value=torch.where(success, lowest, state.value),
        heading=torch.where((success & ~first)[:, None], found - state.point, state.heading),
        best=torch.where((lowest < state.least)[:, None], found, state.best),
        least=torch.minimum(lowest, state.least),
    )  # fmt: skip
    return _renew_basis(_restart_collapsed(state, poll < SMALLEST), failed_search)


def _restart_collapsed(state: Mads, collapsed: Tensor) -> Mads:
    """Rows whose mesh has collapsed forget all but their best, and begin at a random point."""
    if not bool(collapsed.any()):
        return state
    elsewhere = _chance(state).apart(0).uniform(1, state.point.shape[1:], state.point)[0]
    return replace(
        state, restarts=state.restarts + collapsed,
        point=torch.where(collapsed[:, None], elsewhere, state.point),
        value=torch.where(collapsed, torch.inf, state.value),
        poll=torch.where(collapsed, 1.0, state.poll),
        heading=torch.where(collapsed[:, None], 0.0, state.heading),
        asked=torch.where(collapsed, SEARCHING, state.asked),
    )  # fmt: skip


def _renew_basis(state: Mads, beginning: Tensor) -> Mads:
    """Rows that begin a poll get a new basis, its columns sorted by their angle to the last success."""
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
    """(rows, n), (rows,) -> (rows, n) in (-1, 1): the shifted Richtmyer sequence, multiples of the square roots of the primes mod 1."""
    roots = _primes(shift.shape[-1]).to(shift).sqrt()
    return 2 * (shift + turn[:, None] * roots).frac() - 1


def integer_direction(v: Tensor) -> Tensor:
    """(rows, n) -> (rows, n): whole numbers along v, not all zero, |q|^2 at most POLL_OVER_MESH and close to it."""
    v = v / v.abs().amax(-1, keepdim=True).clamp_min(1e-300)
    low = torch.full_like(v[:, :1], 0.5 + 1e-9)  # here only the largest entry is not zero
    high = torch.full_like(low, 2.0 * math.sqrt(POLL_OVER_MESH))
    for _ in range(16):
        middle = (low + high) / 2
        fits = (middle * v).round().square().sum(-1, keepdim=True) <= POLL_OVER_MESH
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    q = (low * v).round()
    one = torch.zeros_like(q).scatter(-1, q.abs().argmax(-1, keepdim=True), 1.0)
    return torch.where(
        q.square().sum(-1, keepdim=True) <= POLL_OVER_MESH, q, one
    )  # v with very many entries alike


def columns(q: Tensor, which: Tensor) -> Tensor:
    """(rows, n), (rows, count) int64 -> (rows, count, n): these columns of |q|^2 I - 2 q q^T."""
    dense = -2 * q.gather(-1, which)[..., None] * q[:, None, :]
    return dense.scatter_add(-1, which[..., None], q.square().sum(-1)[:, None, None].expand(*which.shape, 1))


def _along(q: Tensor, heading: Tensor) -> Tensor:
    """(rows, n) twice -> (rows, n): the products of every column with the heading."""
    return q.square().sum(-1, keepdim=True) * heading - 2 * q * (q * heading).sum(-1, keepdim=True)


def _poll(state: Mads, rows: Tensor, count: int) -> Tensor:
    """The next `count` directions: first every column along the heading, then against it; beyond 2n again at half the length."""
    q, order, n = state.basis[rows], state.order[rows], state.point.shape[-1]
    place = state.asked[rows][:, None] + torch.arange(count, device=rows.device)
    within = place % (2 * n)
    which = order.gather(-1, torch.where(within < n, within, 2 * n - 1 - within))
    along = _along(q, state.heading[rows]).gather(-1, which)
    sign = torch.where(along < 0, -1.0, 1.0) * torch.where(within < n, 1.0, -1.0)
    steps = columns(q, which) * (sign * 0.5 ** (place // (2 * n)))[..., None]
    return _step_points(state.point[rows], steps.transpose(0, 1), state.poll[rows])


def _search(state: Mads, rows: Tensor, count: int) -> Tensor:
    """The last success again, twice as far, and random mesh points around: few features or many, near or far.

    Rows without an incumbent ask their start, such points around it, and random points and corners of the whole box.
    """
    point, new = state.point[rows], state.value[rows].isinf()
    chance, shape = _chance(state).take(rows), point.shape[1:]
    uniform, kind = (
        chance.uniform(count, shape, point),
        chance.uniform(2 * count, (1,), point).unflatten(0, (2, count)),
    )
    share = 2.0 ** -(kind[0] * math.log2(2 * point.shape[-1]))  # of the features that move
    moves = (chance.uniform(count, shape, point) < share) * (2 * uniform - 1).sign()
    near = _step_points(point, moves * POLL_OVER_MESH * 2.0 ** -torch.floor(4 * kind[1]), state.poll[rows])
    near[0] = (point + 2 * state.heading[rows]).clamp(0, 1)
    anywhere = torch.where(kind[1] < 0.25, uniform.round(), torch.where(kind[1] < 0.5, uniform, near))
    anywhere[0] = point
    return torch.where(new[:, None], anywhere, near)


def _chance(state: Mads) -> Chance:
    """After so many queries: what a row draws does not depend on whether others drew."""
    return Chance(state.chance).apart(state.queries)


def _step_points(point: Tensor, steps: Tensor, poll: Tensor) -> Tensor:
    """Whole steps of the mesh away from the incumbent, clipped to the box."""
    mesh = (poll / POLL_OVER_MESH)[:, None]
    return (point + mesh * steps.round()).clamp(0, 1)


def _primes(count: int) -> Tensor:
    """The first `count` primes."""
    limit = max(16, int(count * (math.log(count + 1) + math.log(math.log(count + 3) + 1) + 1)) + 8)
    sieve = torch.ones(limit + 1, dtype=torch.bool)
    sieve[:2] = False
    for number in range(2, math.isqrt(limit) + 1):
        if bool(sieve[number]):
            sieve[number * number :: number] = False
    return sieve.nonzero().flatten()[:count]
