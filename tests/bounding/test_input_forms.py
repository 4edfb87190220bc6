"""Affine forms of wide networks with few varying inputs: every value of every node lies in its form."""

import pytest
import torch
from bounds_zoo import values
from torch import Tensor, nn

from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.crown_with_fixed_bounds import propagate
from holdfast.bounding.graph import graph as graph_module
from holdfast.bounding.graph.fusion import fuse_affine
from holdfast.bounding.graph.graph import Graph, build
from holdfast.bounding.input_forms import InputForms, is_wide
from holdfast.network import Network
from holdfast.property import Avoid
from holdfast.random_streams import RandomStreams
from holdfast.region import Box


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A generator of images from five numbers and a convolutional classifier, without any stored matrix."""
    monkeypatch.setattr(graph_module, "LARGEST_MATRIX", 0)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 32),
        nn.ReLU(),
        nn.Unflatten(1, (2, 4, 4)),
        nn.ConvTranspose2d(2, 3, 3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 2),
    ).eval()
    net = Network.from_torch(model, shape=(5,))
    graph = fuse_affine(build(net, torch.zeros(1, 5)))
    assert is_wide(graph)
    return graph


def some_boxes(width: float) -> Box:
    """Three boxes; the fourth input varies in none of them, the second only in one."""
    generator = torch.Generator().manual_seed(1)
    centre = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    radius = width * torch.rand(3, 5, generator=generator, dtype=torch.float64)
    radius[:, 3], radius[1:, 1] = 0, 0
    return Box.between(centre - radius, centre + radius)


def samples(region: Box) -> Tensor:
    lower, upper = region.enclosing_box()
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 5)[:, None]
    return torch.cat([lower + corners * (upper - lower), region.sample(100, RandomStreams.of(range(3), 2))])


@pytest.mark.parametrize("most", [0, 300, 2**20])
@pytest.mark.parametrize("width", [0.0, 0.01, 0.3])
def test_forms_hold_every_value_with_all_few_and_no_symbols_of_errors(
    wide: Graph, most: int, width: float
) -> None:
    region = some_boxes(width)
    forms = InputForms(wide, *region.enclosing_box(), most)
    propagate(wide, region, forms, walks=False)
    rows = torch.tensor([[1.0, -1.0], [0.0, 2.0]], dtype=torch.float64).expand(3, 2, 2)
    slope, constant = forms.linear_lower_bound(wide.entry, wide.output, rows)
    assert slope.shape == (3, 2, 5)
    assert not bool(slope[:, :, 3].any())
    for x in samples(region):
        found = values(wide, x)
        for node, value in found.items():
            lower, upper = forms.of[node].interval_bounds()
            slack = 1e-12 * (1 + value.flatten(1).abs())  # of `values`, which computes in float64
            assert bool((value.flatten(1) >= lower - slack).all())
            assert bool((value.flatten(1) <= upper + slack).all())
        attained = (rows @ found[wide.output].flatten(1)[..., None])[..., 0]
        bound = (slope @ x[..., None])[..., 0] + constant
        assert bool((bound <= attained + 1e-12 * (1 + attained.abs())).all())


def test_symbols_of_errors_tighten_the_bounds_and_are_limited(wide: Graph) -> None:
    region, found = some_boxes(0.3), list[float]()
    for most in (0, 300, 2**20):
        forms = InputForms(wide, *region.enclosing_box(), most)
        propagate(wide, region, forms, walks=False)
        lower, upper = forms.of[wide.output].interval_bounds()
        found.append(float((upper - lower).mean()))
        assert forms.count <= max(4, most // wide.output.size)
        named = forms.count > 4  # symbols of inputs alone: the fourth never varies
        assert named == (most > 0)
    assert found[0] > found[2]
    plain, _ = propagate(wide, region, None, walks=False)
    assert found[0] < float((plain.upper[wide.output] - plain.lower[wide.output]).mean())


def test_input_splits_decide_a_wide_network(wide: Graph) -> None:
    """The threshold lies just below the least value that many samples attain."""
    region = some_boxes(0.3)
    attained = torch.stack([values(wide, x)[wide.output].flatten(1) for x in samples(region)]).amin(0)
    margin = 0.05 * (attained[:, :1].abs() + 1)
    rules = Avoid(
        torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64).expand(3, 1, 1, 2),
        (margin - attained[:, :1])[:, None],
    )
    rule = InputSplit()
    queue = rule.start(wide, region, rules)
    for _ in range(200):
        if not len(queue):
            break
        queue, _ = rule.step(wide, region, rules, queue)
    assert not len(queue)
    assert queue.lost == torch.inf
    refutable = Avoid(
        rules.matrix, -attained[:, :1][:, None] - 1e-9
    )  # the sample with the least value fails this
    queue = rule.start(wide, region, refutable)
    for _ in range(5):
        queue, _ = rule.step(wide, region, refutable, queue)
    assert set(queue.task.tolist()) == {0, 1, 2}
