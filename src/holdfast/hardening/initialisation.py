"""Weight initialisation for which intervals keep their width from layer to layer (Shi et al. 2021)."""

import math

import torch
from torch import nn

from holdfast.process_state import own_random_numbers

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def begin_afresh(module: nn.Module, seed: int) -> None:
    """Draw new weights: each layer's own initialisation, except where intervals would grow.

    A linear layer or a convolution with n inputs per output gets normal weights with standard deviation
    sqrt(2 pi) / n. Then |W| r has the same mean width after a ReLU as r. Weights of a recurrent layer are
    scaled down where |W| r exceeds 2 r (for the input) or r (for the state, which passes through them at
    every frame).
    """
    with own_random_numbers(seed, module):
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
            if isinstance(part, WEIGHTED):
                fan = part.weight[0].numel()
                nn.init.normal_(part.weight, std=math.sqrt(2 * math.pi) / fan)
            elif isinstance(part, nn.RNNBase):
                for name, weight in part.named_parameters():
                    if name.startswith("weight"):
                        most = 1.0 if name.startswith("weight_hh") else 2.0
                        with torch.no_grad():
                            weight.mul_((most / weight.abs().sum(1).mean()).clamp_max(1))
