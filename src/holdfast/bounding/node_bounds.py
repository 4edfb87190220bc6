"""Bounds of every node of a graph over a region, and linear functions of the input.

Statement. `Boxes` holds lower <= y(x) <= upper for every node y and every x of the region, or infinite
bounds; `LinearForms.minimum` is at most the minimum over the region of coefficients . x + constant.

Assumption: values above `LARGEST` count as unbounded, so that an underflow is never amplified beyond `TINY`
(docs/rounding.md).

Reference: docs/rounding.md, for both constants.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Node
from holdfast.bounding.relax import LinearBounds
from holdfast.bounding.sums_of_products import SummedBounds
from holdfast.bounding.zonotope import Forms
from holdfast.derivations import (
    EXECUTED_SUM,
    LAST_SUM,
)
from holdfast.region import Region
from holdfast.rounding import LARGEST, UNDERFLOW, centre_and_radius, charge

IntervalBounds = tuple[Tensor, Tensor]  # lower, upper, each (batch, *shape)


@dataclass
class MeanAndHalfDifference:
    """The linear bounds of an activation as the backward pass uses them.

    They are stored for the rows of the batch in which the activation varies, as the mean of the lower and the
    upper bound and half of their difference.
    """

    middle: list[Tensor]  # slopes of the mean, (rows, 1, *shape) for each input
    half: list[Tensor]
    offset: Tensor  # (rows, *shape): offset of the mean
    of_size: Tensor  # (rows, size, 2): multipliers of |coefficient| in the constant and in the rounding error
    summed: SummedBounds | None = None  # the same of sums of these products, computed on first use


@dataclass(frozen=True)
class Tangent:
    """A linear function slope v + offset of every pre-activation, (batch, *shape), and the sum of the absolute
    values of its terms.
    """

    slope: Tensor
    offset: Tensor
    magnitude: Tensor


@dataclass
class Boxes:
    """Bounds of every node over the region: lower <= value <= upper, (batch, *shape) each.

    `magnitude` bounds the sum of the absolute values of all terms from which a node is computed.
    """

    region: Region
    lower: dict[Node, Tensor] = field(default_factory=dict)
    upper: dict[Node, Tensor] = field(default_factory=dict)
    magnitude: dict[Node, Tensor] = field(default_factory=dict)
    planes: dict[Node, LinearBounds] = field(default_factory=dict)
    tilts: dict[Node, MeanAndHalfDifference] = field(default_factory=dict)
    # Of weighted sums of squares (`sums_of_squares`): the squares, and an upper bound of how much the sum exceeds
    # that of their tangents, which is nonnegative.
    curvature: dict[Node, tuple[Node, Tensor]] = field(default_factory=dict)
    tangents: dict[Node, Tangent] = field(default_factory=dict)
    executed: torch.dtype | None = None  # floating-point type of the bounded network; None: real arithmetic
    # with `executed`: bounds of the rounding error of a node as executed
    error: dict[Node, Tensor] = field(default_factory=dict)
    # a slice that contains all rows of the batch in which a node varies
    moving: dict[Node, slice] = field(default_factory=dict)
    # (batch, size) bool, for the input and selections of it: elements that vary
    elements: dict[Node, Tensor] = field(default_factory=dict)
    # the region over the perturbed features alone, and their indices (batch, features)
    condensed: tuple[Region, Tensor] | None = None
    # cached `BackwardWalk._point`: middle, spread
    points: dict[tuple[Node, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    # affine forms over the region, which hold that of the output
    forms: Forms | None = None

    def keep(self, node: Node, lower: Tensor, upper: Tensor) -> None:
        """Intersect the bounds of a node with lower and upper; NaN counts as unbounded."""
        lower = torch.nan_to_num(lower, -torch.inf, torch.inf, -torch.inf)
        upper = torch.nan_to_num(upper, torch.inf, torch.inf, -torch.inf)
        # Values above LARGEST count as unbounded: they would amplify underflows (rounding.py).
        lower = torch.where(lower < -LARGEST, -torch.inf, lower)
        upper = torch.where(upper > LARGEST, torch.inf, upper)
        if node in self.lower:
            lower, upper = torch.maximum(lower, self.lower[node]), torch.minimum(upper, self.upper[node])
        self.lower[node], self.upper[node] = lower, torch.maximum(lower, upper)

    def largest(self, node: Node) -> Tensor:
        """The largest absolute value of the node's interval."""
        return torch.maximum(self.lower[node].abs(), self.upper[node].abs())

    def interval(self, node: Node, rows: slice) -> tuple[Tensor, Tensor]:
        """middle, radius: every value of the node in these rows is within the radius of the middle."""
        lower = self.lower[node][rows]
        upper = self.upper[node][rows]
        return centre_and_radius(lower, upper)

    def tilt(self, node: Node) -> MeanAndHalfDifference:
        if node not in self.tilts:
            p, rows = self.planes[node], self.moving[node]
            low, up = p.lower_offset[rows], p.upper_offset[rows]
            down = low / 2 - up / 2
            if node in self.error:
                down = down - self.error[node][rows]
            self.tilts[node] = MeanAndHalfDifference(
                [(a[rows] / 2 + b[rows] / 2)[:, None] for a, b in zip(p.lower, p.upper, strict=True)],
                [(a[rows] / 2 - b[rows] / 2)[:, None] for a, b in zip(p.lower, p.upper, strict=True)],
                low / 2 + up / 2,
                torch.stack([down.flatten(1), self.magnitude[node][rows].flatten(1)], dim=-1),
            )
        return self.tilts[node]

    def execution_error(self, node: Node, terms: int, size: Tensor) -> Tensor | float:
        """Bound the error of an executed sum of `terms` terms with sizes that add up to `size`."""
        if self.executed is None:
            return 0.0
        missed = charge(size, EXECUTED_SUM, terms, self.executed) + UNDERFLOW
        # A partial sum may overflow.
        self.error[node] = torch.where(size < torch.finfo(self.executed).max / 2, missed, torch.inf)
        return self.error[node]


@dataclass(frozen=True)
class LinearForms:
    """Linear functions coefficients . x + constant, one for each row of each batch element.

    As lower bounds, all rounding errors have been subtracted from the constant.
    """

    coefficients: Tensor  # (batch, rows, *shape of the region)
    constant: Tensor  # (batch, rows)

    def minimum(self, region: Region) -> Tensor:
        """(batch, rows): lower bounds of the functions over the region."""
        least = region.minimise_linear(self.coefficients)
        bound = least + self.constant - charge(least.abs() + self.constant.abs(), LAST_SUM)
        return torch.nan_to_num(bound, -torch.inf, torch.inf, -torch.inf)
