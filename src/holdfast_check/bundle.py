"""Check a bundle of holdfast without holdfast: form, manifest, statement, signatures and every certificate.

Statement. If the finding `manifest` is ok, every file of the bundle has the SHA-256 that the manifest lists, and
there are no others. If `statement` is ok, the statement names the SHA-256 of this manifest. If `signature` is ok,
each given key has signed this statement, so the whole bundle. A certificate that is listed as accepted holds for
the model whose SHA-256 it names (`proof.check`). `claims` compares what the bundle says it proves with what the
accepted certificates prove; a claim without an accepted certificate is listed and not counted.

Not checked here: that the inputs are those of your data, and that counterexamples replay in your own model.
"""

from __future__ import annotations

import base64
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_check.archive import Archive, is_name, open_archive
from holdfast_check.ed25519 import VerificationKey
from holdfast_check.errors import Rejected
from holdfast_check.limits import OutOfTime, look_at_clock
from holdfast_check.proof import Model, ProofVerdict, check

MANIFEST, STATEMENT, SIGNATURE = "manifest.json", "statement.json", "signature.dsse.json"
CLAIMS, QUESTION = "claims.json", "question.json"
UNLISTED = (MANIFEST, STATEMENT, SIGNATURE)  # The files that the manifest does not list.
CERTIFICATES, MODELS = "certificates/", "model/"  # Folders of a bundle.
ENDINGS = (".proof", ".witness")
MODEL_ENDINGS = (".onnx", ".onnx.gz", ".safetensors", ".safetensors.gz")
MANIFEST_FORMAT = CLAIMS_FORMAT = 1  # Versions of manifest.json and claims.json that this program reads.
PAYLOAD = "application/vnd.in-toto+json"  # The type of the signed text.
MOST_SIGNATURES = 100  # Signatures of an envelope (chosen by hand).
LARGEST_JSON = 2**28  # Bytes of one JSON file (chosen by hand).
# A certificate may prove a number that is smaller by this fraction than the one of the run.
TOLERANCE = 0.01


@dataclass(frozen=True)
class CheckLine:
    """What was checked and the result: "ok", "differs" or "unchecked"."""

    what: str
    state: str
    told: str
    details: tuple[str, ...] = ()


def check_bundle(
    path: str | Path,
    keys: Sequence[VerificationKey] = (),
    models: Sequence[str | Path] = (),
    exact: bool = False,
) -> Iterator[CheckLine | tuple[str, ProofVerdict]]:
    """Yield the findings and, for each certificate, its name and verdict, as they are found.

    The first difference of form, manifest, statement or signature ends the check: what follows would be about
    files that somebody changed.

    Args:
        keys: public keys whose signatures are required.
        models: .onnx files, or folders of them, for certificates about a model that is not in the bundle.
        exact: whether proofs are also recomputed in rational arithmetic.
    """
    try:
        with open_archive(Path(path)) as bundle:
            count = len(bundle.names)
            yield CheckLine("archive", "ok", f"{count} files in the form that holdfast writes")
            for finding in (_manifest(bundle), _statement(bundle), _signatures(bundle, keys)):
                yield finding
                if finding.state == "differs":
                    return
            verdicts: dict[str, ProofVerdict] = {}
            for name, verdict in _certificates(bundle, models, exact):
                verdicts[name] = verdict
                yield name, verdict
            yield _tally(verdicts)
            yield _claims(bundle, verdicts)
    except OutOfTime as error:
        yield CheckLine("archive", "unchecked", str(error))
    except Rejected as error:
        yield CheckLine("archive", "differs", str(error))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated names, which parsers resolve differently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _json(bundle: Archive, name: str) -> Any:
    if name not in bundle.names:
        raise Rejected(f"not a bundle of holdfast: {name} is missing")
    try:
        return json.loads(bundle.read(name, LARGEST_JSON), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{name} cannot be read ({type(error).__name__}: {error})") from error


def _manifest(bundle: Archive) -> CheckLine:
    """Compare every file with the manifest."""
    told = _json(bundle, MANIFEST)
    wanted: dict[str, tuple[int, str]] = {}
    try:
        if told["format"] != MANIFEST_FORMAT:
            raise ValueError(f"format {told['format']!r}; this checker reads {MANIFEST_FORMAT}")
        for line in told["files"]:
            name, size, digest = line["name"], line["size"], line["sha256"]
            if not is_name(name) or name in wanted or name in UNLISTED or type(size) is not int:
                raise ValueError(f"the line of {name!r}")
            wanted[name] = size, str(digest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return CheckLine("manifest", "differs", f"{MANIFEST} is no manifest of this version ({error})")
    found = set(bundle.names) - set(UNLISTED)
    wrong = [f"{name}: is missing" for name in wanted.keys() - found]
    wrong += [f"{name}: is present, but not in the manifest" for name in found - wanted.keys()]
    for name in sorted(wanted.keys() & found):
        if (bundle.size(name), bundle.sha256(name)) != wanted[name]:
            wrong.append(f"{name}: was changed")
    digest = bundle.sha256(MANIFEST)
    told = f"sha256 {digest}, {len(wanted) - len(wrong)} of {len(wanted)} files match it"
    return CheckLine("manifest", "differs" if wrong else "ok", told, tuple(sorted(wrong)))


def _statement(bundle: Archive) -> CheckLine:
    """Check that the statement names this manifest."""
    try:
        named = {one["name"]: one["digest"] for one in _json(bundle, STATEMENT)["subject"]}
        if named[MANIFEST] == {"sha256": bundle.sha256(MANIFEST)}:
            return CheckLine("statement", "ok", "it names the manifest of this bundle")
    except (KeyError, TypeError, AttributeError) as error:
        return CheckLine("statement", "differs", f"{STATEMENT} cannot be read ({error})")
    return CheckLine("statement", "differs", "it names another manifest than this bundle's")


def signed_bytes(kind: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding of a payload and its type: the bytes that are signed."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def _signatures(bundle: Archive, keys: Sequence[VerificationKey]) -> CheckLine:
    """Check that each given key has signed the statement."""
    if SIGNATURE not in bundle.names:
        told = "unsigned: anybody could have made this bundle"
        return CheckLine("signature", "differs" if keys else "unchecked", told)
    told, payload = _json(bundle, SIGNATURE), bundle.read(STATEMENT, LARGEST_JSON)
    try:
        if told["payloadType"] != PAYLOAD or base64.b64decode(told["payload"], validate=True) != payload:
            raise ValueError("it signs another statement")
        if not 0 < len(told["signatures"]) <= MOST_SIGNATURES:
            raise ValueError("it has no signatures, or too many")
        found = [
            (str(one["keyid"]), base64.b64decode(one["sig"], validate=True)) for one in told["signatures"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        return CheckLine("signature", "differs", f"the signature does not match: {error}")
    names = ", ".join(name[:64] for name, _ in found)
    if not keys:
        return CheckLine(
            "signature",
            "unchecked",
            f"states that it is signed by {names}; give that public key, from another source: --public-key",
        )
    message = signed_bytes(PAYLOAD, payload)
    for key in keys:
        look_at_clock()
        own = [signature for name, signature in found if name == key.fingerprint]
        if not any(key.verifies(signature, message) for signature in own):
            why = (
                "the signature does not match" if own else f"signed by {names}, and not by {key.fingerprint}"
            )
            return CheckLine("signature", "differs", why)
    return CheckLine("signature", "ok", f"signed by {', '.join(key.fingerprint for key in keys)} (Ed25519)")


def _certificates(
    bundle: Archive, given: Sequence[str | Path], exact: bool
) -> Iterator[tuple[str, ProofVerdict]]:
    """Check every certificate, model by model, so that one model is in memory at a time."""
    names = [name for name in bundle.names if name.startswith(CERTIFICATES) and name.endswith(ENDINGS)]
    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as place:
        about: dict[str, list[tuple[str, Path]]] = {}
        for number, name in enumerate(names):
            file = _extract_file(bundle, name, Path(place) / f"{number}{Path(name).suffix}")
            about.setdefault(_model_of(file), []).append((name, file))
        sources = _sources(bundle, given, Path(place))
        for digest, files in about.items():
            try:
                opened: Model | str = _open(sources, digest)
            except OutOfTime:
                raise
            except Rejected as error:
                opened = str(error)
            for name, file in files:
                look_at_clock()
                yield (
                    name,
                    (
                        ProofVerdict(False, name, opened, finished=False)
                        if isinstance(opened, str)
                        else check(opened, file, exact=exact)
                    ),
                )


def _model_of(file: Path) -> str:
    """The SHA-256 of the model that a certificate names; empty if it cannot be read, which `check` reports."""
    from holdfast_check.proof import read_header

    try:
        return str(read_header(file.read_bytes())[0]["model"]["sha256"])
    except (Rejected, KeyError, TypeError):
        return ""


def _sources(bundle: Archive, given: Sequence[str | Path], place: Path) -> dict[str, Path]:
    """Files of models, by the SHA-256 of their unpacked bytes: those of the bundle, and those given."""
    found: dict[str, Path] = {}
    for number, name in enumerate(bundle.names):
        if name.startswith((CERTIFICATES, MODELS)) and name.endswith(MODEL_ENDINGS):
            folder = place / f"model-{number}"
            folder.mkdir()
            file = _extract_file(bundle, name, folder / name.rpartition("/")[2])
            found[Model.digest_of(file)] = file
    for one in map(Path, given):
        files = sorted(one.rglob("*")) if one.is_dir() else [one]
        for file in files:
            look_at_clock()
            if file.name.endswith(MODEL_ENDINGS) and file.is_file():
                found[Model.digest_of(file)] = file
            elif file == one:
                raise Rejected(f"{file}: no model; give an .onnx file or a folder of them")
    return found


def _open(sources: Mapping[str, Path], digest: str) -> Model:
    """The model with this digest."""
    if digest not in sources:
        raise Rejected(
            f"the model with sha256 {digest[:64] or 'unknown'} is neither in the bundle nor given: --model FILE"
        )
    return Model.read_file(sources[digest])


def _extract_file(bundle: Archive, name: str, file: Path) -> Path:
    """Write a file of the bundle to a place of our own."""
    with file.open("wb") as stream:
        for some in bundle.chunks(name):
            stream.write(some)
    return file


def _tally(verdicts: Mapping[str, ProofVerdict]) -> CheckLine:
    """Count the certificates."""
    rejected = [f"{name}: {one.reason}" for name, one in verdicts.items() if not one.accepted]
    counts = {
        ending: (
            sum(one.accepted for name, one in verdicts.items() if name.endswith(ending)),
            sum(name.endswith(ending) for name in verdicts),
        )
        for ending in ENDINGS
    }
    told = (
        f"{counts['.proof'][0]} of {counts['.proof'][1]} proofs and {counts['.witness'][0]} of "
        f"{counts['.witness'][1]} witnesses accepted"
    )
    wrong = any(one.finished and not one.accepted for one in verdicts.values())
    state = "differs" if wrong else "ok" if verdicts and not rejected else "unchecked"
    return CheckLine("certificates", state, told, tuple(rejected))


def _claims(bundle: Archive, verdicts: Mapping[str, ProofVerdict]) -> CheckLine:
    """Compare the proved claims that the bundle lists with the accepted certificates."""
    told = _json(bundle, CLAIMS)
    try:
        if told["format"] != CLAIMS_FORMAT:
            raise ValueError(f"format {told['format']!r}; this checker reads {CLAIMS_FORMAT}")
        # The answer of `verify` is the sign of a score, and its certificates claim the sign.
        sign = str(_json(bundle, QUESTION)["command"]).split(" ")[0] == "verify"
        proved = [
            record
            for record in told["records"]
            if record["proved"] and not (sign and float(record["proved"]["value"]) <= 0)
        ]
        reasons = [(_label(record), _compare_record(record, verdicts, sign)) for record in proved]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return CheckLine("claims", "differs", f"{CLAIMS} cannot be read ({type(error).__name__}: {error})")
    wrong = [f"{label}: {why[1:]}" for label, why in reasons if why.startswith("!")]
    without = [f"{label}: {why}" for label, why in reasons if why and not why.startswith("!")]
    text = f"{len(proved) - len(wrong) - len(without)} of {len(proved)} proved claims have an accepted certificate"
    state = "differs" if wrong else "unchecked" if without or not proved else "ok"
    return CheckLine("claims", state, text, tuple(wrong + without))


def _label(record: Mapping[str, Any]) -> str:
    frame = "" if record["frame"] is None else f"/{int(record['frame'])}"
    return f"input {int(record['input'])}{frame} {record['part']}".rstrip()


def _compare_record(record: Mapping[str, Any], verdicts: Mapping[str, ProofVerdict], sign: bool) -> str:
    """Why the claim of a record has no accepted certificate; with "!" in front if one contradicts it."""
    question, wanted = record["question"], float(record["proved"]["value"])
    own = [
        one
        for name, one in verdicts.items()
        if name.endswith(".proof") and question and one.header.get("question") == question
    ]
    if not own:
        return "no certificate"
    accepted = [one for one in own if one.accepted]
    if not accepted:
        return "its certificate was not accepted"
    reasons = [_differs(record, one, wanted, sign) for one in accepted]
    return min(reasons, key=len)


def _differs(record: Mapping[str, Any], verdict: ProofVerdict, wanted: float, sign: bool) -> str:
    """How a certificate differs from the claim of a record; empty if it does not.

    sign: only the sign of the record's number is claimed.
    """
    numbers = verdict.numbers
    if numbers is None:
        return "its certificate has no numbers"
    shown, stated = numbers.as_json(), record.get("claim")
    if stated is not None:
        about = {name for name in ("class", "rows", "offset", "groups") if name in stated["property"]}
        same = {name: stated["property"][name] for name in about} == {
            name: shown["property"].get(name) for name in about
        }
        if not same or stated["outputs"] != shown["outputs"]:
            return "!claims.json states another property, or other names, than the certificate"
        if numbers.norm == "box" and stated["inputs"] != shown["inputs"]:
            return "!claims.json states another region, or other names, than the certificate"
        if numbers.norm != stated["region"]["norm"]:
            return "!claims.json states another norm than the certificate"
    goal = record["goal"]
    if goal == "radius":
        proved = -math.inf if numbers.radius is None or numbers.above < 0 else numbers.radius
    elif sign and wanted > 0 and numbers.above >= 0:
        proved = math.inf
    else:
        proved = -numbers.above if goal == "largest" else numbers.above
        wanted, proved = (-wanted, -proved) if goal == "largest" else (wanted, proved)
    slack = TOLERANCE * abs(wanted) if math.isfinite(wanted) else 0.0
    return "" if proved >= wanted - slack else f"its certificate proves less than the run's {wanted!r}"
