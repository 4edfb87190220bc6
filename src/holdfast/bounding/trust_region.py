"""Lower bounds of quadratic functions over products of Euclidean balls: duals of trust-region problems.

Statement. For any lambda_g >= 0, one for each ball |v_g| <= 1, with M = Q + Lambda, if M has no negative
eigenvalue, then for any x and every v in the balls

    c + J v + 1/2 v'Q v  >=  c - 1/2 sum of lambda_g + J v + 1/2 v'M v
                         >=  c - 1/2 sum of lambda_g - J x + 1/2 x'M x - missed.

With the residual e = J - M x the last two lines differ by 1/2 (v + x)'M (v + x) + e (v + x), so missed = sum
of |e_g| (1 + |x_g|) suffices. The dual is concave in lambda, and its derivative along lambda_g is 1/2
(|x_g|^2 - 1) at the minimiser -x, which guides the search. Any lambda and any x are sound.

Assumption: the variables form Euclidean balls of radius one, or intervals (balls of one variable).

Reference: Conn, Gould, Toint, "Trust-Region Methods" (2000), chapter 7, for one ball.
"""

import torch
from torch import Tensor

from holdfast.derivations import (
    EIGENVALUE_DEFICIT,
    TRUST_REGION_DUAL,
)
from holdfast.rounding import charge

NUM_ITERATIONS = 4  # Iterations of the search for lambda; twelve improve bounds by only 0.02 % more.


def lower_bound_over_balls(c: Tensor, J: Tensor, Q: Tensor, groups: Tensor) -> Tensor:
    """A lower bound (...) of c + J v + 1/2 v'Q v over the balls |v_g| <= 1.

    Args:
        c: (...).
        J: (..., d).
        Q: (..., d, d).
        groups: (d,), the ball of each variable.

    Returns:
        (...), -inf where no multipliers were found. Differentiable in c, J and Q. Rounding is included in
        float64; in float32 the result is an estimate, for training.
    """
    known = J.isfinite().all(-1) & Q.isfinite().all((-1, -2))
    J, Q = torch.where(known[..., None], J, 0), torch.where(known[..., None, None], Q, 0)
    member = torch.nn.functional.one_hot(groups.unique(return_inverse=True)[1]).to(J)  # (d, balls)
    Q = (Q + Q.mT) / 2  # the same function with a symmetric matrix; each entry is rounded once
    with torch.no_grad():
        multiplier, x = _multipliers(J.detach(), Q.detach(), member)
        proves = Q.dtype == torch.float64  # otherwise the bound is an estimate for training
        short = eigenvalue_deficit(Q.detach(), multiplier @ member.mT) if proves else torch.zeros_like(c)
    weight = multiplier @ member.mT
    image = (Q @ x.unsqueeze(-1)).squeeze(-1) + weight * x
    value = c - (J * x).sum(-1) + (image * x).sum(-1) / 2 - multiplier.sum(-1) / 2
    # Sum of the absolute values of all terms: the rounding errors of all sums above are multiples of it.
    # At the optimal lambda and x the derivative of the bound is that of `value` alone (envelope theorem).
    with torch.no_grad():
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
        rounding = charge(total, TRUST_REGION_DUAL, 2 * d) + short * reach.square()
    return torch.where(
        known, torch.nan_to_num(value - missed - rounding, -torch.inf, -torch.inf, -torch.inf), -torch.inf
    )


def _multipliers(J: Tensor, Q: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """lambda (..., balls) >= 0 and x (..., d), approximately optimal."""
    rows = Q.abs().sum(-1)
    # These make M strictly diagonally dominant; the search starts there and decreases them.
    safe = torch.where(member.bool(), rows.unsqueeze(-1), 0).amax(-2)
    multiplier = safe * (1 + 1e-9) + _norms(J, member) + 1e-30
    best = torch.full_like(J[..., 0], -torch.inf)
    kept, x = multiplier, torch.zeros_like(J)
    for _ in range(NUM_ITERATIONS):
        M = Q + torch.diag_embed(multiplier @ member.mT)
        factor, failed = torch.linalg.cholesky_ex(M)
        found = torch.cholesky_solve(J.unsqueeze(-1), factor).squeeze(-1)
        value = -(J * found).sum(-1) / 2 - multiplier.sum(-1) / 2
        better = (failed == 0) & (value > best)
        best = torch.where(better, value, best)
        kept = torch.where(better.unsqueeze(-1), multiplier, kept)
        x = torch.where(better.unsqueeze(-1), found, x)
        # Decrease lambda_g where |x_g| < 1 and increase it where |x_g| > 1; where the Cholesky factorisation
        # of M failed, go half of the way back to the best lambda.
        next_ = kept * _norms(x, member).clamp(0.2, 5.0)
        multiplier = torch.where(better.unsqueeze(-1), next_, (multiplier + kept) / 2)
    return kept, x


def eigenvalue_deficit(Q: Tensor, weight: Tensor) -> Tensor:
    """(...): a number such that no eigenvalue of Q + Lambda is below its negative, Lambda = diag(weight).

    The product of the computed Cholesky factor and its transpose has no negative eigenvalue. Its difference
    to Q + Lambda is bounded by the largest row sum (Gershgorin), so the rounding errors of the factorisation
    itself need no analysis.
    """
    M = Q.clone()
    M.diagonal(dim1=-2, dim2=-1).add_(weight)
    factor, failed = torch.linalg.cholesky_ex(M)
    lengths = factor.norm(dim=-1)  # entries of |factor| |factor|' are at most products of these
    d = Q.shape[-1]
    apart = torch.baddbmm(
        M.reshape(-1, d, d), factor.reshape(-1, d, d), factor.mT.reshape(-1, d, d), beta=-1
    ).reshape(M.shape)
    size = lengths * lengths.sum(-1, keepdim=True) + M.abs().sum(-1)
    off = apart.abs().sum(-1) + charge(size, EIGENVALUE_DEFICIT, d)
    return torch.where(failed == 0, off.amax(-1), torch.inf)


def _norms(x: Tensor, member: Tensor) -> Tensor:
    """(..., d) -> (..., balls): the Euclidean norm in each ball."""
    return ((x.square() @ member) + torch.finfo(x.dtype).tiny).sqrt()
