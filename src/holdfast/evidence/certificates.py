"""Certificates that travel with a run: which record each speaks of, and what the checker, a program of its own, says of them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import UnreadableFile
from holdfast.files import Array, in_words, told

FOLDER = "certificates"
ENDINGS = (".proof", ".witness")
GRAPH = "model.safetensors"  # of a torch module, beside its certificates: weights and graph as the checker reads them
HEADER = "holdfast-proof"
LARGEST_HEADER = 2**24
NO_CHECKER = "holdfast_check, the checker, is not installed here"


@dataclass(frozen=True)
class Checked:
    """What came of a certificate.

    accepted  by the checker; None where nobody could look.
    told      the claim that was accepted, or why it was not.
    value     the number that the checker found proved, in the units of the record; None where it does not say. What a certificate says
              of itself is not believed.
    centre    the input around which it was, flattened; None where the checker does not say.
    """

    name: str
    question: str
    accepted: bool | None
    told: str
    value: float | None = None
    centre: Array | None = None


def certificates(folder: Path) -> list[Path]:
    """Those below a folder, by their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix in ENDINGS and path.is_file()) if folder.is_dir() else []


def header_of(path: Path) -> dict[str, Any]:
    """What a certificate says of itself. UnreadableFile where it is none: a safetensors file that says so in its metadata."""
    with in_words(path, "not a certificate", "Write it again with 'holdfast prove'."), path.open("rb") as file:
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


def checked(folder: Path, models: Mapping[str, Path]) -> Iterator[Checked]:
    """What the checker says of every certificate below the folder. models: files of models by their SHA-256; a certificate names the one
    that it speaks of."""
    for path in certificates(folder / FOLDER):
        name = path.relative_to(folder).as_posix()
        try:
            yield _checked(path, name, header_of(path), models)
        except UnreadableFile as error:
            yield Checked(name, "", False, str(error))


def _checked(path: Path, name: str, header: Mapping[str, Any], models: Mapping[str, Path]) -> Checked:
    question, model = str(header.get("question", "")), header.get("model")
    digest = str(model.get("sha256", "")) if isinstance(model, dict) else ""
    try:
        import holdfast_check  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return Checked(name, question, None, NO_CHECKER)
    if digest not in models:
        return Checked(name, question, None, f"it speaks of the model with sha256 {digest[:64] or 'unknown'}, which is not here")
    try:
        verdict = holdfast_check.check(str(models[digest]), str(path))
        accepted, said = bool(verdict.accepted), str(verdict.claim if verdict.accepted else verdict.reason)
        value, centre = (getattr(verdict, name, None) for name in ("value", "centre"))
        found = None if value is None else float(value), None if centre is None else np.asarray(centre, np.float64).reshape(-1)
    except Exception as error:  # whatever the checker trips over, it has not accepted
        return Checked(name, question, False, f"the checker could not read it ({told(error)})")
    return Checked(name, question, accepted, said, *found)
