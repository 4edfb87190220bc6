"""The benchmarks' own arithmetic: answers of several parts become one table, and an estimate of Q never exceeds Q."""

import argparse
import math
from pathlib import Path

import pytest
import torch
from benchmarks.lipschitz import radius, vnncomp
from torch import nn

import holdfast as hf
from holdfast.region.norms import dual, norm

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
