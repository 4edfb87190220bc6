"""`holdfast verify` and `holdfast reach`, killed with -9 at random moments and resumed: the answers of a run that nobody disturbed.

`python -m benchmarks.kills` does the same to any command, and more often.
"""

import random
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from benchmarks.kills import compared, killed, records_of, spent
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from holdfast.verification import verdict

CODE = """
import torch
from torch import nn

def net():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model
"""
BOX = "".join(
    f"(declare-const X_{i} Real)\n(assert (>= X_{i} -1))\n(assert (<= X_{i} 1))\n" for i in range(3)
)
OUTPUTS = "(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network, and a list of specifications of it whose answers are known."""
    namespace: dict[str, Any] = {}
    exec(CODE, namespace)
    net = namespace["net"]()
    with torch.no_grad():
        least = float(net(torch.cartesian_prod(*[torch.linspace(-1, 1, 41)] * 3))[:, 0].min())
    (tmp_path / "sat.vnnlib").write_text(f"{BOX}{OUTPUTS}(assert (<= Y_0 {least + 0.01}))")
    (tmp_path / "unsat.vnnlib").write_text(f"{BOX}{OUTPUTS}(assert (<= Y_0 {least - 0.3}))")
    (tmp_path / "instances.csv").write_text("net.onnx,sat.vnnlib,60\nnet.onnx,unsat.vnnlib,60\n")
    _export(net, tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", ["reach net.onnx --box -1:1 --tolerance 0.05", "verify instances.csv"])
def test_killed_at_any_moment_and_resumed(place: Path, arguments: str) -> None:
    command, chance, kills = arguments.split(), random.Random(arguments), 0
    code, whole = spent([*command, "--out", "calm"], place / "calm")
    assert code == 0, (place / "calm.log").read_text()
    if command[0] == "verify":
        assert [verdict([r]).answer for r in records_of(place / "calm")] == ["sat", "unsat"]
    while kills < 2:
        folder = place / f"run{whole}"
        kills += killed(command, folder, whole, chance, most=2)
        outcome = compared(folder, place / "calm")
        assert not outcome.faults
        assert not outcome.wider  # each end of a range is known to the tolerance
        whole *= 0.8  # the first run may have taken longer than others do


def _export(net: nn.Sequential, file: Path) -> None:
    nodes, weights, last = [], [], "x"
    for k, part in enumerate(net):
        nodes.append(
            helper.make_node("Gemm", [last, f"weight{k}", f"bias{k}"], [f"h{k}"], transB=1)
            if isinstance(part, nn.Linear)
            else helper.make_node("Relu", [last], [f"h{k}"])
        )
        weights += [
            numpy_helper.from_array(values.detach().numpy(), f"{name}{k}")
            for name, values in part.named_parameters()
        ]
        last = f"h{k}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name, size in (("x", 3), (last, 2))
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), file)
