"""Affine forms with a bounded number of noise symbols: bounds of long and deep networks at linear cost.

Statement. As in `zonotope`, for every x of the region there are noise values eps_k, |eps_k| <= 1, with

    |value - (centre + sum over k of eps_k generator_k)| <= error    element by element,

the same noise values for all nodes that are still read (live nodes). Order reduction replaces the noise
symbols k of a set S, in all live nodes together, by an interval in each:

    |sum over k in S of eps_k generator_k| <= sum over k in S of |generator_k|,

and gives every element of the live nodes one noise symbol with this radius, which takes up the error as well.
S holds the symbols whose replacement loses least: a symbol that moves a single element of a node loses
nothing there (`_loss`). Elements are weighted by their influence on the output (`influence`). S is chosen for
every row of the batch by itself. The bands of activations that only a sum reads become one symbol there.

Rows of the batch. Generators are stored for the slice of rows in which a node varies: where row k perturbs frame
k alone, no row costs anything before its frame. Such a row begins with the first columns, which it does not use
yet.

Cost. With at most `most` noise symbols, every node costs at most `most` times its size in time, and only live
nodes are stored. `consumer_first_order` keeps few nodes of a recurrent network alive: all layers of one frame
come before the next frame. So, for a given `most`, time is linear in frames and in layers, and memory grows
with the layers only. (`first_bounds` lets `most` grow with the number of live values of deep networks.)

Inputs. A noise symbol for an input is introduced where the input is first read. Copies of one input that are
read by different nodes get symbols of their own, which is sound: both have the value of that input.

Reference: Girard, "Reachability of uncertain linear systems using zonotopes" (2005), for order reduction.

Assumption: as in `zonotope`.
"""

import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed
from holdfast.bounding.relax.base import LinearBounds
from holdfast.bounding.zonotope import (
    MIN_RELATIVE_BAND,
    Band,
    Form,
    Forms,
    hull_of_rows,
    input_radius,
    pad_generators,
    rows_with_any,
)
from holdfast.derivations import FORM_LINEAR_BOUND, FORM_MERGED
from holdfast.rounding import TINY, charge, round_up

# What `ReducedForms.feature` holds for a noise symbol that is no input's, or that a row of the batch does not use.
NO_INPUT, UNUSED = -1, -2
# Least weight of an element, as a share of the largest of all live elements (chosen by hand): an element without
# influence to first order may have some.
LEAST_INFLUENCE = 1e-3


def consumer_first_order(graph: Graph) -> list[Node]:
    """The nodes in the topological order, of three that are tried, in which the fewest values are live at once."""
    orders = [_depth_first(graph, last_first) for last_first in (True, False)]
    return min([*orders, graph.nodes], key=lambda order: max(live_values(graph, order).values()))


def _depth_first(graph: Graph, last_first: bool) -> list[Node]:
    """The nodes in the order in which a depth-first search from the output finishes them."""
    order: list[Node] = []
    found: set[Node] = set()
    stack = [(graph.output, False)]
    while stack:
        node, finished = stack.pop()
        if finished:
            order.append(node)
        elif node not in found:
            found.add(node)
            stack.append((node, True))
            inputs = sorted(node.inputs, key=lambda source: source.place, reverse=last_first)
            stack += [(source, False) for source in inputs]
    return order


def count_readers(graph: Graph) -> dict[Node, int]:
    """How often each node is read; the output has one reader more, so that it stays live."""
    readers = dict.fromkeys(graph.nodes, 0)
    for node in graph.nodes:
        for source in set(node.inputs):
            readers[source] += 1
    readers[graph.output] += 1
    return readers


def _read_by_one_sum(graph: Graph) -> set[Node]:
    """The nodes that a sum reads, once, and no other node."""
    readers = count_readers(graph)
    sums = [node for node in graph.nodes if isinstance(node, Affine) and node.sums]
    return {s for node in sums for s in node.inputs if readers[s] == 1 and node.inputs.count(s) == 1}


def live_values(graph: Graph, order: Sequence[Node]) -> dict[Node, int]:
    """How many values are live after each node, the input not counted."""
    readers, live, found = count_readers(graph), 0, {}
    for node in order:
        live += node.size if node is not graph.entry else 0
        for source in set(node.inputs):
            readers[source] -= 1
            live -= source.size if readers[source] == 0 and source is not graph.entry else 0
        found[node] = live
    return found


class ReducedForms(Forms):
    """Affine forms of the live nodes over a batch of boxes, with about `most` noise symbols at most.

    Symbols are merged where few values are live, or at half as many again. The first `fixed` are never merged.
    feature (batch, noise symbols) is the input whose noise a symbol is, `NO_INPUT` or `UNUSED`.
    influence (batch, size) says how much the output depends on each element of a node; it chooses the symbols
    that are merged, and proves nothing.
    """

    def __init__(
        self,
        graph: Graph,
        lower: Tensor,
        upper: Tensor,
        order: Sequence[Node],
        most: int,
        influence: Mapping[Node, Tensor] | None = None,
    ) -> None:
        self.fixed = 0
        low, high = lower.flatten(1), upper.flatten(1)
        self.graph, self.most, self.influence = graph, most, influence
        self.readers = count_readers(graph)
        self.summed = _read_by_one_sum(graph)
        self.live = live_values(graph, order)
        self.calm = statistics.mean(self.live.values())
        self.feature = torch.zeros((len(low), 0), dtype=torch.long, device=low.device)
        self.input_centre, self.input_radius = low / 2 + high / 2, input_radius(low, high)
        none = low.new_zeros((0, 0, low.shape[1]))
        error = torch.full_like(self.input_radius, TINY)
        super().__init__(
            {graph.entry: Form(self.input_centre, none, error, self.input_radius, slice(0, 0))}, none
        )

    @property
    def count(self) -> int:
        return self.feature.shape[1]

    def affine(self, node: Affine) -> None:
        entry = self.graph.entry
        if entry in node.inputs and entry in self.of and self.of[entry].generators.shape[1] == 0:
            if node.moves:
                which = node.forward([torch.arange(entry.size, device=self.feature.device)])
                self.of[node] = self._introduce(which)
                self._forget_read(node)
                return
            self._introduce_all()
        super().affine(node)
        if node.sums and node in self.of:
            self._name_error(node)
        self._forget_read(node)

    def place_constant(self, node: Node, bounds: tuple[Tensor, Tensor] | None) -> None:
        super().place_constant(node, bounds)
        self._forget_read(node)

    def names_error(self, node: Relaxed, count: int) -> bool:
        """Not if a sum is the only one to read it: one symbol for the errors of all its terms loses nothing."""
        return node not in self.summed

    def _name_error(self, node: Node) -> None:
        """Turn the error of a form into noise, where it is large enough to matter."""
        form = self.of[node]
        own = form.error > MIN_RELATIVE_BAND * form.size
        if not bool(own.any()):
            return
        rows, count = hull_of_rows([form.rows, rows_with_any(own)]), int(own.sum(1).max())
        generators = pad_generators(form, self.count + count, rows)
        width, place = self._add_noise(generators, own, form.error, rows)
        error = torch.where(own, 0, form.error)
        self.of[node] = Form.of(form.centre, generators, error, rows, self.measure)
        self._attribute([form], width, place)

    def apply_relaxation(
        self,
        node: Relaxed,
        lower: Sequence[Tensor],
        upper: Sequence[Tensor],
        relaxed: LinearBounds | None = None,
    ) -> Band | None:
        if self.graph.entry in node.inputs and self.of[self.graph.entry].generators.shape[1] == 0:
            self._introduce_all()
        found = super().apply_relaxation(node, lower, upper, relaxed)
        self._forget_read(node)
        others = self.count - self.fixed
        if others > self.most and (self.live[node] <= self.calm or others > 3 * self.most // 2):
            self.merge(self.fixed + max(self.most // 2, self.most - self.live[node]))
        return found

    def merge(self, kept: int) -> None:
        """Keep the noise symbols with the largest effect; the others become one box for each live node."""
        live = [node for node in self.of if node is not self.graph.entry or self.of[node].generators.shape[1]]
        rows = hull_of_rows([self.of[node].rows for node in live])
        generators = {node: pad_generators(self.of[node], self.count, rows) for node in live}
        weight = self._loss([some.abs() for some in generators.values()], live, rows)
        always = torch.arange(self.fixed, device=weight.device).expand(len(weight), -1)
        others = weight[:, self.fixed :].topk(kept - self.fixed, dim=1, sorted=False).indices
        chosen = torch.cat([always, self.fixed + others], dim=1)
        starts = torch.arange(len(chosen), device=chosen.device)[:, None] * self.count
        flat = (starts + chosen).flatten()
        merged = torch.ones_like(weight).scatter_(1, chosen, 0)
        boxes = torch.cat([self._box(node, merged, some, rows) for node, some in generators.items()], dim=1)
        end = kept
        for node, before in generators.items():
            after = boxes.new_zeros((len(boxes), kept + boxes.shape[1], node.size))
            after[:, :kept] = before.flatten(0, 1).index_select(0, flat).unflatten(0, chosen.shape)
            own = after[:, end : end + node.size].diagonal(dim1=1, dim2=2)
            own.copy_(boxes[:, end - kept : end - kept + node.size])
            end += node.size
            error = self.of[node].error.clone()
            error[rows] = 0
            self.of[node] = Form.of(self.of[node].centre, after, error, rows, self.measure)
        feature = torch.full((len(self.feature), end), UNUSED, dtype=torch.long, device=boxes.device)
        feature[rows] = NO_INPUT
        feature[rows, :kept] = self.feature[rows].gather(1, chosen)
        self.feature = feature

    def _box(self, node: Node, merged: Tensor, generators: Tensor, rows: slice) -> Tensor:
        """(rows, size): the radius of the box that replaces merged symbols and the error, rounded up."""
        rest = torch.bmm(merged[:, None], generators.abs())[:, 0] + self.of[node].error[rows]
        return round_up(rest, FORM_MERGED, generators.shape[1]) + TINY

    def _loss(self, sizes: list[Tensor], live: list[Node], rows: slice) -> Tensor:
        """(rows, noise symbols): how much larger boxes are than the noise symbols they replace, about, each
        element weighted by its influence (Girard). Overwrites the sizes.

        Nothing is lost by a symbol that moves only one element of a node.
        """
        if self.influence is None:
            return torch.stack([size.sum(2) - size.amax(2) for size in sizes]).sum(0)
        weights = [
            self.influence[node][rows] if node in self.influence else size.new_ones(size[:, 0].shape)
            for node, size in zip(live, sizes, strict=True)
        ]
        largest = torch.stack([weight.amax(1) for weight in weights]).amax(0)[:, None]
        weights = [(weight + LEAST_INFLUENCE * largest)[:, None] for weight in weights]
        for size, weight in zip(sizes, weights, strict=True):
            size.mul_(weight)
        return torch.stack([size.sum(2) - size.amax(2) for size in sizes]).sum(0)

    def _introduce_all(self) -> None:
        """Give the input itself its noise symbols: without them its form would hold its centre only."""
        index = torch.arange(self.graph.entry.size, device=self.feature.device)
        self.of[self.graph.entry] = self._introduce(index)

    def _introduce(self, which: Tensor) -> Form:
        """The form of the inputs `which`, with a new noise symbol for each that varies."""
        radius = self.input_radius[:, which]
        rows = rows_with_any(radius > 0)
        error, before = torch.full_like(radius, TINY), self.count
        width, place = radius[rows].topk(int((radius > 0).sum(1).max()), dim=1)
        unused = not self.fixed and bool((self.feature[rows] == UNUSED).all())
        if before >= width.shape[1] and unused:
            before = 0  # these rows have no noise symbols yet
        end = before + width.shape[1]
        generators = radius.new_zeros((len(width), end, len(which)))
        generators[:, before:].scatter_(2, place.unsqueeze(-1), width.unsqueeze(-1))
        missing = max(0, end - self.count)
        self.feature = torch.nn.functional.pad(self.feature, (0, missing), value=UNUSED)
        self.feature[rows, before:end] = torch.where(width > 0, which[place], NO_INPUT)
        return Form.of(self.input_centre[:, which], generators, error, rows)

    def _forget_read(self, node: Node) -> None:
        for source in set(node.inputs):
            self.readers[source] -= 1
            if self.readers[source] == 0:
                self.of.pop(source, None)

    def _attribute(self, arguments: list[Form], width: Tensor, place: Tensor) -> None:
        new = torch.where((width > 0).any(1, keepdim=True), NO_INPUT, UNUSED).expand(width.shape)
        self.feature = torch.cat([self.feature, new], dim=1)

    def linear_lower_bound(self, entry: Node, node: Node, rows: Tensor) -> tuple[Tensor, Tensor]:
        """As `Forms.linear_lower_bound`, with the noise symbols of inputs wherever they are."""
        form = self.of[node]
        # (batch, noise symbols, rows)
        effect = rows.new_zeros((len(rows), form.generators.shape[1], rows.shape[1]))
        effect[form.rows] = form.generators @ rows[form.rows].transpose(1, 2)
        feature = self.feature[:, : effect.shape[1]]
        unit = self.input_radius.gather(1, feature.clamp_min(0))
        own = (feature >= 0) & (unit > 0)
        steep = torch.where(own[..., None], effect / unit[..., None], 0).transpose(1, 2)
        at = feature.clamp_min(0)[:, None].expand(-1, rows.shape[1], -1)
        slope = rows.new_zeros((*rows.shape[:2], entry.size)).scatter_add(2, at, steep)
        moved = (slope.abs() @ self.input_centre.abs().unsqueeze(-1)).squeeze(-1)
        others = torch.where(own[..., None], 0, effect).abs().sum(1)
        inputs = torch.where(own[..., None], effect, 0).abs().sum(1)
        constant = (rows @ form.centre.unsqueeze(-1) - slope @ self.input_centre.unsqueeze(-1)).squeeze(-1)
        error = (rows.abs() @ form.error.unsqueeze(-1)).squeeze(-1)
        size = (rows.abs() @ form.size.unsqueeze(-1)).squeeze(-1) + moved + others + inputs
        terms = form.centre.shape[1] + 2 * effect.shape[1] + entry.size
        return slope, constant - others - error - charge(size, FORM_LINEAR_BOUND, terms)
