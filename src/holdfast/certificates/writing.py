"""Certificates: proved bounds and counterexamples of records as files that `holdfast-check` accepts without
holdfast.

A file is kept only after the checker has accepted its bytes. If the checker cannot prove the number of the
record, the file claims the largest smaller number that it can prove, and says so. Nothing in this module is
trusted.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import holdfast_check
from holdfast.certificates.claim import pack_proof, request_header
from holdfast.certificates.draft import ProofDraft
from holdfast.certificates.model_file import model_for
from holdfast.certificates.proof_search import find_largest_radius, find_largest_score
from holdfast.errors import HoldfastError, UnsupportedLayer
from holdfast.files import new_file
from holdfast.problem import Problem
from holdfast.property import Avoid
from holdfast.result import RECOMPUTATION_TOLERANCE, Key, Record, has_proof, has_witness
from holdfast.verification.specification import Forbidden
from holdfast_check.claim_text import ClaimNames

PROOF_SUFFIX = ".proof"
WITNESS_SUFFIX = ".witness"


@dataclass(frozen=True)
class Certificate:
    """A certificate file, or the reason why there is none.

    Attributes:
        key: the record.
        kind: proof or witness.
        known: the number of the record.
        value: the number that the certificate claims.
        file: the path; None if there is no file.
        model: the path of the model that the certificate is about.
        told: remarks, as text.
        reason: why there is no file.
        seconds: time spent on it.
    """

    key: Key
    kind: str
    known: float
    value: float = math.nan
    file: Path | None = None
    model: Path | None = None
    told: str = ""
    reason: str = ""
    seconds: float = 0.0

    @property
    def size(self) -> int:
        return 0 if self.file is None else self.file.stat().st_size


def iterate_certificates(
    problem: Problem,
    records: Mapping[Key, Record],
    folder: Path,
    source: Path | None,
    until: float,
    names: Mapping[Key, ClaimNames] | None = None,
) -> Iterator[Certificate]:
    """Yield the certificates of one problem as they are made.

    Args:
        until: a deadline of time.monotonic.
        names: labels of inputs and outputs, by record.
    """
    rows = [
        row
        for row, key in enumerate(problem.keys)
        if key in records and (has_proof(records[key]) or has_witness(records[key]))
    ]
    if not rows:
        return
    asked = problem.lowest()
    try:
        path, opened = model_for(asked, folder, source)
    except (HoldfastError, holdfast_check.Rejected) as error:
        for row in rows:
            record = records[problem.keys[row]]
            yield Certificate(record.key, "proof", record.oriented.lower.value, reason=str(error))
        return
    for row in rows:
        record = records[problem.keys[row]]
        part = asked.take(torch.tensor([row], device=asked.region.centre.device))
        proves, shows = has_proof(record), has_witness(record)
        if isinstance(
            asked.property, Forbidden
        ):  # The answer is a sign: unsat needs a proof, and sat a witness.
            proves, shows = (
                proves and record.oriented.lower.value > 0,
                shows and record.oriented.upper.value <= 0,
            )
        for kind, wanted, make in (("proof", proves, _proof), ("witness", shows, _witness)):
            if wanted:
                begun = time.monotonic()
                ends = record.oriented
                blank = Certificate(
                    record.key, kind, ends.lower.value if kind == "proof" else ends.upper.value, model=path
                )
                try:
                    if begun >= until:
                        raise holdfast_check.Rejected("no time was left for it: give more --seconds")
                    labels = (names or {}).get(record.key)
                    made = make(part, record, opened, folder, blank, until, labels)
                except (HoldfastError, holdfast_check.Rejected, OverflowError, MemoryError) as error:
                    made = replace(blank, reason=str(error))
                yield replace(made, seconds=time.monotonic() - begun)


def _proof(
    part: Problem,
    record: Record,
    opened: holdfast_check.Model,
    folder: Path,
    blank: Certificate,
    until: float,
    names: ClaimNames | None,
) -> Certificate:
    header, arrays = request_header(part, record, opened, "proof", names)
    draft = ProofDraft(header, arrays, opened.program, until)
    if part.bounds_radius:
        known = min(blank.known, float(part.family.limit()[0]))
        if not math.isfinite(known):
            raise UnsupportedLayer("the proved radius is infinite, and certificates need a finite region.")
        value = find_largest_radius(part, draft, known)
        header["region"]["radius"] = value
        value = blank.known if value == known else value
    else:
        if not math.isfinite(blank.known):
            raise UnsupportedLayer("the proved bound is not finite.")
        only_sign = part.objective.scored and isinstance(part.property, Avoid)
        known = 0.0 if only_sign else blank.known
        value = find_largest_score(part, draft, known)
    told = _describe_value(blank.known, value) if part.bounds_radius else ""
    return _written(header, arrays, opened, folder, replace(blank, value=value, told=told), PROOF_SUFFIX)


def _describe_value(known: float, value: float) -> str:
    lost = (known - value) / max(abs(known), 1e-300)
    if lost <= 0 or not math.isfinite(known):
        return ""
    return (
        f"{100 * lost:.2g} % less than the record"
        if lost < 0.01
        else f"only {100 * (1 - lost):.3g} % of the record, by the checker's methods"
    )


def _witness(
    part: Problem,
    record: Record,
    opened: holdfast_check.Model,
    folder: Path,
    blank: Certificate,
    until: float,
    names: ClaimNames | None,
) -> Certificate:
    """Write the counterexample with the region of its distance; the checker decides whether it shows the
    recorded value.
    """
    header, arrays = request_header(part, record, opened, "witness", names)
    found = record.oriented.upper.evidence.witness
    if (
        found is not None and part.region.embedded
    ):  # Token ids: the network of the certificate reads their vectors.
        vectors = part.region.from_data(found[None])
        found = None if vectors is None else vectors[0]
    if found is None or not found.is_floating_point() or found.shape != part.region.centre.shape[1:]:
        raise UnsupportedLayer("the record has no witness that is an input of this network.")
    arrays["witness"] = found.detach().cpu().numpy().ravel()
    if part.bounds_radius:
        # The record of a count is the largest one that the witness leaves possible: one less than its changes.
        counted = part.family.counted
        header["region"]["radius"] = (
            float(part.family.distance(found[None].to(part.region.centre))[0]) if counted else blank.known
        )
    else:
        header["above"] = (
            blank.known + record.oriented.upper.slack + RECOMPUTATION_TOLERANCE * max(1.0, abs(blank.known))
        )
    return _written(
        header,
        arrays,
        opened,
        folder,
        replace(blank, value=header["region"].get("radius", blank.known)),
        WITNESS_SUFFIX,
    )


def _written(
    header: Mapping[str, Any],
    arrays: Mapping[str, Any],
    opened: holdfast_check.Model,
    folder: Path,
    made: Certificate,
    suffix: str,
) -> Certificate:
    name = f"{made.key}".replace(" ", "-").replace(",", "").replace("/", "-")
    path = folder / f"{name}{suffix}"
    with new_file(path) as stream:
        stream.write(pack_proof(header, arrays))
    try:
        verdict = holdfast_check.check(opened, path)
        if not verdict.accepted:
            raise holdfast_check.Rejected(verdict.reason)
    except BaseException:  # Including Ctrl-C: only accepted files stay.
        path.unlink()
        raise
    return replace(made, file=path, told=f"{verdict.claim}{'; ' + made.told if made.told else ''}")
