"""What a quadratic form is worth over a box or a ball, by eigenvalues: far less than its coefficients together, where signs are mixed.

For |v_g| <= 1 in every group g of variables (of one each, in a box), |r_j| <= 1 and any numbers w_j > 0, with C_j the columns of C,

    v'C r  <=  sum of |C_j v|  <=  1/2 (sum of w_j + v'K v),    K = sum of C_j C_j' / w_j,

so that 1/2 v'Q v + v'C r <= 1/2 (v'(Q + K) v + sum of w_j). And where Lambda - (Q + K) has no eigenvalue below -lack, Lambda diagonal with
one number for each group, v'(Q + K) v is at most the sum of these numbers and lack for every group. From below the same of -Q. Any w and
any Lambda are sound: they are a multiple of the lengths of columns, and of rows. (The best Lambda is that of a semidefinite programme.)
"""

import torch
from torch import Tensor

from holdfast.bounding.trust_region import lack
from holdfast.rounding import TINY, gamma

NEARLY = 1e-6  # of the largest eigenvalue: by how much more than that is taken, so that a Cholesky factor exists
POWERS = 40  # steps of the power method, on a graphics card
MORE = 0.02  # of what they find, which is too little


@torch.no_grad()
def reach(Q: Tensor, C: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Q (..., d, d), C (..., d, m), groups (d,) -> low, high (...): 1/2 v'Q v + v'C r lies between them; infinite where nothing was found.

    A proof in float64; in float32 a draft, for training.
    """
    known = Q.isfinite().all((-1, -2)) & C.isfinite().all((-1, -2))
    Q, C = torch.where(known[..., None, None], Q, 0), torch.where(known[..., None, None], C, 0)
    Q = (Q + Q.mT) / 2
    tiny = torch.finfo(Q.dtype).tiny ** 0.5
    columns = C.square().sum(-2).sqrt() + tiny
    K = (C / columns[..., None, :]) @ C.mT
    # The price of K falls as that of w rises, and they cost least together where they are equal.
    member = torch.nn.functional.one_hot(groups.unique(return_inverse=True)[1]).to(Q)  # (d, groups)
    rows = _lengths(Q, member, tiny)
    share = (_largest(K, rows @ member.mT) * rows.sum(-1) / (columns.sum(-1) + tiny)).sqrt().clamp(1e-3, 1e3)
    w, K = share[..., None] * columns, K / share[..., None, None]
    rows = (rows.square() + _lengths(K, member, tiny).square()).sqrt()
    above, below = (_above(form, rows, member, w) for form in (Q + K, K - Q))
    # All that was added up, in absolute values; K is off by units of the sizes in its own sums.
    d, m = C.shape[-2:]
    size = Q.abs().sum((-1, -2)) + w.sum(-1) + ((C.abs().sum(-2)).square() / w).sum(-1)
    charge = 8 * gamma(2 * (d + m) + 32) * (size + above.abs() + below.abs()) + TINY
    high, low = above + charge, -(below + charge)
    inf = torch.inf
    return torch.where(known, low.nan_to_num(-inf, -inf, -inf), -inf), torch.where(known, high.nan_to_num(inf, inf, inf), inf)


def _above(form: Tensor, rows: Tensor, member: Tensor, w: Tensor) -> Tensor:
    """-> (...) >= 1/2 (v' form v + sum of w)."""
    each = rows @ member.mT
    weight = (_largest(form, each) + NEARLY * form.abs().amax((-1, -2)) / rows.amax(-1))[..., None] * rows  # (..., groups)
    less = lack(-form, weight @ member.mT) if form.dtype == torch.float64 else 0.0
    return (weight.sum(-1) + member.shape[1] * less + w.sum(-1)) / 2


def _lengths(form: Tensor, member: Tensor, tiny: float) -> Tensor:
    """-> (..., groups): of the rows, the same for all of a group. Those that are much shorter than the others count as a little longer, so
    that nothing is divided by next to nothing."""
    lengths = (form.square().sum(-1) @ member / member.sum(0)).sqrt()
    return lengths + 1e-6 * lengths.amax(-1, keepdim=True) + tiny


def _largest(form: Tensor, rows: Tensor) -> Tensor:
    """-> (...) >= 0, about: the largest eigenvalue of the form in the units of its rows."""
    root = rows.sqrt()
    scaled = form / root[..., :, None] / root[..., None, :]
    if not form.is_cuda:
        try:
            return torch.linalg.eigvalsh(scaled)[..., -1].clamp_min(0)  # type: ignore[no-any-return]
        except RuntimeError:  # it did not converge for one of them
            return torch.full_like(root[..., 0], torch.nan)
    shift = scaled.square().sum((-1, -2)).sqrt() / 2  # no eigenvalue of the power method's matrix that matters is negative
    x = torch.ones_like(root).unsqueeze(-1)
    for _ in range(POWERS):
        x = scaled @ x + shift[..., None, None] * x
        x = x / x.norm(dim=-2, keepdim=True)
    found = (x * (scaled @ x)).sum((-1, -2))
    return (found + MORE * (found.abs() + shift)).clamp_min(0)
