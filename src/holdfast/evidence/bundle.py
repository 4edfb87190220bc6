"""Bundle a run as one file: collect its files, list them in a manifest and state its claims.

Equal runs give equal bytes.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import holdfast
from holdfast.certificates.checking import FOLDER, certificates, header_of, models
from holdfast.errors import BadInput, StoreError
from holdfast.evidence import contents, manifest
from holdfast.evidence.archive import pack
from holdfast.evidence.claims import FILE as CLAIMS
from holdfast.evidence.model import ModelFile, describe_model
from holdfast.evidence.statement import GATE, statement, validate_with_in_toto
from holdfast.files import read_json
from holdfast.network.fingerprint import of_file
from holdfast.report.gate_files import counts_of
from holdfast.report.pairing import load
from holdfast.report.verdict import tally
from holdfast.store import Store
from holdfast_check.archive import is_name

MODEL = "model"  # The folder of the model's files.
ABOUT_MODEL = "model.json"


@dataclass(frozen=True)
class BundleInputs:
    """Files that accompany the run.

    Attributes:
        model: the files of the model, if it was read from files that were found.
        with_model: include these files, not only their digests.
        proofs: a folder of certificates.
        gate: the output of `holdfast gate --json` for this run.
    """

    model: Sequence[ModelFile] = ()
    with_model: bool = False
    proofs: Path | None = None
    gate: Path | None = None


@dataclass(frozen=True)
class BundleSummary:
    """Summary of a bundle that was written."""

    path: Path
    fingerprint: str  # of the run
    manifest: str  # SHA-256 of the manifest
    files: int
    claims: int  # number of records with a proved bound
    certified: int  # number of these with a certificate
    witnesses: int
    read_by_others: bool  # whether the package in-toto-attestation accepted the statement


def write_bundle(run: Path, target: Path, given: BundleInputs) -> BundleSummary:
    """Write the bundle.

    BadInput or StoreError, and no file, if something is missing, damaged or from another run.
    """
    with TemporaryDirectory(prefix="holdfast-bundle-") as place, Store.read(run) as now:
        folder = Path(place)
        now.copy_to(folder / contents.RUN)
        with Store.read(folder / contents.RUN) as store:
            _take(folder, store, given)
            contents.write_contents(store, folder, folder)
            listed = manifest.read_manifest(manifest.write_manifest(folder).parent)
            stated = build_statement(folder, store, listed)
            (folder / manifest.STATEMENT).write_bytes(manifest.as_bytes(stated))
            known, fingerprint = validate_with_in_toto(stated), store.fingerprint()
        records = json.loads((folder / CLAIMS).read_bytes())["records"]
        proved = [record["proved"] for record in records if record["proved"]]
        return BundleSummary(
            pack(folder, target),
            fingerprint,
            of_file(folder / manifest.FILE),
            len(listed),
            len(proved),
            sum(bool(claim["certificates"]) for claim in proved),
            sum(record["witnessed"] is not None for record in records),
            known,
        )


def build_statement(
    folder: Path,
    store: Store,
    listed: Mapping[str, manifest.ManifestEntry],
    made_by: str = holdfast.__version__,
) -> dict[str, Any]:
    """Build the statement for the files below a folder."""
    about = {name: read_json(folder / name, "Request the bundle again.") for name in (ABOUT_MODEL, CLAIMS)}
    gate = read_json(folder / GATE, "Write it again with 'holdfast gate --json'.") if GATE in listed else None
    return statement(
        store.question,
        of_file(folder / manifest.FILE),
        listed,
        about[ABOUT_MODEL],
        about[CLAIMS],
        gate,
        made_by,
    )


def _take(folder: Path, store: Store, given: BundleInputs) -> None:
    """Copy the files that are not part of the run."""
    if given.with_model and not given.model:
        raise BadInput(
            "--with-model: the model is made by code, or its file is not where the run found it. Give its "
            "path: --model."
        )
    (folder / ABOUT_MODEL).write_bytes(manifest.as_bytes(describe_model(store.question, given.model)))
    for file in given.model if given.with_model else ():
        _copy(file.path, folder, f"{MODEL}/{file.name}")
    if given.proofs is not None:
        if not given.proofs.is_dir():
            raise BadInput(f"{given.proofs}: not a folder of certificates. 'holdfast prove' writes one.")
        asked = {record.question for record in store.stream(light=True)}
        for path in certificates(given.proofs):
            if str(header_of(path).get("question")) not in asked:
                raise BadInput(
                    f"{path}: a certificate of another run. Give the folder that 'holdfast prove' wrote for "
                    "this run."
                )
            _copy(path, folder, f"{FOLDER}/{path.relative_to(given.proofs).as_posix()}")
        for path in models(given.proofs):
            _copy(path, folder, f"{FOLDER}/{path.relative_to(given.proofs).as_posix()}")
    if given.gate is not None:
        decision = read_json(given.gate, "Write it again with 'holdfast gate --json'.")
        wrong = gate_mismatch(decision, store)
        if wrong:
            raise BadInput(f"{given.gate}: {wrong}.")
        (folder / GATE).write_bytes(manifest.as_bytes(decision))


def gate_mismatch(decision: Any, store: Store) -> str:
    """Return why a gate's decision is not about this run, or "" if it is. The counts are computed again."""
    try:
        passed, counts, at = decision["passed"], decision["counts"], decision["at"]
        checks = [
            (str(check["name"]), bool(check["passed"]), str(check["wanted"]), str(check["found"]))
            for check in decision["checks"]
        ]
        if (
            decision["format"] != 1
            or not isinstance(passed, bool)
            or passed != all(check[1] for check in checks)
            or not checks
        ):
            return "not the decision of a gate, or of another version"
        if counts is None:
            return ""
        found = load(store, None, str(decision["part"]) or None)
        again = tally(found.rows, float(at), silent=found.silent)
    except (LookupError, TypeError, ValueError, BadInput) as error:
        return f"not the decision of a gate about this run ({error})"
    now = {
        name: count for name, count in counts_of(again).items() if name in counts or name != "not_measured"
    }  # older versions of holdfast did not record it
    return (
        ""
        if now == counts
        else f"the decision of a gate about another run: it counted {counts}, and this run has {now}"
    )


def _copy(source: Path, folder: Path, name: str) -> None:
    if not is_name(name) or not source.is_file():
        raise StoreError(
            f"{source}: cannot be in a bundle: it is not a file, or its name {name!r} is not allowed. "
            "Rename it."
        )
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, folder / name)
