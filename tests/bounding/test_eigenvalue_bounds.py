"""Quadratic forms over boxes and balls by eigenvalues: nothing inside lies outside of what they say."""

import pytest
import torch
from torch import Tensor

from holdfast.bounding import eigenvalue_bounds
from holdfast.bounding.quadratic_algebra import VariableBall, _narrow_by_eigenvalues
from holdfast.bounding.quadratic_part import Curvature, Stored


def forms(seed: int, d: int, m: int, kind: str) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    Q, C = (
        torch.randn(6, d, d, generator=chance).double(),
        torch.randn(6, d, m, generator=chance).double() * 0.3,
    )
    if kind == "low rank":
        J = torch.randn(6, d, 2, generator=chance).double()
        Q = J @ torch.diag_embed(torch.randn(6, 2, generator=chance).double()) @ J.mT
    if kind == "uneven":
        size = torch.exp(4 * torch.randn(6, d, generator=chance)).double()
        Q, C = Q * size[:, :, None] * size[:, None], C * size[:, :, None]
    if kind == "one sign":
        Q, C = Q.abs(), C.abs()
    return Q, C  # Q need not be symmetric


def worst(Q: Tensor, C: Tensor, groups: Tensor, sign: float) -> Tensor:
    """-> (n,): the largest sign * (1/2 v'Q v + v'C r) that ascent and random points find."""
    n, d, m = C.shape
    chance = torch.Generator().manual_seed(9)
    member = torch.nn.functional.one_hot(groups).double()
    v, r = (
        torch.randn(200, n, d, generator=chance).double(),
        torch.randn(200, n, m, generator=chance).double().sign(),
    )
    best = torch.full((n,), -torch.inf).double()
    sym = sign * (Q + Q.mT) / 2
    scale = torch.linalg.eigvalsh(sym).abs().amax(-1)[:, None]
    for _ in range(60):
        v = v / ((v.square() @ member).sqrt() @ member.T).clamp_min(1e-300)  # to the surface of every group
        r = torch.einsum("nij,kni->knj", sign * C, v).sign()
        value = torch.einsum("kni,nij,knj->kn", v, sym, v) / 2 + torch.einsum(
            "kni,nij,knj->kn", v, sign * C, r
        )
        best = torch.maximum(best, value.amax(0))
        v = v * scale + torch.einsum("nij,knj->kni", sym, v) + torch.einsum("nij,knj->kni", sign * C, r)
    return best


@pytest.mark.parametrize("kind", ["mixed", "low rank", "uneven", "one sign"])
@pytest.mark.parametrize("shared", [False, True], ids=["box", "balls"])
def test_no_point_lies_outside(kind: str, shared: bool) -> None:
    Q, C = forms(3, 12, 7, kind)
    groups = torch.arange(12) // 4 if shared else torch.arange(12)
    low, high = eigenvalue_bounds.bound_quadratic_form(Q, C, groups)
    up, down = worst(Q, C, groups, 1.0), worst(Q, C, groups, -1.0)
    assert bool((up <= high).all())
    assert bool((-down >= low).all())
    if kind == "mixed" and shared:
        assert float(((high - low) / (up + down)).max()) < 1.6


def test_mixed_signs_cost_less_than_their_sizes_together() -> None:
    Q, C = forms(0, 64, 200, "mixed")
    low, high = eigenvalue_bounds.bound_quadratic_form(Q, C, torch.arange(64))
    together = Q.abs().sum((-1, -2)) / 2 + C.abs().sum((-1, -2))
    assert float(((high - low) / 2 / together).max()) < 0.5


def test_weights_follow_the_form() -> None:
    """Two of every eight variables hardly matter from above, since their squares count downwards: lengths of rows alone do not see that."""
    Q, C = forms(7, 32, 40, "mixed")
    Q = (Q + Q.mT) / 8
    Q[:, ::4, ::4] -= 8 * torch.eye(8).double()
    _, high = eigenvalue_bounds.bound_quadratic_form(Q, C, torch.arange(32))
    rows, columns = Q.square().sum(-1).sqrt(), 3 * C.square().sum(-2).sqrt()
    form = Q + (C / columns[:, None]) @ C.mT
    plain = (
        torch.linalg.eigvalsh(form / rows[:, :, None].sqrt() / rows[:, None].sqrt())[:, -1] * rows.sum(-1)
        + columns.sum(-1)
    ) / 2
    assert float((high / plain).max()) < 0.9


def test_columns_that_are_forgotten_are_paid_for() -> None:
    Q, C = forms(8, 10, 9, "mixed")
    C[..., :4] *= 1e-3
    low, high = eigenvalue_bounds.bound_quadratic_form(1e-6 * Q, C, torch.arange(10))
    assert bool((worst(1e-6 * Q, C, torch.arange(10), 1.0) <= high).all())
    only = C.clone()
    only[..., 4:] = 0  # and nothing else: they are all that there is
    low, high = eigenvalue_bounds.bound_quadratic_form(0 * Q, only, torch.arange(10))
    assert bool((worst(1e-12 * Q, only, torch.arange(10), 1.0) <= high + 1e-9).all())
    assert bool((low < 0).all())


def test_what_is_no_number_says_nothing_and_spoils_nothing() -> None:
    Q, C = forms(1, 9, 3, "mixed")
    alone = eigenvalue_bounds.bound_quadratic_form(Q, C, torch.arange(9))
    Q[2, 1, 1], C[4, 0, 0] = torch.nan, torch.inf
    low, high = eigenvalue_bounds.bound_quadratic_form(Q, C, torch.arange(9))
    assert low.isinf().tolist() == high.isinf().tolist() == [False, False, True, False, True, False]
    kept = low.isfinite()
    torch.testing.assert_close(low[kept], alone[0][kept])


@pytest.mark.parametrize("size", [0.0, 1e-200, 1e-120, 1e120])
@pytest.mark.parametrize("m", [0, 2])
def test_sizes_at_the_ends_of_float64_are_no_trouble(size: float, m: int) -> None:
    """Nothing may be found there; but what is said is true."""
    low, high = eigenvalue_bounds.bound_quadratic_form(
        torch.full((1, 9, 9), size, dtype=torch.float64),
        torch.full((1, 9, m), size, dtype=torch.float64),
        torch.arange(9),
    )
    assert float(high) >= size * (81 / 2 + 9 * m)
    assert float(low) <= -size * m  # at sum of v = -m


def test_models_are_held_to_them_only_where_the_ball_lies_in_that_of_norm_two() -> None:
    Q, C = (part[None] for part in forms(5, 16, 4, "mixed"))
    bent = Curvature(((None, Stored(Q, C)),))
    inputs = torch.arange(16)
    for q, held in ((1.0, True), (2.0, True), (1.5, False), (torch.inf, False)):
        ball = VariableBall(q, torch.zeros(16, dtype=torch.long))
        middle, width = ball.bound_quadratic(bent, inputs)
        loose = bent.sums.rows.sum(-1) / 2 + bent.sums.cross_rows.sum(-1)
        assert bool((width < loose).all())
        if q == 1.5:  # the norm 3: a diagonal direction reaches beyond the ball of norm 2
            v = torch.ones(16).double() * 16 ** (-1 / 3)
            value = (v @ Q[0] @ v) / 2 + (v @ C[0]).abs().sum(-1)
            assert bool((value <= middle[0] + width[0]).all())
        if held:
            groups = inputs if q == 1 else ball.groups
            inner, narrow = _narrow_by_eigenvalues(bent, torch.zeros_like(width), loose, groups)
            assert bool((width <= narrow * (1 + 1e-9) + 1e-12).all() or q == 1)
            assert bool((narrow < loose).all())
            assert inner.shape == width.shape
