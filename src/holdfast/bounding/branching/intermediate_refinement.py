"""Ends of what functions read, by branch and bound of their own: how low and how high does an argument get over the region?

Planes lose a little at every function, and what they lose at the ends of one layer they lose again at the next: after four layers of 256
ReLUs their ends may be ten times too wide. But every argument by itself is a small question: a tree of signs of the functions before it,
each part with trained slopes and multipliers, is far above the planes of the whole region after a few dozen parts. All arguments of a
layer are asked at once, both sides of each, and every layer stands on the ends of those before it.

Parts are trained in float32 over what is undecided (`Undecided`), and what that finds is put into one bound in float64 (`Rows.prove`).
An end is the least of its tree: of what is settled, above `enough`, and of the bounds of the parts that wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import RowTask, apart, arguments, relu_like_functions, together
from holdfast.bounding.branching.subproblem_queue import NUMBERS, Frontier, Points, Seen, SubproblemSearch
from holdfast.bounding.crown_with_fixed_bounds import propagate, take_rows, with_ends
from holdfast.bounding.graph.graph import Graph, Node
from holdfast.bounding.node_bounds import Boxes, Ends
from holdfast.bounding.unstable_subnetwork import Undecided
from holdfast.region import Region

MANY = (
    2**13
)  # parts that are looked at together, at most: the worst of every tree matter, and many more make a round long
NEAR = 0.1  # of what an end may still win: when so little is left, it is near enough
FIRST, STEPS, PACE = 20, 8, 0.5  # of training: over the whole region, over what is cut from it
ROUNDS, FEWEST = 16, 4  # of the first pass; at least, even where all signs are decided that can be
LEFT = 0.5  # of the signs of a layer that may be decided, to the power of the pass: when no more are left it is the next one's turn
HOPELESS = 0.95  # of them: when so many are left after a quarter of its rounds, a layer waits for better ends before it
MISSED = 0.01  # of a layer's signs: so few that are not decided do not matter
FRESH = 0.95  # of the arguments that were undecided: when fewer are left, a tree begins again
FEWER = 16  # times fewer rounds, behind a layer where they do
REACH = 4.0  # times the least value met: what a row may miss if signs are to be decided for it
LAYER = 0.5  # of the time that is left, for a layer at most
PAID = 0.02  # of what a row misses: what a pass has to win, if it decides no sign


@dataclass(frozen=True, eq=False)
class Sought:
    """For each of n tasks: how low does a row of the graph's output get over a region?"""

    graph: Graph
    known: Boxes  # over the region, one row
    undecided: Undecided
    matrix: Tensor  # (n, size of the output)
    offset: Tensor  # (n,)
    enough: Tensor  # (n,): parts above this are settled

    def prove(self, parts: "SignLeaves") -> Tensor:
        """-> (n,): what the slopes and multipliers of each part prove of its row there."""
        task, place = parts.task, self.undecided.place
        every = sum(node.size for node in arguments(self.graph))
        sign = torch.zeros((len(task), every), dtype=torch.float64, device=task.device)
        slope, multiplier = sign * torch.nan, sign.clone()
        sign[:, place], slope[:, place], multiplier[:, place] = (
            parts.sign.double(),
            parts.slope.double(),
            parts.multiplier.double(),
        )
        far = torch.full_like(sign, torch.inf)
        lower, upper = (
            apart(self.graph, torch.where(sign > 0, 0, -far)),
            apart(self.graph, torch.where(sign < 0, 0, far)),
        )
        known = take_rows(self.known, torch.zeros_like(task))
        known = with_ends(self.graph, known, {node: (lower[node], upper[node]) for node in lower})
        asked = RowTask(
            self.graph, known, self.graph.output, self.matrix[task][:, None], self.offset[task][:, None], sign
        )
        return asked.prove(multiplier, torch.ones_like(asked.offset), slope)


@dataclass(frozen=True, eq=False)
class SignLeaves(Frontier):
    """Parts of the region, by the signs of k arguments: those of `Undecided`."""

    sign: Tensor = field(kw_only=True)  # (n, k) int8
    slope: Tensor = field(kw_only=True)  # (n, k) float32: where training begins; NaN: with the function's own
    multiplier: Tensor = field(kw_only=True)  # (n, k) float32


@dataclass(frozen=True)
class EndSplit(SubproblemSearch[Sought, SignLeaves]):
    """Both signs of the argument whose plane costs a row most."""

    batch: int  # parts that are looked at together
    steps: int = STEPS

    def start(self, question: Sought) -> SignLeaves:
        task, nothing = (
            torch.arange(len(question.matrix), device=question.matrix.device),
            torch.full_like(question.enough, -torch.inf),
        )
        blank = torch.zeros((len(task), len(question.undecided.place)), device=task.device)
        open_ = torch.ones((len(task), 1), dtype=torch.bool, device=task.device)
        return SignLeaves(
            task, open_, nothing, sign=blank.to(torch.int8), slope=blank * torch.nan, multiplier=blank
        )

    def at_once(self, question: Sought) -> int:
        return self.batch

    def most(self, graph: Graph) -> int:
        more = (
            16 if graph.device.type == "cuda" else 4
        )  # a part holds what is undecided, which is a part of all arguments
        return more * NUMBERS // (3 * max(1, sum(node.size for node in arguments(graph))))

    def bound(self, question: Sought, parts: SignLeaves) -> Seen[SignLeaves]:
        undecided, task = question.undecided, parts.task
        draft = undecided.train(task, parts.sign, parts.slope, parts.multiplier, self.steps, PACE)
        parts = replace(parts, slope=draft.slope, multiplier=draft.multiplier)
        least = question.prove(parts)
        parts = replace(parts, bound=least, open=~(least > question.enough[task])[:, None])
        region = batch.take(undecided.region, torch.zeros_like(task))
        points = Points(
            region.vertex(draft.planes.double().reshape(-1, *region.shape)), *region.enclosing_box(), task
        )
        return Seen(parts, undecided.cost(parts.sign, draft), points)

    def cut(self, question: Sought, parts: SignLeaves, gain: Tensor) -> tuple[SignLeaves, Tensor]:
        most, place = gain.max(1, keepdim=True)
        stuck = most.squeeze(1) <= 0
        halves = (
            batch.take(replace(parts, sign=parts.sign.scatter(1, place, sign)), ~stuck) for sign in (1, -1)
        )
        return batch.concatenate(list(halves)), stuck


@dataclass
class _Trees:
    """The search for some rows of a node, as far as it has come: of each what is proved, what was met, and the parts that wait."""

    rule: EndSplit
    matrix: Tensor  # (n, size)
    offset: Tensor  # (n,)
    end: Tensor  # (n,): the rows are at least this
    sides: bool  # whether the second half is the first one turned around, of which no more than the signs are asked
    parts: SignLeaves | None = None
    place: Tensor = field(init=False)  # (k,): the arguments whose signs make the parts
    begun: Tensor = field(init=False)  # (n,): `end` after the first look
    enough: Tensor = field(init=False)
    met: Tensor = field(init=False)
    stuck: Tensor = field(init=False)  # (n,) bool: trees of which a part was given up
    done: Tensor = field(init=False)  # (n,) bool: those of which nothing was left

    def __post_init__(self) -> None:
        self.begun, self.enough = self.end, torch.zeros_like(self.end)
        self.met, self.stuck = (
            torch.full_like(self.end, torch.inf),
            torch.zeros_like(self.end, dtype=torch.bool),
        )
        self.done = self.stuck.clone()

    def grow(self, graph: Graph, known: Boxes, rounds: int, left: float) -> None:
        """At most so many more rounds, in each of which the worst part of every open row is looked at, and more of them where more fit; a
        few once only this part of the signs that may be decided is left, and a quarter where nearly all are."""
        undecided = Undecided.of(graph, known, self.matrix, self.offset)
        if undecided is None:
            return
        question = Sought(graph, known, undecided, self.matrix, self.offset, self.enough)
        if self.parts is not None and (not self.sides or len(undecided.place) < FRESH * len(self.place)):
            # Ends are so much better that a tree from the root on will be smaller than what waits.
            self.done, self.parts, self.stuck = self.settled_rows(), None, torch.zeros_like(self.stuck)
        parts = self.rule.start(question) if self.parts is None else self._with_ends(question, self.parts)
        parts, self.place = batch.take(parts, ~self.done[parts.task]), undecided.place
        for turn in range(rounds):
            looking = replace(self.rule, steps=FIRST) if self.parts is None else self.rule
            wanted = self.rows_to_improve()
            for _ in range(max(1, -(-int(wanted[parts.task.unique()].sum()) // self.rule.batch))):
                now = wanted[parts.task]
                seen = None if time_limit.has_expired() or not bool(now.any()) else time_limit.in_time(
                    partial(looking.advance, question, batch.take(parts, now)), None
                )  # fmt: skip
                if seen is None:
                    self.parts = self.parts if self.parts is None else parts
                    return
                looked, points = seen
                self.stuck[list(looked.given_up)] = (
                    True  # with nothing left to cut, its tree will say no more than it did
                )
                parts = batch.concatenate(
                    [batch.take(parts, ~now), batch.take(looked, ~self.stuck[looked.task])]
                )
                least = torch.full_like(self.end, torch.inf).scatter_reduce(
                    0, parts.task, parts.bound, "amin"
                )
                self.end = torch.where(
                    self.stuck, self.end, torch.maximum(self.end, torch.minimum(least, self.enough))
                )
                self._meet(
                    question.undecided.at(points.x.flatten(1).float(), points.task).double(), points.task
                )
            if self.parts is None:
                self.begun = self.end
            if self.sides:
                self.enough = torch.minimum(
                    self.enough, torch.where(self.met > 0, 0, self.met - NEAR * (self.met - self.begun))
                )
            question, parts = (
                replace(question, enough=self.enough),
                batch.take(parts, ~(parts.bound > self.enough[parts.task])),
            )
            self.parts = parts
            if (turn >= FEWEST and self.missing() <= left) or (
                turn >= rounds // FEWEST and self.sides and self.missing() > HOPELESS
            ):
                return

    def _with_ends(self, question: Sought, parts: SignLeaves) -> SignLeaves:
        """The parts, where ends have decided more since: of both sides of an argument the one that they leave."""
        place = question.undecided.place  # some of those before
        lower = together(question.graph, question.known.lower)[0, self.place]
        kept = torch.isin(self.place, place)
        other = torch.where(lower >= 0, -1, 1).to(torch.int8)
        possible = ((parts.sign != other) | kept).all(1)
        changes = {name: getattr(parts, name)[:, kept] for name in ("sign", "slope", "multiplier")}
        return batch.take(replace(parts, **changes), possible)

    def _meet(self, value: Tensor, task: Tensor) -> None:
        """(k,) values of the rows at points, each of which is one for both sides."""
        self.met = self.met.scatter_reduce(0, task, value, "amin")
        if self.sides:
            self.met = _other(_other(self.met).scatter_reduce(0, task, -value, "amin"))

    def rows_to_improve(self) -> Tensor:
        """-> (n,) bool: where more may be won. Where every value met has one sign, the end that may prove it comes first."""
        if not self.sides:
            return ~self.stuck
        decided, hopeful = self.end >= 0, self.met > 0
        return ~self.stuck & ~(decided | _other(decided)) & (hopeful | ~_other(hopeful))

    def missing(self) -> float:
        """Of the signs that may be decided since all values met have one sign, the part of those that are not; zero where they are few."""
        if not self.sides:
            return 1.0
        decided, hopeful = ((side | _other(side))[: len(side) // 2] for side in (self.end >= 0, self.met > 0))
        left = int((hopeful & ~decided).sum())
        return 0.0 if left <= MISSED * self.matrix.shape[1] else left / int((hopeful | decided).sum())

    def near(self) -> bool:
        """Whether the rows miss no more than some times the least value that was met."""
        return bool((-self.end <= REACH * self.met).all()) and bool(self.met.isfinite().all())

    def settled_rows(self) -> Tensor:
        """-> (n,) bool: the rows that are above `enough` in every part of some tree."""
        return (
            self.done if self.parts is None else self.done | ~self.stuck.index_fill(0, self.parts.task, True)
        )


def _other(sides: Tensor) -> Tensor:
    return sides.roll(len(sides) // 2)


def refine_intermediate_bounds(
    graph: Graph,
    region: Region,
    known: Mapping[Node, Ends],
    rows: tuple[Tensor, Tensor],
    passes: int,
    at_once: int,
    *,
    worth: Mapping[Node, Tensor],
) -> tuple[dict[Node, Ends], Tensor]:
    """Ends of the undecided arguments worth it, (1, *shape) bool, over a region of one row, until some rows of the output, (rows, outputs)
    and offsets (rows,), are positive; the best that is found until the clock ends it. And (rows,) bool: which of them are.

    passes  over all layers, each with twice the rounds of the one before. A layer whose signs could be decided and are not has few behind
            it, and so have rows that are far from positive: most of what follows would be cut for in vain.
    """
    rule, held, trees = EndSplit(min(at_once, MANY)), dict(known), dict[Node, tuple[Tensor, _Trees]]()
    last = _Trees(rule, *rows, torch.full_like(rows[1], -torch.inf), sides=False)
    first = min((function.place for function in relu_like_functions(graph)), default=0)
    layers = [node for node in arguments(graph) if node.place > first]  # of those before it ends are exact
    for turn in range(passes):
        rounds, before = ROUNDS * 2**turn, (last.end, _count_unstable(held))
        for node in [*layers, graph.output]:
            part = graph.upto(node)
            found = (
                None
                if time_limit.has_expired()
                else time_limit.in_time(partial(propagate, part, region, within=held), None)
            )
            if found is None:
                return held, last.settled_rows()
            boxes, _ = found
            if node is graph.output:
                last.grow(part, boxes, ROUNDS * 2**turn // 2 if last.near() else 1, 0.0)
                continue
            lower, upper = boxes.lower[node].flatten().clone(), boxes.upper[node].flatten().clone()
            if node not in trees:
                which = ((lower < 0) & (upper > 0) & worth[node].flatten()).nonzero().flatten()
                unit = torch.eye(node.size, dtype=torch.float64, device=which.device)[which]
                none = torch.zeros_like(unit[:, 0]).repeat(2)
                trees[node] = (
                    which,
                    _Trees(rule, torch.cat([unit, -unit]), none, none - torch.inf, sides=True),
                )
            which, tree = trees[node]
            if len(which):
                tree.end = torch.maximum(tree.end, torch.cat([lower[which], -upper[which]]))
                with time_limit.within(time_limit.share(LAYER)):
                    tree.grow(part, boxes, rounds, LEFT ** (turn + 1))
                lower[which], upper[which] = (
                    tree.end[: len(which)],
                    torch.maximum(tree.end[: len(which)], -tree.end[len(which) :]),
                )
                rounds = rounds if tree.missing() <= LEFT else max(1, rounds // FEWER)
            held[node] = lower.reshape(1, *node.shape), upper.reshape(1, *node.shape)
        won = bool((last.end - before[0] > PAID * -last.end).any())
        failed = bool((last.met <= 0).any())  # what fails has to be looked for
        if failed or bool(last.settled_rows().all()) or not (won or _count_unstable(held) < before[1]):
            break
    return held, last.settled_rows()


def _count_unstable(ends: Mapping[Node, Ends]) -> int:
    return sum(int(((lower < 0) & (upper > 0)).sum()) for lower, upper in ends.values())
