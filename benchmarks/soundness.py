"""Try to break the proofs: planes on random boxes, and attacks on certified radii. Exits with 1 if anything gives way.

python -m benchmarks.soundness --boxes 1000000 --certificates 10000
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import holdfast as hf
from holdfast.attacks.descent import descend
from holdfast.bounding import relax
from holdfast.bounding.relax import Relaxation, planes
from holdfast.bounding.relax.base import Point, clamp, intercept
from holdfast.certify import Certify
from holdfast.problem import Problem
from holdfast.region import Ball, Family, Frames

UNIT = 2.0**-52
CHUNK = 50_000


@dataclass(frozen=True)
class Case:
    """A relaxation, and its function as torch itself computes it, on v >= start or on both sides of zero (`pole`)."""

    relaxation: Relaxation
    function: Callable[..., Tensor]
    arguments: int = 1
    start: float = -math.inf
    pole: bool = False


CASES: dict[str, Case] = {
    "relu": Case(relax.Relu(), torch.relu),
    "leaky relu": Case(relax.LeakyRelu(0.01), F.leaky_relu),
    "leaky relu 0.5": Case(relax.LeakyRelu(0.5), lambda v: F.leaky_relu(v, 0.5)),
    "abs": Case(relax.Abs(), torch.abs),
    "clip": Case(relax.Clip(-1.0, 1.0), F.hardtanh),
    "clip from below": Case(relax.Clip(low=0.5), lambda v: v.clamp_min(0.5)),
    "step": Case(relax.Step(), lambda v: (v > 0).to(v)),
    "elu": Case(relax.Elu(1.0), F.elu),
    "elu 0.5": Case(relax.Elu(0.5), lambda v: F.elu(v, 0.5)),
    "elu 1.7": Case(relax.Elu(1.7), lambda v: F.elu(v, 1.7)),
    "hardswish": Case(relax.Hardswish(), F.hardswish),
    "tanh": Case(relax.Tanh(), torch.tanh),
    "sigmoid": Case(relax.Sigmoid(), torch.sigmoid),
    "erf": Case(relax.Erf(), torch.erf),
    "softplus": Case(relax.Softplus(), F.softplus),
    "softplus 2, 1": Case(relax.Softplus(2.0, 1.0), lambda v: F.softplus(v, 2.0, 1.0)),
    "gelu": Case(relax.Gelu(), F.gelu),
    "gelu tanh": Case(relax.GeluTanh(), lambda v: F.gelu(v, approximate="tanh")),
    "silu": Case(relax.Silu(), F.silu),
    "mish": Case(relax.Mish(), F.mish),
    "exp": Case(relax.Exp(), torch.exp),
    "log": Case(relax.Log(), torch.log, start=0.0),
    "square": Case(relax.Power(2), torch.square),
    "cube": Case(relax.Power(3), lambda v: v * v * v),
    "sqrt": Case(relax.Sqrt(), torch.sqrt, start=0.0),
    "rsqrt": Case(relax.Rsqrt(), torch.rsqrt, start=0.0),
    "reciprocal": Case(relax.Reciprocal(), torch.reciprocal, pole=True),
    "product": Case(relax.Product(), torch.mul, 2),
    "sigmoid times": Case(relax.SigmoidTimes(), lambda v, z: torch.sigmoid(v) * z, 2),
    "sigmoid tanh": Case(relax.SigmoidTanh(), lambda v, z: torch.sigmoid(v) * torch.tanh(z), 2),
}


# ---------------------------------------------------------------- planes


def random_interval(count: int, case: Case, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Boxes from points and 1e-12 to 1e6 wide, around zero, saturated, and anywhere between; one in fifty may leave the domain."""
    centre = torch.randn(count, generator=generator, dtype=torch.float64) * 10.0 ** _uniform(count, -3, 1.7, generator)
    width = 10.0 ** _uniform(count, -12, 1.5, generator)
    kind = torch.rand(count, generator=generator)
    width = torch.where(kind < 0.05, 0.0, torch.where(kind < 0.08, 1e6, width))
    share = torch.rand(count, generator=generator, dtype=torch.float64)
    low, high = centre - share * width, centre + (1 - share) * width
    if case.start == 0 or case.pole:
        outside = torch.rand(count, generator=generator) < 0.02
        start = torch.where(torch.rand(count, generator=generator) < 0.1, 1e-12, 1.0) * centre.abs()
        low, high = torch.where(outside, low, start), torch.where(outside, high, start + width)
        if case.pole:
            turned = torch.rand(count, generator=generator) < 0.5
            low, high = torch.where(turned, -high, low), torch.where(turned, -low, high)
    return low, high


def random_slope(count: int, generator: torch.Generator) -> Tensor:
    size = 10.0 ** torch.where(
        torch.rand(count, generator=generator) < 0.6, _uniform(count, -2, 0.3, generator), _uniform(count, -20, 4, generator)
    )
    sign = torch.where(torch.rand(count, generator=generator) < 0.3, -1.0, 1.0)
    return torch.where(torch.rand(count, generator=generator) < 0.05, 0.0, sign * size)


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)


def points(lower: Point, upper: Point, generator: torch.Generator, aims: list[Point]) -> Iterator[Point]:
    """A grid with the ends, random points, and points around those where the extremes are thought to be."""
    for shares in itertools.product(*([k / n for k in range(n + 1)] for n in ((32,) if len(lower) == 1 else (6, 6)))):
        yield tuple(clamp(low + t * (up - low), low, up) for t, low, up in zip(shares, lower, upper, strict=True))
    for _ in range(16):
        share = [torch.rand(low.shape, generator=generator, dtype=torch.float64) for low in lower]
        yield tuple(clamp(low + t * (up - low), low, up) for t, low, up in zip(share, lower, upper, strict=True))
    for aim in aims:
        for step in (0.0, 1e-9, 1e-4, 0.1):
            nudge = [step * torch.randn(low.shape, generator=generator, dtype=torch.float64) for low in lower]
            yield tuple(clamp(v + d * (1 + v.abs()), low, up) for v, d, low, up in zip(aim, nudge, lower, upper, strict=True))


def crossings(case: Case, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """-> (count,) bool twice: boxes on which a plane crosses the function by more than four units of all that enters, and boxes inside the
    domain for which no finite plane was offered."""
    relaxation = case.relaxation
    ends = [random_interval(count, case, generator) for _ in range(case.arguments)]
    lower, upper = tuple(e[0] for e in ends), tuple(e[1] for e in ends)
    outside = (lower[0] <= 0) & (upper[0] >= 0) if case.pole else lower[0] < case.start
    own = planes(relaxation, lower, upper)
    free = tuple(random_slope(count, generator) for _ in range(case.arguments))
    below, above = intercept(relaxation, lower, upper, free)
    crossed, silent = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)
    for slope, low, high in ((own.lower, own.lower_offset, None), (own.upper, None, own.upper_offset), (free, below, above)):
        for offset, worst in ((low, -math.inf), (high, math.inf)):
            if offset is not None:
                # Outside its domain the function has no values: only an infinite plane is right there. Nowhere may one be no number.
                crossed |= offset.isnan() | (outside & (offset != worst))
                silent |= ~outside & ~offset.isfinite()
        for point in points(lower, upper, generator, relaxation.candidates(lower, upper, slope)):
            value = case.function(*point)
            terms = [s * v for s, v in zip(slope, point, strict=True)]
            # torch's own functions are right to a unit of v where they cancel.
            size = value.abs() + sum((t.abs() for t in terms), torch.zeros(())) + point[0].abs()
            gap = value - sum(terms, torch.zeros((), dtype=torch.float64))
            if low is not None:
                crossed |= low > gap + 4 * UNIT * (size + low.abs())
            if high is not None:
                crossed |= high < gap - 4 * UNIT * (size + high.abs())
    return crossed, silent


def check_planes(boxes: int, seed: int) -> int:
    broken = 0
    print(f"{'relaxation':16s} {'boxes':>9s} {'crossed':>8s} {'silent':>8s} {'seconds':>8s}", flush=True)
    for name, case in CASES.items():
        began, wrong, quiet, generator = time.monotonic(), 0, 0, torch.Generator().manual_seed(seed)
        for start in range(0, boxes, CHUNK):
            crossed, silent = crossings(case, min(CHUNK, boxes - start), generator)
            wrong, quiet = wrong + int(crossed.sum()), quiet + int(silent.sum())
        print(f"{name:16s} {boxes:9d} {wrong:8d} {quiet:8d} {time.monotonic() - began:8.1f}", flush=True)
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


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, activation="gelu"), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(x).mean(1))
        return answer


class Rational(nn.Module):
    """Divisions, roots, powers, exponentials and a softmax in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        parts = [h / (1 + h.square()), (1 + h.abs()).sqrt() - (1 + h * h).log(), h.softmax(-1), torch.exp(-h) / (2 + torch.tanh(h))]
        answer: Tensor = self.last(torch.cat(parts, 1))
        return answer


def between(*kinds: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Each layer twice, after a linear one each time."""
    return lambda: nn.Sequential(
        nn.Linear(6, 12), *(make() for make in kinds), nn.Linear(12, 12), *(make() for make in kinds), nn.Linear(12, 3)
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)), (6,)),
    "tanh": (lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 3)), (6,)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)), (1, 6, 6)),
    "softplus": (between(nn.Softplus), (6,)),
    "gelu": (between(nn.GELU), (6,)),
    "silu, mish": (between(nn.SiLU, nn.Mish), (6,)),
    "selu, hardswish": (between(nn.SELU, nn.Hardswish), (6,)),
    "layer norm": (between(lambda: nn.LayerNorm(12), lambda: nn.GELU("tanh")), (6,)),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
        (1, 6, 6),
    ),
    "rational": (Rational, (6,)),
    "attention": (Encoder, (3, 4)),
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
    print(f"{'network':16s} {'attacked':>9s} {'broken':>8s} {'':8s} {'seconds':>8s}", flush=True)
    for name in MODELS:
        began, made, wrong, turn = time.monotonic(), 0, 0, 0
        while made < each:
            count, failed = attacked(name, seed + turn)
            made, wrong, turn = made + count, wrong + failed, turn + 1
            if turn > 4 * (each // BATCH + 1):
                print(f"{name}: too few radii above zero to go on")
                return broken + wrong + 1
        print(f"{name:16s} {made:9d} {wrong:8d} {'':8s} {time.monotonic() - began:8.1f}", flush=True)
        broken += wrong
    return broken


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Try to break the planes and the certificates.")
    parser.add_argument("--boxes", type=int, default=1_000_000, help="random boxes for each relaxation")
    parser.add_argument("--certificates", type=int, default=10_000, help="attacked certificates over all networks")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    offered = {value for name in relax.__all__ if isinstance(value := getattr(relax, name), type) and issubclass(value, Relaxation)}
    missing = offered - {Relaxation} - {type(case.relaxation) for case in CASES.values()}
    assert not missing, f"{missing} would go unchecked"
    crossed = check_planes(chosen.boxes, chosen.seed)
    broken = check_certificates(chosen.certificates, chosen.seed)
    print(f"{len(CASES)} relaxations x {chosen.boxes} boxes, {crossed} crossed; {chosen.certificates} certificates, {broken} broken")
    return 1 if crossed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
