"""A network as a list of steps on flat vectors: affine maps, and functions of one or two numbers applied element by element.

Step 0 is the input. A `StepView` is a value of the network's graph: some elements of a step, arranged in a shape; -1 stands for a zero.
Reshaping, transposing, slicing or padding a value only changes its view, so nothing is computed and nothing rounded there.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from holdfast_check.arithmetic import LARGEST, Array
from holdfast_check.errors import Rejected
from holdfast_check.functions import RELU, PiecewiseLinear, ProductFunction


@dataclass(frozen=True, eq=False)
class StepView:
    step: int
    index: Array  # of the value's shape: elements of the step, or -1

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.index.shape)


@dataclass(frozen=True, eq=False)
class StepTerm:
    """What one step contributes to another: y[place] += x[take] w, where w is none (one), a vector (element by element) or a matrix that
    each run of `len(w)` taken elements is multiplied with. No place occurs twice."""

    source: int
    take: Array
    weight: Array | None
    place: Array | None  # None: all, in order

    @cached_property
    def turns(self) -> list[Array]:
        """Positions of `take`, sorted into groups in which no element is taken twice, so that a group can be added up at once."""
        order = np.argsort(self.take, kind="stable")
        ordered = self.take[order]
        first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        starts = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order)) - starts
        rank[self.take < 0] = 0  # zeros that nobody reads
        return [np.flatnonzero(rank == turn) for turn in range(int(rank.max()) + 1)]

    @cached_property
    def whole(self) -> bool:
        return bool((self.take == np.arange(len(self.take))).all())

    @cached_property
    def terms(self) -> int:
        """No sum that this part enters, forwards or back, has more terms."""
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
        """(batch, rows, elements of y), how many elements x has -> (batch, rows, elements of x): rows as functions of x."""
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
    """y = sum of parts + offset. Every weight is within 16 units of rounding of the true one, and the offset within 16 units of
    `offset_size`, which is at least the size of all terms that it was added up from."""

    name: str
    size: int
    parts: tuple[StepTerm, ...]
    offset: Array
    offset_size: Array


@dataclass(frozen=True, eq=False)
class Applied:
    """y = function(arguments), element by element; parts only take elements."""

    name: str
    size: int
    parts: tuple[StepTerm, ...]
    function: ProductFunction | PiecewiseLinear
    offset: Array = field(default_factory=lambda: np.zeros(0))


Step = AffineStep | Applied


@dataclass
class Program:
    """steps[0] is the input, an affine map of nothing."""

    input_shape: tuple[int, ...]
    steps: list[Step]
    output: StepView
    ranked: bool = False  # a last softmax was left out: only the order of the outputs is that of the model

    def value(self, x: Array) -> Array:
        """(batch, *input_shape) -> (batch, outputs) in plain float64: to compare with other programs, never to prove."""
        return StepTerm(self.output.step, self.output.index.ravel(), None, None).take_elements(
            self.values(x)[self.output.step]
        )

    def values(self, x: Array) -> list[Array]:
        """The same of every step."""
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
    """Adds steps; what an operator of the graph means in them."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        size = int(np.prod(shape))
        self.steps: list[Step] = [AffineStep("input", size, (), np.zeros(size), np.zeros(size))]
        self.input = StepView(0, np.arange(size).reshape(shape))
        self.origins: dict[
            int, list[tuple[StepView, Array]]
        ] = {}  # of joined steps: what was joined, and where it went

    def affine(
        self, name: str, shape: tuple[int, ...], parts: list[tuple[StepView, Array | None, Array | None]], offset: Array | float = 0.0,
        offset_size: Array | None = None,
    ) -> StepView:  # fmt: skip
        """parts: what is taken, the weight, and the places it goes to."""
        size = int(np.prod(shape))
        shift = np.broadcast_to(np.asarray(offset, dtype=np.float64), shape).ravel()
        sizes = np.abs(shift) if offset_size is None else np.broadcast_to(offset_size, shape).ravel()
        plain = [(self.plain(view), weight, place) for view, weight, place in parts]
        made = tuple(StepTerm(view.step, view.index.ravel(), weight, place) for view, weight, place in plain)
        for numbers in (sizes, *(part.weight for part in made if part.weight is not None)):
            if not bool((np.abs(numbers) < LARGEST).all()):
                raise Rejected(f"{name}: a weight is no number, or larger than {LARGEST:g}")
        self.steps.append(AffineStep(name, size, made, shift, sizes))
        return StepView(len(self.steps) - 1, np.arange(size).reshape(shape))

    def apply_function(
        self, name: str, function: ProductFunction | PiecewiseLinear, *arguments: StepView
    ) -> StepView:
        shape = np.broadcast_shapes(*(view.shape for view in arguments))
        parts = tuple(
            StepTerm(view.step, np.broadcast_to(view.index, shape).ravel(), None, None)
            for view in map(self.plain, arguments)
        )
        self.steps.append(Applied(name, int(np.prod(shape)), parts, function))
        return StepView(len(self.steps) - 1, np.arange(int(np.prod(shape))).reshape(shape))

    def add_scaled(
        self,
        name: str,
        views: list[tuple[StepView, Array | float]],
        offset: Array | float = 0.0,
        size: Array | None = None,
    ) -> StepView:
        """The sum of views, each times numbers, broadcast against each other, plus an offset."""
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
        """Concatenated; several steps become one."""
        if len({view.step for view in views}) == 1:
            return StepView(views[0].step, np.concatenate([view.index for view in views], axis))
        ends = np.cumsum([0, *(view.index.size for view in views)])
        places = np.concatenate(
            [np.arange(a, b).reshape(v.shape) for a, b, v in zip(ends, ends[1:], views, strict=False)], axis
        )
        where = np.empty(int(ends[-1]), dtype=np.int64)
        where[places.ravel()] = np.arange(int(ends[-1]))
        origins = [(view, where[start:end]) for start, end, view in zip(ends, ends[1:], views, strict=False)]
        whole = self.affine(name, places.shape, [(view, None, to) for view, to in origins])
        self.origins[whole.step] = origins
        return whole

    def plain(self, view: StepView) -> StepView:
        """The same elements where they come from, if all were joined from one view: whoever reads them then needs no other."""
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
