"""Perturbations of table rows in which every member has the columns' types.

`Rows`: numbers move, ||(x - c) / scale||_p <= r, and categorical columns stay. `ChangedColumns`: at most k
columns change (norm 0). Bounds are computed over a superset, in which integers may be fractional and
categories may be convex combinations. So they hold for the region, and are not always attained.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.derivations import (
    BALL_MINIMUM,
    COLUMN_GAINS,
    LEAF_DISTANCE,
    POINT_IN_ROWS,
    ROWS_LIMIT,
)
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region.base import EVERYWHERE, Counted, Domain, Family, check_centre, check_norm, step_from
from holdfast.region.columns import Columns
from holdfast.region.normed import furthest, minimise_over_box
from holdfast.region.norms import direction, dual, norm, norm_above, project, steepest
from holdfast.region.unit_choices import (
    MIN_COLUMN_VALUES,
    ColumnChoices,
    TriedValues,
    column_places,
    column_values,
)
from holdfast.rounding import TINY, charge, round_down, round_up

# Relative bound on the error of two float64 operations and a product: division by the scale, multiplication,
# addition.
SCALING_ERROR = 4 * torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class TableFamily(Family):
    """Common base. `domain` gives the bounds of numeric columns that have none of their own."""

    finds_nearest: ClassVar[bool] = True

    columns: Columns
    domain: Domain = EVERYWHERE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape != (len(self.columns.features),):
            raise BadInput(
                f"the inputs have shape {self.shape}, but a row of the table has "
                f"{len(self.columns.features)} numbers: "
                f"{', '.join(self.columns.features[:8])}{' ...' if len(self.columns.features) > 8 else ''}."
            )
        object.__setattr__(self, "domain", Domain.of(self.domain))
        self._check_inside()
        check_centre(self.centre, self.inside)
        self._check_words()

    def _check_inside(self) -> None:
        finite = self.centre.isfinite()
        outside = finite & ~self.inside.contains(self.centre)
        if bool(outside.any()):
            row, place = (int(i) for i in outside.nonzero()[0])
            name, value = self.columns.features[place], float(self.centre[row, place])
            least = float(self.inside.lower.expand(self.shape)[place])
            most = float(self.inside.upper.expand(self.shape)[place])
            raise BadInput(
                f"row {row}: {name} is {value:g}, but its column allows {least:g} to {most:g}. "
                f"Widen the column (low, high), or leave the row out."
            )

    def _check_words(self) -> None:
        wrong = ~self._one_hot(self.centre)
        if bool(wrong.any()):
            row, place = (int(i) for i in wrong.nonzero()[0])
            column = [c for c in self.columns.each if c.worded][place]
            raise BadInput(
                f"row {row}: of the numbers of column {column.name!r} ({', '.join(column.features)}) "
                "exactly one must be 1."
            )

    # ---- properties of the columns, on the device of the centre

    @cached_property
    def inside(self) -> Domain:
        """The bounds of every number."""
        return self.columns.domain(self.domain)

    @cached_property
    def steps(self) -> Tensor:
        return self.columns.steps.to(self.centre.device)

    @cached_property
    def scales(self) -> Tensor:
        return self.columns.scales.to(self.centre.device)

    @cached_property
    def groups(self) -> Tensor:
        """(categorical columns, features) bool: the one-hot features of each."""
        return self.columns.groups.to(self.centre.device)

    @cached_property
    def words(self) -> Tensor:
        """(features,) bool: whether the feature is part of a categorical column."""
        return self.groups.any(0)

    @property
    @abstractmethod
    def moving(self) -> Tensor:
        """(features,) bool: whether the feature may change."""

    def feature_bounds(self) -> tuple[Tensor, Tensor]:
        """Return the lower and upper bounds of the features, (features,) float64 each."""
        lower, upper = (
            end.to(self.centre.device, torch.float64).expand(self.shape)
            for end in (self.inside.lower, self.inside.upper)
        )
        return lower, upper

    # ---- members

    def is_allowed(self, x: Tensor) -> Tensor:
        """(..., batch, features) -> (..., batch) bool: every column has an allowed or its original value."""
        same = x == self.centre
        number = self.moving & ~self.words & self.inside.contains(x) & (self._at_step(x) == x)
        word = torch.where(self.moving, self._among(self._one_hot(x)), False)
        return (same | number | word).all(-1)

    def _at_step(self, x: Tensor) -> Tensor:
        """Round numbers with a step to the nearest multiple."""
        steps = torch.where(self.steps > 0, self.steps, 1)
        return torch.where(self.steps > 0, ((x.double() / steps).round() * steps).to(x), x)

    def _one_hot(self, x: Tensor) -> Tensor:
        """(..., features) -> (..., categorical columns) bool: whether the group is one-hot."""
        each = x.unsqueeze(-2)
        return ((each == 0) | (each == 1) | ~self.groups).all(-1) & ((each * self.groups).sum(-1) == 1)

    def _among(self, word: Tensor) -> Tensor:
        """(..., categorical columns) bool -> (..., features): expand groups to features."""
        return (word.unsqueeze(-1) & self.groups).any(-2)

    def nearest_in(self, lower: Tensor, upper: Tensor) -> Tensor:
        least, most = self.feature_bounds()
        lower, upper = torch.maximum(lower, least), torch.minimum(upper, most)
        centre = self.centre.double()
        here, rises = (centre >= lower) & (centre <= upper), centre < lower
        found = torch.where(lower <= upper, torch.where(rises, lower, upper), torch.nan)
        if bool((self.steps > 0).any()):
            found = torch.where(self.steps > 0, self._step_in(lower, upper, rises), found)
        found = torch.where(here, centre, torch.where(self.moving, found, torch.nan))
        return self._with_words(found, here, lower, upper) if len(self.groups) else found

    def reach_boxes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        points = self.nearest_in(lower[:, None], upper[:, None])
        missing = points.isnan().any(-1)
        points = torch.where(missing[..., None], self.centre.double(), points)
        away = self._distance_below(points.to(self.centre))
        # There is a point in the box, even if its distance is not finite.
        away = torch.where(away.isfinite(), away, 0)
        return torch.where(missing, torch.inf, away).T, points

    @abstractmethod
    def _distance_below(self, x: Tensor) -> Tensor:
        """Return `distance`, rounded down."""

    def _step_in(self, lower: Tensor, upper: Tensor, rises: Tensor) -> Tensor:
        """Return the first multiple of the step in each box, coming from the centre; NaN if there is none.

        A quotient may be rounded past an integer, so its neighbours are tried too.
        """
        steps = torch.where(self.steps > 0, self.steps, 1)
        count = torch.where(rises, (lower / steps).ceil(), (upper / steps).floor())
        found = torch.full_like(count, torch.nan)
        for more in (1, 0, -1):  # the nearest to the centre last: it wins
            value = (count + torch.where(rises, more, -more)) * steps
            found = torch.where((value >= lower) & (value <= upper), value, found)
        return found

    def _with_words(self, found: Tensor, here: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Set categories: the original one if it is in the box, else the first one in the box."""
        still = (here.unsqueeze(-2) | ~self.groups).all(-1)  # (boxes, batch, words)
        zero, one = (lower <= 0) & (upper >= 0), (lower <= 1) & (upper >= 1)
        others = (~zero).unsqueeze(-2).logical_and(self.groups).sum(-1, keepdim=True) - (~zero).to(
            torch.int64
        ).unsqueeze(-2)
        # (boxes, 1, categorical columns, features): the box contains the one-hot vector of this feature.
        may = self.groups & one.unsqueeze(-2) & (others <= 0) & self.moving
        chosen = torch.zeros_like(may, dtype=torch.float64).scatter(
            -1, may.to(torch.uint8).argmax(-1, keepdim=True), 1.0
        )
        changed = torch.where(may.any(-1, keepdim=True), chosen, torch.nan)
        # (boxes, batch, categorical columns, features)
        each = torch.where(still.unsqueeze(-1), self.centre.double().unsqueeze(-2), changed)
        return torch.where(self.words, torch.where(self.groups, each, 0.0).sum(-2), found)


@dataclass(frozen=True, eq=False)
class Rows(TableFamily):
    """All rows with ||(x - centre) / scale||_p <= radius, inside the domain; others stay."""

    norm: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "norm", check_norm(self.norm))

    @property
    def boxed(self) -> bool:
        return math.isinf(self.norm) and not bool((self.steps > 0).any())

    @cached_property
    def moving(self) -> Tensor:
        return self.columns.free.to(self.centre.device) & ~self.words

    def _away(self, x: Tensor) -> Tensor:
        """(..., batch, features) -> (..., batch) float64: the distance, rounded up."""
        return norm_above((x.double() - self.centre.double()) / self.scales, self.norm) * (1 + SCALING_ERROR)

    def distance(self, x: Tensor) -> Tensor:
        away = self._away(x)
        return torch.where(self.is_allowed(x) & away.isfinite(), away, torch.inf)

    def _distance_below(self, x: Tensor) -> Tensor:
        return round_down(self.distance(x), LEAF_DISTANCE, x.shape[-1])

    def contains(self, x: Tensor) -> Tensor:
        distance = self.distance(x)
        return (distance <= self.radius) & distance.isfinite()

    def limit(self) -> Tensor:
        headroom = torch.where(self.moving, furthest(self.centre, self.inside) / self.scales, 0)
        corner = round_up(norm_above(headroom, self.norm), ROWS_LIMIT, self.shape[0])
        return torch.nan_to_num(corner, nan=torch.inf, posinf=torch.inf)

    def reach(self) -> Tensor:
        limit = self.limit()
        return torch.where(
            limit.isfinite(),
            limit,
            norm((self.centre.double().abs() + 1) / self.scales * self.moving, self.norm),
        )

    def slope(self, gradient: Tensor) -> Tensor:
        return norm(gradient.double() * self.scales * self.moving, dual(self.norm))

    def _extent(self) -> Tensor:
        radius = torch.minimum(self.radius.double(), self.limit())
        return torch.where(radius.isinf(), self.reach(), radius)

    def project(self, x: Tensor) -> Tensor:
        # The distance is rounded up, so aim slightly below the radius; steps and the domain only reduce the
        # distance.
        target = round_down(self.radius.double(), POINT_IN_ROWS, self.shape[0])
        delta = torch.where(self.moving, (x.double() - self.centre.double()) / self.scales, 0)
        pulled = project(delta, target.expand(delta.shape[:-1]), self.norm) * self.scales
        moved = self._stepped_back(self.inside.clamp(step_from(self.centre, pulled, x)))
        return torch.where(self.contains(x)[..., None], x, torch.where(self.moving, moved, self.centre.to(x)))

    def _stepped_back(self, x: Tensor) -> Tensor:
        """Round numbers with a step towards the centre, to a multiple of the step or to the centre."""
        centre, steps = self.centre.to(x), torch.where(self.steps > 0, self.steps, 1)
        rises = x > centre
        count = torch.where(rises, (x.double() / steps).floor(), (x.double() / steps).ceil())
        one = ((count - torch.where(rises, 1.0, -1.0)) * steps).to(x)
        value = (count * steps).to(x)
        value = torch.where(torch.where(rises, value <= x, value >= x), value, one)
        between = torch.where(rises, (value >= centre) & (value <= x), (value <= centre) & (value >= x))
        return torch.where(self.steps > 0, torch.where(between, value, centre), x)

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        away = direction(count, self.norm, chance, self.centre)
        share = chance.uniform(count, (1,), self.centre).mul(2).clamp_max(1)
        return self.project(
            self.centre + (away * share * self._extent()[:, None] * self.scales).to(self.centre)
        )

    def vertex(self, a: Tensor) -> Tensor:
        slope = torch.where(self.moving, a * self.scales.to(a), 0)
        step = steepest(slope, self.norm) * self._extent().to(a)[:, None] * self.scales.to(a)
        return self.project(self.centre.to(a) + step)

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        centre, (least, most) = self.centre.double(), self.feature_bounds()
        span = self.radius.double()[:, None] * self.scales
        span = torch.where(
            self.moving & (self.radius > 0)[:, None],
            span * (1 + SCALING_ERROR) + centre.abs() * SCALING_ERROR + TINY,
            0,
        )
        lower, upper = (
            torch.maximum(centre - span, torch.minimum(least, centre)),
            torch.minimum(centre + span, torch.maximum(most, centre)),
        )
        steps = torch.where(self.steps > 0, self.steps, 1)
        # The outermost multiples of the step: inputs have the error of their dtype, quotient and product one
        # of float64 each.
        unit = SCALING_ERROR + torch.finfo(self.centre.dtype).eps
        inner_low = (lower / steps - (lower / steps).abs() * unit).ceil() * steps
        inner_high = (upper / steps + (upper / steps).abs() * unit).floor() * steps
        inner_low, inner_high = inner_low - inner_low.abs() * unit, inner_high + inner_high.abs() * unit
        lower = torch.where(self.steps > 0, torch.maximum(lower, torch.minimum(inner_low, centre)), lower)
        upper = torch.where(self.steps > 0, torch.minimum(upper, torch.maximum(inner_high, centre)), upper)
        return lower, upper

    def minimise_linear(self, a: Tensor) -> Tensor:
        """Return the larger of two lower bounds: over the lp ball, and over the enclosing box."""
        a, centre = a.double(), self.centre.double()[..., None]
        fall = norm_above(torch.where(self.moving, a * self.scales, 0), dual(self.norm)) * (1 + SCALING_ERROR)
        radius = self.radius.double()[:, None]
        fall = torch.where((fall == 0) | (radius == 0), 0, fall * radius)
        at_centre, size = (a @ centre).squeeze(-1), (a.abs() @ centre.abs()).squeeze(-1)
        ball = at_centre - fall - charge(size + fall, BALL_MINIMUM, a.shape[-1])
        return torch.fmax(ball, minimise_over_box(a, *self.enclosing_box()))


@dataclass(frozen=True, eq=False)
class ChangedColumns(Counted, TableFamily):
    """All rows in which at most `radius` columns change, each to any allowed value."""

    changes_units: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        open_ended = [
            name for name, end in zip(self.columns.features, self._endless().tolist(), strict=True) if end
        ]
        if open_ended:
            raise BadInput(
                f"norm 0 needs bounds for every column that may change, and {open_ended[0]!r} has none: set "
                "low and high in "
                f"the columns, keep it fixed (frozen), or give a domain for all (domain=, --domain)."
            )

    def _endless(self) -> Tensor:
        lower, upper = self.feature_bounds()
        return self.moving & (lower.isinf() | upper.isinf())

    @cached_property
    def moving(self) -> Tensor:
        return self.columns.free.to(self.centre.device)

    @cached_property
    def _column(self) -> Tensor:
        """(columns, features) bool: the features of each column."""
        unit = self.columns.unit.to(self.centre.device)
        return unit == torch.arange(len(self.columns.each), device=unit.device)[:, None]

    def by_column(self, parts: Tensor) -> Tensor:
        """(..., features) -> (..., columns): sums over the features of each column."""
        return parts @ self._column.to(parts).T

    def _each(self, column: Tensor) -> Tensor:
        """(..., columns) -> (..., features): expand a value of each column to its features."""
        return column[..., self.columns.unit.to(column.device)]

    def distance(self, x: Tensor) -> Tensor:
        count = (self.by_column((x != self.centre).double()) > 0).sum(-1).double()
        return torch.where(self.is_allowed(x), count, torch.inf)

    def _distance_below(self, x: Tensor) -> Tensor:
        return self.distance(x)  # A count is exact.

    def limit(self) -> Tensor:
        return (self.by_column(self.moving.double()) > 0).sum().double().expand(len(self))

    def _keep(self, weight: Tensor) -> Tensor:
        """(..., batch, columns) -> (..., batch, features) bool: columns of largest weights."""
        weight = torch.where(self.by_column(self.moving.double()) > 0, weight, 0)
        rank = weight.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        return self._each((rank < self.radius.floor()[:, None]) & (weight > 0))

    def _snap_to_allowed(self, x: Tensor) -> Tensor:
        """Round every column to its nearest allowed or original value."""
        centre, x = self.centre.to(x), self.inside.clamp(x)
        number = self._at_step(x)
        number = torch.where(
            self.inside.contains(number) & ((x - centre).abs() >= (x - number).abs()), number, centre
        )
        return torch.where(self.words, self._as_words(x), torch.where(self.steps > 0, number, x))

    def _as_words(self, x: Tensor) -> Tensor:
        """Make each group one-hot at its largest number, (..., features)."""
        if not len(self.groups):
            return x
        each = x.unsqueeze(-2).masked_fill(~self.groups, -torch.inf)
        return torch.zeros_like(each).scatter(-1, each.argmax(-1, keepdim=True), 1.0).sum(-2)

    def project(self, x: Tensor) -> Tensor:
        snapped = self._snap_to_allowed(x)
        lower, upper = self.feature_bounds()
        weight = (snapped - self.centre.to(x)).abs().double() / torch.where(
            (upper > lower) & (upper - lower).isfinite(), upper - lower, 1
        )
        kept = torch.where(self._keep(self.by_column(weight)), snapped, self.centre.to(x))
        return torch.where(self.contains(x)[..., None], x, kept)

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        share = chance.uniform(count, self.shape, self.centre)
        extreme = chance.uniform(count, self.shape, share) < 0.5
        lower, upper = (torch.where(self.moving, end, self.centre.double()) for end in self.feature_bounds())
        values = (
            lower + torch.where(extreme & ~self.words, share.round(), share).double() * (upper - lower)
        ).to(self.centre)
        weight = chance.uniform(count, (len(self.columns.each),), share) + 1e-9
        return torch.where(self._keep(weight), self._snap_to_allowed(values), self.centre)

    def _best(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """The best change of each column: new values (..., features) and gains (..., columns)."""
        lower, upper = (
            torch.where(self.moving, end.to(a), self.centre.to(a)) for end in self.feature_bounds()
        )
        number = torch.where(a > 0, lower, upper)
        each = (-a).unsqueeze(-2).masked_fill(~self.groups, -torch.inf)
        word = (
            torch.zeros_like(each).scatter(-1, each.argmax(-1, keepdim=True), 1.0).sum(-2)
            if len(self.groups)
            else number
        )
        best = torch.where(self.words & self.moving, word.expand(number.shape), number)
        return best, self.by_column(a * (self.centre.to(a) - best))

    def vertex(self, a: Tensor) -> Tensor:
        best, gain = self._best(a)
        return self.project(torch.where(self._keep(gain), best, self.centre.to(a)))

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        centre, (least, most) = self.centre.double(), self.feature_bounds()
        moves = self.moving & (self.radius >= 1)[:, None]
        return torch.where(moves, torch.minimum(centre, least), centre), torch.where(
            moves, torch.maximum(centre, most), centre
        )

    def unit_choices(self, tried: TriedValues, generator: torch.Generator) -> ColumnChoices:
        """Return all values of a word; for a number both sides of every threshold, or evenly spaced values."""
        places = column_places(self.columns.places, self.shape[0]).to(self.centre.device)
        parts = places.shape[1]
        lower, upper = self.feature_bounds()
        tables = []
        for column, own in zip(self.columns.each, self.columns.places, strict=True):
            if column.worded:
                words = torch.eye(len(own), dtype=torch.float64)
                tables.append(torch.nn.functional.pad(words, (0, parts - len(own))))
            else:
                ends = tried.thresholds(own[0]) if tried.thresholds is not None and column.movable else None
                low, high = float(lower[own[0]]), float(upper[own[0]])
                values = column_values(column, low, high, max(tried.count, MIN_COLUMN_VALUES), ends)
                tables.append(torch.nn.functional.pad(values[:, None], (0, parts - 1)))
        free = self.by_column(self.moving.double()) > 0
        return ColumnChoices.of_columns(self.centre, places, tables, free)

    def minimise_linear(self, a: Tensor) -> Tensor:
        """Return a . centre plus the `radius` best column gains; exact for columns without steps."""
        a, centre = a.double().transpose(0, 1), self.centre.double()
        best, gain = self._best(a)
        ordered = gain.clamp_min(0).sort(-1, descending=True).values
        taken = torch.arange(ordered.shape[-1], device=a.device) < self.radius.floor()[:, None]
        size = (a.abs() * (centre.abs() + best.abs())).sum(-1)
        found: Tensor = (
            (a * centre).sum(-1) - (ordered * taken).sum(-1) - charge(size, COLUMN_GAINS, a.shape[-1])
        )
        return found.transpose(0, 1)
