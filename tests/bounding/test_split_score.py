"""Which activation is decided next, worked out by hand; and the clock: no training outlasts its time."""

import time
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast import time_limit
from holdfast.bounding.alpha_beta_crown import (
    concatenate_nodes,
    relu_like_functions,
    relu_preactivations,
    split_by_node,
    tighten_intermediate_bounds,
)
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.branching.split_score import neuron_costs
from holdfast.bounding.crown_with_fixed_bounds import propagate
from holdfast.bounding.graph.fusion import prepare_graph
from holdfast.bounding.graph.graph import Graph
from holdfast.region import Box
from holdfast.verification.vnnlib import parse


def network(seed: int, *sizes: int) -> hf.Network:
    torch.manual_seed(seed)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return hf.Network.from_torch(nn.Sequential(*layers[:-1]).eval(), shape=(sizes[0],))


def over(net: hf.Network, width: float) -> tuple[Graph, Box]:
    assert net.shape is not None
    centre = torch.zeros((2, *(size or 1 for size in net.shape)), dtype=torch.float64)
    region = Box.between(centre - width, centre + width)
    return prepare_graph(net, region), region


def direct(graph: Graph, known: object, entering: Tensor) -> Tensor:
    """The cost of a plane in the bound itself, and nothing else."""
    lower, upper = (concatenate_nodes(graph, side) for side in (known.lower, known.upper))  # type: ignore[attr-defined]
    above = concatenate_nodes(
        graph, {n.inputs[0]: known.planes[n].upper_offset for n in relu_like_functions(graph)}
    )  # type: ignore[attr-defined]
    return torch.where((lower < 0) & (upper > 0), entering * above + 1e-9 * (upper - lower), 0)


def test_the_last_layer_costs_what_it_costs_directly_and_earlier_ones_more() -> None:
    graph, region = over(network(0, 5, 12, 12, 12, 2), 0.7)
    with torch.no_grad():
        known, _ = propagate(graph, region)
        entering = torch.ones((2, 36), dtype=torch.float64)
        plain, found = direct(graph, known, entering), neuron_costs(graph, known, entering)
    undecided = plain > 0
    assert bool((found > 0).eq(undecided).all())
    assert torch.allclose(found[:, 24:], plain[:, 24:])
    assert bool((found[:, :24] >= plain[:, :24] - 1e-12).all())
    assert float(found[:, :24].sum()) > 1.1 * float(plain[:, :24].sum())


def test_it_is_half_of_what_a_change_of_the_ends_can_do() -> None:
    """Two layers, by hand: lifting a plane of the first moves the ends of the second by the weights, the planes there by their share."""
    graph, region = over(network(1, 3, 6, 5, 1), 1.0)
    first, second = relu_preactivations(graph)
    with torch.no_grad():
        known, _ = propagate(graph, region)
        entering = torch.cat([torch.zeros(2, 6), torch.rand(2, 5)], dim=1).double()
        found = split_by_node(graph, neuron_costs(graph, known, entering))[first]
    (matrix,) = graph.nodes[second.place].rows(torch.arange(second.size))  # type: ignore[attr-defined]
    low, up = known.lower[second].flatten(1), known.upper[second].flatten(1)
    share = torch.where((low < 0) & (up > 0), entering[:, 6:] / (up - low) / 2, 0)
    weight = (share * -low) @ matrix.clamp_min(0) + (share * up) @ (-matrix).clamp_min(0)
    above = known.planes[relu_like_functions(graph)[0]].upper_offset
    undecided = ((known.lower[first] < 0) & (known.upper[first] > 0)).flatten(1)
    assert bool(undecided.any())
    assert torch.allclose(found.flatten(1), torch.where(undecided, weight * above.flatten(1), 0), atol=1e-7)


@pytest.mark.usefixtures("cpu_clock")
def test_training_ends_with_the_clock() -> None:
    graph, region = over(network(2, 6, 14, 14, 14, 2), 0.5)
    with torch.no_grad(), time_limit.within(time.monotonic()):
        assert tighten_intermediate_bounds(graph, region, 15, 0.2, 5) == {}
    began = time.monotonic()
    with torch.no_grad(), time_limit.within(began + 0.4):
        tighten_intermediate_bounds(graph, region, 100_000, 0.2, 5)
    assert time.monotonic() - began < 10  # every one of its rows would take minutes


@pytest.mark.usefixtures("cpu_clock")
def test_a_verification_ends_with_its_seconds() -> None:
    """A network whose first look and training would take far longer."""
    net = network(3, 40, 60, 60, 60, 2)
    declared = [f"(declare-const X_{i} Real) (assert (>= X_{i} -3)) (assert (<= X_{i} 3))" for i in range(40)]
    text = "\n".join([*declared, "(declare-const Y_0 Real) (declare-const Y_1 Real) (assert (>= Y_0 0.9))"])
    net.program(torch.zeros(1, 40))
    began = time.monotonic()
    found = hf.verify(net, parse(text), stop=hf.Stop(seconds=2), methods=[ActivationSplit(steps=1_000_000)])
    assert found.answer in ("timeout", "unsat")
    assert time.monotonic() - began < 20  # and it would be hours
