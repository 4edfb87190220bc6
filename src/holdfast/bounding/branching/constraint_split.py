"""Branch and bound by halving inputs, with constraint propagation: for networks that encode combinatorial problems.

Statement. At a counterexample of one polytope every row of it is at most zero, and every node lies in its bounds. Let
y = W x + b be an affine node with y_i <= h_i there, and m_i <= min over the box of y_i. For an input j with W_ij > 0

    W_ij (x_j - lower_j)  <=  h_i - m_i,       so       x_j <= lower_j + (h_i - m_i) / W_ij,

and alike for W_ij < 0 and for y_i >= l_i. Such bounds pass back through y = relu(x): x <= h if y <= h, and x >= l if
y >= l > 0. A box is empty if some h_i < m_i, or h < 0 for a ReLU. The linear lower bounds of the rows shrink the box as
in `input_split`. Both steps are repeated as long as the boxes shrink; then open boxes are halved.

If the inputs of a network are truth values, its ReLUs are clauses, and the property requires all clauses at values zero or
one, this is unit propagation: a half of an input fixes it, and clauses fix further ones. `fixes_inputs` tells such
networks from others by halving every input once.

The input to halve: a row that is nearly violated forces others soon, so a row with slack s counts 2^(-s / (|W_ij|
width_j)) for input j, separately for both signs of W_ij, and the product of both sums is the gain (Jeroslow, Wang).

Assumption: the region is its enclosing box, or contained in it. Rounding: every quotient is rounded up (`shrink_box`).

References: Benhamou et al., "Revising hull and box consistency" (1999), for the propagation; Jeroslow, Wang, "Solving
propositional satisfiability problems" (1990), for the weights.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from holdfast.bounding.branching.input_split import BoxLinearBounds, BoxSubproblems, Halving, shrink_box
from holdfast.bounding.branching.subproblem_queue import (
    MAX_QUEUE_VALUES,
    BoundedSubproblems,
    Branching,
    CandidatePoints,
    PolytopeQuestion,
    all_open,
)
from holdfast.bounding.crown import linear_bound
from holdfast.bounding.crown_with_fixed_bounds import propagate
from holdfast.bounding.graph.affine import Affine, make_matrix, matrices_of
from holdfast.bounding.graph.graph import Graph, Node, Relaxed
from holdfast.bounding.relax import Relu
from holdfast.derivations import FEW_OPERATIONS, INTERVAL_MAP
from holdfast.property import Avoid
from holdfast.region import Box, Region
from holdfast.rounding import LARGEST, TINY, centre_and_radius, charge, round_up

# The settings were chosen by hand.
MAX_ROUNDS = 12  # Rounds of propagation for a box.
MIN_SHRINKING = 0.02  # A further round needs boxes whose widths shrank by this share on average.
MAX_ENTRIES = 2**17  # Largest number of coefficients of a network.
MAX_PROBED_INPUTS = 256  # Largest number of inputs that are halved to tell whether halves fix them.
FIXED_SHARE = 2.0**-10  # An input counts as fixed once its interval is at most this share of the first one.
MIN_FIXING_HALVES = 0.75  # Share of the halves that must fix their input.
MAX_ELEMENTS = 2**23  # Coefficients times boxes of a batch.

Bounds = tuple[Tensor, Tensor]  # lower, upper: (boxes, size)


@dataclass(frozen=True)
class Coefficients:
    """The nonzero coefficients of one input of an affine map."""

    row: Tensor  # (n,)
    column: Tensor  # (n,)
    value: Tensor  # (n,)

    @staticmethod
    def of(matrix: Tensor) -> "Coefficients":
        row, column = matrix.nonzero().unbind(1)
        return Coefficients(row, column, matrix[row, column])


@dataclass(frozen=True, eq=False)
class Constraints:
    """A graph and the rows of one polytope as a last affine node, whose values are at most zero at counterexamples."""

    graph: Graph  # with the rows as the last node

    @staticmethod
    def of(graph: Graph, matrix: Tensor, offset: Tensor) -> "Constraints":
        """matrix (rows, outputs), offset (rows,)."""
        inputs, shape = [graph.output], (1, len(matrix))
        last = make_matrix(len(graph.nodes), "the property", inputs, [matrix], shape, offset)
        return Constraints(replace(graph, nodes=[*graph.nodes, last], ending=None))

    @cached_property
    def coefficients(self) -> dict[Node, list[Coefficients]]:
        found = {}
        for node in self.graph.nodes:
            matrices = matrices_of(node)
            if matrices is not None:
                found[node] = [Coefficients.of(matrix) for matrix in matrices]
        return found

    @cached_property
    def entries(self) -> int:
        return sum(len(part.row) for parts in self.coefficients.values() for part in parts)

    def propagate(self, lower: Tensor, upper: Tensor) -> "Propagated":
        """Shrink boxes (n, inputs) to where counterexamples may be."""
        shape = self.graph.entry.shape
        empty = torch.zeros(len(lower), dtype=torch.bool, device=lower.device)
        held = dict[Node, Bounds]()
        width = upper - lower
        for _ in range(MAX_ROUNDS):
            box = Box.between(lower.reshape(-1, *shape[1:]), upper.reshape(-1, *shape[1:]))
            within = {
                node: (low.reshape(-1, *node.shape), high.reshape(-1, *node.shape))
                for node, (low, high) in held.items()
            }
            known, none = propagate(self.graph, box, within=within, walks=False)
            ends = {
                node: (known.lower[node].flatten(1), known.upper[node].flatten(1))
                for node in self.graph.nodes
            }
            last = self.graph.output
            one = torch.eye(last.size, dtype=torch.float64, device=lower.device).expand(len(lower), -1, -1)
            planes = linear_bound(self.graph, known, one)
            slope, constant = planes.coefficients.flatten(2)[:, None], planes.constant[:, None]
            cut = shrink_box(BoxLinearBounds(slope, constant), lower, upper, ~(empty | none)[:, None])
            empty = empty | none | ~cut.open[:, 0]
            rows = torch.fmax(cut.least[:, 0], ends[last][0])
            low, high = (
                torch.where(empty[:, None], old, new) for old, new in ((lower, cut.lower), (upper, cut.upper))
            )
            ends[self.graph.entry] = low, high
            ends[last] = ends[last][0], ends[last][1].clamp_max(0.0)
            empty |= (rows > 0).any(1)
            raw = self._pull_back(ends, empty)
            held = {node: ends[node] for node in self.graph.nodes[1:]}
            lower, upper = ends[self.graph.entry]
            left = (upper - lower).clamp_min(0)[~empty].sum() / width[~empty].sum().clamp_min(1e-300)
            width = upper - lower
            if bool(empty.all()) or not left < 1 - MIN_SHRINKING:
                break
        return Propagated(lower, torch.maximum(lower, upper), empty, rows, ends, raw)

    def _pull_back(self, ends: dict[Node, Bounds], empty: Tensor) -> dict[Node, Bounds]:
        """Tighten the bounds of all nodes from the last to the first, in place; returns the affine nodes' own intervals."""
        raw = dict[Node, Bounds]()
        for node in reversed(self.graph.nodes[1:]):
            low, high = ends[node]
            if isinstance(node, Relaxed) and type(node.relaxation) is Relu:
                (source,) = node.inputs
                empty |= (high < 0).any(1)
                before = ends[source]
                least = torch.where(low > 0, torch.maximum(low, before[0]), before[0])
                ends[source] = least, torch.minimum(before[1], high)
            elif isinstance(node, Affine) and node in self.coefficients:
                raw[node] = _interval(node, ends)
                slack = high - raw[node][0], raw[node][1] - low
                empty |= (slack[0] < 0).any(1) | (slack[1] < 0).any(1)
                for source, part in zip(node.inputs, self.coefficients[node], strict=True):
                    ends[source] = _narrow(part, slack, ends[source])
            for source in node.inputs:
                empty |= (ends[source][0] > ends[source][1]).any(1)
        for node, (low, high) in ends.items():
            # Reorders empty boxes only, which are not used.
            ends[node] = torch.minimum(low, high), torch.maximum(low, high)
        return raw


def _interval(node: Affine, ends: dict[Node, Bounds]) -> Bounds:
    """The interval of an affine map over the intervals of its inputs alone, rounding included."""
    low, high = zip(*(ends[source] for source in node.inputs), strict=True)
    middle, radius = zip(*(centre_and_radius(a, b) for a, b in zip(low, high, strict=True)), strict=True)
    largest = [torch.maximum(a.abs(), b.abs()) for a, b in zip(low, high, strict=True)]
    size = node.forward_absolute(largest)
    away = node.forward_absolute(radius, shift=False)
    away = away + charge(size, INTERVAL_MAP, sum(source.size for source in node.inputs))
    centre = node.forward(middle)
    return _unbounded_if_large(centre - away, -1), _unbounded_if_large(centre + away, 1)


def _unbounded_if_large(end: Tensor, sign: int) -> Tensor:
    """A lower (sign -1) or upper (sign 1) bound, infinite beyond LARGEST (docs/rounding.md) and where it is NaN."""
    return torch.where(sign * end <= LARGEST, end, sign * torch.inf)


def _narrow(part: Coefficients, slack: Bounds, ends: Bounds) -> Bounds:
    """Narrow the intervals of an input of an affine map.

    Args:
        slack: h - m and M - l for the map's own interval [m, M] and what is required, [l, h].
    """
    (low, high), positive = ends, part.value > 0
    above, below = (side.index_select(1, part.row) / part.value.abs() for side in slack)
    farthest = torch.full_like(low, torch.inf)

    def nearest(way: Tensor) -> Tensor:
        way = torch.nan_to_num(round_up(way.clamp_min(0), FEW_OPERATIONS) + TINY, torch.inf, torch.inf)
        return farthest.scatter_reduce(1, part.column.expand(len(way), -1), way, "amin")

    up, down = nearest(torch.where(positive, above, below)), nearest(torch.where(positive, below, above))
    most, least = torch.nextafter(low + up, farthest), torch.nextafter(high - down, -farthest)
    return torch.fmax(low, least), torch.fmin(high, most)  # NaN says nothing


@dataclass(frozen=True)
class Propagated:
    """Boxes after propagation."""

    lower: Tensor  # (n, inputs)
    upper: Tensor
    empty: Tensor  # (n,) bool: no counterexample
    rows: Tensor  # (n, rows): lower bounds of the rows over the boxes as they were before the last round
    ends: dict[Node, Bounds]
    raw: dict[Node, Bounds]


@dataclass(frozen=True)
class ConstraintSplit(Halving[PolytopeQuestion, BoxSubproblems], Branching[BoxSubproblems]):
    """Halves inputs and propagates constraints; for one region and one polytope."""

    batch: int = 64
    waiting: int = 2**18

    def start(self, graph: Graph, region: Region, rules: Avoid) -> BoxSubproblems:
        lower, upper = region.enclosing_box()
        nothing = torch.full_like(rules.offset[:, 0, 0], -torch.inf)
        task = torch.arange(len(lower), device=lower.device)
        return BoxSubproblems(task, all_open(rules), nothing, lower=lower, upper=upper)

    def at_once(self, question: PolytopeQuestion) -> int:
        return self.batch

    def most(self, graph: Graph) -> int:
        return min(self.waiting, MAX_QUEUE_VALUES // graph.entry.size)

    def bound(self, question: PolytopeQuestion, parts: BoxSubproblems) -> BoundedSubproblems[BoxSubproblems]:
        constraints = _constraints(question.graph, question.rules)
        together = max(1, MAX_ELEMENTS // max(1, constraints.entries))
        found = [
            constraints.propagate(low, high)
            for low, high in zip(
                parts.lower.flatten(1).split(together), parts.upper.flatten(1).split(together), strict=True
            )
        ]
        lower, upper, empty, rows = (
            torch.cat([getattr(part, name) for part in found]) for name in ("lower", "upper", "empty", "rows")
        )
        whole = tuple(end.flatten(1)[0] for end in question.region.enclosing_box())
        gain = torch.cat([_gains(constraints, part) for part in found])
        gain = gain * torch.nan_to_num((upper - lower) / (whole[1] - whole[0]), 0.0, 0.0)
        bound = torch.where(empty, torch.inf, rows.amax(1).clamp_max(0.0))
        shape = parts.lower.shape
        after = replace(
            parts,
            open=parts.open & ~empty[:, None],
            bound=bound,
            lower=lower.reshape(shape),
            upper=upper.reshape(shape),
        )
        left = ~empty
        # The endpoints of the region are exact; endpoints that were moved are off by rounding.
        point = torch.where(
            upper == whole[1], upper, torch.where(lower == whole[0], lower, lower / 2 + upper / 2)
        )
        box = after.lower[left], after.upper[left]
        points = CandidatePoints(point[left].reshape(box[0].shape), *box, parts.task[left])
        return BoundedSubproblems(after, gain, points)

    def _chosen(self, question: PolytopeQuestion, frontier: BoxSubproblems) -> Tensor:
        """The newest boxes first: with combinatorial constraints depth decides, not the bound."""
        return torch.arange(len(frontier), device=frontier.bound.device).flip(0)[: self.batch]


def _constraints(graph: Graph, rules: Avoid) -> Constraints:
    """The constraints of the only polytope."""
    return Constraints.of(graph, rules.matrix[0, 0], rules.offset[0, 0])


def _gains(constraints: Constraints, found: Propagated) -> Tensor:
    """(n, inputs): how much a half of each input is expected to force, relative to each other."""
    entry = constraints.graph.entry
    lower, upper = found.ends[entry]
    sums = [torch.full_like(lower, 1e-6) for _ in range(2)]
    for node, parts in constraints.coefficients.items():
        if entry not in node.inputs:
            continue
        part = parts[node.inputs.index(entry)]
        span = part.value.abs() * (upper - lower)[:, part.column]
        (low, high), (least, most) = found.ends[node], found.raw[node]
        for k, slack, useful in ((0, high - least, most > high), (1, most - low, least < low)):
            weight = torch.where(useful[:, part.row], 2.0 ** -(slack[:, part.row] / span), 0)
            weight = torch.nan_to_num(weight, 0.0, 0.0)
            for sign in range(2):
                mine = torch.where((part.value > 0) == (sign == k), weight, 0)
                sums[sign].scatter_add_(1, part.column.expand(len(lower), -1), mine)
    return sums[0] * sums[1]


def fixes_inputs(graph: Graph, region: Region, rules: Avoid) -> bool:
    """Whether constraint propagation fixes most inputs once they are halved."""
    if not region.boxed or rules.offset.shape[:2] != (1, 1) or graph.entry.size > MAX_PROBED_INPUTS:
        return False
    if not all(_is_simple(node) for node in graph.nodes[1:]) or not any(
        isinstance(n, Relaxed) for n in graph.nodes
    ):
        return False
    constraints = _constraints(graph, rules)
    lower, upper = (end.flatten(1) for end in region.enclosing_box())
    moving = (lower < upper)[0].nonzero().flatten()
    if constraints.entries > MAX_ENTRIES or not len(moving):
        return False
    low, high = lower.repeat(2 * len(moving), 1), upper.repeat(2 * len(moving), 1)
    each = torch.arange(len(moving), device=moving.device)
    middle = (lower / 2 + upper / 2)[0, moving]
    high[each, moving] = middle
    low[len(moving) + each, moving] = middle
    found = constraints.propagate(low, high)
    column = moving.repeat(2)[:, None]
    width = (found.upper - found.lower).gather(1, column) / (upper - lower)[0, column]
    fixed = found.empty | (width[:, 0] <= FIXED_SHARE)
    return float(fixed.double().mean()) >= MIN_FIXING_HALVES


def _is_simple(node: Node) -> bool:
    """Whether constraints pass back through the node."""
    return matrices_of(node) is not None or (isinstance(node, Relaxed) and type(node.relaxation) is Relu)
