"""The benchmarks' own arithmetic: answers of several parts become one table, and an estimate of Q never exceeds Q."""

import argparse
import math
from pathlib import Path

import pytest
import torch
from benchmarks.lipschitz import batched, examples, norms, radius, vnncomp
from benchmarks.lipschitz.metric import worth
from torch import nn

import holdfast as hf
from holdfast.datasets.digits_networks import digits_cnn
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region.norms import dual, norm
from holdfast.result import Key

HEAD = "network,property,answer,seconds,loading,nodes,least,lowest,expected,note\n"


def test_answers_of_parts_become_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text(
        HEAD + "net,p_0_0.03,timeout,5.0,0.1,7,-inf,0.5,unsat,\nnet,p_1_0.03,sat,1.0,0.1,0,-inf,-0.1,unsat,\n"
    )
    second.write_text(
        HEAD
        + "net,p_0_0.03,unsat,9.0,0.1,20,inf,0.5,unsat,\nnet,p_1_0.03,timeout,1.0,0.1,0,-inf,0.1,unsat,\n"
    )
    found = vnncomp._merged([first, second])
    assert [(a.property, a.answer, a.nodes, a.seconds) for a in found] == [
        ("p_0_0.03", "unsat", 20, 9.0),
        ("p_1_0.03", "sat", 0, 1.0),
    ]
    assert [a.wrong for a in found] == [False, True]
    vnncomp.main(argparse.Namespace(merge=[first, second], out=tmp_path / "table", name="mnist_fc"))
    assert "| all | 2 | 1 | 1 | 0 | 1 |" in capsys.readouterr().out
    assert "2 of 2 solved" in (tmp_path / "table" / "mnist_fc.md").read_text()


@pytest.mark.parametrize("p", [math.inf, 2.0])
def test_the_estimate_of_a_linear_network_is_never_below_the_truth(p: float) -> None:
    """Q is the dual norm of the slope; a search finds at most that, so s / Q is at least the distance to the boundary."""
    torch.manual_seed(0)
    layer = nn.Linear(16, 2)
    net = hf.Network.from_torch(nn.Sequential(nn.Flatten(), layer).eval(), domain=(0, 1))
    x = torch.rand(5, 1, 4, 4)
    y = net(x).argmax(1)
    slope = (layer.weight[0] - layer.weight[1]).detach().double()
    outputs = net(x).double()
    truth = (outputs[:, 0] - outputs[:, 1]).abs() / norm(slope, dual(p))
    found = radius._estimate(net, x, y, p, 10.0, lambda z: z)
    assert bool((found >= truth * (1 - 1e-4)).all())
    assert bool((found <= 3 * truth).all())


def test_a_row_of_the_table() -> None:
    net = hf.Network.from_torch(radius.perceptron((64, 12, 10), epochs=4).eval(), domain=(0, 1))
    data = radius.digits("test")
    x, y = data.x[:2], net(data.x[:2]).argmax(1)
    ends = radius._fast(net, x, y, math.inf)
    lower, upper, ratio, _, names, closest, above, *estimates = radius._measured(
        net, x, y, math.inf, 0.3, *ends
    )
    assert 0 < float(str(lower)) <= float(str(closest)) <= float(str(upper))
    assert 1 <= float(str(ratio)) < 2
    assert above == 0
    assert "Mesh" in str(names)
    assert all(str(text).endswith("of 2") for text in estimates)


def wave(p: float, radius: float = 0.5) -> Problem:
    """The score is sin(3 a) + b / 2 over two numbers around zero, as the difference of two outputs."""

    class Wave(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            score = torch.sin(3 * x[:, 0]) + x[:, 1] / 2
            return torch.stack([score, torch.zeros_like(score)], 1)

    net = hf.Network.from_torch(Wave().eval(), shape=(2,))
    ball = hf.Ball(torch.zeros(1, 2), torch.tensor([radius], dtype=torch.float64), p, net.domain)
    return Problem(net, ball, Robustness(torch.tensor([0])), "steepness", (Key(0),))


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_random_and_nested_search_find_no_more_than_the_largest_slope(p: float) -> None:
    problem = wave(p)
    largest = float(norm(torch.tensor([[3.0, 0.5]], dtype=torch.float64), dual(p)))
    for points in (norms.random_search(problem, 1200), norms.nested_search(problem, 9)):
        assert bool(problem.region.contains(points).all())
        found = float(worth(problem, points)[0])
        assert 0.5 * largest <= found <= largest * (1 + 1e-6)


def test_nested_optimisation_finds_the_minimum_of_a_smooth_function() -> None:
    def evaluate(fixed: list[float], last: torch.Tensor) -> torch.Tensor:
        return (torch.tensor(fixed) - 0.3).square().sum() + (last - 0.5).square()

    assert norms.minimise_nested(evaluate, 3, 9) == pytest.approx(0.0, abs=0.02)
    seen: list[float] = []
    norms.minimise_nested(lambda fixed, last: seen.extend(fixed) or last, 2, 6)  # type: ignore[func-returns-value]
    assert len(seen) <= 6
    assert {0.0, 1.0} <= set(seen)


def test_an_advisory_is_the_smallest_output() -> None:
    outputs = torch.tensor([[0.2, -0.5, 0.1]])
    prop = norms.Advisory(outputs.argmin(1))
    assert float(prop.score(outputs)[0]) == pytest.approx(0.6)
    rows, offset = prop.rows(3)
    assert float((rows @ outputs[0].double() + offset)[0].amin()) == pytest.approx(0.6)


def test_all_images_share_one_call() -> None:
    chosen = argparse.Namespace(queries=40, radius=0.3)
    net = hf.Network.from_torch(digits_cnn(), domain=(0, 1))
    x = radius.digits("test").x[:3]
    label = net(x).argmax(1)
    together, _ = batched.searched(net, x, label, chosen, 16)
    apart, _ = batched.searched(net, x, label, chosen, 1, one_by_one=True)
    assert together.points == apart.points == 3 * 40
    assert apart.calls == 3 * 40
    assert together.calls < 40


def test_the_divergence_never_rises_along_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "BUDGETS", (5, 20))
    net = hf.Network.from_torch(digits_cnn(), domain=(0, 1))
    path = examples.uncertainty_path(net, radius.digits("test").x[:1], 0.3)
    mesh = [step.divergence for step in path if step.search != "PGD"]
    assert mesh == sorted(mesh, reverse=True)
    assert path[-1].divergence < mesh[0]
    for step in path:
        assert float(step.probabilities.sum()) == pytest.approx(1.0)
        assert float((step.image - path[0].image).abs().max()) <= 0.3 + 1e-6
