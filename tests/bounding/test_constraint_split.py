"""Constraint propagation never removes a counterexample, and decides formulas of propositional logic."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding.branching import constraint_split
from holdfast.bounding.branching.constraint_split import Constraints, ConstraintSplit, fixes_inputs
from holdfast.bounding.graph.affine import make_matrix
from holdfast.bounding.graph.exact_rewriting import simplify_exactly
from holdfast.bounding.graph.fusion import fuse_affine
from holdfast.bounding.graph.graph import Graph, build
from holdfast.property import Avoid
from holdfast.region import Box
from holdfast.verification.vnnlib import parse

Clause = tuple[int, ...]


def graph_of(model: nn.Module, inputs: int) -> Graph:
    net, x = hf.Network.from_torch(model.eval(), shape=(inputs,)), torch.zeros(1, inputs)
    return simplify_exactly(fuse_affine(build(net, x.to(net.dtype))))


def formula(clauses: list[Clause], variables: int) -> tuple[nn.Sequential, Avoid, Box]:
    """f_0 = 1 - sum of relu(1 - true literals), f_1 = sum of min(x, 1 - x); forbidden: f_0 >= 1 and f_1 <= 0."""
    first, last = (
        nn.Linear(variables, len(clauses) + 2 * variables),
        nn.Linear(len(clauses) + 2 * variables, 2),
    )
    with torch.no_grad():
        for part in (first.weight, first.bias, last.weight, last.bias):
            part.zero_()
        for k, clause in enumerate(clauses):
            first.bias[k] = 1.0
            for literal in clause:
                first.weight[k, abs(literal) - 1] -= 1.0 if literal > 0 else -1.0
                first.bias[k] -= 0.0 if literal > 0 else 1.0
            last.weight[0, k] = -1
        for j in range(variables):
            at = len(clauses) + 2 * j
            first.weight[at, j], first.weight[at + 1, j], first.bias[at + 1] = 1, 2, -1
            last.weight[1, at], last.weight[1, at + 1] = 1, -1
        last.bias[0] = 1
    rows = torch.tensor([[[[-1.0, 0.0], [0.0, 1.0]]]], dtype=torch.float64)
    rules = Avoid(rows, torch.tensor([[[1.0, 0.0]]], dtype=torch.float64))
    box = Box.between(*(torch.full((1, variables), end, dtype=torch.float64) for end in (0.0, 1.0)))
    return nn.Sequential(first, nn.ReLU(), last), rules, box


def satisfies(clauses: list[Clause], values: tuple[int, ...]) -> bool:
    return all(
        any((literal > 0) == bool(values[abs(literal) - 1]) for literal in clause) for clause in clauses
    )


def random_clauses(count: int, variables: int, seed: int) -> list[Clause]:
    torch.manual_seed(seed)
    found = []
    for _ in range(count):
        which = torch.randperm(variables)[: int(torch.randint(2, 4, ()))] + 1
        sign = 2 * torch.randint(0, 2, which.shape) - 1
        found.append(tuple((which * sign).tolist()))
    return found


def search(graph: Graph, model: nn.Module, rules: Avoid, box: Box) -> bool | None:
    """Whether there is a counterexample; None if that is still open after many steps."""
    cut = ConstraintSplit(batch=4)
    parts = cut.start(graph, box, rules)
    for _ in range(100):
        parts, found = cut.step(graph, box, rules, parts)
        if len(found.x) and bool((rules.score(model(found.x)) <= 0).any()):
            return True
        if not len(parts):
            return False
    return None


@pytest.mark.parametrize("seed", range(6))
def test_formulas_are_decided_as_by_enumeration(seed: int) -> None:
    variables, clauses = 8, random_clauses(26 + 4 * seed, 8, seed)
    model, rules, box = formula(clauses, variables)
    graph = graph_of(model, variables)
    assert fixes_inputs(graph, box, rules)
    expected = any(satisfies(clauses, values) for values in product((0, 1), repeat=variables))
    assert search(graph, model.double(), rules, box) == expected


def polytope(seed: int) -> tuple[Graph, nn.Module, Avoid, Tensor]:
    """A random network with two outputs, and a polytope that some inputs of [-1, 1]^4 reach."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    with torch.no_grad():  # clearly active or inactive neurons, so that constraints pass back
        for layer in (model[0], model[2]):
            layer.bias.mul_(4)
    x = 2 * torch.rand(20000, 4, dtype=torch.float64) - 1
    matrix = torch.randn(2, 2, dtype=torch.float64)
    values = model(x).detach() @ matrix.t()
    offset = -values.amax(1).quantile(0.03).expand(2)
    graph = graph_of(model, 4)
    return graph, model, Avoid(matrix[None, None], offset[None, None]), x


def random_boxes() -> tuple[Tensor, Tensor]:
    """Boxes of many sizes that share bounds with [-1, 1]^4."""
    cut, side = torch.rand(64, 4, dtype=torch.float64) * 2 - 1, torch.rand(64, 4) < 0.5
    one = torch.ones_like(cut)
    return torch.where(side, cut, -one), torch.where(side, one, cut)


def lost_counterexamples(seed: int) -> int:
    """How many of the counterexamples at hand lie outside of the boxes that contained them, once these are shrunk."""
    graph, model, rules, x = polytope(seed)
    bad = x[(rules.score(model(x)) <= 0)]
    lower, upper = random_boxes()
    found = Constraints.of(graph, rules.matrix[0, 0], rules.offset[0, 0]).propagate(lower, upper)
    before = ((bad >= lower[:, None]) & (bad <= upper[:, None])).all(-1)
    inside = ((bad >= found.lower[:, None]) & (bad <= found.upper[:, None])).all(-1)
    assert bool((found.empty | (found.upper - found.lower <= upper - lower).all(1)).all())
    return int((before & (~inside | found.empty[:, None])).sum())


def test_no_counterexample_is_removed() -> None:
    assert sum(lost_counterexamples(seed) for seed in range(6)) == 0


def test_boxes_shrink() -> None:
    graph, _, rules, _ = polytope(0)
    lower, upper = random_boxes()
    found = Constraints.of(graph, rules.matrix[0, 0], rules.offset[0, 0]).propagate(lower, upper)
    share = ((found.upper - found.lower) / (upper - lower))[~found.empty].prod(1)
    assert bool(found.empty.any())
    assert float(share.median()) < 0.8


Narrow = Callable[..., tuple[Tensor, Tensor]]


@pytest.mark.parametrize("factor", [0.5, 0.9])
def test_a_too_narrow_quotient_would_be_noticed(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow: Narrow = constraint_split._narrow
    monkeypatch.setattr(
        constraint_split,
        "_narrow",
        lambda part, slack, ends: narrow(part, (factor * slack[0], factor * slack[1]), ends),
    )
    assert sum(lost_counterexamples(seed) for seed in range(6)) > 0


def test_quotients_and_intervals_cover_their_rounding() -> None:
    """Against rational arithmetic: y = w x + b over a box, and what y <= h and y >= l leave of each x."""
    torch.manual_seed(0)
    for scale in (1e-6, 1.0, 1e7):
        weight = scale * torch.randn(40, 3, dtype=torch.float64)
        shift = torch.randn(40, dtype=torch.float64)
        entry = Graph().add_entry((1, 3))
        node = make_matrix(1, "map", [entry], [weight], (1, 40), shift)
        low = torch.randn(1, 3, dtype=torch.float64)
        ends = low, low + torch.rand(1, 3, dtype=torch.float64)
        raw = constraint_split._interval(node, {entry: ends})
        for i in range(40):
            least, most = (Fraction(float(shift[i])) for _ in range(2))
            for j in range(3):
                both = [Fraction(float(weight[i, j])) * Fraction(float(end[0, j])) for end in ends]
                least, most = least + min(both), most + max(both)
            assert Fraction(float(raw[0][0, i])) <= least <= most <= Fraction(float(raw[1][0, i]))
            above, below = scale * 0.1 * torch.rand(2, 1, 1, dtype=torch.float64)
            part = constraint_split.Coefficients.of(weight[i : i + 1])
            found = constraint_split._narrow(part, (above, below), ends)
            for j in range(3):
                w, (start, end) = (
                    Fraction(float(weight[i, j])),
                    (Fraction(float(side[0, j])) for side in ends),
                )
                up, down = Fraction(float(above)) / abs(w), Fraction(float(below)) / abs(w)
                if w < 0:
                    up, down = down, up
                assert Fraction(float(found[0][0, j])) <= max(start, end - down)
                assert Fraction(float(found[1][0, j])) >= min(end, start + up)


def test_other_networks_are_left_to_other_rules() -> None:
    graph, _, rules, _ = polytope(1)
    box = Box.between(*(torch.full((1, 4), end, dtype=torch.float64) for end in (-1.0, 1.0)))
    assert not fixes_inputs(graph, box, rules)
    model, both, region = formula(random_clauses(12, 5, 0), 5)
    two = replace(both, matrix=both.matrix.expand(1, 2, -1, -1), offset=both.offset.expand(1, 2, -1))
    assert not fixes_inputs(graph_of(model, 5), region, two)


def test_verify_answers_formulas() -> None:
    for seed, answer in ((0, "sat"), (5, "unsat")):
        clauses = random_clauses(12 if answer == "sat" else 60, 7, seed)
        assert answer == ("sat" if any(satisfies(clauses, v) for v in product((0, 1), repeat=7)) else "unsat")
        model, _, _ = formula(clauses, 7)
        lines = [
            f"(declare-const X_{k} Real)(assert (>= X_{k} 0.0))(assert (<= X_{k} 1.0))" for k in range(7)
        ]
        lines += ["(declare-const Y_0 Real)", "(declare-const Y_1 Real)"]
        lines += ["(assert (>= Y_0 1.0))", "(assert (<= Y_1 0.0))"]
        net = hf.Network.from_torch(model.eval(), shape=(7,))
        assert hf.verify(net, parse("\n".join(lines)), progress=False).answer == answer
