"""The manifest of a bundle: the files by name, size and SHA-256."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import UnreadableFile
from holdfast.evidence.archive import files_of
from holdfast.files import read_json
from holdfast.network.fingerprint import of_file
from holdfast_check.archive import is_name

FILE = "manifest.json"
STATEMENT = "statement.json"  # Names the digest of the manifest.
SIGNATURE = "signature.dsse.json"  # Signs the statement.
UNLISTED = (FILE, STATEMENT, SIGNATURE)
FORMAT = 1  # Version of manifest.json; readers refuse any other.
DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class ManifestEntry:
    """Size in bytes and SHA-256 of one file."""

    size: int
    sha256: str


def list_files(folder: Path) -> dict[str, ManifestEntry]:
    """List all files below a folder, except the manifest and the files that depend on it."""
    return {
        name: ManifestEntry((folder / name).stat().st_size, of_file(folder / name))
        for name in files_of(folder)
        if name not in UNLISTED
    }


def write_manifest(folder: Path) -> Path:
    """Write the manifest of all files below the folder, and return its path."""
    lines = [
        {"name": name, "size": one.size, "sha256": one.sha256} for name, one in list_files(folder).items()
    ]
    target = folder / FILE
    target.write_bytes(as_bytes({"format": FORMAT, "files": lines}))
    return target


def as_bytes(told: Mapping[str, Any]) -> bytes:
    """Serialize to JSON in a canonical form: equal contents give equal bytes."""
    return (json.dumps(told, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n").encode(
        "ascii"
    )


def read_manifest(folder: Path) -> dict[str, ManifestEntry]:
    """Read the manifest. UnreadableFile if it is not a valid one."""
    told = read_json(folder / FILE, "Request the bundle again.")
    wrong = UnreadableFile(
        f"{FILE}: not the manifest of a bundle, or of another version (this one reads {FORMAT}). Request it "
        "again."
    )
    if not isinstance(told, dict) or told.get("format") != FORMAT or not isinstance(told.get("files"), list):
        raise wrong
    found: dict[str, ManifestEntry] = {}
    for line in told["files"]:
        name, size, digest = (
            (line.get(key) for key in ("name", "size", "sha256"))
            if isinstance(line, dict)
            else (None, None, None)
        )
        if not isinstance(name, str) or not is_name(name) or name in found or name in UNLISTED:
            raise wrong
        if (
            not isinstance(size, int)
            or not isinstance(digest, str)
            or len(digest) != 64
            or not set(digest) <= DIGITS
        ):
            raise wrong
        found[name] = ManifestEntry(size, digest)
    return found
