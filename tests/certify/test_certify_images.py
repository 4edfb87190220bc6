"""The radius of networks over images: what is known at a radius that failed is used below it, and changes nothing but the time."""

import math

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding import crown, crown_patches
from holdfast.bounding.graph import graph as graphs
from holdfast.certify import certify
from holdfast.certify.certify import KnownBounds


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = (
            nn.Conv2d(1, 3, 3, 1, 1),
            nn.Conv2d(3, 3, 3, 1, 1),
            nn.Conv2d(3, 3, 3, 1, 1),
        )
        self.down, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.two(torch.relu(self.one(x))) + x)
        answer: Tensor = self.head(torch.relu(self.down(x)).mean((2, 3)))
        return answer


@pytest.fixture(autouse=True)
def _whatever_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small images are treated as large ones."""
    for module in (crown, crown_patches):
        monkeypatch.setattr(module, "MIN_DENSE_NUMBERS", 0)
    monkeypatch.setattr(crown_patches, "MIN_SAVING_FACTOR", 0)
    monkeypatch.setattr(graphs, "LARGEST_MATRIX", 0)


@pytest.mark.parametrize("norm", [math.inf, 2.0])
def test_a_search_that_remembers_finds_what_one_that_forgets_does(
    norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, x = Residual().eval().requires_grad_(False), torch.rand(3, 1, 8, 8)
    for layer in (module.stem, module.one, module.two, module.down):
        layer.weight *= 2
    module.head.bias -= module(x).mean(0)  # no class is far ahead
    net = hf.Network.from_torch(module, domain=(0, 1))
    y = net(x).argmax(1)
    asked = list[bool]()
    plain = crown.propagate

    def watched(*args: object) -> crown.Boxes:
        asked.append(any(bool(low.isfinite().any()) for low, _ in args[3].values()))  # type: ignore[attr-defined]
        return plain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(crown, "propagate", watched)
    found = hf.radius(net, x, y, norm=norm, methods=[hf.attacks.PGD(), hf.certify.Certify()])
    assert any(asked)
    monkeypatch.setattr(certify, "reusable_nodes", lambda _: [])
    expected = hf.radius(net, x, y, norm=norm, methods=[hf.certify.Certify()])
    for a, b in zip(found, expected, strict=True):
        assert isinstance(a, hf.Bracket)
        assert isinstance(b, hf.Bracket)
        assert 0 < a.lower.value <= a.upper.value < math.inf
        assert a.lower.value == pytest.approx(b.lower.value, rel=0.005)


def test_ends_are_used_at_smaller_radii_only() -> None:
    node = crown.Node(0, "", (), (1, 2))
    ends = torch.zeros(2, 1, 2), torch.ones(2, 1, 2)
    known = KnownBounds(torch.full((3,), -torch.inf), {}).with_bounds(
        torch.tensor([0, 2]), torch.tensor([1.0, 2.0]), {node: ends}
    )
    (low, high) = known.bounds_at(torch.tensor([0, 1, 2]), torch.tensor([1.5, 0.1, 2.0]))[node]
    assert low.flatten(1).tolist() == [[-math.inf] * 2, [-math.inf] * 2, [0.0] * 2]
    assert high.flatten(1).tolist() == [[math.inf] * 2, [math.inf] * 2, [1.0] * 2]
