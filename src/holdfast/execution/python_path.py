"""Safe start of Python processes: they do not import modules from the working folder."""

import contextlib
import os
from collections.abc import Iterator

SAFE = "PYTHONSAFEPATH"


@contextlib.contextmanager
def without_working_folder() -> Iterator[None]:
    """Processes that are started inside this block do not have the working folder on sys.path.

    Python starts a spawned process with `python -c`, which puts the working folder first on sys.path until
    the parent's path arrives. In a folder of untrusted data, a file `pickle.py` would be executed.
    """
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE]
        else:
            os.environ[SAFE] = before
