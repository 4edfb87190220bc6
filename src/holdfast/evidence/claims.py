"""What a run claims, record by record: the certified bound, the witnessed bound, and the files that support
them."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.question import plain
from holdfast.report.claim_list import iterate_claims
from holdfast.result import Bound, Record, has_proof, has_witness
from holdfast.store import Store
from holdfast.store.export import file_name

FILE = "claims.json"
WITNESSES = "witnesses"
FORMAT = 1  # Version of claims.json; the checker refuses any other.


def claims_of(store: Store, certificates: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """List the claims of a run.

    `iterate_certificates` maps the hash of a question to the names of its certificates.
    """
    stated = {claim.key: claim.numbers.as_json() for claim in iterate_claims(store)}
    lines = [
        _line(
            record, certificates.get(record.question, ()) if record.question else (), stated.get(record.key)
        )
        for record in store.stream()
    ]
    return {"format": FORMAT, "records": lines}


def _line(record: Record, certificates: Sequence[str], stated: Mapping[str, Any] | None) -> dict[str, Any]:
    ends, turned = record.oriented, record.objective.maximised
    proved = (
        {**_bound_as_json(ends.lower, turned), "certificates": list(certificates)}
        if has_proof(record)
        else None
    )
    witness = None if record.witness is None else f"{WITNESSES}/{file_name(record.key)}.npy"
    met = {**_bound_as_json(ends.upper, turned), "witness": witness} if has_witness(record) else None
    told = {
        "input": record.key.index,
        "frame": record.key.frame,
        "part": record.key.part,
        "goal": record.goal,
        "status": record.status,
    }
    claim = {} if stated is None else {"claim": stated}
    return plain({**told, "question": record.question, "proved": proved, "witnessed": met, **claim})  # type: ignore[no-any-return]


def _bound_as_json(end: Bound, turned: bool) -> dict[str, Any]:
    """Return the bound as the record reports it.

    For goals that are maximized, the sign was flipped for the methods.
    """
    return {"value": 0.0 - end.value if turned else end.value, "method": end.evidence.method}
