"""New weights from which intervals do not grow from layer to layer (Shi et al. 2021)."""

import math

import torch
from torch import nn

from holdfast.process_state import own_random_numbers

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def begin_afresh(module: nn.Module, seed: int) -> None:
    """Every layer's own way of drawing weights, but for those behind which intervals would widen: a linear layer or a convolution with n
    inputs for each output has weights of width sqrt(2 pi) / n, so that |W| r is as wide on average, behind a ReLU, as r. The weights
    of a recurrent layer are made smaller where |W| r is wider than 2 r, of the input, or than r, of the state, which goes through them at
    every frame."""
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
