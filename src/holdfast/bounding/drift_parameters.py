"""Reformulation of a problem about drifting windows in terms of the drift offsets.

A drift adds one offset per feature to every time step, so the problem has as many parameters as features: few
enough to split, and small enough for quadratic models. The centre of the window becomes an unperturbed input:

    z = (offsets, centre)  ->  network(centre + offsets in every time step).

Statement. The minimum over the offsets of this graph, less the charge for rounded windows, is at most that
over the windows (`region.Drift`).

Assumption: windows are rounded to the type of the inputs, by at most `Drift` allows.

Reference: none; the statement is a substitution of variables.
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
    """The reformulated network: (n, features + frames * features) -> (n, outputs)."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model = model
        self.shape = shape

    def forward(self, z: Tensor) -> Tensor:
        features = math.prod(self.shape[1:])
        centre = z[:, features:].reshape(-1, self.shape[0], features)
        answer: Tensor = self.model((centre + z[:, :features].unsqueeze(1)).reshape(-1, *self.shape))
        return answer


def reformulate_in_offsets(problem: Problem) -> Problem:
    """The same problem over the offsets, where the region is a drift in the maximum norm.

    Other problems are returned unchanged. The domain is dropped: a bound over the larger region holds within
    the domain too.
    """
    region = problem.region
    if not isinstance(region, Drift) or not math.isinf(region.norm) or not problem.network.differentiable:
        return problem
    scales, centre = region.scales(), region.centre.flatten(1)
    shares = torch.cat([scales, torch.zeros(centre.shape, dtype=scales.dtype, device=scales.device)], dim=1)
    start = torch.cat([torch.zeros_like(scales).to(centre), centre], dim=1)
    offsets = Features(start, region.radius, math.inf, Domain.of(None), shares=shares)
    return replace(problem, network=_of_offsets(problem.network, region.shape), region=offsets)


def _of_offsets(net: Network, shape: tuple[int, ...]) -> Network:
    """The reformulated network, cached by network and window shape, so that its graph is cached as well."""
    known = _drifting.setdefault(net, {})
    if shape not in known:
        whole = net.around(Drifting(net.module, shape))
        whole.name = f"{net.name} of drifting windows"
        whole.shape = None
        whole.domain = Domain.of(None)
        known[shape] = whole
    return known[shape]
