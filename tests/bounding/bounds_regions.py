"""One region of every kind, and points of a region chosen to break bounds over it."""

import math

import torch
from bounds_zoo import values
from torch import Tensor

from holdfast.bounding.graph.graph import Graph
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Box, Domain, Drift, Frames, Patch, Region, Sparse, Words

ROWS = 2


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def full(radius: float) -> Tensor:
    return torch.full((ROWS,), radius, dtype=torch.float64)


def regions(shape: tuple[int, ...], seed: int) -> dict[str, Region]:
    """One of every kind around random centres in [-1, 1], of sizes at which the planes have to work."""
    g = seeded(seed)
    x = torch.rand((ROWS, *shape), generator=g, dtype=torch.float64) * 2 - 1
    domain, narrow = Domain.of((-1.0, 1.0)), Domain.of((-1.0, 1.125))
    mask = torch.rand((ROWS, shape[0]), generator=g) < 0.6
    low = x - torch.rand(x.shape, generator=g, dtype=torch.float64) * 0.4
    found: dict[str, Region] = {
        **{
            f"ball {p}": Ball(x, full(r), p)
            for p, r in ((1, 0.5), (1.5, 0.4), (2, 0.3), (3, 0.3), (math.inf, 0.2))
        },
        **{
            f"ball {p} in a domain": Ball(x, full(r), p, domain)
            for p, r in ((1, 1.0), (2, 0.6), (math.inf, 0.4))
        },
        **{
            f"frames {p}": Frames(x, full(r), p, domain, mask=mask)
            for p, r in ((1, 0.4), (2, 0.3), (math.inf, 0.2))
        },
        "all frames": Frames(x, full(0.1), 2),
        "point": Ball(x, full(0.0), 2, domain),
        "everywhere": Ball(x, full(math.inf), 2, domain),
        **{f"drift {p}": Drift(x, full(r), p, domain) for p, r in ((1, 0.6), (2, 0.5), (math.inf, 0.4))},
        "one unit": Sparse(x, full(1), narrow),
        "two units": Sparse(
            x, full(2), narrow, axes=(0,) if len(shape) == 3 else (1,) if len(shape) == 2 else ()
        ),
        "patch": Patch(x, full(0.3), torch.rand(x.shape, generator=g) < 0.4, domain),
        "sticker": Patch(x, full(math.inf), torch.rand(x.shape, generator=g) < 0.2, domain),
        "box": Box.between(low, low + torch.rand(x.shape, generator=g, dtype=torch.float64) * 0.5),
        "flat box": Box.between(low, torch.where(torch.rand(x.shape, generator=g) < 0.5, low, low + 0.3)),
    }
    if shape == (3, 3):
        vectors = torch.rand((7, 3), generator=g, dtype=torch.float64) * 2 - 1
        tokens = torch.randint(0, 7, (ROWS, 3), generator=g)
        found["words"] = Words.around(tokens, {t: ((t + 1) % 7, (t + 3) % 7) for t in range(6)}, vectors)
        found["one word"] = found["words"].at(1.0)  # type: ignore[attr-defined]
    return found


KINDS = list(regions((3, 3), 0))


def hostile(graph: Graph, region: Region, rows: Tensor, seed: int) -> Tensor:
    """(count, batch, *shape): samples, extreme points, and points driven downhill on each row, all in the region."""
    g, chance = seeded(seed), RandomStreams.of(range(len(region)), seed)
    points = [region.centre.double()[None], region.sample(40, chance)]
    away = torch.randn((20, *region.centre.shape), generator=g, dtype=torch.float64)
    points.append(region.vertex(away))
    x = torch.cat([region.sample(2, chance), points[2][:2]])[:, None].expand(
        4, rows.shape[1], *region.centre.shape
    )
    x = x.reshape(-1, *region.centre.shape)
    for _ in range(3):
        at = x.clone().requires_grad_(True)
        out = values(graph, at.flatten(0, 1))[graph.output].reshape(4, rows.shape[1], len(region), -1)
        (slope,) = torch.autograd.grad(torch.einsum("bro,nrbo->", rows, out), at)
        x = region.vertex(slope)
        points.append(x)
    found = torch.cat(points)
    assert region.contains(found).all()
    return found
