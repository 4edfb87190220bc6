"""One writer a run: a lock of the operating system on a file of the folder, which a killed process gives back by itself."""

import contextlib
import json
import os
import socket
import weakref
from datetime import UTC, datetime
from pathlib import Path

from holdfast.errors import StoreError

try:
    import fcntl
except ImportError:  # not a Unix: there is no lease, and SQLite's own locks alone keep transactions whole
    fcntl = None  # type: ignore[assignment]

FILE = "run.lease"
_held: set[int] = set()


class Lease:
    """Held from its making until `release`, or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """StoreError where another process holds it, saying which, or where the folder cannot be written."""
        try:
            self._descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(
                f"{folder}: the run cannot be written ({error.strerror or error}). 'holdfast report', 'show', 'gate', 'compare' and "
                f"'export' still read it; to go on with it, copy it to where you may write."
            ) from error
        try:
            if fcntl is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            told = _holder(self._descriptor)
            os.close(self._descriptor)
            raise StoreError(
                f"{folder}: this run is being written by {told}. Wait until it ends, or stop it; 'holdfast report' and 'holdfast export' "
                f"read the run meanwhile."
            ) from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds without a name on it
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(_self()).encode(), 0)
        _held.add(self._descriptor)
        self.release = weakref.finalize(self, _let_go, self._descriptor)


def _self() -> dict[str, str | int]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _holder(descriptor: int) -> str:
    try:
        told = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {told['pid']} on {told['host']}, since {told['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


def _let_go(descriptor: int) -> None:
    if descriptor in _held:
        _held.discard(descriptor)
        with contextlib.suppress(OSError):
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have it open for another moment
            os.close(descriptor)


def _not_inherited() -> None:
    """A child that outlives a killed parent must not keep its parent's lease; closing its copy does not end the lease."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_not_inherited)
