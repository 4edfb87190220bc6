"""Attacks on the rounding charges of every carrier: the region is a few neighbouring floats, and the output cancels.

So almost all of a bound's slack is what it charges for rounding, and the truth is computed without rounding: with
fractions for piecewise-linear networks, and with 80 digits for smooth ones. The last test takes the charges away and
finds that the same bounds are then false.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast import rounding
from holdfast.bounding import taylor
from holdfast.bounding.bounder import AffineForms, Bounder, ClosedForm, Coupled, SecondOrder, TrainedBounder
from holdfast.bounding.crown import intervals, propagate
from holdfast.bounding.gradient import gradient_bounds
from holdfast.bounding.graph.fusion import fuse_affine
from holdfast.bounding.graph.graph import Graph, build
from holdfast.bounding.quadratic_models import Quadratic
from holdfast.bounding.relax import base
from holdfast.region import Box

DIGITS = 80  # Decimal digits of the truth for smooth networks.
SEEDS = range(3)
MOST_CORNER_INPUTS = 3
# (largest magnitude of a value, decades over which weights are spread)
MAGNITUDES = {"one": (1.0, 0), "spread": (1.0, 12), "small": (1e-60, 4), "large": (1e40, 4)}

Number = Any  # Fraction or mpmath.mpf


def exact(value: float) -> Fraction:
    return Fraction(value)


def precise(value: float) -> Number:
    return mpmath.mpf(value)


def affine(layer: nn.Linear, x: Sequence[Number], number: Callable[[float], Number]) -> list[Number]:
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [
        sum((number(w) * v for w, v in zip(row, x, strict=True)), number(b))
        for row, b in zip(weight, bias, strict=True)
    ]


def convolve(layer: nn.Conv2d, image: Sequence[Number], side: int) -> list[Number]:
    """A convolution of side 3 with padding 1, channel by channel."""
    weight, found = layer.weight.tolist(), []
    assert layer.bias is not None
    for filters, bias in zip(weight, layer.bias.tolist(), strict=True):
        for row, column in itertools.product(range(side), repeat=2):
            total = exact(bias)
            for channel, i, j in itertools.product(range(len(filters)), range(3), range(3)):
                a, b = row + i - 1, column + j - 1
                if 0 <= a < side and 0 <= b < side:
                    total += exact(filters[channel][i][j]) * image[(channel * side + a) * side + b]
            found.append(total)
    return found


def evaluate(model: nn.Sequential, x: Sequence[float], number: Callable[[float], Number]) -> list[Number]:
    """The outputs of the model at a point, without rounding (or with `DIGITS` digits)."""
    values = [number(v) for v in x]
    for layer in model:
        if isinstance(layer, nn.Linear):
            values = affine(layer, values, number)
        elif isinstance(layer, nn.Conv2d):
            values = convolve(layer, values, 6)
        elif isinstance(layer, nn.ReLU):
            values = [max(v, number(0.0)) for v in values]
        elif isinstance(layer, nn.Tanh):
            values = [mpmath.tanh(v) for v in values]
        else:
            assert isinstance(layer, nn.Flatten)
    return values


def scatter_magnitudes(model: nn.Module, seed: int, decades: int) -> None:
    draw = random.Random(seed)
    with torch.no_grad():
        for weight in model.parameters():
            powers = [10.0 ** draw.uniform(-decades, 0) for _ in range(weight.numel())]
            weight.mul_(torch.tensor(powers, dtype=torch.float64).reshape(weight.shape))


def let_output_cancel(model: nn.Sequential, x: Tensor) -> None:
    """Choose the last bias so that the computed output at x is zero: what remains is rounding error."""
    last = model[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.bias.zero_()
        last.bias.copy_(-model(x)[0])


def neighbours(x: Tensor, moving: int | None = None) -> Box:
    """The floats from x to the next ones: a box whose sides are one unit in the last place, in the first `moving`
    elements (default: all).
    """
    upper = torch.nextafter(x, torch.full_like(x, torch.inf))
    return Box.between(
        x,
        upper.flatten().where(torch.arange(x.numel()) < (moving or x.numel()), x.flatten()).reshape(x.shape),
    )


def dense(kind: type[nn.Module], seed: int, scale: float, decades: int) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), kind(), nn.Linear(8, 8), kind(), nn.Linear(8, 2)).double().eval()
    scatter_magnitudes(model, seed, decades)
    x = torch.randn(1, 3, dtype=torch.float64) * scale
    with torch.no_grad():
        first = model[0]
        assert isinstance(first, nn.Linear)
        first.bias.mul_(scale)
        if kind is nn.Tanh:
            first.weight.div_(scale)
            first.bias.div_(scale)
    let_output_cancel(model, x)
    return model, x


def corners(region: Box) -> list[list[float]]:
    """All corners of a box of a few inputs; of others the two opposite ones, and one between them."""
    lower, upper = (end.flatten().tolist() for end in region.enclosing_box())
    ends = list(zip(lower, upper, strict=True))
    if sum(low < high for low, high in ends) <= MOST_CORNER_INPUTS:
        return [list(corner) for corner in itertools.product(*(sorted({low, high}) for low, high in ends))]
    return [lower, upper, [low if k % 2 else high for k, (low, high) in enumerate(ends)]]


def graph_of(model: nn.Module, x: Tensor) -> Graph:
    return fuse_affine(build(hf.Network.from_torch(model, shape=tuple(x.shape[1:])), x))


def rows_of(graph: Graph) -> Tensor:
    """Each output and its negative, and a difference of outputs."""
    eye = torch.eye(graph.output.size, dtype=torch.float64)
    return torch.cat([eye, -eye, eye[:1] - eye[-1:]])[None]


def is_below(
    bounds: Tensor, rows: Tensor, region: Box, outputs: Callable[[list[float]], list[Number]]
) -> bool:
    """Whether every bound (1, rows) is at most the exact row . output at all corners of the region."""
    number: Callable[[float], Number] = exact
    for corner in corners(region):
        values = outputs(corner)
        if not isinstance(values[0], Fraction):
            number = precise
        for bound, row in zip(bounds[0].tolist(), rows[0].tolist(), strict=True):
            truth = sum(number(r) * v for r, v in zip(row, values, strict=True))
            if bound != -float("inf") and number(bound) > truth:
                return False
    return True


class Intervals:
    """Interval arithmetic with a last map that holds the rows."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def bound(self, region: Box, rows: Tensor) -> tuple[Tensor, None]:
        boxes = intervals(self.graph, region)
        ends = torch.stack([boxes.lower[self.graph.output], boxes.upper[self.graph.output]]).flatten(2)[:, 0]
        found = torch.cat([ends[0], -ends[1], (ends[0, :1] - ends[1, -1:]) * 1.0])
        return torch.nextafter(found, torch.full_like(found, -torch.inf))[None], None


class TaylorModels:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def bound(self, region: Box, rows: Tensor) -> tuple[Tensor, None]:
        lower, upper = (end.flatten(1) for end in region.enclosing_box())
        return taylor.lower_bound_rows(self.graph, lower, upper, rows).least, None


PIECEWISE: dict[str, Callable[[Graph], Any]] = {
    "intervals": Intervals,
    "CROWN": ClosedForm,
    "affine forms": AffineForms,
    "trained CROWN": lambda graph: TrainedBounder(graph, steps=2),
    "SDP dual": lambda graph: Coupled(graph, steps=3),
    "quadratic models": lambda graph: SecondOrder(Quadratic(graph)),
}
SMOOTH: dict[str, Callable[[Graph], Any]] = {
    "intervals": Intervals,
    "CROWN": ClosedForm,
    "affine forms": AffineForms,
    "quadratic models": lambda graph: SecondOrder(Quadratic(graph)),
    "Taylor models": TaylorModels,
}


def piecewise_holds(bounder: Callable[[Graph], Bounder], seed: int, magnitude: str) -> bool:
    model, x = dense(nn.ReLU, seed, *MAGNITUDES[magnitude])
    graph, region = graph_of(model, x), neighbours(x)
    rows = rows_of(graph)
    found, _ = bounder(graph).bound(region, rows)
    return is_below(found, rows, region, lambda corner: evaluate(model, corner, exact))


def smooth_holds(bounder: Callable[[Graph], Bounder], seed: int, magnitude: str) -> bool:
    model, x = dense(nn.Tanh, seed, *MAGNITUDES[magnitude])
    graph, region = graph_of(model, x), neighbours(x)
    rows = rows_of(graph)
    found, _ = bounder(graph).bound(region, rows)
    with mpmath.workdps(DIGITS):
        return is_below(found, rows, region, lambda corner: evaluate(model, corner, precise))


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("carrier", PIECEWISE)
def test_bounds_of_relu_networks_hold_in_exact_arithmetic(carrier: str, magnitude: str) -> None:
    assert all(piecewise_holds(PIECEWISE[carrier], seed, magnitude) for seed in SEEDS)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("carrier", SMOOTH)
def test_bounds_of_smooth_networks_hold_with_80_digits(carrier: str, magnitude: str) -> None:
    assert all(smooth_holds(SMOOTH[carrier], seed, magnitude) for seed in SEEDS)


def convolutional_holds(seed: int, magnitude: str, moving: int | None = 2) -> bool:
    scale, decades = MAGNITUDES[magnitude]
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(72, 2)).double().eval()
    scatter_magnitudes(model, seed, decades)
    x = torch.rand(1, 1, 6, 6, dtype=torch.float64) * scale
    let_output_cancel(model, x)
    graph, region = build(hf.Network.from_torch(model), x), neighbours(x, moving)
    rows = rows_of(graph)
    found, _ = ClosedForm(graph).bound(region, rows)
    return is_below(found, rows, region, lambda corner: evaluate(model, corner, exact))


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_bounds_of_convolutions_hold_in_exact_arithmetic(magnitude: str) -> None:
    """Backward passes over images store patches."""
    assert all(convolutional_holds(seed, magnitude, moving) for seed in SEEDS for moving in (2, None))


def exact_gradient(
    model: nn.Sequential, x: Sequence[float], rows: Sequence[Sequence[float]]
) -> list[list[Fraction]]:
    """The gradient of the rows of a ReLU network, no pre-activation of which is zero."""
    values, active = [exact(v) for v in x], []
    for layer in model:
        if isinstance(layer, nn.Linear):
            values = affine(layer, values, exact)
        else:
            active.append([v > 0 for v in values])
            values = [max(v, exact(0.0)) for v in values]
    back = [[exact(v) for v in row] for row in rows]
    for layer in reversed(model):
        if isinstance(layer, nn.Linear):
            weight = [[exact(w) for w in line] for line in layer.weight.tolist()]
            back = [
                [sum(b * line[k] for b, line in zip(row, weight, strict=True)) for k in range(len(weight[0]))]
                for row in back
            ]
        else:
            signs = active.pop()
            back = [[b if on else exact(0.0) for b, on in zip(row, signs, strict=True)] for row in back]
    return back


def gradient_holds(seed: int, magnitude: str) -> bool:
    model, x = dense(nn.ReLU, seed, *MAGNITUDES[magnitude])
    graph, region = graph_of(model, x), neighbours(x)
    rows = rows_of(graph)
    lower, upper = gradient_bounds(graph, propagate(graph, region), rows, rows)
    truth = exact_gradient(model, corners(region)[0], rows[0].tolist())
    return all(
        exact(low) <= value <= exact(high)
        for lows, line, highs in zip(lower[0].tolist(), truth, upper[0].tolist(), strict=True)
        for low, value, high in zip(lows, line, highs, strict=True)
    )


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_gradients_hold_in_exact_arithmetic(magnitude: str) -> None:
    assert all(gradient_holds(seed, magnitude) for seed in SEEDS)


class LastState(nn.Module):
    def __init__(self, core: Any) -> None:
        super().__init__()
        self.core = core
        self.last = nn.Linear(core.hidden_size, 2)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(self.core(x)[0][:, -1])
        return answer


def precise_sigmoid(v: Number) -> Number:
    return 1 / (1 + mpmath.exp(-v))


def recurrent_outputs(model: LastState, x: Sequence[float]) -> list[Number]:
    """The outputs with `DIGITS` digits, by the equations in the documentation of torch."""
    w_x, w_h, b_x, b_h = (w.tolist() for w in model.core.all_weights[0])
    size, features = model.core.hidden_size, model.core.input_size
    h = c = [mpmath.mpf(0)] * size

    def product(rows: list[list[float]], shift: list[float], vector: Sequence[Number]) -> list[Number]:
        return [
            sum((precise(w) * v for w, v in zip(row, vector, strict=True)), precise(b))
            for row, b in zip(rows, shift, strict=True)
        ]

    for t in range(len(x) // features):
        frame = [precise(v) for v in x[t * features : (t + 1) * features]]
        a, b = product(w_x, b_x, frame), product(w_h, b_h, h)
        parts = [(a[k : k + size], b[k : k + size]) for k in range(0, len(a), size)]
        if isinstance(model.core, nn.LSTM):
            i, f, g, o = ([p + q for p, q in zip(*part, strict=True)] for part in parts)
            c = [
                precise_sigmoid(f[k]) * c[k] + precise_sigmoid(i[k]) * mpmath.tanh(g[k]) for k in range(size)
            ]
            h = [precise_sigmoid(o[k]) * mpmath.tanh(c[k]) for k in range(size)]
        elif isinstance(model.core, nn.GRU):
            r, z = ([p + q for p, q in zip(*part, strict=True)] for part in parts[:2])
            n = [
                mpmath.tanh(p + precise_sigmoid(r[k]) * q)
                for k, (p, q) in enumerate(zip(*parts[2], strict=True))
            ]
            h = [(1 - precise_sigmoid(z[k])) * n[k] + precise_sigmoid(z[k]) * h[k] for k in range(size)]
        else:
            h = [mpmath.tanh(p + q) for p, q in zip(*parts[0], strict=True)]
    return affine(model.last, h, precise)


def recurrent_holds(core: type[nn.RNNBase], carrier: Callable[[Graph], Any], seed: int) -> bool:
    torch.manual_seed(seed)
    model = LastState(core(2, 3, batch_first=True)).double().eval()  # type: ignore[call-arg]
    x = torch.randn(1, 3, 2, dtype=torch.float64)
    with torch.no_grad():
        model.last.bias.zero_()
        model.last.bias.copy_(-model(x)[0])
    graph, region = build(hf.Network.from_torch(model), x), neighbours(x)
    rows = rows_of(graph)
    found, _ = carrier(graph).bound(region, rows)
    with mpmath.workdps(DIGITS):
        return is_below(found, rows, region, lambda corner: recurrent_outputs(model, corner))


@pytest.mark.parametrize("carrier", ["intervals", "CROWN", "affine forms", "quadratic models"])
@pytest.mark.parametrize("core", [nn.RNN, nn.LSTM, nn.GRU])
def test_bounds_of_recurrent_cells_hold_with_80_digits(core: type[nn.RNNBase], carrier: str) -> None:
    assert all(recurrent_holds(core, SMOOTH[carrier], seed) for seed in SEEDS)


@pytest.fixture
def no_charges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is charged for rounding, neither by `rounding.charge` nor in the intercepts of linear bounds."""
    monkeypatch.setattr(rounding, "gamma", lambda terms, dtype=torch.float64: 0.0)
    monkeypatch.setattr(base, "UNIT", 0.0)


@pytest.mark.usefixtures("no_charges")
@pytest.mark.parametrize("carrier", ["CROWN", "affine forms", "quadratic models", "intervals"])
def test_without_charges_the_same_bounds_are_false(carrier: str) -> None:
    """So the attacks above would find a charge that is missing."""
    assert not all(piecewise_holds(PIECEWISE[carrier], seed, "one") for seed in range(12))


@pytest.mark.usefixtures("no_charges")
@pytest.mark.parametrize("attack", [gradient_holds, convolutional_holds])
def test_without_charges_gradients_and_patches_are_false(attack: Callable[[int, str], bool]) -> None:
    assert not all(attack(seed, "one") for seed in range(12))
