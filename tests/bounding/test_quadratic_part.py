"""The quadratic part as a recipe: slab by slab it is what it would be written out, and so are its gradients."""

import pytest
import torch
from bounds_regions import seeded
from torch import Tensor

from holdfast.bounding import quadratic_part
from holdfast.bounding.quadratic_part import Curvature, Pair, Stored

BATCH, N, BEFORE, D, M = 2, 3, 4, 5, 6


def made(d: int, m: int, n: int, g: torch.Generator) -> Stored:
    Q = torch.randn(BATCH, n, d, d, generator=g, dtype=torch.float64)
    return Stored(Q + Q.mT, torch.randn(BATCH, n, d, m, generator=g, dtype=torch.float64))


def recipe(seed: int = 0) -> Curvature:
    """A matrix of something narrower, a factor of something as wide, something itself, and products."""
    g = seeded(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()

    narrow, wide, same = made(3, 2, BEFORE, g), made(D, M, N, g), made(D, 1, N, g)
    a, b = (draw(BATCH, N, D), draw(BATCH, N, M)), (draw(BATCH, N, D), draw(BATCH, N, M - 1))
    pairs = (Pair(draw(BATCH, N), a, a), Pair(draw(BATCH, N), a, b))
    return Curvature(((draw(1, N, BEFORE), narrow), (draw(BATCH, N), wide), (None, same)), pairs)


def wide(t: Tensor, height: int, width: int) -> Tensor:
    return torch.nn.functional.pad(t, (0, width - t.shape[-1], 0, height - t.shape[-2]))


def dense(bent: Curvature) -> tuple[Tensor, Tensor]:
    """Written out."""
    total = []
    for part, columns in ((0, D), (1, M)):
        found = torch.zeros(BATCH, N, D, columns, dtype=torch.float64)
        for matrix, stored in bent.terms:
            t = wide((stored.Q, stored.C)[part], D, columns)
            if matrix is not None:
                t = (
                    matrix[..., None, None] * t
                    if matrix.dim() == 2
                    else torch.einsum("bij,bjkl->bikl", matrix.expand(BATCH, -1, -1), t)
                )
            found = found + t
        for pair in bent.pairs:
            for left, right in ((pair.a, pair.b), (pair.b, pair.a)):
                outer = left[0][..., :, None] * right[part][..., None, :]
                found = found + pair.factor[..., None, None] * wide(outer, D, columns)
        total.append(found)
    return total[0], total[1]


@pytest.fixture(params=[1, 2**20], ids=["row by row", "at once"], autouse=True)
def slabs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(quadratic_part.SLAB_VALUES, "cpu", request.param)


def test_what_is_stored_is_the_recipe_written_out() -> None:
    bent = recipe()
    stored, (Q, C) = bent.store_slabs(), dense(bent)
    torch.testing.assert_close(stored.Q, Q)
    torch.testing.assert_close(stored.C, C)


def test_recipes_add_up_and_are_scaled_and_mapped() -> None:
    first, second, factor = recipe(0), recipe(1), torch.randn(BATCH, N, dtype=torch.float64)
    both = first.times(factor).plus(second).plus(Curvature(first.terms))
    wanted = (
        factor[..., None, None] * dense(first)[k] + dense(second)[k] + dense(Curvature(first.terms))[k]
        for k in (0, 1)
    )
    for found, value in zip(dense(both), wanted, strict=True):
        torch.testing.assert_close(found, value)
    order = torch.tensor([2, 0])
    moved = first.apply_map(lambda t: t.index_select(1, order)).store_slabs()
    torch.testing.assert_close(moved.Q, dense(first)[0][:, order])


def test_inputs_that_came_in_another_order_are_laid_anew() -> None:
    bent, place = recipe(), torch.tensor([4, 0, D, 2, 1, 3])
    Q = torch.nn.functional.pad(dense(bent)[0], (0, 1, 0, 1))[:, :, place][..., place]
    full = Curvature(((None, bent.store_slabs()),), bent.pairs).reorder_inputs(place).store_slabs()
    outer = Curvature((), bent.pairs)
    alone = torch.nn.functional.pad(outer.store_slabs().Q, (0, 1, 0, 1))[:, :, place][..., place]
    torch.testing.assert_close(full.Q, Q + alone)


def test_sums_and_their_gradients_are_those_of_the_whole() -> None:
    bent = recipe()
    free = [
        t
        for t in (
            bent.terms[0][0],
            bent.terms[1][0],
            bent.pairs[0].factor,
            bent.pairs[0].a[0],
            bent.pairs[1].b[1],
        )
        if t is not None
    ]
    g = seeded(5)
    v, r = (torch.randn(BATCH, N, k, generator=g, dtype=torch.float64) for k in (D, M))
    size, open_ = v.abs(), r.abs()

    def by_slabs() -> list[Tensor]:
        fresh = Curvature(bent.terms, bent.pairs)
        return [*vars(fresh.sums).values(), *fresh.along(v, r, size, open_)]

    def written_out() -> list[Tensor]:
        Q, C = dense(bent)
        first = [Q.abs().sum(-1), C.abs().sum(-1), C.abs().sum(-2), Q.diagonal(dim1=-2, dim2=-1)]
        return [
            *first, (Q @ v[..., None] + C @ r[..., None])[..., 0], (C.mT @ v[..., None])[..., 0],
            (Q.abs() @ size[..., None])[..., 0], (C.abs() @ open_[..., None])[..., 0],
        ]  # fmt: skip

    found, wanted = by_slabs(), written_out()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    weights = [torch.randn(t.shape, generator=g, dtype=torch.float64) for t in wanted]
    slopes = [
        torch.autograd.grad(sum((w * t).sum() for w, t in zip(weights, side, strict=True)), free)
        for side in (found, wanted)
    ]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        for one, other in zip(by_slabs(), wanted, strict=True):
            torch.testing.assert_close(one, other)
