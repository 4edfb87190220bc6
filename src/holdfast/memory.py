"""How much memory there is to work with, and what it looks like when there is not enough."""

import contextlib
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

NOT_ENOUGH = r"out of memory|not enough memory|can't allocate memory|cannot allocate memory"

_most: ContextVar[float] = ContextVar("most", default=math.inf)


def free_bytes(device: torch.device) -> int:
    """What may be filled at once: most of what a graphics card has left, a third of what this machine has; no more than was allowed."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own, and free
        room = (torch.cuda.mem_get_info(device)[0] + kept) * 0.6
    else:
        room = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 3
    return int(min(room, allowed()))


def available_bytes() -> int:
    """What this machine has left before it begins to swap or to kill: Linux counts what it can take back from its caches."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def bytes_told(size: int) -> str:
    if size < 2**20:
        return f"{max(1, round(size / 2**10))} KiB"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{round(size / 2**20)} MiB"


def allowed() -> float:
    """Bytes that may be planned for; infinite where nobody said."""
    return _most.get()


def numbers(device: torch.device, usual: int, alive: int) -> int:
    """In one of so many float64 tensors that are alive at once: on a processor no more than usual, since its caches like small ones."""
    if device.type == "cuda":
        return free_bytes(device) // (8 * alive)
    return usual if math.isinf(allowed()) else min(usual, int(allowed()) // (8 * alive))


@contextmanager
def within(most: float | None) -> Iterator[None]:
    """Whatever runs inside plans for so many bytes at once at most; a smaller limit around it stays in force. None: no limit."""
    before = _most.set(allowed() if most is None else min(most, allowed()))
    try:
        yield
    finally:
        _most.reset(before)


def is_out_of_memory(error: BaseException) -> bool:
    """Of a graphics card, of a processor (where torch raises a plain RuntimeError), or of numpy and Python."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and re.search(NOT_ENOUGH, str(error), re.IGNORECASE) is not None
