"""Where only some frames move the walk back is shorter. Its answers must not differ from those of the long way, and must hold."""

import pytest
import torch
from bounds_zoo import Sequence
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding.crown import linear_bound, lower_bound, propagate
from holdfast.bounding.graph.graph import Affine, build
from holdfast.random_streams import RandomStreams
from sizes import combinations

FRAMES, FEATURES, BATCH = 4, 2, 6
LAYERS = {
    "rnn": lambda: nn.RNN(FEATURES, 4, batch_first=True),
    "lstm": lambda: nn.LSTM(FEATURES, 4, batch_first=True),
    "gru": lambda: nn.GRU(FEATURES, 4, num_layers=2, batch_first=True),
    "both ways": lambda: nn.LSTM(FEATURES, 3, bidirectional=True, batch_first=True),
}


class Flat(nn.Module):
    """Reads all frames at once, and single ones besides."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.one, self.head = (
            nn.Linear(FRAMES * FEATURES, 4),
            nn.Linear(FEATURES, 4),
            nn.Linear(4, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(
            torch.tanh(self.all(x.flatten(1)))
            + torch.sigmoid(self.one(x[:, 2])) * torch.relu(self.one(x[:, 0]))
        )
        return answer


def network(name: str) -> hf.Network:
    torch.manual_seed(0)
    module = Flat() if name == "flat" else Sequence(LAYERS[name]())
    return hf.Network.from_torch(module.double().eval())


def masks(kind: str) -> Tensor:
    """Which frames move in each row: one each, some at random (in any order, with gaps), none, all."""
    places = torch.arange(BATCH) % FRAMES
    one = torch.nn.functional.one_hot(places, FRAMES).bool()
    some = torch.rand(BATCH, FRAMES, generator=torch.Generator().manual_seed(1)) < 0.3
    some[:2] = torch.tensor([[False] * FRAMES, [True] * FRAMES])
    return {"one each": one, "some": some}[kind]


@pytest.mark.parametrize(
    ("name", "kind", "p"),
    combinations([*LAYERS, "flat"], ["one each", "some"], [1.0, 2.0, torch.inf], together=2),
)
def test_a_batch_of_different_masks_is_bounded_like_each_row_alone(name: str, kind: str, p: float) -> None:
    net, x = (
        network(name),
        torch.randn(BATCH, FRAMES, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(2)),
    )
    graph = build(net, x)
    rows, offset = hf.Robustness(net(x).argmax(1)).rows(3)
    for radius in (0.5,):
        region = hf.region.Frames(x, radius, p, mask=masks(kind))
        boxes = propagate(graph, region)
        found = lower_bound(graph, boxes, rows, offset)
        for i in range(BATCH):
            alone = hf.region.Frames(x[i : i + 1], radius, p, mask=masks(kind)[i : i + 1])
            expected = lower_bound(graph, propagate(graph, alone), rows[i : i + 1], offset[i : i + 1])
            assert torch.allclose(found[i], expected[0], rtol=1e-9, atol=1e-10)
        points = region.sample(200, RandomStreams.of(range(len(region)), 3))
        outputs = net(points.flatten(0, 1)).reshape(200, BATCH, 3)
        scores = torch.einsum("brk,sbk->sbr", rows, outputs) + offset
        assert (found <= scores.amin(0)).all()
        plane = linear_bound(graph, boxes, rows)
        below = torch.einsum("brfn,sbfn->sbr", plane.coefficients, points) + plane.constant
        assert (below <= scores + 1e-9).all()
        assert (plane.minimum(region) <= scores.amin(0)).all()


@pytest.mark.parametrize("name", ["rnn", "lstm"])
def test_the_short_way_is_as_tight_as_the_long_one(name: str) -> None:
    """A domain that differs from frame to frame is not condensed, so it takes the long way for the same question."""
    net, x = (
        network(name),
        torch.randn(BATCH, FRAMES, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(4)),
    )
    graph = build(net, x)
    rows, offset = hf.Robustness(net(x).argmax(1)).rows(3)
    wide = torch.full((FRAMES, FEATURES), 100.0)
    for kind in ("one each", "some"):
        short = hf.region.Frames(x, 0.3, 2.0, domain=(-100.0, 100.0), mask=masks(kind))
        long = hf.region.Frames(x, 0.3, 2.0, domain=(-wide, wide), mask=masks(kind))
        assert long.condense() is None
        assert (short.condense() is None) == bool(masks(kind).all(1).any())
        found, expected = (
            lower_bound(graph, propagate(graph, region), rows, offset) for region in (short, long)
        )
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-10)


def test_what_stays_still_is_not_walked() -> None:
    net, x = network("lstm"), torch.randn(1, FRAMES, FEATURES, dtype=torch.float64)
    graph = build(net, x)
    mask = torch.tensor([[False, False, True, False]])
    boxes = propagate(graph, hf.region.Frames(x, 0.1, 2.0, mask=mask))
    still = [node for node in graph.nodes if boxes.moving[node].start == boxes.moving[node].stop]
    assert len(still) > len(graph.nodes) / 3
    for node in still:
        assert (boxes.upper[node] - boxes.lower[node]).max() < 1e-12


def test_elements_laid_side_by_side_and_taken_again_are_read_where_they_were() -> None:
    """A network that reads its last output only must not carry all the others."""
    net, x = network("lstm"), torch.randn(1, FRAMES, FEATURES, dtype=torch.float64)
    graph = build(net, x)
    assert not [node for node in graph.nodes if isinstance(node, Affine) and node.copies and not node.moves]
    every = build(hf.Network.from_torch(Sequence(LAYERS["lstm"](), read="all").double().eval()), x)
    assert [node for node in every.nodes if isinstance(node, Affine) and node.copies and not node.moves]


class Repeated(nn.Module):
    """Reads some numbers several times, as replicated padding does."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear((FRAMES + 3) * FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(x[:, [0, 0, *range(FRAMES), FRAMES - 1]].flatten(1))
        return answer


@pytest.mark.parametrize("kind", ["one each", "some"])
def test_what_stays_still_and_is_read_twice_counts_twice(kind: str) -> None:
    """It once counted once, which moved bounds to the wrong side of what happens at the centre."""
    torch.manual_seed(0)
    module = Repeated().double().eval()
    x = torch.randn(BATCH, FRAMES, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    region = hf.region.Frames(x, 0.3, 1.0, mask=masks(kind))
    found = hf.bounds(hf.Network.from_torch(module), region)
    for points in (x[None], region.sample(50, RandomStreams.of(range(len(region)), 3))):
        met = torch.stack([module(point) for point in points]).detach()
        assert bool((found.lower <= met + 1e-9).all())
        assert bool((met <= found.upper + 1e-9).all())
    slope = module.head.weight.detach().abs().amax() * 3 * 0.3
    assert bool((found.upper - found.lower <= 2 * slope * FRAMES + 1e-9).all())
