"""Affine maps y = J_1 x_1 + ... + J_n x_n + b: forward and transposed products, plain and in absolute values.

Statement. `forward(x)` computes J x + b and `back(L)` computes L J, for coefficients L of y. Every result is
a sum of products in some order: forward of at most `terms` products and b, backward of at most `size`
products. So in float64

    |fl(J x + b) - (J x + b)| <= gamma(terms + 1) (|J| |x| + |b|),   |fl(L J) - L J| <= gamma(size) |L| |J|,

with `forward_absolute(|x|) = |J| |x| + |b|` and `back(|L|, absolute=True) = |L| |J|` (Higham 2002, section
3.1; docs/rounding.md).

Layout. Vectors are flat and lie along one axis, the last by default: values of input k are (..., its size,
...), rows of coefficients of y are (..., size).

Representation. J is private to this module. A map that only moves elements stores their indices, a sum of its
inputs stores nothing, and a small J is stored as a matrix. Any other map is applied forward as a
Jacobian-vector product (jvp) and backward as a vector-Jacobian product (vjp) of its function, which for an
affine function are the same sums.

Assumption: float64, rounded to nearest; docs/rounding.md charges underflow.

Reference: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition 2002, section 3.1.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast.bounding.graph.kernel import Kernel
from holdfast.bounding.graph.matrix_blocks import BlockMatrix, Place, find_place
from holdfast.bounding.graph.node import Node
from holdfast.process_state import cudnn_flags
from holdfast.rounding import length, spectral_norm

Transform = Callable[..., Tensor]
# A map with a kernel is passed backwards window by window if its matrix has at least this many elements, and rows of at
# least this many times as many as a window reads; below, the single product is as fast (chosen by hand).
MIN_KERNEL_MATRIX = 2**18
MIN_KERNEL_SAVING = 4
AT_ONCE = 256  # The number of vectors per jvp call (memory; chosen by hand).


@dataclass(frozen=True, eq=False)
class Affine(Node, ABC):
    """J x + b, as a function of all inputs together."""

    # Whether every element is a copy of an element of some input: nothing is computed, and any element type
    # may pass.
    copies: ClassVar[bool] = False
    sums: ClassVar[bool] = False  # Whether the node is exactly the sum of its inputs.
    small: ClassVar[bool] = True  # Whether many vectors may be pushed forward at once, in any element type.

    shift: Tensor | None  # (size,): b; None if it is zero.
    # (size,): |b|, summed before cancellation, so it may exceed |shift|; None if zero.
    _weight: Tensor | None

    # ---- forwards

    def forward(self, values: Sequence[Tensor], axis: int = -1, *, shift: bool = True) -> Tensor:
        """J values + b, or without b."""
        found = self._linear(values, axis, absolute=False)
        return found if self.shift is None or not shift else found + _along(self.shift, found, axis)

    def forward_absolute(self, values: Sequence[Tensor], axis: int = -1, *, shift: bool = True) -> Tensor:
        """|J| values + |b| for values >= 0 (without |b| if not `shift`): a bound of the sum of absolute
        values in `forward`.
        """
        found = self._linear(values, axis, absolute=True)
        return found if self._weight is None or not shift else found + _along(self._weight, found, axis)

    @abstractmethod
    def part(
        self, k: int, value: Tensor, axis: int = -1, *, absolute: bool = False, support: Tensor | None = None
    ) -> Tensor:
        """J_k value, or |J_k| value: the contribution of input k. support: the indices of nonzero elements of
        the value, if known.
        """

    def _linear(self, values: Sequence[Tensor], axis: int, absolute: bool) -> Tensor:
        total = self.part(0, values[0], axis, absolute=absolute)
        for k, value in enumerate(values[1:], 1):
            total = total + self.part(k, value, axis, absolute=absolute)
        return total

    # ---- back

    @abstractmethod
    def back(
        self, rows: Tensor, only: Sequence[int] | None = None, *, absolute: bool = False
    ) -> list[Tensor]:
        """rows J_k, or rows |J_k|, for all or some inputs: rows . y = sum_k (rows J_k) . x_k + rows . b."""

    def _which(self, only: Sequence[int] | None) -> list[int]:
        return list(range(len(self.inputs)) if only is None else only)

    def back_into(self, rows: Tensor, whole: Tensor) -> None:
        """whole += rows J, in place, for a map with one input."""
        whole += self.back(rows)[0]

    def rows(self, chosen: Tensor) -> list[Tensor] | None:
        """Rows of J as new tensors: indices (...) -> per input (..., its size); None if J is not stored."""
        return None

    # ---- what it is

    @property
    def moves(self) -> bool:
        """Whether it copies elements of a single input."""
        return self.copies and len(self.inputs) == 1

    @property
    def exact_back(self) -> bool:
        """Whether `back` only copies coefficients, so that it does not round."""
        return False

    @property
    def nonnegative(self) -> bool:
        """Whether all elements of J and b are known to be nonnegative."""
        return False

    @property
    def last_axis(self) -> Tensor | None:
        """W (n, K), if the map is x W + b along the last axis of its only input, the same for all vectors;
        otherwise None.
        """
        return None

    @property
    def factor(self) -> float | None:
        """s, if the map is s x + b of its only input x, of any shape; otherwise None."""
        return None

    @property
    def kernel(self) -> Kernel | None:
        """The kernel, if the map is a convolution or pooling of an image (1, channels, height, width);
        otherwise None.
        """
        return None

    @property
    @abstractmethod
    def terms(self) -> int:
        """An upper bound of the number of products in the sum of an element, without b."""

    def norms(self, device: torch.device) -> list[tuple[Tensor, float]]:
        """For each input, upper bounds of the Euclidean lengths of the rows of J_k, (size,), and of its
        spectral norm. For small maps only.
        """
        if device not in self._norms:
            units = (torch.eye(source.size, dtype=torch.float64, device=device) for source in self.inputs)
            # Products with unit vectors are exact.
            columns = [self.part(k, unit) for k, unit in enumerate(units)]
            self._norms[device] = [(length(column, 0), spectral_norm(column)) for column in columns]
        return self._norms[device]

    @cached_property
    def _norms(self) -> dict[torch.device, list[tuple[Tensor, float]]]:
        return {}

    # ---- two maps as one

    def after(self, inner: "Affine") -> "Affine | None":
        """This map composed with `inner`, its only input, as one map; None if that is unknown or would have
        to be rounded.
        """
        return None

    def _select(self, which: Tensor, by: Node) -> "Affine | None":
        """Selected elements of this map, for the node `by` that selects them. Inputs that none of them reads
        are dropped.
        """
        return None

    def _shift(self, by: "Affine") -> "Affine | None":
        """This map followed by the shift of `by`."""
        return None


@dataclass(frozen=True, eq=False)
class _Copy(Affine):
    """Elements of the inputs, in another order."""

    copies = True
    _origin: Tensor  # (size,): the index of each element in the concatenation of all inputs.

    @cached_property
    def _places(self) -> list[tuple[Place, Place]]:
        """For each input: the indices of this node's elements that copy it, and of the elements they copy."""
        found, begin = [], 0
        for source in self.inputs:
            mine = (self._origin >= begin) & (self._origin < begin + source.size)
            places = mine.nonzero().flatten()
            found.append((find_place(places), find_place(self._origin[places] - begin)))
            begin += source.size
        return found

    def _linear(self, values: Sequence[Tensor], axis: int, absolute: bool) -> Tensor:
        if len(values) == 1:
            return _take_along(values[0], self._places[0][1], axis)
        return torch.cat(list(values), axis).index_select(axis, self._origin)

    def part(
        self, k: int, value: Tensor, axis: int = -1, *, absolute: bool = False, support: Tensor | None = None
    ) -> Tensor:
        places, elements = self._places[k]
        taken = _take_along(value, elements, axis)
        if len(self.inputs) == 1:
            return taken
        shape = list(value.shape)
        shape[axis] = self.size
        return value.new_zeros(shape).index_copy(axis, _numbers(places, value.device), taken)

    def back(
        self, rows: Tensor, only: Sequence[int] | None = None, *, absolute: bool = False
    ) -> list[Tensor]:
        return [self._back(rows, k) for k in self._which(only)]

    def _back(self, rows: Tensor, k: int) -> Tensor:
        places, elements = self._places[k]
        taken = rows if len(self.inputs) == 1 else _take_along(rows, places, -1)
        if isinstance(elements, slice) and elements == slice(0, self.inputs[k].size):
            return taken
        whole = rows.new_zeros((*rows.shape[:-1], self.inputs[k].size))
        if isinstance(elements, slice) or self.exact_back:
            whole[..., elements] = taken
            return whole
        return whole.index_add(-1, elements, taken)

    def back_into(self, rows: Tensor, whole: Tensor) -> None:
        ((_, elements),) = self._places
        if isinstance(elements, slice):
            whole[..., elements].add_(rows)
        else:
            whole.index_add_(-1, elements, rows)

    @cached_property
    def exact_back(self) -> bool:
        # Coefficients of an element that is read twice are added.
        return len(self._origin.unique()) == len(self._origin)

    @property
    def terms(self) -> int:
        return 1

    def after(self, inner: Affine) -> Affine | None:
        return inner._select(self._origin, self) if len(self.inputs) == 1 else None

    def _select(self, which: Tensor, by: Node) -> Affine:
        origin, inputs, begin, end = self._origin[which], [], 0, 0
        parts = origin.clone()
        for source in self.inputs:
            mine = (origin >= begin) & (origin < begin + source.size)
            if bool(mine.any()):
                parts[mine] += end - begin
                inputs.append(source)
                end += source.size
            begin += source.size
        return _Copy(by.place, by.name, tuple(inputs), by.shape, None, None, parts)


@dataclass(frozen=True, eq=False)
class _Sum(Affine):
    """The sum of the inputs."""

    sums = True

    def part(
        self, k: int, value: Tensor, axis: int = -1, *, absolute: bool = False, support: Tensor | None = None
    ) -> Tensor:
        return value

    def back(
        self, rows: Tensor, only: Sequence[int] | None = None, *, absolute: bool = False
    ) -> list[Tensor]:
        return [rows for _ in self._which(only)]

    @property
    def exact_back(self) -> bool:
        return True

    @property
    def terms(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class _Matrix(Affine):
    """One matrix per input."""

    _matrices: tuple[Tensor, ...]  # (size, size of the input) each
    _kernel: Kernel | None = None
    _last_axis: Tensor | None = None

    @property
    def kernel(self) -> Kernel | None:
        return self._kernel

    @property
    def last_axis(self) -> Tensor | None:
        return self._last_axis

    @cached_property
    def nonnegative(self) -> bool:
        parts = self._matrices if self.shift is None else (*self._matrices, self.shift)
        return all(bool((part >= 0).all()) for part in parts)

    @cached_property
    def _kept(self) -> dict[tuple[bool, torch.dtype], tuple[Tensor, ...]]:
        return {(False, torch.float64): self._matrices}

    def _as(self, absolute: bool, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The matrices or their absolute values in some element type, computed on first use."""
        if (absolute, dtype) not in self._kept:
            self._kept[absolute, dtype] = tuple(
                (m.abs() if absolute else m).to(dtype) for m in self._matrices
            )
        return self._kept[absolute, dtype]

    def part(
        self, k: int, value: Tensor, axis: int = -1, *, absolute: bool = False, support: Tensor | None = None
    ) -> Tensor:
        matrix = self._as(absolute, value.dtype)[k]
        if support is not None and 4 * len(support) <= 3 * matrix.shape[1]:
            value, matrix = value.index_select(axis, support), matrix[:, support]
        return _times(matrix, value, axis)

    def back(
        self, rows: Tensor, only: Sequence[int] | None = None, *, absolute: bool = False
    ) -> list[Tensor]:
        if self._kernel_is_cheaper:
            assert self._kernel is not None
            return [_back_by_kernel(self._kernel, self, k, rows, absolute) for k in self._which(only)]
        found = list[Tensor]()
        for k in self._which(only):
            blocks = self._blocks[k]
            found.append(
                rows @ self._as(absolute, rows.dtype)[k]
                if blocks is None
                else blocks.back(rows, absolute=absolute)
            )
        return found

    @cached_property
    def _blocks(self) -> list[BlockMatrix | None]:
        return [BlockMatrix.of(matrix) for matrix in self._matrices]

    @cached_property
    def _kernel_is_cheaper(self) -> bool:
        """Whether products with the windows of the kernel save most of the products with the matrix."""
        if self._kernel is None or len(self._matrices) > 1 or self._matrices[0].numel() < MIN_KERNEL_MATRIX:
            return False
        weight = self._kernel.weight
        read = math.prod(weight.shape[:2]) * (weight.shape[3] if weight.dim() == 4 else 1)
        return self._matrices[0].shape[1] >= MIN_KERNEL_SAVING * read

    def rows(self, chosen: Tensor) -> list[Tensor] | None:
        return [m[chosen] for m in self._matrices]

    @cached_property
    def factor(self) -> float | None:
        matrix = self._matrices[0]
        if len(self._matrices) > 1 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
            return None
        first = matrix[0, 0]
        alone = int((matrix != 0).sum()) == len(matrix) and bool((matrix.diagonal() == first).all())
        return float(first) if alone else None

    @cached_property
    def terms(self) -> int:
        return int(sum((m != 0).sum(1) for m in self._matrices).max())  # type: ignore[union-attr]

    def after(self, inner: Affine) -> Affine | None:
        return inner._shift(self) if self.factor == 1 else None

    def _select(self, which: Tensor, by: Node) -> Affine:
        matrices = [m[which] for m in self._matrices]
        read = [k for k, m in enumerate(matrices) if bool(m.any())]
        shift, weight = (None if b is None else b[which] for b in (self.shift, self._weight))
        inputs, kept = tuple(self.inputs[k] for k in read), tuple(matrices[k] for k in read)
        return _Matrix(by.place, by.name, inputs, by.shape, shift, weight, kept)

    def _shift(self, by: Affine) -> Affine | None:
        if self._weight is not None:
            return None  # Adding two shifts would round.
        same = by.shape == self.shape
        return replace(
            self,
            name=by.name,
            shape=by.shape,
            shift=by.shift,
            _weight=by._weight,
            _kernel=self._kernel if same else None,
            _last_axis=self._last_axis if same else None,
        )


def _back_by_kernel(kernel: Kernel, node: Affine, k: int, rows: Tensor, absolute: bool) -> Tensor:
    """(..., size) -> (..., size of input k): rows J, or rows |J|, window by window."""
    used = replace(kernel, weight=kernel.weight.abs()) if absolute else kernel
    image = rows.reshape(*rows.shape[:-1], *node.shape[1:])
    return used.back_whole(image, node.inputs[k].shape[2:]).flatten(-3)


@dataclass(frozen=True, eq=False)
class _Function(Affine):
    """A function of one point, which keeps the batch axis that operators expect at size one, and its
    magnitude |J| m + |b| for m >= 0.
    """

    small = False
    _function: Transform
    _magnitude: Transform
    _kernel: Kernel | None = None
    _last_axis: Tensor | None = None

    @property
    def kernel(self) -> Kernel | None:
        return self._kernel

    @property
    def last_axis(self) -> Tensor | None:
        return self._last_axis

    def _at(self, absolute: bool, device: torch.device) -> tuple[Transform, list[Tensor]]:
        """The function and the point at which to differentiate it: a magnitude need only be affine for
        positive arguments.
        """
        function, height = (self._magnitude, 1.0) if absolute else (self._function, 0.0)
        return function, [
            torch.full(source.shape, height, dtype=torch.float64, device=device) for source in self.inputs
        ]

    def _linear(self, values: Sequence[Tensor], axis: int, absolute: bool) -> Tensor:
        return self._push_forward(self._which(None), values, axis, absolute)

    def part(
        self, k: int, value: Tensor, axis: int = -1, *, absolute: bool = False, support: Tensor | None = None
    ) -> Tensor:
        return self._push_forward([k], [value], axis, absolute)

    def _push_forward(self, which: list[int], values: Sequence[Tensor], axis: int, absolute: bool) -> Tensor:
        """The directional derivative along these inputs, which for an affine function is J x without b."""
        function, at = self._at(absolute, values[0].device)
        flat = [v.movedim(axis, -1).double() for v in values]  # The function's constants are float64.
        lead = flat[0].shape[:-1]
        if 0 in lead:
            return values[0].new_zeros((*lead, self.size)).movedim(-1, axis)

        def one(*tangents: Tensor) -> Tensor:
            found: Any = torch.func.jvp(_of(function, at, which), tuple(at[k] for k in which), tangents)
            return found[1].flatten()  # type: ignore[no-any-return]

        with cudnn_flags(enabled=False):
            made = torch.func.vmap(one, chunk_size=AT_ONCE)(
                *(v.reshape(-1, *self.inputs[k].shape) for k, v in zip(which, flat, strict=True))
            )
        return made.reshape(*lead, self.size).movedim(-1, axis).to(values[0].dtype)

    def back(
        self, rows: Tensor, only: Sequence[int] | None = None, *, absolute: bool = False
    ) -> list[Tensor]:
        which = self._which(only)
        if self._kernel is not None:
            return [_back_by_kernel(self._kernel, self, k, rows, absolute) for k in which]
        kind, rows = rows.dtype, rows.double()  # The function's constants are float64.
        function, at = self._at(absolute, rows.device)
        # Without cuDNN a convolution is a plain matrix product, to which the rounding bound applies.
        with cudnn_flags(enabled=False):
            _, pulled = torch.func.vjp(_of(function, at, which), *(at[k] for k in which))  # type: ignore[misc]
            found = torch.func.vmap(pulled)(rows.reshape(-1, *self.shape))
        return [
            part.reshape(*rows.shape[:-1], self.inputs[k].size).to(kind)
            for k, part in zip(which, found, strict=True)
        ]

    @property
    def terms(self) -> int:
        return sum(source.size for source in self.inputs)


# ---- making them


@dataclass(frozen=True, eq=False)
class MapFunction:
    """The function *inputs -> J inputs + b of a map.

    Attributes:
        apply: the function.
        magnitude: magnitude(*m) = |J| m + |b| for m >= 0.
        kernel: J, if the map is a convolution or pooling of an image.
        last_axis: W, if the map is x W + b along the last axis.
    """

    apply: Transform
    magnitude: Transform
    kernel: Kernel | None = None
    last_axis: Tensor | None = None


def make_map(
    place: int, name: str, inputs: Sequence[Node], function: MapFunction, device: torch.device, keep: int
) -> Affine:
    """The map that a function of its inputs computes.

    Matrices of at most `keep` elements are computed, and stored unless the map is a copy or a sum.
    """
    zeros = [torch.zeros(n.shape, dtype=torch.float64, device=device) for n in inputs]
    offset, pull_back = _differentiate(function.apply, zeros)
    weight = function.magnitude(*zeros)
    assert bool((weight * (1 + 1e-12) >= offset.abs()).all()), f"{name}: the magnitude is below the offset"
    shift, heavy = (b.flatten() if bool(b.any()) else None for b in (offset, weight))
    first = place, name, tuple(inputs), tuple(offset.shape), shift, heavy
    size, kernel = offset.numel(), function.kernel
    if kernel is not None:
        # `equivalence_check` compares the function with the model; the kernel must be the function's
        # derivative.
        row = torch.randn(offset.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
            device
        )
        pulled = tuple(part[0] for part in pull_back(row[None]))
        kernel = kernel if kernel.is_derivative(pulled, row, inputs[0].shape) else None
    if size * max(n.size for n in inputs) > keep:
        return _Function(*first, function.apply, function.magnitude, kernel, function.last_axis)
    unit = torch.eye(size, dtype=torch.float64, device=device).reshape(size, *offset.shape)
    matrices = tuple(m.reshape(size, -1) for m in pull_back(unit))
    if shift is None and len(matrices) == 1 and _moves(matrices[0]):
        return _Copy(*first, matrices[0].argmax(1))
    if shift is None and len(matrices) > 1 and all(_is_one(m) for m in matrices):
        return _Sum(*first)
    return _Matrix(*first, matrices, kernel, function.last_axis)


def _differentiate(
    function: Transform, at: Sequence[Tensor]
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
    """The function's value, and rows (n, *shape) -> the rows times its derivative by each argument (n, *shape).

    Like torch.func.vjp, which imports torch's compiler first; that takes a second. Row i is the gradient of
    rows[i] . function(copy i of the arguments), so one sum over all copies has all of them as its gradient.
    """
    with torch.no_grad():
        value = function(*at)

    def pull_back(rows: Tensor) -> tuple[Tensor, ...]:
        points = [point.expand(len(rows), *point.shape).clone().requires_grad_() for point in at]
        try:
            with torch.enable_grad():
                total = (torch.func.vmap(function)(*points) * rows).sum()
        except Exception:  # an operator that torch cannot map over copies
            _, back = torch.func.vjp(function, *at)  # type: ignore[misc]
            return tuple(torch.func.vmap(back)(rows))
        if not total.requires_grad:
            return tuple(map(torch.zeros_like, points))
        found = torch.autograd.grad(total, points, allow_unused=True)
        return tuple(
            torch.zeros_like(point) if part is None else part
            for part, point in zip(found, points, strict=True)
        )

    return value, pull_back


def make_matrix(
    place: int,
    name: str,
    inputs: Sequence[Node],
    matrices: Sequence[Tensor],
    shape: Sequence[int],
    shift: Tensor | None,
) -> Affine:
    """The map sum of matrices[k] inputs[k], plus the shift."""
    shift = shift if shift is not None and bool(shift.any()) else None
    weight = None if shift is None else shift.abs()
    return _Matrix(place, name, tuple(inputs), tuple(shape), shift, weight, tuple(matrices))


def matrices_of(node: Node) -> tuple[Tensor, ...] | None:
    """One matrix (size, size of the input) for each input; None for a convolution, and if none is stored."""
    return node._matrices if isinstance(node, _Matrix) and node.kernel is None else None


def make_copy(place: int, name: str, inputs: Sequence[Node], shape: Sequence[int], origin: Tensor) -> Affine:
    """Copies of elements of the inputs: origin (size,) holds the index of each in the concatenation of all
    inputs.
    """
    return _Copy(place, name, tuple(inputs), tuple(shape), None, None, origin)


def make_sum(place: int, name: str, inputs: Sequence[Node]) -> Affine:
    """The sum of different nodes of one shape."""
    return _Sum(place, name, tuple(inputs), inputs[0].shape, None, None)


def exact_nodes(nodes: list[Node]) -> set[Node]:
    """The nodes through which coefficients pass backwards without rounding.

    Copies and sums only copy coefficients. They round where two copies meet and are added. They do not meet
    if the source has no other reader, or if its readers copy different elements of it.
    """
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for source in node.inputs:
            readers.setdefault(source, []).append(node)

    def apart(source: Node) -> bool:
        moves = [r._origin for r in readers[source] if isinstance(r, _Copy) and r.moves]
        taken = torch.cat(moves) if moves else torch.zeros(0)
        return len(readers[source]) == 1 or (
            len(moves) == len(readers[source]) and len(taken.unique()) == len(taken)
        )

    return {
        node
        for node in nodes
        if isinstance(node, Affine) and node.exact_back and all(apart(source) for source in node.inputs)
    }


def _moves(matrix: Tensor) -> bool:
    """Whether every row of the matrix selects one element."""
    return bool(((matrix == 0) | (matrix == 1)).all()) and bool((matrix.sum(1) == 1).all())


def _is_one(matrix: Tensor) -> bool:
    """Whether it is the identity matrix."""
    return matrix.shape[0] == matrix.shape[1] and bool(
        (matrix == torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)).all()
    )


# ---- vectors along an axis


def _along(vector: Tensor, like: Tensor, axis: int) -> Tensor:
    """(n,) as a tensor that broadcasts along this axis."""
    return vector.to(like.dtype).reshape([-1 if k == axis % like.dim() else 1 for k in range(like.dim())])


def _times(matrix: Tensor, value: Tensor, axis: int) -> Tensor:
    """matrix times the vectors along this axis."""
    axis %= value.dim()
    if axis == value.dim() - 1:
        return value @ matrix.t()
    made = matrix @ value.flatten(axis + 1)
    return made.reshape(*value.shape[:axis], matrix.shape[0], *value.shape[axis + 1 :])


def _numbers(place: Place, device: torch.device) -> Tensor:
    """Indices as a tensor."""
    return torch.arange(place.start, place.stop, device=device) if isinstance(place, slice) else place


def _take_along(value: Tensor, place: Place, axis: int) -> Tensor:
    """The elements with these indices along an axis."""
    return (
        value.narrow(axis, place.start, place.stop - place.start)
        if isinstance(place, slice)
        else value.index_select(axis, place)
    )


def _of(function: Transform, at: list[Tensor], which: list[int]) -> Transform:
    """The function of selected inputs, the others fixed."""

    def alone(*some: Tensor) -> Tensor:
        values = list(at)
        for k, value in zip(which, some, strict=True):
            values[k] = value
        return function(*values)

    return alone
