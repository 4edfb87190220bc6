"""A run that is made of others appears under its name when it is whole."""

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
    """StoreError where the folder is taken. Whatever goes wrong, nothing is left."""
    place = folder.resolve()
    part = place.with_name(place.name + ".part")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder} is taken. Choose another folder.")
    if part.exists():
        raise StoreError(
            f"{part} is in the way: another process is making {folder}, or one was killed while it did. Then delete it."
        )
    try:
        with Store(part, *begin(part, question, provenance)) as store:
            yield store
        os.replace(part, place)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written ({error}).") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
