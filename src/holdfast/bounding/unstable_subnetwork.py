"""A network restricted to its unstable neurons: fast bounds of thousands of subproblems, which prove nothing.

Over a region, every stable activation is an affine function. So every pre-activation is an affine function of
the input and of the unstable neurons before it,

    z  =  of_input x + of_earlier f(z of earlier unstable neurons) + shift,

and there are few of those: perhaps a hundred of 768 ReLUs. CROWN's backward pass runs on these neurons alone,
in float32 and without rounding errors. The slopes and multipliers that it finds are evaluated on the whole
graph in float64 (`RowTask.prove`).
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.alpha_beta_crown import concatenate_nodes, relu_like_functions, relu_preactivations
from holdfast.bounding.coefficient_training import CoefficientAscent
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.traversal import Forward, forward
from holdfast.cuda_graphs import RecordedStep
from holdfast.region import Region

# Largest number of coefficients of a node with respect to the inputs and the unstable neurons (chosen by
# hand).
MAX_COEFFICIENTS = 2**25


@dataclass(frozen=True)
class OptimisedCoefficients:
    """The result of an optimisation: slopes and multipliers of n subproblems; all tensors in float32."""

    slope: Tensor  # (n, k)
    multiplier: Tensor  # (n, k)
    entering: Tensor  # (n, k): the weight of each linear upper bound in the bound
    planes: Tensor  # (n, inputs): coefficients of the linear lower bound


@dataclass(frozen=True, eq=False)
class UnstableSubnetwork:
    """The k unstable neurons in the order of the graph, one group for each layer; all in float32."""

    region: Region  # a batch of one
    place: Tensor  # (k,): their indices among all pre-activations
    groups: list[slice]
    of_input: Tensor  # (k, inputs): coefficients of the pre-activations on the input
    of_earlier: Tensor  # (k, k): and on the outputs of earlier unstable neurons
    shift: Tensor  # (k,)
    # the output rows in the same form: (tasks, inputs), (tasks, k), (tasks,)
    output_rows: tuple[Tensor, Tensor, Tensor]
    sides: tuple[Tensor, Tensor]  # (k,) each: the slopes below and above zero
    own: Tensor  # (k,): CROWN's slope of the linear lower bound
    upper: tuple[Tensor, Tensor]  # (k,) each: slope and offset of the linear upper bound
    value: Tensor  # (k,): the activations' values at zero

    @staticmethod
    def of(graph: Graph, known: Boxes, matrix: Tensor, offset: Tensor) -> "UnstableSubnetwork | None":
        """Restrict a network to its unstable neurons.

        Args:
            known: intermediate bounds over a region with a batch of one.
            matrix, offset: (tasks, size of the output), (tasks,), the output rows.

        Returns:
            None if the network has activations that are not ReLU-like, or too many coefficients.
        """
        functions = relu_like_functions(graph)
        lower, upper = (concatenate_nodes(graph, side)[0] for side in (known.lower, known.upper))
        undecided = (lower < 0) & (upper > 0)
        inputs, place = graph.entry.size, undecided.nonzero().flatten()
        if len(functions) != len(relu_preactivations(graph)) or any(
            isinstance(node, Relaxed) and node not in functions for node in graph.nodes
        ):
            return None
        if (inputs + len(place)) * max(node.size for node in graph.nodes) > MAX_COEFFICIENTS:
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
        output_rows = *whole(matrix @ columns.mT), (matrix @ shift + offset).float()
        moved = torch.cat(forms.shifts).float()
        return UnstableSubnetwork(
            known.region,
            place,
            groups,
            of_input,
            of_earlier,
            moved,
            output_rows,
            (below, above),
            own,
            (steep, height),
            value,
        )

    def at(self, x: Tensor, task: Tensor) -> Tensor:
        """Evaluate the rows at points of the region: (n, inputs), (n,) -> (n,)."""
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
        of_input, of_earlier, shift = (part[task] for part in self.output_rows)
        return (of_input * x).sum(1) + (of_earlier * found).sum(1) + shift

    def cost(self, sign: Tensor, draft: OptimisedCoefficients) -> Tensor:
        """(n, k): the loss of the bound due to the relaxation of each neuron that is not decided."""
        return torch.where(sign == 0, draft.entering * self.upper[1], 0)

    def train(
        self, task: Tensor, sign: Tensor, slope: Tensor, multiplier: Tensor, steps: int, pace: float
    ) -> OptimisedCoefficients:
        """Optimise slopes (NaN: CROWN's) and multipliers by gradient ascent; returns the best."""
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

        once = RecordedStep(climb, slope.device)
        for step in range(steps):
            if time_limit.has_expired():
                break
            rate.fill_(pace * (1 - step / steps))
            once()
        slope, multiplier = kept[0], kept[1] * unit
        _, planes, entering = walk.least(slope, multiplier)
        return OptimisedCoefficients(slope, multiplier, entering, planes)


class _Walk:
    """CROWN's backward pass over n subproblems."""

    def __init__(self, of: UnstableSubnetwork, task: Tensor, sign: Tensor) -> None:
        self.of, self.sign = of, sign  # (n, k)
        line = torch.where(sign > 0, of.sides[1], of.sides[0])
        self.free = sign == 0  # (n, k): whose slope is free
        self.own, self.steep = (torch.where(sign == 0, first, line) for first in (of.own, of.upper[0]))
        self.above = torch.where(self.free, of.upper[1], of.value)
        self.output_rows = tuple(part[task] for part in of.output_rows)
        low, high = (end.flatten() for end in of.region.enclosing_box())
        self.middle, self.half = (low / 2 + high / 2).float(), (high / 2 - low / 2).float()

    def least(self, slope: Tensor, multiplier: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lower bounds (n,), their linear functions (n, inputs), and weights (n, k) of the upper bounds."""
        of, (reached, earlier, constant) = self.of, self.output_rows
        conditions = -multiplier * self.sign
        behind = reached.new_zeros((len(reached), 0))
        entering = []
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
        """(n, k): the mean weight of a linear bound in each group, as unit of the multipliers."""
        means = (
            entering[:, group].mean(1, keepdim=True).expand(-1, group.stop - group.start)
            for group in self.of.groups
        )
        return torch.cat(list(means), 1).clamp_min(1e-9)


class _Forms(Forward):
    """Every node as an affine function of the input and of the unstable neurons before it.

    Coefficients are (inputs + unstable neurons, size), shifts (size,); `rows` and `shifts` collect those of
    the unstable pre-activations.
    """

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
        unstable = ((lower < 0) & (upper > 0)).nonzero().flatten()
        self.rows.append(columns[:, unstable].mT)
        self.shifts.append(shift[unstable])
        slope = torch.where(lower >= 0, torch.full_like(lower, sides.above), sides.below).to(columns)
        slope[unstable] = 0
        new_columns = columns.new_zeros((self.count - len(columns) + len(unstable), node.size))
        new_columns[
            torch.arange(len(unstable), device=unstable.device) + self.count - len(columns), unstable
        ] = 1
        constant = slope * shift + sides.value
        constant[unstable] = 0
        self.of[node] = torch.cat([columns * slope, new_columns]), constant
        self.count += len(unstable)
