"""Small networks, quantised by onnxruntime's own tool, and what onnxruntime computes for them."""

import functools
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from holdfast.network.onnx import session

Array = np.ndarray[Any, Any]
PERCEPTRON = (6, 10, 8, 3)  # sizes of the layers
IMAGE = (1, 6, 6)
FORMATS = ("QDQ", "QOperator")


def perceptron(sizes: tuple[int, ...] = PERCEPTRON, seed: int = 0) -> onnx.ModelProto:
    """A perceptron with random weights on [0, 1]^n, in float32."""
    draw = np.random.default_rng(seed)
    nodes, constants, name = [], {}, "x"
    for k, (inner, outer) in enumerate(itertools.pairwise(sizes)):
        constants[f"w{k}"] = draw.normal(0, (2 / inner) ** 0.5, (inner, outer)).astype(np.float32)
        constants[f"b{k}"] = draw.normal(0, 0.2, outer).astype(np.float32)
        last = k == len(sizes) - 2
        nodes.append(helper.make_node("Gemm", [name, f"w{k}", f"b{k}"], ["y" if last else f"z{k}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"z{k}"], [f"a{k}"]))
        name = f"a{k}"
    return _model(nodes, constants, [sizes[0]], sizes[-1])


def convolutional(seed: int = 0) -> onnx.ModelProto:
    """Two convolutions with ReLU, an average pooling and a linear layer, in float32."""
    draw = np.random.default_rng(seed)
    constants = {
        "k0": draw.normal(0, 0.5, (3, 1, 3, 3)), "c0": draw.normal(0, 0.1, 3),
        "k1": draw.normal(0, 0.3, (4, 3, 3, 3)), "c1": draw.normal(0, 0.1, 4),
        "w": draw.normal(0, 0.3, (16, 3)), "b": draw.normal(0, 0.1, 3),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "k0", "c0"], ["z0"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["z0"], ["a0"]),
        helper.make_node("Conv", ["a0", "k1", "c1"], ["z1"]),
        helper.make_node("Relu", ["z1"], ["a1"]),
        helper.make_node("AveragePool", ["a1"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["y"]),
    ]
    return _model(nodes, {name: value.astype(np.float32) for name, value in constants.items()}, IMAGE, 3)


def _model(
    nodes: list[onnx.NodeProto], constants: dict[str, Array], shape: Any, outputs: int
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", outputs])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@contextmanager
def _quiet_root_logger() -> Iterator[None]:
    """The tool recommends a preprocessing that small files do not need."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)


@functools.cache
def quantise(kind: str, style: str, per_channel: bool = True, seed: int = 0) -> bytes:
    """A network of this kind, "perceptron", "plane" (two inputs) or "convolutional", as a quantised file.

    style: one of FORMATS, or "dynamic".
    """
    from onnxruntime import quantization

    make = {
        "perceptron": lambda: perceptron(seed=seed),
        "plane": lambda: perceptron((2, 5, 4, 2), seed),
        "convolutional": lambda: convolutional(seed),
    }
    model = make[kind]()
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
    rows = iter(np.random.default_rng(1).random((20, 1, *shape)).astype(np.float32))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Array] | None:
            row = next(rows, None)
            return None if row is None else {"x": row}

    with _quiet_root_logger(), TemporaryDirectory() as folder:
        path = Path(folder) / "quantised.onnx"
        if style == "dynamic":
            quantization.quantize_dynamic(model, path)
        else:
            quantization.quantize_static(
                model,
                path,
                Reader(),
                quant_format=quantization.QuantFormat[style],
                per_channel=per_channel,
            )
        return path.read_bytes()


def run(content: bytes, x: Array) -> Array:
    """(n, *shape) -> (n, outputs), as onnxruntime computes it."""
    answer = session(onnx.load_from_string(content))(x.astype(np.float32))
    assert isinstance(answer, np.ndarray)
    return answer
