"""Bounds by sums of the effects of single units, against points of the regions, corners of few units, and exact arithmetic."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hamming_truth import chain_for, inputs, randomised
from torch import Tensor, nn

import holdfast as hf
from holdfast.api.radius import radius_problems
from holdfast.hamming import Branch
from holdfast.hamming.layer_chain import Chain
from holdfast.hamming.pixel_effects import UnitEffects, compute_unit_effects, supports_unit_effects
from holdfast.hamming.pixel_interactions import bound_by_sums
from holdfast.random_streams import RandomStreams
from holdfast.region.budget import Budget


def cnn(seed: int, function: nn.Module | None = None, *, deep: bool = False, sharp: float = 2.0) -> nn.Module:
    act = function or nn.ReLU()
    behind = [nn.Linear(9, 7), nn.Tanh()] if deep else []
    layers = [
        nn.Conv2d(1, 3, 3, padding=1),
        act,
        nn.Conv2d(3, 4, 2, stride=2),
        act,
        nn.Flatten(),
        nn.Linear(36, 9),
        nn.ReLU(),
        *behind,
    ]
    return randomised(nn.Sequential(*layers, nn.Linear(7 if deep else 9, 3)), seed, sharp)


def tables(model: nn.Module, x: Tensor) -> tuple[Chain, UnitEffects]:
    _, chain = chain_for(model, x, (0,))
    ends = torch.zeros(x[0].numel()).double(), torch.ones(x[0].numel()).double()
    found = compute_unit_effects(chain, chain.centre(x), *ends)
    assert found is not None
    return chain, found


def regions(x: Tensor, seed: int, count: int, *, single: bool = False) -> Budget:
    """Three groups anywhere, that may touch; with `single`, small ones of which one unit may change."""
    generator = torch.Generator().manual_seed(seed)
    units = x[0].numel()
    group = torch.randint(-6 if single else -2, 3, (count, units), generator=generator).clamp_min(-1)
    budgets = torch.randint(0, 2 if single else 3, (count, 3), generator=generator)
    centre = x.double().expand(count, *x.shape[1:]).contiguous()
    return Budget(
        centre,
        torch.zeros_like(centre),
        torch.ones_like(centre),
        group.reshape(count, *x.shape[1:]),
        budgets,
        axes=(0,),
    )


def asked(chain: Chain, effects: UnitEffects, x: Tensor, region: Budget) -> tuple[Tensor, Tensor, Tensor]:
    count, rows = len(region), torch.eye(3, dtype=torch.float64)
    rows = torch.cat([rows, -rows]).expand(len(region), 6, 3)
    free = torch.tensor([[-math.inf], [math.inf]]).expand(count, 2, sum(chain.inner))
    centre = chain.centre(x).take(torch.zeros(count, dtype=torch.int64))
    least, slopes, inner, served = bound_by_sums(
        chain, effects, region, centre, free, rows, torch.zeros(count, 6, dtype=torch.float64)
    )
    assert least[served].isfinite().all()
    served = least.isfinite().all(1)  # also those that planes may bound more closely
    again, *_ = bound_by_sums(
        chain, effects, region, centre, inner, rows, torch.zeros(count, 6, dtype=torch.float64)
    )
    assert (again[served] >= least[served] - 1e-6).all()
    return torch.maximum(least, again), slopes, served


def least_met(model: nn.Module, points: Tensor) -> Tensor:
    """(points, regions, *shape) -> (regions, 6): the smallest of the outputs and of what they are the opposite of."""
    with torch.no_grad():
        out = model.double()(points.flatten(0, 1).double()).reshape(*points.shape[:2], -1)
    model.float()
    return torch.cat([out.amin(0), (-out).amin(0)], dim=1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["relu", "leaky", "deep", "sharp"])
def test_no_point_of_a_region_lies_below_its_bound(kind: str, seed: int) -> None:
    model = cnn(
        seed,
        nn.LeakyReLU(0.2) if kind == "leaky" else None,
        deep=kind == "deep",
        sharp=5.0 if kind == "sharp" else 2.0,
    )
    x = inputs(seed, 1, (1, 6, 6)).round() if seed % 2 else inputs(seed, 1, (1, 6, 6))
    chain, effects = tables(model, x)
    for region in (regions(x, seed, 24), regions(x, seed + 50, 24, single=True)):
        least, slopes, served = asked(chain, effects, x, region)
        assert served.sum() >= 8
        points = torch.cat(
            [
                region.sample(600, RandomStreams.of(range(len(region)), seed)),
                region.vertex(slopes)[None],
                region.centre[None],
            ]
        )
        assert (least <= least_met(model, points)).all()


@pytest.mark.parametrize("seed", range(3))
def test_bounds_of_neighbours_hold_on_a_grid(seed: int) -> None:
    """Pairs and triples within a window, in groups of their own and in one: all values of a grid."""
    model, x = cnn(seed), inputs(seed, 1, (1, 6, 6))
    chain, effects = tables(model, x)
    near = [(7, 8), (7, 13), (7, 14, 20), (14, 15, 16), (0, 1, 6), (21, 22, 28)]
    grid, lowest = torch.linspace(0, 1, 9).double(), []
    group, budgets = torch.full((len(near), 36), -1), torch.zeros(len(near), 3, dtype=torch.int64)
    for row, units in enumerate(near):
        group[row, list(units)] = torch.arange(len(units))
        budgets[row, : len(units)] = 1
        values = torch.cartesian_prod(*[grid] * len(units))
        points = x.double().flatten(1).repeat(len(values), 1)
        points[:, list(units)] = values
        lowest.append(least_met(model, points.reshape(-1, 1, 1, 6, 6))[0])
    centre = x.double().expand(len(near), 1, 6, 6).contiguous()
    region = Budget(
        centre,
        torch.zeros_like(centre),
        torch.ones_like(centre),
        group.reshape(-1, 1, 6, 6),
        budgets,
        axes=(0,),
    )
    for together in (
        region,
        replace(
            region, group=(group.clamp_max(0)).reshape(-1, 1, 6, 6), budgets=budgets.sum(1, keepdim=True)
        ),
    ):
        least, _, served = asked(chain, effects, x, together)
        assert served.all()
        assert (least <= torch.stack(lowest)).all()


@pytest.mark.parametrize("seed", range(2))
def test_tables_hold_between_their_edges(seed: int) -> None:
    """The arguments of the third function, at values all over a cell; and they are not far from the straight lines."""
    model, x = cnn(seed), inputs(seed, 1, (1, 6, 6))
    _, effects = tables(model, x)
    head = nn.Sequential(*list(model)[:6]).double()  # type: ignore[call-overload]
    still = head(x.double())
    for unit, cell in itertools.product(range(0, 36, 5), range(effects.missed.shape[1])):
        share = torch.linspace(0, 1, 41).double()[:, None]
        first, last = effects.edges[unit, cell], effects.edges[unit, cell + 1]
        points = x.double().flatten(1).repeat(41, 1)
        points[:, unit] = (first + share * (last - first)).flatten()
        truth = head(points.reshape(-1, 1, 6, 6)) - still
        line = effects.third[unit, cell] + share * (effects.third[unit, cell + 1] - effects.third[unit, cell])
        assert ((truth - line).abs() <= effects.missed[unit, cell]).all()
        assert (effects.lowest[unit] <= truth.amin(0)).all()
        assert (effects.highest[unit] >= truth.amax(0)).all()
    assert effects.missed.mean() < 0.2 * effects.third.abs().mean()


def test_effects_hold_in_exact_arithmetic_where_large_numbers_cancel() -> None:
    """The arguments are differences of large numbers; the truth of two neighbours that change is computed in fractions."""
    generator = torch.Generator().manual_seed(0)
    widths = (4, 5, 4, 4, 2)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    model = (
        nn.Sequential(*itertools.chain.from_iterable((layer, nn.ReLU()) for layer in layers))[:-1]
        .double()
        .eval()
    )
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64))
        layers[0].weight[:, 0] += 1e7
        layers[0].weight[:, 1] -= 1e7
    x = torch.rand((1, 1, 1, 4), generator=generator, dtype=torch.float64)
    x[..., 1] = x[..., 0]
    whole = nn.Sequential(nn.Flatten(), *model).eval()
    chain, effects = tables(whole, x)
    region = Budget(
        x,
        torch.zeros_like(x),
        torch.ones_like(x),
        torch.tensor([[[[-1, -1, 0, 1]]]]),
        torch.tensor([[1, 1]]),
        axes=(0,),
    )
    free = torch.tensor([[-math.inf], [math.inf]]).expand(1, 2, sum(chain.inner))
    rows, offset = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    least, *_ = bound_by_sums(chain, effects, region, chain.centre(x), free, rows, offset)
    assert least.isfinite().all()
    for values in itertools.product(
        (0.0, 0.25, 0.5, 1.0, float(x[..., 2])), (0.0, 0.3, 1.0, float(x[..., 3]))
    ):
        point = [Fraction(v) for v in (*x.flatten().tolist()[:2], *values)]
        for place, layer in enumerate(layers):
            sums = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
            point = [
                sum((Fraction(w) * v for w, v in zip(row, point, strict=True)), Fraction(b))
                for row, b in sums
            ]
            point = point if place == len(layers) - 1 else [max(v, Fraction(0)) for v in point]
        assert Fraction(float(least)) <= point[0] - point[1]


def test_slopes_that_float32_does_not_hold_are_not_rounded_to_it() -> None:
    """0.9 in float32 is smaller by 2e-8, far more than is paid for: all arguments are below zero, so that the truth is a line."""
    layers = [nn.Linear(4, 1), nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)]
    with torch.no_grad():
        for layer, bias in zip(layers, (-5.0, -1.0, 100.0, 0.0), strict=True):
            layer.weight.fill_(1)
            layer.bias.fill_(bias)
    act = nn.LeakyReLU(0.9)
    model = (
        nn.Sequential(nn.Flatten(), layers[0], act, layers[1], act, layers[2], nn.ReLU(), layers[3])
        .double()
        .eval()
    )
    x = torch.ones((1, 1, 1, 4), dtype=torch.float64)
    chain, effects = tables(model, x)
    region = Budget(
        x, torch.zeros_like(x), x, torch.tensor([[[[0, 1, 0, -1]]]]), torch.tensor([[1, 1]]), axes=(0,)
    )
    free = torch.tensor([[-math.inf], [math.inf]]).expand(1, 2, sum(chain.inner))
    rows, offset = torch.ones(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    least, *_ = bound_by_sums(chain, effects, region, chain.centre(x), free, rows, offset)
    slope = Fraction(0.9)
    truth = slope * (slope * (2 - 5) - 1) + 100  # two of four ones are zero
    assert Fraction(float(least)) <= truth
    assert float(least) >= float(truth) - 1e-9


@pytest.mark.parametrize("budgets", [[1, 0], [2, 0], [1, 1], [3, 0]])
def test_one_unit_whose_effects_are_no_numbers_proves_nothing_of_any_region_that_holds_it(
    budgets: list[int],
) -> None:
    """Where numbers overflow: the others of its group, which are numbers, must not be taken in its place."""
    x = inputs(0, 1, (1, 6, 6))
    chain, effects = tables(cnn(0), x)
    third, lowest = effects.third.clone(), effects.lowest.clone()
    third[14], lowest[14] = math.nan, math.nan
    group = torch.full((1, 36), -1)
    group[0, [14, 15, 16, 35]] = 0
    group[0, [2, 3]] = 1
    region = Budget(
        x.double(),
        torch.zeros_like(x).double(),
        torch.ones_like(x).double(),
        group.reshape(1, 1, 6, 6),
        torch.tensor([budgets]),
        (0,),
    )
    free = torch.tensor([[-math.inf], [math.inf]]).expand(1, 2, sum(chain.inner))
    rows, offset = torch.eye(3).double()[None], torch.full((1, 3), 1e6).double()
    for broken in (
        replace(effects, third=third),
        replace(effects, lowest=lowest),
        replace(effects, third=third, lowest=lowest),
    ):
        least, *_ = bound_by_sums(chain, broken, region, chain.centre(x), free, rows, offset)
        assert not (least.isfinite() & (least > 0)).any()


def test_a_pixel_whose_effects_overflow_proves_nothing_of_its_neighbours() -> None:
    """The last pixel may make signals of 1e400, which float64 does not hold. At 1e-100 it does, and the output falls to 7."""
    layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(2, 1)]
    model = (
        nn.Sequential(
            nn.Flatten(), layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], nn.ReLU(), layers[3]
        )
        .double()
        .eval()
    )
    with torch.no_grad():
        for layer, bias in zip(layers, (0.0, 0.0, 1.0, 5.0), strict=True):
            layer.weight.fill_(1)
            layer.bias.fill_(bias)
        for layer in layers[:2]:
            layer.weight.copy_(torch.diag(torch.tensor([1.0, 1.0, 1.0, 1e200], dtype=torch.float64)))
        layers[2].weight[:, 3] = torch.tensor([-1e-10, 0.0])
    x = torch.tensor([[[[0.5, 0.5, 0.5, 0.0]]]], dtype=torch.float64)
    chain, effects = tables(model, x)
    region = Budget(
        x,
        torch.zeros_like(x),
        torch.ones_like(x),
        torch.zeros(1, 1, 1, 4, dtype=torch.int64),
        torch.tensor([[2]]),
        axes=(0,),
    )
    free = torch.tensor([[-math.inf], [math.inf]]).expand(1, 2, sum(chain.inner))
    rows, offset = torch.ones(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    least, *_ = bound_by_sums(chain, effects, region, chain.centre(x), free, rows, offset)
    with torch.no_grad():
        met = model(torch.tensor([[[[0.0, 0.5, 0.5, 1e-100]]]], dtype=torch.float64))
    assert float(met) == 7
    assert not bool((least > met).any())


def test_nan_proves_nothing_and_other_networks_have_no_tables() -> None:
    x = inputs(0, 1, (1, 6, 6))
    chain, effects = tables(cnn(0), x)
    broken = replace(effects, third=effects.third * math.nan, lowest=effects.lowest * math.nan)
    region = regions(x, 3, 8)
    free = torch.tensor([[-math.inf], [math.inf]]).expand(8, 2, sum(chain.inner))
    rows, offset = torch.eye(3).double().expand(8, 3, 3), torch.full((8, 3), 1e6).double()
    centre = chain.centre(x).take(torch.zeros(8, dtype=torch.int64))
    least, _, _, _ = bound_by_sums(chain, broken, region, centre, free, rows, offset)
    moving = (region.labels >= 0).any(1)
    assert not (least[moving].isfinite() & (least[moving] > 0)).any()
    assert not supports_unit_effects(chain_for(cnn(0, nn.Tanh()), x, (0,))[1])


def test_units_without_tables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = cnn(0), inputs(0, 1, (1, 6, 6))
    net = hf.Network.from_torch(model.eval(), domain=(0, 1))
    [problem] = radius_problems(net, x, net(x).argmax(-1), norm=0)
    [record] = hf.solve([problem], [Branch()], hf.Stop(queries=2000))
    assert not any("tables of single units" in reason for reason in record.skipped)
    monkeypatch.setattr("holdfast.hamming.budget_split.MAX_TABLE_NUMBERS", -1)  # no room for any
    [record] = hf.solve([problem], [Branch()], hf.Stop(queries=2000))
    assert any("tables of single units were left out for some inputs" in reason for reason in record.skipped)
    assert record.bracket.closed or "linear bounds were used instead" in record.bracket.note
