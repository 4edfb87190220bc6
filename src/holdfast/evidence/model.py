"""The digests by which a model is known: of its files, and all of them as one, as OpenSSF model signing computes it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from holdfast.network.fingerprint import of_file
from holdfast.question import Question

ALONE = "."  # what model signing calls a model that is one file


@dataclass(frozen=True)
class ModelFile:
    """One file of a model where it lies, and its name beside the others: a path below the folder that holds them all."""

    name: str
    path: Path


def name_files(paths: Sequence[Path]) -> tuple[ModelFile, ...]:
    """Files of one model, the first one first."""
    folder = paths[0].resolve().parent if paths else Path()
    return tuple(ModelFile(path.resolve().relative_to(folder).as_posix(), path) for path in paths)


def describe_model(question: Question, files: Sequence[ModelFile]) -> dict[str, Any]:
    """What a bundle says of the model, whether or not it holds it."""
    digests = {file.name: of_file(file.path) for file in files}
    lines = [{"name": name, "algorithm": "sha256", "digest": digest} for name, digest in digests.items()]
    model = question.model
    return {
        "name": model.name, "source": model.source, "fingerprint": model.fingerprint, "domain": model.domain, "files": lines,
        "model_signing": signing_digest(digests) if digests else None,
    }  # fmt: skip


def signing_digest(digests: Mapping[str, str]) -> str:
    """The digest of a model in OpenSSF model signing (the package model-signing, files by SHA-256): the SHA-256 of the SHA-256 of its
    files, in the order of their names; that of a folder which holds these files alone, or of the file itself where there is only one."""
    names = sorted(digests, key=PurePosixPath)
    return hashlib.sha256(b"".join(bytes.fromhex(digests[name]) for name in names)).hexdigest()
