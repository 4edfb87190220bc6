"""Affine forms whose noise symbols include the products of two inputs' symbols: second-order bounds at linear cost.

Statement. Where few inputs vary in every row (one frame, one word), x = centre + radius eps with eps in the unit ball
of the region's norm, the first columns of all forms are

    eps_1, ..., eps_n,   then   eps_i eps_j for i < j and the squares, for all i <= j,

which are never merged. The value of a node is

    centre + L eps + sum over i <= j of M_ij s_ij + G eta +- error,   |eta_k| <= 1,

with s_ij = eps_i eps_j for i < j. In the maximum norm s_ii = 2 eps_i^2 - 1, so that every symbol fills [-1, 1]; in
other norms s_ii = eps_i^2. Maps transform these columns like any other. A function of one pre-activation v = c + x,
x = L eps + y, is a parabola and a remainder (`interpolate_parabola`),

    f(v) = value + k x + k2 x^2 + w,   |w| <= stray,   x^2 = (L eps)^2 + y (2 L eps + y),

and (L eps)^2 is a combination of the symbols s_ij, without any error; y is what the other symbols move. A product of
two functions s(v) t(z) = (p + k x + X) (q + m z' + Z), X = k2 x^2 + w, is

    p q + q k x + p m z' + q k2 x^2 + p m2 z'^2 + k m x z' + T,
    |T| <= |q| d + |p| e + |k x| E + |m z'| D + D E,   |X| <= D,   |Z| <= E,

in the same way. Without these symbols the terms of second order are bands of every function by itself, and cannot
cancel in later layers. Each element uses the narrower of both bands.

How far the columns move a value: in the maximum norm the sum of |L|, |M| and |G|. In an lp norm with dual exponent q,
|L eps| <= |L|_q; for p <= 2 the ball lies in the Euclidean one, so |eps' Q eps| <= |Q|_F with Q_ii = M_ii and
Q_ij = M_ij / 2; for p = 1 it is at most max |Q_ij|. All these norms grow with the size of every entry, so rounding
errors of entries are covered by charges that are multiples of the norm.

Several balls, as of all words of a text: the first columns belong to one group of inputs at a time. Before a node reads
another group, the columns become one noise symbol for each element of every live node, of radius |L|_q + |M|.

Assumption: as in `zonotope`; the inputs that vary lie in such balls, in every row of the batch.

References: Kochdumper, Althoff, "Sparse polynomial zonotopes" (2021), for products of noise symbols; Makino, Berz,
"Taylor models and other validated functional inclusion methods" (2003).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Graph, Node, Relaxed
from holdfast.bounding.reduced_forms import NO_INPUT, UNUSED, ReducedForms
from holdfast.bounding.relax.base import Curve, Point
from holdfast.bounding.relax.parabola import SmoothCurve, interpolate_parabola
from holdfast.bounding.zonotope import (
    FACTORS,
    Band,
    CurvedBand,
    Form,
    hull_of_rows,
    input_radius,
    pad_generators,
    relative_rows,
    rows_with_any,
    sum_of_sizes,
)
from holdfast.derivations import FORM_CURVED, FORM_HALF_WIDTH, FORM_MERGED, FORM_RADIUS, FORM_REST
from holdfast.region import Region
from holdfast.region.norms import dual
from holdfast.rounding import TINY, charge, round_up

# Products of symbols are kept where at most this many inputs vary in a row: they are half its square (chosen by hand).
MOST_INPUTS_WITH_PRODUCTS = 40
# In the maximum norm the range of a product of two symbols is overestimated, which cancellation makes up for where a
# perturbation has many directions and passes many layers; with three inputs bounds are up to 1.6 times as wide.
LEAST_INPUTS_WITH_PRODUCTS = 8
# The symbols of this many inputs are kept apart in norms that are no box: enough for a word vector (chosen by hand).
MOST_INPUTS_IN_A_BALL = 512
# Balls of several words or frames take turns where each has at least this many numbers: a box around a ball of n numbers
# loses about the square root of n, and replacing the symbols of a ball loses too, whatever n is (chosen by hand).
LEAST_INPUTS_OF_SEVERAL_BALLS = 64
# The squares of smaller components underflow; together they are shorter than this.
UNDERFLOWN_LENGTH = 1e-150


@dataclass(frozen=True)
class VariableInputs:
    """The inputs that vary, as x = centre + radius eps with eps in the unit ball of a norm, row by row.

    Attributes:
        centre, radius: (batch, inputs); the radius is 0 where an input does not vary.
        p: the exponent of the norm, of which every group of inputs has a ball of its own.
        group: (inputs,), the group of each input.
        column: (batch, inputs), the column of each input, -1 where it does not vary.
        count: the number of columns: the largest number of inputs of a group that vary in a row.
        several: whether several groups vary in some row. Their symbols take turns in the same columns.
    """

    centre: Tensor
    radius: Tensor
    p: float
    group: Tensor
    column: Tensor
    count: int
    several: bool

    @staticmethod
    def of(region: Region) -> "VariableInputs":
        """The inputs of a region, over its balls, or over the enclosing box if it has none."""
        family = region.as_norm_family()
        lower, upper = (end.flatten(1) for end in region.enclosing_box())
        p, centre, radius = math.inf, lower / 2 + upper / 2, input_radius(lower, upper)
        group = torch.zeros(lower.shape[1], dtype=torch.long, device=lower.device)
        several = False
        if family is not None and not math.isinf(family.p) and bool(family.spans().isfinite().all()):
            of_feature, span = family.balls()
            p, centre, radius = family.p, family.centre.double().flatten(1), family.spans().flatten(1)
            group, several = of_feature.flatten(1)[0], bool(((span > 0).sum(1) > 1).any())
        varies = radius > 0
        column = torch.full(radius.shape, -1, device=radius.device)
        for which in group.unique() if several else [None]:
            own = varies if which is None else varies & (group == which)
            column = torch.where(own, own.cumsum(1) - 1, column)
        return VariableInputs(centre, radius, p, group, column, int(column.max()) + 1, several)

    def suit(self, long: bool) -> bool:
        """Whether symbols of their own pay off for these inputs; long: no backward passes bound the network."""
        if math.isinf(self.p):
            return long and LEAST_INPUTS_WITH_PRODUCTS <= self.count <= MOST_INPUTS_WITH_PRODUCTS
        few = self.count < LEAST_INPUTS_OF_SEVERAL_BALLS or not long
        return 0 < self.count <= MOST_INPUTS_IN_A_BALL and not (self.several and few)


class ProductForms(ReducedForms):
    """Reduced forms with symbols for the products of two inputs' symbols, and with the norm of the region."""

    def __init__(
        self,
        graph: Graph,
        inputs: VariableInputs,
        order: Sequence[Node],
        most: int,
        influence: Mapping[Node, Tensor] | None = None,
    ) -> None:
        centre, radius, self.inputs = inputs.centre, inputs.radius, inputs
        super().__init__(graph, centre - radius, centre + radius, order, most, influence)
        self.input_centre, self.input_radius = centre, radius
        of_entry = self.of[graph.entry]
        self.of[graph.entry] = Form(centre, of_entry.generators, of_entry.error, radius, of_entry.rows)
        n, device = inputs.count, centre.device
        pairs = (
            torch.triu_indices(n, n, device=device) if n <= MOST_INPUTS_WITH_PRODUCTS else _no_pairs(device)
        )
        self.first, self.second = pairs[0], pairs[1]
        self.square = self.first == self.second
        # In P = L_i U_j + L_j U_i a square occurs twice; in the maximum norm it becomes half of 1 + s_ii.
        boxed = math.isinf(inputs.p)
        self.share_of_squares = 0.25 if boxed else 0.5
        self.share_of_centre = 0.25 if boxed else 0.0
        self.fixed = n + len(self.first)
        self.feature = torch.full((len(centre), self.fixed), NO_INPUT, device=device)
        self.group: int | None = None  # whose symbols the first columns are, where several groups vary
        self._name_inputs(torch.ones_like(inputs.group, dtype=torch.bool) & (not inputs.several))

    def _name_inputs(self, which: Tensor) -> None:
        """Note that the first columns are the symbols of these inputs, (inputs,) bool."""
        self.feature[:, : self.inputs.count] = UNUSED
        row, at = ((self.input_radius > 0) & which).nonzero(as_tuple=True)
        self.feature[row, self.inputs.column[row, at]] = at

    def _introduce(self, which: Tensor) -> Form:
        radius, column = self.input_radius[:, which], self.inputs.column[:, which]
        rows = rows_with_any(radius > 0)
        if self.inputs.several:
            groups = self.inputs.group[which[(radius > 0).any(0)]].unique()
            if len(groups) > 1:
                return super()._introduce(which)
            if len(groups) == 1 and int(groups) != self.group:
                self._replace_balls()
                self.group = int(groups)
                self._name_inputs(self.inputs.group == groups)
        generators = radius.new_zeros((rows.stop - rows.start, self.fixed, len(which)))
        generators.scatter_(1, column[rows].clamp_min(0)[:, None], radius[rows][:, None])
        error = torch.full_like(radius, TINY)
        return Form.of(self.input_centre[:, which], generators, error, rows, self.measure)

    def _replace_balls(self) -> None:
        """Replace the first columns by one noise symbol for each element of the live nodes, so that the symbols of
        another group can take their place: two balls, or more than a word's, have no norm together.
        """
        live = [node for node in self.of if self.of[node].generators.shape[1]]
        rows = hull_of_rows([self.of[node].rows for node in live])
        before, end = self.count, self.count
        after = before + sum(node.size for node in live)
        for node in live:
            form = self.of[node]
            generators = pad_generators(form, after, rows).clone()
            radius = self.measure(generators[:, : self.fixed])
            radius = round_up(radius, FORM_MERGED, self.fixed) + TINY
            generators[:, end : end + node.size].diagonal(dim1=1, dim2=2).copy_(radius)
            generators[:, : self.fixed] = 0
            self.of[node] = Form.of(form.centre, generators, form.error, rows, self.measure)
            end += node.size
        self.feature = torch.nn.functional.pad(self.feature, (0, after - before), value=UNUSED)
        self.feature[rows, before:] = NO_INPUT

    def measure(self, generators: Tensor) -> Tensor:
        if math.isinf(self.inputs.p):
            return sum_of_sizes(generators)
        n = self.inputs.count
        found = self._linear_measure(generators[:, :n]) + sum_of_sizes(generators[:, self.fixed :])
        return found + self._measure_of_products(generators[:, n : self.fixed])

    def _linear_measure(self, generators: Tensor) -> Tensor:
        """How far the inputs' symbols move a value, (rows, size)."""
        if math.isinf(self.inputs.p):
            return sum_of_sizes(generators)
        q = dual(self.inputs.p)
        if math.isinf(q):
            return generators.abs().amax(1)
        # |L|_q <= |L|_r for r <= q.
        return _euclidean(generators) if q >= 2 else sum_of_sizes(generators)

    def _measure_of_products(self, products: Tensor) -> Tensor:
        if products.shape[1] == 0:
            return products.new_zeros((len(products), products.shape[2]))
        if math.isinf(self.inputs.p):
            return sum_of_sizes(products)
        halves = torch.where(self.square, 1.0, 0.5)[:, None] * products.abs()
        if self.inputs.p == 1:
            return halves.amax(1)
        if self.inputs.p > 2:
            return sum_of_sizes(products)
        return _euclidean(torch.where(self.square, 1.0, 0.5**0.5)[:, None] * products)

    def curved_band(
        self, node: Relaxed, ends: tuple[Point, Point], known: Sequence[Form], band: Band
    ) -> CurvedBand | None:
        curves = _curves(node)
        rows = hull_of_rows([form.rows for form in known])
        if curves is None or len(self.first) == 0 or rows.start >= rows.stop:
            return None
        parts = [self._part(form, curve, rows) for form, curve in zip(known, curves, strict=True)]
        if len(parts) == 1:
            slope, squares, crossed, low, high, size = _curved_function(parts[0])
        else:
            slope, squares, crossed, low, high, size = _curved_product(*parts)
        before = (band[2] - band[1])[rows]
        better = (high - low < before) & size.isfinite()
        if not bool(better.any()):
            return None
        some = (better, torch.zeros_like(low))
        squares = [torch.where(some[0], a, some[1]) for a in squares]
        crossed = torch.where(some[0], crossed, some[1])
        products, shift = self._products([part.linear for part in parts], squares, crossed)
        bulk = _total(
            [a.abs() * part.reach.square() for a, part in zip(squares, parts, strict=True)]
            + ([crossed.abs() * parts[0].reach * parts[1].reach] if len(parts) == 2 else [])
        )
        chosen = tuple(_replace(a, b, better, rows) for a, b in zip(band[0], slope, strict=True))
        low, high = (_replace(a, b + shift, better, rows) for a, b in ((band[1], low), (band[2], high)))
        whole = torch.zeros_like(low)
        whole[rows] = bulk
        n = self.inputs.count
        return CurvedBand((chosen, low, high), products, n, rows, whole, n)

    def _part(self, form: Form, curve: SmoothCurve | None, rows: slice) -> "CurvedArgument":
        """One argument of a function in some rows, which include those of its form."""
        n = self.inputs.count
        linear = form.centre.new_zeros((rows.stop - rows.start, n, form.centre.shape[1]))
        linear[relative_rows(form.rows, rows)] = form.generators[:, :n]
        centre = form.centre[rows]
        reach = round_up(form.radius[rows] + form.error[rows], FORM_HALF_WIDTH)
        inputs = round_up(self._linear_measure(linear), FORM_RADIUS, n)
        rest = (reach - inputs).clamp_min(0) + charge(reach + inputs, FORM_REST, n)
        if curve is None:
            one, zero = torch.ones_like(centre), torch.zeros_like(centre)
            return CurvedArgument(centre, linear, reach, inputs, rest, (centre, one, zero, zero))
        return CurvedArgument(centre, linear, reach, inputs, rest, interpolate_parabola(curve, centre, reach))

    def _products(
        self, linear: list[Tensor], squares: list[Tensor], crossed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The generators (rows, pairs, size) of sum_k squares_k (L_k eps)^2 + crossed (L_0 eps) (L_1 eps), and how far
        they move the centre.
        """
        products: Tensor | None = None
        for k, (part, square) in enumerate(zip(linear, squares, strict=True)):
            other = square[:, None] * part
            if k == 0 and len(linear) == 2:
                other = other + crossed[:, None] * linear[1]
            # (L eps) (U eps) = sum over i < j of (L_i U_j + L_j U_i) eps_i eps_j + sum over i of L_i U_i eps_i^2
            own = part[:, self.first] * other[:, self.second] + part[:, self.second] * other[:, self.first]
            products = own if products is None else products + own
        assert products is not None
        shift = self.share_of_centre * products[:, self.square].sum(1)
        products[:, self.square] *= self.share_of_squares
        return products, shift


@dataclass(frozen=True)
class CurvedArgument:
    """A pre-activation v = centre + L eps + y, |L eps| <= inputs, |y| <= rest, |v - centre| <= reach, and the parabola
    of its function: value, slope, curvature and the largest deviation."""

    centre: Tensor
    linear: Tensor
    reach: Tensor
    inputs: Tensor
    rest: Tensor
    parabola: tuple[Tensor, Tensor, Tensor, Tensor]


# slope of each argument, factors of (L eps)^2 of each and of both together, low, high, and the size of all terms
Curved = tuple[tuple[Tensor, ...], list[Tensor], Tensor, Tensor, Tensor, Tensor]


def _curved_function(v: CurvedArgument) -> Curved:
    """low <= f(v) - slope v - square (L eps)^2 <= high."""
    value, k, k2, stray = v.parabola
    away = stray + k2.abs() * v.rest * (2 * v.inputs + v.rest)
    size = value.abs() + k.abs() * (v.centre.abs() + v.reach) + k2.abs() * v.reach.square() + stray
    away = away + charge(size, FORM_CURVED)
    constant = value - k * v.centre
    return (k,), [k2], torch.zeros_like(k2), constant - away, constant + away, size


def _curved_product(v: CurvedArgument, z: CurvedArgument) -> Curved:
    """The same for s(v) t(z), as the module's docstring derives."""
    (p, k, k2, d), (q, m, m2, e) = v.parabola, z.parabola
    v_curve, z_curve = k2.abs() * v.reach.square() + d, m2.abs() * z.reach.square() + e
    both = k * m
    rest = (
        q.abs() * d
        + p.abs() * e
        + k.abs() * v.reach * z_curve
        + m.abs() * z.reach * v_curve
        + v_curve * z_curve
    )
    squares = [q * k2, p * m2]
    for factor, part in zip(squares, (v, z), strict=True):
        rest = rest + factor.abs() * part.rest * (2 * part.inputs + part.rest)
    rest = rest + both.abs() * (v.inputs * z.rest + v.rest * z.inputs + v.rest * z.rest)
    size = (p.abs() + k.abs() * (v.centre.abs() + v.reach) + v_curve) * (
        q.abs() + m.abs() * (z.centre.abs() + z.reach) + z_curve
    )
    slope = q * k, p * m
    constant = p * q - slope[0] * v.centre - slope[1] * z.centre
    away = rest + charge(size, FORM_CURVED)
    return slope, squares, both, constant - away, constant + away, size


def _curves(node: Relaxed) -> list[SmoothCurve | None] | None:
    """The smooth functions of whose values this one is the product; None as an entry: the pre-activation itself."""
    factors = FACTORS.get(type(node.relaxation))
    given = node.relaxation.curves()
    if given is None or (factors is None and len(node.inputs) > 1):
        return None
    plain = [curve for curve in given if curve is None or _is_plain(curve)]
    return plain if len(plain) == len(given) else None


def _is_plain(curve: Curve) -> TypeGuard[SmoothCurve]:
    return isinstance(curve, SmoothCurve) and curve.given is None and curve.below is None


def _euclidean(generators: Tensor) -> Tensor:
    """Euclidean lengths along the symbols, up to the rounding that every radius is charged."""
    return generators.square().sum(1).sqrt() + UNDERFLOWN_LENGTH


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


def _replace(whole: Tensor, part: Tensor, where: Tensor, rows: slice) -> Tensor:
    """A copy of `whole`, (batch, size), with other values in some elements of these rows."""
    found = whole.clone()
    found[rows] = torch.where(where, part, whole[rows])
    return found


def _no_pairs(device: torch.device) -> Tensor:
    return torch.zeros((2, 0), dtype=torch.long, device=device)
