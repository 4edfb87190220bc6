"""Zonotopes (affine forms): every node is an affine function of shared noise symbols, propagated forward.

Statement. For every x of a box there are noise values eps_k, |eps_k| <= 1, the same ones for all nodes, with

    |value - (centre + sum over k of eps_k generator_k)| <= error    element by element.

The first noise symbols are the inputs. An activation lies within a band around a linear function of its
pre-activation; half the width of the band is the generator of a new noise symbol. Unlike intervals, zonotopes
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
from holdfast.bounding.relax.base import intercept
from holdfast.rounding import TINY, gamma

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
        radius = torch.linalg.vector_norm(generators, 1, dim=1)
        return Form(centre, generators, error, radius * (1 + 2 * gamma(generators.shape[1])))

    def interval_bounds(self) -> tuple[Tensor, Tensor]:
        """The interval bounds of the node: lower, upper (batch, size)."""
        away = (self.radius + self.error) * (1 + 4 * gamma(1)) + 4 * gamma(1) * self.centre.abs() + TINY
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

    @staticmethod
    def over(entry: Node, lower: Tensor, upper: Tensor) -> "Forms":
        """The forms of the inputs: one noise symbol for each."""
        low, high = lower.flatten(1), upper.flatten(1)
        radius = (high / 2 - low / 2) * (1 + 4 * gamma(1)) + 2 * gamma(1) * torch.maximum(
            low.abs(), high.abs()
        )
        radius = torch.where(low == high, 0.0, radius)  # an unperturbed input is constant
        inputs = torch.eye(low.shape[1], dtype=torch.float64, device=low.device).expand(len(low), -1, -1)
        form = Form.of(low / 2 + high / 2, torch.diag_embed(radius), torch.full_like(radius, TINY))
        return Forms({entry: form}, inputs)

    def affine(self, node: Affine) -> None:
        known = [self.of[source] for source in node.inputs if source in self.of]
        if not node.small or len(known) < len(node.inputs):
            return  # too large for generators: this node and its successors have no form
        noises = max(form.generators.shape[1] for form in known)
        if node.copies:
            padded = node.forward([_pad_generators(form.generators, noises) for form in known])
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
            _total([_pad_generators(part, noises) for part in parts]),
            error + 4 * gamma(terms) * (size + error) + TINY,
        )

    def apply_relaxation(self, node: Relaxed, lower: Sequence[Tensor], upper: Sequence[Tensor]) -> None:
        """Propagate through an activation, given the bounds of its inputs, (batch, *shape) each."""
        known = [self.of[source] for source in node.inputs if source in self.of]
        if len(known) < len(node.inputs):
            return
        slope, low, high = _band(node, [end.flatten(1) for end in lower], [end.flatten(1) for end in upper])
        centre = _total([s * form.centre for s, form in zip(slope, known, strict=True)]) + (
            low / 2 + high / 2
        )
        size = _total([s.abs() * form.size for s, form in zip(slope, known, strict=True)]) + torch.maximum(
            low.abs(), high.abs()
        )
        error = (
            _total([s.abs() * form.error for s, form in zip(slope, known, strict=True)])
            + 8 * gamma(len(known)) * size
            + TINY
        )
        half = (high / 2 - low / 2) * (1 + 4 * gamma(1))
        scale = torch.stack(
            [torch.maximum(low.abs(), high.abs()).flatten(1) for low, high in zip(lower, upper, strict=True)]
        ).amax(0)
        own = half > MIN_RELATIVE_BAND * (size + scale)
        count, before = int(own.sum(1).max()), self.share.shape[2]
        widths = torch.where(own, half, 0)
        width, place = widths.topk(count, dim=1)
        generators = half.new_empty((len(half), before + count, half.shape[1]))
        for k, (s, form) in enumerate(zip(slope, known, strict=True)):
            noises = form.generators.shape[1]
            if k == 0:
                torch.mul(form.generators, s[:, None], out=generators[:, :noises])
                generators[:, noises:] = 0
            else:
                generators[:, :noises] += s[:, None] * form.generators
        generators[:, before:].scatter_(2, place.unsqueeze(-1), width.unsqueeze(-1))
        radius = _total([s.abs() * form.radius for s, form in zip(slope, known, strict=True)]) + widths
        radius = radius * (1 + 8 * gamma(len(known)))
        self.of[node] = Form(centre, generators, torch.where(own, error, error + half), radius)
        self._attribute(known, width, place)

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
        return slope, constant - error - 4 * gamma(terms) * size - TINY

    def _attribute(self, arguments: list[Form], width: Tensor, place: Tensor) -> None:
        inputs = self.share.shape[1]
        reach = _total([form.generators[:, :inputs].abs() for form in arguments])
        reach = reach.gather(2, place[:, None].expand(-1, inputs, -1))
        radius = _total([form.radius for form in arguments]).gather(1, place)
        share = torch.where(width[:, None] > 0, reach / radius[:, None], 0)
        self.share = torch.cat([self.share, share], dim=2)


def _band(
    node: Relaxed, lower: list[Tensor], upper: list[Tensor]
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """slope, low, high with low <= f(v) - slope . v <= high.

    The slope is that of the linear lower or upper bound, whichever has the narrower band.
    """
    ends = tuple(lower), tuple(upper)
    below, above = (
        tuple(torch.nan_to_num(s, 0.0, 0.0, 0.0) for s in side) for side in node.relaxation.slopes(*ends)
    )
    low, high = intercept(node.relaxation, *ends, above)
    other_low, other_high = intercept(node.relaxation, *ends, below)
    other = other_high - other_low < high - low
    slope = tuple(torch.where(other, b, a) for a, b in zip(above, below, strict=True))
    return slope, torch.where(other, other_low, low), torch.where(other, other_high, high)


def _total(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _pad_generators(generators: Tensor, noises: int) -> Tensor:
    """Append zeros for the noise symbols that are newer than this form."""
    missing = noises - generators.shape[1]
    return generators if missing == 0 else torch.nn.functional.pad(generators, (0, 0, 0, missing))
