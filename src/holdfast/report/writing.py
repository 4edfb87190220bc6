"""Atomic writing of documents."""

import contextlib
import os
from pathlib import Path

from holdfast.errors import StoreError
from holdfast.files import new_file


def write_document(document: str, path: Path) -> Path:
    """Write a document atomically: the complete file or none; return its path."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(part) as stream:
            stream.write(document.encode("utf-8", "replace"))  # A lone surrogate in a name is replaced.
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise StoreError(f"{path}: the report cannot be written ({error}). Choose another place.") from error
    return path
