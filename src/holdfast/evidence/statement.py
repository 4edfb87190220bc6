"""The statement of a bundle: an in-toto Statement v1 with a SCAI predicate (attributes with evidence).

The format is that of the in-toto attestation framework (Statement v1, ResourceDescriptor, SCAI attribute
report v0.2). It is small, so it is written here. If the package in-toto-attestation is installed, it
validates the statement before signing.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import holdfast
from holdfast.errors import StoreError
from holdfast.evidence.claims import FILE as CLAIMS
from holdfast.evidence.manifest import FILE as MANIFEST
from holdfast.evidence.manifest import ManifestEntry
from holdfast.foreign_text import first_line
from holdfast.network.fingerprint import of_text
from holdfast.question import Question, plain
from holdfast.question_text import describe_question

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/scai/attribute-report/v0.2"
GATE = "gate.json"
# Characters: a longer setting is replaced by its hash (chosen by hand); question.json has it in full.
LONGEST_SETTING = 400
STATED = 100  # Claims in words in the statement (chosen by hand); claims.json has them all.
# The name of the digest of a model that is not a file: it covers structure, weights and code.
FINGERPRINT = "holdfastFingerprint"


def statement(
    question: Question,
    manifest: str,
    files: Mapping[str, ManifestEntry],
    model: Mapping[str, Any],
    claims: Mapping[str, Any],
    gate: Mapping[str, Any] | None,
    made_by: str = holdfast.__version__,
) -> dict[str, Any]:
    """Build the statement of a bundle.

    Args:
        manifest: SHA-256 of the manifest.
        files: the entries of the manifest.
        model, claims, gate: the contents of the files model.json, claims.json and gate.json.
    """
    subjects = _models(model)
    target = {"target": subjects[0]} if subjects else {}
    evidence = {"name": CLAIMS, "digest": {"sha256": files[CLAIMS].sha256}, "mediaType": "application/json"}
    attributes = [
        {
            "attribute": name,
            **target,
            "conditions": {**_describe_question(question), **count},
            "evidence": evidence,
        }
        for name, count in _counts(claims["records"])
    ]
    if gate is not None:
        checks = [
            f"{check['name']}: wanted {check['wanted']}; found {check['found']}" for check in gate["checks"]
        ]
        attributes.append(
            {
                "attribute": "HOLDFAST_GATE_PASSED" if gate["passed"] else "HOLDFAST_GATE_FAILED",
                **target,
                "conditions": {"checks": checks},
                "evidence": {
                    "name": GATE,
                    "digest": {"sha256": files[GATE].sha256},
                    "mediaType": "application/json",
                },
            }
        )
    return {
        "_type": TYPE,
        "subject": [{"name": MANIFEST, "digest": {"sha256": manifest}}, *subjects],
        "predicateType": PREDICATE,
        "predicate": {
            "attributes": attributes,
            "producer": {"name": "holdfast", "annotations": {"version": made_by}},
        },
    }


def _models(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the subjects: the model's files and their common digest, or its fingerprint."""
    found = [{"name": file["name"], "digest": {"sha256": file["digest"]}} for file in model["files"]]
    if model["model_signing"]:
        found.append(
            {
                "name": f"{model['files'][0]['name']} as OpenSSF model signing has it",
                "digest": {"sha256": model["model_signing"]},
            }
        )
    elif model["fingerprint"]:
        found.append({"name": str(model["name"]) or "model", "digest": {FINGERPRINT: model["fingerprint"]}})
    return found


def _describe_question(question: Question) -> dict[str, Any]:
    """Return the conditions of the claims: property, region, data and arithmetic."""
    asked = {name: _short(value) for name, value in asdict(question.asked).items() if value is not None}
    return {
        "sentence": describe_question(question),
        "command": question.command,
        "asked": asked,
        "domain": question.model.domain,
        "question": question.fingerprint,
        "data": {
            "name": question.data.name,
            "count": question.data.count,
            "fingerprint": question.data.fingerprint,
        },
        "arithmetic": question.means.arithmetic or "real",
    }


def _short(value: Any) -> Any:
    text = json.dumps(plain(value), sort_keys=True)
    return plain(value) if len(text) <= LONGEST_SETTING else {"sha256": of_text(text)}


def _counts(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """For each goal: the number of records, of proved and witnessed bounds, and of certificates."""
    kinds = Counter((record["part"], record["goal"]) for record in records)
    found = []
    for (part, goal), many in sorted(kinds.items()):
        mine = [record for record in records if (record["part"], record["goal"]) == (part, goal)]
        proved = [record["proved"] for record in mine if record["proved"]]
        sentences = [record["claim"]["sentence"] for record in mine if "claim" in record]
        count: dict[str, Any] = {
            "records": many,
            "proved": len(proved),
            "witnessed": sum(record["witnessed"] is not None for record in mine),
            "certificates": sum(bool(claim["certificates"]) for claim in proved),
        }
        if sentences:
            count["claims"] = sentences[:STATED]
        found.append((f"HOLDFAST_{goal.upper()}", {"part": part, **count} if part else count))
    return found or [("HOLDFAST_NOTHING", {"records": 0})]


def validate_with_in_toto(stated: Mapping[str, Any]) -> bool:
    """Validate the statement with in-toto-attestation; False if not installed, StoreError if rejected."""
    try:
        from google.protobuf import json_format  # type: ignore[import-untyped]
        from in_toto_attestation.predicates.scai.v0 import scai, scai_pb2
        from in_toto_attestation.v1 import statement as form
        from in_toto_attestation.v1 import statement_pb2
    except ImportError:
        return False
    try:
        form.Statement.copy_from_pb(json_format.ParseDict(dict(stated), statement_pb2.Statement())).validate()
        report = json_format.ParseDict(dict(stated["predicate"]), scai_pb2.AttributeReport())
        scai.AttributeReport(report.attributes, report.producer).validate()
    except Exception as error:  # protobuf raises many types, and the package others
        raise StoreError(
            f"the package in-toto-attestation rejects the statement of the bundle ({first_line(error)})."
        ) from error
    return True
