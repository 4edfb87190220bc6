"""What a quadratic form is worth over a box or a ball, by eigenvalues: far less than its coefficients together, where signs are mixed.

For |v_g| <= 1 in every group g of variables (of one each, in a box), |r_j| <= 1 and any numbers w_j > 0, with C_j the columns of C,

    v'C r  <=  sum of |C_j v|  <=  1/2 (sum of w_j + v'K v),    K = sum of C_j C_j' / w_j,

so that 1/2 v'Q v + v'C r <= 1/2 (v'(Q + K) v + sum of w_j). And where Lambda - (Q + K) has no eigenvalue below -lack, Lambda diagonal with
one number for each group, v'(Q + K) v is at most the sum of these numbers and lack for every group. From below the same of -Q.

Any w and any Lambda are sound, so they are looked for in few digits. The best are those of a semidefinite programme, whose dual is a matrix
Z without negative eigenvalues and with a trace of one in each group: there w_j is the root of C_j'Z C_j. They begin as lengths of columns
and of rows and go a part of the way to what a Z near to it asks for: a power of Q + K in the units of its rows.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from holdfast.bounding.quadratic_part import matvec
from holdfast.bounding.trust_region import lack
from holdfast.rounding import TINY, gamma

SIGNS = (1, -1)  # of Q: where the second ends above, the first ends below
WAYS = (0.5, 0.3)  # how far they go, round by round, in logarithms
FARTHEST = 20.0  # by which factor at most
SQUARINGS = 3  # of Q + K, for Z
KRYLOV = 12  # products that find a largest eigenvalue
FORGOTTEN = 0.02  # of all columns' sizes: the first of them, remainders of long ago, that are bounded by their sizes instead
SMALL = 1e-6  # of the largest: rows and columns that are shorter count as this long, so that nothing is divided by next to nothing
NEARLY = (
    1e-5  # of that, and a tenth of it of all: by how much more is taken, so that a Cholesky factor exists
)


@torch.no_grad()
def reach(Q: Tensor, C: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Q (..., d, d), C (..., d, m), groups (d,) -> low, high (...): 1/2 v'Q v + v'C r lies between them; infinite where nothing was found.

    A proof in float64; in float32 a draft, for training.
    """
    sizes = C.abs().sum(-2)
    few = int((sizes.cumsum(-1) <= FORGOTTEN * sizes.sum(-1, keepdim=True)).flatten(0, -2).all(0).sum())
    beside = sizes[..., :few].sum(-1) * (1 + gamma(C.shape[-1] * C.shape[-2]))
    sizes, C, Q = sizes[..., few:], C[..., few:], (Q + Q.mT) / 2
    member = torch.nn.functional.one_hot(groups.unique(return_inverse=True)[1]).to(Q)  # (d, groups)
    unit = (
        Q.amax((-1, -2)).abs()
        + Q.amin((-1, -2)).abs()
        + torch.nn.functional.pad(sizes, (0, 1)).amax(-1)
        + TINY
    )
    found = _weights(_draft(Q, unit), _draft(C, unit), member.float())
    high, low = (
        _above(Q, C, sizes, w.to(Q) * unit[..., None], rows.to(Q) * unit[..., None], member, sign)
        for sign, (w, rows) in zip(SIGNS, found, strict=True)
    )
    known = unit.isfinite()
    return torch.where(known, -low - beside, -torch.inf), torch.where(known, high + beside, torch.inf)


def _above(Q: Tensor, C: Tensor, sizes: Tensor, w: Tensor, rows: Tensor, member: Tensor, sign: int) -> Tensor:
    """-> (...) >= sign 1/2 v'Q v + v'C r, Lambda a multiple of the rows (..., groups); sizes are the sums of the columns of |C|."""
    form = _form(Q, C, w, sign)
    weight = _largest(_in_units(form.float(), (rows @ member.mT).float()))[..., None].to(rows) * rows
    less = lack(form.neg_(), weight @ member.mT) if form.dtype == torch.float64 else 0.0
    above = (weight.sum(-1) + member.shape[1] * less + w.sum(-1)) / 2
    # All that was added up, in absolute values; K is off by units of the sizes in its own sums.
    d, m = C.shape[-2:]
    size = Q.abs().sum((-1, -2)) + w.sum(-1) + (sizes.square() / w).sum(-1)
    return (above + 8 * gamma(2 * (d + m) + 32) * (size + above.abs()) + TINY).nan_to_num(
        torch.inf, torch.inf, torch.inf
    )


def _draft(values: Tensor, unit: Tensor) -> Tensor:
    """In these units, in few digits: GPUs are many times as fast at half of those of float32."""
    return torch.div(
        values,
        unit[..., None, None],
        out=torch.empty_like(values, dtype=torch.bfloat16 if values.is_cuda else torch.float32),
    )


def _weights(Q: Tensor, C: Tensor, member: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Drafts Q (..., d, d), C (..., d, m) -> for either sign w (..., m) and rows (..., groups), where no coefficient is above one."""
    w, rows = torch.linalg.vector_norm(C, dim=-2, dtype=torch.float32) + SMALL, _lengths(Q, member)
    K = _form(None, C, w)
    # The price of K falls as that of w rises, and they cost least together where they are equal.
    share = (
        (_largest(_in_units(K.float(), rows @ member.mT)) * rows.sum(-1) / (w.sum(-1) + SMALL))
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
    for round, way in enumerate(WAYS):
        form = _form(Q, C, w, sign) if round else torch.add(K, Q, alpha=sign)
        inverse = (rows @ member.mT).rsqrt()
        Z = _power(_in_units(form, rows @ member.mT))
        traces = (Z.diagonal(dim1=-2, dim2=-1).float() * inverse.square()) @ member
        unit = (traces * rows).sum(-1, keepdim=True) / rows.sum(-1, keepdim=True)
        scaled = C * inverse[..., None].to(C)
        asked = ((Z @ scaled).mul_(scaled).sum(-2, dtype=torch.float32).clamp_min(0) / unit).sqrt()
        rows = rows * (traces / unit).clamp(1 / FARTHEST, FARTHEST) ** way
        w = w * (asked / w).clamp(1 / FARTHEST, FARTHEST) ** way
    return w, rows


def _form(Q: Tensor | None, C: Tensor, w: Tensor, sign: int = 1) -> Tensor:
    """sign Q + K, or K."""
    left, right = (C / w[..., None, :].to(C)).flatten(0, -3), C.mT.flatten(0, -3)
    found: Tensor = left @ right if Q is None else torch.baddbmm(Q.flatten(0, -3), left, right, beta=sign)
    return found.reshape(*C.shape[:-2], *found.shape[1:])


def _in_units(form: Tensor, rows: Tensor) -> Tensor:
    """form_ij / (rows_i rows_j)^1/2."""
    inverse = rows.rsqrt().to(form)
    return (form * inverse[..., :, None]).mul_(inverse[..., None, :])


def _power(form: Tensor) -> Tensor:
    """Of the form, moved so that eigenvalues below zero count least: it holds most of the largest eigenvectors. In its place."""
    Z = form.div_(torch.linalg.vector_norm(form, dim=(-1, -2), keepdim=True) + torch.finfo(form.dtype).tiny)
    Z.diagonal(dim1=-2, dim2=-1).add_(0.5)
    for _ in range(SQUARINGS):
        Z = Z @ Z
        Z /= Z.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return Z


def _lengths(form: Tensor, member: Tensor) -> Tensor:
    """-> (..., groups): of the rows, the same for all of a group."""
    lengths: Tensor = (
        torch.linalg.vector_norm(form, dim=-1, dtype=torch.float32).square() @ member / member.sum(0)
    ).sqrt()
    return lengths + SMALL * lengths.amax(-1, keepdim=True) + SMALL**3


def _largest(form: Tensor) -> Tensor:
    """-> (...) >= 0: about the largest eigenvalue of a form with rows about one long, rather a little more than less. Lanczos's method."""
    x = form.sum(-1) + torch.linspace(0.5, 1.0, form.shape[-1], dtype=form.dtype, device=form.device)
    along, lengths, before = [], [x.norm(dim=-1)], torch.zeros_like(x)
    for _ in range(min(KRYLOV, form.shape[-1])):
        x = x / (lengths[-1][..., None] + torch.finfo(x.dtype).tiny)
        image = matvec(form, x)
        along.append((image * x).sum(-1))
        x, before = image - along[-1][..., None] * x - lengths[-1][..., None] * before, x
        lengths.append(x.norm(dim=-1))
    beside = torch.stack(lengths[1:-1], -1)
    T = torch.diag_embed(torch.stack(along, -1)) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)
    try:
        values, vectors = torch.linalg.eigh(T.nan_to_num(0, 0, 0))
    except RuntimeError:  # it did not converge for one of them
        return torch.full_like(lengths[-1], torch.nan)
    found: Tensor = (
        values[..., -1] + lengths[-1] * vectors[..., -1, -1].abs()
    )  # an eigenvalue is no further away than that
    return (found + NEARLY * (found.abs() + 0.1)).clamp_min(0)
