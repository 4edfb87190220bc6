"""`holdfast export --vnnlib`: the files say what the run asked, and hf.verify answers them as hf.radius does."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from holdfast.report.vnnlib_files import _decimal
from holdfast.verification.vnnlib import read_vnnlib


def invoke(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.output if result.exit_code == 0 else f"refused: {result.exception or result.output}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of five inputs and three classes as a file, ten inputs, and a run."""
    place = tmp_path_factory.mktemp("vnnlib")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3)).eval()
    weights = [numpy_helper.from_array(v.detach().numpy(), n) for n, v in layers.named_parameters()]
    nodes = [
        helper.make_node("Gemm", ["x", "0.weight", "0.bias"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "2.weight", "2.bias"], ["y"], transB=1),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k]) for n, k in (("x", 5), ("y", 3))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        place / "net.onnx",
    )
    x = torch.rand(6, 5)
    np.savez(place / "data.npz", x=x.numpy(), y=layers(x).argmax(1).numpy())
    model = ("--model", place / "net.onnx", "--data", place / "data.npz", "--domain", "0,1")
    assert "refused" not in invoke("radius", *model, "--queries", 5000, "--out", place / "run")
    return place


def test_the_files_are_answered_as_the_run_was(folder: Path) -> None:
    with hf.Store.read(folder / "run") as store:
        brackets = [record.bracket for record in store.records()]
    radius = sorted(bracket.lower.value for bracket in brackets)[3] * 0.9
    answer = invoke("export", folder / "run", folder / "spec", "--vnnlib", "--at", radius)
    assert "written: 7 files" in answer
    answers = set()
    for k, bracket in enumerate(brackets):
        found = hf.verify(str(folder / "net.onnx"), folder / "spec" / f"input_{k}.vnnlib", seconds=30)
        expected = (
            "unsat" if bracket.lower.value >= radius else "sat" if bracket.upper.value <= radius else None
        )
        assert expected is None or found.answer == expected
        answers.add(found.answer)
    assert answers == {"sat", "unsat"}
    lines = (folder / "spec" / "instances.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == [f"input_{k}.vnnlib" for k in range(6)]


def test_the_box_is_exact(folder: Path) -> None:
    """[x - r, x + r] and the domain, in rational numbers: nothing is rounded on the way into the file."""
    invoke("export", folder / "run", folder / "exact", "--vnnlib", "--at", 0.3)
    x = np.load(folder / "data.npz")["x"][0]
    [case] = read_vnnlib(folder / "exact" / "input_0.vnnlib").cases
    for value, low, high in zip(x, case.lower, case.upper, strict=True):
        assert low.value == max(Fraction(float(value)) - Fraction(0.3), 0)
        assert high.value == min(Fraction(float(value)) + Fraction(0.3), 1)
    for number in (0.1, -3.5, 2.0**-40, 1e20, 0.0):
        assert Fraction(_decimal(Fraction(number))) == Fraction(number)


def test_questions_that_are_no_boxes_are_refused(folder: Path, tmp_path: Path) -> None:
    assert "give their radius" in invoke("export", folder / "run", tmp_path / "a", "--vnnlib")
    assert "for --vnnlib" in invoke("export", folder / "run", tmp_path / "a.csv", "--at", 0.1)
    data = ("--data", folder / "data.npz", "--queries", 200)
    invoke("radius", "--model", folder / "net.onnx", *data, "--norm", 2, "--out", tmp_path / "two")
    assert "norm inf" in invoke("export", tmp_path / "two", tmp_path / "b", "--vnnlib", "--at", 0.1)
    invoke("radius", "--model", folder / "net.onnx", *data, "--mean", 0.5, "--out", tmp_path / "mean")
    assert "prepares its inputs" in invoke(
        "export", tmp_path / "mean", tmp_path / "c", "--vnnlib", "--at", 0.1
    )
