"""Is a bundle whole, and is what it says what its run says? Nothing here asks the model: `holdfast verify-bundle` does that too."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, UnreadableFile
from holdfast.evidence import contents, manifest, signature
from holdfast.evidence.archive import files_of
from holdfast.evidence.bundle import ABOUT_MODEL, MODEL, of_another, state
from holdfast.evidence.certificates import FOLDER, models
from holdfast.evidence.claims import FILE as CLAIMS
from holdfast.evidence.finding import Finding
from holdfast.evidence.model import ModelFile, describe_model, signing_digest
from holdfast.evidence.statement import GATE
from holdfast.files import json_of, read_unpacked
from holdfast.network.fingerprint import of_file
from holdfast.network.onnx.reader import MAX_BYTES
from holdfast.question import Question
from holdfast.store import FILE as RUN_FILE
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.evidence.keys import PublicKey

AGAIN = "Ask for the bundle again."
RUN_NAME = f"{contents.RUN}/{RUN_FILE}"
NEEDED = (manifest.FILE, manifest.STATEMENT, RUN_NAME, ABOUT_MODEL, CLAIMS)


def is_whole(bundle: Path, folder: Path, names: Sequence[str]) -> None:
    """UnreadableFile where a file of the bundle is not as it was listed, or the statement not that of the list."""
    for one in _outside(names, folder):
        if one.state != "ok":
            raise UnreadableFile(
                f"{bundle}: {one.told}{': ' if one.details else ''}{'; '.join(one.details[:3])}."
            )


def _outside(names: Sequence[str], folder: Path) -> Iterator[Finding]:
    """One after the other: without a manifest there is nothing to compare a statement with."""
    yield check_listing(names, folder)
    yield statement_of_manifest(folder)


def check_listing(names: Sequence[str], folder: Path) -> Finding:
    """Every file against the manifest."""
    missing = [name for name in NEEDED if name not in names]
    if missing:
        return Finding("manifest", "differs", f"no bundle of holdfast: {missing[0]} is missing")
    try:
        wanted = manifest.read_manifest(folder)
    except HoldfastError as error:
        return Finding("manifest", "differs", str(error))
    found = manifest.list_files(folder)
    wrong = [f"{name}: is missing" for name in wanted.keys() - found.keys()]
    wrong += [f"{name}: is there, but the manifest does not name it" for name in found.keys() - wanted.keys()]
    wrong += [
        f"{name}: was changed: its sha256 is {found[name].sha256}, not {wanted[name].sha256}"
        for name in wanted.keys() & found.keys()
        if found[name] != wanted[name]
    ]
    told = f"sha256 {of_file(folder / manifest.FILE)}, {len(found) - len(wrong)} of {len(wanted)} files are as it lists them"
    return Finding("manifest", "differs" if wrong else "ok", told, tuple(sorted(wrong)))


def statement_of_manifest(folder: Path) -> Finding:
    """Does the statement name this manifest?"""
    try:
        told = json_of(folder / manifest.STATEMENT, AGAIN)
        names = {subject["name"]: subject["digest"] for subject in told["subject"]}
        if names[manifest.FILE] == {"sha256": of_file(folder / manifest.FILE)}:
            return Finding("statement", "ok", "it names the manifest of this bundle")
    except (HoldfastError, LookupError, TypeError, AttributeError) as error:
        return Finding("statement", "differs", f"{manifest.STATEMENT} cannot be read ({error})")
    return Finding("statement", "differs", "it names another manifest than that of this bundle")


def signatures(folder: Path, keys: "Sequence[PublicKey]") -> Finding:
    """Who signed the statement. Whose key it is, only who checks can know: so without one of theirs it is unchecked."""
    if not (folder / manifest.SIGNATURE).is_file():
        told = "unsigned: anybody can have made this bundle"
        return Finding(
            "signature",
            "differs" if keys else "unchecked",
            told + (", not only who has the key that you gave" if keys else ""),
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
            f"says that it is signed by {names}; give that public key, from elsewhere: --public-key",
        )
    signed = signature.pae(signature.PAYLOAD, payload)
    for key in keys:
        own = [one for one in found if one.key_id == key.fingerprint]
        if not any(key.holds(one.signature, signed) for one in own):
            told = (
                "the signature does not match"
                if own
                else f"signed by {names}, and not by the key that you gave, {key.fingerprint}"
            )
            return Finding("signature", "differs", told)
    return Finding("signature", "ok", f"signed by {', '.join(key.fingerprint for key in keys)}")


def check_contents(folder: Path) -> Iterator[Finding]:
    """What the bundle says beside its run is made again from the run, and compared: records, witnesses, claims, question, page, statement.
    The files are those of the manifest, and the run can be read."""
    names = [
        name for name in manifest.read_manifest(folder) if not name.startswith((f"{FOLDER}/", f"{MODEL}/"))
    ]
    told = _versions(folder)
    with Store.read(folder / contents.RUN) as store, TemporaryDirectory(prefix="holdfast-again-") as place:
        again = Path(place)
        try:
            contents.make(store, again, folder)
        except HoldfastError as error:
            yield Finding("contents", "differs", str(error))
            return
        made = {name: again / name for name in files_of(again)}
        rest = set(names) - made.keys() - {RUN_NAME, ABOUT_MODEL, GATE}
        pages = {name for name in made if name.endswith(".html")}
        wrong = [
            f"{name}: is not what the run says"
            for name in made.keys() - pages
            if not _same(folder, made[name], name)
        ]
        wrong += [f"{name}: follows from nothing in the run" for name in rest]
        yield _finding("contents", wrong, f"{len(made) - len(pages)} files say what the run says", told)
        yield _page(folder, made, pages, told)
        yield _statement(folder, store)
        if GATE in names:
            why = of_another(json_of(folder / GATE, AGAIN), store)
            yield Finding("gate", "differs" if why else "ok", why or "what it counted is counted here again")


def _same(folder: Path, made: Path, name: str) -> bool:
    return (folder / name).is_file() and contents.same(name, (folder / name).read_bytes(), made.read_bytes())


def _versions(folder: Path) -> dict[str, Any]:
    """With what the bundle says that it was made."""
    try:
        told = json_of(folder / contents.VERSIONS, AGAIN)["bundle"]
        return dict(told)
    except (HoldfastError, LookupError, TypeError, ValueError):
        return {}


def _finding(what: str, wrong: Sequence[str], fine: str, made_with: Mapping[str, Any]) -> Finding:
    """What differs may be how another version of holdfast says the same."""
    own = contents.of_parts()["holdfast"]
    if not wrong:
        return Finding(what, "ok", fine)
    if made_with.get("holdfast") != own:
        told = f"{len(wrong)} say it in other words: made by holdfast {str(made_with.get('holdfast'))[:40]}, and this is {own}"
        return Finding(what, "unchecked", told, tuple(sorted(wrong)))
    return Finding(what, "differs", f"{len(wrong)} do not say what the run says", tuple(sorted(wrong)))


def _page(folder: Path, made: Mapping[str, Path], pages: set[str], made_with: Mapping[str, Any]) -> Finding:
    """Words always; drawings where the same matplotlib drew them."""
    drawn = made_with.get("matplotlib") == contents.of_parts()["matplotlib"]
    wrong = []
    for name in pages:
        there = (folder / name).read_bytes() if (folder / name).is_file() else b""
        mine = made[name].read_bytes()
        if there != mine and (drawn or contents.words(there) != contents.words(mine)):
            wrong.append(f"{name}: is not the page of this run")
    rest = "" if drawn else "; its drawings, by another matplotlib, were not compared"
    return _finding("page", wrong, f"it is the page of this run{rest}", made_with)


def _statement(folder: Path, store: Store) -> Finding:
    """Made again of what the bundle holds."""
    told = json_of(folder / manifest.STATEMENT, AGAIN)
    try:
        made_by = str(told["predicate"]["producer"]["annotations"]["version"])
        again = state(folder, store, manifest.read_manifest(folder), made_by)
    except (HoldfastError, LookupError, TypeError, AttributeError, ValueError) as error:
        return Finding(
            "claims", "differs", f"the statement cannot be made again of what the bundle holds ({error})"
        )
    if json.loads(manifest.as_bytes(again)) != told:
        return _finding(
            "claims", ["statement.json: does not state what the bundle holds"], "", {"holdfast": made_by}
        )
    kinds = [
        f"{one['attribute']}: {', '.join(f'{count} {name}' for name, count in one['conditions'].items() if isinstance(count, int))}"
        for one in again["predicate"]["attributes"]
    ]
    return Finding("claims", "ok", f"the statement names what the bundle holds; {'; '.join(kinds)}")


def of_model(folder: Path, question: Question, files: Sequence[ModelFile]) -> Finding:
    """What the bundle says of the model: by the files that are at hand, or by what it says itself. Files may have another name now."""
    told = json_of(folder / ABOUT_MODEL, AGAIN)
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
        return Finding(
            "digests", "differs", f"{ABOUT_MODEL} does not speak of the model that the run asked about"
        )
    own = sorted(of_file(file.path) for file in files)
    kept = sorted(of_file(path) for path in (folder / MODEL).rglob("*") if path.is_file())
    if (files and own != sorted(digests.values())) or (kept and kept != sorted(digests.values())):
        return Finding("digests", "differs", "the files of the model are not those that the bundle names")
    if files:
        return Finding(
            "digests",
            "ok",
            f"{len(files)} files of the model are those that the bundle names; together sha256 {told['model_signing']}",
        )
    if not question.model.fingerprint:
        return Finding(
            "digests",
            "unchecked",
            "what the model is made of was not hashed, so nobody knows which model the claims speak of",
        )
    return Finding(
        "digests",
        "ok",
        f"the claims speak of the model with the hash {question.model.fingerprint}, which is not at hand as a file",
    )


def models_of(folder: Path, given: Path | None) -> dict[str, Path]:
    """The files of models that are at hand, by their SHA-256: that which the auditor has, the bundle's own, and graphs of certificates.
    Certificates name what a packed file unpacks to."""
    found = [given] if given is not None and given.is_file() else []
    found += [path for path in sorted((folder / MODEL).rglob("*")) if path.is_file()]
    found += models(folder / FOLDER)
    return {_read_text(path) if path.suffix == ".gz" else of_file(path): path for path in reversed(found)}


def _read_text(path: Path) -> str:
    return hashlib.sha256(
        read_unpacked(path, MAX_BYTES, f"unpacks to more than {MAX_BYTES} bytes, which no model should.")
    ).hexdigest()
