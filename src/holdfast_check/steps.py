"""A network as a list of steps on flat vectors: affine maps, and functions of one or two numbers applied
element by element.

Statement. y_0 is the input, and y_k = sum over parts of W y_j + b, or y_k = f(y_i, y_j) element by element,
with i, j < k.

Step 0 is the input. A `StepView` is a value of the network's graph: selected elements of a step, arranged in
a shape, where index -1 represents a zero. Reshaping, transposing, slicing or padding a value changes only its
view, so nothing is computed or rounded there.

Assumptions: weights are finite; every step is bounded with rounding included where it is used (`planes`).

Reference: the ONNX standard, for what each operator computes (`graph`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Union

import numpy as np

from holdfast_check.arithmetic import LARGEST, Array
from holdfast_check.convex import ConvexFunction
from holdfast_check.errors import Rejected
from holdfast_check.functions import RELU, PiecewiseLinear, ProductFunction

ElementFunction = Union[ProductFunction, PiecewiseLinear, ConvexFunction]


@dataclass(frozen=True, eq=False)
class StepView:
    """Selected elements of a step, arranged in a shape."""

    step: int
    index: Array  # Indices of elements of the step in the value's shape; -1: a zero.

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.index.shape)


@dataclass(frozen=True, eq=False)
class StepTerm:
    """The contribution of one step to another: y[place] += x[take] W.

    W is None (the identity), a vector (element-wise product) or a matrix, by which every run of `len(W)`
    taken elements is multiplied. No index occurs twice in `place`.
    """

    source: int
    take: Array
    weight: Array | None
    place: Array | None  # None: all elements, in order.

    @cached_property
    def turns(self) -> list[Array]:
        """Positions of `take` in groups without repeated elements, so that each group can be added by one
        indexed assignment.
        """
        order = np.argsort(self.take, kind="stable")
        ordered = self.take[order]
        first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        starts = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order)) - starts
        rank[self.take < 0] = 0  # Index -1 represents a zero, whose coefficients are discarded.
        return [np.flatnonzero(rank == turn) for turn in range(int(rank.max()) + 1)]

    @cached_property
    def whole(self) -> bool:
        """Whether the term reads all elements in order."""
        return bool((self.take == np.arange(len(self.take))).all())

    @cached_property
    def terms(self) -> int:
        """An upper bound of the length of any sum that this term enters, in the forward or the backward
        direction.
        """
        return (
            len(self.turns) * (1 if self.weight is None or self.weight.ndim == 1 else sum(self.weight.shape))
            + 8
        )

    def take_elements(self, x: Array) -> Array:
        """(batch, elements of the source) -> (batch, elements taken)."""
        if self.whole and x.shape[-1] == len(self.take):
            return x
        return np.concatenate([x, np.zeros((*x.shape[:-1], 1))], axis=-1)[..., self.take]

    def add_to(self, y: Array, x: Array, absolute: bool = False) -> None:
        """Add this term, applied to x (batch, elements of the source), to y in place; `absolute` uses |W|."""
        z, weight = self.take_elements(x), self.weight
        if weight is not None:
            weight = np.abs(weight) if absolute else weight
            z = (
                z * weight
                if weight.ndim == 1
                else (z.reshape(len(z), -1, len(weight)) @ weight).reshape(len(z), -1)
            )
        y[:, slice(None) if self.place is None else self.place] += z

    def back(self, rows: Array, size: int) -> Array:
        """Apply the transpose: coefficients (batch, rows, elements of y) -> (batch, rows, size), coefficients
        of the source's elements.
        """
        z = rows if self.place is None else rows[..., self.place]
        if self.weight is not None and self.weight.ndim == 1:
            z = z * self.weight
        elif self.weight is not None:
            z = (z.reshape(*z.shape[:2], -1, self.weight.shape[1]) @ self.weight.T).reshape(*z.shape[:2], -1)
        if self.whole and size == len(self.take):
            return z
        x = np.zeros((*z.shape[:2], size + 1))
        for turn in self.turns:
            x[..., self.take[turn]] += z[..., turn]
        return x[..., :-1]


@dataclass(frozen=True, eq=False)
class AffineStep:
    """y = sum of the terms + offset. Every weight is within 16 units roundoff of the true weight; the offset
    is within 16 units roundoff of `offset_size`, a bound of the sum of absolute values that the offset was
    computed from.
    """

    name: str
    size: int
    parts: tuple[StepTerm, ...]
    offset: Array
    offset_size: Array


@dataclass(frozen=True, eq=False)
class FunctionStep:
    """y = function(pre-activations), element by element; its terms only select elements."""

    name: str
    size: int
    parts: tuple[StepTerm, ...]
    function: ElementFunction
    offset: Array = field(default_factory=lambda: np.zeros(0))


Step = Union[AffineStep, FunctionStep]


@dataclass
class Program:
    """A network. steps[0] is the input: an affine step without terms."""

    input_shape: tuple[int, ...]
    steps: list[Step]
    output: StepView
    ranked: bool = False  # A final softmax was removed: only the order of the outputs is that of the model.

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return int(np.prod(self.input_shape))

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return int(self.output.index.size)

    def value(self, x: Array) -> Array:
        """Evaluate the network in plain float64: (batch, *input_shape) -> (batch, outputs). For comparison
        with other programs; no proof depends on it.
        """
        return StepTerm(self.output.step, self.output.index.ravel(), None, None).take_elements(
            self.values(x)[self.output.step]
        )

    def values(self, x: Array) -> list[Array]:
        """The values of every step, in plain float64: a list of (batch, elements)."""
        known = [x.reshape(len(x), -1).astype(np.float64)]
        for step in self.steps[1:]:
            if isinstance(step, AffineStep):
                y = np.tile(step.offset, (len(x), 1))
                for part in step.parts:
                    part.add_to(y, known[part.source])
            else:
                y = step.function.value(*(part.take_elements(known[part.source]) for part in step.parts))
            known.append(y)
        return known


class Builder:
    """Appends the steps that represent the operators of a graph."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        size = int(np.prod(shape))
        self.steps: list[Step] = [AffineStep("input", size, (), np.zeros(size), np.zeros(size))]
        self.input = StepView(0, np.arange(size).reshape(shape))
        # For steps that concatenate views: the views and the positions of their elements.
        self.origins: dict[int, list[tuple[StepView, Array]]] = {}

    def affine(
        self,
        name: str,
        shape: tuple[int, ...],
        parts: list[tuple[StepView, Array | None, Array | None]],
        offset: Array | float = 0.0,
        offset_size: Array | None = None,
    ) -> StepView:
        """Append an affine step. `parts` holds (view, weight, positions in the result) of every term."""
        size = int(np.prod(shape))
        shift = np.broadcast_to(np.asarray(offset, dtype=np.float64), shape).ravel()
        sizes = np.abs(shift) if offset_size is None else np.broadcast_to(offset_size, shape).ravel()
        plain = [(self.plain(view), weight, place) for view, weight, place in parts]
        made = tuple(StepTerm(view.step, view.index.ravel(), weight, place) for view, weight, place in plain)
        for numbers in (sizes, *(part.weight for part in made if part.weight is not None)):
            if not bool((np.abs(numbers) < LARGEST).all()):
                raise Rejected(f"{name}: a weight is not finite, or larger than {LARGEST:g}")
        self.steps.append(AffineStep(name, size, made, shift, sizes))
        return StepView(len(self.steps) - 1, np.arange(size).reshape(shape))

    def apply_function(self, name: str, function: ElementFunction, *arguments: StepView) -> StepView:
        """Append a function applied element by element to views that broadcast against each other."""
        shape = np.broadcast_shapes(*(view.shape for view in arguments))
        parts = tuple(
            StepTerm(view.step, np.broadcast_to(view.index, shape).ravel(), None, None)
            for view in map(self.plain, arguments)
        )
        self.steps.append(FunctionStep(name, int(np.prod(shape)), parts, function))
        return StepView(len(self.steps) - 1, np.arange(int(np.prod(shape))).reshape(shape))

    def add_scaled(
        self,
        name: str,
        views: list[tuple[StepView, Array | float]],
        offset: Array | float = 0.0,
        size: Array | None = None,
    ) -> StepView:
        """Append the sum of views, each times a constant, broadcast against each other, plus an offset."""
        shape = np.broadcast_shapes(
            *(np.broadcast_shapes(view.shape, np.shape(by)) for view, by in views), np.shape(offset)
        )
        parts: list[tuple[StepView, Array | None, Array | None]] = []
        for view, by in views:
            wide = StepView(view.step, np.broadcast_to(view.index, shape))
            once = np.ndim(by) == 0 and by == 1.0
            parts.append(
                (
                    wide,
                    None if once else np.broadcast_to(np.asarray(by, dtype=np.float64), shape).ravel(),
                    None,
                )
            )
        return self.affine(name, shape, parts, offset, size)

    def concatenate(self, name: str, views: list[StepView], axis: int) -> StepView:
        """Concatenate views along an axis; views of several steps are copied into a new step."""
        if len({view.step for view in views}) == 1:
            return StepView(views[0].step, np.concatenate([view.index for view in views], axis))
        ends = np.cumsum([0, *(view.index.size for view in views)])
        places = np.concatenate(
            [np.arange(a, b).reshape(v.shape) for a, b, v in zip(ends, ends[1:], views)], axis
        )
        where = np.empty(int(ends[-1]), dtype=np.int64)
        where[places.ravel()] = np.arange(int(ends[-1]))
        origins = [(view, where[start:end]) for start, end, view in zip(ends, ends[1:], views)]
        whole = self.affine(name, places.shape, [(view, None, to) for view, to in origins])
        self.origins[whole.step] = origins
        return whole

    def plain(self, view: StepView) -> StepView:
        """The same elements as a view of the step they were copied from, if a concatenation copied all of
        them from one view; readers then do not depend on the others.
        """
        for source, places in self.origins.get(view.step, ()):
            back = np.full(self.steps[view.step].size + 1, -2)
            back[places], back[-1] = source.index.ravel(), -1
            if bool((back[view.index] > -2).all()):
                return self.plain(StepView(source.step, back[view.index]))
        return view

    def larger(self, name: str, a: StepView, b: StepView) -> StepView:
        """max(a, b) = b + relu(a - b)."""
        above = self.apply_function(name, RELU, self.add_scaled(name, [(a, 1.0), (b, -1.0)]))
        return self.add_scaled(name, [(b, 1.0), (above, 1.0)])
