"""Two networks as one and the difference of the other: the same function exactly, and bounds that hold and are closer."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding import crown
from holdfast.bounding.graph import equivalence_check
from holdfast.bounding.graph.branch_difference import subtract_branches
from holdfast.bounding.graph.exact_rewriting import add_exactly
from holdfast.bounding.graph.fusion import prepare_graph
from holdfast.bounding.graph.graph import Relaxed
from holdfast.bounding.relax import Relu, ReluDifference
from holdfast.region import Box


class Both(nn.Module):
    """Both networks at the same input, or the second at another one: (y, y')."""

    def __init__(self, one: nn.Module, other: nn.Module, *, apart: bool = False) -> None:
        super().__init__()
        self.one, self.other, self.apart = one, other, apart

    def forward(self, x: Tensor) -> Tensor:
        if not self.apart:
            return torch.cat([self.one(x), self.other(x)], 1)
        return torch.cat([self.one(x[:, :4]), self.other(x[:, :4] + x[:, 4:])], 1)


def mlp(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)).eval()


def convolutional(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    ).eval()


def rounded(net: nn.Module, steps: float = 256.0) -> nn.Module:
    other = copy.deepcopy(net)
    with torch.no_grad():
        for weight in other.parameters():
            weight.copy_((weight * steps).round() / steps)
    return other


def pair(module: nn.Module, size: int) -> tuple[hf.Network, Box]:
    net = hf.Network.from_torch(module.eval(), shape=(size,))
    lower = -torch.ones(1, size, dtype=torch.float64)
    upper = torch.ones(1, size, dtype=torch.float64)
    if size == 8:
        lower[:, 4:], upper[:, 4:] = -0.05, 0.05
    return net, Box.between(lower, upper)


DIFFERENCES = torch.cat([torch.eye(3), -torch.eye(3)], 1).double()
ROWS = torch.cat([DIFFERENCES, -DIFFERENCES])[None]


@pytest.mark.parametrize("make", [mlp, convolutional])
@pytest.mark.parametrize("apart", [False, True])
def test_bounds_hold_and_are_closer(make: Callable[[int], nn.Module], apart: bool) -> None:
    one = make(0)
    net, box = pair(Both(one, rounded(one), apart=apart), 8 if apart else 4)
    graph = prepare_graph(net, box)
    made = subtract_branches(graph, 0, 3, 3)
    assert made is not None
    kinds = [type(node.relaxation) for node in made.nodes if isinstance(node, Relaxed)]
    assert kinds.count(ReluDifference) == kinds.count(Relu) == len(kinds) / 2
    equivalence_check.check(net, made, box)
    naive, closer = (
        crown.lower_bound(g, crown.propagate(g, box), ROWS, torch.zeros(1, 6, dtype=torch.float64))
        for g in (graph, made)
    )
    g = torch.Generator().manual_seed(1)
    x = box.lower + torch.rand(4000, box.lower.shape[1], generator=g, dtype=torch.float64) * (
        box.upper - box.lower
    )
    corners = torch.where(torch.rand(4000, box.lower.shape[1], generator=g) < 0.5, box.lower, box.upper)
    twin = net.double(box.centre)
    assert twin is not None
    met = (twin(torch.cat([x, corners])) @ ROWS[0].T).amin(0)
    assert bool((met >= closer[0]).all())
    assert float(closer.min()) > float(naive.min()) / 2
    bounds = crown.propagate(made, box)
    for node, value in equivalence_check.values(made, x, made.nodes).items():
        flat = value.reshape(len(x), -1)
        low, high = (bounds.__dict__[side][node].reshape(1, -1) for side in ("lower", "upper"))
        slack = 1e-9 * (1 + flat.abs())
        assert bool((flat >= low - slack).all() and (flat <= high + slack).all()), node.name


def test_equal_networks_differ_by_nothing() -> None:
    one = mlp(0)
    net, box = pair(Both(one, copy.deepcopy(one)), 4)
    made = subtract_branches(prepare_graph(net, box), 0, 3, 3)
    assert made is not None
    assert not any(
        isinstance(node, Relaxed) and isinstance(node.relaxation, ReluDifference) for node in made.nodes
    )
    zero = crown.lower_bound(made, crown.propagate(made, box), ROWS, torch.zeros(1, 6, dtype=torch.float64))
    assert bool((zero <= 0).all())
    assert bool((zero > -1e-12).all())


def test_other_structures_are_left_alone() -> None:
    torch.manual_seed(0)
    deeper = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    for other in (deeper, nn.Linear(4, 3)):
        net, box = pair(Both(mlp(0), other), 4)
        assert subtract_branches(prepare_graph(net, box), 0, 3, 3) is None


def test_differences_of_weights_are_exact() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = (
        torch.randn(200, generator=g, dtype=torch.float64)
        * 10.0 ** torch.randint(-30, 3, (200,), generator=g)
        for _ in range(2)
    )
    total, rest = add_exactly(a, -b)
    from fractions import Fraction

    for k in range(200):
        assert Fraction(float(total[k])) + Fraction(float(rest[k])) == Fraction(float(a[k])) - Fraction(
            float(b[k])
        )
    assert bool(rest.any())


def test_weights_of_very_different_size_keep_their_difference() -> None:
    """1 - 2^-60 has no float64; what is left becomes a map of its own, and the bounds still hold."""
    one, other = mlp(0).double(), mlp(0).double()
    with torch.no_grad():
        one[0].weight[0] = 1.0
        other[0].weight[0] = 2.0**-60
    net, box = pair(Both(one, other), 4)
    graph = prepare_graph(net, box)
    made = subtract_branches(graph, 0, 3, 3)
    assert made is not None
    assert len(made.nodes) > len(graph.nodes) + 1
    equivalence_check.check(net, made, box)
