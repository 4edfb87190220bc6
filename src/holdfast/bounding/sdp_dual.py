"""Bounds that know that neurons move together: Lagrange's dual with squares (Shor's relaxation; Raghunathan et al. 2018).

Planes charge every undecided neuron by itself for the worst place of its argument, although one change of the input cannot bring all of
them there: in the Euclidean norm the squares of all changes together have a limit. So squares are kept. Over a region every argument z of
an undecided ReLU x = max(z, 0) is z = centre + slopes . v up to an error, where the variables v, none above one in size, are the inputs and
the ReLUs before it. For any numbers s, b, a, c and p

    s z^2 + b z + a x + c x (x - upper) - peak + p x (x - z)  <=  0,   peak = the largest of the terms before it for z between its ends,

since x (x - z) is zero. Any weights >= 0 of v_k^2 - 1 <= 0 and of |change|^2 - radius^2 <= 0 may be added too. The sum of all this and of a
row of the output is a quadratic function L(v) <= row; if L - bound has no negative eigenvalue, the row is nowhere below the bound. ReLUs
that no other argument reads need no variable: their a takes them out of the row.

Any numbers are sound, so they are trained in float32 with a logarithmic barrier in front of the first negative eigenvalue, and put once
into a bound in float64 with its roundings paid for (docs/rounding.md).
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.block_sparse import Bundles
from holdfast.bounding.coefficient_training import CoefficientAscent
from holdfast.bounding.trust_region import lack
from holdfast.rounding import TINY, gamma

STEPS = 200  # of training
PACE, FADE = (
    (0.3, 0.4),
    0.02,
)  # its step size at first, in boxes and in balls, and the share of it that is left at the end
WARM = 20  # steps until the pace is reached
AGAIN, BACK = (
    0.6,
    15,
)  # where training goes on from another radius: after this share of all steps at most, so many before it ended there
BARRIER = (
    1e-2,
    3e-5,
)  # the weight of the barrier at first and at last, in units of how far planes let the row fall
BETAS, USUAL = (0.8, 0.95), 2.0  # of Adam, and how many times their usual size gradients may be
PULL, ARCH, WALL = (
    (1.5, 3.0),
    0.4,
    2.0,
)  # of these numbers where training begins, the first in boxes and in balls
LOOK, LAST = 25, 80  # every so many steps, once so many are done, a row is given up that
HOPE = 4.0  # times what the last of these won would not bring above zero
UNSURE = 2.0**-14  # of how far planes let the row fall: less is not told from zero in float32


@dataclass(frozen=True)
class BallConstraints:
    """For each ball g the sum of (radius_k v_k + shift_k)^2 over its inputs is at most reach_g^2."""

    member: Tensor  # (inputs, balls)
    radius: Tensor  # (inputs,)
    shift: Tensor
    reach: Tensor  # (balls,)


@dataclass(frozen=True)
class Coupling:
    """The undecided ReLUs of a network over one region.

    Variables are the inputs that move and then the kept ReLUs, x = half (1 + v); with the number one before them they are columns.
    """

    arguments: Tensor  # (n, 1 + variables): z is within `error` of their sum, each times its variable
    error: Tensor  # (n,)
    lower: Tensor  # (n,) lower <= z <= upper
    upper: Tensor
    kept: Tensor  # (k,): which of the n have a variable
    free: Tensor  # (n - k,): and which have none
    layers: tuple[tuple[int, int], ...]  # those of one function lie side by side
    inputs: int
    ball: BallConstraints | None
    constant: Tensor  # (rows,) of the rows
    linear: Tensor  # (rows, variables)
    aside: Tensor  # (rows, n - k): on v = x / half - 1 of those without a variable
    missed: Tensor  # (rows,): what computing these may have missed
    neurons: Tensor  # (n,): the numbers of the undecided ReLUs among all of them
    moves: Tensor  # (inputs,): and of the inputs that move
    bundles: tuple[Bundles, ...] = ()  # the arguments, by what they read

    @property
    def half(self) -> Tensor:
        return self.upper / 2

    @property
    def ahead(self) -> Tensor:
        """-> (k,): how many layers with variables there are from that of each kept ReLU on, its own included."""
        ends = [
            stop for start, stop in self.layers if bool(((self.kept >= start) & (self.kept < stop)).any())
        ]
        return torch.stack([(self.kept < end).long() for end in ends]).sum(0) if ends else self.kept

    def rows(self, which: Tensor) -> "Coupling":
        some = {name: getattr(self, name)[which] for name in ("constant", "linear", "aside", "missed")}
        return replace(self, **some)

    def float(self) -> "Coupling":
        def single(value: object) -> object:
            return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

        ball = self.ball and BallConstraints(
            **{f.name: getattr(self.ball, f.name).float() for f in fields(self.ball)}
        )
        bundles = tuple(bundle.to(torch.float32) for bundle in self.bundles)
        rest = {
            f.name: single(getattr(self, f.name)) for f in fields(self) if f.name not in ("ball", "bundles")
        }
        return replace(self, ball=ball, bundles=bundles, **rest)  # type: ignore[arg-type]


@dataclass(frozen=True)
class DualVariables:
    """The free numbers, row by row."""

    curve: Tensor  # (rows, n): s
    slope: Tensor  # (rows, n): b
    tilt: Tensor  # (rows, k): a
    arch: Tensor  # (rows, k): c
    pull: Tensor  # (rows, k): p
    wall: Tensor  # (rows, inputs) >= 0: of v^2 - 1
    limit: Tensor  # (rows, balls) >= 0

    def values(self) -> list[Tensor]:
        return [getattr(self, f.name) for f in fields(self)]

    def times(self, units: "DualVariables") -> "DualVariables":
        return DualVariables(
            *(value * unit for value, unit in zip(self.values(), units.values(), strict=True))
        )

    def single(self) -> "DualVariables":
        return DualVariables(*(value.float() for value in self.values()))

    def nearer(self, other: "DualVariables", rows: Tensor, share: float) -> "DualVariables":
        """A share of the way to others in some rows, (rows,) bool; they themselves for all of it."""

        def interpolate(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(rows[:, None], b if share == 1 else a + share * (b - a), a)

        return DualVariables(*(interpolate(a, b) for a, b in zip(self.values(), other.values(), strict=True)))

    def convexer(self, rows: Tensor, times: float, ahead: Tensor) -> "DualVariables":
        """With less that curves downwards and more that curves upwards in some rows, (rows,) bool; the more so the more layers are
        ahead, (k,): what pulls a ReLU to its argument also pulls at the ReLUs and the inputs in that argument."""
        step = torch.where(rows, times, 1.0)[:, None].to(self.curve)
        inputs = step ** (1 + int(ahead.max()) if len(ahead) else 1)
        curve = torch.where(self.curve < 0, self.curve / step, self.curve)
        arch = torch.where(self.arch < 0, self.arch / step, self.arch * step)
        return replace(
            self,
            curve=curve,
            arch=arch,
            pull=self.pull * step**ahead,
            wall=self.wall * inputs,
            limit=self.limit * inputs,
        )


@dataclass(frozen=True)
class TrainedDual:
    """What training ended with: numbers in their units, and after which step."""

    numbers: DualVariables
    step: int

    def of_all(self, asked: Coupling, sizes: tuple[int, int]) -> "TrainedDual":
        """The numbers of all ReLUs and inputs, of which there are so many; NaN where there was nothing to train."""
        free, kept = self.numbers, asked.neurons[asked.kept]

        def wide(values: Tensor, where: Tensor, size: int) -> Tensor:
            return values.new_full((len(values), size), torch.nan).index_copy_(1, where, values)

        found = DualVariables(
            wide(free.curve, asked.neurons, sizes[0]), wide(free.slope, asked.neurons, sizes[0]), wide(free.tilt, kept, sizes[0]),
            wide(free.arch, kept, sizes[0]), wide(free.pull, kept, sizes[0]), wide(free.wall, asked.moves, sizes[1]), free.limit,
        )  # fmt: skip
        return replace(self, numbers=found)

    def begin(self, asked: Coupling, begun: DualVariables) -> DualVariables:
        """Those that are asked for of the numbers of all, and where there are none, those with which training begins else."""
        known, kept = self.numbers, asked.neurons[asked.kept]
        found = DualVariables(
            known.curve[:, asked.neurons], known.slope[:, asked.neurons], known.tilt[:, kept], known.arch[:, kept],
            known.pull[:, kept], known.wall[:, asked.moves], known.limit,
        )  # fmt: skip
        pairs = zip(found.values(), begun.values(), strict=True)
        return DualVariables(*(torch.where(new.isnan(), old, new.to(old.dtype)) for new, old in pairs))


def _peaks(asked: Coupling, free: DualVariables) -> tuple[Tensor, Tensor]:
    """-> (rows, n): no s z^2 + b z + a x + c x (x - upper) is above the first, rounding included in float64; and where it is largest.

    On either side of zero it is a parabola: the largest where it curves upwards at an end, else nowhere above the tangent at any place, the
    best of which is its top.
    """
    zero, tilt, arch = (
        torch.zeros_like(asked.lower),
        torch.zeros_like(free.curve),
        torch.zeros_like(free.curve),
    )
    tilt[:, asked.kept], tilt[:, asked.free] = free.tilt, -asked.aside / asked.half[asked.free]
    arch[:, asked.kept] = free.arch
    below = _top(free.curve, free.slope, asked.lower, zero)
    above, place = _top(free.curve + arch, free.slope + tilt - arch * asked.upper, zero, asked.upper)
    if free.curve.dtype == torch.float64:  # these sums may cancel
        sizes = free.slope.abs() + tilt.abs() + (free.curve.abs() + 2 * arch.abs()) * asked.upper
        above = above + 8 * gamma(4) * sizes * asked.upper + TINY
    return torch.maximum(below[0], above), torch.where(below[0] >= above, below[1], place)


def _top(s: Tensor, b: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The largest s z^2 + b z for low <= z <= high."""

    def value(z: Tensor) -> Tensor:
        return (s * z + b) * z

    down = s < 0
    place = torch.minimum(torch.maximum(-b / torch.where(down, 2 * s, -1.0), low), high)
    ends = torch.where(value(low) >= value(high), low, high)
    place = torch.where(down, place, ends)
    rise = 2 * s * place + b
    tangent = torch.maximum(rise * (low - place), rise * (high - place)).clamp_min(0)
    largest = torch.maximum(low.abs(), high.abs())
    charge = (
        64 * gamma(4) * (s.abs() * largest + b.abs()) * largest + TINY if s.dtype == torch.float64 else 0.0
    )
    return value(place) + torch.where(down, tangent, 0) + charge, place


def _matrix(asked: Coupling, free: DualVariables, peaks: Tensor) -> Tensor:
    """-> (rows, 1 + variables, 1 + variables): L of the variables, with the number one before them."""
    z, half, first = asked.arguments, asked.half[asked.kept], 1 + asked.inputs
    found = free.curve.new_zeros((len(free.curve), z.shape[1], z.shape[1]))
    mixed = torch.zeros_like(free.curve)
    mixed[:, asked.kept] = -0.5 * free.pull * half
    for bundle in asked.bundles:
        bundle.add_squares(free.curve, found)
        bundle.add_beside(mixed, found)
    line = (free.slope / 2 + mixed) @ z
    square, tilt = (free.pull + free.arch) * half.square(), free.tilt * half - 2 * free.arch * half.square()
    line[:, first:] += square + tilt / 2
    line[:, 1:] += asked.linear / 2
    diagonal = torch.cat([free.wall, square], dim=1)
    constant = (
        asked.constant - peaks.sum(1) - free.wall.sum(1) + square.sum(1) + tilt.sum(1) - asked.aside.sum(1)
    )
    if asked.ball is not None:
        weight = free.limit @ asked.ball.member.T
        diagonal[:, : asked.inputs] += weight * asked.ball.radius.square()
        line[:, 1:first] += weight * asked.ball.radius * asked.ball.shift
        constant = (
            constant + (weight * asked.ball.shift.square()).sum(1) - free.limit @ asked.ball.reach.square()
        )
    found[:, 0] += line
    found[:, :, 0] += line
    found.diagonal(dim1=1, dim2=2)[:, 1:] += diagonal
    found[:, 0, 0] += constant
    return found


def _planes(asked: Coupling) -> tuple[DualVariables, DualVariables, Tensor]:
    """-> where training begins, near the planes in closed form; the units of the numbers; and how far planes let the rows fall, (rows,)."""
    rows, n = len(asked.constant), len(asked.lower)
    slope, wide, tilt = (asked.linear.new_zeros((rows, n)) for _ in range(3))
    column = torch.full((n,), -1, device=asked.kept.device)
    column[asked.kept] = 1 + asked.inputs + torch.arange(len(asked.kept), device=asked.kept.device)
    line = torch.nn.functional.pad(asked.linear, (1, 0))
    of_free = asked.linear.new_zeros((rows, n))
    of_free[:, asked.free] = asked.aside
    width = asked.upper - asked.lower
    for start, stop in reversed(asked.layers):
        if start == stop:
            continue
        here = slice(start, stop)
        weight = (
            torch.where(column[here] < 0, of_free[:, here], line[:, column[here].clamp_min(0)])
            / asked.half[here]
        )
        share = torch.where(
            weight < 0, asked.upper[here] / width[here], (asked.upper > -asked.lower)[here].to(width)
        )
        slope[:, here], tilt[:, here] = weight * share, -weight
        line = line + slope[:, here] @ asked.arguments[here]
        size = weight.abs()
        wide[:, here] = torch.maximum(size, size.mean(1, keepdim=True) / 10).clamp_min(1e-12)
    at_inputs = line[:, 1 : 1 + asked.inputs]
    falls = at_inputs.abs().sum(1).clamp_min(1e-12)
    ball, kept = asked.ball, asked.kept
    if ball is None:
        limit = asked.linear.new_zeros((rows, 0))
        wall = (falls / max(1, asked.inputs) / 2)[:, None].expand_as(at_inputs)
        begin = torch.full_like(wall, WALL)
    else:
        steep = ((at_inputs / ball.radius.clamp_min(1e-12)).square() @ ball.member).sqrt()
        falls = (steep * ball.reach).sum(1).clamp_min(1e-12)
        limit = (steep / (2 * ball.reach.clamp_min(1e-12))).clamp_min(1e-12)
        wall = (falls / max(1, asked.inputs) / 2)[:, None].expand_as(at_inputs)
        begin = torch.full_like(wall, 0.01)
    bend = wide[:, kept] / width[kept]
    units = DualVariables(wide / width, wide, wide[:, kept], bend, bend, wall, limit)
    curve = torch.zeros_like(slope)
    curve[:, kept] = 0.03
    start_at = DualVariables(
        curve, slope / wide, tilt[:, kept] / wide[:, kept], torch.full_like(bend, ARCH), torch.full_like(bend, PULL[ball is not None]),
        begin, torch.ones_like(limit),
    )  # fmt: skip
    return start_at, units, falls


@torch.no_grad()
def least(
    asked: Coupling, *, steps: int = STEPS, sign: bool = True, known: TrainedDual | None = None
) -> tuple[Tensor, TrainedDual]:
    """-> (rows,): no row is below this anywhere in the region; and the numbers that prove it. known: numbers of all ReLUs with which
    training begins. sign: it ends where the bound is above zero, or cannot get there."""
    begun, units, falls = _planes(asked)
    trained = _train(asked.float(), begun, units, falls, steps, sign, known)
    best, numbers = torch.full_like(asked.constant, -torch.inf), trained.numbers
    for _ in range(4):  # float32 may have been on the wrong side of the barrier
        best = torch.maximum(best, prove_rows(asked, numbers.times(units)))
        if time_limit.has_expired() or bool(best.isfinite().all()):
            break
        numbers = numbers.convexer(best.isinf(), 1.02, asked.ahead)
    return best, replace(trained, numbers=numbers)


def _train(
    asked: Coupling,
    begun: DualVariables,
    units: DualVariables,
    falls: Tensor,
    steps: int,
    sign: bool,
    known: TrainedDual | None,
) -> TrainedDual:
    """Adam along the gradient of the bound and of the barrier, in float32; the numbers with the best bounds."""
    units = units.single()
    free = _begun(asked, begun.single(), units, known)
    first = 0 if known is None else max(0, min(known.step - BACK, round(AGAIN * steps)))
    ascent = CoefficientAscent(free.values(), betas=BETAS, usual=USUAL)
    now, kept, last = DualVariables(*ascent.values), free, free
    best = torch.full_like(falls, -torch.inf)
    earlier, step = best.clone(), first
    for step in range(first, steps):
        barrier = (falls * BARRIER[0] * (BARRIER[1] / BARRIER[0]) ** (step / steps)).float()
        value, gradients = _bound(asked, now.times(units), barrier)
        for _ in range(40):
            if not bool((failed := value.isinf()).any()):
                break
            ascent.back(last.values(), failed)
            value, gradients = _bound(asked, now.times(units), barrier)
        last = DualVariables(*(number.clone() for number in now.values()))
        kept = kept.nearer(last, value > best, 1.0)
        best = torch.maximum(best, value.double())
        if time_limit.has_expired() or (sign and bool((best > UNSURE * falls).all())):
            break
        if sign and step % LOOK == LOOK - 1:
            if step > LAST and bool((best + HOPE * (best - earlier) < 0).any()):
                break
            earlier = best.clone()
        ascent.step(
            [g * u for g, u in zip(gradients.values(), units.values(), strict=True)],
            PACE[asked.ball is not None] * min(1.0, (step - first + 1) / WARM) * FADE ** (step / steps),
        )
        for number in (now.pull, now.wall, now.limit):
            number.clamp_min_(1e-4)
    return TrainedDual(DualVariables(*(number.double() for number in kept.values())), step)


def _begun(
    asked: Coupling, free: DualVariables, units: DualVariables, known: TrainedDual | None
) -> DualVariables:
    """Where training begins: numbers with a bound, near the planes or near those that are known."""

    def has_failed(numbers: DualVariables) -> Tensor:
        return _bound(asked, numbers.times(units), numbers.curve.new_zeros(()))[0].isinf()

    for _ in range(60):
        if not bool((lost := has_failed(free)).any()):
            break
        free = free.convexer(lost, 1.1, asked.ahead)
    if known is None:
        return free
    near = known.begin(asked, free)
    for _ in range(
        30
    ):  # where a bound exists is convex: on the way to numbers that have one there are others
        if not bool((lost := has_failed(near)).any()):
            break
        near = near.nearer(free, lost, 0.2)
    return near


def _bound(asked: Coupling, free: DualVariables, barrier: Tensor) -> tuple[Tensor, DualVariables]:
    """-> (rows,) the bound, minus infinity where the matrix is not positive; and the gradient of it and of the barrier."""
    peaks, top = _peaks(asked, free)
    matrix = _matrix(asked, free, peaks)
    factor, failed = torch.linalg.cholesky_ex(matrix[:, 1:, 1:])
    if bool((failed != 0).any()):  # what has no factor may have no inverse
        factor = torch.where(
            (failed == 0)[:, None, None],
            factor,
            torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device),
        )
    v = -torch.cholesky_solve(matrix[:, 1:, :1], factor)[..., 0]
    value = matrix[:, 0, 0] + (matrix[:, 0, 1:] * v).sum(1)
    value = torch.where((failed == 0) & value.isfinite(), value, -torch.inf)
    v = torch.nn.functional.pad(v, (1, 0), value=1.0)
    # The gradient along the matrix: v v' of the bound, the inverse of the barrier.
    along = v[:, :, None] * v[:, None]
    along[:, 1:, 1:] += barrier[..., None, None] * torch.cholesky_inverse(factor) if barrier.ndim else 0.0
    z, kept, half, first = v @ asked.arguments.T, asked.kept, asked.half[asked.kept], 1 + asked.inputs
    squares, beside = (torch.nn.functional.pad(torch.zeros_like(z), (0, 1)) for _ in range(2))
    for bundle in asked.bundles:
        bundle.squares(along, squares)
        bundle.beside(along, beside)
    diagonal = along.diagonal(dim1=1, dim2=2)
    inside = diagonal[:, 1:first]
    limit = free.limit
    if asked.ball is not None:
        ball = asked.ball
        limit = (
            inside * ball.radius.square() + 2 * v[:, 1:first] * ball.radius * ball.shift + ball.shift.square()
        ) @ ball.member - ball.reach.square()
    above, signal = top[:, kept].clamp_min(0), half * (1 + v[:, first:])
    squared = half.square() * (1 + 2 * v[:, first:] + diagonal[:, first:])
    gradients = DualVariables(
        squares[:, :-1] - top.square(),
        z - top,
        signal - above,
        squared - 2 * half * signal - above * (above - 2 * half),
        squared - half * (z[:, kept] + beside[:, kept]),
        inside - 1,
        limit,
    )  # fmt: skip
    return value, gradients


def prove_rows(asked: Coupling, free: DualVariables) -> Tensor:
    """-> (rows,): in float64, with every rounding paid for; minus infinity where the matrix is not positive."""
    free = replace(free, wall=free.wall.clamp_min(0), limit=free.limit.clamp_min(0))
    peaks, _ = _peaks(asked, free)
    matrix = _matrix(asked, free, peaks)
    factor, failed = torch.linalg.cholesky_ex(matrix[:, 1:, 1:])
    v = -torch.cholesky_solve(matrix[:, 1:, :1], factor)[..., 0]
    size = _size(asked, free, peaks)
    bound = matrix[:, 0, 0] + (matrix[:, 0, 1:] * v).sum(1) - 1e-9 * size
    bound = torch.where(failed == 0, bound, 0)
    order = (
        torch.arange(1, matrix.shape[1] + 1, device=matrix.device) % matrix.shape[1]
    )  # one last, so that its root is what is left
    matrix[:, 0, 0] -= bound
    matrix = matrix[:, order][:, :, order]
    short = lack(matrix, torch.zeros_like(matrix[:, 0]))
    largest = torch.maximum(asked.lower.abs(), asked.upper.abs())
    pulled = torch.zeros_like(free.curve)
    pulled[:, asked.kept] = free.pull.abs() * asked.upper[asked.kept]
    off = (pulled + free.curve.abs() * (2 * largest + asked.error) + free.slope.abs()) @ asked.error
    terms = len(asked.lower) + matrix.shape[1]
    charge = (
        8 * gamma(4 * terms + 64) * (size + bound.abs())
        + 2 * (off + asked.missed)
        + short * matrix.shape[1] * (1 + gamma(terms))
    )
    found = bound - charge - TINY
    return torch.where((failed == 0) & found.isfinite(), found, -torch.inf)


def _size(asked: Coupling, free: DualVariables, peaks: Tensor) -> Tensor:
    """-> (rows,): at least all that is added up in L, in absolute values, for variables no larger than one."""
    reach, half = asked.arguments.abs().sum(1), asked.half[asked.kept]
    total = free.curve.abs() @ reach.square() + free.slope.abs() @ reach + peaks.abs().sum(1)
    total = (
        total + free.pull.abs() @ (2 * half * (2 * half + reach[asked.kept])) + free.tilt.abs() @ (2 * half)
    )
    total = total + free.arch.abs() @ (8 * half.square())
    total = (
        total
        + 2 * free.wall.sum(1)
        + asked.constant.abs()
        + asked.linear.abs().sum(1)
        + 4 * asked.aside.abs().sum(1)
    )
    if asked.ball is not None:
        ball = asked.ball
        total = total + free.limit @ (
            ball.member.T @ (ball.radius + ball.shift.abs()).square() + ball.reach.square()
        )
    return total
