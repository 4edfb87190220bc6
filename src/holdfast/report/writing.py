"""Documents on disk."""

import contextlib
import os
from pathlib import Path

from holdfast.errors import StoreError


def write(document: str, path: Path) -> Path:
    """The whole file or none of it."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(document, encoding="utf-8", errors="replace")  # a broken character in a name breaks no report
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise StoreError(f"{path}: the report cannot be written ({error}). Choose another place.") from error
    return path
