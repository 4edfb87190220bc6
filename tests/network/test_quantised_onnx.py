"""Quantised ONNX files, compared with onnxruntime: equal in every bit."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tests.quantised_networks import FORMATS, quantise, run

import holdfast as hf
from holdfast.errors import UnsupportedLayer
from holdfast.network.onnx import import_onnx
from holdfast.network.onnx.quantised_groups import fuse_quantised_groups


def inputs(shape: tuple[int, ...], count: int = 1000) -> np.ndarray:
    """Random inputs, half of them multiples of 1/16, where quotients by the scale may be ties."""
    x = np.random.default_rng(3).random((count, *shape)).astype(np.float32)
    x[::2] = np.round(x[::2] * 16) / 16
    return x


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(("kind", "shape"), [("perceptron", (6,)), ("convolutional", (1, 6, 6))])
def test_the_import_answers_as_onnxruntime_in_every_bit(style, per_channel, kind, shape) -> None:
    content = quantise(kind, style, per_channel)
    module = import_onnx(onnx.load_from_string(content), "file")
    x = inputs(shape)
    found = module(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(found, run(content, x))
    if (
        kind == "perceptron"
    ):  # a mean of points of the grid is often a tie, which float64 may round differently
        in_float64 = module.double()(torch.from_numpy(x).double()).numpy()
        np.testing.assert_allclose(in_float64, found, rtol=1e-6)  # the same points of the grid


def test_groups_of_float_layers_become_integer_layers() -> None:
    model = onnx.load_from_string(quantise("convolutional", "QDQ"))
    fused = fuse_quantised_groups(model)
    kinds = {node.op_type for node in fused.graph.node}
    assert {"QLinearConv", "QGemm"} <= kinds
    assert not {"Conv", "Gemm"} & kinds
    assert {"Conv", "Gemm"} <= {node.op_type for node in model.graph.node}, "the given model has changed"


def with_bias_scale(factor: float) -> onnx.ModelProto:
    model = onnx.load_from_string(quantise("perceptron", "QDQ", False))
    (scale,) = (t for t in model.graph.initializer if t.name.startswith("b0") and "scale" in t.name)
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(factor), scale.name))
    return model


def test_a_bias_of_another_scale_is_refused() -> None:
    """onnxruntime ignores the scale of the bias, ONNX does not: the file has two meanings."""
    with pytest.raises(UnsupportedLayer, match="scale of its bias is not the product"):
        import_onnx(with_bias_scale(1.5), "file")
    module = import_onnx(with_bias_scale(1 + 2**-22), "file")
    x = inputs((6,), 200)
    found = module(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(found, run(with_bias_scale(1).SerializeToString(), x))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_stored_integers_do_not_wrap_around(kind: type) -> None:
    """The zero point of a bias has no axes, which in torch widens no type."""
    stored = np.array([0, 5, 100, 127], dtype=kind)
    model = quantised_then(
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["stored", "s", "middle"], ["bias"]),
        helper.make_node("Add", ["d", "bias"], ["y"]),
        kind=kind,
    )
    model.graph.initializer.append(numpy_helper.from_array(stored, "stored"))
    model.graph.initializer.append(numpy_helper.from_array(kind(101), "middle"))
    x = inputs((4,), 1)
    np.testing.assert_array_equal(
        import_onnx(model, "file")(torch.from_numpy(x)).numpy(), run(model.SerializeToString(), x)
    )


PAIRS = {
    "QLinearAdd": 2, "QLinearMul": 2, "QLinearSigmoid": 1, "QLinearLeakyRelu": 1,
    "QLinearAveragePool": 1, "QLinearGlobalAveragePool": 1, "QLinearConcat": 2,
}  # fmt: skip


@pytest.mark.parametrize("operator", sorted(PAIRS))
def test_operators_of_onnxruntime_differ_by_a_step_at_most(operator: str) -> None:
    """Its kernels compute these in float32 in an order of their own: near a tie they may take the other step."""
    constants = {"s0": 0.02, "s1": 0.05, "sy": 0.0713}
    zeros = {"z0": 3, "z1": 128, "zy": 11}
    parts = [[f"q{k}", f"s{k}", f"z{k}"] for k in range(PAIRS[operator])]
    attributes = {"alpha": 0.1} if operator == "QLinearLeakyRelu" else {}
    attributes |= {"kernel_shape": [2, 2]} if operator == "QLinearAveragePool" else {}
    attributes |= {"axis": 1} if operator == "QLinearConcat" else {}
    attributes |= {"channels_last": 0} if operator == "QLinearGlobalAveragePool" else {}
    given = [name for part in parts for name in part]
    given = ["sy", "zy", *given] if operator == "QLinearConcat" else [*given, "sy", "zy"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", f"s{k}", f"z{k}"], [f"q{k}"]) for k in range(len(parts))
    ]
    nodes.append(helper.make_node(operator, given, ["q"], domain="com.microsoft", **attributes))
    nodes.append(helper.make_node("DequantizeLinear", ["q", "one", "zy"], ["y"]))
    tensors = [numpy_helper.from_array(np.float32(v), n) for n, v in {**constants, "one": 1.0}.items()]
    tensors += [numpy_helper.from_array(np.uint8(v), n) for n, v in zeros.items()]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [400, 2, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    x = inputs((2, 4, 4), 400) * 8 - 4
    found = import_onnx(model, "file")(torch.from_numpy(x)).numpy()
    apart = np.abs(found - run(model.SerializeToString(), x))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 1e-2


def quantised_then(*nodes: onnx.NodeProto, kind: type = np.uint8) -> onnx.ModelProto:
    """A QuantizeLinear, followed by some nodes that read its result q."""
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), *nodes],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(kind(0), "z")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_other_operators_on_the_integers_are_refused_by_name() -> None:
    """Integers of 8 bits wrap around; the floating-point numbers that hold them do not."""
    model = quantised_then(
        helper.make_node("Add", ["q", "q"], ["sum"]), helper.make_node("Cast", ["sum"], ["y"], to=1)
    )
    with pytest.raises(
        UnsupportedLayer, match=r"(?s)Add node .* on the integers of a quantised tensor.*black box"
    ):
        import_onnx(model, "file")


def test_moves_of_the_integers_are_exact() -> None:
    model = quantised_then(
        helper.make_node("Transpose", ["q"], ["t"], perm=[1, 0]),
        helper.make_node("Concat", ["t", "t"], ["c"], axis=0),
        helper.make_node("DequantizeLinear", ["c", "s", "z"], ["y"]),
        kind=np.int8,
    )
    x = inputs((4,), 1) * 30 - 15
    np.testing.assert_array_equal(
        import_onnx(model, "file")(torch.from_numpy(x)).numpy(), run(model.SerializeToString(), x)
    )


def test_a_quantised_file_has_gradients_and_no_note_of_a_black_box(tmp_path) -> None:
    path = tmp_path / "quantised.onnx"
    path.write_bytes(quantise("perceptron", "QOperator"))
    net = hf.Network.from_onnx(path, domain=(0, 1))
    assert net.double(torch.zeros(1, 6)) is None, "float64 decides ties differently"
    assert net.differentiable
    assert not net.notes
