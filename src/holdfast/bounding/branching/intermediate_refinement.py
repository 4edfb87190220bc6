"""Refinement of intermediate bounds by branch and bound: a small search for the bounds of every neuron.

The error of linear relaxations accumulates: after four layers of 256 ReLUs intermediate bounds may be ten
times too wide. But bounding one pre-activation is a small problem: a tree of splits of the neurons before it,
with optimised slopes and multipliers in every subproblem, is much tighter than CROWN over the whole region
after a few dozen subproblems. The lower and upper bounds of all unstable neurons of a layer are searched
together, and every layer uses the refined bounds of earlier layers.

Statement. For each row of a node (a unit row for a lower bound, its negative for an upper bound), the
subproblems of its tree cover the region. So the row is at least the smallest of `enough` (for dropped
subproblems, whose bounds exceed it) and the bounds of the open subproblems. Subproblems are optimised in
float32 on the unstable neurons (`UnstableSubnetwork`), and the result is evaluated once in float64 with all rounding
errors included (`RowTask.prove`).

Assumption: the activations before the row are ReLU-like, with one kink at zero.

The settings were chosen on the queries of `benchmarks.lipschitz mnist_fc` (networks of VNN-COMP). The table
in benchmarks/RESULTS.md shows the same queries, so it is no independent test of them.

Reference: Wang et al., "Beta-CROWN: efficient bound propagation with per-neuron split constraints" (2021),
for slopes and multipliers of subproblems.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import (
    RowTask,
    concatenate_nodes,
    relu_like_functions,
    relu_preactivations,
    split_by_node,
)
from holdfast.bounding.branching.subproblem_queue import (
    MAX_QUEUE_VALUES,
    BoundedSubproblems,
    CandidatePoints,
    SubproblemQueue,
    SubproblemSearch,
)
from holdfast.bounding.crown_with_fixed_bounds import propagate, take_rows, with_tighter_bounds
from holdfast.bounding.graph.graph import Graph, Node
from holdfast.bounding.node_bounds import Boxes, IntervalBounds
from holdfast.bounding.unstable_subnetwork import UnstableSubnetwork
from holdfast.region import Region

# Largest number of subproblems that are bounded together. More would make rounds longer, while the worst
# subproblem of every tree matters most.
MAX_BATCH = 2**13
# A bound is not improved further once at most this share of the possible gain is left. The possible gain is
# the distance between the first bound and the least value of the row that was evaluated.
REMAINING_GAIN_SHARE = 0.1
ROOT_STEPS = 20  # Adam steps over the whole region.
CHILD_STEPS = 8  # Adam steps over its subproblems, which start from their parent's coefficients.
LEARNING_RATE = 0.5  # Adam's first learning rate, which decreases linearly to zero.
FIRST_PASS_ROUNDS = 16  # Rounds for each layer in the first pass; every further pass has twice as many.
# Rounds after which a layer may be left early; also the divisor that gives a quarter of all rounds.
MIN_ROUNDS = 4
# A layer is left once at most this share, to the power of the pass, of its decidable signs is undecided.
# Decidable are signs of neurons for which all evaluated values have one sign.
UNDECIDED_SHARE = 0.5
# A layer is left after a quarter of its rounds if more than this share of its decidable signs is still
# undecided: it needs better bounds of earlier layers first.
HOPELESS_SHARE = 0.95
NEGLIGIBLE_SHARE = 0.01  # Undecided signs of at most this share of a layer are ignored.
# A tree starts again from its root if the number of unstable neurons has fallen below this share.
RESTART_SHARE = 0.95
# The rounds of later layers are divided by this, if a layer has more than UNDECIDED_SHARE undecided signs.
SKIPPED_LAYER_DIVISOR = 16
# The rows are searched for more than one round if their bounds are at least minus this many times the least
# value of the rows that was evaluated.
MAX_DEFICIT_FACTOR = 4.0
LAYER_TIME_SHARE = 0.5  # Largest share of the remaining time for one layer.
# Another pass follows if a row gained at least this share of its deficit, or if a sign was decided.
MIN_PASS_GAIN = 0.02


@dataclass(frozen=True, eq=False)
class RowProblems:
    """For each of n tasks: lower-bound a linear function of the graph's output over a region."""

    graph: Graph
    known: Boxes  # intermediate bounds over the region, a batch of one
    undecided: UnstableSubnetwork
    matrix: Tensor  # (n, size of the output)
    offset: Tensor  # (n,)
    enough: Tensor  # (n,): subproblems with bounds above this are decided

    def prove(self, parts: "TreeSubproblems") -> Tensor:
        """(n,): the bounds of the rows over subproblems, proved by their slopes and multipliers."""
        task, place = parts.task, self.undecided.place
        every = sum(node.size for node in relu_preactivations(self.graph))
        sign = torch.zeros((len(task), every), dtype=torch.float64, device=task.device)
        slope, multiplier = sign * torch.nan, sign.clone()
        sign[:, place] = parts.sign.double()
        slope[:, place] = parts.slope.double()
        multiplier[:, place] = parts.multiplier.double()
        far = torch.full_like(sign, torch.inf)
        lower = split_by_node(self.graph, torch.where(sign > 0, 0, -far))
        upper = split_by_node(self.graph, torch.where(sign < 0, 0, far))
        known = take_rows(self.known, torch.zeros_like(task))
        known = with_tighter_bounds(self.graph, known, {node: (lower[node], upper[node]) for node in lower})
        row_task = RowTask(
            self.graph, known, self.graph.output, self.matrix[task][:, None], self.offset[task][:, None], sign
        )
        return row_task.prove(multiplier, torch.ones_like(row_task.offset), slope)


@dataclass(frozen=True, eq=False)
class TreeSubproblems(SubproblemQueue):
    """Subproblems given by the signs of k pre-activations, those of `UnstableSubnetwork`."""

    sign: Tensor = field(kw_only=True)  # (n, k) int8
    slope: Tensor = field(kw_only=True)  # (n, k) float32: initial slopes; NaN: CROWN's
    multiplier: Tensor = field(kw_only=True)  # (n, k) float32


@dataclass(frozen=True)
class EndSplit(SubproblemSearch[RowProblems, TreeSubproblems]):
    """Splits the neuron whose linear upper bound costs a row most."""

    batch: int  # subproblems that are bounded together
    steps: int = CHILD_STEPS

    def start(self, question: RowProblems) -> TreeSubproblems:
        task = torch.arange(len(question.matrix), device=question.matrix.device)
        nothing = torch.full_like(question.enough, -torch.inf)
        blank = torch.zeros((len(task), len(question.undecided.place)), device=task.device)
        open_ = torch.ones((len(task), 1), dtype=torch.bool, device=task.device)
        return TreeSubproblems(
            task, open_, nothing, sign=blank.to(torch.int8), slope=blank * torch.nan, multiplier=blank
        )

    def at_once(self, question: RowProblems) -> int:
        return self.batch

    def most(self, graph: Graph) -> int:
        # a subproblem stores unstable neurons only, a part of all
        more = 16 if graph.device.type == "cuda" else 4
        return more * MAX_QUEUE_VALUES // (3 * max(1, sum(node.size for node in relu_preactivations(graph))))

    def bound(self, question: RowProblems, parts: TreeSubproblems) -> BoundedSubproblems[TreeSubproblems]:
        undecided, task = question.undecided, parts.task
        draft = undecided.train(task, parts.sign, parts.slope, parts.multiplier, self.steps, LEARNING_RATE)
        parts = replace(parts, slope=draft.slope, multiplier=draft.multiplier)
        least = question.prove(parts)
        parts = replace(parts, bound=least, open=~(least > question.enough[task])[:, None])
        region = batch.take(undecided.region, torch.zeros_like(task))
        points = CandidatePoints(
            region.vertex(draft.planes.double().reshape(-1, *region.shape)), *region.enclosing_box(), task
        )
        return BoundedSubproblems(parts, undecided.cost(parts.sign, draft), points)

    def cut(
        self, question: RowProblems, parts: TreeSubproblems, gain: Tensor
    ) -> tuple[TreeSubproblems, Tensor]:
        most, place = gain.max(1, keepdim=True)
        stuck = most.squeeze(1) <= 0
        halves = (
            batch.take(replace(parts, sign=parts.sign.scatter(1, place, sign)), ~stuck) for sign in (1, -1)
        )
        return batch.concatenate(list(halves)), stuck


@dataclass
class _Trees:
    """The searches for some rows of a node: proved bounds, least evaluated values, and open subproblems."""

    rule: EndSplit
    matrix: Tensor  # (n, size)
    offset: Tensor  # (n,)
    proved: Tensor  # (n,): proved lower bounds of the rows
    paired: bool  # the second half of the rows are the negatives of the first; only their signs matter
    parts: TreeSubproblems | None = None
    # (k,): the neurons with signs in the subproblems, as indices among all pre-activations
    place: Tensor = field(init=False)
    first_lower: Tensor = field(init=False)  # (n,): `proved` after the first round
    enough: Tensor = field(init=False)
    least_value: Tensor = field(init=False)
    stuck: Tensor = field(init=False)  # (n,) bool: trees with a subproblem that could not be split further
    done: Tensor = field(init=False)  # (n,) bool: trees without open subproblems

    def __post_init__(self) -> None:
        self.first_lower, self.enough = self.proved, torch.zeros_like(self.proved)
        self.least_value = torch.full_like(self.proved, torch.inf)
        self.stuck = torch.zeros_like(self.proved, dtype=torch.bool)
        self.done = self.stuck.clone()

    def grow(self, graph: Graph, known: Boxes, rounds: int, left: float) -> None:
        """Search for at most `rounds` rounds, each of which bounds the worst subproblems of every open row.

        Stops early once at most the share `left` of the decidable signs is undecided, or, after a quarter of
        the rounds, if nearly all are.
        """
        undecided = UnstableSubnetwork.of(graph, known, self.matrix, self.offset)
        if undecided is None:
            return
        question = RowProblems(graph, known, undecided, self.matrix, self.offset, self.enough)
        if self.parts is not None and (
            not self.paired or len(undecided.place) < RESTART_SHARE * len(self.place)
        ):
            # With much tighter intermediate bounds, a tree from the root on will be smaller.
            self.done = self.settled_rows()
            self.parts = None
            self.stuck = torch.zeros_like(self.stuck)
        parts = (
            self.rule.start(question)
            if self.parts is None
            else self._update_subproblems(question, self.parts)
        )
        parts, self.place = batch.take(parts, ~self.done[parts.task]), undecided.place
        for turn in range(rounds):
            rule = replace(self.rule, steps=ROOT_STEPS) if self.parts is None else self.rule
            selected = self.rows_to_improve()
            for _ in range(max(1, -(-int(selected[parts.task.unique()].sum()) // self.rule.batch))):
                chosen = selected[parts.task]
                seen = None
                if not time_limit.has_expired() and bool(chosen.any()):
                    step = partial(rule.advance, question, batch.take(parts, chosen))
                    seen = time_limit.in_time(step, None)
                if seen is None:
                    self.parts = self.parts if self.parts is None else parts
                    return
                looked, points = seen
                self.stuck[list(looked.given_up)] = True  # its tree cannot improve any more
                parts = batch.concatenate(
                    [batch.take(parts, ~chosen), batch.take(looked, ~self.stuck[looked.task])]
                )
                least = torch.full_like(self.proved, torch.inf).scatter_reduce(
                    0, parts.task, parts.bound, "amin"
                )
                self.proved = torch.where(
                    self.stuck, self.proved, torch.maximum(self.proved, torch.minimum(least, self.enough))
                )
                self._record_values(
                    question.undecided.at(points.x.flatten(1).float(), points.task).double(), points.task
                )
            if self.parts is None:
                self.first_lower = self.proved
            if self.paired:
                self.enough = torch.minimum(
                    self.enough,
                    torch.where(
                        self.least_value > 0,
                        0,
                        self.least_value - REMAINING_GAIN_SHARE * (self.least_value - self.first_lower),
                    ),
                )
            question = replace(question, enough=self.enough)
            parts = batch.take(parts, ~(parts.bound > self.enough[parts.task]))
            self.parts = parts
            if (turn >= MIN_ROUNDS and self.undecided_share() <= left) or (
                turn >= rounds // MIN_ROUNDS and self.paired and self.undecided_share() > HOPELESS_SHARE
            ):
                return

    def _update_subproblems(self, question: RowProblems, parts: TreeSubproblems) -> TreeSubproblems:
        """Update subproblems after earlier layers were refined; drops those with signs now excluded."""
        place = question.undecided.place  # a subset of the previous ones
        lower = concatenate_nodes(question.graph, question.known.lower)[0, self.place]
        kept = torch.isin(self.place, place)
        other = torch.where(lower >= 0, -1, 1).to(torch.int8)
        possible = ((parts.sign != other) | kept).all(1)
        changes = {name: getattr(parts, name)[:, kept] for name in ("sign", "slope", "multiplier")}
        return batch.take(replace(parts, **changes), possible)

    def _record_values(self, value: Tensor, task: Tensor) -> None:
        """Record values (k,) of the rows at points; each is also a value of the negated row."""
        self.least_value = self.least_value.scatter_reduce(0, task, value, "amin")
        if self.paired:
            self.least_value = _negated_rows(
                _negated_rows(self.least_value).scatter_reduce(0, task, -value, "amin")
            )

    def rows_to_improve(self) -> Tensor:
        """(n,) bool: rows with possible gains.

        Where all evaluated values have one sign, the bound that may prove that sign comes first.
        """
        if not self.paired:
            return ~self.stuck
        decided, hopeful = self.proved >= 0, self.least_value > 0
        return ~self.stuck & ~(decided | _negated_rows(decided)) & (hopeful | ~_negated_rows(hopeful))

    def undecided_share(self) -> float:
        """The undecided share of the decidable signs; zero where they are few.

        A sign is decidable as far as all evaluated values have the same sign.
        """
        if not self.paired:
            return 1.0
        decided, hopeful = (
            (side | _negated_rows(side))[: len(side) // 2]
            for side in (self.proved >= 0, self.least_value > 0)
        )
        left = int((hopeful & ~decided).sum())
        return (
            0.0 if left <= NEGLIGIBLE_SHARE * self.matrix.shape[1] else left / int((hopeful | decided).sum())
        )

    def is_close(self) -> bool:
        """Whether the rows lack at most some times the least evaluated value."""
        return bool((-self.proved <= MAX_DEFICIT_FACTOR * self.least_value).all()) and bool(
            self.least_value.isfinite().all()
        )

    def settled_rows(self) -> Tensor:
        """(n,) bool: rows that exceed `enough` in every subproblem of some tree."""
        return (
            self.done if self.parts is None else self.done | ~self.stuck.index_fill(0, self.parts.task, True)
        )


def _negated_rows(paired: Tensor) -> Tensor:
    """For each row the value of its negative."""
    return paired.roll(len(paired) // 2)


def refine_intermediate_bounds(
    graph: Graph,
    region: Region,
    known: Mapping[Node, IntervalBounds],
    rows: tuple[Tensor, Tensor],
    passes: int,
    at_once: int,
    *,
    worth: Mapping[Node, Tensor],
) -> tuple[dict[Node, IntervalBounds], Tensor]:
    """Refine intermediate bounds over a region until some rows of the output are proved to be positive.

    Args:
        known: intermediate bounds that hold over the region, a batch of one.
        rows: coefficients (rows, outputs) and offsets (rows,) of linear functions of the output.
        passes: the largest number of passes over all layers, each with twice the rounds of the one before.
            Layers behind one with undecided signs get few rounds, and so do rows that are far from positive,
            since most of their splits would be useless.
        worth: (1, *shape) bool for each pre-activation, the neurons to refine.

    Returns:
        The bounds found before the deadline, and (rows,) bool: the rows that are positive.
    """
    rule = EndSplit(min(at_once, MAX_BATCH))
    held = dict(known)
    trees = dict[Node, tuple[Tensor, _Trees]]()
    last = _Trees(rule, *rows, torch.full_like(rows[1], -torch.inf), paired=False)
    first = min((function.place for function in relu_like_functions(graph)), default=0)
    layers = [
        node for node in relu_preactivations(graph) if node.place > first
    ]  # bounds of earlier layers are exact
    for turn in range(passes):
        rounds, before = FIRST_PASS_ROUNDS * 2**turn, (last.proved, _count_unstable(held))
        for node in [*layers, graph.output]:
            part = graph.subgraph_ending_at(node)
            found = (
                None
                if time_limit.has_expired()
                else time_limit.in_time(partial(propagate, part, region, within=held), None)
            )
            if found is None:
                return held, last.settled_rows()
            boxes, _ = found
            if node is graph.output:
                last.grow(part, boxes, FIRST_PASS_ROUNDS * 2**turn // 2 if last.is_close() else 1, 0.0)
                continue
            lower, upper = boxes.lower[node].flatten().clone(), boxes.upper[node].flatten().clone()
            if node not in trees:
                which = ((lower < 0) & (upper > 0) & worth[node].flatten()).nonzero().flatten()
                unit = torch.eye(node.size, dtype=torch.float64, device=which.device)[which]
                none = torch.zeros_like(unit[:, 0]).repeat(2)
                trees[node] = (
                    which,
                    _Trees(rule, torch.cat([unit, -unit]), none, none - torch.inf, paired=True),
                )
            which, tree = trees[node]
            if len(which):
                tree.proved = torch.maximum(tree.proved, torch.cat([lower[which], -upper[which]]))
                with time_limit.within(time_limit.share_of_remaining(LAYER_TIME_SHARE)):
                    tree.grow(part, boxes, rounds, UNDECIDED_SHARE ** (turn + 1))
                lower[which] = tree.proved[: len(which)]
                upper[which] = torch.maximum(tree.proved[: len(which)], -tree.proved[len(which) :])
                rounds = (
                    rounds
                    if tree.undecided_share() <= UNDECIDED_SHARE
                    else max(1, rounds // SKIPPED_LAYER_DIVISOR)
                )
            held[node] = lower.reshape(1, *node.shape), upper.reshape(1, *node.shape)
        won = bool((last.proved - before[0] > MIN_PASS_GAIN * -last.proved).any())
        failed = bool((last.least_value <= 0).any())  # a counterexample exists, so no proof does
        if failed or bool(last.settled_rows().all()) or not (won or _count_unstable(held) < before[1]):
            break
    return held, last.settled_rows()


def _count_unstable(ends: Mapping[Node, IntervalBounds]) -> int:
    """The number of unstable neurons."""
    return sum(int(((lower < 0) & (upper > 0)).sum()) for lower, upper in ends.values())
