"""Small networks whose smallest set of changed units is found by trying everything."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from holdfast.bounding.graph.graph import build
from holdfast.hamming.layer_chain import Chain, chain_of
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Domain, Sparse
from holdfast.result import Key, Record
from holdfast.solver import solve

UNIT = Domain.of((0, 1))


def random_network(seed: int, shape: Sequence[int], classes: int = 3, sharp: float = 3.0) -> nn.Module:
    """Far from linear, so that the best pair is often not the two best singles."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.ReLU(), nn.Linear(16, classes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator) * (sharp if parameter.dim() > 1 else 1.0)
            )
    return model.eval()


def inputs(seed: int, count: int, shape: Sequence[int]) -> Tensor:
    """Grey, with black and white mixed in: a number at the end of the domain has one way to go."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand((count, *shape), generator=generator)
    return torch.where(x < 0.2, 0.0, torch.where(x > 0.9, 1.0, x))


def everything(centre: Tensor, values: Tensor) -> Tensor:
    """(*shape), (k,) -> (m, *shape): every number left as it is or at one of the values."""
    options = [torch.cat([number[None], values]) for number in centre.flatten()]
    return torch.cartesian_prod(*options).reshape(-1, *centre.shape)


def smallest(model: nn.Module, region: Sparse, label: Tensor, values: Tensor) -> list[float]:
    """For each row the fewest changed units that break the class, when changed numbers take these values; infinite if none do."""
    answers = []
    for row in range(len(region)):
        points = everything(region.centre[row], values)
        alone = Sparse(
            region.centre[row : row + 1], region.radius[row : row + 1], region.domain, region.axes,
            None if region.free is None else region.free[row : row + 1],
        )  # fmt: skip
        with torch.no_grad():
            z = model(points)
        others = z.clone()
        others[:, label[row]] = -math.inf
        wrong = z[:, label[row]] <= others.amax(1)
        away = alone.distance(points[:, None]).squeeze(1)
        answers.append(float(torch.where(wrong, away, math.inf).min()))
    return answers


def counting(network: Network, region: Sparse, label: Tensor) -> Problem:
    return Problem(network, region, Robustness(label), "radius", tuple(Key(i) for i in range(len(region))))


def pixels(
    x: Tensor, *, axes: tuple[int, ...] = (), free: Tensor | None = None, levels: Tensor | None = None
) -> Sparse:
    return Sparse(x, torch.zeros(len(x)), UNIT, axes, free, levels)


def changed(records: Sequence[Record]) -> list[float]:
    """How many units the witness changes: one more than the upper end."""
    return [r.bracket.upper.value + 1 for r in records]


def run(problem: Problem, method: object, **options: object) -> list[Record]:
    return solve([problem], [method], **options)  # type: ignore[list-item, arg-type]


def randomised(model: nn.Module, seed: int, scale: float = 1.0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            fan = parameter[0].numel() if parameter.dim() > 1 else 1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale / math.sqrt(fan))
    return model.eval()


def small_cnn(
    seed: int, channels: int = 1, side: int = 4, function: Callable[[], nn.Module] = nn.ReLU
) -> nn.Module:
    return randomised(
        nn.Sequential(
            nn.Conv2d(channels, 3, 3, padding=1), function(), nn.Conv2d(3, 4, 2, stride=2), function(), nn.Flatten(),
            nn.Linear(4 * (side // 2) ** 2, 3),
        ),
        seed,
        2.0,
    )  # fmt: skip


def deep_cnn(seed: int) -> nn.Module:
    """Two layers behind the second, composed maps between functions."""
    return randomised(
        nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
            nn.Linear(12, 7), nn.LeakyReLU(0.1), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3),
        ),
        seed,
        2.0,
    )  # fmt: skip


def smooth(seed: int) -> nn.Module:
    layers = [
        nn.Linear(6, 8),
        nn.Sigmoid(),
        nn.Linear(8, 8),
        nn.SiLU(),
        nn.Linear(8, 5),
        nn.Tanh(),
        nn.Linear(5, 3),
    ]
    return randomised(nn.Sequential(*layers), seed, 3.0)


def chain_for(model: nn.Module, x: Tensor, axes: tuple[int, ...]) -> tuple[Network, Chain]:
    network = Network.from_torch(model, domain=(0, 1))
    apart = [axis for axis in range(x.dim() - 1) if axis not in axes]
    elements = (
        torch.arange(x[0].numel())
        .reshape(x.shape[1:])
        .permute(*apart, *axes)
        .reshape(-1, math.prod(x.shape[1 + a] for a in axes))
    )
    chain = chain_of(build(network, x), elements)
    assert chain is not None
    return network, chain
