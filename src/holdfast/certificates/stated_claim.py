"""The claim of a record in words and numbers, whether or not it has a certificate.

A run stores what each record is about in the format of a certificate (`claim_body`): region, property and
names. `claim_of_record` adds the number of the record and returns the checker's `ClaimNumbers`, so page,
bundle, statement and certificate word a claim with the same function.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.certificates.claim import describe_property, describe_region
from holdfast.errors import UnsupportedLayer
from holdfast.problem import Problem
from holdfast.property import Property
from holdfast.question import Question
from holdfast.region import Region
from holdfast.result import Record, has_proof
from holdfast_check.claim_text import ARITHMETIC, ClaimNames, ClaimNumbers
from holdfast_check.proof import claim_numbers

LARGEST_ARRAY = 4096  # Numbers of one array that a run stores for a claim (chosen by hand).
LEAST_MARGIN = 1e-300  # A smaller proved score states the sign only (chosen by hand, as in views).
EXECUTED = "arithmetic of the network as executed"
Array = np.ndarray[Any, Any]


def claim_body(
    region: Region, asked: Property, outputs: int, names: ClaimNames, part: Problem | None = None
) -> dict[str, Any] | None:
    """What the record of one row is about, as JSON; None if no certificate could state it.

    Args:
        region, asked: of one row.
        part: the problem of this row, for properties that need the shape of the outputs.
    """
    try:
        about, arrays = describe_region(region)
        wanted, rows = describe_property(asked, outputs, part)
    except UnsupportedLayer:
        return None
    arrays = {**arrays, **rows}
    if any(np.size(array) > LARGEST_ARRAY for array in arrays.values()):
        return None
    return {
        "region": about,
        "property": wanted,
        "names": names.as_json(),
        "arrays": {name: np.asarray(array, dtype=np.float64).tolist() for name, array in arrays.items()},
        "inputs": int(region.centre[0].numel()),
        "outputs": outputs,
    }


def claim_of_record(body: Mapping[str, Any], record: Record, question: Question) -> ClaimNumbers | None:
    """The proved claim of a record; None if nothing is proved, or if the body cannot be read.

    For a radius, the claim is that the property holds up to the proved radius. For a score, it is that every
    row of the property exceeds the proved bound.
    """
    if not has_proof(record):
        return None
    number, command = record.oriented.lower.value, question.command.split(" ")[0]
    if command == "verify" and not number > 0:
        return None  # The answer is a sign, and this bound does not prove it.
    region, above, margin = dict(body["region"]), 0.0, None
    if record.objective.bounds_radius:
        if not 0 < number < 1e100 or "radius" not in region:
            return None
        region["radius"] = number
    elif not math.isfinite(number):
        return None
    elif number > 0 and "class" not in body["property"] and command != "reach":
        margin = number if number > LEAST_MARGIN else None
    else:  # The bound holds with equality at most, and a claim says "above".
        above = float(np.nextafter(number, -math.inf))
    own = record.oriented.lower.evidence
    executed = own.traits.runs or own.settings.get("arithmetic") == "executed"
    return _numbers(body, question, region, above, margin, EXECUTED if executed else ARITHMETIC)


def asked_of_record(body: Mapping[str, Any], question: Question) -> ClaimNumbers | None:
    """The claim of a record about a region that the question gives: whether the property holds; None for a radius, or if the
    body cannot be read.
    """
    if body["region"].get("norm") != "box" and "radius" not in body["region"]:
        return None
    return _numbers(body, question, body["region"], 0.0, None, ARITHMETIC)


def _numbers(
    body: Mapping[str, Any],
    question: Question,
    region: Mapping[str, Any],
    above: float,
    margin: float | None,
    arithmetic: str,
) -> ClaimNumbers | None:
    arrays = {name: np.array(values, dtype=np.float64) for name, values in body["arrays"].items()}
    header = {
        "kind": "proof",
        "region": region,
        "property": body["property"],
        "above": above,
        "names": body["names"] or None,
    }
    try:
        found, _, _ = claim_numbers(dict(header), arrays, int(body["inputs"]), int(body["outputs"]))
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return ClaimNumbers(
        **{
            **found.__dict__,
            "margin": margin,
            **_model(body, question),
            "arithmetic": arithmetic,
        }
    )


def _model(body: Mapping[str, Any], question: Question) -> dict[str, str]:
    """The model by name and digest: the file of an instance of `verify`, else the model of the question."""
    if "model" in body:
        return {
            "model": str(body["model"]["name"]),
            "sha256": str(body["model"]["sha256"]),
            "digest": "sha256 of the file",
        }
    name = question.model.name.rsplit("/", 1)[-1]
    return {"model": name, "sha256": question.model.fingerprint or "", "digest": "hash"}
