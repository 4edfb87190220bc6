"""Affine forms of wide networks with few varying inputs: noise symbols of the inputs, and of errors while few are live.

Statement. As in `zonotope`: for every x of a box there are noise values eps_k, |eps_k| <= 1, with

    |value - (centre + sum over k of eps_k generator_k)| <= error    element by element.

An activation's band becomes noise symbols, one for each element, as long as the generators of a box still hold at most
`values` numbers at the widest node that follows. Otherwise the band joins the error, which the next maps carry on by the
absolute values of their weights, until a later activation names it. Few inputs leave few neurons of a small box
unstable, so symbols suffice for nearly all of them, even where a backward pass to each of 50,000 neurons would cost
thousands of evaluations.

Only inputs that vary in some box of the batch have a symbol.

Assumption: as in `zonotope`.

References: see `zonotope`.
"""

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed
from holdfast.bounding.zonotope import Form, Forms, input_radius
from holdfast.derivations import FORM_LINEAR_BOUND
from holdfast.rounding import TINY, charge


class InputForms(Forms):
    """The affine forms of all nodes over a batch of boxes, (batch, *shape) each, with at most `values` generator values
    for a box at any node, as far as the inputs allow.

    moving (symbols,): the input to which each of the first noise symbols belongs. share (batch, moving inputs, noise
    symbols).
    """

    def __init__(self, graph: Graph, lower: Tensor, upper: Tensor, values: int) -> None:
        low, high = lower.flatten(1), upper.flatten(1)
        radius = input_radius(low, high)
        self.moving = (radius > 0).any(0).nonzero().flatten()
        self.radius = radius[:, self.moving]
        generators = radius.new_zeros((len(low), len(self.moving), low.shape[1]))
        at = torch.arange(len(self.moving), device=low.device)
        generators[:, at, self.moving] = self.radius
        form = Form.of(low / 2 + high / 2, generators, torch.full_like(radius, TINY))
        share = torch.eye(len(self.moving), dtype=torch.float64, device=low.device)
        super().__init__({graph.entry: form}, share.expand(len(low), -1, -1))
        self._most = values
        self._widest = _widest_from(graph)

    def carries(self, node: Affine) -> bool:
        return True

    def names_error(self, node: Relaxed, count: int) -> bool:
        return (self.count + count) * self._widest[node] <= self._most

    def attribute(self, effect: Tensor) -> Tensor:
        inputs = super().attribute(effect)
        whole = inputs.new_zeros((len(inputs), self._inputs))
        whole[:, self.moving] = inputs
        return whole

    @property
    def _inputs(self) -> int:
        return next(iter(self._widest)).size

    def linear_lower_bound(self, entry: Node, node: Node, rows: Tensor) -> tuple[Tensor, Tensor]:
        """As `Forms.linear_lower_bound`; inputs without a symbol have slope zero."""
        form, centre = self.of[node], self.of[entry].centre
        count = len(self.moving)
        effect = form.generators @ rows.transpose(1, 2)  # (batch, noise symbols, rows)
        unit = self.radius.unsqueeze(-1)
        slope = rows.new_zeros((*rows.shape[:2], entry.size))
        slope[:, :, self.moving] = torch.where(unit > 0, effect[:, :count] / unit, 0).transpose(1, 2)
        moved = (slope.abs() @ centre.abs().unsqueeze(-1)).squeeze(-1)
        others = effect[:, count:].abs().sum(1)
        inputs = effect[:, :count].abs().sum(1)
        constant = (rows @ form.centre.unsqueeze(-1) - slope @ centre.unsqueeze(-1)).squeeze(-1) - others
        error = (rows.abs() @ form.error.unsqueeze(-1)).squeeze(-1)
        size = (rows.abs() @ form.size.unsqueeze(-1)).squeeze(-1) + moved + others + inputs
        terms = form.centre.shape[1] + effect.shape[1] + count
        return slope, constant - error - charge(size, FORM_LINEAR_BOUND, terms)


def _widest_from(graph: Graph) -> dict[Node, int]:
    """For each node the size of the largest node from it on, the input first."""
    found, widest = dict[Node, int](), 0
    for node in reversed(graph.nodes):
        widest = max(widest, node.size)
        found[node] = widest
    return dict(reversed(found.items()))


def is_wide(graph: Graph) -> bool:
    """Whether the network has maps whose matrices are too large to be stored."""
    return any(isinstance(node, Affine) and not node.small for node in graph.nodes)


def moving_inputs(lower: Tensor, upper: Tensor) -> int:
    """The largest number of inputs that vary in one box."""
    return int((lower < upper).flatten(1).sum(1).max())


def varies_little(lower: Tensor, upper: Tensor) -> bool:
    """Whether at most half of the inputs vary in any box."""
    return 2 * int((lower < upper).flatten(1).any(0).sum()) <= lower[0].numel()
