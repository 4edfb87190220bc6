"""A network over a region, of what its bounds leave undecided: for searches that look at thousands of parts of it, and prove nothing.

Where the sign of an argument is known, its function is a line. So every argument is an affine function of the input and of the functions
before it that are not decided, which are few: of 768 ReLUs there may be a hundred. Planes are walked back through these alone, in float32
and without the price of rounding. What is found there is put into a bound of the whole graph, in float64 (`Rows.prove`).
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.alpha_beta_crown import arguments, relu_like_functions, together
from holdfast.bounding.coefficient_training import CoefficientAscent
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.traversal import Forward, forward
from holdfast.cuda_graphs import Repeated
from holdfast.region import Region

NUMBERS = 2**25  # of the input and the undecided functions in a node, up to which a network is put so


@dataclass(frozen=True)
class Draft:
    """What some slopes and multipliers seem to give, part by part."""

    slope: Tensor  # (n, k) float32, as all of these
    multiplier: Tensor  # (n, k)
    entering: Tensor  # (n, k): the weight of each upper plane
    planes: Tensor  # (n, inputs)


@dataclass(frozen=True, eq=False)
class Undecided:
    """The k arguments that are not decided, in the order of the graph, a group for each node; all in float32."""

    region: Region  # one row
    place: Tensor  # (k,): which they are among all arguments
    groups: list[slice]
    of_input: Tensor  # (k, inputs): the arguments, as functions of the input,
    of_earlier: Tensor  # (k, k): and of their functions
    shift: Tensor  # (k,)
    asked: tuple[
        Tensor, Tensor, Tensor
    ]  # the rows that are asked for, in the same way: (tasks, inputs), (tasks, k), (tasks,)
    sides: tuple[Tensor, Tensor]  # (k,) each: the slopes below and above zero
    own: Tensor  # (k,): the slope of the lower plane to begin with
    upper: tuple[Tensor, Tensor]  # (k,) each: slope and offset of the upper plane
    value: Tensor  # (k,): of the functions at zero

    @staticmethod
    def of(graph: Graph, known: Boxes, matrix: Tensor, offset: Tensor) -> "Undecided | None":
        """known: over a region of one row. matrix (tasks, size of the output), offset (tasks,): the rows that are asked for. None: where
        something else than the functions of `bent` is read, or too much is undecided."""
        functions = relu_like_functions(graph)
        lower, upper = (together(graph, side)[0] for side in (known.lower, known.upper))
        undecided = (lower < 0) & (upper > 0)
        inputs, place = graph.entry.size, undecided.nonzero().flatten()
        if len(functions) != len(arguments(graph)) or any(
            isinstance(node, Relaxed) and node not in functions for node in graph.nodes
        ):
            return None
        if (inputs + len(place)) * max(node.size for node in graph.nodes) > NUMBERS:
            return None
        forms = _Forms(graph, known)
        forward(graph.nodes, forms.visit)
        columns, shift = forms.of[graph.output]

        def whole(rows: Tensor) -> tuple[Tensor, Tensor]:
            """(n, inputs + some functions) -> (n, inputs), (n, k)."""
            rows = torch.nn.functional.pad(rows, (0, inputs + len(place) - rows.shape[1])).float()
            return rows[:, :inputs].contiguous(), rows[:, inputs:].contiguous()

        planes = [known.planes[node] for node in functions]
        sides = [
            (p.upper_offset[0].flatten(), s)
            for p, s in zip(planes, (node.relaxation.sides() for node in functions), strict=True)
            if s
        ]
        lines = [
            [torch.full_like(like, number) for number in (s.below, s.above, s.value)] for like, s in sides
        ]
        below, above, value = (torch.cat(parts)[place].float() for parts in zip(*lines, strict=True))
        slopes = [[side.flatten() for side in (p.lower[0], p.upper[0], p.upper_offset)] for p in planes]
        own, steep, height = (torch.cat(parts)[place].float() for parts in zip(*slopes, strict=True))
        ends = torch.tensor([0, *(len(rows) for rows in forms.rows)]).cumsum(0).tolist()
        groups = [slice(a, b) for a, b in pairwise(ends) if a < b]
        of_input, of_earlier = (
            torch.cat(parts) for parts in zip(*(whole(rows) for rows in forms.rows), strict=True)
        )
        asked = *whole(matrix @ columns.mT), (matrix @ shift + offset).float()
        moved = torch.cat(forms.shifts).float()
        return Undecided(
            known.region,
            place,
            groups,
            of_input,
            of_earlier,
            moved,
            asked,
            (below, above),
            own,
            (steep, height),
            value,
        )

    def at(self, x: Tensor, task: Tensor) -> Tensor:
        """(n, inputs), (n,) -> (n,): the rows at points of the region."""
        found = x.new_zeros((len(x), len(self.place)))
        for group in self.groups:
            v = (
                x @ self.of_input[group].mT
                + found[:, : group.start] @ self.of_earlier[group, : group.start].mT
                + self.shift[group]
            )
            found[:, group] = (
                torch.maximum(self.sides[0][group] * v, self.sides[1][group] * v) + self.value[group]
            )
        of_input, of_earlier, shift = (part[task] for part in self.asked)
        return (of_input * x).sum(1) + (of_earlier * found).sum(1) + shift

    def cost(self, sign: Tensor, draft: Draft) -> Tensor:
        """-> (n, k): what is lost because an argument is not decided."""
        return torch.where(sign == 0, draft.entering * self.upper[1], 0)

    def train(
        self, task: Tensor, sign: Tensor, slope: Tensor, multiplier: Tensor, steps: int, pace: float
    ) -> Draft:
        """Ascend along the gradient from these slopes (NaN: the functions' own) and multipliers; the best that was met."""
        walk = _Walk(self, task, sign.float())
        slope = torch.where(walk.free & ~slope.isnan(), slope, walk.own)
        best, _, entering = walk.least(slope, multiplier)
        unit = walk.usual(entering)
        start = [slope, multiplier / unit]
        ascent, kept = CoefficientAscent(start, betas=(0.9, 0.99)), [value.clone() for value in start]
        values, rate = ascent.values, torch.zeros((), device=slope.device)

        def climb() -> None:
            with torch.enable_grad():
                now, _, _ = walk.least(values[0], values[1] * unit)
                gradients = torch.autograd.grad(now.sum(), values)
            better = now.detach() > best
            for value, old in zip(values, kept, strict=True):
                torch.where(better[:, None], value.detach(), old, out=old)
            torch.maximum(best, now.detach(), out=best)
            ascent.step(gradients, rate if rate.is_cuda else float(rate))
            values[0].copy_(torch.where(walk.free, values[0].clamp(0, 1), walk.own))
            values[1].clamp_min_(0)

        once = Repeated(climb, slope.device)
        for step in range(steps):
            if time_limit.has_expired():
                break
            rate.fill_(pace * (1 - step / steps))
            once()
        slope, multiplier = kept[0], kept[1] * unit
        _, planes, entering = walk.least(slope, multiplier)
        return Draft(slope, multiplier, entering, planes)


class _Walk:
    """Planes on their way back over n parts."""

    def __init__(self, of: Undecided, task: Tensor, sign: Tensor) -> None:
        self.of, self.sign = of, sign  # (n, k)
        line = torch.where(sign > 0, of.sides[1], of.sides[0])
        self.free = sign == 0  # (n, k): whose slope is
        self.own, self.steep = (torch.where(sign == 0, first, line) for first in (of.own, of.upper[0]))
        self.above = torch.where(self.free, of.upper[1], of.value)
        self.asked = tuple(part[task] for part in of.asked)
        low, high = (end.flatten() for end in of.region.enclosing_box())
        self.middle, self.half = (low / 2 + high / 2).float(), (high / 2 - low / 2).float()

    def least(self, slope: Tensor, multiplier: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """-> (n,): what the rows seem to be at least; (n, inputs): their planes; (n, k): the weight of each upper plane."""
        of, (reached, earlier, constant) = self.of, self.asked
        conditions, behind, entering = -multiplier * self.sign, reached.new_zeros((len(reached), 0)), []
        for group in reversed(of.groups):
            carried = earlier[:, group] + behind @ of.of_earlier[group.stop :, group]
            up, down = carried.clamp_min(0), carried.clamp_max(0)
            constant = constant + up @ of.value[group] + (down * self.above[:, group]).sum(1)
            behind = torch.cat(
                [up * slope[:, group] + down * self.steep[:, group] + conditions[:, group], behind], 1
            )
            entering.append(-down)
        planes = reached + behind @ of.of_input
        constant = constant + behind @ of.shift
        if of.region.boxed:
            lowest = planes @ self.middle - planes.abs() @ self.half
        else:
            lowest = of.region.minimise_linear(planes.double().reshape(1, -1, *of.region.shape))[0].float()
        return constant + lowest, planes, torch.cat(entering[::-1], 1)

    def usual(self, entering: Tensor) -> Tensor:
        """-> (n, k): the usual weight of a plane in each group, by which the steps of multipliers are measured."""
        means = (
            entering[:, group].mean(1, keepdim=True).expand(-1, group.stop - group.start)
            for group in self.of.groups
        )
        return torch.cat(list(means), 1).clamp_min(1e-9)


class _Forms(Forward):
    """Every node as an affine function of the input and of the functions that are not decided: columns (inputs + functions so far, size)
    and a shift (size,); of the arguments that are not decided, the rows."""

    def __init__(self, graph: Graph, known: Boxes) -> None:
        self.known = known
        self.of: dict[Node, tuple[Tensor, Tensor]] = {}
        self.rows: list[Tensor] = []
        self.shifts: list[Tensor] = []
        self.count = graph.entry.size

    def enter(self, node: InputNode) -> None:
        unit = torch.eye(node.size, dtype=torch.float64, device=self.known.region.centre.device)
        self.of[node] = unit, torch.zeros_like(unit[0])

    def through_map(self, node: Affine) -> None:
        whole = [
            torch.cat([c, c.new_zeros((self.count - len(c), s.size)), b[None]])
            for s in node.inputs
            for c, b in (self.of[s],)
        ]
        found = torch.stack([node.part(k, part) for k, part in enumerate(whole)]).sum(0)
        self.of[node] = found[:-1], found[-1] if node.shift is None else found[-1] + node.shift

    def through_function(self, node: Relaxed) -> None:
        (source,), sides = node.inputs, node.relaxation.sides()
        assert sides is not None
        columns, shift = self.of[source]
        lower, upper = (end[source].flatten() for end in (self.known.lower, self.known.upper))
        bends = ((lower < 0) & (upper > 0)).nonzero().flatten()
        self.rows.append(columns[:, bends].mT)
        self.shifts.append(shift[bends])
        slope = torch.where(lower >= 0, torch.full_like(lower, sides.above), sides.below).to(columns)
        slope[bends] = 0
        fresh = columns.new_zeros((self.count - len(columns) + len(bends), node.size))
        fresh[torch.arange(len(bends), device=bends.device) + self.count - len(columns), bends] = 1
        constant = slope * shift + sides.value
        constant[bends] = 0
        self.of[node] = torch.cat([columns * slope, fresh]), constant
        self.count += len(bends)
