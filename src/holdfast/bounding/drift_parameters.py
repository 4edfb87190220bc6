"""A question about drifting windows as one about their offsets, of which there are few: so parts of them can be cut, and models stay small.

The window travels with its offsets as a number that does not move: z = (offsets, centre) -> network(centre + offsets in every frame).
"""

import math
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.region import Domain, Drift, Features

_drifting: "WeakKeyDictionary[Network, dict[tuple[int, ...], Network]]" = WeakKeyDictionary()


class Drifting(nn.Module):
    """(n, features + frames * features) -> (n, outputs)."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model = model
        self.shape = shape

    def forward(self, z: Tensor) -> Tensor:
        features = math.prod(self.shape[1:])
        centre = z[:, features:].reshape(-1, self.shape[0], features)
        answer: Tensor = self.model((centre + z[:, :features].unsqueeze(1)).reshape(-1, *self.shape))
        return answer


def in_offsets(problem: Problem) -> Problem:
    """The same question where the region is a drift in the maximum norm, without its domain: what is proved there holds inside it too.
    Any other question is left as it is."""
    region = problem.region
    if not isinstance(region, Drift) or not math.isinf(region.p) or not problem.network.differentiable:
        return problem
    scales, centre = region.scales(), region.centre.flatten(1)
    shares = torch.cat([scales, torch.zeros(centre.shape, dtype=scales.dtype, device=scales.device)], dim=1)
    start = torch.cat([torch.zeros_like(scales).to(centre), centre], dim=1)
    offsets = Features(start, region.radius, math.inf, Domain.of(None), shares=shares)
    return replace(problem, network=_of_offsets(problem.network, region.shape), region=offsets)


def _of_offsets(net: Network, shape: tuple[int, ...]) -> Network:
    """Made once for a network and a shape, so that its graph is too."""
    known = _drifting.setdefault(net, {})
    if shape not in known:
        whole = net.around(Drifting(net.module, shape))
        whole.name, whole.shape, whole.domain = f"{net.name} of drifting windows", None, Domain.of(None)
        known[shape] = whole
    return known[shape]
