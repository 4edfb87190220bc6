"""Rewritten graphs compute the same function in rational arithmetic, and nothing is rewritten that would be rounded."""

from fractions import Fraction
from typing import cast

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.crown_with_fixed_bounds import propagate
from holdfast.bounding.graph import exact_rewriting
from holdfast.bounding.graph.affine import matrices_of
from holdfast.bounding.graph.exact_rewriting import multiply_exactly, simplify_exactly
from holdfast.bounding.graph.fusion import fuse_affine
from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed, build
from holdfast.bounding.relax import Relu
from holdfast.bounding.zonotope import Forms
from holdfast.property import Avoid
from holdfast.region import Box

Numbers = list[Fraction]


def graph_of(model: nn.Module, *shape: int) -> Graph:
    return fuse_affine(build(hf.Network.from_torch(model, shape=shape), torch.zeros(1, *shape)))


def exact_value(graph: Graph, x: Tensor) -> Numbers:
    """The output at one point, in rational arithmetic with the coefficients that the graph holds."""
    known: dict[Node, Numbers] = {graph.entry: [Fraction(v) for v in x.flatten().tolist()]}
    for node in graph.nodes[1:]:
        if isinstance(node, Relaxed):
            assert type(node.relaxation) is Relu
            known[node] = [max(v, Fraction(0)) for v in known[node.inputs[0]]]
            continue
        affine = cast(Affine, node)
        units = [torch.eye(source.size, dtype=torch.float64) for source in affine.inputs]
        total = [Fraction(0)] * node.size if affine.shift is None else [*map(Fraction, affine.shift.tolist())]
        for k, source in enumerate(affine.inputs):
            for column, value in zip(affine.part(k, units[k]).tolist(), known[source], strict=True):
                total = [t + Fraction(c) * value for t, c in zip(total, column, strict=True)]
        known[node] = total
    return known[graph.output]


def neurons(graph: Graph) -> int:
    return sum(node.size for node in graph.nodes if isinstance(node, Relaxed))


def minimum_layer(pairs: int) -> tuple[nn.Linear, nn.Linear]:
    """min(a, b) of neighbours, by four ReLUs each."""
    inner, outer = nn.Linear(2 * pairs, 4 * pairs, bias=False), nn.Linear(4 * pairs, pairs, bias=False)
    with torch.no_grad():
        inner.weight.zero_()
        outer.weight.zero_()
        for k in range(pairs):
            inner.weight[4 * k : 4 * k + 4, 2 * k : 2 * k + 2] = torch.tensor(
                [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]]
            )
            outer.weight[k, 4 * k : 4 * k + 4] = torch.tensor([0.5, -0.5, -0.5, -0.5])
    return inner, outer


def lattice(seed: int) -> nn.Sequential:
    """A minimum of eight affine functions of two inputs."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Linear(2, 8)]
    for pairs in (4, 2, 1):
        inner, outer = minimum_layer(pairs)
        layers += [inner, nn.ReLU(), outer]
    return nn.Sequential(*layers)


def split_neurons(seed: int) -> nn.Sequential:
    """A convolution whose channels are written as relu(z) - relu(-z), and then a ReLU as usual."""
    torch.manual_seed(seed)
    first, second, last = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 3, 1), nn.Linear(48, 2)
    with torch.no_grad():
        first.weight[1::2], first.bias[1::2] = -first.weight[::2], -first.bias[::2]  # type: ignore[index]
        second.weight.zero_()
        for k in range(3):
            second.weight[k, 2 * k : 2 * k + 2, 0, 0] = torch.tensor([1.0, -1.0])
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), last)


def mixed(seed: int) -> nn.Sequential:
    """Equal, opposite and single pre-activations in one layer, read by arbitrary coefficients."""
    torch.manual_seed(seed)
    first, last = nn.Linear(3, 9), nn.Linear(9, 2)
    with torch.no_grad():
        for a, b, sign in ((1, 0, -1), (2, 0, -1), (4, 3, 1), (7, 8, -1)):
            first.weight[a], first.bias[a] = sign * first.weight[b], sign * first.bias[b]
    return nn.Sequential(first, nn.ReLU(), last)


@pytest.mark.parametrize(
    ("model", "shape", "before", "after"),
    [(lattice(0), (2,), 28, 7), (split_neurons(0), (2, 4, 4), 144, 48), (mixed(0), (3,), 9, 5)],
)
def test_same_function_with_fewer_neurons(
    model: nn.Module, shape: tuple[int, ...], before: int, after: int
) -> None:
    graph = graph_of(model, *shape)
    shorter = simplify_exactly(graph)
    assert (neurons(graph), neurons(shorter)) == (before, after)
    assert len(shorter.nodes) <= len(graph.nodes)
    assert all(node.place == k for k, node in enumerate(shorter.nodes))
    torch.manual_seed(1)
    for x in (4 * torch.randn(6, *shape)).double():
        assert exact_value(graph, x) == exact_value(shorter, x)


def test_minima_have_tight_bounds() -> None:
    """Over a box with one smallest function the minimum is affine, which separate ReLUs do not show."""
    shorter = simplify_exactly(graph_of(lattice(3), 2))
    low = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    box = Box.between(low, low + 0.01)
    known, _ = propagate(shorter, box, Forms.over(shorter.entry, box.lower, box.upper))
    x = low + 0.01 * torch.rand(500, 2, dtype=torch.float64)
    value = lattice(3).double()(x)
    width = known.upper[shorter.output] - known.lower[shorter.output]
    assert bool((known.lower[shorter.output] <= value.min()).all())
    assert bool((known.upper[shorter.output] >= value.max()).all())
    assert float(width) < 1.2 * float(value.max() - value.min())


def test_almost_opposite_neurons_are_kept() -> None:
    model = mixed(1)
    with torch.no_grad():
        first = cast(nn.Linear, model[0])
        first.bias[1] = torch.nextafter(first.bias[1], torch.tensor(9.0))
        first.weight[7, 2] = torch.nextafter(first.weight[7, 2], torch.tensor(9.0))
    graph = graph_of(model, 3)
    assert neurons(simplify_exactly(graph)) == 7  # two of the four pairs are left


def test_nothing_is_rounded() -> None:
    """Coefficients whose sum needs more than 53 bits are not added."""
    model = mixed(2).double()
    with torch.no_grad():
        cast(nn.Linear, model[2]).weight[0, :2] = torch.tensor([1.0, 2.0**-60], dtype=torch.float64)
    graph = fuse_affine(
        build(hf.Network.from_torch(model, shape=(3,)), torch.zeros(1, 3, dtype=torch.float64))
    )
    assert neurons(simplify_exactly(graph)) == 9


@pytest.mark.parametrize("spread", [4, 24, 40, 300])
def test_products_are_exact_or_refused(spread: int) -> None:
    torch.manual_seed(spread)
    exact = refused = 0
    for _ in range(40):
        shape = torch.randint(1, 6, (3,)).tolist()
        a, b = (
            torch.randn(m, n) * 2.0 ** torch.randint(-spread // 4, spread // 4 + 1, (m, n))
            for m, n in ((shape[0], shape[1]), (shape[1], shape[2]))
        )
        found = multiply_exactly(a.double(), b.double())
        if found is None:
            refused += 1
            continue
        exact += 1
        for i, row in enumerate(a.double().tolist()):
            for j, column in enumerate(b.double().t().tolist()):
                total = sum(
                    (Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)), Fraction(0)
                )
                assert Fraction(float(found[i, j])) == total
    assert exact > 0 if spread < 24 else refused > 0


def test_products_of_numbers_without_a_product_are_refused() -> None:
    one = torch.ones(1, 2, dtype=torch.float64)
    for value in (torch.inf, torch.nan, 2.0**-1000):
        assert multiply_exactly(torch.tensor([[value, 1.0]], dtype=torch.float64), one.t()) is None
    assert multiply_exactly(0 * one, one.t()) == 0


def test_a_dead_neuron_does_not_hide_which_input_to_halve() -> None:
    """A pre-activation that is zero everywhere once made the shares of all noise symbols NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        first = cast(nn.Linear, model[0])
        first.weight[0], first.bias[0] = 0, 0
    graph = graph_of(model, 2)
    box = Box.between(-torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64))
    forms = Forms.over(graph.entry, box.lower, box.upper)
    propagate(graph, box, forms)
    assert not bool(forms.share.isnan().any())
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 200), torch.linspace(-1, 1, 200))
    lowest = float(model(grid).min())
    rules = Avoid(torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.full((1, 1, 1), 0.02 - lowest).double())
    cut = InputSplit()
    parts = cut.start(graph, box, rules)
    while len(parts) and parts.looked < 3000:
        parts, _ = cut.step(graph, box, rules, parts)
    assert not len(parts)


@pytest.mark.parametrize("limit", [0, 2**22])
def test_windows_of_a_pooling_become_no_matrices_above_the_limit(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 26 GiB that a pooling of 24 x 24 x 16 numbers took, all were products of this kind."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2, bias=False)
    ).eval()
    graph = graph_of(model, 1, 6, 6)
    monkeypatch.setattr(exact_rewriting, "LARGEST_MATRIX", limit)
    simpler = simplify_exactly(graph)

    def largest(one: Graph) -> int:
        return max(m.numel() for node in one.nodes for m in matrices_of(node) or [torch.zeros(0)])

    assert (largest(simpler) > largest(graph)) == (limit > 0)
    for x in torch.randn(3, 36, generator=torch.Generator().manual_seed(1), dtype=torch.float64):
        assert exact_value(simpler, x) == exact_value(graph, x)
