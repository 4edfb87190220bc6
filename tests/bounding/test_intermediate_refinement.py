"""Ends by branch and bound of their own: against samples and grids, and against rows that fail by a hair."""

import math
import time
from itertools import pairwise

import pytest
import torch
from bounds_zoo import values
from torch import Tensor, nn

import holdfast as hf
from holdfast import time_limit
from holdfast.bounding.alpha_beta_crown import (
    concatenate_nodes,
    relu_preactivations,
    tighten_intermediate_bounds,
)
from holdfast.bounding.branching import intermediate_refinement
from holdfast.bounding.branching.intermediate_refinement import (
    EndSplit,
    RowProblems,
    TreeSubproblems,
    refine_intermediate_bounds,
)
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.branching.subproblem_queue import PolytopeQuestion
from holdfast.bounding.crown_with_fixed_bounds import propagate
from holdfast.bounding.graph.fusion import fuse_affine
from holdfast.bounding.graph.graph import Graph, Node, build
from holdfast.bounding.node_bounds import Boxes, IntervalBounds
from holdfast.bounding.unstable_subnetwork import UnstableSubnetwork
from holdfast.network import Network
from holdfast.property import Avoid
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Box, Region


class Residual(nn.Module):
    """Two ways that meet again, and functions that are no ReLU: leaky, and an absolute value."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.last = (
            nn.Linear(3, 9),
            nn.Linear(9, 9),
            nn.Linear(9, 8),
            nn.Linear(8, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.leaky_relu(self.first(x), 0.1)
        h = h + torch.relu(self.second(h))
        return self.last(torch.abs(self.third(h)))


def graph_of(seed: int, *sizes: int, residual: bool = False) -> Graph:
    torch.manual_seed(seed)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    net = Network.from_torch(
        (Residual() if residual else nn.Sequential(*layers[:-1])).eval(), shape=(sizes[0],)
    )
    return fuse_affine(build(net, torch.zeros(1, sizes[0])))


def box(seed: int, size: int, width: float) -> Box:
    centre = torch.randn((1, size), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Box.between(centre - width, centre + width)


def by_planes(graph: Graph, region: Region) -> tuple[Boxes, dict[Node, IntervalBounds], dict[Node, Tensor]]:
    """Boxes, trained ends of all arguments, and that all are worth more."""
    known, _ = propagate(graph, region)
    held = tighten_intermediate_bounds(graph, region, 20, 0.2, 64)
    ends = {
        node: held.get(node, (known.lower[node], known.upper[node])) for node in relu_preactivations(graph)
    }
    return known, ends, {node: torch.ones_like(ends[node][0], dtype=torch.bool) for node in ends}


def points(region: Region, count: int) -> Tensor:
    """(n, *shape): inside and at the edge."""
    shape = (count, *region.centre.shape)
    towards = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (
        torch.cat([region.sample(count, RandomStreams.of(range(len(region)), 0)), region.vertex(towards)])
        .flatten(0, 1)
        .double()
    )


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("residual", [False, True])
@torch.no_grad()
def test_ends_hold_every_value_and_are_narrower_than_trained_ones(p: float, residual: bool) -> None:
    graph = graph_of(1, 3, 9, 9, 8, 2, residual=residual)
    region = Ball(torch.full((1, 3), 0.3, dtype=torch.float64), torch.full((1,), 1.5, dtype=torch.float64), p)
    _, ends, worth = by_planes(graph, region)
    row = torch.tensor([[1.0, -1.0]]).double(), torch.tensor([-100.0]).double()  # it fails everywhere
    narrower, positive = refine_intermediate_bounds(graph, region, ends, row, 2, 16, worth=worth)
    found = values(graph, points(region, 2000))
    assert not bool(positive.any())
    for node, (lower, upper) in narrower.items():
        assert bool((found[node] >= lower - 1e-9).all() and (found[node] <= upper + 1e-9).all())
        assert bool((lower >= ends[node][0]).all() and (upper <= ends[node][1]).all())
    last = relu_preactivations(graph)[-1]
    open_ = (ends[last][0] < 0) & (ends[last][1] > 0)
    won = ((narrower[last][1] - narrower[last][0]) < 0.98 * (ends[last][1] - ends[last][0])) & open_
    assert int(won.sum()) > int(open_.sum()) / 2


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_row_is_positive_only_where_it_is(seed: int) -> None:
    """The least value on a fine grid is 1e-6 below zero, or a little above."""
    graph, region = graph_of(seed, 2, 8, 8, 8, 2), box(seed, 2, 1.5)
    known, ends, worth = by_planes(graph, region)
    low, high = region.enclosing_box()
    axes = [
        torch.linspace(float(a), float(b), 401, dtype=torch.float64)
        for a, b in zip(low[0], high[0], strict=True)
    ]
    matrix = torch.tensor([[1.0, -1.0], [-1.0, 0.5]]).double()
    least = (values(graph, torch.cartesian_prod(*axes))[graph.output].flatten(1) @ matrix.mT).amin(0)
    _, fails = refine_intermediate_bounds(graph, region, ends, (matrix, -least - 1e-6), 5, 32, worth=worth)
    assert not bool(fails.any())
    spread = matrix.abs() @ (known.upper[graph.output] - known.lower[graph.output]).flatten()
    _, holds = refine_intermediate_bounds(
        graph, region, ends, (matrix, -least + 0.1 * spread), 5, 32, worth=worth
    )
    assert bool(holds.all())


@pytest.mark.parametrize("residual", [False, True])
@torch.no_grad()
def test_what_is_undecided_says_all_there_is_to_say(residual: bool) -> None:
    """The network of undecided functions is the network, at every point of the region; and its planes lie below it."""
    graph, region = graph_of(5, 3, 9, 9, 8, 2, residual=residual), box(5, 3, 0.7)
    known, _, _ = by_planes(graph, region)
    matrix, offset = torch.randn(4, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    undecided = UnstableSubnetwork.of(graph, known, matrix, offset)
    assert undecided is not None
    assert 0 < len(undecided.place) < sum(node.size for node in relu_preactivations(graph))
    x, task = points(region, 200), torch.arange(400) % 4
    truth = (
        (values(graph, x)[graph.output].flatten(1) @ matrix.mT + offset).gather(1, task[:, None]).squeeze(1)
    )
    assert torch.allclose(undecided.at(x.float(), task).double(), truth, atol=1e-4)
    none = torch.zeros((4, len(undecided.place)))
    draft = undecided.train(torch.arange(4), none, none * torch.nan, none, 10, 0.5)
    assert draft.planes.shape == (4, 3)
    assert bool((draft.entering >= 0).all())


@pytest.mark.parametrize("residual", [False, True])
@torch.no_grad()
def test_any_slopes_and_multipliers_stay_below_their_part(residual: bool) -> None:
    """Signs of a random point, slopes and multipliers drawn at random: no point of the part is below what they prove."""
    graph, region = graph_of(7, 3, 9, 9, 8, 2, residual=residual), box(7, 3, 1.0)
    known, _, _ = by_planes(graph, region)
    matrix, offset = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double(), torch.zeros(2).double()
    undecided = UnstableSubnetwork.of(graph, known, matrix, offset)
    assert undecided is not None
    asked = RowProblems(graph, known, undecided, matrix, offset, torch.zeros(2).double())
    x = points(region, 3000)
    found = values(graph, x)
    signs = concatenate_nodes(graph, found)[:, undecided.place].sign()
    truth = found[graph.output].flatten(1) @ matrix.mT
    chance = torch.Generator().manual_seed(0)
    task, held = torch.arange(40) % 2, 0
    sign = signs[torch.randint(len(signs), (40,), generator=chance)]
    sign = torch.where(torch.rand(sign.shape, generator=chance) < 0.3, sign, 0).to(torch.int8)
    slope, multiplier = (torch.rand(sign.shape, generator=chance) for _ in range(2))
    first = EndSplit(4).start(asked)
    parts = TreeSubproblems(
        task, first.open[task], first.bound[task], sign=sign, slope=slope, multiplier=multiplier * sign.abs()
    )
    for k, least in enumerate(asked.prove(parts).tolist()):
        inside = (signs * sign[k] >= 0).all(1)
        held += int(inside.sum())
        assert least <= float(truth[inside, int(task[k])].min()) + 1e-9
    assert held > 1000


@pytest.mark.usefixtures("cpu_clock")
@torch.no_grad()
def test_the_search_goes_on_where_it_was_and_ends_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of one pass are those of the one before, with fewer undecided arguments; nothing takes much longer than it may."""
    graph, region = graph_of(3, 6, 14, 14, 14, 2), box(3, 6, 1.0)
    _, ends, worth = by_planes(graph, region)
    seen: list[tuple[int, int]] = []
    kept = intermediate_refinement._Trees._update_subproblems

    def told(
        self: intermediate_refinement._Trees, question: RowProblems, parts: TreeSubproblems
    ) -> TreeSubproblems:
        place = question.undecided.place
        seen.append((len(self.place), len(place)))
        after, at = (
            kept(self, question, parts),
            concatenate_nodes(question.graph, values(question.graph, points(region, 200))),
        )
        for task in range(len(self.proved)):  # no point is lost where ends have decided more since
            one, other = (
                (some.sign[some.task == task], at[:, which])
                for some, which in ((parts, self.place), (after, place))
            )
            before, now = ((sign[:, None] * v >= 0).all(2).any(0) for sign, v in (one, other))
            assert bool((now | ~before).all())
        return after

    monkeypatch.setattr(intermediate_refinement._Trees, "_update_subproblems", told)
    monkeypatch.setattr(intermediate_refinement, "FIRST_PASS_ROUNDS", 2)
    monkeypatch.setattr(intermediate_refinement, "RESTART_SHARE", 0.0)
    matrix = torch.tensor([[1.0, -1.0]]).double()
    row = (
        matrix,
        0.01 - (values(graph, points(region, 4000))[graph.output].flatten(1) @ matrix.mT).amin(0),
    )  # holds, if only just
    narrower, _ = refine_intermediate_bounds(graph, region, ends, row, 3, 4, worth=worth)
    assert len(seen) >= 4
    assert all(after <= before for before, after in seen)
    assert any(after < before for before, after in seen)
    found = values(graph, points(region, 4000))
    for node, (lower, upper) in narrower.items():
        assert bool((found[node] >= lower - 1e-9).all() and (found[node] <= upper + 1e-9).all())
    began = time.monotonic()
    with time_limit.within(began):
        assert refine_intermediate_bounds(graph, region, ends, row, 6, 8, worth=worth)[0] == ends
    with time_limit.within(began + 0.3):
        refine_intermediate_bounds(graph, region, ends, row, 20, 1, worth=worth)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("seed", range(2))
def test_verdicts_are_those_of_signs_alone(seed: int) -> None:
    """Two questions about each of two regions at once: one that holds by little, one that fails by little."""
    graph, regions = graph_of(seed, 20, 16, 16, 12, 3), [box(seed + k, 20, 0.25) for k in range(2)]
    region = Box.between(*(torch.cat([r.enclosing_box()[side] for r in regions]) for side in (0, 1)))
    matrix = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]]).double()[None, :, None].expand(2, -1, -1, -1)
    lowest = torch.stack(
        [
            (values(graph, points(r, 4000))[graph.output].flatten(1) @ matrix[0, :, 0].mT).amin(0)
            for r in regions
        ]
    )
    for less, fails in ((0.5, False), (-1e-3, True)):
        rules, left = Avoid(matrix, (less - lowest)[..., None]), {}
        for passes in (0, 3):
            rule = ActivationSplit(batch=32, passes=passes)
            frontier = rule.start(graph, region, rules)
            for _ in range(12):
                frontier, _ = rule.advance(PolytopeQuestion(graph, region, rules), frontier)
                if not len(frontier):
                    break
            left[passes] = frontier
        assert (len(left[3]) > 0) is fails
        assert left[3].looked <= left[0].looked
        if fails:  # no polytope that is met is ruled out, in either region
            for task in range(2):
                assert bool(left[3].open[left[3].task == task].any(0).all())


@pytest.mark.usefixtures("cpu_clock")
def test_a_question_of_many_inputs_is_settled_before_anything_is_cut() -> None:
    """Four layers over which planes lose their way: one look at the region, one with trained ends, one with ends that were cut for."""
    torch.manual_seed(0)
    sizes = (24, 20, 20, 20, 20, 2)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    net = Network.from_torch(nn.Sequential(*layers[:-1]).eval(), shape=(24,))
    graph, region = fuse_affine(build(net, torch.zeros(1, 24))), box(0, 24, 0.25)
    row = torch.tensor([1.0, -1.0]).double()
    lowest = float((values(graph, points(region, 4000))[graph.output].flatten(1) @ row).min())
    names = [f"(declare-const X_{i} Real)" for i in range(24)]
    ends = zip(*(end.flatten().tolist() for end in region.enclosing_box()), strict=True)
    within = [
        f"(assert (and (>= X_{i} {low:.17f}) (<= X_{i} {high:.17f})))" for i, (low, high) in enumerate(ends)
    ]
    said = f"(declare-const Y_0 Real) (declare-const Y_1 Real) (assert (<= (+ Y_0 (* -1 Y_1)) {lowest - 0.05:.17f}))"
    text = "\n".join([*names, *within, said])
    found = hf.verify(net, hf.verification.vnnlib.parse(text), stop=hf.Stop(seconds=60))
    assert found.answer == "unsat"
    assert found.nodes <= 3
