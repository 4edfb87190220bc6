"""The least value of a quadratic function over a product of Euclidean balls, from below: Lagrange's dual of a trust-region problem.

For any lambda_g >= 0, one for each ball |v_g| <= 1, and M = Q + Lambda,

    c + J v + 1/2 v'Q v  >=  c - 1/2 sum of lambda_g + J v + 1/2 v'M v  >=  c - 1/2 sum of lambda_g - J x + 1/2 x'M x - missed

at every v of the balls, for any x, if M has no negative eigenvalue. With J - M x = e the last two differ by 1/2 (v + x)'M (v + x)
+ e (v + x), so `missed` is the sum of |e_g| (1 + |x_g|). The dual is concave in lambda and steepest where |x_g| is far from one, which
tells how to look for it; any lambda and any x are sound.
"""

import torch
from torch import Tensor

from holdfast.rounding import TINY, gamma

ROUNDS = 4  # of looking for multipliers; a dozen win a fiftieth of a percent more


def least(c: Tensor, J: Tensor, Q: Tensor, groups: Tensor) -> Tensor:
    """c (...), J (..., d), Q (..., d, d), groups (d,): the ball of each variable -> (...) <= c + J v + 1/2 v'Q v over the balls.

    Infinitely low where no multipliers were found. Differentiable along c, J and Q; a proof in float64 only.
    """
    known = J.isfinite().all(-1) & Q.isfinite().all((-1, -2))
    J, Q = torch.where(known[..., None], J, 0), torch.where(known[..., None, None], Q, 0)
    member = torch.nn.functional.one_hot(groups.unique(return_inverse=True)[1]).to(J)  # (d, balls)
    Q = (Q + Q.mT) / 2  # another matrix, the same function; each entry is rounded once
    with torch.no_grad():
        multiplier, x = _multipliers(J.detach(), Q.detach(), member)
        proves = Q.dtype == torch.float64  # else it is a draft, for training
        short = lack(Q.detach(), multiplier @ member.mT) if proves else torch.zeros_like(c)
    weight = multiplier @ member.mT
    image = (Q @ x.unsqueeze(-1)).squeeze(-1) + weight * x
    value = c - (J * x).sum(-1) + (image * x).sum(-1) / 2 - multiplier.sum(-1) / 2
    # Everything that was added up, in absolute values: the roundings of all sums above are units of it, and of no more terms than these.
    with (
        torch.no_grad()
    ):  # lambda and x are the best of their neighbours, so that the value alone says how the bound changes
        sides = _norms(x, member)
        d, reach = x.shape[-1], (1 + sides).sum(-1)
        missed = (_norms(J - image, member) * (1 + sides)).sum(-1)
        sizes = (Q.abs() @ x.abs().unsqueeze(-1)).squeeze(-1) + weight * x.abs() + J.abs()
        total = (
            c.abs()
            + (sizes * (x.abs() + reach.unsqueeze(-1))).sum(-1)
            + multiplier.sum(-1)
            + Q.abs().sum((-1, -2))
        )
        charge = 8 * gamma(2 * d + 16) * total + short * reach.square() + TINY
    return torch.where(
        known, torch.nan_to_num(value - missed - charge, -torch.inf, -torch.inf, -torch.inf), -torch.inf
    )


def _multipliers(J: Tensor, Q: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """-> lambda (..., balls) >= 0 and x (..., d), near the best."""
    rows = Q.abs().sum(-1)
    # With these M is diagonally dominant, and by a hair more than that; they fall from there.
    safe = torch.where(member.bool(), rows.unsqueeze(-1), 0).amax(-2)
    multiplier = safe * (1 + 1e-9) + _norms(J, member) + 1e-30
    best = torch.full_like(J[..., 0], -torch.inf)
    kept, x = multiplier, torch.zeros_like(J)
    for _ in range(ROUNDS):
        M = Q + torch.diag_embed(multiplier @ member.mT)
        factor, failed = torch.linalg.cholesky_ex(M)
        found = torch.cholesky_solve(J.unsqueeze(-1), factor).squeeze(-1)
        value = -(J * found).sum(-1) / 2 - multiplier.sum(-1) / 2
        better = (failed == 0) & (value > best)
        best = torch.where(better, value, best)
        kept, x = (
            torch.where(better.unsqueeze(-1), multiplier, kept),
            torch.where(better.unsqueeze(-1), found, x),
        )
        # Where a ball is not reached its multiplier falls, where it is left it rises; from where M failed, half way back to the best.
        next_ = kept * _norms(x, member).clamp(0.2, 5.0)
        multiplier = torch.where(better.unsqueeze(-1), next_, (multiplier + kept) / 2)
    return kept, x


def lack(Q: Tensor, weight: Tensor) -> Tensor:
    """-> (...): no eigenvalue of Q + Lambda is below minus this. Its Cholesky factor times itself, which has no negative one, is compared
    with it, so nothing needs to be known of how the factor was computed."""
    M = Q.clone()
    M.diagonal(dim1=-2, dim2=-1).add_(weight)
    factor, failed = torch.linalg.cholesky_ex(M)
    lengths = factor.norm(dim=-1)  # |factor| times its transpose is nowhere above their products
    d = Q.shape[-1]
    apart = torch.baddbmm(
        M.reshape(-1, d, d), factor.reshape(-1, d, d), factor.mT.reshape(-1, d, d), beta=-1
    ).reshape(M.shape)
    off = apart.abs().sum(-1) + 8 * gamma(Q.shape[-1] + 4) * (
        lengths * lengths.sum(-1, keepdim=True) + M.abs().sum(-1)
    )
    return torch.where(failed == 0, off.amax(-1), torch.inf)


def _norms(x: Tensor, member: Tensor) -> Tensor:
    """(..., d) -> (..., balls): the length in each ball."""
    return ((x.square() @ member) + torch.finfo(x.dtype).tiny).sqrt()
