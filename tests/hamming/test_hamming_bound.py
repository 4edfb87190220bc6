"""Bounds of chains against points, exact arithmetic and the engine."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hamming_truth import chain_for, deep_cnn, inputs, random_network, small_cnn, smooth
from torch import Tensor, nn

from holdfast.bounding.crown import linear_bound, minimisation_region, propagate
from holdfast.bounding.graph.graph import build
from holdfast.bounding.relax import Abs, Clip, LeakyRelu, Relu
from holdfast.hamming import bound as bounding
from holdfast.hamming.bound import bound_chain
from holdfast.random_streams import RandomStreams
from holdfast.region.budget import Budget


def random_regions(x: Tensor, axes: tuple[int, ...], seed: int, count: int, *, cut: bool) -> Budget:
    """Regions around the inputs; with `cut`, groups that may change as a whole lie away from their input."""
    generator = torch.Generator().manual_seed(seed)
    units = (count, *(1 if a in axes else n for a, n in enumerate(x.shape[1:])))
    row = torch.arange(count) % len(x)
    group = torch.randint(-2, 3, units, generator=generator).clamp_min(-1)
    sizes = (group.flatten(1)[:, None] == torch.arange(3)[:, None]).sum(-1)
    budgets = torch.minimum(torch.randint(0, 4, (count, 3), generator=generator), sizes)
    budgets[:, 2] = sizes[:, 2]  # the last group always changes as a whole
    centre = x.double()[row]
    lower, upper = torch.zeros_like(centre), torch.ones_like(centre)
    if cut:
        a, b = torch.rand((2, *centre.shape), generator=generator, dtype=torch.float64)
        lower, upper = (
            torch.where(group == 2, torch.minimum(a, b), lower),
            torch.where(group == 2, torch.maximum(a, b), upper),
        )
    centre = torch.minimum(torch.maximum(centre, lower), upper)
    centre, lower, upper = (v.contiguous() for v in (centre, lower, upper))
    return Budget(centre, lower, upper, group, budgets, axes=axes)


CHAINS = {
    "cnn": (lambda: small_cnn(0), (1, 4, 4), (0,)),
    "colour": (lambda: small_cnn(1, channels=3), (3, 4, 4), (0,)),
    "channels apart": (lambda: small_cnn(1, channels=2), (2, 4, 4), ()),
    "deep": (lambda: deep_cnn(2), (1, 4, 4), (0,)),
    "dense": (lambda: random_network(3, (6,)), (6,), ()),
    "tanh": (lambda: small_cnn(4, function=nn.Tanh), (1, 4, 4), (0,)),
    "smooth": (lambda: smooth(5), (6,), ()),
    "rows": (lambda: small_cnn(6), (1, 4, 4), (0, 2)),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("cut", [False, True])
def test_bounds_of_chains_hold_at_points_and_are_near_those_of_the_engine(name: str, cut: bool) -> None:
    make, shape, axes = CHAINS[name]
    x = inputs(1, 3, shape)
    network, chain = chain_for(make(), x, axes)
    region = random_regions(x, axes, 11, 12, cut=cut)
    row = torch.arange(12) % 3
    rows = torch.randn((12, 2, 3), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    offset = (
        torch.randn((12, 2), generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 100
    )  # what is proved is not tightened
    free = torch.tensor([[-math.inf], [math.inf]]).expand(12, 2, sum(chain.inner))
    least, slopes, inner = bound_chain(chain, region, chain.centre(x).take(row), free, rows, offset)
    twin = network.double(x)
    assert twin is not None
    points = torch.cat(
        [
            region.sample(400, RandomStreams.of(range(len(region)), 4)),
            region.vertex(slopes)[None],
            region.centre[None],
        ]
    )
    values = (rows @ twin(points.flatten(0, 1)).reshape(len(points), 12, 3, 1)).squeeze(-1) + offset
    assert (least <= values.amin(0)).all()
    graph = build(network, x)
    boxes = propagate(
        graph, region
    )  # by its walk; intervals next to the output, which it asks too, are not a matter of chains
    by_engine = linear_bound(graph, boxes, rows).minimum(minimisation_region(boxes)) + offset
    size = 1e-6 + values.amax(0) - by_engine
    assert ((by_engine - least) / size).max() < 1e-3  # as tight
    again, _, closer = bound_chain(chain, region, chain.centre(x).take(row), inner, rows, offset)
    assert (again <= values.amin(0)).all()
    assert (closer[:, 0] >= inner[:, 0] - 1e-5).all()
    assert (again >= least - 1e-6 * size).all()


@pytest.mark.parametrize("name", ["cnn", "colour", "deep"])
def test_both_ways_back_and_any_division_into_passes_find_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape, axes = CHAINS[name]
    x = inputs(1, 3, shape)
    _, chain = chain_for(make(), x, axes)
    region = random_regions(x, axes, 5, 9, cut=True)
    rows, offset = torch.eye(3, dtype=torch.float64).expand(9, 3, 3), torch.zeros(9, 3, dtype=torch.float64)
    free = torch.tensor([[-math.inf], [math.inf]]).expand(9, 2, sum(chain.inner))
    found = {}
    for local, at_once in itertools.product((True, False), (1, 2**21)):
        monkeypatch.setattr(bounding.Pass, "_local", local)
        monkeypatch.setattr(bounding, "PASS_NUMBERS", at_once)
        found[local, at_once] = bound_chain(
            chain, region, chain.centre(x).take(torch.arange(9) % 3), free, rows, offset
        )
    first = found.pop((True, 1))
    for other in found.values():
        assert torch.allclose(first[0], other[0], rtol=1e-9, atol=1e-9)
        assert torch.allclose(first[1], other[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e8])
@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_in_exact_arithmetic_where_large_numbers_cancel(seed: int, scale: float) -> None:
    """Each hidden value is a difference of large numbers, so that float64 keeps few digits of it; the truth is computed in fractions."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64))  # type: ignore[operator]
            layer.weight[:, 0] += scale  # type: ignore[index]
            layer.weight[:, 1] -= scale  # type: ignore[index]
    x = torch.rand((1, 4), generator=generator, dtype=torch.float64)
    x[:, 1] = x[:, 0]
    _, chain = chain_for(model.eval(), x, ())
    region = Budget(
        x, torch.zeros_like(x), torch.ones_like(x), torch.tensor([[-1, -1, 0, 0]]), torch.tensor([[1]])
    )
    rows, offset = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    free = torch.zeros(1, 2, 0)
    least, slopes, _ = bound_chain(chain, region, chain.centre(x), free, rows, offset)
    points = torch.cat(
        [region.sample(40, RandomStreams.of(range(len(region)), 0)), region.vertex(slopes)[None], x[None]]
    )[:, 0]
    assert least.isfinite().all()
    for point in points:
        assert Fraction(float(least)) <= exact_difference(model, point)
    # And it says something: a point of a region is its own bound but for rounding.
    alone = replace(region, budgets=torch.tensor([[0]]))
    near, _, _ = bound_chain(chain, alone, chain.centre(x), free, rows, offset)
    truth = exact_difference(model, x[0])
    assert Fraction(float(near)) <= truth
    assert float(truth - Fraction(float(near))) <= 1e-11 * max(1.0, scale) ** 2


def exact_difference(model: nn.Module, x: Tensor) -> Fraction:
    values = [Fraction(v) for v in x.tolist()]
    for layer in model:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight.tolist(), layer.bias.tolist()
            values = [
                sum((Fraction(w) * v for w, v in zip(row, values, strict=True)), Fraction(b))
                for row, b in zip(weight, bias, strict=True)
            ]
        else:
            values = [max(v, Fraction(0)) for v in values]
    return values[0] - values[1]


def test_nan_and_infinity_prove_nothing() -> None:
    model = random_network(0, (4,))
    x = inputs(0, 1, (4,))
    _, chain = chain_for(model, x, ())
    layers = list(chain.layers)
    layers[1] = replace(layers[1], weight=layers[1].weight * math.inf)
    broken = replace(
        chain, layers=tuple(layers), windows=replace(chain.windows, second=chain.windows.second * math.inf)
    )
    region = random_regions(x, (), 1, 1, cut=False)
    least, _, _ = bound_chain(
        broken,
        region,
        broken.centre(x),
        torch.zeros(1, 2, 0),
        torch.eye(3).double()[None],
        torch.zeros(1, 3).double(),
    )
    assert not (least.isfinite() & (least > 0)).any()


def test_the_lines_of_a_leaky_relu_are_its_own_and_not_their_float32() -> None:
    lower, upper = torch.tensor([[-3.0, -2.0, 1.0], [-1.0, 5.0, 2.0]], dtype=torch.float64)
    for function in (LeakyRelu(0.01), LeakyRelu(0.3), Relu(), Abs(), Clip(0.0)):
        below, below_offset, above, above_offset = bounding._linear_bounds(function, lower, upper)
        for share in torch.linspace(0, 1, 11, dtype=torch.float64):
            v = lower + share * (upper - lower)
            assert (below * v + below_offset <= function.function(v) + 1e-15).all()
            assert (above * v + above_offset >= function.function(v) - 1e-15).all()
