"""Compare certificates with the claims of the run that they came with.

The checker establishes that the claim stated in a certificate is true. This module decides whether it is also the
claim of the run: the same input, region, class and number. `compare_with_questions` rebuilds the run's questions
from model and data; `stored_claim` compares with what the run stored, without the model.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

import holdfast_check
from holdfast.certificates.checking import CertificateCheck, header_of
from holdfast.certificates.claim import request_header
from holdfast.certificates.model_file import check_agreement, describe_model
from holdfast.certificates.stored_claim import AGAIN, Claimed, Judged, reaches_claim
from holdfast.errors import HoldfastError
from holdfast.files import explained_errors
from holdfast.formatting import exact_text
from holdfast.problem import Problem
from holdfast.property import Avoid
from holdfast.result import Record
from holdfast_check.rows import ROW_ARRAYS


def compare_with_questions(
    problem: Problem,
    records: Sequence[Record],
    accepted: Mapping[str, Sequence[CertificateCheck]],
    known: Mapping[str, Path],
    folder: Path,
    torch_then: str,
) -> Iterator[tuple[Claimed, Judged]]:
    """Compare each certificate with the claim that it is about.

    Args:
        problem: built from the model and the data; its rows are those of the records.
        accepted: certificates that the checker accepted, by the hash of their question.
        known: files of models, by their SHA-256.
        folder: the folder that the names of the certificates are relative to.
        torch_then: the version of torch in the run. Another version may describe the same network
            differently.
    """
    asked = problem.lowest()
    models = dict[str, Judged | holdfast_check.Model]()
    for row, record in enumerate(records):
        for one in accepted.get(record.question, ()):
            digest = str(header_of(folder / one.name)["model"]["sha256"])
            if digest not in models:
                models[digest] = _network(asked, known[digest], digest, one.separate_model, torch_then)
            found = models[digest]
            if isinstance(found, holdfast_check.Model):
                part = asked.take(torch.tensor([row], device=asked.region.centre.device))
                found = _compare_question(folder / one.name, part, record, found)
            yield (record.key, one.name), found


def _network(
    asked: Problem, path: Path, digest: str, separate_model: bool, torch_then: str
) -> Judged | holdfast_check.Model:
    """Read the certificate's network if it is the question's; else return the mismatch and the reason.

    The user's own file is compared at sample points, because options may have added preprocessing. A network
    that is stored with the certificate is written again from the user's model and compared byte by byte.
    """
    try:
        if not separate_model:
            opened = holdfast_check.Model.read_file(path)
            check_agreement(asked, opened)
            return opened
        own = hashlib.sha256(describe_model(asked)).hexdigest()
    except (HoldfastError, holdfast_check.Rejected) as error:
        return ("separate" if separate_model else "other"), str(error)
    if own == digest:
        return holdfast_check.Model.read_file(path)
    told = f"it is about the network {digest}, and the model that you gave is written as {own}"
    if torch_then != torch.__version__:
        return (
            "separate",
            f"{told}; torch {torch_then} may describe the same network differently from torch "
            f"{torch.__version__}",
        )
    return "other", told


def _compare_question(path: Path, part: Problem, record: Record, opened: holdfast_check.Model) -> Judged:
    """Check that the certificate's region contains the question's, and that the properties agree."""
    try:
        asked, wanted = request_header(part, record, opened, "proof")
    except HoldfastError as error:
        return "apart", str(error)
    header = header_of(path)
    with explained_errors(path.name, "not a certificate", AGAIN):
        region, above, size = header["region"], float(header["above"]), part.region.centre[0].numel()
        arrays = {name: array.astype(np.float64) for name, array in load_file(path).items() if name in wanted}
        if arrays.keys() != wanted.keys() or region["norm"] != asked["region"]["norm"]:
            return "other", "it is about another kind of region or property"
        rows = [name for name in wanted if name.startswith("property/")]
        if header["property"] != asked["property"] or not all(
            np.array_equal(arrays[name], wanted[name]) for name in rows
        ):
            return "other", "it is about another class or property"
        if not _holds(arrays, wanted, size):
            return "other", "it is about another input, or about a smaller region around it"
        if (
            not part.bounds_radius
            and "radius" in region
            and not float(region["radius"]) >= asked["region"]["radius"]
        ):
            return "other", f"it is about the radius {exact_text(float(region['radius']))}"
        ends = record.oriented.lower.value
        if part.bounds_radius:
            return reaches_claim(
                float(region["radius"]) if above >= 0 else -np.inf, min(ends, float(part.family.limit()[0]))
            )
        return reaches_claim(
            above, min(ends, 0.0) if isinstance(part.property, Avoid) else ends
        )  # An Avoid property only claims the sign.


def _holds(arrays: Mapping[str, Any], wanted: Mapping[str, Any], size: int) -> bool:
    """Return whether the certificate's region has the wanted centre and contains the wanted region."""
    shares = [
        np.ravel(some["region/shares"]).astype(np.float64)
        for some in (arrays, wanted)
        if "region/shares" in some
    ]
    if shares and not (len(shares[0]) == len(shares[1]) and bool((shares[0] >= shares[1]).all())):
        return False
    if not all(
        np.array_equal(arrays[name], np.asarray(wanted[name])) for name in ROW_ARRAYS if name in wanted
    ):
        return False
    compare = {"region/centre": np.equal, "region/lower": np.less_equal, "region/upper": np.greater_equal}
    return all(
        bool(
            how(
                *(
                    np.broadcast_to(np.ravel(some[name]).astype(np.float64), (size,))
                    for some in (arrays, wanted)
                )
            ).all()
        )
        for name, how in compare.items()
        if name in wanted
    )
