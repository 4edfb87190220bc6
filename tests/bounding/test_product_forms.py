"""Affine forms with the products of inputs' symbols: sound at every point of every ball, exact for small cases."""

import math
from fractions import Fraction
from itertools import product

import pytest
import torch
from bounds_regions import seeded
from torch import Tensor, nn

from holdfast.bounding import crown, crown_with_fixed_bounds, first_bounds, product_forms
from holdfast.bounding.first_bounds import propagate_first
from holdfast.bounding.graph.equivalence_check import values
from holdfast.bounding.graph.graph import Graph, Relaxed, build
from holdfast.bounding.product_forms import ProductForms, VariableInputs
from holdfast.bounding.reduced_forms import ReducedForms, consumer_first_order
from holdfast.bounding.relax import Product, Relaxation, Sigmoid, SigmoidTanh, SigmoidTimes, Tanh
from holdfast.bounding.zonotope import Form, _band
from holdfast.network import Network
from holdfast.region import Ball, Box, Domain, Frames, Region

NORMS = [1.0, 1.5, 2.0, 4.0, math.inf]


class Stack(nn.Module):
    """Two recurrent layers over frames of three numbers, then a linear layer on the last output."""

    def __init__(self, cell: type[nn.RNNBase], layers: int = 2, inputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.cells = cell(inputs, 6, layers, batch_first=True)  # type: ignore[call-arg]
        self.last = nn.Linear(6, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(1.5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.cells(x)[0][:, -1])
        return found


class SquareFirst(Stack):
    """Functions that read the input itself, twice, and a state that is multiplied with it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * x.flip(2)) * torch.tanh(x[:, 0])


def frames_of(places: list[int], radius: float, p: float, frames: int = 5, domain: object = None) -> Frames:
    """A ball in one frame for each place; -1: nothing moves in that row."""
    centre = torch.randn((1, frames, 3), generator=seeded(1)).clamp(-1, 1).repeat(len(places), 1, 1)
    mask = torch.zeros((len(places), frames), dtype=torch.bool)
    for row, place in enumerate(places):
        mask[row, place] = place >= 0
    radii = torch.full((len(places),), radius, dtype=torch.float64)
    return Frames(centre, radii, p, Domain.of(domain), mask=mask)  # type: ignore[arg-type]


def several_frames(moves: list[list[int]], radius: float, p: float, frames: int = 5) -> Frames:
    """Each row has a ball in each of these frames."""
    one = frames_of([-1] * len(moves), radius, p, frames)
    mask = torch.zeros((len(moves), frames), dtype=torch.bool)
    for row, places in enumerate(moves):
        mask[row, places] = True
    return Frames(one.centre, one.radius, p, one.domain, mask=mask)


def points_of(region: Frames | Ball, count: int, seed: int) -> Tensor:
    """Points of the region, (count, batch, *shape): on the surface, inside, and at vertices of the ball."""
    noise = torch.randn((count, *region.centre.shape), generator=seeded(seed), dtype=torch.float64)
    noise[: count // 4] = noise[: count // 4].sign()
    sparse = noise[count // 4 : count // 2]
    sparse.mul_(sparse.abs() == sparse.abs().amax(-1, keepdim=True))
    return region.project(region.centre + 4 * region.radius[:, None, None] * noise)


def product_forms_over(graph: Graph, region: Region, most: int) -> tuple[ProductForms, crown.Boxes]:
    order, inputs = consumer_first_order(graph), VariableInputs.of(region)
    forms = ProductForms(graph, inputs, order, most)
    boxes, _ = crown_with_fixed_bounds.propagate(graph, region, forms, walks=False, order=order)
    return forms, boxes


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("model", [Stack(nn.LSTM), Stack(nn.GRU), Stack(nn.RNN), SquareFirst(nn.LSTM, 1)])
def test_points_of_every_ball_lie_within_the_bounds_of_every_node(p: float, model: nn.Module) -> None:
    """Rows whose first, a later and no frame moves, with few noise symbols, in and without a domain."""
    graph = build(Network.from_torch(model.eval()), torch.zeros(1, 5, 3))
    for region in (
        frames_of([3, -1, 0], 0.5, p),
        frames_of([3, -1, 0], 3.0, p, domain=(-1.0, 1.0)),
        several_frames([[3], [0, 1, 2, 3, 4], [1, 4]], 0.5, p),
    ):
        forms, boxes = product_forms_over(graph, region, 30)
        rows = torch.cat([torch.eye(3), -torch.eye(3)]).double().expand(3, -1, -1)
        slope, constant = forms.linear_lower_bound(graph.entry, graph.output, rows)
        for x in points_of(region, 24, seed=7):
            x = x.double()
            found = values(graph, x, kept=set(graph.nodes))
            for node, value in found.items():
                assert (value >= boxes.lower[node]).all()
                assert (value <= boxes.upper[node]).all()
            below = (slope @ x.flatten(1)[..., None]).squeeze(-1) + constant
            reached = (rows @ found[graph.output].flatten(1)[..., None]).squeeze(-1)
            assert (below <= reached + 1e-12).all()


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_attacks_stay_above_the_bounds_in_every_norm(
    cell: type[nn.RNNBase], p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_bounds, "WALK_SHARE", 0.0)
    monkeypatch.setattr(product_forms, "LEAST_INPUTS_WITH_PRODUCTS", 1)
    model = Stack(cell).eval()
    graph = build(Network.from_torch(model), torch.zeros(1, 9, 3))
    rows = torch.cat([torch.eye(3), -torch.eye(3)]).double().expand(2, -1, -1)
    model = model.double()
    for radius in (0.05, 0.4):
        region = frames_of([0, 5], radius, p, frames=9)
        boxes = propagate_first(graph, region)
        assert isinstance(boxes.forms, ProductForms)
        found = crown.lower_bound(graph, boxes, rows, torch.zeros(2, 6, dtype=torch.float64))
        for row in range(6):
            x = points_of(region, 8, seed=2).double()
            for _ in range(12):
                x = x.detach().requires_grad_()
                score = (rows[:, row] * model(x.flatten(0, 1)).reshape(8, 2, 3)).sum(-1)
                assert (found[:, row] <= score.amin(0)).all()
                (steep,) = torch.autograd.grad(score.sum(), x)
                step = steep / steep.flatten(2).norm(dim=2)[..., None, None].clamp_min(1e-30)
                x = region.project(x.detach() - 0.5 * radius * step)


class ProductOfSumAndDifference(nn.Module):
    """(x1 + x2) (x1 - x2)."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(2, 2, bias=False)
        self.map.weight.data = torch.tensor([[1.0, 1.0], [1.0, -1.0]])

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        return (y[:, :1] * y[:, 1:]).sum(1, keepdim=True)


@pytest.mark.parametrize(("p", "bound"), [(1.0, 1.0), (2.0, 2**0.5), (math.inf, 1.0)])
def test_a_product_of_two_linear_functions_is_exact(p: float, bound: float) -> None:
    """(e1 + e2) (e1 - e2) = e1^2 - e2^2 ranges over [-1, 1] in all of these balls, by enumeration in fractions; in the
    Euclidean norm the bound is the Frobenius norm of diag(1, -1)."""
    graph = build(Network.from_torch(ProductOfSumAndDifference().eval()), torch.zeros(1, 2))
    region = Ball(torch.zeros(1, 2), torch.ones(1, dtype=torch.float64), p)
    _, boxes = product_forms_over(graph, region, 100)
    low, high = float(boxes.lower[graph.output]), float(boxes.upper[graph.output])
    grid = [Fraction(k, 8) for k in range(-8, 9)]
    inside = {
        1.0: lambda a, b: abs(a) + abs(b) <= 1,
        2.0: lambda a, b: a * a + b * b <= 1,
        math.inf: lambda a, b: True,
    }[p]
    met = [a * a - b * b for a, b in product(grid, grid) if inside(a, b)]
    assert low <= min(met)
    assert max(met) <= high
    assert max(-low, high) <= bound + 1e-9


@pytest.mark.parametrize("relaxation", [Tanh(), Sigmoid(), Product(), SigmoidTimes(), SigmoidTanh()])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_functions_lie_within_their_curved_bands(relaxation: Relaxation, p: float) -> None:
    graph = build(Network.from_torch(Stack(nn.LSTM, 1).eval()), torch.zeros(1, 2, 3))
    node = Relaxed(1, "f", (graph.entry,) * relaxation.arguments, (40,), relaxation)
    used = 0
    for seed, scale in enumerate((0.02, 0.2, 1.0)):
        forms = ProductForms(graph, VariableInputs.of(frames_of([1], 0.1, p, 2)), graph.nodes, 50)
        n, fixed = forms.inputs.count, forms.fixed
        known = []
        for _ in range(relaxation.arguments):
            generators = scale * torch.randn((1, fixed + 5, 40), generator=seeded(10 * seed + len(known)))
            generators[:, n:] *= 0.1
            centre = torch.randn((1, 40), generator=seeded(seed + 5)).double()
            error = torch.full((1, 40), 1e-3 * scale, dtype=torch.float64)
            known.append(Form.of(centre, generators.double(), error, None, forms.measure))
        ends = tuple(zip(*(form.interval_bounds() for form in known), strict=True))
        band = _band(node, list(ends[0]), list(ends[1]), known, None, forms.measure)
        found = forms.curved_band(node, ends, known, band)  # type: ignore[arg-type]
        if found is None:
            continue
        used += 1
        assert (found.band[2] - found.band[1] <= (band[2] - band[1]) + 3 * found.size).all()
        eps = torch.randn((4000, n), generator=seeded(seed), dtype=torch.float64)
        eps[:1000] = eps[:1000].sign()
        length = torch.linalg.vector_norm(eps, ord=p, dim=1, keepdim=True)
        eps = eps / length * torch.rand((4000, 1), generator=seeded(seed + 1)).double().sqrt().clamp_min(0.5)
        others = (2 * torch.rand((4000, 5 + len(known)), generator=seeded(9), dtype=torch.float64) - 1).sign()
        pairs = eps[:, forms.first] * eps[:, forms.second]
        if p == math.inf:
            pairs[:, forms.square] = 2 * pairs[:, forms.square] - 1
        symbols = torch.cat([eps, pairs, others[:, :5]], 1)
        at = [
            form.centre + symbols @ form.generators[0] + others[:, 5 + k : 6 + k] * form.error
            for k, form in enumerate(known)
        ]
        value = relaxation.function(*at) - pairs @ found.products[0]
        for slope, v in zip(found.band[0], at, strict=True):
            value = value - slope * v
        assert (value >= found.band[1] - 1e-13).all()
        assert (value <= found.band[2] + 1e-13).all()
    assert used >= 2


def test_the_norm_of_symbols_bounds_what_they_move() -> None:
    """Against many points of the ball, for generators of inputs, of their products, and others."""
    graph = build(Network.from_torch(Stack(nn.LSTM, 1).eval()), torch.zeros(1, 2, 3))
    for p in NORMS:
        forms = ProductForms(graph, VariableInputs.of(frames_of([1], 0.1, p, 2)), graph.nodes, 50)
        generators = torch.randn((1, forms.fixed + 3, 30), generator=seeded(3), dtype=torch.float64)
        eps = torch.randn((5000, 3), generator=seeded(4), dtype=torch.float64)
        eps = eps / torch.linalg.vector_norm(eps, ord=p, dim=1, keepdim=True)
        pairs = eps[:, forms.first] * eps[:, forms.second]
        if p == math.inf:
            pairs[:, forms.square] = 2 * pairs[:, forms.square] - 1
        others = torch.ones((5000, 3), dtype=torch.float64)
        moved = (torch.cat([eps, pairs, others], 1) @ generators[0]).abs().amax(0)
        bound = forms.measure(generators)[0]
        assert (moved <= bound * (1 + 1e-12)).all()
        if p == 2:
            assert bound.sum() < 0.8 * generators.abs().sum()


@pytest.mark.parametrize(("p", "share"), [(1.0, 0.5), (2.0, 0.6), (math.inf, 1.05)])
def test_bounds_are_tighter_than_over_the_enclosing_box(p: float, share: float) -> None:
    graph = build(Network.from_torch(Stack(nn.LSTM).eval()), torch.zeros(1, 14, 3))
    region = frames_of([9], 0.7, p, frames=14)
    _, now = product_forms_over(graph, region, 600)
    order = consumer_first_order(graph)
    forms = ReducedForms(graph, *region.enclosing_box(), order, 600)
    before, _ = crown_with_fixed_bounds.propagate(graph, region, forms, walks=False, order=order)
    widths = [(boxes.upper[graph.output] - boxes.lower[graph.output]).sum() for boxes in (now, before)]
    assert widths[0] < share * widths[1]


def test_several_balls_are_replaced_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word has a ball: bounds are tighter than over boxes, the columns do not grow with the words, and no attack
    gets below them."""
    monkeypatch.setattr(first_bounds, "WALK_SHARE", 0.0)
    model = Stack(nn.GRU, inputs=80).eval()
    graph = build(Network.from_torch(model), torch.zeros(1, 7, 80))
    centre = torch.randn((2, 7, 80), generator=seeded(1))
    centre[1] = centre[0]
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 1, 0]]).bool()
    region = Frames(centre, torch.full((2,), 0.05, dtype=torch.float64), 2.0, mask=mask)
    now = propagate_first(graph, region)
    assert isinstance(now.forms, ProductForms)
    assert now.forms.fixed == 80
    order = consumer_first_order(graph)
    plain = ReducedForms(graph, *region.enclosing_box(), order, 1200)
    before, _ = crown_with_fixed_bounds.propagate(graph, region, plain, walks=False, order=order)
    widths = [(boxes.upper[graph.output] - boxes.lower[graph.output]).sum() for boxes in (now, before)]
    assert widths[0] < 0.5 * widths[1]
    rows = torch.cat([torch.eye(3), -torch.eye(3)]).double().expand(2, -1, -1)
    found = crown.lower_bound(graph, now, rows, torch.zeros(2, 6, dtype=torch.float64))
    model = model.double()
    for row in range(6):
        x = points_of(region, 6, seed=2).double()
        for _ in range(8):
            x = x.detach().requires_grad_()
            score = (rows[:, row] * model(x.flatten(0, 1)).reshape(6, 2, 3)).sum(-1)
            assert (found[:, row] <= score.amin(0)).all()
            (steep,) = torch.autograd.grad(score.sum(), x)
            x = region.project(x.detach() - 0.1 * steep / steep.norm(dim=-1, keepdim=True).clamp_min(1e-30))


def test_which_regions_have_symbols_of_their_own() -> None:
    one, two = frames_of([0], 0.1, 2.0), several_frames([[0, 2]], 0.1, 2.0)
    assert [VariableInputs.of(region).several for region in (one, two)] == [False, True]
    assert VariableInputs.of(one).suit(long=False)
    assert not VariableInputs.of(two).suit(long=True)  # three numbers each
    words = Frames(torch.zeros(1, 2, 80), torch.ones(1).double(), 2.0)
    assert VariableInputs.of(words).suit(long=True)
    assert not VariableInputs.of(words).suit(long=False)
    wide = Ball(torch.zeros(1, product_forms.MOST_INPUTS_WITH_PRODUCTS + 1), torch.ones(1).double(), math.inf)
    assert not VariableInputs.of(wide).suit(long=True)
    assert not VariableInputs.of(Box.between(torch.zeros(1, 3).double(), torch.zeros(1, 3).double())).suit(
        True
    )
    some = VariableInputs.of(Ball(torch.zeros(1, 10), torch.ones(1).double(), math.inf))
    assert some.suit(long=True)
    assert not some.suit(long=False)
