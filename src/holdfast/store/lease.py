"""The lease of a run: a file lock that lets only one process write.

The operating system releases it when the process dies.
"""

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
except ImportError:  # not Unix: there is no lease, and only SQLite's own locks keep transactions consistent
    fcntl = None  # type: ignore[assignment]

FILE = "run.lease"
# File descriptors of the leases that this process holds.
_held: set[int] = set()
# Longest description of the holder that is read from the lease file, in bytes (chosen by hand).
MAX_HOLDER_BYTES = 4096


class Lease:
    """The right to write a run, from construction until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lease.

        Raises StoreError if another process holds it (the message names it), or the folder cannot be written.
        """
        try:
            self._descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(
                f"{folder}: the run cannot be written ({error.strerror or error}). 'holdfast report', "
                f"'show', 'gate', 'compare' and 'export' still read it; to continue it, copy it to a folder "
                f"where you may write."
            ) from error
        try:
            if fcntl is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read_holder(self._descriptor)
            os.close(self._descriptor)
            raise StoreError(
                f"{folder}: this run is being written by {holder}. Wait until it ends, or stop it; "
                f"'holdfast report' and 'holdfast export' read the run meanwhile."
            ) from error
        with contextlib.suppress(
            OSError
        ):  # on a full disk the lock works without a description of its holder
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(_describe_self()).encode(), 0)
        _held.add(self._descriptor)
        self.release = weakref.finalize(self, _release, self._descriptor)


def _describe_self() -> dict[str, str | int]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _read_holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, MAX_HOLDER_BYTES, 0))
        return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


def _release(descriptor: int) -> None:
    if descriptor in _held:
        _held.discard(descriptor)
        with contextlib.suppress(OSError):
            if fcntl is not None:
                fcntl.flock(
                    descriptor, fcntl.LOCK_UN
                )  # a forked child may still have the file open for a moment
            os.close(descriptor)


def _close_inherited() -> None:
    """Close a forked child's copies of the leases, so that a child that outlives its parent does not keep
    them.

    Closing the copies does not release the parent's leases.
    """
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
