"""Bounds of quadratic forms over boxes and products of balls, by eigenvalues.

Where the coefficients have mixed signs these are far tighter than the sum of their absolute values.

Statement. The variables v are divided into groups g with |v_g| <= 1 in the Euclidean norm (in a box every
variable is a group), and |r_j| <= 1. For any w_j > 0, with C_j the columns of C,

    v'C r  <=  sum of |C_j'v|  <=  1/2 (sum of w_j + v'K v),    K = sum of C_j C_j' / w_j,

so that 1/2 v'Q v + v'C r <= 1/2 (v'(Q + K) v + sum of w_j). Let Lambda be a diagonal matrix with one number
lambda_g >= 0 for each group. If Lambda - (Q + K) has no eigenvalue below -lack, then v'(Q + K) v <= sum of
(lambda_g + lack). The lower bound follows from the upper bound of -Q.

Search. Any w and any Lambda are sound, so they are searched for in low precision. The best ones solve a
semidefinite programme whose dual variable is a positive semidefinite matrix Z with trace one in every group;
there w_j = (C_j'Z C_j)^1/2. The search starts from the lengths of columns and rows, and moves part of the way
to the values that belong to an approximation of Z: a power of Q + K in the units of its rows.

Assumptions: the groups are Euclidean balls or single variables; balls of norms above 2 are not contained in
these.

References: Boyd, Vandenberghe, "Convex optimization" (2004), chapter 5, for the dual; docs/rounding.md for
the eigenvalue bound of a computed matrix.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from holdfast.bounding.quadratic_part import matvec
from holdfast.bounding.trust_region import eigenvalue_deficit
from holdfast.derivations import (
    EIGENVALUE_BOUND,
    EIGENVALUE_COLUMNS,
)
from holdfast.rounding import TINY, charge, round_up

SIGNS = (1, -1)  # Multiples of Q that are bounded above; the second one gives the lower bound.
# The settings of the search were chosen by hand; the bounds are sound for all values.
UPDATE_EXPONENTS = (0.5, 0.3)  # Share of the logarithmic distance by which w and Lambda move in each round.
MAX_UPDATE_FACTOR = 20.0  # The target of a round is at most this factor away from the present value.
NUM_SQUARINGS = 3  # Z is approximated by a power of Q + K with exponent 2 to this number.
LANCZOS_STEPS = 12  # Matrix-vector products that find a largest eigenvalue.
# The first columns of C are bounded by their sizes alone, as long as these are at most this share of all
# sizes.
SMALL_COLUMNS_SHARE = 0.02
# Shorter rows and columns count as this share of the longest, so that divisors stay away from zero.
MIN_RELATIVE_LENGTH = 1e-6
# The largest eigenvalue is enlarged by this share of itself plus a tenth of this in units of the rows, so
# that a Cholesky factor exists.
EIGENVALUE_MARGIN = 1e-5


@torch.no_grad()
def bound_quadratic_form(Q: Tensor, C: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Bound 1/2 v'Q v + v'C r over |v_g| <= 1 in every group and |r_j| <= 1.

    Args:
        Q: (..., d, d).
        C: (..., d, m).
        groups: (d,), the group of each variable.

    Returns:
        low, high (...) with low <= 1/2 v'Q v + v'C r <= high; infinite where no bound was found. Rounding is
        included in float64; in float32 the result is an estimate, for training.
    """
    sizes = C.abs().sum(-2)
    num_small = int(
        (sizes.cumsum(-1) <= SMALL_COLUMNS_SHARE * sizes.sum(-1, keepdim=True)).flatten(0, -2).all(0).sum()
    )
    small_part = sizes[..., :num_small].sum(-1)
    small_part = round_up(small_part, EIGENVALUE_COLUMNS, C.shape[-1] * C.shape[-2])
    sizes = sizes[..., num_small:]
    C = C[..., num_small:]
    Q = (Q + Q.mT) / 2
    member = torch.nn.functional.one_hot(groups.unique(return_inverse=True)[1]).to(Q)  # (d, groups)
    unit = (
        Q.amax((-1, -2)).abs()
        + Q.amin((-1, -2)).abs()
        + torch.nn.functional.pad(sizes, (0, 1)).amax(-1)
        + TINY
    )
    weights = _weights(_draft(Q, unit), _draft(C, unit), member.float())
    high, low = (
        _above(Q, C, sizes, w.to(Q) * unit[..., None], rows.to(Q) * unit[..., None], member, sign)
        for sign, (w, rows) in zip(SIGNS, weights, strict=True)
    )
    known = unit.isfinite()
    return torch.where(known, -low - small_part, -torch.inf), torch.where(known, high + small_part, torch.inf)


def _above(Q: Tensor, C: Tensor, sizes: Tensor, w: Tensor, rows: Tensor, member: Tensor, sign: int) -> Tensor:
    """An upper bound (...) of sign / 2 v'Q v + v'C r, with Lambda a multiple of `rows` (..., groups).

    `sizes` (..., m) are the column sums of |C|.
    """
    form = _form(Q, C, w, sign)
    weight = _largest(_in_units(form.float(), (rows @ member.mT).float()))[..., None].to(rows) * rows
    less = eigenvalue_deficit(form.neg_(), weight @ member.mT) if form.dtype == torch.float64 else 0.0
    above = (weight.sum(-1) + member.shape[1] * less + w.sum(-1)) / 2
    # Sum of the absolute values of all terms; K is off by rounding errors of the sizes in its own sums.
    d, m = C.shape[-2:]
    size = Q.abs().sum((-1, -2)) + w.sum(-1) + (sizes.square() / w).sum(-1)
    return (above + charge(size + above.abs(), EIGENVALUE_BOUND, 2 * (d + m))).nan_to_num(
        torch.inf, torch.inf, torch.inf
    )


def _draft(values: Tensor, unit: Tensor) -> Tensor:
    """Divide by `unit` and round to low precision: bfloat16 on a GPU for its fast products, else float32."""
    return torch.div(
        values,
        unit[..., None, None],
        out=torch.empty_like(values, dtype=torch.bfloat16 if values.is_cuda else torch.float32),
    )


def _weights(Q: Tensor, C: Tensor, member: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each sign, w (..., m) and the rows' numbers (..., groups) that seem best.

    Q (..., d, d) and C (..., d, m) are low-precision copies with coefficients of at most one in size.
    """
    w = torch.linalg.vector_norm(C, dim=-2, dtype=torch.float32) + MIN_RELATIVE_LENGTH
    rows = _lengths(Q, member)
    K = _form(None, C, w)
    # K is inversely proportional to w, so the sum of both costs is least where they are equal.
    share = (
        (_largest(_in_units(K.float(), rows @ member.mT)) * rows.sum(-1) / (w.sum(-1) + MIN_RELATIVE_LENGTH))
        .sqrt()
        .clamp(1e-3, 1e3)[..., None]
    )
    w, K = share * w, K / share[..., None].to(K)
    rows = torch.hypot(rows, _lengths(K, member))
    for sign in SIGNS:
        yield _improve_weights(Q, C, K, w, rows, member, sign)


def _improve_weights(
    Q: Tensor, C: Tensor, K: Tensor, w: Tensor, rows: Tensor, member: Tensor, sign: int
) -> tuple[Tensor, Tensor]:
    """Move w and the rows' numbers towards the optimality conditions of the semidefinite programme."""
    for round, exponent in enumerate(UPDATE_EXPONENTS):
        form = _form(Q, C, w, sign) if round else torch.add(K, Q, alpha=sign)
        inverse = (rows @ member.mT).rsqrt()
        Z = _power(_in_units(form, rows @ member.mT))
        traces = (Z.diagonal(dim1=-2, dim2=-1).float() * inverse.square()) @ member
        unit = (traces * rows).sum(-1, keepdim=True) / rows.sum(-1, keepdim=True)
        scaled = C * inverse[..., None].to(C)
        target = ((Z @ scaled).mul_(scaled).sum(-2, dtype=torch.float32).clamp_min(0) / unit).sqrt()
        rows = rows * (traces / unit).clamp(1 / MAX_UPDATE_FACTOR, MAX_UPDATE_FACTOR) ** exponent
        w = w * (target / w).clamp(1 / MAX_UPDATE_FACTOR, MAX_UPDATE_FACTOR) ** exponent
    return w, rows


def _form(Q: Tensor | None, C: Tensor, w: Tensor, sign: int = 1) -> Tensor:
    """sign Q + K, or K alone if Q is None."""
    left, right = (C / w[..., None, :].to(C)).flatten(0, -3), C.mT.flatten(0, -3)
    found: Tensor = left @ right if Q is None else torch.baddbmm(Q.flatten(0, -3), left, right, beta=sign)
    return found.reshape(*C.shape[:-2], *found.shape[1:])


def _in_units(form: Tensor, rows: Tensor) -> Tensor:
    """form_ij / (rows_i rows_j)^1/2."""
    inverse = rows.rsqrt().to(form)
    return (form * inverse[..., :, None]).mul_(inverse[..., None, :])


def _power(form: Tensor) -> Tensor:
    """A power of the form, shifted so that negative eigenvalues count least; computed in place.

    The largest eigenvectors dominate it, so it approximates Z.
    """
    Z = form.div_(torch.linalg.vector_norm(form, dim=(-1, -2), keepdim=True) + torch.finfo(form.dtype).tiny)
    Z.diagonal(dim1=-2, dim2=-1).add_(0.5)
    for _ in range(NUM_SQUARINGS):
        Z = Z @ Z
        Z /= Z.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return Z


def _lengths(form: Tensor, member: Tensor) -> Tensor:
    """(..., groups): the root mean square length of the rows of each group."""
    lengths: Tensor = (
        torch.linalg.vector_norm(form, dim=-1, dtype=torch.float32).square() @ member / member.sum(0)
    ).sqrt()
    return lengths + MIN_RELATIVE_LENGTH * lengths.amax(-1, keepdim=True) + MIN_RELATIVE_LENGTH**3


def _largest(form: Tensor) -> Tensor:
    """(...) >= 0: an estimate of the largest eigenvalue, rather too large than too small (Lanczos's method).

    The rows of the form must have lengths of about one.
    """
    x = form.sum(-1) + torch.linspace(0.5, 1.0, form.shape[-1], dtype=form.dtype, device=form.device)
    diagonal = []
    lengths = [x.norm(dim=-1)]
    previous = torch.zeros_like(x)
    for _ in range(min(LANCZOS_STEPS, form.shape[-1])):
        x = x / (lengths[-1][..., None] + torch.finfo(x.dtype).tiny)
        image = matvec(form, x)
        diagonal.append((image * x).sum(-1))
        x, previous = image - diagonal[-1][..., None] * x - lengths[-1][..., None] * previous, x
        lengths.append(x.norm(dim=-1))
    off_diagonal = torch.stack(lengths[1:-1], -1)
    T = (
        torch.diag_embed(torch.stack(diagonal, -1))
        + torch.diag_embed(off_diagonal, 1)
        + torch.diag_embed(off_diagonal, -1)
    )
    try:
        values, vectors = torch.linalg.eigh(T.nan_to_num(0, 0, 0))
    except RuntimeError:  # eigh did not converge for one matrix of the batch
        return torch.full_like(lengths[-1], torch.nan)
    found: Tensor = (
        values[..., -1] + lengths[-1] * vectors[..., -1, -1].abs()
        # the residual of the Ritz vector bounds the distance to an eigenvalue
    )
    return (found + EIGENVALUE_MARGIN * (found.abs() + 0.1)).clamp_min(0)
