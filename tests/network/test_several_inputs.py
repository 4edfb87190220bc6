"""Models that take something else than one tensor: refused before work starts, in words that say how to fix the other inputs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import holdfast as hf
from holdfast.commands.options import ModelOptions
from holdfast.commands.reading.model import load_network
from holdfast.errors import BadInput
from holdfast.network import Network

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    def forward(self, state: Tensor, goal: Tensor) -> Tensor:
        return state[:, :3] + goal


class Keyword(nn.Module):
    def forward(self, x: Tensor, *, scale: float) -> Tensor:
        return x * scale


class Nothing(nn.Module):
    def forward(self) -> Tensor:
        return torch.zeros(1, 3)


class ADict(nn.Module):
    def forward(self, inputs: Any) -> Tensor:
        return inputs["state"][:, :3]


class AList(nn.Module):
    def forward(self, parts: Any) -> Tensor:
        return parts[0][:, :3] + parts[5][:, :3]


class Optional(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x[:, :3]


class Lengths(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x[:, :3]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Two(), r"2 inputs \(state, goal\).*--constant goal"),
        (Keyword(), r"\(x, scale\)"),
        (Nothing(), "no positional argument"),
    ],
)
def test_a_forward_of_several_inputs_is_refused_when_it_is_opened(model: nn.Module, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Network.from_torch(model.eval())


def test_a_function_of_two_arrays_is_refused_when_it_is_opened() -> None:
    def score(x: Any, goal: Any) -> Any:
        return x

    with pytest.raises(BadInput, match=r"score takes 2 inputs \(x, goal\)"):
        Network.from_callable(score)


@pytest.mark.parametrize("model", [Optional(), Lengths()])
def test_inputs_that_need_no_value_are_no_obstacle(model: nn.Module) -> None:
    assert torch.equal(Network.from_torch(model.eval())(X), X[:, :3])


QUESTIONS: dict[str, Callable[[Network], object]] = {
    "radius": lambda net: hf.radius(net, X, torch.zeros(2).long()),
    "radius, within": lambda net: hf.radius(net, X, property=hf.Within(0.1)),
    "worst": lambda net: hf.worst(net, hf.Ball(X, 0.1), hf.Robustness(torch.zeros(2).long())),
    "worst, within": lambda net: hf.worst(net, hf.Ball(X, 0.1), hf.Within(0.1)),
    "risk": lambda net: hf.risk(net, X, "confidence", radius=0.1, epsilon=0.1),
    "risk, within": lambda net: hf.risk(net, X, hf.Within(0.1), radius=0.1),
    "reach": lambda net: hf.reach(net, (X[0], X[0] + 0.1)),
    "testgen": lambda net: hf.testgen(net, X),
    "smoothed": lambda net: hf.smoothed(net, X, sigma=0.1),
}


@pytest.mark.parametrize("model", [ADict(), AList()])
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_model_of_a_dict_or_a_list_is_refused_by_every_question(name: str, model: nn.Module) -> None:
    with pytest.raises(BadInput, match=r"takes a dict, a list or several inputs needs a module around it"):
        QUESTIONS[name](Network.from_torch(model.eval()))


def two_inputs(folder: Path) -> str:
    """y = state + goal, goal (any, 3)."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("state", "goal")]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([helper.make_node("Add", ["state", "goal"], ["y"])], "sum", ports, [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "two.onnx")
    return str(folder / "two.onnx")


def test_an_input_of_an_onnx_file_is_fixed_by_numbers_on_the_command_line(tmp_path: Path) -> None:
    file = two_inputs(tmp_path)
    np.save(tmp_path / "goal.npy", np.array([[1, 2, 3]], dtype=np.float32))
    x = torch.rand(2, 3)
    for constant, wanted in (
        ("goal=0.5", [0.5] * 3),
        ("goal=1,2,3", [1.0, 2, 3]),
        (f"goal={tmp_path}/goal.npy", [1.0, 2, 3]),
    ):
        net = load_network(ModelOptions(file, constants=[constant]))
        assert torch.equal(net(x), x + torch.tensor(wanted)), constant


@pytest.mark.parametrize(
    ("constant", "message"),
    [
        ("goal=1,2", r"shape \(2,\), the file declares anyx3.*3 numbers in a row"),
        ("goal=a", "or numbers as in goal=0.5,-0.2"),
        ("aim=1", "no input named 'aim'; there are state, goal"),
    ],
)
def test_a_constant_that_does_not_fit_is_refused(constant: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        load_network(ModelOptions(two_inputs(tmp_path), constants=[constant]))


def test_an_exported_program_of_two_inputs_names_them(tmp_path: Path) -> None:
    program = torch.export.export(Two().eval(), (torch.zeros(2, 4), torch.zeros(2, 3)))
    torch.export.save(program, tmp_path / "two.pt2")
    with pytest.raises(BadInput, match=r"takes 2 inputs \(state, goal\)"):
        Network.from_export(tmp_path / "two.pt2", trust=True)
