"""Trees of signs that the checker's own bounds prove: the engine chooses cuts, slopes and multipliers, the
checker says what is settled.

One tree is for all groups of rows that the whole region leaves open. A leaf is done once the checker, with
the very numbers that would be written, finds it above what is claimed; until then it is cut where the engine
expects most of it. Nobody has to trust this.
"""

import time
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import TrainedBounds, concatenate_nodes
from holdfast.bounding.branching.relu_split import ActivationSplit, SignSubproblems
from holdfast.bounding.branching.subproblem_queue import BoundedSubproblems, PolytopeQuestion
from holdfast.bounding.graph.graph import Graph
from holdfast.certificates.matching import MatchedActivations, smallest_integers
from holdfast.certificates.trained_slopes import SLACK, TrainedPlanes
from holdfast.property import Avoid
from holdfast.region import Region
from holdfast_check import Rejected
from holdfast_check.planes import StepBounds
from holdfast_check.proof import AT_ONCE, Claim
from holdfast_check.tree import SignSplit, margins

FEW = 2048  # Up to this many pre-activations, intermediate bounds are recomputed for every leaf.
# Least margin of a leaf, relative to the rows' values at the centre: covers another order of summation.
SURE = 1e-9
MISSED = 0.0  # The bound of a subproblem that the engine proves and the checker does not.
ENOUGH, HOPE = (
    512,
    16,
)  # After ENOUGH subproblems the search ends if the engine expects more than HOPE times the limit.
BEYOND = 1.5  # The engine has to prove the margin that the checker missed, times this factor.

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class CheckedSubproblems(SignSubproblems):
    """Subproblems with the last slopes and multipliers of each polytope.

    `more` is the margin above zero that the engine has to prove, because the checker proves less than the
    engine.
    """

    slopes: Tensor = field(kw_only=True)  # (n, polytopes, arguments) float32
    multipliers: Tensor = field(kw_only=True)
    more: Tensor = field(kw_only=True)  # (n, polytopes) float64


@dataclass
class AcceptedLeaves:
    """The leaves that the checker accepted.

    For each leaf: the signs of the pre-activations (pre-activations,), a multiplier for each split and row,
    and the slopes of each step (rows, elements of at/K).
    """

    match: MatchedActivations
    claim: Claim
    whole: StepBounds  # the checker's bounds over the whole region
    at: dict[str, Array]
    groups: list[int]  # the groups of the claim that are split
    refine: bool
    least: float
    found: list[tuple[Array, Array, dict[int, Array]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [row for group in self.groups for row in self.claim.groups[group]]
        self.group_of = np.repeat(
            np.arange(len(self.groups)), [len(self.claim.groups[group]) for group in self.groups]
        )

    def margins(self, parts: CheckedSubproblems) -> Tensor:
        """Return the checker's margins (n, groups). Subproblems with all groups proved become leaves."""
        many = max(1, AT_ONCE // max(step.size for step in self.match.program.steps))
        return torch.cat(
            [self._margins(batch.take(parts, some)) for some in torch.arange(len(parts)).split(many)]
        )

    def _margins(self, parts: CheckedSubproblems) -> Tensor:
        paths, times = list[list[SignSplit]](), list[Array]()
        for sign, multipliers in zip(parts.sign.numpy(), parts.multipliers.numpy(), strict=True):
            cuts = np.flatnonzero(sign)
            paths.append([(*self.match.elements[cut].tolist(), float(sign[cut])) for cut in cuts])
            times.append(multipliers[self.group_of][:, cuts].T.astype(np.float32))
        by_rows = parts.slopes[:, self.group_of]
        slopes = {
            place: array.reshape(*by_rows.shape[:2], -1)
            for place, array in self.match.slopes(by_rows.flatten(0, 1), self.at).items()
        }
        with np.errstate(all="ignore"):
            matrix, offset = self.claim.matrix[self.rows], self.claim.offset[self.rows]
            given = {**self.at, **{f"rows/{place}": array for place, array in slopes.items()}}
            least = margins(
                self.whole,
                matrix,
                offset,
                paths,
                np.concatenate(times).astype(np.float64),
                given,
                self.refine,
            )
        least = least - self.claim.above - self.least
        found = np.stack([least[:, self.group_of == place].max(1) for place in range(len(self.groups))], 1)
        for place in np.flatnonzero((found > 0).all(1)).tolist():
            self.found.append(
                (
                    parts.sign[place].numpy(),
                    times[place],
                    {step: array[place] for step, array in slopes.items()},
                )
            )
        return torch.from_numpy(found)

    def arrays(self) -> dict[str, Array]:
        order, tree, along = _tree(np.stack([sign for sign, _, _ in self.found]))
        times = []
        for leaf, path in zip(order, along, strict=True):
            sign, own, _ = self.found[leaf]
            times.append(own[np.searchsorted(np.flatnonzero(sign), path)])
        arrays = {
            "signs": smallest_integers(np.where(tree[:, None] < 0, -1, self.match.elements[tree])),
            "signs/groups": smallest_integers(np.array(self.groups)),
            "signs/multipliers": np.concatenate(times),
            "signs/anew": np.array([self.refine], dtype=np.uint8),
        }
        return arrays | {
            f"leaves/{place}": np.stack([self.found[leaf][2][place] for leaf in order])
            for place in self.match.preactivations
        }


def _tree(signs: Array) -> tuple[list[int], Array, list[list[int]]]:
    """Rebuild a tree from the signs (leaves, pre-activations) of its leaves.

    Returns the leaves in tree order, the tree (nodes,) with the split pre-activation or -1, and the splits on
    the path to every leaf. Any pre-activation that all leaves below decide, with both signs, may be split
    first.
    """
    order, tree, along = list[int](), list[int](), list[list[int]]()
    waiting: list[tuple[Array, list[int]]] = [(np.arange(len(signs)), [])]
    while waiting:
        some, path = waiting.pop()
        below = signs[some]
        both = (below != 0).all(0) & (below > 0).any(0) & (below < 0).any(0)
        if both.any():
            cut = int(both.argmax())
            tree.append(cut)
            waiting += [(some[below[:, cut] > 0], [*path, cut]), (some[below[:, cut] < 0], [*path, cut])]
            continue
        if len(some) > 1:
            raise Rejected("the leaves of the ReLU splits do not form a tree")
        order.append(int(some[0]))
        tree.append(-1)
        along.append(path)
    return order, np.array(tree), along


@dataclass(frozen=True)
class _Judged(ActivationSplit):
    """The engine's branch and bound, in which only the checker decides that a subproblem is proved."""

    leaves: AcceptedLeaves = field(kw_only=True)

    def most(self, graph: Graph) -> int:
        return max(
            64, super().most(graph) // (1 + len(self.leaves.groups))
        )  # each holds slopes and multipliers of all groups

    def bound(
        self, question: PolytopeQuestion, parts: SignSubproblems
    ) -> BoundedSubproblems[SignSubproblems]:
        """Optimise the slopes again where the engine proves a subproblem and the checker does not."""
        assert isinstance(parts, CheckedSubproblems)
        seen = self._judge(self._bound(question, parts), torch.ones(len(parts), dtype=torch.bool))
        again = seen.parts.open.any(1) & (seen.parts.bound == MISSED)
        if not bool(again.any()):
            return seen
        some = self._bound(question, batch.take(seen.parts, again))
        order = torch.cat([(~again).nonzero(), again.nonzero()]).flatten().argsort()
        both = batch.take(batch.concatenate([batch.take(seen.parts, ~again), some.parts]), order)
        return self._judge(
            replace(seen, parts=both, gain=torch.cat([seen.gain[~again], some.gain])[order]), again
        )

    def _bound(
        self, question: PolytopeQuestion, parts: SignSubproblems
    ) -> BoundedSubproblems[SignSubproblems]:
        """Return the subproblems with the margin that each has to prove."""
        assert isinstance(parts, CheckedSubproblems)
        rules = batch.take(question.rules, parts.task)
        asked = replace(
            question,
            region=batch.take(question.region, parts.task),
            rules=replace(rules, offset=rules.offset - parts.more[..., None]),
        )
        seen = super().bound(asked, replace(parts, task=torch.arange(len(parts))))
        return replace(seen, parts=replace(seen.parts, task=parts.task))

    def _judge(
        self, seen: BoundedSubproblems[SignSubproblems], which: Tensor
    ) -> BoundedSubproblems[SignSubproblems]:
        hoped = (which & ~seen.parts.open.any(1)).nonzero().flatten()
        parts = seen.parts
        assert isinstance(parts, CheckedSubproblems)
        if not len(hoped):
            return seen
        margins = self.leaves.margins(batch.take(parts, hoped))
        missed = ~(margins > 0)
        open_, bound, more = parts.open.clone(), parts.bound.clone(), parts.more.clone()
        open_[hoped] = missed
        bound[hoped] = torch.where(missed.any(1), MISSED, bound[hoped])
        more[hoped] += torch.where(missed, BEYOND * torch.nan_to_num(-margins, 0.0, 0.0, 0.0), 0.0)
        return replace(seen, parts=replace(parts, open=open_, bound=bound, more=more))

    def record_children(
        self, parts: SignSubproblems, part: Tensor, polytope: Tensor, found: TrainedBounds
    ) -> SignSubproblems:
        after = super().record_children(parts, part, polytope, found)
        assert isinstance(after, CheckedSubproblems)
        slopes, multipliers = after.slopes.clone(), after.multipliers.clone()
        slopes[part, polytope], multipliers[part, polytope] = found.slope.float(), found.multiplier.float()
        return replace(after, slopes=slopes, multipliers=multipliers)


def split_by_relus(
    match: MatchedActivations,
    region: Region,
    claim: Claim,
    planes: TrainedPlanes,
    scale: float,
    until: float,
    most: int,
) -> dict[str, Array]:
    """Return a tree of ReLU splits that proves every group which is not proved over the whole region.

    Raises Rejected if the time or the number of subproblems is exhausted first.

    Args:
        match: the engine's pre-activations in the checker's numbering.
        region: the region of the claim.
        claim: what has to be proved, with the slopes of `planes`.
        planes: linear bounds that were trained over the whole region.
        scale: the scale of the margins.
        until: the deadline, in time.monotonic.
        most: the largest number of subproblems.
    """
    with np.errstate(all="ignore"):
        whole = StepBounds(match.program, claim.box(), claim.slopes)
        bounds = whole.rows(claim.matrix, claim.offset) - claim.above
    groups = [
        place for place, group in enumerate(claim.groups) if not bounds[0, list(group)].max() > SURE * scale
    ]
    at = {name: array for name, array in claim.slopes.items() if name.startswith("at/")}
    leaves = AcceptedLeaves(match, claim, whole, at, groups, match.width <= FEW, SURE * scale)
    rule = _Judged(
        refine=leaves.refine, leaves=leaves, passes=0
    )  # The checker does not use intermediate bounds that were refined by splits.
    rows = max(len(claim.groups[group]) for group in groups)
    chosen = [
        [*claim.groups[group], *claim.groups[group][:1] * (rows - len(claim.groups[group]))]
        for group in groups
    ]
    offset = claim.offset[chosen] - claim.above - SLACK * scale
    question = PolytopeQuestion(
        match.graph,
        region,
        Avoid(torch.from_numpy(claim.matrix[chosen])[None], torch.from_numpy(offset)[None]),
    )
    with time_limit.within(until):
        first = rule.start(match.graph, region, question.rules)
        lower, upper = (
            concatenate_nodes(match.graph, side) for side in (planes.known.lower, planes.known.upper)
        )
        none = torch.zeros((1, len(groups), match.width))
        held = {**{f.name: getattr(first, f.name) for f in fields(first)}, "lower": lower, "upper": upper}
        frontier: SignSubproblems = CheckedSubproblems(
            **{**held, "tight": torch.ones_like(first.tight)},
            slopes=none,
            multipliers=none,
            more=none[..., 0].double(),
        )
        while len(frontier):
            hopeless = (
                frontier.looked > ENOUGH and frontier.looked + float(frontier.ahead.sum()) > most * HOPE
            )
            if time.monotonic() > until or frontier.looked > most or hopeless:
                raise Rejected(
                    f"{len(frontier)} subproblems are left to prove after {frontier.looked} ReLU splits"
                )
            frontier, _ = rule.advance(question, frontier)
            if frontier.given_up:
                raise Rejected("a subproblem without unstable neurons is not proved")
    return leaves.arrays()
