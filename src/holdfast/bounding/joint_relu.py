"""Lower bounds of output rows by a joint relaxation of all unstable ReLUs: the input of `sdp_dual`.

Statement. For every x of the region there are |v_k| <= 1 with |z_i - A_i u| <= error_i for every unstable
pre-activation z_i and u = (1, v), as `sdp_dual` needs it.

Affine forms express every pre-activation as an affine function of the perturbed inputs and of the outputs of
earlier unstable ReLUs: these are their noise symbols. `sdp_dual` states what is proved from that.

Assumption: all unstable activations have a single kink, at zero.

References: see `sdp_dual`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding import crown
from holdfast.bounding.alpha_beta_crown import relu_like_functions
from holdfast.bounding.block_sparse import split_into_blocks
from holdfast.bounding.graph.graph import Affine, Graph, Relaxed
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.sdp_dual import DEFAULT_STEPS, BallConstraints, JointReluRelaxation, TrainedDual, least
from holdfast.bounding.zonotope import Form, Forms
from holdfast.derivations import (
    FORM_BALL,
    FORM_BALL_RADIUS,
    FORM_RELU,
    SDP_ROWS,
    SDP_ROWS_ERROR,
)
from holdfast.region import Region
from holdfast.rounding import TINY, charge, round_up

# The limits were chosen by hand.
MAX_COEFFICIENTS = 2**26  # Largest number of coefficients in the affine forms of the widest node.
# Multipliers are remembered for other radii if their bound is negative by at most this share of CROWN's.
MEMORY_SHARE = 0.3
# Largest number of variables; the time of a training step grows with its third power.
MAX_CPU_VARIABLES = 1024
MAX_GPU_VARIABLES = 4096

Ended = tuple[float, TrainedDual]  # a radius, and the result of training there
# Results by batch element, row, and whether the row was proved to be positive.
Memory = dict[tuple[int, int, bool], Ended]


TOO_LARGE = "ReLUs are relaxed jointly only where all affine maps are small enough to be kept as matrices"


def obstacle(graph: Graph, region: Region) -> str | None:
    """Why the joint relaxation is not available; None if it is."""
    functions = [node for node in graph.nodes if isinstance(node, Relaxed)]
    sides = [node.relaxation.sides() for node in functions]
    through_zero = all(s is not None and s.value == 0 for s in sides)
    if not functions or relu_like_functions(graph) != functions or not through_zero:
        return "ReLUs are relaxed jointly only where all activations are linear on either side of zero"
    ball = region.as_norm_family()
    if not region.boxed and not (ball is not None and ball.norm == 2):
        return "ReLUs are relaxed jointly only over boxes and Euclidean balls"
    return TOO_LARGE if any(isinstance(node, Affine) and not node.small for node in graph.nodes) else None


def most_variables(graph: Graph) -> int:
    """The largest number of variables of the joint relaxation on the graph's device."""
    return MAX_GPU_VARIABLES if graph.device.type == "cuda" else MAX_CPU_VARIABLES


def build_relaxation(
    graph: Graph, boxes: Boxes, matrix: Tensor, offset: Tensor
) -> JointReluRelaxation | None:
    """Set up the joint relaxation for one region.

    Args:
        boxes: intermediate bounds, a batch of one.
        matrix, offset: (rows, outputs), (rows,), the rows to be bounded.

    Returns:
        None if there are too many variables or coefficients.
    """
    entered = Forms.over(graph.entry, *boxes.region.enclosing_box())
    forms = _Signals(entered.of, entered.share)
    undecided = {
        node: (boxes.lower[s] < 0) & (boxes.upper[s] > 0)
        for node in relu_like_functions(graph)
        for s in node.inputs
    }
    count = sum(int(u.sum()) for u in undecided.values())
    if (graph.entry.size + count) * max(node.size for node in graph.nodes) > MAX_COEFFICIENTS:
        return None
    arguments: list[tuple[Form, Tensor]] = []
    for node in graph.nodes[1:]:
        time_limit.raise_if_expired()
        if isinstance(node, Affine):
            forms.affine(node)
        else:
            assert isinstance(node, Relaxed)
            (source,) = node.inputs
            arguments.append((forms.of[source], undecided[node].flatten().nonzero().flatten()))
            forms.add_activation(node, boxes.lower[source].flatten(1), boxes.upper[source].flatten(1))
    ends = [
        torch.cat([side[node.inputs[0]][some] for node, some in undecided.items()])
        for side in (boxes.lower, boxes.upper)
    ]
    moves = (forms.of[graph.entry].radius[0] > 0).nonzero().flatten()
    size = graph.entry.size
    slopes = torch.cat([_columns(form.generators[0][:, some].T, size + count) for form, some in arguments])
    used = (slopes[:, size:] != 0).any(0)
    kept, free = used.nonzero().flatten(), (~used).nonzero().flatten()
    if len(moves) + len(kept) > most_variables(graph):
        return None
    columns = torch.cat([moves, size + kept])
    out = forms.of[graph.output]
    linear = matrix @ _columns(out.generators[0].T, size + count)
    total = (matrix.abs() @ out.size[0]) + offset.abs() + linear.abs().sum(1)
    rows = torch.cat(
        [torch.cat([form.centre[0][some] for form, some in arguments])[:, None], slopes[:, columns]], dim=1
    )
    own = torch.zeros_like(used, dtype=torch.long)
    own[kept] = 1 + len(moves) + torch.arange(len(kept), device=kept.device)
    starts = torch.tensor([0, *(len(some) for _, some in arguments)]).cumsum(0).tolist()
    layers = tuple(pairwise(starts))
    outputs = matrix.shape[1]
    return JointReluRelaxation(
        arguments=rows,
        error=torch.cat([form.error[0][some] for form, some in arguments]),
        lower=ends[0],
        upper=ends[1],
        kept=kept,
        free=free,
        layers=layers,
        inputs=len(moves),
        ball=_ball(boxes.region, forms.of[graph.entry], moves),
        constant=matrix @ out.centre[0] + offset,
        linear=linear[:, columns],
        aside=linear[:, size + free],
        missed=round_up(matrix.abs() @ out.error[0], SDP_ROWS_ERROR, outputs)
        + charge(total, SDP_ROWS, outputs),
        neurons=torch.cat([u.flatten() for u in undecided.values()]).nonzero().flatten(),
        moves=moves,
        bundles=tuple(split_into_blocks(rows, own, layers)),
    )


def _columns(rows: Tensor, count: int) -> Tensor:
    """Pad rows with zero columns to `count` columns."""
    return torch.nn.functional.pad(rows, (0, count - rows.shape[1]))


class _Signals(Forms):
    """Affine forms with the inputs and the unstable ReLUs themselves as noise symbols."""

    def add_activation(self, node: Relaxed, lower: Tensor, upper: Tensor) -> None:
        """Propagate f(z) = below z + (above - below) x; x = max(z, 0) is z, zero or half (1 + v)."""
        form, sides = self.of[node.inputs[0]], node.relaxation.sides()
        assert sides is not None
        undecided, before = ((lower < 0) & (upper > 0))[0], self.share.shape[2]
        place = undecided.nonzero().flatten()
        # torch.where of two Python numbers is float32, and a slope of 0.1 would be off by more than the error
        # bound.
        steep = torch.where(lower >= 0, torch.full_like(form.centre, sides.above), sides.below)
        kink = (sides.above - sides.below) * torch.where(undecided, upper / 2, 0)
        generators = form.generators.new_zeros((1, before + len(place), node.size))
        generators[:, : form.generators.shape[1]] = steep[:, None] * form.generators
        generators[0, before + torch.arange(len(place), device=place.device), place] = kink[0, place]
        size = steep.abs() * form.size + 2 * kink.abs()
        error = steep.abs() * form.error + charge(size, FORM_RELU)
        self.of[node] = Form.of(steep * form.centre + kink, generators, error)
        self.share = self.share.new_zeros((1, self.share.shape[1], before + len(place)))


def _ball(region: Region, entry: Form, moves: Tensor) -> BallConstraints | None:
    """The Euclidean constraints of the region; None for boxes and infinite balls."""
    ball = region.as_norm_family()
    if ball is None or ball.norm != 2:
        return None
    group, reach = ball.balls()
    if not bool(reach.isfinite().all()):
        return None
    centre, middle = region.centre.double().flatten(1)[0, moves], entry.centre[0, moves]
    member = torch.nn.functional.one_hot(group.flatten(1)[0, moves], reach.shape[1]).double()
    shift = middle - centre
    unsure = charge(middle.abs() + centre.abs(), FORM_BALL) + entry.error[0, moves]
    unsure = (unsure[:, None] * member).sum(0)
    return BallConstraints(
        member,
        entry.generators[0].diagonal()[moves],
        shift,
        round_up(reach[0] + unsure, FORM_BALL_RADIUS, len(moves)) + TINY,
    )


@torch.no_grad()
def smallest_row_bounds(
    graph: Graph,
    region: Region,
    matrix: Tensor,
    offset: Tensor,
    *,
    sign: bool,
    memory: Memory | None = None,
    inputs: Sequence[int] = (),
    steps: int = DEFAULT_STEPS,
) -> Tensor:
    """Lower-bound the smallest of some output rows over a region.

    Args:
        matrix, offset: (batch, rows, outputs), (batch, rows).
        sign: only the sign of the result matters: stop at the first row that is not proved to be positive and
            return its bound.
        memory: multipliers of these inputs and rows at other radii; updated in place.
        inputs: the key of each batch element in `memory`.

    Returns:
        (batch,) with result <= row . output + offset everywhere in the region, for all rows; -inf where there
        are too many variables, NaN where the deadline has passed.
    """
    found = torch.full_like(offset[:, 0], torch.nan)
    for k in range(len(region)):
        one = batch.take(region, torch.tensor([k], device=offset.device))
        ball = one.as_norm_family()
        recall = None if memory is None or ball is None else _Recall(memory, inputs[k], float(ball.radius))
        part = partial(_score, graph, one, matrix[k], offset[k], sign, steps, recall)
        known = None if time_limit.has_expired() else time_limit.in_time(part, None)
        if known is None:
            break
        found[k] = known
    return found


@dataclass(frozen=True)
class _Recall:
    """The remembered multipliers of one batch element at one radius."""

    memory: Memory
    key: int
    radius: float

    def of(self, row: int) -> TrainedDual | None:
        """Multipliers to start from: those of a proof at a larger radius, else those of a failed attempt."""
        held, failed = (self.memory.get((self.key, row, kind)) for kind in (True, False))
        found = held if failed is None or (held is not None and held[0] >= self.radius) else failed
        return found and found[1]

    def mark_failed(self, row: int) -> bool:
        return (self.key, row, False) in self.memory

    def keep(self, row: int, held: bool, trained: TrainedDual) -> None:
        self.memory[self.key, row, held] = self.radius, trained


def _score(
    graph: Graph,
    region: Region,
    matrix: Tensor,
    offset: Tensor,
    sign: bool,
    steps: int,
    recall: _Recall | None,
) -> float:
    sizes = sum(s.size for node in relu_like_functions(graph) for s in node.inputs), graph.entry.size
    boxes = crown.propagate(graph, region)
    planes = crown.lower_bound(graph, boxes, matrix[None], offset[None])[0]
    relaxation = build_relaxation(graph, boxes, matrix, offset)
    if relaxation is None or not bool(planes.isfinite().all()):
        return -torch.inf
    failed = torch.tensor(
        [recall is not None and recall.mark_failed(row) for row in range(len(planes))], device=planes.device
    )
    order = torch.where(failed, -torch.inf, planes).argsort()  # rows that failed at another radius come first
    best = float("inf")
    for row in order:
        bound = float(planes[row])
        if bound <= (0 if sign else best) and not time_limit.has_expired():
            one = relaxation.rows(row[None])
            value, trained = least(
                one, steps=steps, sign=sign, known=None if recall is None else recall.of(int(row))
            )
            if recall is not None and float(value) > MEMORY_SHARE * bound:
                recall.keep(int(row), float(value) > 0, trained.scatter_to_all(one, sizes))
            bound = max(bound, float(value))
        best = min(best, bound)
        if sign and best <= 0:
            return torch.nan if time_limit.has_expired() else best
    return best
