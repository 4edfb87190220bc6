"""Which claims of a run its certificates bear out. The checker says that a file's own claim is true; here it is compared with the run's:
the same input, region and class, and the number. What cannot be compared is not counted as accepted."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from holdfast.evidence.certificates import CertificateCheck, header_of
from holdfast.evidence.claims import claims_of
from holdfast.evidence.contents import RUN
from holdfast.evidence.finding import Finding, State
from holdfast.files import in_words
from holdfast.formatting import exact_text
from holdfast.question import Question, Request
from holdfast.result import Key
from holdfast.store import Store, StoredInput

AGAIN = "Write it again with 'holdfast prove'."
LOST = 0.01  # of a proved bound that a certificate may miss: what checking in other arithmetic costs
UNLIMITED = 1e30
UNTOUCHED = {
    "domain",
    "black_box",
    "unbatched",
}  # options of a model by which nothing is put before the file's own network
Judged = tuple[str, str]  # one of KINDS, and why where there is something to say
Claimed = tuple[Key, str]  # the record and the certificate's name
KINDS = {
    "accepted": "accepted by the checker",
    "rejected": "rejected by the checker",
    "other": "whose certificate speaks of something else",
    "less": "whose certificate proves less than the run",
    "beside": "accepted by the checker, for a network beside the certificate that is not compared with the run's",
    "apart": "accepted by the checker, for a region or a property that is not compared with the run's",
    "unchecked": "whose certificate was not checked",
    "none": "without certificate",
}


def judge_certificates(
    folder: Path,
    checked: Sequence[CertificateCheck],
    *,
    again: bool,
    compared: Mapping[Claimed, Judged] | None = None,
) -> Finding:
    """What the checker said, claim by claim.

    folder    of the unpacked bundle.
    again     the model and the data were given, and what has no certificate is proved again elsewhere.
    compared  by whom both were read, as `asked_again` does it; the others are compared with what the run says of itself.
    """
    by_question: dict[str, list[CertificateCheck]] = {}
    for one in checked:
        if one.kind != "witness":
            by_question.setdefault(one.question, []).append(one)
    counts = dict.fromkeys(KINDS, 0)
    details = [
        f"{one.name}: {'rejected: ' if one.accepted is False else ''}{one.told}"
        for one in checked
        if not one.accepted
    ]
    with Store.read(folder / RUN) as store:
        claims = [record for record in claims_of(store, {})["records"] if record["proved"]]
        for claim in claims:
            counts[
                _judge_claim(
                    claim, by_question.get(claim["question"], ()), store, folder, details, compared or {}
                )
            ] += 1
    told = [f"{counts[kind]} {words}" for kind, words in KINDS.items() if counts[kind] or kind == "accepted"]
    wrong = any(one.accepted is False for one in checked) or counts["other"]
    left = len(claims) - counts["accepted"] - (counts["none"] + counts["beside"] if again else 0)
    enough = left == 0 and all(one.accepted for one in checked)
    state: State = "differs" if wrong else "ok" if enough else "unchecked"
    below = (
        "; what is not accepted is proved again below" if again and counts["accepted"] < len(claims) else ""
    )
    if not again and counts["beside"] + counts["apart"]:
        below = "; --model and --data decide about what is not compared"
    shown = [one for one in checked if one.kind == "witness"]
    met = (
        f"; {sum(bool(one.accepted) for one in shown)} of {len(shown)} witness files accepted"
        if shown
        else ""
    )
    return Finding(
        "certificates", state, f"{len(claims)} claims: {', '.join(told)}{below}{met}", tuple(details)
    )


def _judge_claim(
    claim: Mapping[str, Any],
    certificates: Sequence[CertificateCheck],
    store: Store,
    folder: Path,
    details: list[str],
    compared: Mapping[Claimed, Judged],
) -> str:
    """Of one claim the best that its certificates say; one that was rejected is never outvoted."""
    if not certificates or not claim["question"]:
        return "none"
    if any(one.accepted is False for one in certificates):
        return "rejected"
    given = next(store.stream_inputs(claim["input"], claim["input"]), None)
    found, key = ["unchecked"], Key(claim["input"], claim["frame"], claim["part"])
    for one in certificates:
        if one.accepted:
            told = compared.get((key, one.name))
            kind, why = told or _compare_claim(folder / one.name, claim, given, store.question)
            kind = "beside" if told is None and one.beside and kind == "accepted" else kind
            details += [f"{one.name}: {why}"] if why else []
            found.append(kind)
    return min(found, key=("accepted", "other", "less", "beside", "apart", "unchecked").index)


def _compare_claim(
    path: Path, claim: Mapping[str, Any], given: StoredInput | None, question: Question
) -> Judged:
    """How what a certificate claims stands to the run's claim, and why. The checker has read the very same numbers."""
    header, asked = header_of(path), question.asked
    with in_words(path.name, "not a certificate", AGAIN):
        arrays = load_file(path)
        region, label = header["region"], header["property"].get("class")
        if (
            given is None
            or label is None
            or region["norm"] == "box"
            or not _plain(asked, claim["goal"])
            or set(question.model.prepared) - UNTOUCHED
        ):
            return "apart", ""
        names = ("centre", "lower", "upper")
        centre, lower, upper = (
            np.broadcast_to(arrays[f"region/{name}"].ravel().astype(np.float64), given.x.size)
            for name in names
        )
        if not np.array_equal(centre, given.x.astype(np.float64).ravel()):
            return "other", "it speaks of another input than the run keeps"
        if str(region["norm"]) != asked.norm or int(label) not in (given.label, given.prediction):
            return "other", f"it speaks of class {label} in the norm {region['norm']}"
        low, high = _domain(question.model.domain)
        if not bool((lower <= low).all() and (upper >= high).all() and (arrays["region/shares"] >= 1).all()):
            return "apart", "its region has ends of its own, which the run does not tell"
        wanted, radius, above = (
            float(claim["proved"]["value"]),
            float(region["radius"]),
            float(header["above"]),
        )
        if claim["goal"] == "worst" and not radius >= float(asked.radius or math.inf):
            return "other", f"it speaks of the radius {exact_text(radius)}"
        value = above if claim["goal"] == "worst" else radius if above >= 0 else -math.inf
        return reaches_claim(value, wanted)


def reaches_claim(value: float, wanted: float) -> Judged:
    """Is what a certificate proves what is claimed, but for what checking costs?"""
    if not value >= wanted - LOST * (abs(wanted) if math.isfinite(wanted) else 0.0):
        return "less", f"{exact_text(wanted)} is claimed, and {exact_text(value)} is what it proves"
    return "accepted", ""


def _plain(asked: Request, goal: str) -> bool:
    """Was it asked about a whole ball around the input, and about its class?"""
    ball = (
        asked.norm in ("1", "2", "inf")
        and asked.frames in (None, "all", "whole")
        and not asked.drift
        and not asked.targets
    )
    more = (
        asked.shares,
        asked.patch,
        asked.within,
        asked.threshold,
        asked.box,
        asked.columns,
        asked.free,
        asked.substitutes,
    )
    scored = (
        goal == "worst"
        and asked.property == "robustness"
        and not asked.epsilon
        and isinstance(asked.radius, int | float)
    )
    return (
        ball
        and all(part is None for part in more)
        and (scored or (goal == "radius" and asked.property in (None, "robustness")))
    )


def _domain(told: str | None) -> tuple[float, float]:
    """'[0, 1]' -> its ends; where it is not said so, everywhere."""
    try:
        low, high = (float(part) for part in str(told).strip("[]()").split(","))
        return low, high
    except ValueError:
        return -UNLIMITED, UNLIMITED
