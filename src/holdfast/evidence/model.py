"""SHA-256 digests of a model: of each file, and of the whole as in OpenSSF model signing."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from holdfast.network.fingerprint import of_file
from holdfast.question import Question

ALONE = "."  # The name that OpenSSF model signing gives to a model that consists of one file.


@dataclass(frozen=True)
class ModelFile:
    """One file of a model. `name` is its path relative to the folder of the model's first file."""

    name: str
    path: Path


def name_files(paths: Sequence[Path]) -> tuple[ModelFile, ...]:
    """Name the files of one model relative to the folder of the first one."""
    folder = paths[0].resolve().parent if paths else Path()
    return tuple(ModelFile(path.resolve().relative_to(folder).as_posix(), path) for path in paths)


def describe_model(question: Question, files: Sequence[ModelFile]) -> dict[str, Any]:
    """Return what a bundle records about the model, whether or not the bundle contains its files."""
    digests = {file.name: of_file(file.path) for file in files}
    lines = [{"name": name, "algorithm": "sha256", "digest": digest} for name, digest in digests.items()]
    model = question.model
    return {
        "name": model.name,
        "source": model.source,
        "fingerprint": model.fingerprint,
        "domain": model.domain,
        "files": lines,
        "model_signing": signing_digest(digests) if digests else None,
    }


def signing_digest(digests: Mapping[str, str]) -> str:
    """Return the digest of a model in OpenSSF model signing (the package model-signing, SHA-256).

    The digest is the SHA-256 of the concatenated SHA-256 digests of the files, ordered by name. It equals the
    digest of a folder that holds exactly these files, or, for a single file, the digest of that file.
    """
    names = sorted(digests, key=PurePosixPath)
    return hashlib.sha256(b"".join(bytes.fromhex(digests[name]) for name in names)).hexdigest()
