"""How much memory there is to work with."""

import contextlib
import os

import torch


def free_bytes(device: torch.device) -> int:
    """What may be filled at once: most of what a graphics card has left, a third of what this machine has."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * 0.6)
    return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 3)


def available_bytes() -> int:
    """What this machine has left before it begins to swap or to kill: Linux counts what it can take back from its caches."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def bytes_told(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{max(1, round(size / 2**20))} MiB"
