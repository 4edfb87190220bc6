"""Perturbations of sound in decibels below the peak of each recording."""

import math

import torch
from torch import Tensor

from holdfast.api.arguments import show
from holdfast.errors import BadInput


def decibels(x: Tensor, level: float) -> Tensor:
    """Return the radius that lies `level` decibels from the peak of each recording, max |x| 10^(level / 20).

    Args:
        x: (batch, *shape), waveforms. Their scale does not matter.
        level: in decibels relative to the peak: -80 is a perturbation of a ten-thousandth of it.

    Returns: (batch,) float64, a radius in the maximum norm for each recording, for hf.Ball and other regions.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2 or not x.numel():
        raise BadInput(
            f"x: expected waveforms as a floating-point tensor (batch, samples), got {show(x)}; a single "
            "waveform becomes a batch by x[None]."
        )
    if isinstance(level, bool) or not isinstance(level, int | float) or not math.isfinite(level):
        raise BadInput(f"level: expected decibels relative to the peak, such as -80, got {show(level)}.")
    peak = x.detach().double().abs().flatten(1).amax(1)
    if not bool((peak.isfinite() & (peak > 0)).all()):
        wrong = int((~(peak.isfinite() & (peak > 0))).nonzero()[0])
        raise BadInput(
            f"x: recording {wrong} is silent or has values that are not numbers, so it has no peak to which "
            "decibels refer; leave it out, or give a radius as a number."
        )
    return torch.as_tensor(peak * 10 ** (level / 20))
