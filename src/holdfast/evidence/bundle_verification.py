"""Check that a bundle is intact and agrees with its run.

`holdfast verify-bundle` also queries the model; this module does not.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from holdfast.certificates.checking import FOLDER, models
from holdfast.errors import HoldfastError, UnreadableFile
from holdfast.evidence import contents, manifest, signature
from holdfast.evidence.archive import files_of
from holdfast.evidence.bundle import ABOUT_MODEL, MODEL, build_statement, gate_mismatch
from holdfast.evidence.claims import FILE as CLAIMS
from holdfast.evidence.finding import Finding
from holdfast.evidence.model import ModelFile, describe_model, signing_digest
from holdfast.evidence.statement import GATE
from holdfast.files import read_json, read_unpacked
from holdfast.network.fingerprint import of_file
from holdfast.network.onnx.reader import MAX_BYTES
from holdfast.question import Question
from holdfast.store import FILE as RUN_FILE
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.evidence.keys import PublicKey

AGAIN = "Request the bundle again."
RUN_NAME = f"{contents.RUN}/{RUN_FILE}"
NEEDED = (manifest.FILE, manifest.STATEMENT, RUN_NAME, ABOUT_MODEL, CLAIMS)


def check_intact(bundle: Path, folder: Path, names: Sequence[str]) -> None:
    """UnreadableFile if a file differs from the manifest, or the statement names another manifest."""
    for one in _outside(names, folder):
        if one.state != "ok":
            raise UnreadableFile(
                f"{bundle}: {one.told}{': ' if one.details else ''}{'; '.join(one.details[:3])}."
            )


def _outside(names: Sequence[str], folder: Path) -> Iterator[Finding]:
    """Check the manifest, then the statement.

    The caller stops at the first failure: each check needs the one before.
    """
    yield check_listing(names, folder)
    yield check_statement(folder)


def check_listing(names: Sequence[str], folder: Path) -> Finding:
    """Compare every file with the manifest."""
    missing = [name for name in NEEDED if name not in names]
    if missing:
        return Finding("manifest", "differs", f"not a bundle of holdfast: {missing[0]} is missing")
    try:
        wanted = manifest.read_manifest(folder)
    except HoldfastError as error:
        return Finding("manifest", "differs", str(error))
    found = manifest.list_files(folder)
    wrong = [f"{name}: is missing" for name in wanted.keys() - found.keys()]
    wrong += [f"{name}: is present, but not in the manifest" for name in found.keys() - wanted.keys()]
    wrong += [
        f"{name}: was changed: its sha256 is {found[name].sha256}, not {wanted[name].sha256}"
        for name in wanted.keys() & found.keys()
        if found[name] != wanted[name]
    ]
    told = (
        f"sha256 {of_file(folder / manifest.FILE)}, {len(found) - len(wrong)} of {len(wanted)} files match it"
    )
    return Finding("manifest", "differs" if wrong else "ok", told, tuple(sorted(wrong)))


def check_statement(folder: Path) -> Finding:
    """Check that the statement names this manifest."""
    try:
        told = read_json(folder / manifest.STATEMENT, AGAIN)
        names = {subject["name"]: subject["digest"] for subject in told["subject"]}
        if names[manifest.FILE] == {"sha256": of_file(folder / manifest.FILE)}:
            return Finding("statement", "ok", "it names the manifest of this bundle")
    except (HoldfastError, LookupError, TypeError, AttributeError) as error:
        return Finding("statement", "differs", f"{manifest.STATEMENT} cannot be read ({error})")
    return Finding("statement", "differs", "it names another manifest than this bundle's")


def check_signatures(folder: Path, keys: "Sequence[PublicKey]") -> Finding:
    """Check who signed the statement.

    Without a public key that the auditor trusts, the result is "unchecked".
    """
    if not (folder / manifest.SIGNATURE).is_file():
        told = "unsigned: anybody could have made this bundle"
        return Finding(
            "signature",
            "differs" if keys else "unchecked",
            told + (", not only the owner of the key that you gave" if keys else ""),
        )
    payload = (folder / manifest.STATEMENT).read_bytes()
    try:
        found = signature.read_signatures(folder / manifest.SIGNATURE, payload)
    except HoldfastError as error:
        return Finding("signature", "differs", f"the signature does not match: {error}")
    names = ", ".join(one.key_id[:64] or "an unnamed key" for one in found)
    if not keys:
        return Finding(
            "signature",
            "unchecked",
            f"states that it is signed by {names}; give that public key, from another source, with "
            "--public-key",
        )
    signed = signature.pae(signature.PAYLOAD, payload)
    for key in keys:
        own = [one for one in found if one.key_id == key.fingerprint]
        if not any(key.verifies(one.signature, signed) for one in own):
            told = (
                "the signature does not match"
                if own
                else f"signed by {names}, and not by the key that you gave, {key.fingerprint}"
            )
            return Finding("signature", "differs", told)
    return Finding("signature", "ok", f"signed by {', '.join(key.fingerprint for key in keys)}")


def check_contents(folder: Path) -> Iterator[Finding]:
    """Derive records, witnesses, claims, question, page and statement again from the run, and compare.

    The files must match the manifest already, and the run must be readable.
    """
    names = [
        name for name in manifest.read_manifest(folder) if not name.startswith((f"{FOLDER}/", f"{MODEL}/"))
    ]
    told = _versions(folder)
    with Store.read(folder / contents.RUN) as store, TemporaryDirectory(prefix="holdfast-again-") as place:
        again = Path(place)
        try:
            contents.write_contents(store, again, folder)
        except HoldfastError as error:
            yield Finding("contents", "differs", str(error))
            return
        made = {name: again / name for name in files_of(again)}
        rest = set(names) - made.keys() - {RUN_NAME, ABOUT_MODEL, GATE}
        pages = {name for name in made if name.endswith(".html")}
        wrong = [
            f"{name}: is not what the run records"
            for name in made.keys() - pages
            if not _same(folder, made[name], name)
        ]
        wrong += [f"{name}: cannot be derived from the run" for name in rest]
        yield _finding("contents", wrong, f"{len(made) - len(pages)} files match the run", told)
        yield _page(folder, made, pages, told)
        yield _statement(folder, store)
        if GATE in names:
            why = gate_mismatch(read_json(folder / GATE, AGAIN), store)
            yield Finding("gate", "differs" if why else "ok", why or "its counts are those of the run")


def _same(folder: Path, made: Path, name: str) -> bool:
    return (folder / name).is_file() and contents.same_content(
        name, (folder / name).read_bytes(), made.read_bytes()
    )


def _versions(folder: Path) -> dict[str, Any]:
    """Return the versions of the packages with which the bundle says it was made."""
    try:
        told = read_json(folder / contents.VERSIONS, AGAIN)["bundle"]
        return dict(told)
    except (HoldfastError, LookupError, TypeError, ValueError):
        return {}


def _finding(what: str, wrong: Sequence[str], fine: str, made_with: Mapping[str, Any]) -> Finding:
    """Summarize a comparison.

    A difference is only "unchecked" if another version of holdfast made the bundle.
    """
    own = contents.package_versions()["holdfast"]
    if not wrong:
        return Finding(what, "ok", fine)
    if made_with.get("holdfast") != own:
        told = (
            f"{len(wrong)} differ: made by holdfast {str(made_with.get('holdfast'))[:40]}, and this is {own}"
        )
        return Finding(what, "unchecked", told, tuple(sorted(wrong)))
    return Finding(what, "differs", f"{len(wrong)} do not match the run", tuple(sorted(wrong)))


def _page(folder: Path, made: Mapping[str, Path], pages: set[str], made_with: Mapping[str, Any]) -> Finding:
    """Compare the text of the pages, and the figures if the same version of matplotlib drew them."""
    drawn = made_with.get("matplotlib") == contents.package_versions()["matplotlib"]
    wrong = []
    for name in pages:
        there = (folder / name).read_bytes() if (folder / name).is_file() else b""
        mine = made[name].read_bytes()
        if there != mine and (drawn or contents.without_figures(there) != contents.without_figures(mine)):
            wrong.append(f"{name}: is not the page of this run")
    rest = "" if drawn else "; its figures, drawn by another version of matplotlib, were not compared"
    return _finding("page", wrong, f"it is the page of this run{rest}", made_with)


def _statement(folder: Path, store: Store) -> Finding:
    """Derive the statement again from the files of the bundle and compare it."""
    told = read_json(folder / manifest.STATEMENT, AGAIN)
    try:
        made_by = str(told["predicate"]["producer"]["annotations"]["version"])
        again = build_statement(folder, store, manifest.read_manifest(folder), made_by)
    except (HoldfastError, LookupError, TypeError, AttributeError, ValueError) as error:
        return Finding("claims", "differs", f"the statement cannot be derived from the bundle ({error})")
    if json.loads(manifest.as_bytes(again)) != told:
        return _finding(
            "claims", ["statement.json: does not state what the bundle contains"], "", {"holdfast": made_by}
        )
    kinds = [
        f"{one['attribute']}: "
        + ", ".join(f"{count} {name}" for name, count in one["conditions"].items() if isinstance(count, int))
        for one in again["predicate"]["attributes"]
    ]
    return Finding("claims", "ok", f"the statement matches the bundle; {'; '.join(kinds)}")


def check_model(folder: Path, question: Question, files: Sequence[ModelFile]) -> Finding:
    """Compare the model's digests with the files that are available, or with the run's question.

    Files may be renamed.
    """
    told = read_json(folder / ABOUT_MODEL, AGAIN)
    try:
        digests = {str(file["name"]): str(file["digest"]) for file in told["files"]}
        again = {
            **describe_model(question, ()),
            "files": told["files"],
            "model_signing": signing_digest(digests) if digests else None,
        }
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Finding("digests", "differs", f"{ABOUT_MODEL} cannot be read ({error})")
    if told != again:
        return Finding("digests", "differs", f"{ABOUT_MODEL} is not about the model of the run")
    own = sorted(of_file(file.path) for file in files)
    kept = sorted(of_file(path) for path in (folder / MODEL).rglob("*") if path.is_file())
    if (files and own != sorted(digests.values())) or (kept and kept != sorted(digests.values())):
        return Finding(
            "digests", "differs", "the files of the model have other digests than the bundle states"
        )
    if files:
        return Finding(
            "digests",
            "ok",
            f"{len(files)} files of the model have the digests in the bundle; together sha256 "
            f"{told['model_signing']}",
        )
    if not question.model.fingerprint:
        return Finding(
            "digests",
            "unchecked",
            "the model was not hashed, so the claims cannot be tied to a model",
        )
    return Finding(
        "digests",
        "ok",
        f"the claims are about the model with the hash {question.model.fingerprint}, which is not available "
        "as a file",
    )


def find_models(folder: Path, given: Path | None) -> dict[str, Path]:
    """Map SHA-256 to model files: the auditor's, the bundle's, and those stored with certificates.

    The digest of a .gz file is that of its unpacked contents, because certificates name that.
    """
    found = [given] if given is not None and given.is_file() else []
    found += [path for path in sorted((folder / MODEL).rglob("*")) if path.is_file()]
    found += models(folder / FOLDER)
    return {_read_text(path) if path.suffix == ".gz" else of_file(path): path for path in reversed(found)}


def _read_text(path: Path) -> str:
    return hashlib.sha256(
        read_unpacked(path, MAX_BYTES, f"unpacks to more than {MAX_BYTES} bytes, the limit for a model.")
    ).hexdigest()
