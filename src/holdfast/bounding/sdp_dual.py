"""Lower bounds of output rows over a region: the Lagrangian dual of Shor's semidefinite relaxation of ReLUs.

CROWN relaxes every unstable neuron on its own, although no single perturbation brings all neurons to their
worst pre-activations: over a Euclidean ball the squares of all perturbations together are limited. The
relaxation below keeps these squares, so it relaxes all unstable neurons jointly.

Notation. u = (1, v) is a column with u_0 = 1. The variables v_k, |v_k| <= 1, are first the inputs (scaled to
the region) and then those unstable ReLUs that another pre-activation reads ("kept"): neuron k has the signal
x_k = max(z_k, 0) = h_k (1 + v_k) with h_k = upper_k / 2. Neurons without a variable are "free". Every
pre-activation of an unstable neuron is affine in the variables,

    |z_i - A_i u| <= error_i,    lower_i <= z_i <= upper_i,    A_i a row of `relu_preactivations`.

Statement. For any real numbers s_i, b_i, a_i, c_i, p_i and any w_k >= 0, t_g >= 0, each of these terms is at
most zero at every point of the region:

    q_i(z_i) - peak_i          with q_i = s_i z^2 + b_i z + a_i x + c_i x (x - upper_i) for x = max(z, 0),
                               and peak_i the maximum of q_i over lower_i <= z <= upper_i
    p_i x_i (x_i - z_i)        is zero, since x_i is 0 or z_i
    w_k (v_k^2 - 1)            for the inputs k
    t_g (sum over k in g of (rho_k v_k + sigma_k)^2 - reach_g^2)
                               for the Euclidean balls g, see `BallConstraints`

So the output row plus all of them is a quadratic function L(v) = u'Mu <= row. Let e_k be the k-th unit row,
f_k = e_0 + e_k, and let the row be

    constant + sum over k of linear_k v_k + sum over free i of aside_i (x_i / h_i - 1).

A free neuron has a_i = -aside_i / h_i, which removes x_i from the sum. Then M is the sum of

    constant e_0'e_0 + sum over k of linear_k / 2 (e_0'e_k + e_k'e_0) - sum over free i of aside_i e_0'e_0,
    s_i A_i'A_i + b_i / 2 (e_0'A_i + A_i'e_0) - peak_i e_0'e_0                            for each neuron i,
    (p_k + c_k) h_k^2 f_k'f_k + (a_k - 2 c_k h_k) h_k / 2 (f_k'e_0 + e_0'f_k)
        - p_k h_k / 2 (f_k'A_k + A_k'f_k)                                            for each kept neuron k,
    w_k (e_k'e_k - e_0'e_0)                                                               for each input k,
    t_g (sum over k in g of (rho_k e_k + sigma_k e_0)'(rho_k e_k + sigma_k e_0)
        - reach_g^2 e_0'e_0)                                                               for each ball g.

If M - bound e_0'e_0 has no eigenvalue below -lack, then row >= bound - lack |u|^2 >= bound - lack (1 + number
of variables). Split M into the number m, the column l and the block N of the variables: if N is positive
definite, the best such bound is m - l'N^-1 l.

Any multipliers are sound. `_train` maximises the bound plus a logarithmic barrier, a small multiple of log
det N, by Adam in float32. `prove_rows` evaluates the result once in float64 with every rounding error bounded
(docs/rounding.md). `block_sparse` computes the sums over A_i'A_i.

Assumptions: unstable activations are affine on either side of zero; the region is a box or a product of
Euclidean balls, and its affine forms hold with the errors given.

References: Raghunathan, Steinhardt, Liang, "Semidefinite relaxations for certifying robustness to adversarial
examples" (2018), for the relaxation; Dathathri et al., "Enabling certification of verification-agnostic
networks via memory-efficient semidefinite programming" (2020), for first-order methods on its dual.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.block_sparse import RowBlocks
from holdfast.bounding.coefficient_training import CoefficientAscent
from holdfast.bounding.trust_region import eigenvalue_deficit
from holdfast.derivations import (
    SDP_DEFICIT,
    SDP_MATRIX,
    SDP_PARABOLA,
    SDP_PEAK,
)
from holdfast.rounding import TINY, charge, round_up

# The training settings were chosen on the CNN of `benchmarks.lipschitz radius`, on images that are not in its
# tables (benchmarks/RESULTS.md).
DEFAULT_STEPS = 200  # Default number of Adam steps for each row of the output.
LEARNING_RATE = (0.3, 0.4)  # Adam's learning rate after the warm-up, in boxes and in balls.
FINAL_RATE_SHARE = 0.02  # The learning rate decays exponentially to this share of itself at the last step.
WARMUP_STEPS = 20  # The learning rate rises linearly over this many steps.
MAX_RESUME_SHARE = 0.6  # Training that resumes from another radius skips at most this share of all steps.
RESUME_BACK_STEPS = 15  # Such training resumes this many steps before the step at which the other one ended.
# First and last weight of the barrier, relative to how far CROWN lets the row fall (`_crown_multipliers`).
BARRIER_WEIGHT = (1e-2, 3e-5)
ADAM_BETAS = (0.8, 0.95)  # Decay rates of Adam's first and second moments.
# Gradients are clipped at this multiple of their root mean square, which Adam keeps (`CoefficientAscent`).
GRADIENT_LIMIT = 2.0
INITIAL_PULL = (1.5, 3.0)  # Initial p in its units, in boxes and in balls.
INITIAL_ARCH = 0.4  # Initial c in its units.
INITIAL_WALL = (2.0, 0.01)  # Initial w in its units, in boxes and in balls.
INITIAL_CURVE = 0.03  # Initial s of kept neurons in its units.
PROGRESS_CHECK_STEPS = 25  # Progress is checked at intervals of this many steps.
MIN_STEPS = 80  # A row is never abandoned before this step.
# A row is abandoned if this many times the gain since the last check would not raise its bound above zero.
GAIN_FORECAST = 4.0
# A bound below this share of the fall of the row has no sign in float32.
FLOAT32_MARGIN = 2.0**-14


@dataclass(frozen=True)
class BallConstraints:
    """Euclidean balls g: over the inputs k of g, the sum of (radius_k v_k + shift_k)^2 is <= reach_g^2."""

    member: Tensor  # (inputs, balls), one-hot: the ball of each input
    radius: Tensor  # (inputs,)
    shift: Tensor
    reach: Tensor  # (balls,)


@dataclass(frozen=True)
class JointReluRelaxation:
    """The joint relaxation of the unstable ReLUs of a network over one region, with some rows of the output.

    The columns are the number one, the inputs that are perturbed and the kept ReLUs, x = half (1 + v), in
    this order.
    """

    arguments: Tensor  # (n, 1 + variables): the rows A_i, |z_i - A_i u| <= error_i
    error: Tensor  # (n,)
    lower: Tensor  # (n,): lower <= z <= upper, intermediate bounds
    upper: Tensor
    kept: Tensor  # (k,): indices of the neurons with a variable
    free: Tensor  # (n - k,): indices of the neurons without a variable
    layers: tuple[tuple[int, int], ...]  # for each layer the range of its neurons, which are contiguous
    inputs: int
    ball: BallConstraints | None
    constant: Tensor  # (rows,)
    linear: Tensor  # (rows, variables)
    aside: Tensor  # (rows, n - k): coefficients of x / half - 1 of the free neurons
    missed: Tensor  # (rows,): bounds the rounding errors of these coefficients
    neurons: Tensor  # (n,): indices of the unstable neurons among all ReLUs
    moves: Tensor  # (inputs,): indices of the perturbed inputs
    bundles: tuple[RowBlocks, ...] = ()  # `relu_preactivations` in block-sparse form

    @property
    def half(self) -> Tensor:
        return self.upper / 2

    @property
    def ahead(self) -> Tensor:
        """(k,): how many layers with variables there are from the layer of each kept ReLU on, inclusive."""
        layer_stops = [
            stop for start, stop in self.layers if bool(((self.kept >= start) & (self.kept < stop)).any())
        ]
        return (
            torch.stack([(self.kept < layer_stop).long() for layer_stop in layer_stops]).sum(0)
            if layer_stops
            else self.kept
        )

    def rows(self, which: Tensor) -> "JointReluRelaxation":
        """The relaxation for a selection of the output rows."""
        some = {name: getattr(self, name)[which] for name in ("constant", "linear", "aside", "missed")}
        return replace(self, **some)

    def float(self) -> "JointReluRelaxation":
        """A copy in float32, for training."""

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
    """The multipliers of the module's statement, one row of each tensor for each row of the output."""

    curve: Tensor  # (rows, n): s
    slope: Tensor  # (rows, n): b
    tilt: Tensor  # (rows, k): a
    arch: Tensor  # (rows, k): c
    pull: Tensor  # (rows, k): p
    wall: Tensor  # (rows, inputs): w >= 0
    limit: Tensor  # (rows, balls): t >= 0

    def values(self) -> list[Tensor]:
        return [getattr(self, f.name) for f in fields(self)]

    def times(self, units: "DualVariables") -> "DualVariables":
        """Multiply every multiplier by its unit."""
        return DualVariables(
            *(value * unit for value, unit in zip(self.values(), units.values(), strict=True))
        )

    def single(self) -> "DualVariables":
        return DualVariables(*(value.float() for value in self.values()))

    def move_towards(self, other: "DualVariables", rows: Tensor, share: float) -> "DualVariables":
        """Move the multipliers of the selected rows, (rows,) bool, by `share` of the way to those of `other`.

        A share of 1 takes those of `other` exactly.
        """

        def interpolate(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(rows[:, None], b if share == 1 else a + share * (b - a), a)

        return DualVariables(*(interpolate(a, b) for a, b in zip(self.values(), other.values(), strict=True)))

    def make_more_convex(self, rows: Tensor, times: float, ahead: Tensor) -> "DualVariables":
        """Make the block N of the selected rows, (rows,) bool, more positive definite.

        Terms that curve downwards shrink and terms that curve upwards grow, by `times` to the power of the
        number of layers that follow (`ahead`, (k,)): p_k couples a ReLU to its pre-activation, and so to the
        ReLUs and inputs of earlier layers.
        """
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
    """The result of training: multipliers in their units, and the step at which training ended."""

    numbers: DualVariables
    step: int

    def scatter_to_all(self, relaxation: JointReluRelaxation, sizes: tuple[int, int]) -> "TrainedDual":
        """Scatter the multipliers to all ReLUs and inputs; NaN for those without a multiplier.

        `sizes` are the numbers of ReLUs and of inputs.
        """
        free, kept = self.numbers, relaxation.neurons[relaxation.kept]

        def wide(values: Tensor, where: Tensor, size: int) -> Tensor:
            return values.new_full((len(values), size), torch.nan).index_copy_(1, where, values)

        num_neurons, num_inputs = sizes
        found = DualVariables(
            wide(free.curve, relaxation.neurons, num_neurons),
            wide(free.slope, relaxation.neurons, num_neurons),
            wide(free.tilt, kept, num_neurons),
            wide(free.arch, kept, num_neurons),
            wide(free.pull, kept, num_neurons),
            wide(free.wall, relaxation.moves, num_inputs),
            free.limit,
        )
        return replace(self, numbers=found)

    def begin(self, relaxation: JointReluRelaxation, default: DualVariables) -> DualVariables:
        """Gather the multipliers of `relaxation` from those of all ReLUs and inputs; `default` for NaN."""
        known, kept = self.numbers, relaxation.neurons[relaxation.kept]
        found = DualVariables(
            known.curve[:, relaxation.neurons],
            known.slope[:, relaxation.neurons],
            known.tilt[:, kept],
            known.arch[:, kept],
            known.pull[:, kept],
            known.wall[:, relaxation.moves],
            known.limit,
        )
        pairs = zip(found.values(), default.values(), strict=True)
        return DualVariables(*(torch.where(new.isnan(), old, new.to(old.dtype)) for new, old in pairs))


def _peaks(relaxation: JointReluRelaxation, free: DualVariables) -> tuple[Tensor, Tensor]:
    """Upper bounds of s z^2 + b z + a x + c x (x - upper) for lower <= z <= upper, and their maximisers.

    Returns two tensors (rows, n). In float64 the first includes all rounding errors. On either side of zero
    the function is a parabola, see `_maximum_of_parabola`.
    """
    zero = torch.zeros_like(relaxation.lower)
    tilt = torch.zeros_like(free.curve)
    arch = torch.zeros_like(free.curve)
    tilt[:, relaxation.kept] = free.tilt
    tilt[:, relaxation.free] = -relaxation.aside / relaxation.half[relaxation.free]
    arch[:, relaxation.kept] = free.arch
    below = _maximum_of_parabola(free.curve, free.slope, relaxation.lower, zero)
    above, place = _maximum_of_parabola(
        free.curve + arch, free.slope + tilt - arch * relaxation.upper, zero, relaxation.upper
    )
    if free.curve.dtype == torch.float64:  # the sums may cancel
        sizes = free.slope.abs() + tilt.abs() + (free.curve.abs() + 2 * arch.abs()) * relaxation.upper
        above = above + charge(sizes * relaxation.upper, SDP_PEAK)
    return torch.maximum(below[0], above), torch.where(below[0] >= above, below[1], place)


def _maximum_of_parabola(s: Tensor, b: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """An upper bound of s z^2 + b z for low <= z <= high, and the z at which it is attained up to rounding.

    A parabola that curves upwards is largest at an endpoint. One that curves downwards lies below its tangent
    at any point, so the tangent at the computed vertex bounds it whatever the rounding error of the vertex.
    """

    def value(z: Tensor) -> Tensor:
        return (s * z + b) * z

    down = s < 0
    place = torch.minimum(torch.maximum(-b / torch.where(down, 2 * s, -1.0), low), high)
    ends = torch.where(value(low) >= value(high), low, high)
    place = torch.where(down, place, ends)
    rise = 2 * s * place + b
    tangent = torch.maximum(rise * (low - place), rise * (high - place)).clamp_min(0)
    largest = torch.maximum(low.abs(), high.abs())
    above = value(place) + torch.where(down, tangent, 0)
    if s.dtype == torch.float64:
        above = above + charge((s.abs() * largest + b.abs()) * largest, SDP_PARABOLA)
    return above, place


def _matrix(relaxation: JointReluRelaxation, free: DualVariables, peaks: Tensor) -> Tensor:
    """The matrix M of the module's statement, (rows, 1 + variables, 1 + variables)."""
    z = relaxation.arguments
    half = relaxation.half[relaxation.kept]
    first = 1 + relaxation.inputs
    found = free.curve.new_zeros((len(free.curve), z.shape[1], z.shape[1]))
    mixed = torch.zeros_like(free.curve)
    mixed[:, relaxation.kept] = -0.5 * free.pull * half
    for bundle in relaxation.bundles:
        bundle.add_squares(free.curve, found)
        bundle.add_cross_products(mixed, found)
    line = (free.slope / 2 + mixed) @ z
    square, tilt = (free.pull + free.arch) * half.square(), free.tilt * half - 2 * free.arch * half.square()
    line[:, first:] += square + tilt / 2
    line[:, 1:] += relaxation.linear / 2
    diagonal = torch.cat([free.wall, square], dim=1)
    constant = (
        relaxation.constant
        - peaks.sum(1)
        - free.wall.sum(1)
        + square.sum(1)
        + tilt.sum(1)
        - relaxation.aside.sum(1)
    )
    if relaxation.ball is not None:
        weight = free.limit @ relaxation.ball.member.T
        diagonal[:, : relaxation.inputs] += weight * relaxation.ball.radius.square()
        line[:, 1:first] += weight * relaxation.ball.radius * relaxation.ball.shift
        constant = (
            constant
            + (weight * relaxation.ball.shift.square()).sum(1)
            - free.limit @ relaxation.ball.reach.square()
        )
    found[:, 0] += line
    found[:, :, 0] += line
    found.diagonal(dim1=1, dim2=2)[:, 1:] += diagonal
    found[:, 0, 0] += constant
    return found


def _crown_multipliers(relaxation: JointReluRelaxation) -> tuple[DualVariables, DualVariables, Tensor]:
    """Initial multipliers near those of CROWN, their units, and how far CROWN lets the rows fall, (rows,)."""
    rows, n = len(relaxation.constant), len(relaxation.lower)
    slope, wide, tilt = (relaxation.linear.new_zeros((rows, n)) for _ in range(3))
    column = torch.full((n,), -1, device=relaxation.kept.device)
    column[relaxation.kept] = (
        1 + relaxation.inputs + torch.arange(len(relaxation.kept), device=relaxation.kept.device)
    )
    # CROWN's backward pass: `line` holds the coefficients on the columns, `weight` those on the ReLUs of a
    # layer.
    line = torch.nn.functional.pad(relaxation.linear, (1, 0))
    of_free = relaxation.linear.new_zeros((rows, n))
    of_free[:, relaxation.free] = relaxation.aside
    width = relaxation.upper - relaxation.lower
    for start, stop in reversed(relaxation.layers):
        if start == stop:
            continue
        here = slice(start, stop)
        weight = (
            torch.where(column[here] < 0, of_free[:, here], line[:, column[here].clamp_min(0)])
            / relaxation.half[here]
        )
        share = torch.where(
            weight < 0,
            relaxation.upper[here] / width[here],
            (relaxation.upper > -relaxation.lower)[here].to(width),
        )
        slope[:, here], tilt[:, here] = weight * share, -weight
        line = line + slope[:, here] @ relaxation.arguments[here]
        size = weight.abs()
        wide[:, here] = torch.maximum(size, size.mean(1, keepdim=True) / 10).clamp_min(1e-12)
    at_inputs = line[:, 1 : 1 + relaxation.inputs]
    falls = at_inputs.abs().sum(1).clamp_min(1e-12)
    ball, kept = relaxation.ball, relaxation.kept
    if ball is None:
        limit = relaxation.linear.new_zeros((rows, 0))
        wall = (falls / max(1, relaxation.inputs) / 2)[:, None].expand_as(at_inputs)
        begin = torch.full_like(wall, INITIAL_WALL[0])
    else:
        slope_norm = ((at_inputs / ball.radius.clamp_min(1e-12)).square() @ ball.member).sqrt()
        falls = (slope_norm * ball.reach).sum(1).clamp_min(1e-12)
        limit = (slope_norm / (2 * ball.reach.clamp_min(1e-12))).clamp_min(1e-12)
        wall = (falls / max(1, relaxation.inputs) / 2)[:, None].expand_as(at_inputs)
        begin = torch.full_like(wall, INITIAL_WALL[1])
    curve_unit = wide[:, kept] / width[kept]
    units = DualVariables(wide / width, wide, wide[:, kept], curve_unit, curve_unit, wall, limit)
    curve = torch.zeros_like(slope)
    curve[:, kept] = INITIAL_CURVE
    start_at = DualVariables(
        curve,
        slope / wide,
        tilt[:, kept] / wide[:, kept],
        torch.full_like(curve_unit, INITIAL_ARCH),
        torch.full_like(curve_unit, INITIAL_PULL[ball is not None]),
        begin,
        torch.ones_like(limit),
    )
    return start_at, units, falls


@torch.no_grad()
def least(
    relaxation: JointReluRelaxation,
    *,
    steps: int = DEFAULT_STEPS,
    sign: bool = True,
    known: TrainedDual | None = None,
) -> tuple[Tensor, TrainedDual]:
    """Lower-bound the rows over the region.

    Args:
        known: multipliers of all ReLUs from which training starts; default: those of CROWN.
        sign: stop as soon as the bounds are positive, or are not expected to become positive.

    Returns:
        (rows,) with result[i] <= row i everywhere in the region, rounding included, and the multipliers that
        prove it.
    """
    initial, units, falls = _crown_multipliers(relaxation)
    trained = _train(relaxation.float(), initial, units, falls, steps, sign, known)
    best, numbers = torch.full_like(relaxation.constant, -torch.inf), trained.numbers
    for _ in range(4):  # float32 may have crossed the barrier by rounding
        best = torch.maximum(best, prove_rows(relaxation, numbers.times(units)))
        if time_limit.has_expired() or bool(best.isfinite().all()):
            break
        numbers = numbers.make_more_convex(best.isinf(), 1.02, relaxation.ahead)
    return best, replace(trained, numbers=numbers)


def _train(
    relaxation: JointReluRelaxation,
    initial: DualVariables,
    units: DualVariables,
    falls: Tensor,
    steps: int,
    sign: bool,
    known: TrainedDual | None,
) -> TrainedDual:
    """Maximise the bound plus barrier by Adam in float32; returns the multipliers with the best bounds."""
    units = units.single()
    free = _initial_multipliers(relaxation, initial.single(), units, known)
    first = (
        0 if known is None else max(0, min(known.step - RESUME_BACK_STEPS, round(MAX_RESUME_SHARE * steps)))
    )
    ascent = CoefficientAscent(free.values(), betas=ADAM_BETAS, usual=GRADIENT_LIMIT)
    now = DualVariables(*ascent.values)
    kept = free
    last = free
    best = torch.full_like(falls, -torch.inf)
    earlier, step = best.clone(), first
    for step in range(first, steps):
        barrier = (
            falls * BARRIER_WEIGHT[0] * (BARRIER_WEIGHT[1] / BARRIER_WEIGHT[0]) ** (step / steps)
        ).float()
        value, gradients = _bound(relaxation, now.times(units), barrier)
        # Go back towards the last multipliers with N positive definite, with less momentum.
        for _ in range(40):
            if not bool((failed := value.isinf()).any()):
                break
            ascent.backtrack(last.values(), failed)
            value, gradients = _bound(relaxation, now.times(units), barrier)
        last = DualVariables(*(number.clone() for number in now.values()))
        kept = kept.move_towards(last, value > best, 1.0)
        best = torch.maximum(best, value.double())
        if time_limit.has_expired() or (sign and bool((best > FLOAT32_MARGIN * falls).all())):
            break
        if sign and step % PROGRESS_CHECK_STEPS == PROGRESS_CHECK_STEPS - 1:
            if step > MIN_STEPS and bool((best + GAIN_FORECAST * (best - earlier) < 0).any()):
                break
            earlier = best.clone()
        ascent.step(
            [g * u for g, u in zip(gradients.values(), units.values(), strict=True)],
            LEARNING_RATE[relaxation.ball is not None]
            * min(1.0, (step - first + 1) / WARMUP_STEPS)
            * FINAL_RATE_SHARE ** (step / steps),
        )
        for number in (now.pull, now.wall, now.limit):
            number.clamp_min_(1e-4)
    return TrainedDual(DualVariables(*(number.double() for number in kept.values())), step)


def _initial_multipliers(
    relaxation: JointReluRelaxation, free: DualVariables, units: DualVariables, known: TrainedDual | None
) -> DualVariables:
    """Multipliers at which N is positive definite, near those of CROWN or near the known ones."""

    def has_failed(numbers: DualVariables) -> Tensor:
        return _bound(relaxation, numbers.times(units), numbers.curve.new_zeros(()))[0].isinf()

    for _ in range(60):
        if not bool((lost := has_failed(free)).any()):
            break
        free = free.make_more_convex(lost, 1.1, relaxation.ahead)
    if known is None:
        return free
    near = known.begin(relaxation, free)
    # Multipliers with N positive definite form a convex set, so a point on the way to `free` lies in it.
    for _ in range(30):
        if not bool((lost := has_failed(near)).any()):
            break
        near = near.move_towards(free, lost, 0.2)
    return near


def _bound(
    relaxation: JointReluRelaxation, free: DualVariables, barrier: Tensor
) -> tuple[Tensor, DualVariables]:
    """The bounds (rows,), -inf where N is not positive definite, and the gradients of bound plus barrier."""
    peaks, top = _peaks(relaxation, free)
    matrix = _matrix(relaxation, free, peaks)
    factor, failed = torch.linalg.cholesky_ex(matrix[:, 1:, 1:])
    if bool((failed != 0).any()):  # a matrix without a Cholesky factor may be singular
        factor = torch.where(
            (failed == 0)[:, None, None],
            factor,
            torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device),
        )
    v = -torch.cholesky_solve(matrix[:, 1:, :1], factor)[..., 0]
    value = matrix[:, 0, 0] + (matrix[:, 0, 1:] * v).sum(1)
    value = torch.where((failed == 0) & value.isfinite(), value, -torch.inf)
    v = torch.nn.functional.pad(v, (1, 0), value=1.0)
    # The gradient with respect to M: u u' for the bound, N^-1 for the barrier.
    along = v[:, :, None] * v[:, None]
    along[:, 1:, 1:] += barrier[..., None, None] * torch.cholesky_inverse(factor) if barrier.ndim else 0.0
    z = v @ relaxation.arguments.T
    kept = relaxation.kept
    half = relaxation.half[relaxation.kept]
    first = 1 + relaxation.inputs
    squares, cross = (torch.nn.functional.pad(torch.zeros_like(z), (0, 1)) for _ in range(2))
    for bundle in relaxation.bundles:
        bundle.quadratic_forms(along, squares)
        bundle.cross_products(along, cross)
    diagonal = along.diagonal(dim1=1, dim2=2)
    inside = diagonal[:, 1:first]
    limit = free.limit
    if relaxation.ball is not None:
        ball = relaxation.ball
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
        squared - half * (z[:, kept] + cross[:, kept]),
        inside - 1,
        limit,
    )  # fmt: skip
    return value, gradients


def prove_rows(relaxation: JointReluRelaxation, free: DualVariables) -> Tensor:
    """Lower bounds (rows,) of the rows in float64, all rounding errors included.

    -inf where N is not positive definite.
    """
    free = replace(free, wall=free.wall.clamp_min(0), limit=free.limit.clamp_min(0))
    peaks, _ = _peaks(relaxation, free)
    matrix = _matrix(relaxation, free, peaks)
    factor, failed = torch.linalg.cholesky_ex(matrix[:, 1:, 1:])
    v = -torch.cholesky_solve(matrix[:, 1:, :1], factor)[..., 0]
    size = _size(relaxation, free, peaks)
    # A little below the optimum, so that M - bound e_0'e_0 stays positive definite in floating point.
    bound = matrix[:, 0, 0] + (matrix[:, 0, 1:] * v).sum(1) - 1e-9 * size
    bound = torch.where(failed == 0, bound, 0)
    # The number one becomes the last column: its pivot in the Cholesky factorisation is the smallest.
    order = torch.arange(1, matrix.shape[1] + 1, device=matrix.device) % matrix.shape[1]
    matrix[:, 0, 0] -= bound
    matrix = matrix[:, order][:, :, order]
    short = eigenvalue_deficit(matrix, torch.zeros_like(matrix[:, 0]))
    largest = torch.maximum(relaxation.lower.abs(), relaxation.upper.abs())
    pulled = torch.zeros_like(free.curve)
    pulled[:, relaxation.kept] = free.pull.abs() * relaxation.upper[relaxation.kept]
    off = (pulled + free.curve.abs() * (2 * largest + relaxation.error) + free.slope.abs()) @ relaxation.error
    terms = len(relaxation.lower) + matrix.shape[1]
    missed = (
        charge(size + bound.abs(), SDP_MATRIX, 4 * terms)
        + 2 * (off + relaxation.missed)
        + round_up(short * matrix.shape[1], SDP_DEFICIT, terms)
    )
    found = bound - missed - TINY
    return torch.where((failed == 0) & found.isfinite(), found, -torch.inf)


def _size(relaxation: JointReluRelaxation, free: DualVariables, peaks: Tensor) -> Tensor:
    """(rows,): an upper bound of the sum of the absolute values of all terms of L, for |v_k| <= 1."""
    reach, half = relaxation.arguments.abs().sum(1), relaxation.half[relaxation.kept]
    total = free.curve.abs() @ reach.square() + free.slope.abs() @ reach + peaks.abs().sum(1)
    total = (
        total
        + free.pull.abs() @ (2 * half * (2 * half + reach[relaxation.kept]))
        + free.tilt.abs() @ (2 * half)
    )
    total = total + free.arch.abs() @ (8 * half.square())
    total = (
        total
        + 2 * free.wall.sum(1)
        + relaxation.constant.abs()
        + relaxation.linear.abs().sum(1)
        + 4 * relaxation.aside.abs().sum(1)
    )
    if relaxation.ball is not None:
        ball = relaxation.ball
        total = total + free.limit @ (
            ball.member.T @ (ball.radius + ball.shift.abs()).square() + ball.reach.square()
        )
    return total
