"""Certificates that travel with a run: which record each speaks of, and what the checker, a program of its own, says of them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import UnreadableFile
from holdfast.files import in_words
from holdfast.foreign_text import first_line

FOLDER = "certificates"
ENDINGS = (".proof", ".witness")
HEADER = "holdfast-proof"
LARGEST_HEADER = 2**24
NO_CHECKER = "holdfast_check, the checker, is not installed here"


@dataclass(frozen=True)
class CertificateCheck:
    """What came of a certificate.

    kind      proof or witness, as it says.
    accepted  by the checker; None where nobody could look.
    told      the claim that was accepted, and what onnxruntime said of it, or why it was not.
    beside    it speaks of a model that lies beside it, weights and graph as the checker reads them, and not of the run's own file.
    """

    name: str
    question: str
    kind: str
    accepted: bool | None
    told: str
    beside: bool = False


def certificates(folder: Path) -> list[Path]:
    """Those below a folder, by their names."""
    return (
        sorted(path for path in folder.rglob("*") if path.suffix in ENDINGS and path.is_file())
        if folder.is_dir()
        else []
    )


def header_of(path: Path) -> dict[str, Any]:
    """What a certificate says of itself. UnreadableFile where it is none: a safetensors file that says so in its metadata."""
    with (
        in_words(path, "not a certificate", "Write it again with 'holdfast prove'."),
        path.open("rb") as file,
    ):
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= min(LARGEST_HEADER, path.stat().st_size):
            raise ValueError("its header is too short or too long")
        header: Any = json.loads(json.loads(file.read(size))["__metadata__"][HEADER])
        if not isinstance(header, dict) or header.get("schema") != HEADER:
            raise ValueError(f"its schema is not {HEADER}")
        return header


def by_question(folder: Path) -> dict[str, list[str]]:
    """The names of the certificates of each question, by its hash, from the folder that holds the certificates' own."""
    found: dict[str, list[str]] = {}
    for path in certificates(folder / FOLDER):
        header = header_of(path)
        if header.get("kind") != "witness":
            found.setdefault(str(header.get("question", "")), []).append(path.relative_to(folder).as_posix())
    return found


def models(folder: Path) -> list[Path]:
    """The models that certificates lie beside: weights and graph as the checker reads them, where it does not read the model itself."""
    return sorted(path for path in folder.rglob("*.safetensors") if path.is_file()) if folder.is_dir() else []


def check_certificates(folder: Path, known: Mapping[str, Path]) -> Iterator[CertificateCheck]:
    """What the checker says of every certificate below the folder. known: files of models by their SHA-256; a certificate names the one
    that it speaks of."""
    for path in certificates(folder / FOLDER):
        name = path.relative_to(folder).as_posix()
        try:
            header = header_of(path)
        except UnreadableFile as error:
            yield CertificateCheck(name, "", path.suffix[1:], False, str(error))
            continue
        model = header.get("model")
        digest = str(model.get("sha256", "")) if isinstance(model, dict) else ""
        beside = digest in known and known[digest].is_relative_to(folder / FOLDER)
        question, kind = str(header.get("question", "")), str(header.get("kind", ""))
        yield CertificateCheck(name, question, kind, *_verdict(path, digest, known), beside)


def _verdict(path: Path, digest: str, known: Mapping[str, Path]) -> tuple[bool | None, str]:
    try:
        import holdfast_check
    except ImportError:
        return None, NO_CHECKER
    if digest not in known:
        return None, f"it speaks of the model with sha256 {digest[:64] or 'unknown'}, which is not here"
    try:
        verdict = holdfast_check.check(str(known[digest]), str(path))
        accepted = "; ".join(part for part in (verdict.claim, verdict.compared) if part)
        return bool(verdict.accepted), accepted if verdict.accepted else str(verdict.reason)
    except Exception as error:  # whatever the checker trips over, it has not accepted
        return False, f"the checker could not read it ({first_line(error)})"
