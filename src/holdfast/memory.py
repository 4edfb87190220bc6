"""How much memory there is to work with."""

import os

import torch


def free_bytes(device: torch.device) -> int:
    """What may be filled at once: most of what a graphics card has left, a third of what this machine has."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * 0.6)
    return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 3)
