"""Affine forms with few noise symbols: sound for every point, accurate over many steps, linear in the depth."""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
from bounds_regions import seeded
from torch import Tensor, nn

import holdfast as hf
from clocks import TestClock
from holdfast import memory_budget
from holdfast.bounding import crown, crown_with_fixed_bounds, first_bounds, influence
from holdfast.bounding.first_bounds import plan_forms, propagate_first
from holdfast.bounding.graph.graph import Graph, Relaxed, build
from holdfast.bounding.influence import find_influence
from holdfast.bounding.reduced_forms import ReducedForms, consumer_first_order, live_values
from holdfast.bounding.relax import Product, Relaxation, SigmoidTanh, SigmoidTimes
from holdfast.bounding.zonotope import FACTORS, Form, Forms, _product_band
from holdfast.certify import certify
from holdfast.network import Network
from holdfast.region import Box, Region
from sizes import count, full_only


class Stack(nn.Module):
    """Recurrent layers over frames of three numbers, then a linear layer on the last output."""

    def __init__(self, cell: type[nn.RNNBase], layers: int, hidden: int = 6, gain: float = 1.5) -> None:
        super().__init__()
        torch.manual_seed(layers)
        self.cells = cell(3, hidden, layers, batch_first=True)  # type: ignore[call-arg]
        self.last = nn.Linear(hidden, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.cells(x)[0][:, -1])
        return found


def stack(cell: type[nn.RNNBase], frames: int, layers: int) -> tuple[nn.Module, Graph]:
    model = Stack(cell, layers).eval()
    return model, build(Network.from_torch(model), torch.zeros(1, frames, 3))


def one_frame(frames: int, places: list[int], radius: float, seed: int = 0) -> Box:
    """A box for each place, in which that frame alone moves."""
    centre = torch.randn((1, frames, 3), generator=seeded(seed)).double().repeat(len(places), 1, 1)
    width = torch.zeros_like(centre)
    width[range(len(places)), places] = radius
    return Box.between(centre - width, centre + width)


def forms_over(graph: Graph, region: Region, most: int) -> tuple[ReducedForms, crown.Boxes]:
    order = consumer_first_order(graph)
    forms = ReducedForms(graph, *region.enclosing_box(), order, most)
    boxes, _ = crown_with_fixed_bounds.propagate(graph, region, forms, walks=False, order=order)
    return forms, boxes


def worst_points(model: nn.Module, region: Box, rows: Tensor, seed: int) -> Tensor:
    """The smallest rows . output that random points, corners and gradient steps find, (batch, rows)."""
    lower, upper = region.enclosing_box()
    model, best = model.double(), torch.full((len(lower), rows.shape[1]), torch.inf, dtype=torch.float64)
    shares = torch.rand((24, *lower.shape), generator=seeded(seed), dtype=torch.float64)
    shares[12:] = shares[12:].round()
    for row in range(rows.shape[1]):
        x = lower + shares * (upper - lower)
        for _ in range(12):
            x = x.detach().requires_grad_()
            out = model(x.flatten(0, 1)).reshape(*x.shape[:2], -1)
            score = (rows[:, row] * out).sum(-1)
            best[:, row] = torch.minimum(best[:, row], score.detach().amin(0))
            (steep,) = torch.autograd.grad(score.sum(), x)
            x = torch.minimum(torch.maximum(x - 0.3 * (upper - lower) * steep.sign(), lower), upper)
    return best


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("walks", [False, True])
def test_attacks_stay_above_the_bounds_of_long_networks(
    cell: type[nn.RNNBase], walks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_bounds, "NOISE_SYMBOLS", 60)
    monkeypatch.setattr(first_bounds, "WALK_SHARE", 1e9 if walks else 0.0)
    model, graph = stack(cell, 9, 2)
    plan = plan_forms(graph)
    if plan is None:
        assert walks
        assert cell is nn.RNN
        return
    assert plan.walks == walks
    rows = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    for radius in (0.01, 0.1, 1.0):
        region = one_frame(9, [0, 4, 8], radius, seed=3)
        every = rows.expand(3, -1, -1)
        boxes = propagate_first(graph, region)
        found = crown.lower_bound(graph, boxes, every, torch.zeros(3, 6, dtype=torch.float64))
        assert found.isfinite().all()
        assert (found <= worst_points(model, region, every, seed=1)).all()


def test_forms_hold_every_point_at_every_node() -> None:
    _model, graph = stack(nn.LSTM, 6, 2)
    region = one_frame(6, [0, 3], 0.5)
    check_every_node(graph, region)


class FunctionFirst(Stack):
    """The input enters a function before any linear layer reads it."""

    def __init__(self, cell: type[nn.RNNBase], function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(cell, 1, 5)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.function(x))


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("function", [torch.tanh, lambda x: x * x, lambda x: x * x.flip(1)])
def test_a_function_that_reads_the_input_itself_moves_with_it(
    cell: type[nn.RNNBase], function: Callable[[Tensor], Tensor]
) -> None:
    model = FunctionFirst(cell, function).eval()
    graph = build(Network.from_torch(model), torch.zeros(1, 4, 3))
    region = one_frame(4, [0, 3], 0.5)
    check_every_node(graph, region)


class Bidirectional(nn.Module):
    """A layer that reads both ways, a function and a sum behind it."""

    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.cells = cell(3, 4, 1, batch_first=True, bidirectional=True)  # type: ignore[call-arg]
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.cells(x)[0]
        found: Tensor = self.last(torch.tanh(seen[:, -1] + seen[:, 0] * x.sum((1, 2))[:, None]))
        return found


def boxes_with_moving_frames(moves: list[list[int]], radius: float, scale: float = 1.0) -> Box:
    """A box for each list of frames, in which those frames of five move."""
    centre = scale * torch.randn((1, 5, 3), generator=seeded(2)).double().repeat(len(moves), 1, 1)
    width = torch.zeros_like(centre)
    for row, frames in enumerate(moves):
        width[row, frames] = radius
    return Box.between(centre - width, centre + width)


@pytest.mark.parametrize("model", [Stack(nn.LSTM, 2, 4), Bidirectional(nn.GRU)], ids=["stack", "both ways"])
def test_every_form_holds_whatever_rows_move(model: nn.Module) -> None:
    """Rows that begin to vary at different frames, in any order, and a row that does not vary at all."""
    moves = [[3], [], [0], [1, 4], [0, 1, 2, 3, 4]]
    graph = build(Network.from_torch(model.eval()), torch.zeros(1, 5, 3))
    for scale in (1e-9, 1.0, 30.0):
        check_every_node(graph, boxes_with_moving_frames(moves, 0.3 * scale, scale))


def check_every_node(graph: Graph, region: Region) -> None:
    """Corners and inner points of the region lie within the forms' bounds at every node, and the radius of every
    form is that of its generators."""
    lower, upper = region.enclosing_box()
    order, kept = consumer_first_order(graph), KeepsAll()
    forms = ReducedForms(graph, *region.enclosing_box(), order, 30)
    kept[graph.entry] = forms.of[graph.entry]  # has its radius, and no generators before a node reads it
    forms.of = kept
    boxes, _ = crown_with_fixed_bounds.propagate(graph, region, forms, walks=False, order=order)
    for form in kept.all[1:]:
        total = torch.zeros_like(form.radius)
        total[form.rows] = form.generators.abs().sum(1)
        assert (form.radius >= total).all()
        assert (form.radius <= total * (1 + 1e-9)).all()
    for k in range(20):
        shares = torch.rand(lower.shape, generator=seeded(k), dtype=torch.float64)
        x = lower + (shares if k % 2 else shares.round()) * (upper - lower)
        x = torch.minimum(x, upper)
        for node, value in values_of_all(graph, x).items():
            assert (value >= boxes.lower[node]).all()
            assert (value <= boxes.upper[node]).all()


class KeepsAll(dict[Any, Form]):
    """Also keeps the forms that are dropped or replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Form] = []

    def __setitem__(self, node: Any, form: Form) -> None:
        self.all.append(form)
        super().__setitem__(node, form)


def values_of_all(graph: Graph, x: Tensor) -> dict[object, Tensor]:
    from holdfast.bounding.graph.equivalence_check import values

    return dict(values(graph, x, kept=set(graph.nodes)))


def test_errors_do_not_grow_with_the_depth() -> None:
    _, graph = stack(nn.LSTM, 24, 3)
    forms, _ = forms_over(graph, one_frame(24, [0], 1e-4), 400)
    assert float(forms.of[graph.output].error.max()) < 1e-11
    # an error as large as a noise symbol becomes one
    forms, boxes = forms_over(graph, one_frame(24, [0], 1e-4), 60)
    assert float(forms.of[graph.output].error.max()) < 1e-11
    assert bool((boxes.upper[graph.output] < torch.inf).all())


def test_live_values_and_noise_symbols_do_not_grow_with_the_frames() -> None:
    most = 50
    live = []
    for frames in (6, 12, 24):
        _, graph = stack(nn.LSTM, frames, 2)
        order = consumer_first_order(graph)
        assert sorted(node.place for node in order) == [node.place for node in graph.nodes]
        seen = set()
        for node in order:
            assert all(source in seen for source in node.inputs)
            seen.add(node)
        live.append(max(live_values(graph, order).values()))
        forms, _ = forms_over(graph, one_frame(frames, [0], 0.1), most)
        assert forms.count <= 1.5 * most + live[-1]
        assert len(forms.of) <= 2  # only the output, and the input, are still stored
    assert len(set(live)) == 1


def test_the_prefix_before_the_perturbed_frame_has_no_noise() -> None:
    _, graph = stack(nn.LSTM, 8, 2)
    early, late = (forms_over(graph, one_frame(8, [k], 0.1), 10**6)[0].count for k in (0, 7))
    assert late < early / 4


def test_merged_symbols_lie_within_their_boxes() -> None:
    """Exact in rational numbers: every value of the old form is one of the new form."""
    _, graph = stack(nn.LSTM, 2, 1)
    region = one_frame(2, [0, 1], 0.5)
    forms = ReducedForms(graph, *region.enclosing_box(), graph.nodes, 100)
    one, other = graph.nodes[3], graph.nodes[4]
    generators = torch.randn((2, 12, one.size), generator=seeded(1), dtype=torch.float64)
    more = torch.randn((2, 9, other.size), generator=seeded(2), dtype=torch.float64)
    small = torch.full((2, 1), 1e-3, dtype=torch.float64)
    before = {
        one: Form.of(torch.zeros(2, one.size).double(), generators, small.expand(-1, one.size)),
        other: Form.of(torch.ones(2, other.size).double(), more, small.expand(-1, other.size)),
    }
    forms.of = dict(before)
    forms.feature = torch.arange(12).expand(2, -1)
    forms.merge(5)
    assert forms.feature.shape[1] == 5 + one.size + other.size
    for row in range(2):
        kept = forms.feature[row, :5].tolist()
        for node, form in before.items():
            after = forms.of[node]
            assert float(after.error.max()) == 0
            for element in range(0, node.size, 3):
                rest = Fraction(float(form.error[row, element])) + sum(
                    abs(Fraction(float(form.generators[row, k, element])))
                    for k in range(form.generators.shape[1])
                    if k not in kept
                )
                box = sum(abs(Fraction(float(v))) for v in after.generators[row, 5:, element])
                assert rest <= box <= rest * (1 + Fraction(1, 10**12)) + Fraction(1, 10**100)
                for at, k in enumerate(kept):
                    was = form.generators[row, k, element] if k < form.generators.shape[1] else 0.0
                    assert float(after.generators[row, at, element]) == float(was)


def two_forms(seed: int, shared: int, size: int = 40, scale: float = 1.0) -> tuple[Form, Form]:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    generator = seeded(seed)
    v, z = scale * random(1, shared, size), scale * random(1, shared + 2, size)
    error = 0.01 * scale * random(1, size).abs()
    return Form.of(random(1, size), v, error), Form.of(random(1, size), z, error / 2)


def box_of(form: Form, shrink: float) -> tuple[Tensor, Tensor]:
    lower, upper = form.interval_bounds()
    return lower + shrink * (upper - lower), upper


@pytest.mark.parametrize("relaxation", [Product(), SigmoidTimes(), SigmoidTanh()])
@pytest.mark.parametrize("shared", [1, 3, 8])
@pytest.mark.parametrize("shrink", [0.0, 0.3])
def test_products_lie_within_their_bands(relaxation: Relaxation, shared: int, shrink: float) -> None:
    for seed, scale in ((0, 1.0), (1, 0.1), (2, 5.0), (3, 1e-3)):
        v, z = two_forms(seed, shared, scale=scale)
        ends = tuple(zip(box_of(v, shrink), box_of(z, 0.0), strict=True))
        slope, low, high = _product_band(relaxation, FACTORS[type(relaxation)], ends, (v, z))  # type: ignore[arg-type]
        assert low.isfinite().all()
        assert high.isfinite().all()
        noises = z.generators.shape[1] + 2
        eps = 2 * torch.rand((4000, noises), generator=seeded(seed), dtype=torch.float64) - 1
        eps[1000:3000] = eps[1000:3000].sign()
        at_v = v.centre + eps[:, :shared] @ v.generators[0] + eps[:, -1:] * v.error
        at_z = z.centre + eps[:, : noises - 2] @ z.generators[0] + eps[:, -2:-1] * z.error
        inside = (at_v >= ends[0][0]) & (at_v <= ends[1][0])
        rest = relaxation.function(at_v, at_z) - slope[0] * at_v - slope[1] * at_z
        tolerance = 1e-13 * (1 + at_v.abs() + at_z.abs()) ** 2
        assert (~inside | (rest >= low - tolerance)).all()
        assert (~inside | (rest <= high + tolerance)).all()


def test_the_band_of_a_product_is_exact_for_shared_noise() -> None:
    """v z over |e| <= 1 for v = e1 + e2, z = e1 - e2 (e1^2 - e2^2) and for v = z = e1 (e1^2), by enumeration."""
    for v, z in (([1.0, 1.0], [1.0, -1.0]), ([1.0, 0.0], [1.0, 0.0]), ([1.0, 0.0], [0.0, 1.0])):
        forms = [
            Form.of(
                torch.zeros(1, 1).double(),
                torch.tensor(g).double()[None, :, None],
                torch.zeros(1, 1).double(),
            )
            for g in (v, z)
        ]
        ends = tuple(zip(*(form.interval_bounds() for form in forms), strict=True))
        _, low, high = _product_band(Product(), (None, None), ends, forms)  # type: ignore[arg-type]
        grid = [Fraction(k, 8) for k in range(-8, 9)]
        met = [
            (int(v[0]) * a + int(v[1]) * b) * (int(z[0]) * a + int(z[1]) * b) for a, b in product(grid, grid)
        ]
        assert float(low) <= min(met)
        assert max(met) <= float(high)
        assert float(low) >= float(min(met)) - (1e-9 if v != [1.0, 0.0] or z != [0.0, 1.0] else 0.1)
        assert float(high) <= float(max(met)) + 1e-9


def test_a_product_of_tiny_forms_does_not_underflow() -> None:
    """v = 1e-163 a, z = b with independent noise: v z reaches 1e-163, far above the error of all underflows."""
    nothing = torch.zeros(1, 1).double()
    v = Form.of(nothing, torch.tensor([[[1e-163], [0.0]]], dtype=torch.float64), nothing)
    z = Form.of(nothing, torch.tensor([[[0.0], [1.0]]]).double(), nothing)
    ends = tuple(zip(v.interval_bounds(), z.interval_bounds(), strict=True))
    _, low, high = _product_band(Product(), (None, None), ends, (v, z))  # type: ignore[arg-type]
    assert float(low) <= -1e-163
    assert float(high) >= 1e-163


def test_bands_of_products_are_narrower_than_over_boxes() -> None:
    v, z = two_forms(0, 8, scale=0.1)
    ends = tuple(zip(v.interval_bounds(), z.interval_bounds(), strict=True))
    _, low, high = _product_band(Product(), (None, None), ends, (v, z))  # type: ignore[arg-type]
    boxed = 2 * (v.radius + v.error) * (z.radius + z.error)
    assert float(((high - low) / boxed).mean()) < 0.7


def test_a_long_network_is_certified_and_no_attack_breaks_it() -> None:
    """24 frames and 3 layers: backward passes to all pre-activations are not affordable, forms are."""
    model, _ = stack(nn.LSTM, 24, 3)
    net = hf.Network.from_torch(model.float())
    x = torch.randn((2, 24, 3), generator=seeded(5))
    y = net(x).argmax(1)
    mask = torch.zeros((2, 24), dtype=torch.bool)
    mask[0, 0] = mask[1, 20] = True
    family = hf.region.Frames(x, torch.zeros(2).double(), torch.inf, net.domain, mask=mask)
    problem = hf.Problem(net, family, hf.Robustness(y), "radius", tuple(hf.result.Key(k) for k in range(2)))
    (first, second) = [r.bracket for r in hf.solve([problem], [hf.certify.Certify(rounds=count(2, 8))])]
    assert first.lower.value > 0
    assert second.lower.value > 0
    radius = torch.tensor([first.lower.value, second.lower.value], dtype=torch.float64)
    region = problem.family.at(radius)
    box = Box.between(*(end.double() for end in region.enclosing_box()))
    rows = torch.stack([torch.eye(3)[k] - torch.eye(3) for k in y.tolist()]).double()
    others = [[j for j in range(3) if j != k] for k in y.tolist()]
    rows = torch.stack([r[o] for r, o in zip(rows, others, strict=True)])
    assert (worst_points(model, box, rows, seed=2) > 0).all()


@pytest.mark.parametrize(
    "method",
    [
        hf.certify.Certify(),
        pytest.param(hf.certify.Tighten(steps=1, trials=1, first=1, radii=1), marks=full_only),
    ],
    ids=["fast", "tight"],
)
def test_a_budget_that_ends_early_keeps_what_forms_proved(
    method: hf.Method[Any], still_clock: TestClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pass of bounds takes a second, so 2.5 s end in the third; the search needs more."""
    passes = []

    def propagate_in_a_second(*arguments: Any) -> crown.Boxes:
        boxes = propagate_first(*arguments)
        still_clock.advance(1.0)
        passes.append(boxes.region.enclosing_box())
        return boxes

    monkeypatch.setattr("holdfast.certify.certify.propagate_first", propagate_in_a_second)
    monkeypatch.setattr(first_bounds, "WALK_SHARE", 0.0)
    model, _ = stack(nn.LSTM, 4, 2)
    net = hf.Network.from_torch(model.float())
    x = torch.randn((1, 4, 3), generator=seeded(5))
    found, seconds = [], (2.5, 100)
    for stop in seconds:
        passes.clear()
        [bracket] = hf.radius(
            net, x, net(x).argmax(1), frames=0, methods=[method], stop=hf.Stop(seconds=stop)
        )
        found.append((bracket, len(passes)))
    (early, few), (whole, many) = found
    assert few == 3
    assert many > few
    assert 0 < early.lower.value <= whole.lower.value
    assert early.lower.evidence.kind == "proved"
    forms = early.lower.evidence.settings["intermediate_bounds"]
    assert re.fullmatch(r"affine forms with \d+ noise symbols", str(forms))
    tight = isinstance(method, hf.certify.Tighten)
    assert ("were not begun" in early.note) == tight
    assert "were not begun" not in whole.note


def test_deep_stacks_try_a_smaller_radius_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last frame of a stack of k LSTM layers is followed by up to 2 k activations, and by k at least."""
    monkeypatch.setattr(first_bounds, "WALK_SHARE", 0.0)
    x, last = torch.zeros((1, 3, 3)), torch.tensor([[False, False, True]])
    shares = []
    for layers in (1, 2, 6):
        net = hf.Network.from_torch(stack(nn.LSTM, 3, layers)[0].float())
        family = hf.region.Frames(x, torch.zeros(1).double(), torch.inf, net.domain, mask=last)
        problem = hf.Problem(net, family, hf.Robustness(torch.tensor([0])), "radius", (hf.result.Key(0),))
        shares.append(float(certify._first_radius_share(problem)))
    assert shares[0] == pytest.approx(2 * shares[1])
    assert shares[1] == pytest.approx(9 * shares[2])


def test_a_decoder_over_many_frames_is_no_deep_stack() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.LSTM(3, 3, batch_first=True) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x)[0][:, -1:].expand(-1, x.shape[1], -1))[0][:, -1]
            return out

    plan = plan_forms(build(Network.from_torch(Decoder().eval()), torch.zeros(1, 6, 3)))
    assert plan is not None
    assert plan.least_depth == 2
    assert int(plan.depth_of_inputs.min()) > 6


def test_forms_over_one_box_agree_with_all_noise_symbols() -> None:
    """Without merging, the reduced forms are the ordinary ones."""
    _, graph = stack(nn.GRU, 4, 1)
    region = one_frame(4, [1], 0.2)
    reduced, found = forms_over(graph, region, 10**6)
    plain = Forms.over(graph.entry, *region.enclosing_box())
    boxes, _ = crown_with_fixed_bounds.propagate(graph, region, plain, walks=False)
    for node in graph.nodes:
        torch.testing.assert_close(found.lower[node], boxes.lower[node], rtol=1e-9, atol=1e-12)
    rows = torch.eye(3).double()[None]
    ours, theirs = (forms.linear_lower_bound(graph.entry, graph.output, rows) for forms in (reduced, plain))
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-9, atol=1e-12)


@full_only  # It compares widths; whether bounds hold is tested above.
def test_noise_symbols_grow_with_the_values_that_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer symbols than live values, order reduction would replace nearly all of them every time."""
    monkeypatch.setattr(first_bounds, "NOISE_SYMBOLS", 50)
    monkeypatch.setattr(first_bounds, "WALK_SHARE", 0.0)
    model = Stack(nn.LSTM, 6, 4, gain=3.0).eval()
    region, widths = one_frame(20, [0], 0.3), {}
    for least in (0, first_bounds.NOISE_SYMBOLS_OF_A_LIVE_VALUE):
        monkeypatch.setattr(first_bounds, "NOISE_SYMBOLS_OF_A_LIVE_VALUE", least)
        graph = build(Network.from_torch(model), torch.zeros(1, 20, 3))
        plan = plan_forms(graph)
        assert plan is not None
        assert plan.noise == max(50, least * plan.live)
        row = 8 * first_bounds.COPIES_OF_A_FORM * plan.live
        with memory_budget.within(row * plan.noise):
            assert plan.noise_symbols(torch.device("cpu")) == (plan.noise if least else 50)
            boxes = propagate_first(graph, region)
        widths[least] = (boxes.upper[graph.output] - boxes.lower[graph.output]).max()
    assert 5 * widths[first_bounds.NOISE_SYMBOLS_OF_A_LIVE_VALUE] < widths[0]


def test_less_memory_means_fewer_noise_symbols_and_still_a_bound() -> None:
    _, graph = stack(nn.LSTM, 9, 2)
    plan = plan_forms(graph)
    assert plan is not None
    assert plan.noise > 2 * plan.live
    cpu = torch.device("cpu")
    row = 8 * first_bounds.COPIES_OF_A_FORM * plan.live
    region, rows = one_frame(9, [0], 0.01), torch.eye(3).double()[None]
    for symbols in (2 * plan.live, plan.live):
        with memory_budget.within(row * symbols):
            assert plan.noise_symbols(cpu) == (symbols if symbols >= 2 * plan.live else 0)
            assert plan.rows_at_once(cpu) == 1
            boxes = propagate_first(graph, region)
        found = crown.lower_bound(graph, boxes, rows, torch.zeros(1, 3, dtype=torch.float64))
        assert found.isfinite().all()


def test_influence_is_the_length_of_the_derivatives() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).eval()
    graph = build(Network.from_torch(model), torch.zeros(1, 2, 3))
    centre = torch.randn((2, 2, 3), generator=seeded(0), dtype=torch.float64)
    found = find_influence(graph, Box.between(centre - 1, centre + 1))
    assert found[graph.output].tolist() == [[influence.DIRECTIONS**0.5] * 3] * 2
    again = find_influence(graph, Box.between((centre - 1).flip(0), (centre + 1).flip(0)))
    for node, size in found.items():
        assert torch.equal(again[node], size.flip(0))
    (tanh,) = [node for node in graph.nodes if isinstance(node, Relaxed)]
    signs = torch.randint(0, 2, (influence.DIRECTIONS, 3), generator=torch.Generator().manual_seed(0)) * 2 - 1
    rows = signs.double() @ model[3].weight.detach().double()
    torch.testing.assert_close(found[tanh][0], rows.square().sum(0).sqrt())


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("p", [1, 2])
def test_balls_that_forms_see_as_boxes_are_bounded_by_backward_passes(
    cell: type[nn.RNNBase], p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 600 inputs the box around a ball of norm 2 is 24 times as wide, and forms alone prove a fraction."""
    torch.manual_seed(0)
    model = nn.Sequential(cell(50, 6, batch_first=True), LastFrame(), nn.Linear(6, 3)).eval()
    net, x = Network.from_torch(model), torch.rand((1, 12, 50), generator=seeded(1))
    graph = build(net, x)
    ball = hf.Ball(x, 0.1, p)
    assert plan_forms(graph) is not None
    assert plan_forms(graph, hf.Ball(x, 0.1, torch.inf)) is not None
    assert plan_forms(graph, ball) is None
    certify = [hf.certify.Certify()]
    y = net(x).argmax(1)
    now = hf.radius(net, x, y, norm=p, methods=certify).lower
    monkeypatch.setattr(first_bounds, "WALK_SHARE_OF_BALLS", 0.0)
    assert plan_forms(graph, ball) is not None
    before = hf.radius(Network.from_torch(model), x, y, norm=p, methods=certify).lower
    assert bool((now >= before).all())
    assert bool((now > 0).all())


class LastFrame(nn.Module):
    """The last output of a recurrent layer."""

    def forward(self, answer: tuple[Tensor, Tensor]) -> Tensor:
        return answer[0][:, -1]
