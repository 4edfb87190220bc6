"""Zonotopes (affine forms): every node is an affine function of shared noise symbols, propagated forward.

Statement. For every x of a box there are noise values eps_k, |eps_k| <= 1, the same ones for all nodes, with

    |value - (centre + sum over k of eps_k generator_k)| <= error    element by element.

The first noise symbols are the inputs. An activation lies within a band around a linear function of its
pre-activation; half the width of the band is the generator of a new noise symbol. The error that arrived
joins this band, so the error starts again from the rounding of one step: carried on as an error it would be
multiplied by the absolute values of all later weights, and grow exponentially with the depth. A product of
two pre-activations, as in gated cells, is bounded by how the noise symbols of both interact
(`_product_band`), not over their box alone. Unlike intervals, zonotopes
keep the dependence between neurons; unlike a backward pass from one neuron, they keep the relaxation errors
that neurons share. They cost little compared with a backward pass, and on small boxes their bounds decide
most neurons. Rounding: docs/rounding.md.

References: Stolfi, de Figueiredo, "Self-validated numerical methods and applications" (1997), for affine
arithmetic; Singh et al., "Fast and effective robustness certification" (DeepZ, 2018), for neural networks.

Assumption: the region is a box, or lies in the box that is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Node, Relaxed
from holdfast.bounding.relax.base import LinearBounds, Point, Relaxation, chord, intercept
from holdfast.bounding.relax.gates import SigmoidTanh, SigmoidTimes
from holdfast.bounding.relax.product import Product
from holdfast.bounding.relax.sigmoidal import Sigmoid, Tanh
from holdfast.derivations import (
    FORM_BOUNDS,
    FORM_FUNCTION,
    FORM_HALF_WIDTH,
    FORM_LINEAR_BOUND,
    FORM_MAP,
    FORM_PRODUCT,
    FORM_PRODUCT_RADIUS,
    FORM_RADIUS,
)
from holdfast.rounding import TINY, centre_and_radius, charge, round_up

# How far generators (rows, noise symbols, size) move a value, (rows, size), up to the rounding of sums and roots.
Measure = Callable[[Tensor], Tensor]
Band = tuple[tuple[Tensor, ...], Tensor, Tensor]  # slope, low, high with low <= f(v) - slope . v <= high
# The two factors of a product, each a function of one pre-activation; None: the pre-activation itself.
FACTORS: dict[type[Relaxation], tuple[Relaxation | None, Relaxation | None]] = {
    Product: (None, None),
    SigmoidTimes: (Sigmoid(), None),
    SigmoidTanh: (Sigmoid(), Tanh()),
}

# A band narrower than this share of its value gets no noise symbol (chosen by hand).
MIN_RELATIVE_BAND = 2.0**-40


@dataclass(frozen=True)
class Form:
    """The affine form of one node.

    centre and error are (batch, size), generators (rows, noise symbols, size), radius (batch, size) the sum
    of their absolute values. `rows` is the slice of the batch to which the generators belong; in all other
    rows they are zero.
    """

    centre: Tensor
    generators: Tensor
    error: Tensor
    radius: Tensor
    rows: slice

    @staticmethod
    def of(
        centre: Tensor,
        generators: Tensor,
        error: Tensor,
        rows: slice | None = None,
        measure: "Measure | None" = None,
    ) -> "Form":
        """The form with these generators; rows: default all. measure: default `sum_of_sizes`."""
        rows = slice(0, len(centre)) if rows is None else rows
        radius = (sum_of_sizes if measure is None else measure)(generators)
        radius = round_up(radius, FORM_RADIUS, generators.shape[1])
        return Form(centre, generators, error, _within_batch(radius, rows, len(centre)), rows)

    def interval_bounds(self) -> tuple[Tensor, Tensor]:
        """The interval bounds of the node: lower, upper (batch, size)."""
        away = self.radius + self.error
        away = away + charge(away + self.centre.abs(), FORM_BOUNDS)
        return self.centre - away, self.centre + away

    @property
    def size(self) -> Tensor:
        return self.centre.abs() + self.radius + self.error


def sum_of_sizes(generators: Tensor) -> Tensor:
    """How far noise symbols that are independent of each other move a value."""
    return generators.abs().sum(1)  # three times as fast as a norm along this axis


@dataclass(frozen=True)
class CurvedBand:
    """A band around a linear function and products of noise symbols, row by row of the batch:

        low <= f(v) - slope . v - sum over k of products_k eps_k <= high.

    Attributes:
        products: (rows, columns, size), the generators of noise symbols from column `first` on.
        size: (batch, size), at least what the absolute values of all terms of `products` could move.
        terms: the number of terms of the longest sum in the band.
    """

    band: Band
    products: Tensor
    first: int
    rows: slice
    size: Tensor
    terms: int


@dataclass
class Forms:
    """The affine forms of all nodes over a batch of boxes.

    share (batch, inputs, noise symbols) attributes every noise symbol to the inputs; it guides splits and
    proves nothing.
    """

    of: dict[Node, Form]
    share: Tensor

    @property
    def count(self) -> int:
        """The number of noise symbols so far."""
        return self.share.shape[2]

    def measure(self, generators: Tensor) -> Tensor:
        """How far generators (rows, noise symbols, size) move a value at most, up to rounding."""
        return sum_of_sizes(generators)

    def curved_band(
        self, node: Relaxed, ends: tuple[Point, Point], known: Sequence[Form], band: Band
    ) -> CurvedBand | None:
        """A band around a function with products of noise symbols, where it is narrower than the given band."""
        return None

    @staticmethod
    def over(entry: Node, lower: Tensor, upper: Tensor) -> "Forms":
        """The forms of the inputs: one noise symbol for each."""
        low, high = lower.flatten(1), upper.flatten(1)
        radius = input_radius(low, high)
        inputs = torch.eye(low.shape[1], dtype=torch.float64, device=low.device).expand(len(low), -1, -1)
        form = Form.of(low / 2 + high / 2, torch.diag_embed(radius), torch.full_like(radius, TINY))
        return Forms({entry: form}, inputs)

    def affine(self, node: Affine) -> None:
        known = [self.of[source] for source in node.inputs if source in self.of]
        if not self.carries(node) or len(known) < len(node.inputs):
            return  # too large for generators: this node and its successors have no form
        noises = max(form.generators.shape[1] for form in known)
        rows = hull_of_rows([form.rows for form in known])
        if node.copies:
            padded = node.forward([pad_generators(form, noises, rows) for form in known])
            centre, error, radius = (
                node.forward(parts)
                for parts in zip(*((f.centre, f.error, f.radius) for f in known), strict=True)
            )
            self.of[node] = Form(centre, padded, error, radius, rows)
            return
        # Generators that are zero in all boxes, as of inactive neurons, are left out of products; NaN is
        # kept.
        moving = [(form.radius != 0).any(0).nonzero().flatten() for form in known]
        parts = [
            node.part(k, form.generators, support=some)
            for k, (form, some) in enumerate(zip(known, moving, strict=True))
        ]
        error = node.forward_absolute([form.error for form in known], shift=False)
        size = node.forward_absolute([form.size for form in known])
        terms = sum(source.size for source in node.inputs) + len(node.inputs)
        self.of[node] = Form.of(
            node.forward([form.centre for form in known]),
            _add_generators(known, parts, noises, rows),
            error + charge(size + error, FORM_MAP, terms),
            rows,
            self.measure,
        )

    def apply_relaxation(
        self,
        node: Relaxed,
        lower: Sequence[Tensor],
        upper: Sequence[Tensor],
        relaxed: LinearBounds | None = None,
    ) -> Band | None:
        """Propagate through an activation, given the bounds of its inputs, (batch, *shape) each.

        The error that arrives joins the band, so that a noise symbol carries it on: as an error it would
        grow with the absolute values of all later weights.

        Args:
            relaxed: linear bounds of the activation between these bounds, if they are known already.

        Returns:
            A band around a linear function, if the node has a form: for every x, low <= f(v) - slope . v <= high
            at the values v of the inputs.
        """
        known = [self.of[source] for source in node.inputs if source in self.of]
        if len(known) < len(node.inputs):
            return None
        box = [end.flatten(1) for end in lower], [end.flatten(1) for end in upper]
        linear = _band(node, *box, known, relaxed, self.measure)
        curved = self.curved_band(node, (tuple(box[0]), tuple(box[1])), known, linear)
        slope, low, high = linear if curved is None else curved.band
        centre = _total([s * form.centre for s, form in zip(slope, known, strict=True)]) + (
            low / 2 + high / 2
        )
        size = _total([s.abs() * form.size for s, form in zip(slope, known, strict=True)]) + torch.maximum(
            low.abs(), high.abs()
        )
        size = size if curved is None else size + curved.size
        rounding = charge(size, FORM_FUNCTION, len(known) + (0 if curved is None else curved.terms))
        arrived = _total([s.abs() * form.error for s, form in zip(slope, known, strict=True)])
        half = round_up((high / 2 - low / 2) + arrived, FORM_HALF_WIDTH, len(known))
        scale = torch.stack([_largest(low, high) for low, high in zip(*box, strict=True)]).amax(0)
        own = half > MIN_RELATIVE_BAND * (size + scale)
        own = own & self.names_error(node, int(own.sum(1).max()))
        rows = hull_of_rows([*(form.rows for form in known), rows_with_any(own)])
        count, before = int(own.sum(1).max()), self.count
        generators = half.new_empty((rows.stop - rows.start, before + count, half.shape[1]))
        for k, (s, form) in enumerate(zip(slope, known, strict=True)):
            noises = form.generators.shape[1]
            if k == 0 and form.rows == rows:
                torch.mul(form.generators, s[rows, None], out=generators[:, :noises])
                generators[:, noises:] = 0
                continue
            if k == 0:
                generators.zero_()
            inside = relative_rows(form.rows, rows)
            generators[inside, :noises].addcmul_(form.generators, s[form.rows, None])
        if curved is not None:
            inside, last = relative_rows(curved.rows, rows), curved.first + curved.products.shape[1]
            generators[inside, curved.first : last] += curved.products
        width, place = self._add_noise(generators, own, half, rows)
        error = torch.where(own, rounding, rounding + half)
        self.of[node] = Form.of(centre, generators, error, rows, self.measure)
        self._attribute(known, width, place)
        return linear

    def place_constant(self, node: Node, bounds: tuple[Tensor, Tensor] | None) -> None:
        """Give a node that does not vary the form of an interval lower, upper (batch, *shape); None: nobody reads it."""
        if bounds is None:
            return
        centre, error = centre_and_radius(*(end.flatten(1) for end in bounds))
        none = centre.new_zeros((0, self.count, centre.shape[1]))
        self.of[node] = Form(centre, none, error, torch.zeros_like(centre), slice(0, 0))

    def carries(self, node: Affine) -> bool:
        """Whether a map of nodes with forms has a form; its successors have none otherwise."""
        return node.small

    def names_error(self, node: Relaxed, count: int) -> bool:
        """Whether the band of this activation, of `count` elements at most, becomes noise at once, and not an error
        that a later node names.
        """
        return True

    def _add_noise(self, generators: Tensor, own: Tensor, half: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Make the last columns of generators (rows, noise symbols, size) those of new symbols of radius `half`
        for the elements `own`, (batch, size) each.

        Returns their radii and elements, (batch, new symbols) each.
        """
        count = int(own.sum(1).max())
        width, place = torch.where(own, half, 0).topk(count, dim=1)
        new = generators[:, generators.shape[1] - count :]
        new.scatter_(2, place[rows].unsqueeze(-1), width[rows].unsqueeze(-1))
        return width, place

    def linear_lower_bound(self, entry: Node, node: Node, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A linear lower bound of rows . node as a function of the input.

        Args:
            rows: (batch, rows, size).

        Returns:
            slope (batch, rows, inputs), constant (batch, rows) with slope . x + constant <= row . node. The
            noise of an input is its distance from the centre in units of its generator; all other noises are
            at their worst.
        """
        form, inputs = self.of[node], self.of[entry]
        count = inputs.centre.shape[1]
        effect = form.generators @ rows.transpose(1, 2)  # (batch, noise symbols, rows)
        unit = inputs.generators.diagonal(dim1=1, dim2=2).unsqueeze(-1)
        slope = torch.where(unit > 0, effect[:, :count] / unit, 0).transpose(1, 2)
        moved = (slope.abs() @ inputs.centre.abs().unsqueeze(-1)).squeeze(-1)
        others = effect[:, count:].abs().sum(1)
        constant = (rows @ form.centre.unsqueeze(-1) - slope @ inputs.centre.unsqueeze(-1)).squeeze(
            -1
        ) - others
        error = (rows.abs() @ form.error.unsqueeze(-1)).squeeze(-1)
        size = (rows.abs() @ form.size.unsqueeze(-1)).squeeze(-1) + moved + others
        terms = form.centre.shape[1] + effect.shape[1] + count
        return slope, constant - error - charge(size, FORM_LINEAR_BOUND, terms)

    def attribute(self, effect: Tensor) -> Tensor:
        """(batch, noise symbols, 1) -> (batch, inputs): effects of noise symbols, attributed to the inputs."""
        return (self.share[:, :, : effect.shape[1]] @ effect).squeeze(-1)

    def _attribute(self, arguments: list[Form], width: Tensor, place: Tensor) -> None:
        inputs = self.share.shape[1]
        reach = _total([form.generators[:, :inputs].abs() for form in arguments])
        reach = reach.gather(2, place[:, None].expand(-1, inputs, -1))
        radius = _total([form.radius for form in arguments]).gather(1, place)
        # A radius of zero or infinity attributes nothing; NaN would hide the shares of all other noise symbols.
        share = torch.nan_to_num(torch.where(width[:, None] > 0, reach / radius[:, None], 0), 0.0, 0.0)
        self.share = torch.cat([self.share, share], dim=2)


def input_radius(low: Tensor, high: Tensor) -> Tensor:
    """The radius of inputs around low / 2 + high / 2, rounded up; zero where an input is not perturbed."""
    return torch.where(low == high, 0.0, centre_and_radius(low, high)[1])


def _band(
    node: Relaxed,
    lower: list[Tensor],
    upper: list[Tensor],
    known: Sequence[Form],
    relaxed: LinearBounds | None,
    measure: Measure = sum_of_sizes,
) -> Band:
    """slope, low, high with low <= f(v) - slope . v <= high.

    The slope is that of a product of two forms (`_product_band`), or of the linear lower or upper bound,
    whichever has the narrower band.
    """
    ends = tuple(lower), tuple(upper)
    factors = FACTORS.get(type(node.relaxation))
    if factors is not None:
        return _product_band(node.relaxation, factors, ends, known, measure)
    if relaxed is not None and all(a is b for a, b in zip(relaxed.lower, relaxed.upper, strict=True)):
        slope = tuple(s.flatten(1) for s in relaxed.lower)
        found = slope, relaxed.lower_offset.flatten(1), relaxed.upper_offset.flatten(1)
    else:
        below, above = (
            tuple(torch.nan_to_num(s, 0.0, 0.0, 0.0) for s in side) for side in node.relaxation.slopes(*ends)
        )
        found = _narrower(
            (above, *intercept(node.relaxation, *ends, above)),
            (below, *intercept(node.relaxation, *ends, below)),
        )
    return found


def _narrower(one: Band, other: Band) -> Band:
    """The narrower of two bands, element by element."""
    better = other[2] - other[1] < one[2] - one[1]
    slope = tuple(torch.where(better, b, a) for a, b in zip(one[0], other[0], strict=True))
    return slope, torch.where(better, other[1], one[1]), torch.where(better, other[2], one[2])


def _product_band(
    relaxation: Relaxation,
    factors: Sequence[Relaxation | None],
    ends: tuple[Point, Point],
    known: Sequence[Form],
    measure: Measure = sum_of_sizes,
) -> Band:
    """slope, low, high with low <= s(v) t(z) - a v - b z <= high wherever v and z follow their forms.

    With linear bounds s(v) = k v + i + d', |d'| <= d, and t(z) = m z + j + e', |e'| <= e, and the distances
    x = v - v_c, y = z - z_c from the centres of the forms,

        s = p + X,  p = k v_c + i,  X = k x + d',     t = q + Y,  q = m z_c + j,  Y = m y + e',
        s t = p q + q k x + p m y + q d' + p e' + X Y.

    For every c > 0, X Y = ((X + c Y)^2 - (X - c Y)^2) / (4 c). With c = k r / m, |X + c Y| <= k P + d + c e and
    |X - c Y| <= k N + d + c e, where P and N are the radii of the affine forms x + r y and x - r y. The box alone
    gives |X Y| <= |X| |Y|, twice as much where many noise symbols enter v and z independently. The band is
    intersected with that of the function over the box.

    Rounding: every term is at most `size` and takes fewer than 16 operations; there are fewer than 16 terms,
    which `FORM_PRODUCT` covers.
    """
    (lows, highs), (v, z) = ends, known
    curve = [_line(factor, low, high) for factor, low, high in zip(factors, lows, highs, strict=True)]
    (k, i, d), (m, j, e) = curve
    p, q = k * v.centre + i, m * z.centre + j
    slope = torch.nan_to_num(k * q, 0.0, 0.0, 0.0), torch.nan_to_num(m * p, 0.0, 0.0, 0.0)
    v_reach, z_reach = v.radius + v.error, z.radius + z.error
    one, other = k * v_reach + d, m * z_reach + e  # |X|, |Y|
    ratio = one / other * (m / k)
    ratio = torch.where(ratio.isfinite() & (ratio > 0), ratio, 1.0)
    scale = k * ratio / m
    # Below, an underflow could change the scale; the bound |X| |Y| needs none.
    usable = (k * ratio > TINY) & (scale > TINY) & (scale < 1 / TINY)
    whole, terms = v_reach + ratio * z_reach, v.generators.shape[1] + z.generators.shape[1]
    squares = []
    for both in _radii_of_sum_and_difference(v, z, ratio, measure):
        radius = both + v.error + ratio * z.error + charge(whole, FORM_PRODUCT_RADIUS, terms)
        radius = k * radius + d + scale * e
        square = (radius / (2 * scale)) * (radius / 2)  # a square could underflow
        squares.append(torch.minimum(torch.where(usable, square, torch.inf), one * other))
    most, least = squares
    away = q.abs() * d + p.abs() * e
    constant = p * q - slope[0] * v.centre - slope[1] * z.centre
    size = (k.abs() * (v.size + _largest(lows[0], highs[0])) + i.abs() + d) * (
        m.abs() * (z.size + _largest(lows[1], highs[1])) + j.abs() + e
    )
    slack = charge(size, FORM_PRODUCT)
    low, high = constant - least - away - slack, constant + most + away + slack
    boxed = intercept(relaxation, *ends, slope)
    low = torch.maximum(torch.nan_to_num(low, -torch.inf, torch.inf, -torch.inf), boxed[0])
    high = torch.minimum(torch.nan_to_num(high, torch.inf, torch.inf, -torch.inf), boxed[1])
    return slope, low, torch.maximum(low, high)


def _largest(lower: Tensor, upper: Tensor) -> Tensor:
    return torch.maximum(lower.abs(), upper.abs())


def _line(factor: Relaxation | None, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """slope, offset, half width with |factor(v) - slope v - offset| <= half width on lower <= v <= upper."""
    if factor is None:
        return torch.ones_like(lower), torch.zeros_like(lower), torch.zeros_like(lower)
    ends = (lower,), (upper,)
    ((least, most),) = factor.derivative_range(*ends) or [(lower, upper)]
    slope = chord(factor.function(lower), factor.function(upper), lower, upper, least / 2 + most / 2)
    slope = torch.nan_to_num(slope, 0.0, 0.0, 0.0)
    low, high = intercept(factor, *ends, (slope,))
    return slope, *centre_and_radius(low, high)


def _total(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _radii_of_sum_and_difference(
    v: Form, z: Form, ratio: Tensor, measure: Measure = sum_of_sizes
) -> list[Tensor]:
    """[P, N], (batch, size) each: how far G_v + ratio G_z and G_v - ratio G_z move a value."""
    rows = slice(max(v.rows.start, z.rows.start), min(v.rows.stop, z.rows.stop))
    apart = v.radius + ratio * z.radius  # where only one of them has generators
    if rows.start >= rows.stop:
        return [apart, apart]
    one = v.generators[relative_rows(rows, v.rows)]
    other = ratio[rows, None] * z.generators[relative_rows(rows, z.rows)]
    count = min(one.shape[1], other.shape[1])
    rest = sum_of_sizes(one[:, count:]) + sum_of_sizes(other[:, count:])
    found = []
    for sign in (1.0, -1.0):
        found.append(apart.clone())
        found[-1][rows] = measure(torch.add(one[:, :count], other[:, :count], alpha=sign)) + rest
    return found


def _add_generators(known: list[Form], parts: list[Tensor], noises: int, rows: slice) -> Tensor:
    """The sum of the parts that the forms contribute to the generators of a map, in these rows."""
    shape = rows.stop - rows.start, noises, parts[0].shape[2]
    # A part that was computed for this sum, and has all rows and noise symbols, can take up the others.
    pairs = list(enumerate(zip(known, parts, strict=True)))
    fresh = [k for k, (form, part) in pairs if part.shape == shape and part is not form.generators]
    total = parts[fresh[0]] if fresh else parts[0].new_zeros(shape)
    for k, (form, part) in pairs:
        if k not in fresh[:1]:
            total[relative_rows(form.rows, rows), : part.shape[1]] += part
    return total


def pad_generators(form: Form, noises: int, rows: slice) -> Tensor:
    """The generators of a form in these rows, which include its own, with zeros for newer noise symbols."""
    inside, missing = relative_rows(form.rows, rows), noises - form.generators.shape[1]
    after = rows.stop - rows.start - inside.stop
    if missing == inside.start == after == 0:
        return form.generators
    return torch.nn.functional.pad(form.generators, (0, 0, 0, missing, inside.start, after))


def hull_of_rows(parts: Sequence[slice]) -> slice:
    """The smallest slice of the batch that contains all these slices; empty ones count nothing."""
    some = [rows for rows in parts if rows.start < rows.stop]
    return slice(min(r.start for r in some), max(r.stop for r in some)) if some else slice(0, 0)


def relative_rows(rows: slice, whole: slice) -> slice:
    """Where rows of the batch are in a tensor that holds only the rows of `whole`."""
    return slice(rows.start - whole.start, rows.stop - whole.start) if rows.start < rows.stop else slice(0, 0)


def rows_with_any(marks: Tensor) -> slice:
    """The smallest slice with all rows in which an element is marked; marks (batch, size) bool."""
    rows = marks.any(1).nonzero().flatten()
    return slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0, 0)


def _within_batch(part: Tensor, rows: slice, batch: int) -> Tensor:
    """(rows, size) -> (batch, size), zero in the other rows."""
    if rows == slice(0, batch):
        return part
    return torch.nn.functional.pad(part, (0, 0, rows.start, batch - rows.stop))
