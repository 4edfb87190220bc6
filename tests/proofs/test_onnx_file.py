"""The checker's own reading of .onnx files, against onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from holdfast.api.methods import default_methods
from holdfast.api.prove import prove
from holdfast.api.radius import radius_problems
from holdfast.network import Network
from holdfast.solver import solve
from holdfast_check import Model, Rejected
from holdfast_check.__main__ import main

DRAW = np.random.default_rng(2)
runtime = pytest.importorskip(
    "onnxruntime", reason="onnxruntime is not installed: pip install 'holdfast[runtime]'"
)


def weights(**shapes: tuple[int, ...]) -> list[Any]:
    return [
        numpy_helper.from_array(DRAW.normal(0, 0.5, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]


def integers(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)


def node(op: str, given: str, made: str, **attributes: Any) -> Any:
    return helper.make_node(op, given.split(), made.split(), **attributes)


IMAGE, SEQUENCE = (1, 2, 6, 5), (4, 1, 3)
MODELS: dict[str, tuple[tuple[int, ...], list[Any], list[Any]]] = {
    "convolution": (
        IMAGE,
        [
            node("Conv", "x w b", "c", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], group=2),
            node("LeakyRelu", "c", "r", alpha=0.2), node("MaxPool", "r", "m", kernel_shape=[2, 2], strides=[1, 2], pads=[1, 0, 0, 0]),
            node("GlobalAveragePool", "m", "g"), node("Flatten", "g", "f"), node("Gemm", "f a d", "y", transB=1),
        ],
        weights(w=(4, 1, 3, 2), b=(4,), a=(3, 4), d=(3,)),
    ),
    "normalised": (
        IMAGE,
        [
            node("BatchNormalization", "x s b m v", "n", epsilon=0.1), node("AveragePool", "n", "p", kernel_shape=[3, 3], strides=[2, 2]),
            node("Sigmoid", "p", "q"), node("Clip", "q low high", "k"), node("ReduceMean", "k", "z", axes=[2], keepdims=0),
            node("Sub", "z c", "u"), node("Transpose", "u", "t", perm=[0, 2, 1]), node("Reshape", "t shape", "y"),
        ],
        [
            *weights(s=(2,), b=(2,), m=(2,), c=(2, 1)), numpy_helper.from_array(np.array([0.5, 2.0], np.float32), "v"),
            numpy_helper.from_array(np.array(0.3, np.float32), "low"), numpy_helper.from_array(np.array(0.7, np.float32), "high"),
            integers("shape", 1, -1),
        ],
    ),
    "pieces": (
        (1, 6),
        [
            node("Split", "x sizes", "a b", axis=1), node("Mul", "a b", "p"), node("Max", "a b", "l"), node("Min", "a b", "s"),
            node("Concat", "p l s", "j", axis=1), node("Slice", "j from to axes steps", "h"), node("Abs", "h", "e"), node("Neg", "e", "n"),
            node("Div", "n k", "d"), node("Gather", "d which", "o", axis=1), node("MatMul", "o w", "z"), node("Add", "z c", "y"),
        ],
        [
            integers("sizes", 3, 3), integers("from", 8), integers("to", 1), integers("axes", 1), integers("steps", -2),
            integers("which", 2, 0, 0), *weights(w=(3, 2), c=(2,), k=(4,)),
        ],
    ),
    "lstm": (
        SEQUENCE,
        [
            node("LSTM", "x W R B", "Y h c", hidden_size=3, direction="bidirectional"), node("Concat", "h c", "j", axis=0),
            node("Reshape", "j shape", "y"),
        ],
        [*weights(W=(2, 12, 3), R=(2, 12, 3), B=(2, 24)), integers("shape", 1, -1)],
    ),
    "gru": (
        SEQUENCE,
        [node("GRU", "x W R B", "Y h", hidden_size=3, linear_before_reset=1, direction="reverse"), node("Reshape", "Y shape", "y")],
        [*weights(W=(1, 9, 3), R=(1, 9, 3), B=(1, 18)), integers("shape", 1, -1)],
    ),
    "rnn": (
        SEQUENCE,
        [node("RNN", "x W R", "Y h", hidden_size=3), node("Squeeze", "h axes", "s"), node("Tanh", "s", "y")],
        [*weights(W=(1, 3, 3), R=(1, 3, 3)), integers("axes", 0)],
    ),
}  # fmt: skip


def written(kind: str, folder: Path) -> Path:
    shape, nodes, constants = MODELS[kind]
    given, made = (
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    )
    model = helper.make_model(
        helper.make_graph(nodes, kind, [given], [made], constants),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    path = folder / f"{kind}.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("kind", MODELS)
def test_files_are_read_as_onnxruntime_runs_them(kind: str, tmp_path: Path) -> None:
    path = written(kind, tmp_path)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model = Model.read_file(path)
    for _ in range(5):
        x = DRAW.normal(0, 1, MODELS[kind][0]).astype(np.float32)
        [said] = session.run(["y"], {"x": x})
        np.testing.assert_allclose(model.program.value(x[None])[0], said.ravel(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("gru", {"linear_before_reset": 0}, "linear_before_reset"), ("lstm", {"clip": 1.0}, "clip"),
        ("rnn", {"activations": ["Relu"]}, "activations"),
        ("convolution", {"auto_pad": "SAME_UPPER"}, "auto_pad"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(kind: str, change: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = written(kind, tmp_path)
    model = onnx.load(path)
    first = model.graph.node[0]
    kept = [attribute for attribute in first.attribute if attribute.name not in change]
    del first.attribute[:]
    first.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in change.items())])
    onnx.save(model, path)
    with pytest.raises(Rejected, match=why):
        Model.read_file(path)


def test_a_witness_is_replayed_in_onnxruntime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the proofs of an .onnx file speak of that very file."""
    path = written("convolution", tmp_path)
    net = Network.from_onnx(path, domain=(-3, 3))
    x = torch.from_numpy(DRAW.normal(0, 1, IMAGE).astype(np.float32))
    problems = list(radius_problems(net, x, net(x).argmax(-1)))
    made = prove(problems, solve(problems, default_methods(net, "radius", "fast")), tmp_path, file=path)
    files = [str(one.file) for one in made if one.file is not None]
    assert len(files) == 2, made
    assert {one.model for one in made} == {path}
    assert main([str(path), *files]) == 0
    assert "onnxruntime confirms the witness" in capsys.readouterr().out
