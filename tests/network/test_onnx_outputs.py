"""Files with several outputs: which is measured is said by whoever asks, or there is nothing to choose."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.network.onnx import session_of

GENERATOR = np.random.default_rng(0)
WEIGHTS = {
    "hidden_weight": GENERATOR.normal(size=(4, 5)).astype(np.float32),
    "logits_weight": GENERATOR.normal(size=(5, 3)).astype(np.float32),
}
KINDS = {
    "hidden": (TensorProto.FLOAT, 5),
    "logits": (TensorProto.FLOAT, 3),
    "label": (TensorProto.INT64, None),
}


def two_outputs(path: Path, *outputs: str, unknown: bool = False) -> Path:
    """hidden = relu(x W), logits = hidden V, label = argmax(logits). unknown: `hidden` comes from an operator that no one knows."""
    nodes = [
        helper.make_node("MatMul", ["x", "hidden_weight"], ["before"]),
        helper.make_node("Relu", ["before"], ["rectified"]),
        helper.make_node("Nobody", ["rectified"], ["hidden"], domain="own")
        if unknown
        else helper.make_node("Identity", ["rectified"], ["hidden"]),
        helper.make_node("MatMul", ["rectified", "logits_weight"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
    ]
    ports = []
    for name in outputs:
        kind, width = KINDS[name]
        ports.append(
            helper.make_tensor_value_info(name, kind, ["batch"] if width is None else ["batch", width])
        )
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        ports,
        [numpy_helper.from_array(value, name) for name, value in WEIGHTS.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def truth(x: Tensor, output: str) -> Tensor:
    hidden = torch.relu(x @ torch.from_numpy(WEIGHTS["hidden_weight"]))
    return hidden if output == "hidden" else hidden @ torch.from_numpy(WEIGHTS["logits_weight"])


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("black_box", [False, True])
def test_nobody_guesses_between_two_outputs(tmp_path: Path, black_box: bool) -> None:
    file = two_outputs(tmp_path / "two.onnx", "hidden", "logits")
    with pytest.raises(
        BadInput, match=r"2 outputs, hidden \(any x 5\), logits \(any x 3\).*output='NAME'.*--output"
    ):
        Network.from_onnx(file, black_box=black_box)
    with pytest.raises(BadInput, match=r"no output named 'scores'; there are hidden \(any x 5\), logits"):
        Network.from_onnx(file, output="scores", black_box=black_box)


@pytest.mark.parametrize("output", ["hidden", "logits"])
@pytest.mark.parametrize("black_box", [False, True])
def test_the_output_that_is_named_is_measured(tmp_path: Path, output: str, black_box: bool) -> None:
    if black_box:
        pytest.importorskip("onnxruntime")
    file = two_outputs(tmp_path / "two.onnx", "hidden", "logits")
    net = Network.from_onnx(file, output=output, black_box=black_box)
    torch.testing.assert_close(net(X), truth(X, output))
    assert net.outputs_for(X) == KINDS[output][1]
    assert any(
        f"2 outputs, hidden (any x 5), logits (any x 3); {output} is measured" in note for note in net.notes
    )


def test_which_output_is_part_of_what_a_network_is(tmp_path: Path) -> None:
    file = two_outputs(tmp_path / "two.onnx", "hidden", "logits")
    nets = [Network.from_onnx(file, output=output) for output in ("hidden", "logits")]
    assert nets[0].fingerprint != nets[1].fingerprint
    assert nets[0].identity(X) != nets[1].identity(X)
    one = two_outputs(tmp_path / "one.onnx", "logits")
    assert (
        Network.from_onnx(one).fingerprint == Network.from_onnx(one, output="logits").fingerprint
    )  # there was nothing to choose


def test_what_cannot_be_measured_was_not_meant(tmp_path: Path) -> None:
    """A label beside the scores, as scikit-learn's files have it."""
    file = two_outputs(tmp_path / "two.onnx", "label", "logits")
    net = Network.from_onnx(file)
    torch.testing.assert_close(net(X), truth(X, "logits"))
    assert any(
        "label (any, INT64), logits (any x 3); logits, the only one of floating numbers, is measured" in note
        for note in net.notes
    )
    assert net.fingerprint == Network.from_onnx(file, output="logits").fingerprint
    with pytest.raises(BadInput, match="int64"):
        Network.from_onnx(file, output="label").outputs_for(X)


def test_an_output_of_no_declared_type_could_be_meant(tmp_path: Path) -> None:
    model = onnx.load(two_outputs(tmp_path / "two.onnx", "label", "logits"))
    model.graph.output[0].ClearField("type")
    onnx.save(model, tmp_path / "untyped.onnx")
    with pytest.raises(
        BadInput, match=r"2 outputs, label \(of no declared type\), logits \(any x 3\); more than one"
    ):
        Network.from_onnx(tmp_path / "untyped.onnx")
    torch.testing.assert_close(
        Network.from_onnx(tmp_path / "untyped.onnx", output="logits")(X), truth(X, "logits")
    )


def test_what_only_other_outputs_need_can_stop_nothing(tmp_path: Path) -> None:
    file = two_outputs(tmp_path / "two.onnx", "hidden", "logits", unknown=True)
    net = Network.from_onnx(file, output="logits")
    assert net.source == "onnx"
    torch.testing.assert_close(net(X), truth(X, "logits"))
    found = hf.bounds(net, hf.Ball(X, 0.01))
    assert bool((found.lower <= truth(X, "logits")).all())


def test_onnxruntime_judges_the_same_output(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = two_outputs(tmp_path / "two.onnx", "hidden", "logits")
    np.testing.assert_allclose(
        session_of(file, "logits")(X.numpy()), truth(X, "logits").numpy(), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(BadInput, match="2 outputs"):
        session_of(file)
