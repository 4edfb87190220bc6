"""New Python processes that do not look for modules in the working folder."""

import contextlib
import os
from collections.abc import Iterator

SAFE = "PYTHONSAFEPATH"


@contextlib.contextmanager
def without_working_folder() -> Iterator[None]:
    """Start processes inside this block. Python starts a spawned one with `python -c`, which puts the working folder first on sys.path
    until the parent's own path arrives: in a folder of data, a file `pickle.py` would be run."""
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE]
        else:
            os.environ[SAFE] = before
