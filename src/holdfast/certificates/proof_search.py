"""Search, with the checker's own mathematics, for arrays with which it proves a claim: trained slopes, ReLU
splits, quadratic models, input splits.

The engine proposes and the checker's functions decide. Nothing here is trusted: the finished file is read and
judged again by the checker.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import holdfast_check
from holdfast import time_limit
from holdfast.bounding.branching.branching_rule import choose_branching
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.certificates.draft import ProofDraft
from holdfast.certificates.input_splits import split_box
from holdfast.certificates.matching import MatchedActivations
from holdfast.certificates.parabolas import Parabolas, certainly_holds
from holdfast.certificates.relu_splits import split_by_relus
from holdfast.certificates.trained_slopes import SLACK, search_trained_slopes
from holdfast.certificates.unit_splits import split_units
from holdfast.problem import Problem
from holdfast.region import Region
from holdfast_check.trees import TreeSum

NEARLY = 0.99  # Fraction of a radius; the checker's rounding loses less than the rest (chosen by hand).
SEARCHED = 7  # Bisection steps between an accepted and a rejected fraction of the radius (chosen by hand).
RADIUS_SUBPROBLEMS = 4096  # Subproblems of ReLU splits for a radius; a smaller one may be claimed instead.
SCORE_SUBPROBLEMS = 200_000  # Subproblems of ReLU splits for a score (both chosen by hand).
# Fractions of a score by which a claim may be smaller than the record (chosen by hand).
SCORE_SHARES = (1e-9, 1e-6, 1e-4, 1e-3, 1e-2)


def find_largest_score(part: Problem, draft: ProofDraft, known: float) -> float:
    """Return a score that the checker proves, at most 1 % below `known`; put it and the arrays of its proof into
    the draft. Rejected if there is none.

    Tried in this order: the checker's own slopes, quadratic models, then splits. A score of 0 (only the sign is
    claimed) is not made smaller.
    """
    size = max(abs(known), 1e-6)

    def margin_at(share: float, some: Mapping[str, Any]) -> float:
        draft.header["above"] = known if known == 0 else known - share * size
        return draft.proved_margin(some)

    for share in SCORE_SHARES:
        margin = margin_at(share, {})
        if margin > 0 or known == 0:
            break
    if not margin > 0 and isinstance(draft.program, TreeSum):
        raise holdfast_check.Rejected(f"the bound by the leaves of the trees is too low by {-margin:.4g}")
    if not margin > 0 and draft.header["region"]["norm"] != "0":
        found = Parabolas(part, draft.network).largest(
            (1e-6, 1e-3, 1e-2),
            lambda _: part.region,
            0.0,
            lambda share, some: margin_at(share, some) > 0,
            draft.until,
        )
        if found is not None:
            draft.arrays.update(found[1])
            margin = margin_at(found[0], {})
    if not margin > 0:
        margin_at(SCORE_SHARES[-1], {})
        draft.arrays.update(_split(part, draft))
        margin = draft.proved_margin()
    if not margin > 0:
        raise holdfast_check.Rejected(f"the checker's bound is too low by {-margin:.4g}")
    return float(draft.header["above"])


def _split(part: Problem, draft: ProofDraft) -> dict[str, Any]:
    """Return the arrays that prove a score where linear bounds do not: input splits of a box with few varying
    inputs, else trained slopes and ReLU splits.
    """
    if draft.header["region"]["norm"] == "0":
        return {"units": split_units(draft)}
    match = MatchedActivations.of(part, draft.network)
    if match is not None and isinstance(choose_branching(match.graph, part.region), ActivationSplit):
        found = _search_checker_hints(match, part.region, draft, SCORE_SUBPROBLEMS)
        if found is not None:
            return found
        raise holdfast_check.Rejected(
            "neither trained linear bounds nor ReLU splits prove it in this time: give more --seconds"
        )
    return {"tree": split_box(draft)}


def _search_checker_hints(
    match: MatchedActivations, region: Region, draft: ProofDraft, parts: int
) -> dict[str, Any] | None:
    """Return arrays with which the checker proves the claim, or None: trained slopes, trained intermediate
    bounds, and ReLU splits with at most `parts` subproblems.
    """
    claim, program = draft.read_claim(), draft.network
    said = claim.matrix @ program.value(region.centre.double().cpu().numpy())[0] + claim.offset - claim.above
    scale = max(float(np.abs(said).min()), 1e-9)
    planes = None
    with time_limit.within(draft.until):
        for planes in search_trained_slopes(
            match, region, claim.matrix, claim.offset - claim.above - SLACK * scale
        ):
            if draft.proved_margin(planes.arrays) > 0:
                return planes.arrays
    if planes is None or not parts:
        return None
    try:
        claim = draft.read_claim(planes.arrays)
        signs = split_by_relus(match, region, claim, planes, scale, draft.until, parts)
    except holdfast_check.Rejected:
        return None
    found = {**planes.arrays, **signs}
    return found if draft.proved_margin(found) > 0 else None


def find_largest_radius(part: Problem, draft: ProofDraft, known: float) -> float:
    """Return the largest radius that the checker proves, and put the arrays of its proof into the draft.

    Tried at the record's radius or slightly less: the checker's own slopes, trained slopes, ReLU splits,
    quadratic models. If none succeeds, bisection finds a smaller radius without ReLU splits.
    """
    if isinstance(draft.program, TreeSum):
        return _largest_by_leaves(draft, known)
    if draft.header["region"]["norm"] == "0":
        return _largest_count(draft, known)
    match, until = MatchedActivations.of(part, draft.network), draft.until

    def region(share: float) -> Region:
        return part.family.at(torch.full_like(part.family.radius.double(), known * share))

    def holds(share: float, some: Mapping[str, Any]) -> bool:
        draft.header["region"]["radius"] = known * share
        return draft.proved_margin(some) > 0

    def planes(share: float, parts: int) -> dict[str, Any] | None:
        """Return arrays that prove this fraction with trained slopes and at most `parts` ReLU subproblems, or
        None.
        """
        try:
            if holds(share, {}):
                return {}
            if match is None or time.monotonic() > until:
                return None
            return _search_checker_hints(match, region(share), draft, parts)
        except holdfast_check.NoBounds:
            return None

    for share in (1.0, 1 - 1e-6, 1 - 1e-4):
        if certainly_holds(holds, share, {}):
            return known * share
    for share in (1 - 1e-3, NEARLY):
        found = planes(share, RADIUS_SUBPROBLEMS)
        if found is not None:
            draft.arrays.update(found)
            return known * share
    parabolas = Parabolas(part, draft.network)
    largest = parabolas.largest((1.0, 1 - 1e-4, 1 - 3e-3, NEARLY), region, known * (1 - 1e-3), holds, until)
    if largest is not None:
        draft.arrays.update(largest[1])
        return known * largest[0]
    low, high, best = 0.0, NEARLY, dict[str, Any]()
    for _ in range(SEARCHED):
        if time.monotonic() > until:
            break
        middle = (low + high) / 2
        found = planes(middle, 0)
        if found is None and parabolas.coefficients is not None:
            models = parabolas.arrays(region(middle), parabolas.coefficients)
            found = models if certainly_holds(holds, middle, models) else None
        if found is None:
            high = middle
        else:
            low, best = middle, found
    if low == 0.0:
        raise holdfast_check.Rejected("linear bounds and quadratic models prove no fraction of it")
    draft.arrays.update(best)
    return known * low


def _largest_count(draft: ProofDraft, known: float) -> float:
    """Return the largest count of changes, at most the record's, for which linear bounds or a tree of units is found: first
    the record's by linear bounds alone, then from one change upwards, since each further change takes many times as long.
    """
    header, found, why = draft.header["region"], 0, "linear bounds prove no change"
    header["radius"] = known
    if draft.proved_margin() > 0:
        return known
    for count in range(1, int(known) + 1):
        header["radius"] = float(count)
        draft.arrays.pop("units", None)
        try:
            tree = split_units(draft)
        except (holdfast_check.Rejected, OverflowError) as error:
            why = str(error)
            break
        found, best = count, tree
    if not found:
        raise holdfast_check.Rejected(why)
    header["radius"], draft.arrays["units"] = float(found), best
    return float(found)


def _largest_by_leaves(draft: ProofDraft, known: float) -> float:
    """Return a radius that the leaves of trees prove: the record's, or one that is smaller by the rounding of a distance;
    a count of changes as it is.
    """
    counted = draft.header["region"]["norm"] == "0"
    for share in (1.0,) if counted else (1.0, 1 - 1e-12, 1 - 1e-9, 1 - 1e-6, 1 - 1e-3, NEARLY):
        draft.header["region"]["radius"] = known * share
        margin = draft.proved_margin()
        if margin > 0:
            return known * share
    raise holdfast_check.Rejected(f"the bound by the leaves of the trees is too low by {-margin:.4g}")
