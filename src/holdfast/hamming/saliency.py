"""Which units matter: how far the margin can fall when one of them changes (DeepTRE's sensitivity of single units, as a map)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.hamming.choices import choices, judged, put
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Domain, Sparse, Words
from holdfast.region.units import Unit, unit_axes
from holdfast.result import Key


def saliency(
    net: Network,
    x: Tensor,
    y: Tensor | Sequence[int] | None = None,
    *,
    domain: tuple[float, float] | Domain | None = None,
    unit: Unit | None = None,
    free: Tensor | None = None,
    values: Sequence[float] | Tensor | None = None,
    levels: int = 2,
) -> Tensor:
    """(batch, *shape) -> (batch, *unit shape): how far changing each unit alone can lower the margin of class y; NaN for locked units.

    y       (batch,) classes; None: what the network says.
    domain  the values a unit may take; None: the network's.
    unit    what changes as one: "pixel", "frame" or "number"; None: the pixels of an image, else numbers.
    free    bool, broadcast over (batch, *unit shape): units that may change; None: all.
    values  those a changed number may take, all of which are tried; None: `levels` of them evenly over the domain with both ends.

    Needs nothing but answers. Zero: none of the values tried lowers the margin. The map is an estimate: between them nothing is known.
    """
    centre = x.to(net.device, net.dtype)
    label = net(centre).argmax(-1) if y is None else torch.as_tensor(y, device=net.device)
    bounds = net.domain if domain is None else Domain.of(domain)
    axes = unit_axes(tuple(x.shape[1:]), unit)
    tried = None if values is None else torch.as_tensor(list(values), dtype=torch.float64, device=net.device)
    region = Sparse(centre, torch.ones(len(centre)), bounds, axes=axes, free=free, levels=tried)
    problem = Problem(net, region, Robustness(label), "radius", tuple(Key(i) for i in range(len(region))))
    problem.check()
    return sensitivity(problem, levels).reshape(len(region), *region.unit_shape)


def sensitivity(problem: Problem, levels: int = 2) -> Tensor:
    """-> (batch, units): how far the score can fall when one unit of a Sparse region or one word changes; NaN where none may."""
    region = problem.region
    if not isinstance(region, Sparse | Words) or levels < 2:
        raise BadInput("sensitivities are of single units or words at two or more values: give a Sparse or a Words region.")
    table = choices(region, levels, torch.Generator().manual_seed(0), every_level=True)
    every = torch.arange(len(problem), device=table.centre.device)
    at_centre, _ = judged(problem, every, problem.network(region.centre))
    least = at_centre[:, None].expand(-1, table.units).flatten()
    row, unit, value = table.open.nonzero(as_tuple=True)
    for r, u, v in zip(*(part.split(table.at_once) for part in (row, unit, value)), strict=True):
        if len(r):
            score, _ = judged(problem, r, table.ask(problem, put(table.centre[r], u, table.table[r, u, v])))
            least = least.scatter_reduce(0, r * table.units + u, score, "amin")
    fall = at_centre[:, None] - least.reshape(len(problem), -1)
    return torch.where(table.open.any(-1), fall, torch.nan)
