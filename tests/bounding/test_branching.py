"""What branch and bound stands on: affine forms, trained bounds, and cuts, against samples and exact arithmetic."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from bounds_zoo import ZOO, network, values
from torch import Tensor, nn

from holdfast import batch
from holdfast.bounding.alpha_beta_crown import (
    RowTask,
    concatenate_nodes,
    relu_like_functions,
    relu_preactivations,
    tighten_intermediate_bounds,
)
from holdfast.bounding.branching import input_split as branch
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.branching.subproblem_queue import PolytopeQuestion
from holdfast.bounding.crown import propagate as plain_propagate
from holdfast.bounding.crown_with_fixed_bounds import propagate, take_rows
from holdfast.bounding.graph.fusion import fuse_affine, prepare_graph
from holdfast.bounding.graph.graph import Affine, Graph, Relaxed, build
from holdfast.bounding.zonotope import Forms
from holdfast.network import Network
from holdfast.property import Avoid
from holdfast.random_streams import RandomStreams
from holdfast.region import Box

SOME = [*list(ZOO)[::6], "residual", "lstm"]


def perceptron(seed: int, *sizes: int) -> tuple[nn.Sequential, Network]:
    torch.manual_seed(seed)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers[:-1]).eval()
    return model, Network.from_torch(model, shape=(sizes[0],))


def boxes(seed: int, count: int, shape: tuple[int, ...], width: float) -> Box:
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn((count, *shape), generator=generator, dtype=torch.float64)
    radius = width * torch.rand((count, *shape), generator=generator, dtype=torch.float64)
    return Box.between(centre - radius, centre + radius)


def with_forms(graph: Graph, region: Box) -> tuple[Forms, dict[object, tuple[Tensor, Tensor]]]:
    forms = Forms.over(graph.entry, *region.enclosing_box())
    propagate(graph, region, forms)
    return forms, {node: form.interval_bounds() for node, form in forms.of.items()}


@pytest.mark.parametrize("name", SOME)
def test_forms_hold_every_value_of_every_node(name: str) -> None:
    _, net = network(name)
    shape = ZOO[name].shape
    graph = fuse_affine(build(net, torch.zeros(1, *shape)))
    for width in (0.0, 0.05, 0.5):
        region = boxes(1, 4, shape, width)
        _, ends = with_forms(graph, region)
        assert graph.entry in ends
        for x in region.sample(25, RandomStreams.of(range(len(region)), 2)):
            for node, value in values(graph, x).items():
                if node in ends:
                    lower, upper = ends[node]
                    slack = 1e-12 * (1 + value.flatten(1).abs())  # of `values`, which computes in float64
                    assert bool((value.flatten(1) >= lower - slack).all())
                    assert bool((value.flatten(1) <= upper + slack).all())


def exact(model: nn.Sequential, x: list[float]) -> list[list[Fraction]]:
    """The outputs of every layer of a perceptron, without any rounding."""
    value, found = [Fraction(v) for v in x], []
    for layer in model:
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight.tolist(), layer.bias.tolist()
            value = [
                sum((Fraction(w) * v for w, v in zip(row, value, strict=True)), Fraction(b))
                for row, b in zip(weight, bias, strict=True)
            ]
        else:
            value = [max(v, Fraction(0)) for v in value]
        found.append(value)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [0.0, 1e-13, 1e-3])
def test_forms_pay_for_every_rounding(seed: int, width: float) -> None:
    """Boxes so narrow that only rounding is left, large numbers that cancel, and the truth in exact arithmetic."""
    model, net = perceptron(seed, 3, 8, 8, 2)
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.mul_(1e3)
            layer.weight[::2] = -layer.weight[1::2].flip(0) * (
                1 + 2**-20
            )  # rows that nearly cancel in the next layer
    net = Network.from_torch(model, shape=(3,))
    graph = fuse_affine(build(net, torch.zeros(1, 3)))
    region = boxes(seed, 3, (3,), width)
    _, ends = with_forms(graph, region)
    nodes = [
        node
        for node in graph.nodes
        if isinstance(node, Relaxed) or (isinstance(node, Affine) and node.rows(torch.arange(1)) is not None)
    ]
    points = [
        region.lower,
        region.upper,
        region.centre,
        *region.sample(4, RandomStreams.of(range(len(region)), seed)),
    ]
    for x in points:
        for row in range(3):
            for node, truth in zip(nodes, exact(model, x[row].tolist()), strict=True):
                for i, value in enumerate(truth):
                    assert (
                        Fraction(float(ends[node][0][row, i]))
                        <= value
                        <= Fraction(float(ends[node][1][row, i]))
                    )


@pytest.mark.parametrize("name", ["relu", "residual", "lstm"])
def test_planes_of_forms_stay_below(name: str) -> None:
    _, net = network(name)
    shape = ZOO[name].shape
    graph = fuse_affine(build(net, torch.zeros(1, *shape)))
    region = boxes(3, 4, shape, 0.2)
    region = Box.between(
        region.lower,
        torch.where(torch.arange(region.lower[0].numel()).reshape(shape) == 0, region.lower, region.upper),
    )
    forms, _ = with_forms(graph, region)
    rows = torch.cat(
        [
            torch.eye(graph.output.size, dtype=torch.float64),
            -torch.ones((1, graph.output.size), dtype=torch.float64),
        ]
    ).expand(4, -1, -1)
    slope, constant = forms.linear_lower_bound(graph.entry, graph.output, rows)
    for x in [region.lower, region.upper, *region.sample(50, RandomStreams.of(range(len(region)), 2))]:
        truth = (rows @ values(graph, x)[graph.output].flatten(1).unsqueeze(-1)).squeeze(-1)
        plane = (slope @ x.flatten(1).unsqueeze(-1)).squeeze(-1) + constant
        assert bool((plane <= truth + 1e-12).all())
    narrow = Box.between(region.centre, region.centre)
    forms, _ = with_forms(graph, narrow)
    slope, constant = forms.linear_lower_bound(graph.entry, graph.output, rows)
    truth = (rows @ values(graph, region.centre)[graph.output].flatten(1).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(
        (slope @ region.centre.flatten(1).unsqueeze(-1)).squeeze(-1) + constant, truth, rtol=1e-9, atol=1e-9
    )


def test_forms_are_tighter_than_intervals_and_share_adds_up() -> None:
    _, net = perceptron(0, 4, 20, 20, 20, 3)
    graph = fuse_affine(build(net, torch.zeros(1, 4)))
    region = boxes(0, 8, (4,), 0.3)
    forms = Forms.over(graph.entry, *region.enclosing_box())
    better, _ = propagate(graph, region, forms)
    before = plain_propagate(graph, region)
    inner = relu_preactivations(graph)[-1]
    assert float((better.upper[inner] - better.lower[inner]).mean()) < 0.95 * float(
        (before.upper[inner] - before.lower[inner]).mean()
    )
    assert bool((forms.share >= 0).all())
    assert bool((forms.share.sum(1) <= 1 + 1e-9).all())  # what is due to inputs is no more than all there is


@pytest.mark.parametrize("name", ["relu", "residual", "lstm", "encoder"])
def test_fused_graphs_compute_the_same(name: str) -> None:
    _, net = network(name)
    x = torch.randn(5, *ZOO[name].shape)
    graph = build(net, x)
    shorter = fuse_affine(graph)
    assert len(shorter.nodes) <= len(graph.nodes)
    assert [node.place for node in shorter.nodes] == list(range(len(shorter.nodes)))
    assert torch.equal(values(graph, x)[graph.output], values(shorter, x)[shorter.output])


def test_a_product_and_a_sum_become_one_node() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            h = x @ self.weight
            return torch.relu(h + self.bias) + torch.relu(x @ self.weight)  # the second has no sum behind it

    net = Network.from_torch(Split().eval(), shape=(3,))
    graph = build(net, torch.zeros(1, 3))
    shorter = fuse_affine(graph)
    assert len(shorter.nodes) == len(graph.nodes) - 1
    for node in shorter.nodes:
        if isinstance(node, Affine) and (rows := node.rows(torch.arange(node.size))) is not None:
            x, matrix = torch.randn(node.inputs[0].size, dtype=torch.float64), rows[0]
            shift = torch.zeros(node.size, dtype=torch.float64) if node.shift is None else node.shift
            torch.testing.assert_close(node.forward([x]), matrix @ x + shift)
            torch.testing.assert_close(node.forward_absolute([x.abs()]), matrix.abs() @ x.abs() + shift.abs())


@pytest.mark.parametrize("seed", range(3))
def test_trained_bounds_hold_where_decisions_do(seed: int) -> None:
    """Random decisions, then every sampled point that meets them; and bounds get better by training."""
    _, net = perceptron(seed, 6, 12, 12, 3)
    graph = fuse_affine(build(net, torch.zeros(1, 6)))
    region = boxes(seed, 1, (6,), 0.6)
    x = region.sample(4000, RandomStreams.of(range(len(region)), seed))[:, 0]
    found = values(graph, x)
    pre = concatenate_nodes(graph, found)
    known, _ = propagate(graph, region)
    open_ = (
        ((concatenate_nodes(graph, known.lower) < 0) & (concatenate_nodes(graph, known.upper) > 0))[0]
        .nonzero()
        .flatten()
    )
    chosen = open_[torch.randperm(len(open_), generator=torch.Generator().manual_seed(seed))[:3]]
    for pattern in range(8):
        sign = torch.zeros((1, pre.shape[1]), dtype=torch.int8)
        sign[0, chosen] = torch.tensor(
            [1 if pattern >> k & 1 else -1 for k in range(len(chosen))], dtype=torch.int8
        )
        ends = torch.where(sign > 0, 0.0, -math.inf).double(), torch.where(sign < 0, 0.0, math.inf).double()
        within = {}
        for node, low, high in zip(
            relu_preactivations(graph),
            *(e.split([n.size for n in relu_preactivations(graph)], dim=1) for e in ends),
            strict=True,
        ):
            within[node] = low.reshape(1, *node.shape), high.reshape(1, *node.shape)
        held, empty = propagate(graph, region, within=within)
        meets = ((pre * sign)[:, chosen] >= 0).all(1)
        assert not (bool(empty) and bool(meets.any()))
        matrix, offset = torch.eye(3, dtype=torch.float64)[:, None], torch.zeros((3, 1), dtype=torch.float64)
        rows = RowTask(
            graph,
            take_rows(held, torch.zeros(3, dtype=torch.int64)),
            graph.output,
            matrix,
            offset,
            sign.expand(3, -1),
        )
        start = torch.full((3, pre.shape[1]), math.nan, dtype=torch.float64)
        with torch.no_grad():
            first, after = (
                rows.train(start.clone(), torch.zeros_like(start), steps, 0.2) for steps in (0, 25)
            )
        assert bool((after.least >= first.least).all())
        if bool(meets.any()):
            truth = found[graph.output].flatten(1)[meets].amin(0)
            assert bool((after.least <= truth + 1e-9).all()), (after.least, truth)


def test_trained_ends_hold_and_are_narrower() -> None:
    _, net = perceptron(1, 6, 14, 14, 14, 2)
    graph = fuse_affine(build(net, torch.zeros(1, 6)))
    region = boxes(1, 2, (6,), 0.5)
    with torch.no_grad():
        held = tighten_intermediate_bounds(graph, region, 15, 0.2, 5)
        before, _ = propagate(graph, region)
    inner = relu_preactivations(graph)[-1]
    assert relu_preactivations(graph)[0] not in held  # its ends are exact already
    assert float((held[inner][1] - held[inner][0]).sum()) < 0.98 * float(
        (before.upper[inner] - before.lower[inner]).sum()
    )
    for x in region.sample(500, RandomStreams.of(range(len(region)), 0)):
        for node, value in values(graph, x).items():
            if node in held:
                assert bool((value >= held[node][0] - 1e-9).all() and (value <= held[node][1] + 1e-9).all())
    assert len(relu_like_functions(graph)) == 3


@pytest.mark.parametrize("seed", range(5))
def test_cuts_never_remove_a_failure(seed: int) -> None:
    """Random planes: a point at which all planes of an open polytope are at most zero stays, in exact arithmetic."""
    generator = torch.Generator().manual_seed(seed)
    slope = torch.randn((40, 2, 3, 2), generator=generator, dtype=torch.float64)
    slope[::7] *= 1e-8
    slope[::5, :, :, 0] = 0
    lower = torch.randn((40, 2), generator=generator, dtype=torch.float64)
    upper = lower + torch.rand((40, 2), generator=generator, dtype=torch.float64) * 10.0 ** torch.randint(
        -9, 1, (40, 1), generator=generator
    )
    constant = (
        -(slope * (lower + upper)[:, None, None] / 2).sum(-1)
        + 0.1
        * torch.randn((40, 2, 3), generator=generator, dtype=torch.float64)
        * (upper - lower).amax(1)[:, None, None]
    )
    everything = torch.ones((40, 2), dtype=torch.bool)
    cut = branch.shrink_box(branch.BoxLinearBounds(slope, constant), lower, upper, everything)
    share = torch.rand((200, 1, 2), generator=generator, dtype=torch.float64)
    points = torch.cat([lower + share * (upper - lower), lower[None], upper[None]])
    points = torch.minimum(torch.maximum(points, lower), upper)
    removed = 0
    for x in points:
        approximately = ((slope * x[:, None, None]).sum(-1) + constant).amax(
            -1
        ) <= 1e-12  # (boxes, polytopes)
        inside = ((x >= cut.lower) & (x <= cut.upper)).all(1)
        for b, p in approximately.nonzero().tolist():
            rows = zip(slope[b, p].tolist(), constant[b, p].tolist(), strict=True)
            exactly = all(
                sum(Fraction(s) * Fraction(v) for s, v in zip(row, x[b].tolist(), strict=True)) + Fraction(c)
                <= 0
                for row, c in rows
            )
            if exactly:
                assert bool(cut.open[b, p])
                assert bool(inside[b])
        removed += int((~inside).sum())
    assert removed > 0  # and something is cut


@pytest.mark.parametrize("seed", range(40))
def test_a_failure_by_the_last_digit_is_not_ruled_out(seed: int) -> None:
    """A plane that is zero, or just below, at one corner of the box and positive everywhere else."""
    generator = torch.Generator().manual_seed(seed)
    slope = torch.randn((1, 1, 1, 12), generator=generator, dtype=torch.float64) * 10.0 ** torch.randint(
        -3, 4, (12,), generator=generator
    )
    lower = torch.randn((1, 12), generator=generator, dtype=torch.float64)
    upper = lower + torch.rand((1, 12), generator=generator, dtype=torch.float64)
    corner = torch.where(slope[0, 0, 0] > 0, lower[0], upper[0])
    truth = sum(
        Fraction(s) * Fraction(v) for s, v in zip(slope.flatten().tolist(), corner.tolist(), strict=True)
    )
    constant = float(-truth)
    while truth + Fraction(constant) > 0:
        constant = math.nextafter(constant, -math.inf)
    planes = branch.BoxLinearBounds(slope, torch.full((1, 1, 1), constant, dtype=torch.float64))
    cut = branch.shrink_box(planes, lower, upper, torch.ones((1, 1), dtype=torch.bool))
    assert bool(cut.open.all())
    assert bool(((corner >= cut.lower) & (corner <= cut.upper)).all())
    assert float((cut.upper - cut.lower).max()) < 1e-5  # and little more than the corner is left


def grid(low: Tensor, high: Tensor, steps: int) -> Tensor:
    axes = [
        torch.linspace(float(a), float(b), steps, dtype=torch.float64) for a, b in zip(low, high, strict=True)
    ]
    return torch.cartesian_prod(*axes)


@pytest.mark.parametrize(
    "method",
    [InputSplit(batch=16), ActivationSplit(batch=16), InputSplit(batch=16, intervals=True)],
    ids=["inputs", "activations", "inputs by intervals"],
)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_left_covers_all_failures(method: InputSplit | ActivationSplit, seed: int) -> None:
    """After every step, each failing point of a grid lies in a part that is left, and its score is at least the part's bound."""
    _, net = perceptron(seed, 2, 10, 10, 2)
    graph = prepare_graph(net, Box.between(-torch.ones(1, 2), torch.ones(1, 2)))
    region = boxes(seed, 1, (2,), 2.0)
    x = grid(region.lower[0], region.upper[0], 61)
    found = values(graph, x)
    outputs, signs = found[graph.output].flatten(1), concatenate_nodes(graph, found)
    rules = Avoid(
        torch.tensor([[[[1.0, -1.0], [0.0, 1.0]], [[-1.0, 0.0], [-1.0, 0.0]]]]).double(),
        torch.zeros(1, 2, 2).double(),
    )
    shift = float(
        batch.take(rules, torch.zeros(len(x), dtype=torch.int64)).score(outputs).quantile(0.2)
    )  # a fifth of the points fails
    rules = Avoid(rules.matrix, rules.offset - shift)
    score = batch.take(rules, torch.zeros(len(x), dtype=torch.int64)).score(outputs)
    frontier = method.start(graph, region, rules)
    for _ in range(6):
        frontier, points = method.step(graph, region, rules, frontier)  # type: ignore[arg-type]
        covered = torch.zeros(len(x), dtype=torch.bool)
        for i in range(len(frontier)):
            if isinstance(method, InputSplit):
                inside = ((x >= frontier.lower[i]) & (x <= frontier.upper[i])).all(1)  # type: ignore[union-attr]
            else:
                inside = (signs * frontier.sign[i] >= -1e-12).all(1)  # type: ignore[union-attr]
            if isinstance(method, ActivationSplit):
                inside &= ((signs >= frontier.lower[i] - 1e-9) & (signs <= frontier.upper[i] + 1e-9)).all(1)  # type: ignore[union-attr]
            covered |= inside
            assert bool((score[inside].clamp_max(0) >= frontier.bound[i] - 1e-9).all())
        assert (
            bool(covered[score <= -1e-12].all()) or frontier.lost < 0
        )  # or it was given up, and that is remembered
        assert frontier.least <= float(score.min()) + 1e-9
        assert bool(region.contains(points.x).all())
    assert frontier.looked > 6


def test_the_queue_stays_short_when_it_may_not_grow() -> None:
    """Nothing fails here, but only just: breadth first many boxes wait, depth first few do, and both come to the end."""
    _, net = perceptron(3, 4, 24, 24, 2)
    graph = prepare_graph(net, Box.between(-torch.ones(1, 4), torch.ones(1, 4)))
    region = boxes(3, 1, (4,), 3.0)
    x = grid(region.lower[0], region.upper[0], 21)
    least = float((values(graph, x)[graph.output].flatten(1) @ torch.tensor([1.0, -1.0]).double()).min())
    rules = Avoid(torch.tensor([[[[1.0, -1.0]]]]).double(), torch.full((1, 1, 1), 0.01 - least).double())
    longest = {}
    for waiting in (2**18, 16):
        method = InputSplit(batch=4, waiting=waiting)
        frontier, most = method.start(graph, region, rules), 0
        while len(frontier):
            frontier, _ = method.step(graph, region, rules, frontier)
            most = max(most, len(frontier))
        longest[waiting] = most
        assert frontier.lost == math.inf
    assert longest[2**18] > 40
    assert longest[16] <= 16 + 2 * 4


def test_trained_slopes_settle_boxes_that_planes_leave_open_and_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, net = perceptron(3, 3, 10, 8, 2)
    graph, twin = fuse_affine(build(net, torch.zeros(1, 3))), model.double()
    region, generator = boxes(0, 60, (3,), 0.8), torch.Generator().manual_seed(0)
    x = torch.stack(list(region.sample(400, RandomStreams.of(range(len(region)), 0))))
    matrix = torch.randn((60, 2, 2, 2), generator=generator, dtype=torch.float64)
    with torch.no_grad():
        rows = torch.einsum("bpro,nbo->nbpr", matrix, twin(x.flatten(0, 1)).reshape(400, 60, 2))
    lowest = rows.amax(-1).amin(0)  # of what was met, (boxes, polytopes)
    missing = torch.rand((60, 2), generator=generator, dtype=torch.float64) * 0.1 - 0.02
    offset = (
        (missing - lowest)[..., None].expand(-1, -1, 2).contiguous()
    )  # some polytopes are met, most are missed by little
    rules, cut = Avoid(matrix, offset), InputSplit()
    parts = cut.start(graph, region, rules)
    fails = (rows + offset <= -1e-12).all(-1).any(0)
    left = []
    for undecided in (-1, branch.MAX_UNSTABLE_FOR_TRAINING):
        monkeypatch.setattr(branch, "MAX_UNSTABLE_FOR_TRAINING", undecided)
        monkeypatch.setattr(branch, "FIRST_TRAINED_BOXES", 240)
        seen = cut.bound(PolytopeQuestion(graph, region, rules), parts)
        assert not (fails & ~seen.parts.open).any()
        left.append(int(seen.parts.open.sum()))
    assert bool(fails.any())
    assert left[1] < left[0]
