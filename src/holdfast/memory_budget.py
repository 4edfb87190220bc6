"""How much memory there is to work with, and what it looks like when there is not enough."""

import contextlib
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from holdfast.errors import BadInput

NOT_ENOUGH = r"out of memory|not enough memory|can't allocate memory|cannot allocate memory"

ENOUGH = 0.8  # Share of the memory that is allowed which may be full before anything is read.

_most: ContextVar[float] = ContextVar("most", default=math.inf)
_cap: ContextVar[int | None] = ContextVar("cap", default=None)


def free_bytes(device: torch.device) -> int:
    """What may be filled at once: most of what a GPU has left, a third of what this machine has; no more than was allowed."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(
            device
        )  # torch's own, and free
        room = (torch.cuda.mem_get_info(device)[0] + kept) * 0.6
    else:
        room = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 3
    return int(min(room, allowed_bytes()))


def available_bytes() -> int:
    """What this machine has left before it begins to swap or to kill: Linux counts what it can take back from its caches."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open("/proc/meminfo", encoding="ascii") as lines,
    ):
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def held_bytes(process: int | None = None) -> int:
    """The memory that a process of this machine fills with its own data (None: this one), without the code of libraries, which processes
    share. 0 where the system does not say."""
    return _of_status("RssAnon", process)


def _of_status(name: str, process: int | None = None) -> int:
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open(f"/proc/{process or 'self'}/status", encoding="ascii") as lines,
    ):
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
    return 0


@contextmanager
def limit_process(most: int | None) -> Iterator[None]:
    """This process holds no more than `most` bytes of its own, as long as the block runs: it plans for what is left of them now, and where
    the plan is wrong the system refuses more (on Linux), which is raised as any other lack of memory. None: no limit.

    Processes that are made of this one by a fork inherit the limit, each for itself.
    """
    if most is None:
        yield
        return
    held = held_bytes()
    if held > ENOUGH * most:
        raise BadInput(
            f"--memory {bytes_told(most)}: this process holds {bytes_told(held)} already, before any model is read. "
            f"Allow {bytes_told(int(2 * held))} at least."
        )
    before = _refuse_above(most)
    outer = _cap.set(most)
    try:
        with within(most - held):
            yield
    finally:
        _cap.reset(outer)
        if before is not None:
            _set_limit(before)


def left(most: int | None = None) -> float | None:
    """What this process may still fill of `most` bytes (None: of those that `limit_process` allows), at least a tenth; None: any amount."""
    cap = _cap.get() if most is None else most
    return None if cap is None else max(cap - held_bytes(), cap / 10)


def _refuse_above(most: int) -> tuple[int, int] | None:
    """Have the system refuse memory above `most`; returns the limits that were in force, None where there are none to be set."""
    if (
        not sys.platform.startswith("linux") or torch.cuda.is_initialized()
    ):  # a card's driver reserves addresses that it never fills
        return None
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    reserved = max(
        0, _of_status("VmData") - held_bytes()
    )  # address space without memory behind it, which the limit counts too
    wanted = most + reserved
    _set_limit((wanted if before[0] < 0 else min(wanted, before[0]), before[1]))
    return before


def _set_limit(limits: tuple[int, int]) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, limits)


def bytes_told(size: int) -> str:
    if size < 2**20:
        return f"{max(1, round(size / 2**10))} KiB"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{round(size / 2**20)} MiB"


def allowed_bytes() -> float:
    """Bytes that may be planned for; infinite where nobody said."""
    return _most.get()


def numbers(device: torch.device, usual: int, alive: int) -> int:
    """In one of so many float64 tensors that are alive at once: on a CPU no more than usual, since its caches like small ones."""
    if device.type == "cuda":
        return free_bytes(device) // (8 * alive)
    return usual if math.isinf(allowed_bytes()) else min(usual, int(allowed_bytes()) // (8 * alive))


@contextmanager
def within(most: float | None) -> Iterator[None]:
    """Whatever runs inside plans for so many bytes at once at most; a smaller limit around it stays in force. None: no limit."""
    before = _most.set(allowed_bytes() if most is None else min(most, allowed_bytes()))
    try:
        yield
    finally:
        _most.reset(before)


def is_out_of_memory(error: BaseException) -> bool:
    """Of a GPU, of a CPU (where torch raises a plain RuntimeError), or of numpy and Python."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and re.search(NOT_ENOUGH, str(error), re.IGNORECASE) is not None
