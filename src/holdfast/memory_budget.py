"""How much memory a computation may use, and how a lack of memory is recognised."""

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

OUT_OF_MEMORY_TEXT = r"out of memory|not enough memory|can't allocate memory|cannot allocate memory"

MAX_HELD_SHARE = (
    0.8  # Share of the allowed memory that the process may hold before a model is read; chosen by hand.
)

# An input with at least this many numbers is large: one query of its network takes about as long as thousands of
# queries of a small network. Chosen by hand: above 64 x 64 pixels in colour, below 96 x 96.
LARGE_INPUT_NUMBERS = 2**14
# Large inputs in one call of a model, if memory allows; chosen by hand after timing AlexNet's forward pass with 1, 4
# and 8 inputs.
LARGE_INPUTS_PER_CALL = 4
# Bytes of activations planned for each number of a large input: 64 channels in float32, as VGG's first layers have.
ACTIVATION_BYTES_PER_NUMBER = 4 * 64
PLANNED_ACTIVATION_BYTES = (
    2**30
)  # Memory for the activations of one call where the user sets no limit; chosen by hand.

_most: ContextVar[float] = ContextVar("most", default=math.inf)
_cap: ContextVar[int | None] = ContextVar("cap", default=None)


def free_bytes(device: torch.device) -> int:
    """Bytes to plan for: 60 % of a GPU's free memory, a third of the free RAM, at most `allowed_bytes`."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = (torch.cuda.mem_get_info(device)[0] + cached) * 0.6
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 3
    return int(min(free, allowed_bytes()))


def available_bytes() -> int:
    """RAM that is available without swapping; on Linux this includes reclaimable caches."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open("/proc/meminfo", encoding="ascii") as lines,
    ):
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def held_bytes(process: int | None = None) -> int:
    """Anonymous memory of a process (default: this one), without shared libraries; 0 if the system does not
    report it.
    """
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
    """Limit the memory of this process to `most` bytes while the block runs (None: no limit).

    The process plans for what is left of them. If the plan is wrong, the system refuses the allocation (on
    Linux), which is raised like any other lack of memory. Each forked process inherits the limit for itself.
    """
    if most is None:
        yield
        return
    held = held_bytes()
    if held > MAX_HELD_SHARE * most:
        raise BadInput(
            f"--memory {format_bytes(most)}: this process holds {format_bytes(held)} already, before any model "
            "is read. "
            f"Allow {format_bytes(int(2 * held))} at least."
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


def remaining_bytes(most: int | None = None) -> float | None:
    """Bytes that remain of `most` (default: the limit of `limit_process`), at least a tenth of it; None: no
    limit.
    """
    cap = _cap.get() if most is None else most
    return None if cap is None else max(cap - held_bytes(), cap / 10)


def _refuse_above(most: int) -> tuple[int, int] | None:
    """Make the system refuse memory above `most`; return the previous limits, or None if none can be set."""
    # A GPU driver reserves address space that it never uses, so a limit would refuse valid allocations.
    if not sys.platform.startswith("linux") or torch.cuda.is_initialized():
        return None
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    # Address space without memory behind it, which the limit counts too.
    reserved = max(0, _of_status("VmData") - held_bytes())
    wanted = most + reserved
    _set_limit((wanted if before[0] < 0 else min(wanted, before[0]), before[1]))
    return before


def _set_limit(limits: tuple[int, int]) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, limits)


def format_bytes(size: int) -> str:
    if size < 2**20:
        return f"{max(1, round(size / 2**10))} KiB"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{round(size / 2**20)} MiB"


def allowed_bytes() -> float:
    """Bytes that a computation may plan for (default: infinite)."""
    return _most.get()


def elements_per_tensor(device: torch.device, usual: int, alive: int) -> int:
    """Elements for each of `alive` float64 tensors that exist at once; on a CPU at most `usual`, which suits
    its caches.
    """
    if device.type == "cuda":
        return free_bytes(device) // (8 * alive)
    return usual if math.isinf(allowed_bytes()) else min(usual, int(allowed_bytes()) // (8 * alive))


def rows_per_call(row: int, numbers: int) -> int:
    """Rows of `row` numbers each in one call of a model: as many as `numbers` hold; of large inputs, whose
    activations decide, up to LARGE_INPUTS_PER_CALL as memory allows.
    """
    usual = max(1, numbers // max(1, row))
    if row < LARGE_INPUT_NUMBERS:
        return usual
    held = int(min(allowed_bytes(), PLANNED_ACTIVATION_BYTES)) // (ACTIVATION_BYTES_PER_NUMBER * row)
    return max(usual, min(LARGE_INPUTS_PER_CALL, held))


@contextmanager
def within(most: float | None) -> Iterator[None]:
    """Make everything inside plan for at most `most` bytes; a smaller outer limit stays in force. None: no
    limit.
    """
    before = _most.set(allowed_bytes() if most is None else min(most, allowed_bytes()))
    try:
        yield
    finally:
        _most.reset(before)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error reports a lack of memory: of a GPU, of a CPU (torch raises a plain RuntimeError),
    numpy or Python.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return (
        isinstance(error, RuntimeError)
        and re.search(OUT_OF_MEMORY_TEXT, str(error), re.IGNORECASE) is not None
    )
