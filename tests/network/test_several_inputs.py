"""Models with several inputs: together, with constants, as a dict; from modules, ONNX files and the command line."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.network.trace import export

DRAW = torch.Generator().manual_seed(0)
STATE, GOAL = torch.randn(3, 8, generator=DRAW), torch.randn(3, 3, generator=DRAW)
SIZES = {"state": 8, "goal": 3}


class Actor(nn.Module):
    """A policy: action scores from a state and a goal."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(11, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, state: Tensor, goal: Tensor) -> Tensor:
        found: Tensor = self.layers(torch.cat([state, goal], 1))
        return found


class Observed(Actor):
    def forward(self, observation: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(observation["state"], observation["goal"])


class Goal(Actor):
    """The batch size by len(x), as in much code: Python makes an int of it."""

    def forward(self, state: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(state, GOAL[:1].expand(len(state), -1))


ACTOR = Actor().eval()
SAID = ACTOR(STATE, GOAL).argmax(1)


def brackets(found: Any) -> list[float]:
    return [bound.value for one in found for bound in (one.lower, one.upper)]


def test_inputs_are_perturbed_together_by_name_or_as_one_array() -> None:
    plain = hf.radius(ACTOR.layers, torch.cat([STATE, GOAL], 1), SAID)
    for module in (ACTOR, Observed().eval()):
        net = hf.Network.from_torch(module, inputs=SIZES)
        found = hf.radius(net, {"goal": GOAL, "state": STATE}, SAID)
        assert brackets(found) == pytest.approx(brackets(plain), rel=1e-3)
        assert all(one.lower.value > 0 for one in found)


def test_constants_stay_and_the_rest_is_perturbed() -> None:
    net = hf.Network.from_torch(ACTOR, constants={"goal": GOAL[0].tolist()})
    assert torch.equal(net(STATE[:1]), ACTOR(STATE[:1], GOAL[:1]))
    [found] = hf.radius(net, STATE[:1], SAID[:1])
    witness = found.counterexample
    assert found.lower.value > 0
    assert witness is not None
    assert ACTOR(witness[None], GOAL[:1]).argmax() != SAID[0]
    dictionary = hf.Network.from_torch(Observed().eval(), inputs={"state": 8}, constants={"goal": GOAL[0]})
    assert torch.equal(dictionary(STATE[:1]), net(STATE[:1]))


def test_units_for_each_input_are_scales_of_columns() -> None:
    """A radius r means r for each number of the state, and r / 10 for each of the goal."""
    scales = hf.Columns.of_inputs(SIZES, scales={"goal": 0.1})
    net = hf.Network.from_torch(ACTOR, inputs=SIZES).with_columns(scales)
    [found] = hf.radius(net, {"state": STATE[:1], "goal": GOAL[:1]}, SAID[:1])
    witness = found.counterexample
    assert witness is not None
    moved = (witness - torch.cat([STATE[0], GOAL[0]])).abs()
    assert float(moved[8:].max()) <= 0.1 * found.upper.value * 1.001
    scaled = nn.Sequential(nn.Linear(11, 11, bias=False), ACTOR.layers).eval()
    with torch.no_grad():
        scaled[0].weight.copy_(torch.diag(torch.tensor([1.0] * 8 + [0.1] * 3)))
    [same] = hf.radius(scaled, torch.cat([STATE[:1], 10 * GOAL[:1]], 1), SAID[:1])
    assert found.lower.value == pytest.approx(same.lower.value, rel=0.05)
    frozen = hf.Columns.of_inputs(SIZES, frozen=["goal"])
    fixed = hf.radius(net.with_columns(frozen), {"state": STATE[:1], "goal": GOAL[:1]}, SAID[:1])
    witness = fixed[0].counterexample
    assert witness is not None
    assert torch.equal(witness[8:].float(), GOAL[0])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"inputs": {"state": 8}}, "also takes goal"),
        ({"inputs": {"state": 8, "aim": 3}}, "has no input 'aim'"),
        ({"inputs": {"state": 0, "goal": 3}}, "needs a size"),
        ({"inputs": ["state"]}, "by its name"),
        ({"constants": {"goal": "east"}}, "number or an array"),
        ({"constants": {"aim": 1.0}}, "has no input 'aim'"),
        ({"constants": {"goal": [1.0], "state": [1.0]}}, "would be perturbed"),
        ({"inputs": {"state": 8}, "constants": {"state": [1.0]}}, "both"),
        ({}, "takes 2 inputs"),
    ],
)
def test_names_that_do_not_fit_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(BadInput, match=match):
        hf.Network.from_torch(ACTOR, **options)


def test_data_that_do_not_fit_are_refused() -> None:
    net = hf.Network.from_torch(ACTOR, inputs=SIZES)
    for x, match in (
        ({"state": STATE}, "no 'goal'"),
        ({"state": STATE, "goal": GOAL[:, :2]}, "has shape"),
        ({"state": STATE[:2], "goal": GOAL}, "different numbers"),
    ):
        with pytest.raises(BadInput, match=match):
            hf.radius(net, x, SAID)


def onnx_file(path: Path, goal_shape: list[Any]) -> Path:
    """The actor as a file; a goal without batch axis is expanded to the batch of the state."""
    weights = {
        name: numpy_helper.from_array(value.detach().numpy(), name)
        for name, value in ACTOR.layers.named_parameters()
    }
    nodes = [
        helper.make_node("Concat", ["state", "full"], ["x"], axis=1),
        helper.make_node("Gemm", ["x", "0.weight", "0.bias"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "2.weight", "2.bias"], ["y"], transB=1),
    ]
    if len(goal_shape) == 1:
        one = numpy_helper.from_array(np.array([1], dtype=np.int64), "one")
        weights["one"] = one
        nodes.insert(0, helper.make_node("Unsqueeze", ["goal", "zero"], ["full"]))
        weights["zero"] = numpy_helper.from_array(np.array([0], dtype=np.int64), "zero")
    else:
        nodes.insert(0, helper.make_node("Identity", ["goal"], ["full"]))
    batch = 1 if len(goal_shape) == 1 else "n"
    graph = helper.make_graph(
        nodes,
        "actor",
        [
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [batch, 8]),
            helper.make_tensor_value_info("goal", TensorProto.FLOAT, goal_shape),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 2])],
        list(weights.values()),
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("goal_shape", [["n", 3], [3]])
def test_files_with_several_inputs_also_one_without_batch_axis(tmp_path: Path, goal_shape: list[Any]) -> None:
    file = onnx_file(tmp_path / "actor.onnx", goal_shape)
    plain = hf.radius(ACTOR.layers, torch.cat([STATE, GOAL], 1), SAID)
    net = hf.Network.from_onnx(file, inputs=["state", "goal"])
    assert net.differentiable
    found = hf.radius(net, {"state": STATE, "goal": GOAL}, SAID)
    assert brackets(found) == pytest.approx(brackets(plain), rel=1e-3)
    fixed = hf.Network.from_onnx(file, constants={"goal": GOAL[0].numpy()})
    joined = hf.Network.from_onnx(file, inputs=["state"], constants={"goal": GOAL[0].numpy()})
    assert torch.allclose(fixed(STATE), joined(STATE))
    assert torch.allclose(fixed(STATE[:1]), ACTOR(STATE[:1], GOAL[:1]), atol=1e-6)
    with pytest.raises(BadInput, match="goal is in neither"):
        hf.Network.from_onnx(file, inputs=["state"])
    with pytest.raises(BadInput, match="perturb several together"):
        hf.Network.from_onnx(file)


def test_the_command_line_takes_arrays_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_file(tmp_path / "actor.onnx", ["n", 3])
    np.savez(tmp_path / "data.npz", state=STATE.numpy(), goal=GOAL.numpy(), y=SAID.numpy())
    (tmp_path / "policy_of_test.py").write_text(
        "from tests.network.test_several_inputs import Actor\n\n\ndef actor():\n    return Actor().eval()\n"
    )
    monkeypatch.chdir(tmp_path)
    for k, (model, inputs) in enumerate(
        (("actor.onnx", "state,goal"), ("policy_of_test:actor", "state=8,goal=3"))
    ):
        run = ["radius", "--model", model, "--inputs", inputs, "--data", "data.npz", "--queries", "2000"]
        result = CliRunner().invoke(app, [*run, "--out", f"run{k}"])
        assert result.exit_code == 0, result.output
        with hf.Store.read(f"run{k}") as store:
            assert all(record.bracket.lower.value > 0 for record in store.records())
    alone = ["radius", "--model", "policy_of_test:actor", "--constant", "goal=0.5,-0.2,0.1"]
    np.savez(tmp_path / "state.npz", x=STATE.numpy())
    result = CliRunner().invoke(app, [*alone, "--data", "state.npz", "--queries", "1000", "--out", "fixed"])
    assert result.exit_code == 0, result.output


def test_len_of_the_input_keeps_the_proofs() -> None:
    program = export(Goal().eval(), STATE)
    assert torch.allclose(program.module()(STATE[:2]), Goal()(STATE[:2]), atol=1e-6)
    [found] = hf.radius(Goal().eval(), STATE[:1], Goal()(STATE[:1]).argmax(1))
    assert 0 < found.lower.value < math.inf
    assert len(STATE) == 3  # Python's own len is back


def test_a_branch_on_len_is_still_refused() -> None:
    class Branch(Actor):
        def forward(self, state: Tensor) -> Tensor:  # type: ignore[override]
            found = super().forward(state, GOAL[:1].expand(len(state), -1))
            return found if len(state) > 2 else 2 * found

    with pytest.raises(UnsupportedLayer):
        export(Branch().eval(), STATE)
