"""Whole ONNX files that once crashed, or were proved to do what they do not do."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import holdfast as hf
from holdfast.errors import BadInput, UnreadableFile, UnsupportedLayer
from holdfast.network import Network
from holdfast.network.onnx import import_onnx

Array = np.ndarray[Any, Any]


def floats(*shape: int) -> Array:
    return np.random.default_rng([7, *shape]).standard_normal(shape).astype(np.float32)


def written(
    path: Path,
    nodes: list[onnx.NodeProto],
    shape: list[int | str],
    constants: dict[str, Array],
    opset: int = 17,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    file = path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    return file


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    names = [[name.replace(".", "") for name in side.split()] for side in (inputs, outputs)]
    return helper.make_node(operator, *names, **attributes)


def holds(net: Network, x: torch.Tensor, size: float = 0.1) -> hf.api.Bounds:
    """The bounds over a box, which must hold what random points and the corners of the box give, and be finite."""
    found = hf.bounds(net, hf.Box(x, x - size, x + size))
    assert bool(found.lower.isfinite().all())
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        move = torch.rand(x.shape, generator=generator) * 2 - 1
        for step in (move, move.sign()):
            answer = net(x + size * step).double()
            assert bool((found.lower - 1e-5 <= answer).all())
            assert bool((answer <= found.upper + 1e-5).all())
    return found


# ---------------------------------------------------------------- Softplus


def test_softplus_is_proved_as_onnx_defines_it(tmp_path: Path) -> None:
    """y = 1e8 (softplus(x) - x) at x about 21: 7.6e-2 by ONNX, 0 by torch's shortcut, in float64 so that it can be seen."""
    nodes = [node("Softplus", "x", "s"), node("Sub", "s x", "d"), node("Mul", "d scale", "y")]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["n", 1])],
        [numpy_helper.from_array(np.array(1e8), "scale")],
    )
    file = tmp_path / "softplus.onnx"
    file.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )
    net = Network.from_onnx(file)
    x = torch.full((1, 1), 21.0, dtype=torch.float64)
    wanted = 1e8 * np.log1p(np.exp(-21.0))
    assert net(x).item() == pytest.approx(wanted, rel=1e-5)
    found = hf.bounds(net, hf.Box(x, x - 1e-6, x + 1e-6))
    assert found.lower.item() <= wanted <= found.upper.item()
    assert found.upper.item() > 0.05


# ---------------------------------------------------------------- batches


def test_a_fixed_batch_whose_rows_stand_alone_is_taken_row_by_row(tmp_path: Path) -> None:
    weight = floats(3, 8)
    net = Network.from_onnx(written(tmp_path, [node("Gemm", "x w", "y", transB=1)], [12, 8], {"w": weight}))
    x = torch.from_numpy(floats(2, 8))
    torch.testing.assert_close(net(x), x @ torch.from_numpy(weight).T)
    holds(net, x)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Reshape", "x shape", "y")],
        [node("ReduceMean", "x", "m", axes=[0]), node("Sub", "x m", "y")],
        [node("Softmax", "x", "y", axis=0)],
    ],
    ids=["its size is written down", "rows are compared", "rows share a softmax"],
)
def test_a_fixed_batch_that_does_not_fall_apart_is_refused(
    tmp_path: Path, nodes: list[onnx.NodeProto]
) -> None:
    """The second once passed: asked for a single row it answered nothing but zeros."""
    file = written(tmp_path, nodes, [12, 8], {"shape": np.array([12, 8])})
    with pytest.raises(BadInput, match="exactly 12 inputs"):
        Network.from_onnx(file)
    assert Network.from_onnx(file, batched=False).shape == (12, 8)


LSTM = {"w": floats(1, 16, 3), "r": floats(1, 16, 4), "o": floats(3, 4), "shape": np.array([1, 4])}


@pytest.mark.parametrize("states", [False, True])
def test_a_recurrent_file_for_a_batch_of_one_has_bounds_and_radii(tmp_path: Path, states: bool) -> None:
    inputs = "t w r . . h c" if states else "t w r"
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("LSTM", inputs, ". last", hidden_size=4),
        node("Reshape", "last shape", "flat"),
        node("Gemm", "flat o", "y", transB=1),
    ]
    held = LSTM | ({"h": floats(1, 1, 4), "c": floats(1, 1, 4)} if states else {})
    net = Network.from_onnx(written(tmp_path, nodes, [1, 5, 3], held))
    x = torch.from_numpy(floats(2, 5, 3))
    holds(net, x, 0.05)
    for bracket in hf.radius(net, x, net(x).argmax(1)):
        assert 0 < bracket.lower.value <= bracket.upper.value


def test_a_state_for_another_batch_is_refused_before_torch_reads_beyond_its_end() -> None:
    def model(state: Array, weight: Array) -> onnx.ModelProto:
        graph = helper.make_graph(
            [node("LSTM", "x w r . . h", ". y", hidden_size=4)],
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, "n", 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(v, k) for k, v in {"w": weight, "r": LSTM["r"], "h": state}.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    with pytest.raises(BadInput, match="batch of 1, but a batch of 3"):
        import_onnx(model(floats(1, 1, 4), LSTM["w"]), "it")(torch.zeros(5, 3, 3))
    with pytest.raises(BadInput, match="initial state"):
        import_onnx(model(floats(1, 3, 2), LSTM["w"]), "it")(torch.zeros(5, 3, 3))
    with pytest.raises(UnreadableFile, match="do not fit"):
        import_onnx(model(floats(1, 3, 4), floats(1, 8, 3)), "it")(torch.zeros(5, 3, 3))


# ---------------------------------------------------------------- bounds that were no numbers


def test_a_piece_without_elements_can_be_joined(tmp_path: Path) -> None:
    nodes = [
        node("Slice", "x three three one", "none"),
        node("Concat", "none x", "h", axis=1),
        node("Gemm", "h w", "y", transB=1),
    ]
    constants = {"three": np.array([3]), "one": np.array([1]), "w": floats(3, 8)}
    net = Network.from_onnx(written(tmp_path, nodes, ["n", 8], constants))
    holds(net, torch.from_numpy(floats(2, 8)))


@pytest.mark.parametrize("pads", [[1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 2]], ids=str)
def test_a_padded_maximum_has_bounds(tmp_path: Path, pads: list[int]) -> None:
    nodes = [
        node("MaxPool", "x", "m", kernel_shape=[3, 3], strides=[2, 2], pads=pads),
        node("Flatten", "m", "f"),
        node("Neg", "f", "y"),
    ]
    net = Network.from_onnx(written(tmp_path, nodes, ["n", 1, 5, 4], {}))
    holds(net, torch.from_numpy(floats(2, 1, 5, 4)) - 4)


def test_padding_with_infinity_by_hand_is_refused_by_name(tmp_path: Path) -> None:
    nodes = [
        node("Pad", "x pads low", "p"),
        node("MaxPool", "p", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "m", "y"),
    ]
    constants = {"pads": np.array([0, 0, 1, 0, 0, 0, 1, 0]), "low": np.array(-np.inf, np.float32)}
    net = Network.from_onnx(written(tmp_path, nodes, ["n", 1, 4, 4], constants))
    x = torch.from_numpy(floats(1, 1, 4, 4))
    with pytest.raises(UnsupportedLayer, match="padding with -inf"):
        hf.bounds(net, hf.Box(x, x - 0.1, x + 0.1))


# ---------------------------------------------------------------- fingerprints


def test_the_fingerprint_covers_external_data(tmp_path: Path) -> None:
    file = written(tmp_path, [node("Gemm", "x w", "y", transB=1)], ["n", 8], {"w": floats(3, 8)})
    plain = Network.from_onnx(file).fingerprint
    outside = tmp_path / "outside.onnx"
    onnx.save(onnx.load(file), outside, save_as_external_data=True, location="weights.bin", size_threshold=0)
    content, data = outside.read_bytes(), tmp_path / "weights.bin"
    first = Network.from_onnx(outside).fingerprint
    assert first == Network.from_onnx(outside).fingerprint
    data.write_bytes((2 * floats(3, 8)).tobytes())
    assert outside.read_bytes() == content
    assert len({plain, first, Network.from_onnx(outside).fingerprint}) == 3


def test_the_fingerprint_covers_constants(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [node("Mul", "x rate", "z"), node("Add", "z shift", "y")],
        "graph",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", ["n", 4]), ("rate", [1]), ("shift", [1]))
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    file = tmp_path / "model.onnx"
    file.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )
    one, two, swapped, turned = (
        Network.from_onnx(file, constants=constants).fingerprint
        for constants in (
            {"rate": 1, "shift": 2},
            {"rate": 1, "shift": 3},
            {"rate": 2, "shift": 1},
            {"shift": 2, "rate": 1},
        )
    )
    assert one == turned
    assert len({one, two, swapped}) == 3
