"""Try to break the proofs: planes on random boxes, and attacks on certified radii. Exits with 1 if anything gives way.

python -m benchmarks.soundness --boxes 1000000 --certificates 10000
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.attacks.descent import descend
from holdfast.bounds.relax import Elu, LeakyRelu, Product, Relaxation, Relu, Sigmoid, SigmoidTanh, SigmoidTimes, Tanh, planes
from holdfast.bounds.relax.base import Point, clamp, intercept
from holdfast.certify import Certify
from holdfast.problem import Problem
from holdfast.region import Ball, Family, Frames

UNIT = 2.0**-52
CHUNK = 50_000

RELAXATIONS: dict[str, tuple[Relaxation, int]] = {
    "relu": (Relu(), 1),
    "leaky relu": (LeakyRelu(0.01), 1),
    "leaky relu 0.5": (LeakyRelu(0.5), 1),
    "elu": (Elu(1.0), 1),
    "elu 0.5": (Elu(0.5), 1),
    "tanh": (Tanh(), 1),
    "sigmoid": (Sigmoid(), 1),
    "product": (Product(), 2),
    "sigmoid times": (SigmoidTimes(), 2),
    "sigmoid tanh": (SigmoidTanh(), 2),
}


# ---------------------------------------------------------------- planes


def random_interval(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Boxes from points and 1e-12 to 1e6 wide, around zero, saturated, and anywhere between."""
    centre = torch.randn(count, generator=generator, dtype=torch.float64) * 10.0 ** _uniform(count, -3, 1.7, generator)
    width = 10.0 ** _uniform(count, -12, 1.5, generator)
    kind = torch.rand(count, generator=generator)
    width = torch.where(kind < 0.05, 0.0, torch.where(kind < 0.08, 1e6, width))
    share = torch.rand(count, generator=generator, dtype=torch.float64)
    return centre - share * width, centre + (1 - share) * width


def random_slope(count: int, generator: torch.Generator) -> Tensor:
    size = 10.0 ** torch.where(
        torch.rand(count, generator=generator) < 0.6, _uniform(count, -2, 0.3, generator), _uniform(count, -20, 4, generator)
    )
    sign = torch.where(torch.rand(count, generator=generator) < 0.3, -1.0, 1.0)
    return torch.where(torch.rand(count, generator=generator) < 0.05, 0.0, sign * size)


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)


def points(lower: Point, upper: Point, generator: torch.Generator, aims: list[Point]) -> Iterator[Point]:
    """Corners, random points, and points around those where the extremes are thought to be."""
    for ends in itertools.product((0, 1), repeat=len(lower)):
        yield tuple((low, up)[e] for e, low, up in zip(ends, lower, upper, strict=True))
    for _ in range(24):
        share = [torch.rand(low.shape, generator=generator, dtype=torch.float64) for low in lower]
        yield tuple(clamp(low + t * (up - low), low, up) for t, low, up in zip(share, lower, upper, strict=True))
    for aim in aims:
        for step in (0.0, 1e-9, 1e-4, 0.1):
            nudge = [step * torch.randn(low.shape, generator=generator, dtype=torch.float64) for low in lower]
            yield tuple(clamp(v + d * (1 + v.abs()), low, up) for v, d, low, up in zip(aim, nudge, lower, upper, strict=True))


def crossings(relaxation: Relaxation, arguments: int, count: int, generator: torch.Generator) -> Tensor:
    """-> (count,) bool: boxes on which a plane crosses the function by more than four units of all that enters."""
    ends = [random_interval(count, generator) for _ in range(arguments)]
    lower, upper = tuple(e[0] for e in ends), tuple(e[1] for e in ends)
    own = planes(relaxation, lower, upper)
    free = tuple(random_slope(count, generator) for _ in range(arguments))
    below, above = intercept(relaxation, lower, upper, free)
    crossed = torch.zeros(count, dtype=torch.bool)
    for slope, low, high in ((own.lower, own.lower_offset, None), (own.upper, None, own.upper_offset), (free, below, above)):
        for point in points(lower, upper, generator, relaxation.candidates(lower, upper, slope)):
            value = relaxation.function(*point)
            terms = [s * v for s, v in zip(slope, point, strict=True)]
            size = value.abs() + sum((t.abs() for t in terms), torch.zeros(()))
            gap = value - sum(terms, torch.zeros((), dtype=torch.float64))
            if low is not None:
                crossed |= ~(low <= gap + 4 * UNIT * (size + low.abs()))
            if high is not None:
                crossed |= ~(high >= gap - 4 * UNIT * (size + high.abs()))
    return crossed


def check_planes(boxes: int, seed: int) -> int:
    broken = 0
    each = math.ceil(boxes / len(RELAXATIONS))
    for name, (relaxation, arguments) in RELAXATIONS.items():
        began, wrong, generator = time.monotonic(), 0, torch.Generator().manual_seed(seed)
        for start in range(0, each, CHUNK):
            wrong += int(crossings(relaxation, arguments, min(CHUNK, each - start), generator).sum())
        print(f"planes        {name:16s} {each:9d} boxes         {wrong:6d} crossed  {time.monotonic() - began:7.1f} s", flush=True)
        broken += wrong
    return broken


# ---------------------------------------------------------------- certificates


class Reader(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(layer.hidden_size, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(x)[0][:, -1])
        return answer


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)), (6,)),
    "tanh": (lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 3)), (6,)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)), (1, 6, 6)),
    "rnn": (lambda: Reader(nn.RNN(3, 8, batch_first=True)), (4, 3)),
    "lstm": (lambda: Reader(nn.LSTM(3, 8, batch_first=True)), (4, 3)),
    "gru": (lambda: Reader(nn.GRU(3, 8, batch_first=True)), (4, 3)),
}
BATCH = 32


def attacked(name: str, seed: int) -> tuple[int, int]:
    """-> certificates, broken: a random network, certified around random inputs in one norm, attacked in float64 at those radii."""
    make, shape = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 2 * float(torch.rand((), generator=generator)))
    net = hf.Network.from_torch(model, domain=(0, 1))
    x = torch.rand((BATCH, *shape), generator=generator, dtype=torch.float64)
    y = net(x).argmax(-1)
    p = (1, 2, math.inf, 1.5)[seed % 4]
    zero = torch.zeros(BATCH, dtype=torch.float64)
    family: Family = Ball(x, zero, p, net.domain)
    if seed % 3 == 0:
        family = Frames(x, zero, p, net.domain, mask=torch.rand((BATCH, shape[0]), generator=generator) < 0.6)
    problem = Problem(net, family, hf.Robustness(y), "radius", tuple(hf.Key(i) for i in range(BATCH)))
    radius = torch.tensor([r.bracket.lower.value for r in hf.solve([problem], [Certify(rounds=3)])], dtype=torch.float64)
    at = replace(problem, region=family.at(radius), goal="worst")
    start = torch.cat([at.region.sample(4, generator), x[None]])
    found, scores = descend(at, start, 20)
    corners = at.region.sample(64, generator)
    lowest = torch.minimum(scores.amin(0), at.score(corners).amin(0))
    assert bool(at.region.contains(found).all())
    return int((radius > 0).sum()), int((~(lowest > 0) & (radius > 0)).sum())


def check_certificates(certificates: int, seed: int) -> int:
    broken = 0
    each = math.ceil(certificates / len(MODELS))
    for name in MODELS:
        began, made, wrong, turn = time.monotonic(), 0, 0, 0
        while made < each:
            count, failed = attacked(name, seed + turn)
            made, wrong, turn = made + count, wrong + failed, turn + 1
            if turn > 4 * (each // BATCH + 1):
                print(f"certificates  {name}: too few radii above zero to go on")
                return broken + wrong + 1
        print(f"certificates  {name:16s} {made:9d} attacked      {wrong:6d} broken   {time.monotonic() - began:7.1f} s", flush=True)
        broken += wrong
    return broken


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Try to break the planes and the certificates.")
    parser.add_argument("--boxes", type=int, default=1_000_000, help="random boxes over all relaxations")
    parser.add_argument("--certificates", type=int, default=10_000, help="attacked certificates over all networks")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    crossed = check_planes(chosen.boxes, chosen.seed)
    broken = check_certificates(chosen.certificates, chosen.seed)
    print(f"{chosen.boxes} boxes, {crossed} crossed; {chosen.certificates} certificates, {broken} broken")
    return 1 if crossed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
