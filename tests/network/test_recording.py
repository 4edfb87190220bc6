"""Recorded operators: equal to the model for batches of any size, refused where a record cannot describe it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx_truth import floats, integers, model_of

import holdfast as hf
from holdfast.bounding.graph.equivalence_check import value
from holdfast.bounding.graph.fusion import single_input_network
from holdfast.bounding.graph.graph import build
from holdfast.network.adapter import Adapter
from holdfast.network.onnx.sizes import COUNTS
from holdfast.network.recording import record_operators

X = floats(1, 6)


def opened(tmp_path: Path, model: onnx.ModelProto, *, batched: bool = True) -> hf.Network:
    file = tmp_path / "m.onnx"
    onnx.save(model, file)
    return hf.Network.from_onnx(file, batched=batched)


def perceptron(*between: onnx.NodeProto, free_batch: bool = True) -> onnx.ModelProto:
    """x W1 + b1, then the nodes from 'h' to 'g', then Gemm."""
    constants = {"w": floats(6, 8), "b": floats(8), "v": floats(8, 3, seed=1), "c": floats(3, seed=1)}
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), *between]
    nodes.append(helper.make_node("Gemm", ["g", "v", "c"], ["y"]))
    extra = {"shape": integers(-1, 8), "split": integers(4, 4), "one": np.array(1.0, np.float32)}
    return model_of(nodes, {"x": X}, ["y"], constants | extra, free_batch=free_batch)


IN_ORDER = {
    "relu": [helper.make_node("Relu", ["h"], ["g"])],
    "constant": [helper.make_node("Add", ["h", "one"], ["k"]), helper.make_node("Sigmoid", ["k"], ["g"])],
    "split": [
        helper.make_node("Split", ["h", "split"], ["k", "l"], axis=1),
        helper.make_node("Concat", ["l", "k"], ["g"], axis=1),
    ],
    "reshape": [
        helper.make_node("Reshape", ["h", "shape"], ["k"]),
        helper.make_node("Tanh", ["k"], ["g"]),
    ],
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_recorded_operators_answer_as_the_model_for_any_number_of_rows(name: str, tmp_path: Path) -> None:
    net = opened(tmp_path, perceptron(*IN_ORDER[name]))
    recorded = net.recorded_operators(torch.zeros(1, 6))
    assert recorded is not None
    for rows in (1, 2, 7):
        x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows))
        assert torch.equal(recorded(x)[0], net(x))


def test_recorded_operators_are_those_that_torch_exports(tmp_path: Path) -> None:
    net = opened(tmp_path, perceptron(*IN_ORDER["split"]))
    x = torch.zeros(1, 6)
    listed = [
        [
            str(node.target)
            for node in graph.nodes
            if node.op == "call_function" and "aten" in str(node.target)
        ]
        for graph in (net.operators(x).graph, net.program(x).graph)
    ]
    assert listed[0] == listed[1]


def test_changing_the_graph_of_operators_does_not_change_the_record(tmp_path: Path) -> None:
    net = opened(tmp_path, perceptron(*IN_ORDER["relu"]))
    x = torch.ones(1, 6)
    mine = net.operators(x)
    for node in mine.graph.nodes:
        if node.op == "call_function":
            node.target = torch.ops.aten.neg.default
    assert torch.equal(net.operators(x)(x)[0], net(x))


def test_models_with_a_batch_of_one_are_recorded_by_their_first_row(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Transpose", ["h"], ["t"], perm=[1, 0]),
        helper.make_node("Mul", ["t", "t"], ["y"]),
    ]
    net = opened(tmp_path, model_of(nodes, {"x": X}, ["y"], {"w": floats(6, 4)}), batched=False)
    x = torch.randn(1, 1, 6, generator=torch.Generator().manual_seed(0))
    one = single_input_network(net, x)
    assert one.recorded_operators(x) is not None
    assert torch.allclose(value(build(one, x), x.double()).float(), net(x), atol=1e-6)


def test_arithmetic_of_shapes_and_branches_are_left_to_torch_export(tmp_path: Path) -> None:
    shape = [
        helper.make_node("Shape", ["h"], ["s"]),
        helper.make_node("Reshape", ["h", "s"], ["g"]),
    ]
    net = opened(tmp_path, perceptron(*shape))
    assert net.recorded_operators(torch.zeros(1, 6)) is None
    assert torch.allclose(net.operators(torch.zeros(1, 6))(torch.ones(3, 6))[0], net(torch.ones(3, 6)))


class ByRows(torch.nn.Module):
    """Pretends to be an ONNX file in which the size of the batch decides."""

    class plan:
        steps = ()

    def __init__(self, at: int, *, drawn: bool = False) -> None:
        super().__init__()
        self.at, self.drawn = at, drawn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.drawn:
            return x + torch.rand_like(x)
        return x * 2 if len(x) == self.at else x * 3


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_model_that_treats_some_number_of_rows_differently_is_not_recorded(at: int) -> None:
    assert record_operators(Adapter(ByRows(at)), torch.zeros(1, 2)) is None
    assert (
        record_operators(Adapter(ByRows(9)), torch.zeros(1, 2)) is not None
    )  # What tells them apart is the record.


def test_random_numbers_and_modules_of_other_kinds_are_not_recorded() -> None:
    assert record_operators(Adapter(ByRows(9, drawn=True)), torch.zeros(1, 2)) is None
    assert record_operators(Adapter(torch.nn.Linear(2, 2)), torch.zeros(1, 2)) is None


CALLS = [
    ("linear", torch.nn.functional.linear, (torch.zeros(2, 3, 4), torch.zeros(5, 4))),
    ("matmul", torch.matmul, (torch.zeros(2, 3, 4), torch.zeros(1, 4, 7))),
    ("matmul", torch.matmul, (torch.zeros(4), torch.zeros(6, 4, 7))),
    ("add", torch.add, (torch.zeros(2, 1), torch.zeros(5))),
    ("conv2d", torch.conv2d, (torch.zeros(2, 3, 8, 9), torch.zeros(5, 3, 3, 2), None, [2, 1], [1, 4])),
    ("conv1d", torch.conv1d, (torch.zeros(2, 3, 8), torch.zeros(5, 3, 3), None, [1], [2], [2])),
    (
        "conv_transpose2d",
        torch.conv_transpose2d,
        (torch.zeros(2, 4, 5, 6), torch.zeros(4, 3, 3, 3), None, [3, 2], [1, 0], [1, 1], 2, [2, 1]),
    ),
    ("max_pool2d", torch.max_pool2d, (torch.zeros(1, 2, 4, 4), [3, 3], [1, 1], [1, 1])),
    ("index_select", torch.index_select, (torch.zeros(2, 3), 1, torch.tensor([0, 0, 1, 2, 2]))),
    ("expand", torch.Tensor.expand, (torch.zeros(2, 1), [4, -1, 3])),
    ("pad", torch.nn.functional.pad, (torch.zeros(2, 3, 4), [1, 2, 0, 5])),
    ("cat", torch.cat, ([torch.zeros(2, 3), torch.zeros(2, 1)], 1)),
]


@pytest.mark.parametrize(("name", "function", "arguments"), CALLS)
def test_counted_sizes_are_never_below_the_real_ones(name, function, arguments) -> None:  # type: ignore[no-untyped-def]
    assert COUNTS[name](*arguments) >= function(*arguments).numel()


def test_a_small_problem_does_not_import_compilers_or_statistics(tmp_path: Path) -> None:
    opened(tmp_path, perceptron(*IN_ORDER["relu"]))
    bounds = "".join(f"(assert (>= X_{i} -0.1))(assert (<= X_{i} 0.1))" for i in range(6))
    declared = "".join(f"(declare-const X_{i} Real)" for i in range(6))
    declared += "".join(f"(declare-const Y_{i} Real)" for i in range(3))
    (tmp_path / "p.vnnlib").write_text(f"{declared}{bounds}(assert (>= Y_0 1000))")
    code = (
        "import sys, holdfast as hf\n"
        "print(hf.verify('m.onnx', 'p.vnnlib', progress=False).answer)\n"
        "print([name for name in ('torch._dynamo', 'sympy', 'sklearn', 'scipy', 'pandas') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split("\n")[:2] == ["unsat", "[]"]


def test_huge_results_are_refused_before_they_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.network.onnx.sizes.available_bytes", lambda: 2**20)
    nodes = [helper.make_node("Expand", ["x", "sizes"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    model = model_of(nodes, {"x": X}, ["y"], {"sizes": integers(10**6, 1, 6)})
    with pytest.raises(hf.HoldfastError, match="available for one"):
        opened(tmp_path, model)
