"""What is known of every node of a graph over a region: intervals, planes, sizes; and linear functions of the input."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Node
from holdfast.bounding.relax import LinearBounds
from holdfast.region import Region
from holdfast.rounding import LARGEST, TINY, UNDERFLOW, gamma

Ends = tuple[Tensor, Tensor]  # lower, upper, each (batch, *shape)


@dataclass(frozen=True)
class Tilt:
    """A relaxed function in the rows in which it moves, as the walk uses it: the middle of its planes and half their difference."""

    middle: list[Tensor]  # for each input, slopes (rows, 1, *shape)
    half: list[Tensor]
    offset: Tensor  # (rows, *shape)
    of_size: (
        Tensor  # (rows, size, 2): what the size of a coefficient takes off, and how much its rounding weighs
    )


@dataclass
class Boxes:
    """What is known of every node over the region: lower <= value <= upper and magnitude, each (batch, *shape)."""

    region: Region
    lower: dict[Node, Tensor] = field(default_factory=dict)
    upper: dict[Node, Tensor] = field(default_factory=dict)
    magnitude: dict[Node, Tensor] = field(default_factory=dict)
    planes: dict[Node, LinearBounds] = field(default_factory=dict)
    tilts: dict[Node, Tilt] = field(default_factory=dict)
    executed: torch.dtype | None = None  # None: the network in real arithmetic
    error: dict[Node, Tensor] = field(
        default_factory=dict
    )  # where it is executed: what computing a node adds to its value, at most
    moving: dict[Node, slice] = field(
        default_factory=dict
    )  # the rows of the batch in which a node moves, and maybe some in between
    elements: dict[Node, Tensor] = field(
        default_factory=dict
    )  # (batch, size) bool, for the input and moves of it: what moves
    condensed: tuple[Region, Tensor] | None = (
        None  # the region over the features that move, and which these are (batch, features)
    )
    points: dict[tuple[Node, int], tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )  # a map of one input's interval: middle, spread

    def keep(self, node: Node, lower: Tensor, upper: Tensor) -> None:
        """Both bounds are right, so their intersection is; numbers that are none say nothing."""
        lower, upper = (
            torch.nan_to_num(lower, -torch.inf, torch.inf, -torch.inf),
            torch.nan_to_num(upper, torch.inf, torch.inf, -torch.inf),
        )
        # Values above LARGEST count as unbounded: they would amplify underflows (rounding.py).
        lower = torch.where(lower < -LARGEST, -torch.inf, lower)
        upper = torch.where(upper > LARGEST, torch.inf, upper)
        if node in self.lower:
            lower, upper = torch.maximum(lower, self.lower[node]), torch.minimum(upper, self.upper[node])
        self.lower[node], self.upper[node] = lower, torch.maximum(lower, upper)

    def largest(self, node: Node) -> Tensor:
        return torch.maximum(self.lower[node].abs(), self.upper[node].abs())

    def interval(self, node: Node, rows: slice) -> tuple[Tensor, Tensor]:
        """-> middle, radius: every value of the node in these rows is within the radius of the middle."""
        lower, upper, largest = self.lower[node][rows], self.upper[node][rows], self.largest(node)[rows]
        return lower / 2 + upper / 2, (upper / 2 - lower / 2) * (1 + 4 * gamma(1)) + 2 * gamma(1) * largest

    def tilt(self, node: Node) -> Tilt:
        if node not in self.tilts:
            p, rows = self.planes[node], self.moving[node]
            low, up = p.lower_offset[rows], p.upper_offset[rows]
            down = low / 2 - up / 2
            if node in self.error:
                down = down - self.error[node][rows]
            self.tilts[node] = Tilt(
                [(a[rows] / 2 + b[rows] / 2)[:, None] for a, b in zip(p.lower, p.upper, strict=True)],
                [(a[rows] / 2 - b[rows] / 2)[:, None] for a, b in zip(p.lower, p.upper, strict=True)],
                low / 2 + up / 2,
                torch.stack([down.flatten(1), self.magnitude[node][rows].flatten(1)], dim=-1),
            )
        return self.tilts[node]

    def execution_error(self, node: Node, terms: int, size: Tensor) -> Tensor | float:
        """What a sum of so many terms, of this size in all, may miss when it is executed."""
        if self.executed is None:
            return 0.0
        missed = gamma(terms + 16, self.executed) * size + UNDERFLOW
        self.error[node] = torch.where(
            size < torch.finfo(self.executed).max / 2, missed, torch.inf
        )  # a sum may overflow on its way
        return self.error[node]


@dataclass(frozen=True)
class LinearForms:
    """coefficients . x + constant, for each row of each input; every rounding on the way has been taken off the constant."""

    coefficients: Tensor  # (batch, rows, *shape of the region)
    constant: Tensor  # (batch, rows)

    def minimum(self, region: Region) -> Tensor:
        """-> (batch, rows): nothing in the region lies below."""
        least = region.minimise_linear(self.coefficients)
        bound = least + self.constant - 8 * gamma(1) * (least.abs() + self.constant.abs()) - TINY
        return torch.nan_to_num(bound, -torch.inf, torch.inf, -torch.inf)
