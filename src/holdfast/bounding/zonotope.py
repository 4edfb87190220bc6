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
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Node, Relaxed
from holdfast.bounding.relax.base import LinearBounds, Point, Relaxation, chord, intercept, value_range
from holdfast.bounding.relax.gates import SigmoidTanh, SigmoidTimes
from holdfast.bounding.relax.product import Product
from holdfast.bounding.relax.sigmoidal import Sigmoid, Tanh
from holdfast.derivations import (
    FORM_BOUNDS,
    FORM_FUNCTION,
    FORM_FUNCTION_RADIUS,
    FORM_HALF_WIDTH,
    FORM_LINEAR_BOUND,
    FORM_MAP,
    FORM_PRODUCT,
    FORM_PRODUCT_RADIUS,
    FORM_RADIUS,
)
from holdfast.rounding import TINY, centre_and_radius, charge, round_up

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

    centre and error are (batch, size), generators (batch, noise symbols, size), radius (batch, size) the sum
    of their absolute values.
    """

    centre: Tensor
    generators: Tensor
    error: Tensor
    radius: Tensor

    @staticmethod
    def of(centre: Tensor, generators: Tensor, error: Tensor) -> "Form":
        radius = generators.abs().sum(1)  # three times as fast as a norm along this axis
        return Form(centre, generators, error, round_up(radius, FORM_RADIUS, generators.shape[1]))

    def interval_bounds(self) -> tuple[Tensor, Tensor]:
        """The interval bounds of the node: lower, upper (batch, size)."""
        away = self.radius + self.error
        away = away + charge(away + self.centre.abs(), FORM_BOUNDS)
        return self.centre - away, self.centre + away

    @property
    def size(self) -> Tensor:
        return self.centre.abs() + self.radius + self.error


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
        if not node.small or len(known) < len(node.inputs):
            return  # too large for generators: this node and its successors have no form
        noises = max(form.generators.shape[1] for form in known)
        if node.copies:
            padded = node.forward([pad_generators(form.generators, noises) for form in known])
            centre, error, radius = (
                node.forward(parts)
                for parts in zip(*((f.centre, f.error, f.radius) for f in known), strict=True)
            )
            self.of[node] = Form(centre, padded, error, radius)
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
            _add_generators(parts),
            error + charge(size + error, FORM_MAP, terms),
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
            The band that the form uses, if the node has a form: for every x, low <= f(v) - slope . v <= high
            at the values v of the inputs.
        """
        known = [self.of[source] for source in node.inputs if source in self.of]
        if len(known) < len(node.inputs):
            return None
        box = [end.flatten(1) for end in lower], [end.flatten(1) for end in upper]
        slope, low, high = _band(node, *box, known, relaxed)
        centre = _total([s * form.centre for s, form in zip(slope, known, strict=True)]) + (
            low / 2 + high / 2
        )
        size = _total([s.abs() * form.size for s, form in zip(slope, known, strict=True)]) + torch.maximum(
            low.abs(), high.abs()
        )
        rounding = charge(size, FORM_FUNCTION, len(known))
        arrived = _total([s.abs() * form.error for s, form in zip(slope, known, strict=True)])
        half = round_up((high / 2 - low / 2) + arrived, FORM_HALF_WIDTH, len(known))
        scale = torch.stack([_largest(low, high) for low, high in zip(*box, strict=True)]).amax(0)
        own = half > MIN_RELATIVE_BAND * (size + scale)
        count, before = int(own.sum(1).max()), self.count
        widths = torch.where(own, half, 0)
        width, place = widths.topk(count, dim=1)
        generators = half.new_empty((len(half), before + count, half.shape[1]))
        for k, (s, form) in enumerate(zip(slope, known, strict=True)):
            noises = form.generators.shape[1]
            if k == 0:
                torch.mul(form.generators, s[:, None], out=generators[:, :noises])
                generators[:, noises:] = 0
            else:
                generators[:, :noises].addcmul_(form.generators, s[:, None])
        generators[:, before:].scatter_(2, place.unsqueeze(-1), width.unsqueeze(-1))
        radius = _total([s.abs() * form.radius for s, form in zip(slope, known, strict=True)]) + widths
        radius = round_up(radius, FORM_FUNCTION_RADIUS, len(known))
        self.of[node] = Form(centre, generators, torch.where(own, rounding, rounding + half), radius)
        self._attribute(known, width, place)
        return slope, low, high

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

    def _attribute(self, arguments: list[Form], width: Tensor, place: Tensor) -> None:
        inputs = self.share.shape[1]
        reach = _total([form.generators[:, :inputs].abs() for form in arguments])
        reach = reach.gather(2, place[:, None].expand(-1, inputs, -1))
        radius = _total([form.radius for form in arguments]).gather(1, place)
        share = torch.where(width[:, None] > 0, reach / radius[:, None], 0)
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
) -> Band:
    """slope, low, high with low <= f(v) - slope . v <= high.

    The slope is that of the linear lower or upper bound, or of a product of two forms, whichever has the
    narrowest band.
    """
    ends = tuple(lower), tuple(upper)
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
    factors = FACTORS.get(type(node.relaxation))
    if factors is None:
        return found
    return _narrower(found, _product_band(node.relaxation, factors, ends, known))


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
) -> Band:
    """slope, low, high with low <= s(v) t(z) - a v - b z <= high wherever v and z follow their forms.

    With the linear bounds s(v) = p(v) + d, p(v) = k v + i, and t(z) = q(z) + e, q(z) = m z + j,

        s t = p q + p e + d t,   p q = p(v_c) q(z_c) + k q(z_c) x + m p(v_c) y + k m x y,

    where x = v - v_c and y = z - z_c are the distances from the centres of the forms. For every scale
    r > 0, x y = ((x + r y)^2 - (x - r y)^2) / (4 r), and x + r y, x - r y are affine forms themselves, with
    radii P and N: x y is in [-N^2, P^2] / (4 r). The box alone gives |x y| <= |x| |y|, twice as much where
    many noise symbols enter v and z independently. The band is intersected with that of the box.

    Rounding: every term is at most `size` and takes fewer than 16 operations; there are fewer than 16 terms,
    which `FORM_PRODUCT` covers.
    """
    (lows, highs), (v, z) = ends, known
    curve = [_line(factor, low, high) for factor, low, high in zip(factors, lows, highs, strict=True)]
    (k, i, d), (m, j, e) = curve
    p, q = k * v.centre + i, m * z.centre + j
    slope = torch.nan_to_num(k * q, 0.0, 0.0, 0.0), torch.nan_to_num(m * p, 0.0, 0.0, 0.0)
    ratio = (v.radius + v.error) / (z.radius + z.error)
    ratio = torch.where(ratio.isfinite() & (ratio > 0), ratio, 1.0)
    count = min(v.generators.shape[1], z.generators.shape[1])
    scaled = ratio[:, None] * z.generators
    whole = (v.radius + v.error) + ratio * (z.radius + z.error)
    radii = []
    for sign in (1.0, -1.0):
        both = torch.add(v.generators[:, :count], scaled[:, :count], alpha=sign).abs_().sum(1)
        for rest in (v.generators[:, count:], scaled[:, count:]):
            both = both + rest.abs().sum(1)
        terms = v.generators.shape[1] + z.generators.shape[1]
        radii.append(both + v.error + ratio * z.error + charge(whole, FORM_PRODUCT_RADIUS, terms))
    most, least = ((radius / (2 * ratio)) * (radius / 2) for radius in radii)  # a square could underflow
    bend, reach = k * m, (v.radius + v.error) * (z.radius + z.error)
    most, least = torch.minimum(most, reach), torch.minimum(least, reach)
    low = torch.minimum(-bend * least, bend * most)
    high = torch.maximum(-bend * least, bend * most)
    first = _line_range(k, i, lows[0], highs[0])
    second = _factor_range(factors[1], lows[1], highs[1])
    for one, other in ((first, (-e, e)), ((-d, d), second)):
        products = torch.stack([a * b for a in one for b in other])
        low, high = low + products.amin(0), high + products.amax(0)
    constant = p * q - slope[0] * v.centre - slope[1] * z.centre
    size = (k.abs() * (v.size + _largest(lows[0], highs[0])) + i.abs() + d) * (
        m.abs() * (z.size + _largest(lows[1], highs[1])) + j.abs() + e
    )
    slack = charge(size, FORM_PRODUCT)
    low, high = constant + low - slack, constant + high + slack
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


def _line_range(slope: Tensor, offset: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The values of an increasing line at the ends; its rounding is charged by the caller."""
    ends = torch.stack([slope * lower + offset, slope * upper + offset])
    return ends.amin(0), ends.amax(0)


def _factor_range(factor: Relaxation | None, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    return (lower, upper) if factor is None else value_range(factor, (lower,), (upper,))


def _total(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _add_generators(parts: list[Tensor]) -> Tensor:
    """The sum of generators; noise symbols that are newer than a form are zero in it."""
    longest = max(parts, key=lambda part: part.shape[1])
    others = [part for part in parts if part is not longest]
    if not others:
        return longest
    if len(others) == 1 and others[0].shape[1] == longest.shape[1]:
        return longest + others[0]
    total = longest.clone()
    for part in others:
        total[:, : part.shape[1]] += part
    return total


def pad_generators(generators: Tensor, noises: int) -> Tensor:
    """Append zeros for the noise symbols that are newer than this form."""
    missing = noises - generators.shape[1]
    return generators if missing == 0 else torch.nn.functional.pad(generators, (0, 0, 0, missing))
