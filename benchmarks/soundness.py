"""Try to refute the proofs: relaxations on random boxes, attacks on certified radii, random networks.

The random networks enter by every entry point, and the user's own module is attacked. Exits with 1 if
anything is refuted.

python -m benchmarks.soundness --boxes 1000000 --certificates 10000 --networks 20
"""

import argparse
import contextlib
import io
import itertools
import logging
import math
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

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
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Family, Frames

UNIT = 2.0**-52
CHUNK = 50_000


@dataclass(frozen=True)
class Case:
    """A relaxation, and its function as torch computes it, on v >= start or on both sides of a pole at zero
    (`pole`).
    """

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
    "sign": Case(relax.Sign(), torch.sign),
    "floor": Case(relax.Floor(), torch.floor),
    "ceil": Case(relax.Ceil(), torch.ceil),
    "round": Case(relax.Round(), torch.round),
    "sine": Case(relax.Sine(), torch.sin),
    "cosine": Case(relax.Cosine(), torch.cos),
    "atan": Case(relax.Atan(), torch.atan),
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
    "relu difference": Case(relax.ReluDifference(), lambda v, z: torch.relu(v + z) - torch.relu(v), 2),
}


# ---------------------------------------------------------------- linear relaxations


def random_interval(count: int, case: Case, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random pre-activation boxes: points, or 1e-12 to 1e6 wide, near zero, saturated, or between.

    One in fifty may leave the domain.
    """
    centre = torch.randn(count, generator=generator, dtype=torch.float64) * 10.0 ** _uniform(
        count, -3, 1.7, generator
    )
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
        torch.rand(count, generator=generator) < 0.6,
        _uniform(count, -2, 0.3, generator),
        _uniform(count, -20, 4, generator),
    )
    sign = torch.where(torch.rand(count, generator=generator) < 0.3, -1.0, 1.0)
    return torch.where(torch.rand(count, generator=generator) < 0.05, 0.0, sign * size)


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)


def points(lower: Point, upper: Point, generator: torch.Generator, aims: list[Point]) -> Iterator[Point]:
    """A grid with both endpoints, random points, and points around the expected extremes."""
    for shares in itertools.product(
        *([k / n for k in range(n + 1)] for n in ((32,) if len(lower) == 1 else (6, 6)))
    ):
        yield tuple(
            clamp(low + t * (up - low), low, up) for t, low, up in zip(shares, lower, upper, strict=True)
        )
    for _ in range(16):
        share = [torch.rand(low.shape, generator=generator, dtype=torch.float64) for low in lower]
        yield tuple(
            clamp(low + t * (up - low), low, up) for t, low, up in zip(share, lower, upper, strict=True)
        )
    for aim in aims:
        for step in (0.0, 1e-9, 1e-4, 0.1):
            nudge = [step * torch.randn(low.shape, generator=generator, dtype=torch.float64) for low in lower]
            yield tuple(
                clamp(v + d * (1 + v.abs()), low, up)
                for v, d, low, up in zip(aim, nudge, lower, upper, strict=True)
            )


def crossings(case: Case, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Boxes where a relaxation fails.

    Returns:
        (count,) bool twice: a linear bound crosses the function by more than four units in the last place of
        everything that enters; no finite bound exists although the box is inside the domain.
    """
    relaxation = case.relaxation
    ends = [random_interval(count, case, generator) for _ in range(case.arguments)]
    lower, upper = tuple(e[0] for e in ends), tuple(e[1] for e in ends)
    outside = (lower[0] <= 0) & (upper[0] >= 0) if case.pole else lower[0] < case.start
    own = planes(relaxation, lower, upper)
    free = tuple(random_slope(count, generator) for _ in range(case.arguments))
    below, above = intercept(relaxation, lower, upper, free)
    crossed, silent = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)
    for slope, low, high in (
        (own.lower, own.lower_offset, None),
        (own.upper, None, own.upper_offset),
        (free, below, above),
    ):
        for offset, worst in ((low, -math.inf), (high, math.inf)):
            if offset is not None:
                # Outside its domain the function is undefined, so only an infinite bound is right. NaN is
                # never right.
                crossed |= offset.isnan() | (outside & (offset != worst))
                silent |= ~outside & ~offset.isfinite()
        for point in points(lower, upper, generator, relaxation.candidates(lower, upper, slope)):
            value = case.function(*point)
            terms = [s * v for s, v in zip(slope, point, strict=True)]
            # torch's own functions are accurate to a unit in the last place of v where they cancel.
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
        self.layer, self.head = (
            nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, activation="gelu"),
            nn.Linear(4, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(x).mean(1))
        return answer


class Rational(nn.Module):
    """A network with divisions, roots, powers, exponentials and a softmax in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        parts = [
            h / (1 + h.square()),
            (1 + h.abs()).sqrt() - (1 + h * h).log(),
            h.softmax(-1),
            torch.exp(-h) / (2 + torch.tanh(h)),
        ]
        answer: Tensor = self.last(torch.cat(parts, 1))
        return answer


def between(*kinds: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A factory of networks with each layer twice, each time after a linear layer."""
    return lambda: nn.Sequential(
        nn.Linear(6, 12),
        *(make() for make in kinds),
        nn.Linear(12, 12),
        *(make() for make in kinds),
        nn.Linear(12, 3),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (
        lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)),
        (6,),
    ),
    "tanh": (
        lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 3)),
        (6,),
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
        (1, 6, 6),
    ),
    "softplus": (between(nn.Softplus), (6,)),
    "gelu": (between(nn.GELU), (6,)),
    "silu, mish": (between(nn.SiLU, nn.Mish), (6,)),
    "selu, hardswish": (between(nn.SELU, nn.Hardswish), (6,)),
    "layer norm": (between(lambda: nn.LayerNorm(12), lambda: nn.GELU("tanh")), (6,)),
    "group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
        ),
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
    """Certify a random network around random inputs in one norm, attack it in float64 at those radii.

    Returns the number of certificates, and how many of them an attack refuted.
    """
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
    problem = Problem(net, family, hf.Robustness(y), "radius", tuple(hf.result.Key(i) for i in range(BATCH)))
    radius = torch.tensor(
        [r.bracket.lower.value for r in hf.solve([problem], [Certify(rounds=3)])], dtype=torch.float64
    )
    at = replace(problem, region=family.at(radius), goal="worst")
    chance = RandomStreams.of(at.keys, seed)
    start = torch.cat([at.region.sample(4, chance), x[None]])
    found, scores = descend(at, start, 20)
    corners = at.region.sample(64, chance)
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
                print(f"{name}: too few certified radii above zero to continue")
                return broken + wrong + 1
        print(f"{name:16s} {made:9d} {wrong:8d} {'':8s} {time.monotonic() - began:8.1f}", flush=True)
        broken += wrong
    return broken


# ---------------------------------------------------------------- every entry point


class Residual(nn.Module):
    """x + f(x); the activation after the sum may be in place."""

    def __init__(self, inner: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, last

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(self.inner(x) + x)
        return answer


class Viewed(nn.Module):
    """Splits, permutes and concatenates its input, with in-place activations on views."""

    def __init__(self, size: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.mix, self.activation = nn.Linear(size, size), activation()

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.mix(x).chunk(2, -1)
        turned = torch.stack([second, first], 1).transpose(1, 2).flatten(1)
        answer: Tensor = F.leaky_relu(self.activation(turned), 0.2, inplace=True)
        return answer


def smooth_or_not(chance: random.Random) -> Callable[[], nn.Module]:
    """A random activation, at random in place where it supports that."""
    there = chance.random() < 0.5
    choices: list[Callable[[], nn.Module]] = [
        lambda: nn.ReLU(inplace=there),
        lambda: nn.LeakyReLU(0.1, inplace=there),
        lambda: nn.ELU(inplace=there),
        nn.Tanh,
        nn.Sigmoid,
        nn.GELU,
        lambda: nn.SiLU(inplace=there),
        nn.Softplus,
        lambda: nn.Hardtanh(inplace=there),
        lambda: nn.ReLU6(inplace=there),
        lambda: nn.Hardswish(inplace=there),
        lambda: nn.Mish(inplace=there),
    ]
    return chance.choice(choices)


def dense(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    sizes = [chance.randint(2, 6), *(chance.randint(4, 14) for _ in range(chance.randint(1, 3)))]
    layers = [
        part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), smooth_or_not(chance)())
    ]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 3)), (sizes[0],)


def convolution(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    channels, activation = chance.randint(2, 4), smooth_or_not(chance)
    pool = chance.choice([nn.AvgPool2d(2), nn.MaxPool2d(2), nn.Identity()])
    size = channels * (4 if isinstance(pool, nn.Identity) else 2) ** 2
    return nn.Sequential(nn.Conv2d(1, channels, 3), activation(), pool, nn.Flatten(), nn.Linear(size, 3)), (
        1,
        6,
        6,
    )


def residual(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    size, activation = chance.randint(4, 8), smooth_or_not(chance)
    blocks = [
        Residual(nn.Sequential(nn.Linear(size, size), activation(), nn.Linear(size, size)), activation())
        for _ in range(2)
    ]
    return nn.Sequential(nn.Linear(4, size), *blocks, nn.Linear(size, 3)), (4,)


def recurrent(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    layer = chance.choice([nn.RNN, nn.LSTM, nn.GRU])(2, chance.randint(3, 6), batch_first=True)
    return Reader(layer), (chance.randint(2, 4), 2)


def in_place(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    size, activation = 2 * chance.randint(2, 4), smooth_or_not(chance)
    return nn.Sequential(
        nn.Linear(4, size), Viewed(size, activation), nn.ReLU(inplace=True), nn.Linear(size, 3)
    ), (4,)


def normed(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    """A network with batch, layer or group norm (random statistics), and weight norm on its last layer."""
    norm = chance.choice([nn.BatchNorm1d(8), nn.LayerNorm(8), nn.GroupNorm(2, 8)])
    if isinstance(norm, nn.BatchNorm1d):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))
    return nn.Sequential(nn.Linear(4, 8), norm, smooth_or_not(chance)(), last), (4,)


KINDS = {
    "dense": dense,
    "convolution": convolution,
    "residual": residual,
    "recurrent": recurrent,
    "in place": in_place,
    "normed": normed,
}
ENTRIES = ("from_torch", "from_export", "from_onnx")
INPUTS, STEPS, STARTS = 8, 30, 6  # Inputs, gradient steps and random starts of the attack on each network.
ROUNDING = 2e-5  # Relative float32 error allowed in an output, since proofs are about real arithmetic.


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Silence the exporters."""
    logging.disable(logging.CRITICAL)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def entered(model: nn.Module, shape: tuple[int, ...], entry: str, folder: Path) -> hf.Network | None:
    """The network read through one entry point; None where torch cannot export the model."""
    if entry == "from_torch":
        return hf.Network.from_torch(model, domain=(0, 1))
    example, free, file = torch.rand(2, *shape), ({0: torch.export.Dim.DYNAMIC},), folder / f"model.{entry}"
    try:
        with silent():
            if entry == "from_export":
                torch.export.save(torch.export.export(model, (example,), dynamic_shapes=free), file)
            else:
                torch.onnx.export(model, (example,), file, dynamo=True, dynamic_shapes=free, verbose=False)
    except Exception:
        return None
    return (
        hf.Network.from_export(file, trust=True, domain=(0, 1))
        if entry == "from_export"
        else hf.Network.from_onnx(file, domain=(0, 1))
    )


def lowest(
    model: nn.Module, region: Ball, label: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Attack the user's own module in the region, by gradient descent from the centre, corners and random
    points.

    Returns:
        (inputs,) twice: the smallest margin found, and how much of it may be rounding.
    """

    def margin(x: Tensor) -> Tensor:
        outputs = model(x.flatten(0, 1)).reshape(*x.shape[:2], -1)
        own = outputs.gather(-1, label.expand(x.shape[0], -1)[..., None])[..., 0]
        return own - outputs.scatter(-1, label.expand(x.shape[0], -1)[..., None], -math.inf).amax(-1)

    chance = RandomStreams.of(range(len(region)), int(torch.randint(2**62, (), generator=generator)))
    with torch.no_grad():
        sampled = region.sample(64, chance)
        found = margin(sampled).amin(0)
    centre = region.centre
    x = torch.cat(
        [
            centre[None],
            region.sample(STARTS, chance),
            region.project(centre + torch.randn(STARTS, *centre.shape).sign() * 9),
        ]
    )
    for step in range(STEPS):
        x = x.detach().requires_grad_(True)
        scores = margin(x)
        found = torch.minimum(found, scores.detach().amin(0))
        try:
            (slope,) = torch.autograd.grad(scores.sum(), x)
        except (
            RuntimeError
        ):  # An in-place operation overwrites what the gradient needs: use random directions.
            slope = torch.randn(x.shape, generator=generator)
        length = region.radius.float().clamp(max=1.0) * (0.5 * 0.85**step)
        x = region.project(x.detach() - length.reshape(-1, *(1 for _ in region.shape)) * slope.sign())
    with torch.no_grad():
        inside = region.contains(x).all()
        found = torch.minimum(found, margin(x).amin(0))
        assert bool(inside), "the attack left the region"
        return found.double(), ROUNDING * (1 + model(centre).abs().amax(-1).double())


@dataclass
class Tally:
    networks: int = 0
    radii: int = 0
    scores: int = 0
    broken: int = 0
    refused: int = 0
    crashed: int = 0  # Exceptions other than HoldfastError: no false proof, but no helpful message either.
    no_way: int = 0


def tried(kind: str, entry: str, seed: int, tally: Tally) -> None:
    """One random network: certified radii and worst-case margins around random inputs, attacked on the module
    itself.
    """
    chance, generator = random.Random(f"{kind} {seed}"), torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, shape = KINDS[kind](chance)
        model = model.eval().requires_grad_(False)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + chance.random())
        with tempfile.TemporaryDirectory() as folder:
            try:
                net = entered(model, shape, entry, Path(folder))
            except hf.HoldfastError:
                tally.refused += 1
                return
        if net is None:
            tally.no_way += 1
            return
        x = torch.rand((INPUTS, *shape), generator=generator)
        y = model(x).argmax(-1)
        p = chance.choice([1, 2, math.inf])
        tally.networks += 1
        try:
            radius = torch.tensor(
                [b.lower.value for b in hf.radius(net, x, y, norm=p, methods=[Certify(rounds=3)])],
                dtype=torch.float64,
            )
            size = torch.rand(INPUTS, generator=generator, dtype=torch.float64) * 0.3
            box = Ball(x, size, math.inf, net.domain)
            worst = torch.tensor(
                [b.lower.value for b in hf.worst(net, box, hf.Robustness(y), methods=[Certify()])],
                dtype=torch.float64,
            )
        except hf.HoldfastError:
            tally.refused += 1
            return
        except Exception:
            tally.crashed += 1
            return
        at = Ball(x, torch.where(radius.isinf(), 1e3, radius), p, net.domain)
        least, rounding = lowest(model, at, y, generator)
        made = radius > 0
        tally.radii += int(made.sum())
        tally.broken += int((made & (least < -rounding)).sum())
        least, rounding = lowest(model, box, y, generator)
        made = worst.isfinite()
        tally.scores += int(made.sum())
        tally.broken += int((made & (worst > least + rounding)).sum())


def check_entries(networks: int, seed: int) -> int:
    broken = 0
    heads = ("networks", "radii", "scores", "broken", "refused", "crashed", "no file", "seconds")
    print(f"{'kind':12s} {'entry':12s} " + " ".join(f"{head:>8s}" for head in heads), flush=True)
    for kind, entry in itertools.product(KINDS, ENTRIES):
        began, tally = time.monotonic(), Tally()
        for turn in range(networks):
            tried(kind, entry, seed + turn, tally)
        counts = (
            tally.networks,
            tally.radii,
            tally.scores,
            tally.broken,
            tally.refused,
            tally.crashed,
            tally.no_way,
        )
        print(
            f"{kind:12s} {entry:12s} "
            + " ".join(f"{n:8d}" for n in counts)
            + f" {time.monotonic() - began:8.1f}",
            flush=True,
        )
        broken += tally.broken
    return broken


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Try to refute the linear relaxations and the certificates.")
    parser.add_argument("--boxes", type=int, default=1_000_000, help="random boxes for each relaxation")
    parser.add_argument(
        "--certificates", type=int, default=10_000, help="attacked certificates over all networks; 0 for none"
    )
    parser.add_argument(
        "--networks", type=int, default=20, help="random networks of each kind through each entry"
    )
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    offered = {
        value
        for name in relax.__all__
        if isinstance(value := getattr(relax, name), type) and issubclass(value, Relaxation)
    }
    missing = offered - {Relaxation} - {type(case.relaxation) for case in CASES.values()}
    assert not missing, f"{missing} would go unchecked"
    crossed = check_planes(chosen.boxes, chosen.seed)
    broken = check_certificates(chosen.certificates, chosen.seed)
    gone = check_entries(chosen.networks, chosen.seed)
    print(
        f"{len(CASES)} relaxations x {chosen.boxes} boxes, {crossed} crossed; {chosen.certificates} "
        f"certificates, {broken} broken"
    )
    print(
        f"{chosen.networks} networks of {len(KINDS)} kinds by {len(ENTRIES)} entry points, {gone} "
        "certificates broken"
    )
    return 1 if crossed or broken or gone else 0


if __name__ == "__main__":
    sys.exit(main())
