"""Trees of signs that the checker's own bounds prove: the engine chooses cuts, slopes and multipliers, the checker says what is settled.

Every group of rows that the whole region leaves open has a tree of its own. A leaf is done once the checker, with the very numbers that
would be written, finds it above what is claimed; until then it is cut where the engine expects most of it. Nobody has to trust this.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast import batch, clock
from holdfast.api.trained import SLACK, Matched, Planes, small
from holdfast.bounding.alpha_beta_crown import together
from holdfast.bounding.branching.frontier import Question, Seen
from holdfast.bounding.branching.relu_split import ActivationSplit, Decisions
from holdfast.property import Avoid
from holdfast.region import Region
from holdfast_check import Rejected
from holdfast_check.planes import Bounds
from holdfast_check.proof import AT_ONCE, Claim
from holdfast_check.tree import Cut, margins

FEW = 2048  # arguments up to which intervals are narrowed anew over every leaf
SURE = 1e-9  # of what the rows say at the centre: the least margin of a leaf, so that other sums of the same numbers prove it too

Array = np.ndarray[Any, Any]


@dataclass
class Leaves:
    """What the checker accepted: of each group, signs, slopes and multipliers (arguments,) of its leaves."""

    match: Matched
    claim: Claim
    whole: Bounds  # the checker's, over the whole region
    at: dict[str, Array]
    groups: list[int]  # of the claim, those that are cut
    anew: bool
    least: float
    found: dict[int, list[tuple[Array, Tensor, Array]]] = field(default_factory=dict)
    elements: Array = field(init=False)

    def __post_init__(self) -> None:
        self.elements = self.match.elements()

    def accepted(self, parts: Decisions) -> Tensor:
        """-> (n,) bool: which of these are leaves; they are kept."""
        held = torch.zeros(len(parts), dtype=torch.bool)
        many = max(1, AT_ONCE // max(step.size for step in self.match.program.steps))
        for task in parts.task.unique().tolist():
            for some in (parts.task == task).nonzero().flatten().split(many):
                held[some] = torch.from_numpy(self._margins(self.groups[task], batch.take(parts, some)) > self.least)
        for place in held.nonzero().flatten().tolist():
            times = parts.multiplier[place].numpy().astype(np.float32)
            leaf = parts.sign[place].numpy(), parts.slope[place], times
            self.found.setdefault(self.groups[int(parts.task[place])], []).append(leaf)
        return held

    def _margins(self, group: int, parts: Decisions) -> Array:
        rows = list(self.claim.groups[group])
        paths, times = list[list[Cut]](), list[Array]()
        for sign, multiplier in zip(parts.sign.numpy(), parts.multiplier.numpy().astype(np.float32), strict=True):
            cuts = np.flatnonzero(sign)
            paths.append([(*self.elements[cut].tolist(), float(sign[cut])) for cut in cuts])
            times.append(multiplier[cuts])
        slopes = {f"rows/{place}": np.repeat(array[:, None], len(rows), 1) for place, array in self.match.slopes(parts.slope, self.at).items()}
        wide = np.repeat(np.concatenate(times).astype(np.float64)[:, None], len(rows), 1)
        with np.errstate(all="ignore"):
            matrix, offset = self.claim.matrix[rows], self.claim.offset[rows]
            least = margins(self.whole, matrix, offset, paths, wide, {**slopes, **self.at}, self.anew) - self.claim.above
        return np.nan_to_num(least.max(1), nan=-np.inf)

    def arrays(self) -> dict[str, Array]:
        """`signs/G`, `multipliers/G` and `rows/K/G` of all groups that were cut."""
        arrays: dict[str, Array] = {}
        for group, found in self.found.items():
            order, tree, times = _written(np.stack([sign for sign, _, _ in found]), np.stack([times for _, _, times in found]))
            cuts = np.where(tree[:, None] < 0, -1, self.elements[tree])
            rows = len(self.claim.groups[group])
            arrays[f"signs/{group}"], arrays[f"multipliers/{group}"] = small(cuts), np.repeat(times[:, None], rows, 1)
            for place, array in self.match.slopes(torch.stack([found[leaf][1] for leaf in order]), self.at).items():
                arrays[f"rows/{place}/{group}"] = np.repeat(array[:, None], rows, 1)
        return arrays


def _written(signs: Array, multipliers: Array) -> tuple[list[int], Array, Array]:
    """(leaves, arguments) twice -> the leaves in their order, the tree (parts,): the argument that is cut or -1, and the multipliers along
    the way to every leaf. What all parts below have decided, and not alike, may be cut first, whatever was."""
    order, tree, times = list[int](), list[int](), list[Array]()
    waiting: list[tuple[Array, list[int]]] = [(np.arange(len(signs)), [])]
    while waiting:
        some, path = waiting.pop()
        below = signs[some]
        both = (below != 0).all(0) & (below > 0).any(0) & (below < 0).any(0)
        if not both.any():
            if len(some) > 1:
                raise Rejected("the leaves of a tree of signs do not fit together")
            order.append(int(some[0]))
            tree.append(-1)
            times.append(multipliers[some[0], path])
            continue
        cut = int(both.argmax())
        tree.append(cut)
        waiting += [(some[below[:, cut] > 0], [*path, cut]), (some[below[:, cut] < 0], [*path, cut])]
    return order, np.array(tree), np.concatenate(times)


@dataclass(frozen=True)
class _Judged(ActivationSplit):
    """The engine's search, in which only the checker settles a part."""

    leaves: Leaves = field(kw_only=True)

    def bound(self, question: Question, parts: Decisions) -> Seen[Decisions]:
        seen = super().bound(question, parts)
        hoped = (~seen.parts.open.any(1)).nonzero().flatten()
        if not len(hoped):
            return seen
        missed = hoped[~self.leaves.accepted(batch.take(seen.parts, hoped))]
        opened, bound = seen.parts.open.clone(), seen.parts.bound.clone()
        opened[missed], bound[missed] = True, 0.0
        return replace(seen, parts=replace(seen.parts, open=opened, bound=bound))


def cut_by_signs(
    match: Matched, region: Region, claim: Claim, planes: Planes, scale: float, until: float, most: int
) -> tuple[dict[str, Array], bool]:
    """Trees of signs for all groups that the whole region leaves open; and whether intervals are narrowed anew over their leaves. Rejected
    where the time or the parts end before the proof. scale: of the margins."""
    at = {name: array.astype(np.int64) for name, array in planes.arrays.items() if name.startswith("at/")}
    with np.errstate(all="ignore"):
        whole = Bounds(match.program, claim.region, claim.slopes)
        bounds = whole.rows(claim.matrix, claim.offset) - claim.above
    groups = [place for place, group in enumerate(claim.groups) if not bounds[0, list(group)].max() > SURE * scale]
    anew = match.width <= FEW
    leaves = Leaves(match, claim, whole, at, groups, anew, SURE * scale)
    if not groups:
        return {}, anew
    rows = max(len(claim.groups[group]) for group in groups)
    chosen = [[*claim.groups[group], *claim.groups[group][:1] * (rows - len(claim.groups[group]))] for group in groups]
    offset = claim.offset[chosen] - claim.above - SLACK * scale
    rules = Avoid(torch.from_numpy(claim.matrix[chosen])[:, None], torch.from_numpy(offset)[:, None])
    rule = _Judged(refine=anew, leaves=leaves)
    copies = batch.take(region, torch.zeros(len(groups), dtype=torch.int64))
    with clock.within(until):
        first = rule.start(match.graph, region, batch.take(rules, torch.zeros(1, dtype=torch.int64)))
        frontier = batch.take(first, torch.zeros(len(groups), dtype=torch.int64))
        ends = (together(match.graph, side).expand(len(groups), -1) for side in (planes.known.lower, planes.known.upper))
        lower, upper = ends
        frontier = replace(
            frontier, task=torch.arange(len(groups)), lower=lower, upper=upper, tight=torch.ones(len(groups), dtype=torch.bool)
        )
        question = Question(match.graph, copies, rules)
        while len(frontier):
            if time.monotonic() > until or frontier.looked > most:
                raise Rejected(f"after {frontier.looked} parts of signs {len(frontier)} are left to prove: give more --seconds")
            frontier, _ = rule.advance(question, frontier)
            if frontier.given_up:
                raise Rejected("a part with nothing left to decide is not proved")
    return leaves.arrays(), anew
