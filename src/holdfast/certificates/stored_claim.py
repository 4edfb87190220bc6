"""Compare a certificate with a claim that a run stored, without the model.

The checker establishes that the claim stated in a certificate is true. This module decides whether it is also the
claim of the run: the same input, region, class and number. A certificate that cannot be compared does not count as
accepted.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from holdfast.certificates.checking import header_of
from holdfast.files import explained_errors
from holdfast.formatting import exact_text
from holdfast.question import Question, Request
from holdfast.result import Key
from holdfast.store import StoredInput

AGAIN = "Write it again with 'holdfast prove'."
# A certificate may prove a bound smaller by this relative amount: the checker's arithmetic is coarser.
RELATIVE_TOLERANCE = 0.01
UNLIMITED = 1e30  # Stands in for an infinite bound of the input domain; certificates store finite numbers.
# Options of a model that put no preprocessing in front of the network in the file.
OPTIONS_WITHOUT_PREPROCESSING = {"domain", "black_box", "unbatched"}
Judged = tuple[str, str]  # A key of KINDS, and a reason (may be empty).
Claimed = tuple[Key, str]  # The key of the record and the name of the certificate.


def compare_with_stored_claim(
    path: Path, claim: Mapping[str, Any], given: StoredInput | None, question: Question
) -> Judged:
    """Compare the claim of a certificate with that of the run: a kind and a reason.

    Both read the same stored arrays.
    """
    header, asked = header_of(path), question.asked
    with explained_errors(path.name, "not a certificate", AGAIN):
        arrays = load_file(path)
        region, label = header["region"], header["property"].get("class")
        if (
            given is None
            or label is None
            or region["norm"] in ("box", "0")
            or "region/shares" not in arrays  # Rows of a table: the run stores no scales and no bounds.
            or not _plain(asked, claim["goal"])
            or set(question.model.prepared) - OPTIONS_WITHOUT_PREPROCESSING
        ):
            return "apart", ""
        names = ("centre", "lower", "upper")
        centre, lower, upper = (
            np.broadcast_to(arrays[f"region/{name}"].ravel().astype(np.float64), given.x.size)
            for name in names
        )
        if not np.array_equal(centre, given.x.astype(np.float64).ravel()):
            return "other", "it is about another input than the one that the run stored"
        if str(region["norm"]) != asked.norm or int(label) not in (given.label, given.prediction):
            return "other", f"it is about class {label} in the norm {region['norm']}"
        low, high = _domain(question.model.domain)
        if not bool((lower <= low).all() and (upper >= high).all() and (arrays["region/shares"] >= 1).all()):
            return "apart", "its region has bounds of its own, which the run does not record"
        wanted, radius, above = (
            float(claim["proved"]["value"]),
            float(region["radius"]),
            float(header["above"]),
        )
        if claim["goal"] == "worst" and not radius >= float(asked.radius or math.inf):
            return "other", f"it is about the radius {exact_text(radius)}"
        value = above if claim["goal"] == "worst" else radius if above >= 0 else -math.inf
        return reaches_claim(value, wanted)


def reaches_claim(value: float, wanted: float) -> Judged:
    """Return "accepted" if a certificate's value reaches the claimed one, up to a relative tolerance."""
    if not value >= wanted - RELATIVE_TOLERANCE * (abs(wanted) if math.isfinite(wanted) else 0.0):
        return "less", f"the run claims {exact_text(wanted)}, and the certificate proves {exact_text(value)}"
    return "accepted", ""


def _plain(asked: Request, goal: str) -> bool:
    """Return whether the request was about a full norm ball around the input and about the input's class."""
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
        asked.channels,
        asked.free,
        asked.substitutes,
        asked.edits,
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
    """Parse '[0, 1]' into its two bounds; any other text means an unbounded domain."""
    try:
        low, high = (float(part) for part in str(told).strip("[]()").split(","))
        return low, high
    except ValueError:
        return -UNLIMITED, UNLIMITED
