"""Creation of a run folder that appears under its name only when it is complete."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import StoreError
from holdfast.question import Question
from holdfast.store.run import Store, begin


@contextlib.contextmanager
def create_whole(folder: Path, question: Question, provenance: Mapping[str, Any]) -> Iterator[Store]:
    """A new run that is moved to `folder` at the end of the block, and deleted if the block fails.

    Raises StoreError if the folder is taken.
    """
    target = folder.resolve()
    part = target.with_name(target.name + ".part")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder} is taken. Choose another folder.")
    if part.exists():
        raise StoreError(
            f"{part} exists: another process is creating {folder}, or a process was killed while it did. "
            f"In the second case delete it."
        )
    try:
        with Store(part, *begin(part, question, provenance)) as store:
            yield store
        os.replace(part, target)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written ({error}).") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
