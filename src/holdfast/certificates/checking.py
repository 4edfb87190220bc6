"""The certificates in a bundle: which record each one is about, and the verdict of the independent checker
`holdfast_check`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import UnreadableFile
from holdfast.files import explained_errors
from holdfast.foreign_text import first_line

FOLDER = "certificates"
ENDINGS = (".proof", ".witness")
HEADER = "holdfast-proof"
LARGEST_HEADER = 2**24  # Bytes: reject a certificate with a larger header (chosen by hand).
NO_CHECKER = "holdfast_check, the checker, is not installed here"


@dataclass(frozen=True)
class CertificateCheck:
    """Result of checking one certificate.

    Attributes:
        kind: proof or witness, as the certificate states.
        accepted: the checker's verdict; None if it could not be checked.
        told: the accepted claim and the comparison with onnxruntime, or the reason for rejection.
        separate_model: the certificate is about a network that is stored with it in the checker's format
            (weights and graph), not about the run's own file.
    """

    name: str
    question: str
    kind: str
    accepted: bool | None
    told: str
    separate_model: bool = False


def certificates(folder: Path) -> list[Path]:
    """List the certificates below a folder, ordered by name."""
    return (
        sorted(path for path in folder.rglob("*") if path.suffix in ENDINGS and path.is_file())
        if folder.is_dir()
        else []
    )


def header_of(path: Path) -> dict[str, Any]:
    """Read the header of a certificate.

    UnreadableFile if the file is not a safetensors file with the right metadata.
    """
    with (
        explained_errors(path, "not a certificate", "Write it again with 'holdfast prove'."),
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
    """Map the hash of each question to the names of its certificates, relative to `folder`."""
    found: dict[str, list[str]] = {}
    for path in certificates(folder / FOLDER):
        header = header_of(path)
        if header.get("kind") != "witness":
            found.setdefault(str(header.get("question", "")), []).append(path.relative_to(folder).as_posix())
    return found


def models(folder: Path) -> list[Path]:
    """List the networks stored with certificates, for models that the checker cannot read."""
    return sorted(path for path in folder.rglob("*.safetensors") if path.is_file()) if folder.is_dir() else []


def check_certificates(folder: Path, known: Mapping[str, Path]) -> Iterator[CertificateCheck]:
    """Run the checker on every certificate below the folder. `known` maps SHA-256 to the files of models."""
    for path in certificates(folder / FOLDER):
        name = path.relative_to(folder).as_posix()
        try:
            header = header_of(path)
        except UnreadableFile as error:
            yield CertificateCheck(name, "", path.suffix[1:], False, str(error))
            continue
        model = header.get("model")
        digest = str(model.get("sha256", "")) if isinstance(model, dict) else ""
        separate_model = digest in known and known[digest].is_relative_to(folder / FOLDER)
        question, kind = str(header.get("question", "")), str(header.get("kind", ""))
        yield CertificateCheck(name, question, kind, *_verdict(path, digest, known), separate_model)


def _verdict(path: Path, digest: str, known: Mapping[str, Path]) -> tuple[bool | None, str]:
    try:
        import holdfast_check
    except ImportError:
        return None, NO_CHECKER
    if digest not in known:
        return None, f"it is about the model with sha256 {digest[:64] or 'unknown'}, which is not available"
    try:
        verdict = holdfast_check.check(str(known[digest]), str(path))
        accepted = "; ".join(part for part in (verdict.claim, verdict.compared) if part)
        return bool(verdict.accepted), accepted if verdict.accepted else str(verdict.reason)
    except Exception as error:  # A crash of the checker on a damaged file is not an acceptance.
        return False, f"the checker could not read it ({first_line(error)})"
