"""Compare the certificates in a bundle with the claims of its run, and count the results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.certificates.checking import CertificateCheck
from holdfast.certificates.stored_claim import Claimed, Judged, compare_with_stored_claim
from holdfast.evidence.claims import claims_of
from holdfast.evidence.contents import RUN
from holdfast.evidence.finding import Finding, State
from holdfast.result import Key
from holdfast.store import Store

KINDS = {
    "accepted": "accepted by the checker",
    "rejected": "rejected by the checker",
    "other": "whose certificate is about something else",
    "less": "whose certificate proves less than the run",
    "separate": "accepted by the checker, for a network stored with it that is not compared with the run's",
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
    """Compare every proved claim of the run with its certificates, and count the results.

    Args:
        folder: of the unpacked bundle.
        again: True if the model and the data were given, so that claims without a certificate are proved
            again elsewhere.
        compared: results of `certificates.comparison`, which read both the model and the certificate. Certificates that are
            not in it are compared with the settings that the run recorded.
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
    left = len(claims) - counts["accepted"] - (counts["none"] + counts["separate"] if again else 0)
    enough = left == 0 and all(one.accepted for one in checked)
    state: State = "differs" if wrong else "ok" if enough else "unchecked"
    below = (
        "; claims that are not accepted are proved again below"
        if again and counts["accepted"] < len(claims)
        else ""
    )
    if not again and counts["separate"] + counts["apart"]:
        below = "; give --model and --data to compare the rest"
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
    """Return the best kind among a claim's certificates, or "rejected" if any of them is rejected."""
    if not certificates or not claim["question"]:
        return "none"
    if any(one.accepted is False for one in certificates):
        return "rejected"
    given = next(store.stream_inputs(claim["input"], claim["input"]), None)
    found, key = ["unchecked"], Key(claim["input"], claim["frame"], claim["part"])
    for one in certificates:
        if one.accepted:
            told = compared.get((key, one.name))
            kind, why = told or compare_with_stored_claim(folder / one.name, claim, given, store.question)
            kind = "separate" if told is None and one.separate_model and kind == "accepted" else kind
            details += [f"{one.name}: {why}"] if why else []
            found.append(kind)
    return min(found, key=("accepted", "other", "less", "separate", "apart", "unchecked").index)
