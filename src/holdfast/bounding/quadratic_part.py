"""The quadratic part 1/2 v'Q v + v'C r of quadratic models, represented by a recipe.

Statement. Sums and products of the recipe below equal those of the matrices Q and C that it represents, up
to the rounding that `quadratic_algebra` charges.

It is the largest part of a model, and most nodes need only a few sums of it. Affine maps and activations
change it in two ways only: they take linear combinations of stored coefficients, and they add products of
linear parts. So it is represented as

    (Q, C) = sum of matrix . (Q, C) stored before + sum of factor (J_a (x) (J_b, R_b) + J_b (x) (J_a, R_a)),

with (x) the outer product, and computed slab by slab (some rows of Q, which fit in the processor's caches)
whenever sums are needed. Coefficients that several nodes read are stored. In training, slabs are recomputed
for the gradient (checkpointing).

Assumption: all parts belong to one region.

Reference: Griewank, Walther, "Evaluating derivatives", 2nd edition (2008), for checkpointing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from holdfast import time_limit

SLAB_VALUES = {"cpu": 2**20, "cuda": 2**26}  # Number of values that are computed together (chosen by hand).

Change = Callable[[Tensor], Tensor]  # a linear map of the elements, along the axis behind the batch


@dataclass(frozen=True)
class Stored:
    """Computed coefficients."""

    Q: Tensor  # (batch, n, d, d)
    C: Tensor  # (batch, n, d, m)


@dataclass(frozen=True)
class Pair:
    """factor (J_a (x) (J_b, R_b) + J_b (x) (J_a, R_a)), for each element."""

    factor: Tensor  # (batch, n)
    a: tuple[Tensor, Tensor]  # J (batch, n, d), R (batch, n, m)
    b: tuple[Tensor, Tensor]

    def each(self, change: Change) -> "Pair":
        (Ja, Ra), (Jb, Rb) = self.a, self.b
        return Pair(change(self.factor), (change(Ja), change(Ra)), (change(Jb), change(Rb)))


@dataclass(frozen=True)
class CoefficientSums:
    """Sums of absolute coefficients; `quadratic_forms` are the coefficients of v_k^2 / 2 themselves."""

    rows: Tensor  # (batch, n, d) of Q
    cross_rows: Tensor  # (batch, n, d) of C
    cross_columns: Tensor  # (batch, n, m) of C
    squares: Tensor  # (batch, n, d)


# A matrix (batch or 1, n, n before) and the coefficients it combines; or a factor (batch, n) for each
# element; None: the stored coefficients themselves.
Term = tuple[Tensor | None, Stored]


@dataclass(frozen=True, eq=False)
class Curvature:
    """The quadratic parts of n elements over the first d inputs and the first m remainders of a model."""

    terms: tuple[Term, ...] = ()
    pairs: tuple[Pair, ...] = ()

    @property
    def d(self) -> int:
        return max([*(s.Q.shape[-1] for _, s in self.terms), *(p.a[0].shape[-1] for p in self.pairs)])

    @property
    def m(self) -> int:
        return max(
            [
                *(s.C.shape[-1] for _, s in self.terms),
                *(max(p.a[1].shape[-1], p.b[1].shape[-1]) for p in self.pairs),
            ]
        )

    @property
    def inner(self) -> int:
        """The number of products that are added up for one coefficient."""
        return sum(stored.Q.shape[1] for _, stored in self.terms) + 2 * len(self.pairs)

    def times(self, factor: Tensor) -> "Curvature":
        """Multiply each element by factor (batch, n)."""
        terms = tuple((_times(factor, matrix), stored) for matrix, stored in self.terms)
        return Curvature(terms, tuple(replace(p, factor=p.factor * factor) for p in self.pairs))

    def plus(self, other: "Curvature | None") -> "Curvature":
        if other is None:
            return self
        terms = list(self.terms)
        for matrix, stored in other.terms:
            place = next((k for k, (_, mine) in enumerate(terms) if mine is stored), None)
            if place is None:
                terms.append((matrix, stored))
            else:
                terms[place] = (_plus(terms[place][0], matrix, stored), stored)
        return Curvature(tuple(terms), self.pairs + other.pairs)

    def apply_map(self, change: Change) -> "Curvature":
        """Apply a linear map of the elements; with pairs it must only select elements."""
        terms = tuple((change(_matrix(matrix, stored)), stored) for matrix, stored in self.terms)
        return Curvature(terms, tuple(p.each(change) for p in self.pairs))

    def reorder_inputs(self, place: Tensor) -> "Curvature":
        """Extend to more inputs.

        place (more inputs,) holds their indices among the present d inputs, and d for new ones.
        """
        terms = []
        for matrix, stored in self.terms:
            at = place.clamp_max(stored.Q.shape[-1])
            Q = F.pad(stored.Q, (0, 1, 0, 1))[..., at, :][..., at]
            terms.append((matrix, Stored(Q, F.pad(stored.C, (0, 0, 0, 1))[..., at, :])))

        def move_side(side: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return F.pad(side[0], (0, 1))[..., place], side[1]

        return Curvature(
            tuple(terms), tuple(replace(p, a=move_side(p.a), b=move_side(p.b)) for p in self.pairs)
        )

    def store_slabs(self) -> Stored:
        if not self.pairs and len(self.terms) == 1 and self.terms[0][0] is None:
            return self.terms[0][1]
        Q, C = zip(*(self._slab(rows) for rows in self.slabs), strict=True)
        return Stored(torch.cat(Q, 2), torch.cat(C, 2))

    @cached_property
    def sums(self) -> CoefficientSums:
        def kernel(Q: Tensor, C: Tensor, rows: slice) -> tuple[Tensor, ...]:
            squares = Q[..., rows].diagonal(dim1=-2, dim2=-1)
            cross = C.abs()
            return Q.abs().sum(-1), cross.sum(-1), squares, cross.sum(-2)

        rows, cross_rows, squares, columns = self._sum_slabs(kernel)
        return CoefficientSums(rows, cross_rows, columns, squares)

    def along(
        self, v: Tensor, r: Tensor, free: Tensor, open_: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Q v + C r, C'v, and with absolute values |Q| free, |C| open."""

        def kernel(Q: Tensor, C: Tensor, rows: slice) -> tuple[Tensor, ...]:
            size, cross = Q.abs(), C.abs()
            return (
                matvec(Q, v) + matvec(C, r),
                matvec(size, free),
                matvec(cross, open_),
                matvec(C.mT, v[..., rows]),
            )

        gradient, curved, crossed, back = self._sum_slabs(kernel)
        return gradient, back, curved, crossed

    def reduce_slabs(
        self, kernel: Callable[[Tensor, Tensor, slice], tuple[Tensor, ...]]
    ) -> Iterator[tuple[Tensor, ...]]:
        """Apply the kernel to every slab of Q, of C, and the slice of its rows."""
        # Computed before the first slab, which would otherwise differ between its two checkpointed
        # evaluations.
        _ = self._outer if self.pairs else None
        for rows in self.slabs:
            if torch.is_grad_enabled():
                yield checkpoint(
                    lambda k=rows: kernel(*self._slab(k), k), use_reentrant=False, preserve_rng_state=False
                )
            else:
                yield kernel(*self._slab(rows), rows)

    def _sum_slabs(self, kernel: Callable[[Tensor, Tensor, slice], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Collect the kernel's results: all but the last are given for each row of Q; the last is summed."""
        *first, last = zip(*self.reduce_slabs(kernel), strict=True)
        return (*(torch.cat(parts, -1) for parts in first), torch.stack(last).sum(0))

    @property
    def slabs(self) -> list[slice]:
        shapes = [(stored.Q if matrix is None else matrix).shape[1] for matrix, stored in self.terms] or [
            self.pairs[0].factor.shape[1]
        ]
        some = self.terms[0][1].Q if self.terms else self.pairs[0].factor
        step = max(1, SLAB_VALUES[some.device.type] // max(1, len(some) * shapes[0] * (self.d + self.m)))
        return [slice(k, min(k + step, self.d)) for k in range(0, max(1, self.d), step)]

    @cached_property
    def _outer(self) -> tuple[Tensor, Tensor, Tensor]:
        """left (batch, n, d, 2 pairs), right (batch, n, 2 pairs, d) and (batch, n, 2 pairs, m)."""
        d, m = self.d, self.m
        left = torch.stack(
            [p.factor[..., None] * _wide(J, d) for p in self.pairs for J in (p.a[0], p.b[0])], -1
        )
        right = (
            torch.stack([_wide(side[k], width) for p in self.pairs for side in (p.b, p.a)], -2)
            for k, width in ((0, d), (1, m))
        )
        Q, C = right
        return left, Q, C

    def _slab(self, rows: slice) -> tuple[Tensor, Tensor]:
        time_limit.raise_if_expired()
        total: list[Tensor] | None = None
        for matrix, stored in self.terms:
            stop = min(rows.stop, stored.Q.shape[-1])
            if stop <= rows.start and self.d:
                continue
            found = []
            for t, width in ((stored.Q, self.d), (stored.C, self.m)):
                t = t[:, :, rows.start : stop]
                if matrix is None:
                    t = t.clone() if self.pairs else t
                elif matrix.dim() == 2:
                    t = matrix[..., None, None] * t
                else:
                    t = _Combined.apply(matrix, t).unflatten(2, t.shape[2:])  # type: ignore[no-untyped-call]
                found.append(_pad(t, width, rows.stop - rows.start))
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
        if not self.pairs:
            assert total is not None
            return total[0], total[1]
        left, *right = self._outer
        left = left[:, :, rows]
        if total is None:
            return left @ right[0], left @ right[1]
        for t, r in zip(total, right, strict=True):
            t.flatten(0, 1).baddbmm_(left.flatten(0, 1), r.flatten(0, 1))
        return total[0], total[1]


class _Combined(torch.autograd.Function):
    """matrix (batch or 1, n, before) . t (batch, before, k, d), flattened behind n.

    The gradient along the matrix is a long sum of small products, which a GPU computes much faster one row of
    k at a time.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, t: Tensor) -> Tensor:
        ctx.save_for_backward(matrix, t)
        return matrix @ t.flatten(2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        matrix, t = ctx.saved_tensors
        gradient = gradients[0].unflatten(2, t.shape[2:])
        of_matrix = of_t = None
        if ctx.needs_input_grad[0]:
            of_matrix = (gradient.transpose(1, 2) @ t.permute(0, 2, 3, 1)).sum(1)
            of_matrix = of_matrix.sum(0, keepdim=True) if len(matrix) < len(t) else of_matrix
        if ctx.needs_input_grad[1]:
            of_t = (matrix.mT @ gradient.flatten(2)).unflatten(2, t.shape[2:])
        return of_matrix, of_t


def matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _matrix(matrix: Tensor | None, stored: Stored) -> Tensor:
    if matrix is None:
        return torch.eye(stored.Q.shape[1], dtype=stored.Q.dtype, device=stored.Q.device)[None]
    return torch.diag_embed(matrix) if matrix.dim() == 2 else matrix


def _times(factor: Tensor, matrix: Tensor | None) -> Tensor:
    return factor if matrix is None else factor * matrix if matrix.dim() == 2 else factor[..., None] * matrix


def _plus(a: Tensor | None, b: Tensor | None, stored: Stored) -> Tensor:
    if a is not None and b is not None and a.dim() == b.dim():
        return a + b
    return _matrix(a, stored) + _matrix(b, stored)


def _wide(t: Tensor, width: int) -> Tensor:
    return t if t.shape[-1] == width else F.pad(t, (0, width - t.shape[-1]))


def _pad(t: Tensor, width: int, height: int) -> Tensor:
    return (
        t if t.shape[-2:] == (height, width) else F.pad(t, (0, width - t.shape[-1], 0, height - t.shape[-2]))
    )
