"""Constructs of .onnx files that can be read in two ways: the checker refuses each, or reads it as onnxruntime runs it. In no case is
a claim accepted that onnxruntime's answer refutes, with onnxruntime installed or without."""

import json
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, defs, helper, numpy_helper
from safetensors.numpy import save

from holdfast_check import Model, ProofVerdict, Rejected, check
from holdfast_check.operators import Operators
from holdfast_check.proof import SCHEMA, Claim
from holdfast_check.region import CheckedRegion, inside
from holdfast_check.replay import points_of
from holdfast_check.signatures import DESCRIBED, FORMS, OPSETS

runtime = pytest.importorskip(
    "onnxruntime", reason="onnxruntime is not installed: pip install 'holdfast[runtime]'"
)
F32, I64 = np.float32, np.int64


def node(op: str, given: str, made: str, **attributes: Any) -> Any:
    """Names are separated by spaces; "-" is an input that is left out."""
    return helper.make_node(
        op, ["" if name == "-" else name for name in given.split()], made.split(), **attributes
    )


def floats(*values: Any) -> Any:
    return np.array(values if len(values) > 1 else values[0], F32)


def ints(*values: int) -> Any:
    return np.array(values, I64)


def model_of(
    nodes: Sequence[Any],
    constants: dict[str, Any],
    shape: Sequence[int],
    opset: int = 17,
    output: Any = None,
    **more: Any,
) -> Any:
    graph = helper.make_graph(
        list(nodes), "graph", [helper.make_tensor_value_info("x", more.pop("kind", TensorProto.FLOAT), list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=more.pop("ir_version", 8), **more
    )


def claimed(model: Path, row: Sequence[float], offset: float, low: Any, high: Any) -> ProofVerdict:
    """A file that claims row . output + offset > 0 in a box, as anybody may write one."""
    opened = Model.read_file(model)
    header = {
        "schema": SCHEMA, "version": 1, "model": {"sha256": opened.sha256}, "kind": "proof", "above": 0.0, "property": {"groups": [[0]]},
        "region": {"norm": "box"},
    }  # fmt: skip
    ends = {"region/lower": np.ravel(low).astype(float), "region/upper": np.ravel(high).astype(float)}
    rows = {
        "property/rows": np.atleast_2d(np.asarray(row, dtype=float)),
        "property/offset": np.array([float(offset)]),
    }
    path = model.with_suffix(".proof")
    path.write_bytes(save({**ends, **rows}, metadata={SCHEMA: json.dumps(header)}))
    return check(model, path)


BATCH = ints(2, 1, 2, 2)
NORM = {"s": np.ones(2, F32), "b": np.zeros(2, F32), "m": np.zeros(2, F32), "v": np.ones(2, F32)}
SQUARE = np.random.default_rng(0).normal(size=(3, 3)).astype(F32)
Case = tuple[
    list[Any], dict[str, Any], tuple[int, ...], int, str
]  # nodes, constants, shape, opset; why it is refused, else empty

CONSTRUCTS: dict[str, Case] = {
    "batch norm that trains": (
        [node("BatchNormalization", "x s b m v", "y m2 v2", training_mode=1)], NORM, (1, 2, 3), 17, "training_mode"
    ),
    "batch norm with running outputs": ([node("BatchNormalization", "x s b m v", "y m2 v2")], NORM, (1, 2, 3), 9, "outputs"),
    "batch norm per element": ([node("BatchNormalization", "x s b m v", "y", spatial=0)], NORM, (1, 2), 8, "spatial"),
    "batch norm with one weight for all": (
        [node("BatchNormalization", "x s b m v", "y")], {name: value[:1] for name, value in NORM.items()}, (1, 2), 17, "for each channel"
    ),
    "dropout that drops": (
        [node("Dropout", "x r t", "y", seed=1)], {"r": floats(0.5), "t": np.array(True)}, (1, 6), 17, "drops"
    ),
    "mask of a dropout": (
        [node("Dropout", "x", "d m"), node("Cast", "m", "f", to=1), node("Mul", "x f", "y")], {}, (1, 3), 17, "not supported"
    ),
    "cast of numbers to integers": (
        [node("Cast", "w", "i", to=7), node("Cast", "i", "f", to=1), node("Mul", "x f", "y")], {"w": floats(2.7, -2.7, 0.5)}, (1, 3), 17, ""
    ),
    "cast of numbers to truth values": (
        [node("Cast", "w", "i", to=9), node("Cast", "i", "f", to=1), node("Mul", "x f", "y")], {"w": floats(2.7, 0.0, 0.5)}, (1, 3), 17, ""
    ),
    "cast to float16": (
        [node("Cast", "w", "i", to=10), node("Cast", "i", "f", to=1), node("Mul", "x f", "y")], {"w": floats(1000.3, 7e4, 1)}, (1, 3), 17,
        "attribute to",
    ),
    "cast to integers that do not hold it": (
        [node("Cast", "w", "i", to=6), node("Cast", "i", "f", to=1), node("Mul", "x f", "y")], {"w": floats(3e9, 1.0, 2.0)}, (1, 3), 17,
        "does not hold",
    ),
    "cast of the input to integers": ([node("Cast", "x", "i", to=7), node("Cast", "i", "y", to=1)], {}, (1, 3), 17, "depends on the input"),
    "part of a shape": (
        [node("Shape", "x", "s", start=1, end=2), node("Cast", "s", "f", to=1), node("Gather", "f i", "k"), node("Add", "x k", "y")],
        {"i": ints(0)}, (1, 3), 17, "",
    ),
    "part of a shape, counted from behind": (
        [node("Shape", "x", "s", start=-1), node("Cast", "s", "f", to=1), node("Add", "x f", "y")], {}, (2, 3), 17, ""
    ),
    "pads of some axes": (
        [node("Pad", "x p - a", "z"), node("Flatten", "z", "y")], {"p": ints(0, 1, 0, 0, 0, 0), "a": ints(0, 2, 1)}, (1, 2, 2), 18, "inputs"
    ),
    "pads below zero": ([node("Pad", "x p", "y")], {"p": ints(0, -1, 0, 1)}, (1, 3), 17, "pads"),
    "padding that wraps": ([node("Pad", "x p", "y", mode="wrap")], {"p": ints(0, 1, 0, 0)}, (1, 3), 19, "mode"),
    "reduced over nothing": (
        [node("ReduceSum", "x", "s", noop_with_empty_axes=1), node("Add", "x s", "y")], {}, (1, 3), 17, "noop_with_empty_axes"
    ),
    "reduced over empty axes": ([node("ReduceSum", "x a", "s"), node("Add", "x s", "y")], {"a": ints()}, (1, 3), 17, "axes"),
    "means over axes of an input": ([node("ReduceMean", "x a", "y", keepdims=0)], {"a": ints(-1)}, (1, 2, 3), 18, ""),
    "means over axes twice": ([node("ReduceMean", "x", "y", axes=[1, -1])], {}, (1, 3), 13, "axes"),
    "axes as an attribute of a new version": ([node("ReduceMean", "x", "y", axes=[1])], {}, (1, 3), 18, "attribute axes"),
    "axes as an input of an old version": ([node("ReduceSum", "x a", "y")], {"a": ints(1)}, (1, 3), 11, "inputs"),
    "a clip upside down": ([node("Clip", "x a b", "y")], {"a": floats(5.0), "b": floats(-5.0)}, (1, 3), 17, "smallest"),
    "a clip upside down, by attributes": ([node("Clip", "x", "y", min=5.0, max=-5.0)], {}, (1, 3), 10, "smallest"),
    "a clip by attributes of an old version": ([node("Clip", "x", "y", min=-1.0, max=1.0)], {}, (1, 3), 11, "attribute"),
    "a clip without ends": ([node("Clip", "x", "y")], {}, (1, 3), 17, ""),
    "two images in a convolution": (
        [node("Reshape", "x sh", "r"), node("Conv", "r w", "c"), node("ReduceSum", "c a", "s"), node("Flatten", "s", "y")],
        {"sh": BATCH, "w": np.ones((2, 1, 2, 2), F32), "a": ints(0)}, (1, 8), 17, "",
    ),
    "two images in a convolution by groups": (
        [node("Conv", "x w b", "c", group=2, pads=[1, 0, 0, 1]), node("Flatten", "c", "y", axis=0)],
        {"w": np.random.default_rng(1).normal(size=(4, 1, 2, 2)).astype(F32), "b": floats(1.0, 2.0, 3.0, 4.0)}, (2, 2, 3, 3), 17, "",
    ),
    "two images in a mean over all": (
        [node("Reshape", "x sh", "r"), node("GlobalAveragePool", "r", "c"), node("Flatten", "c", "y", axis=0)], {"sh": BATCH},
        (1, 8), 17, "",
    ),
    "two images in a mean": (
        [node("Reshape", "x sh", "r"), node("AveragePool", "r", "c", kernel_shape=[2, 1]), node("Flatten", "c", "y", axis=0)],
        {"sh": BATCH}, (1, 8), 17, "",
    ),
    "two images in a pool": (
        [node("Reshape", "x sh", "r"), node("MaxPool", "r", "c", kernel_shape=[2, 2]), node("Flatten", "c", "y", axis=0)], {"sh": BATCH},
        (1, 8), 17, "",
    ),
    "a kernel that is not that of the weights": (
        [node("Conv", "x w", "y", kernel_shape=[1, 1])], {"w": np.ones((1, 1, 2, 2), F32)}, (1, 1, 3, 3), 17, "kernel_shape"
    ),
    "channels that no group reads": ([node("Conv", "x w", "y", group=2)], {"w": np.ones((2, 1, 1, 1), F32)}, (1, 3, 2, 2), 17, "channels"),
    "automatic padding beside pads": (
        [node("MaxPool", "x", "y", kernel_shape=[2, 2], auto_pad="VALID", pads=[1, 1, 0, 0])], {}, (1, 1, 2, 2), 17, "automatic padding"
    ),
    "automatic padding": ([node("AveragePool", "x", "y", kernel_shape=[2, 2], auto_pad="SAME_UPPER")], {}, (1, 1, 2, 2), 17, "auto_pad"),
    "windows beyond the end": ([node("MaxPool", "x", "y", kernel_shape=[2], strides=[2], ceil_mode=1)], {}, (1, 1, 5), 17, "ceil_mode"),
    "places of the largest": (
        [node("MaxPool", "x", "m i", kernel_shape=[2]), node("Cast", "i", "f", to=1), node("Mul", "m f", "y")], {}, (1, 1, 3), 17,
        "not supported",
    ),
    "pools with dilations": ([node("MaxPool", "x", "y", kernel_shape=[2, 2], pads=[1] * 4, dilations=[2, 2])], {}, (1, 1, 3, 3), 17, ""),
    "dilations before there were any": ([node("MaxPool", "x", "y", kernel_shape=[2], dilations=[2])], {}, (1, 1, 4), 8, "dilations"),
    "means with dilations": ([node("AveragePool", "x", "y", kernel_shape=[2], dilations=[2])], {}, (1, 1, 4), 19, "dilations"),
    "means that leave out pads": ([node("AveragePool", "x", "y", kernel_shape=[2], pads=[1, 0])], {}, (1, 1, 3), 17, "leave out"),
    "means that count pads": (
        [node("AveragePool", "x", "y", kernel_shape=[2], pads=[1, 0], count_include_pad=1)], {}, (1, 1, 3), 17, ""
    ),
    "a matrix times several": (
        [node("Reshape", "x sh", "r"), node("MatMul", "a r", "m"), node("Flatten", "m", "y", axis=0)], {"a": SQUARE, "sh": ints(3, 3, 2)},
        (1, 18), 17, "shapes",
    ),
    "a column times several": (
        [node("Reshape", "x sh", "r"), node("MatMul", "a r", "m"), node("Flatten", "m", "y", axis=0)],
        {"a": SQUARE[:, :1], "sh": ints(1, 1, 2)}, (1, 2), 17, "shapes",
    ),
    "several matrices times one": ([node("MatMul", "x w", "y")], {"w": np.ones((2, 3, 2), F32)}, (1, 2, 3), 17, "shapes"),
    "a matrix times a vector": ([node("MatMul", "x w", "y")], {"w": floats(1.0, 2.0, 3.0)}, (2, 3), 17, "shapes"),
    "a constant times a matrix": ([node("MatMul", "a x", "y")], {"a": SQUARE}, (3, 2), 17, ""),
    "a product of three axes": ([node("Gemm", "x w", "y")], {"w": np.ones((3, 2), F32)}, (1, 2, 3), 17, "shapes"),
    "a product with a factor": ([node("Gemm", "x w", "y", alpha=2.0)], {"w": np.ones((3, 2), F32)}, (1, 3), 17, "alpha"),
    "a product with a column of biases": (
        [node("Gemm", "x w c", "y", transA=1)], {"w": floats([[2.0, 3.0]]), "c": floats([[1.0], [2.0], [3.0]])}, (1, 3), 17, ""
    ),
    "a bias larger than the product": (
        [node("Gemm", "x w c", "y")], {"w": np.ones((3, 2), F32), "c": np.ones((4, 2), F32)}, (1, 3), 17, "broadcast"
    ),
    "a slice backwards from before the start": (
        [node("Slice", "x s e a t", "z"), node("Concat", "x z", "y", axis=1)],
        {"s": ints(-1000), "e": ints(-2000), "a": ints(1), "t": ints(-1)}, (1, 3), 17, "",
    ),
    "a slice backwards to the end": (
        [node("Slice", "x s e a t", "y")], {"s": ints(100), "e": ints(-(2**63)), "a": ints(1), "t": ints(-2)}, (1, 5), 17, ""
    ),
    "a slice of nothing": (
        [node("Slice", "x s e a", "z"), node("Concat", "x z", "y", axis=1)], {"s": ints(2), "e": ints(1), "a": ints(1)}, (1, 3), 17,
        "is empty",
    ),
    "an uneven split": (
        [node("Split", "x", "a b", axis=1, num_outputs=2), node("ReduceSum", "a", "y")], {}, (1, 5), 18, "in 2 parts"
    ),
    "a split with fewer parts than outputs": (
        [node("Split", "x z", "a b", axis=1), node("Add", "a b", "y")], {"z": ints(2, 2, 2)}, (1, 6), 17, "parts"
    ),
    "a softmax over several axes": ([node("Softmax", "x", "y")], {}, (1, 2, 3), 12, ""),
    "a softmax over one of several axes": ([node("Softmax", "x", "y")], {}, (1, 2, 3), 13, ""),
    "a softmax over an axis in the middle": ([node("Softmax", "x", "s", axis=1), node("Relu", "s", "y")], {}, (1, 2, 3), 13, ""),
    "a softmax over the last axes": ([node("Softmax", "x", "s", axis=2), node("Relu", "s", "y")], {}, (1, 2, 3, 2), 12, ""),
    "a softmax in between": ([node("Softmax", "x", "s"), node("Relu", "s", "y")], {}, (1, 3), 17, ""),
    "a softmax that is read twice": ([node("Softmax", "x", "s"), node("Neg", "s", "n"), node("Add", "s n", "y")], {}, (1, 3), 17, ""),
    "a softmax that is the output and read again": ([node("Softmax", "x", "y"), node("Neg", "y", "n")], {}, (1, 3), 17, ""),
    "a logarithm of a softmax in between": ([node("LogSoftmax", "x", "s"), node("Relu", "s", "y")], {}, (1, 3), 17, ""),
    "a softmax of one element": ([node("Softmax", "x", "s"), node("Add", "s x", "y")], {}, (1, 3, 1), 17, ""),
    "curves": ([node("Erf", "x", "a"), node("Elu", "a", "b", alpha=0.5), node("Softplus", "b", "c"), node("Exp", "c", "y")], {}, (1, 3), 17, ""),
    "curves of positive numbers": (
        [node("Exp", "x", "a"), node("Log", "a", "b"), node("Abs", "b", "c"), node("Add", "c o", "d"), node("Sqrt", "d", "e"),
         node("Reciprocal", "e", "f"), node("Add", "e f", "y")], {"o": floats(0.5)}, (1, 3), 17, "",
    ),
    "a quotient of values": (
        [node("Mul", "x x", "s"), node("Add", "s o", "d"), node("Div", "x d", "a"), node("Div", "o d", "b"), node("Add", "a b", "y")],
        {"o": floats(0.5)}, (1, 3), 17, "",
    ),
    "powers": ([node("Pow", "x e", "a"), node("Pow", "x f", "b"), node("Add", "a b", "y")], {"e": floats(3.0), "f": floats(4.0)}, (1, 3), 17, ""),
    "a power of two and a half": ([node("Pow", "x e", "y")], {"e": floats(2.5)}, (1, 3), 17, "the power"),
    "a power per element": ([node("Pow", "x e", "y")], {"e": floats(2.0, 3.0, 2.0)}, (1, 3), 17, "several exponents"),
    "gelu": ([node("Gelu", "x", "a"), node("Gelu", "x", "b", approximate="tanh"), node("Sub", "a b", "c"), node("Add", "a c", "y")], {}, (1, 3), 20, ""),
    "a product of two values": ([node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t", "y")], {}, (1, 2, 3), 17, ""),
    "a product of two values that do not fit": ([node("MatMul", "x x", "y")], {}, (1, 2, 3), 17, "shapes"),
    "layer normalization": (
        [node("LayerNormalization", "x s b", "y", axis=1, epsilon=0.01)], {"s": np.array([[1, 2, -1], [0, 1, 3]], F32), "b": np.ones((2, 3), F32)},
        (1, 2, 3), 17, "",
    ),
    "layer normalization with its mean": ([node("LayerNormalization", "x s", "y m")], {"s": np.ones(3, F32)}, (1, 2, 3), 17, "outputs"),
    "the default of a leak": ([node("LeakyRelu", "x", "y")], {}, (1, 3), 17, ""),
    "a leak as an integer": ([node("LeakyRelu", "x", "y", alpha=2)], {}, (1, 3), 17, "alpha"),
    "an expanded value": ([node("Expand", "x s", "y")], {"s": ints(2, 1)}, (1, 3), 17, ""),
    "a reshape that keeps a zero": ([node("Reshape", "x s", "y", allowzero=1)], {"s": ints(3, 1)}, (1, 3), 17, "allowzero"),
    "a reshape with two unknowns": ([node("Reshape", "x s", "y")], {"s": ints(-1, -1)}, (1, 4), 17, "sizes"),
    "no axes in a squeeze": ([node("Squeeze", "x a", "y")], {"a": ints()}, (1, 3), 17, "axes"),
    "axes counted from behind": ([node("Unsqueeze", "x a", "z"), node("Flatten", "z", "y")], {"a": ints(0, -1)}, (1, 3), 17, ""),
    "the largest of several shapes": (
        [node("Max", "x a", "m"), node("Min", "m b", "y")], {"a": floats([[0.0], [1.0]]), "b": floats(2.0, 3.0, 4.0)}, (1, 3), 17, ""
    ),
    "the largest of several shapes, before there were any": ([node("Max", "x a", "y")], {"a": floats([0.0])}, (1, 3), 7, "several shapes"),
    "a quotient": ([node("Div", "x w", "y")], {"w": floats(3.0, 2.0)}, (1, 2), 17, ""),
    "division by zero": ([node("Div", "x w", "y")], {"w": floats(0.0, 2.0)}, (1, 2), 17, "division by zero"),
    "weights of another type": ([node("Mul", "x w", "y")], {"w": np.array([1.0, 2.0])}, (1, 2), 17, "types"),
    "integers as weights": ([node("Mul", "x w", "y")], {"w": ints(1, 2)}, (1, 2), 17, "type"),
    "an input too many": ([node("Relu", "x w", "y")], {"w": floats(1.0, 2.0)}, (1, 2), 17, "inputs"),
    "an input too few": ([node("Add", "x", "y")], {}, (1, 2), 17, "missing"),
    "an attribute that nobody knows": ([node("Relu", "x", "y", slope=0.5)], {}, (1, 2), 17, "attribute slope"),
    "an operator that nobody knows": ([node("Mish", "x", "y")], {}, (1, 2), 18, "operator Mish"),
    "another domain": ([node("Relu", "x", "y", domain="com.microsoft")], {}, (1, 2), 17, "com.microsoft"),
    "a value with two makers": ([node("Relu", "x", "y"), node("Neg", "x", "y")], {}, (1, 2), 17, "already"),
    "a value under the name of a weight": (
        [node("Relu", "x", "w"), node("Mul", "x w", "y")], {"w": floats(2.0, 3.0)}, (1, 2), 17, "already"
    ),
    "a value before it is made": ([node("Neg", "r", "y"), node("Relu", "x", "r")], {}, (1, 2), 17, "no node before"),
    "an old opset": ([node("Add", "x b", "y", broadcast=1, axis=1)], {"b": floats(1.0, 2.0)}, (1, 2, 2), 6, "opset 6"),
    "an opset of the future": ([node("Relu", "x", "y")], {}, (1, 2), 99, "opset 99"),
    "two constants in one": (
        [node("Constant", "", "c", value_float=1.0, value_int=2), node("Add", "x c", "y")], {}, (1, 2), 17, "2 values"
    ),
    "a constant number": ([node("Constant", "", "c", value_floats=[1.5, -2.5]), node("Add", "x c", "y")], {}, (1, 2), 17, ""),
    "a constant of a shape": (
        [node("ConstantOfShape", "s", "c", value=helper.make_tensor("v", TensorProto.FLOAT, [1], [2.5])), node("Mul", "x c", "y")],
        {"s": ints(2)}, (1, 2), 17, "",
    ),
    "an lstm that clips": (
        [node("LSTM", "x w r", "y", hidden_size=2, clip=0.1)], {"w": np.ones((1, 8, 2), F32), "r": np.ones((1, 8, 2), F32)}, (2, 1, 2), 17,
        "clip",
    ),
    "an lstm with peepholes": (
        [node("LSTM", "x w r - - - - p", "y", hidden_size=1)],
        {"w": np.ones((1, 4, 2), F32), "r": np.ones((1, 4, 1), F32), "p": np.ones((1, 3), F32)}, (2, 1, 2), 17, "8 inputs",
    ),
    "an rnn with numbers for its tanh": (
        [node("RNN", "x w r", "y", hidden_size=2, activations=["Tanh"], activation_alpha=[0.5])],
        {"w": np.ones((1, 2, 2), F32), "r": np.ones((1, 2, 2), F32)}, (2, 1, 2), 17, "activation_alpha",
    ),
    "an rnn of another size": (
        [node("RNN", "x w r", "y", hidden_size=3)], {"w": np.ones((1, 2, 2), F32), "r": np.ones((1, 2, 2), F32)}, (2, 1, 2), 17,
        "hidden_size",
    ),
    "a gru": (
        [node("GRU", "x w r", "y", hidden_size=1, linear_before_reset=1)], {"w": np.ones((1, 3, 2), F32), "r": np.ones((1, 3, 1), F32)},
        (2, 1, 2), 17, "",
    ),
    "several sequences at once": (
        [node("RNN", "x w r", "y", hidden_size=1)], {"w": np.ones((1, 1, 2), F32), "r": np.ones((1, 1, 1), F32)}, (2, 2, 2), 17,
        "several sequences",
    ),
}  # fmt: skip


@pytest.mark.parametrize("without", [False, True], ids=["with onnxruntime", "without"])
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_every_construct_is_refused_or_read_as_onnxruntime_runs_it(
    name: str, without: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, constants, shape, opset, refused = CONSTRUCTS[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(nodes, constants, shape, opset).SerializeToString())
    if refused:
        with pytest.raises(Rejected, match=refused):
            Model.read_file(path)
        return
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    model, draw = Model.read_file(path), np.random.default_rng(0)
    for _ in range(2):
        x = draw.normal(0, 2, shape).astype(F32)
        said, own = session.run(None, {"x": x})[0].astype(float).ravel(), model.program.value(x[None])[0]
        if model.program.ranked:
            assert (np.argsort(said) == np.argsort(own)).all()
            continue
        np.testing.assert_allclose(own, said, rtol=1e-4, atol=1e-5)
        if without:
            monkeypatch.setitem(sys.modules, "onnxruntime", None)
        for place in range(
            min(len(said), 3)
        ):  # what lies beyond the answer is not accepted, and what lies below is
            row = np.eye(len(said))[place]
            near = 1e-3 * (1 + abs(said[place]))
            assert not claimed(path, row, -said[place] - near, x - 1e-6, x + 1e-6).accepted
            assert claimed(path, row, -said[place] + near, x - 1e-6, x + 1e-6).accepted


def test_the_forms_hold_every_version_that_is_in_force_in_the_opsets_read() -> None:
    """And no attribute that the standard does not have, no more inputs and outputs: so a new meaning cannot go unnoticed."""
    newest = min(OPSETS[1], defs.onnx_opset_version())
    for op, forms in FORMS.items():
        own = {
            schema.since_version: schema
            for schema in defs.get_all_schemas_with_history()
            if schema.domain == "" and schema.name == op
        }
        in_force = {
            max(since for since in own if since <= opset)
            for opset in range(max(OPSETS[0], min(own)), newest + 1)
        }
        assert in_force == {version for version in forms if version != DESCRIBED and version <= newest}, op
        for version in in_force:
            form, schema = forms[version], own[version]
            letters = form.inputs.replace("?", "").replace("*", "")
            assert form.attributes.keys() <= schema.attributes.keys(), (op, version)
            assert len(letters) <= schema.max_input, (op, version)
            assert form.inputs.endswith("*") or len(form.inputs.partition("?")[0]) >= schema.min_input, (
                op,
                version,
            )
            assert form.outputs <= schema.max_output, (op, version)
            kinds = {
                "int": "INT",
                "float": "FLOAT",
                "text": "STRING",
                "ints": "INTS",
                "floats": "FLOATS",
                "texts": "STRINGS",
                "tensor": "TENSOR",
            }
            for name, attribute in form.attributes.items():
                assert str(schema.attributes[name].type).endswith(f".{kinds[attribute.kind]}"), (
                    op,
                    version,
                    name,
                )
                default = schema.attributes[name].default_value
                if default.name and attribute.only:
                    value = helper.get_attribute_value(default)
                    value = value.decode() if isinstance(value, bytes) else value
                    assert value == attribute.only[0] or attribute.only == (1.0,), (op, version, name)


def test_the_page_names_every_operator_and_the_opsets() -> None:
    page = (
        (Path(__file__).parents[2] / "docs" / "trust-base.md")
        .read_text()
        .partition("## What is read")[2]
        .partition("## Attempts")[0]
    )
    named = {
        word
        for line in page.splitlines()
        if line.startswith("| ")
        for word in line.split("|")[1].replace(",", " ").split()
    }
    assert named - {"operators"} == {op for op, forms in FORMS.items() if set(forms) != {DESCRIBED}}
    assert f"Opsets {OPSETS[0]} to {OPSETS[1]}" in page


# ---- bytes that parsers may read in two ways


def varint(value: int) -> bytes:
    parts = []
    while True:
        value, part = value >> 7, value & 127
        parts.append(part | (128 if value else 0))
        if not value:
            return bytes(parts)


def part(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value % 2**64)


def single(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", value)


def info(name: str, sizes: Sequence[int] = (1, 2), kind: int = 1) -> bytes:
    return bytes(helper.make_tensor_value_info(name, kind, list(sizes)).SerializeToString())


def whole(
    graph: bytes, more: bytes = b"", opsets: Sequence[int] = (17,), version: bytes = number(1, 8)
) -> bytes:
    return version + part(7, graph) + b"".join(part(8, number(2, opset)) for opset in opsets) + more


def leaky(attribute: bytes, node_more: bytes = b"", more: bytes = b"") -> bytes:
    """A model of one LeakyRelu, whose attribute has these bytes."""
    inner = (
        part(1, b"x")
        + part(2, b"y")
        + part(4, b"LeakyRelu")
        + (part(5, attribute) if attribute else b"")
        + node_more
    )
    return whole(part(1, inner) + part(2, b"g") + part(11, info("x")) + part(12, info("y")) + more)


def product(*tensors: bytes, infos: Sequence[bytes] = (), more: bytes = b"", **about: Any) -> bytes:
    """A model of one Mul with initializers of these bytes."""
    inner = part(1, b"x") + part(1, b"w") + part(2, b"y") + part(4, b"Mul")
    ends = b"".join(part(11, given) for given in (info("x"), *infos)) + part(12, info("y"))
    return whole(
        part(1, inner) + part(2, b"g") + b"".join(part(5, tensor) for tensor in tensors) + ends + more,
        **about,
    )


def raw(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


ALPHA, KIND = part(1, b"alpha"), number(20, 1)
W, TWO = part(8, b"w") + number(2, 1), number(1, 2)
FUNCTION = (
    part(1, b"Relu")
    + part(4, b"a")
    + part(5, b"b")
    + part(7, part(1, b"a") + part(2, b"b") + part(4, b"Neg"))
    + part(10, b"")
)

TAMPERED: dict[str, tuple[bytes, str]] = {
    "a number twice": (leaky(ALPHA + single(2, 0.5) + single(2, -3.0) + KIND), "field f occurs twice"),
    "a number and one of another wire type": (leaky(ALPHA + single(2, 0.25) + part(2, raw(7.0)) + KIND), "wire type"),
    "a wire type before it": (leaky(ALPHA + part(2, raw(7.0)) + single(2, 0.25) + KIND), "wire type"),
    "an attribute twice": (leaky(ALPHA + single(2, 0.5) + KIND, part(5, ALPHA + single(2, 0.1) + KIND)), "alpha occurs twice"),
    "an attribute of two types": (leaky(ALPHA + single(2, 0.5) + number(3, 2) + KIND), "another type"),
    "an attribute without a type": (leaky(ALPHA + single(2, 0.5)), "type"),
    "an attribute of a function": (leaky(ALPHA + part(21, b"beta") + KIND), "surrounding function"),
    "an operator twice": (leaky(b"", part(4, b"Neg")), "op_type occurs twice"),
    "a domain twice": (leaky(b"", part(7, b"") + part(7, b"com.microsoft")), "domain occurs twice"),
    "an overload": (leaky(b"", part(8, b"mine")), "functions"),
    "a field that nobody knows": (leaky(b"", part(77, b"?")), "field 77"),
    "a name that is no text": (leaky(b"", part(1, b"\xff")), "UTF-8"),
    "a number in too many bytes": (leaky(ALPHA + single(2, 0.5) + varint(20 << 3) + b"\x81\x00"), "more bytes than it needs"),
    "a number of 65 bits": (leaky(ALPHA + single(2, 0.5) + varint(20 << 3) + b"\xff" * 9 + b"\x02"), "64 bits"),
    "a type of 33 bits": (leaky(ALPHA + single(2, 0.5) + number(20, 2**32 + 1)), "32-bit"),
    "a field longer than the file": (leaky(ALPHA + KIND)[:-3], "longer than the file|wire type|inside a number"),
    "data twice": (product(W + TWO + part(9, raw(1)) + part(9, raw(2))), "raw_data occurs twice"),
    "data in two places": (product(W + TWO + part(4, raw(1, 2)) + part(9, raw(3, 4))), "two places"),
    "empty raw data beside numbers": (product(W + TWO + part(4, raw(1, 2)) + part(9, b"")), "two places"),
    "numbers in several runs": (product(W + TWO + part(4, raw(1)) + part(4, raw(2))), "several runs"),
    "numbers packed and not": (product(W + TWO + part(4, raw(1)) + single(4, 2.0)), "packed"),
    "numbers not packed, then packed": (product(W + TWO + single(4, 2.0) + part(4, raw(1))), "packed"),
    "too few numbers": (product(W + TWO + part(9, raw(1))), "fill its shape"),
    "too many numbers": (product(W + TWO + part(4, raw(1, 2, 3))), "fill its shape"),
    "half a number": (product(W + TWO + part(4, raw(1, 2)[:-1])), "wrong length"),
    "numbers in the field of another type": (product(W + TWO + part(10, struct.pack("<2d", 1, 2))), "wrong field"),
    "an unknown element type": (product(part(8, b"w") + number(2, 10) + TWO + part(9, b"\0" * 4)), "element type"),
    "no element type": (product(part(8, b"w") + TWO + part(9, raw(1, 2))), "element type"),
    "a negative size": (product(W + number(1, -2) + part(9, raw(1, 2))), "negative size"),
    "data in another file": (product(W + TWO + part(13, part(1, b"location") + part(2, b"other"))), "other files"),
    "data said to be elsewhere": (product(W + TWO + part(9, raw(1, 2)) + number(14, 1)), "other files"),
    "a segment": (product(W + TWO + part(9, raw(1, 2)) + part(3, b"")), "segments"),
    "an initializer twice": (product(W + TWO + part(9, raw(1, 2)), W + TWO + part(9, raw(5, 6))), "two initializers"),
    "an initializer without a name": (product(number(2, 1) + TWO + part(9, raw(1, 2))), "without a name"),
    "an initializer that can be overridden": (product(W + TWO + part(9, raw(1, 2)), infos=[info("w", [2])]), "overridden"),
    "an initializer that is declared as another": (
        product(W + TWO + part(9, raw(1, 2)), infos=[info("w", [1, 2])], version=number(1, 3)), "declared"
    ),
    "a sparse initializer": (product(W + TWO + part(9, raw(1, 2)), more=part(15, b"")), "sparse"),
    "a quantization annotation": (product(W + TWO + part(9, raw(1, 2)), more=part(14, b"")), "quantization"),
    "a function that overrides an operator": (product(W + TWO + part(9, raw(1, 2))) + part(25, FUNCTION), "functions"),
    "training": (product(W + TWO + part(9, raw(1, 2))) + part(20, b""), "training"),
    "two graphs": (product(W + TWO + part(9, raw(1, 2))) + part(7, part(12, info("x"))), "graph occurs twice"),
    "two opsets": (product(W + TWO + part(9, raw(1, 2)), opsets=(17, 12)), "2 versions"),
    "no opset": (product(W + TWO + part(9, raw(1, 2)), opsets=()), "0 versions"),
    "two outputs": (product(W + TWO + part(9, raw(1, 2)), more=part(12, info("x"))), "2 outputs"),
    "two inputs": (product(W + TWO + part(9, raw(1, 2)), infos=[info("z")]), "2 inputs"),
    "a value declared with another shape": (product(W + TWO + part(9, raw(1, 2)), more=part(13, info("y", [2, 1]))), "declared"),
    "a value declared with another type": (product(W + TWO + part(9, raw(1, 2)), more=part(13, info("w", [2], 7))), "declared"),
    "an old format": (product(W + TWO + part(9, raw(1, 2)), version=number(1, 2)), "IR version 2"),
    "a format of the future": (product(W + TWO + part(9, raw(1, 2)), version=number(1, 99)), "IR version 99"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_bytes_with_two_meanings_are_refused(name: str, tmp_path: Path) -> None:
    data, refused = TAMPERED[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(Rejected, match=refused):
        Model.read_file(path)


@pytest.mark.parametrize(
    "tensor",
    [
        W + TWO + part(9, raw(1, 2)),
        W + TWO + part(4, raw(1, 2)),
        W + TWO + single(4, 1) + single(4, 2),
        W + part(1, b"\x02") + part(9, raw(1, 2)),
    ],
    ids=["raw", "packed", "one by one", "packed sizes"],
)
def test_what_parsers_read_alike_is_read(tensor: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(product(tensor))
    assert Model.read_file(path).program.value(np.array([[[3.0, 5.0]]])).tolist() == [[3.0, 10.0]]


def test_a_size_that_no_memory_holds_is_refused_before_it_is_made(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    grown = {"s": ints(2**20, 2**20)}
    for nodes, shape in (
        ([node("Neg", "x", "y")], (1, 2**40)),
        ([node("Expand", "x s", "y")], (1, 1)),
        ([node("ConstantOfShape", "s", "c"), node("Add", "x c", "y")], (1, 1)),
    ):
        path.write_bytes(model_of(nodes, grown, shape).SerializeToString())
        with pytest.raises(Rejected, match="numbers"):
            Model.read_file(path)


def test_subgraphs_are_refused(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [node("Neg", "x", "z")], "branch", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 2])]
    )
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)]
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(nodes, {"c": np.array(True)}, (1, 2)).SerializeToString())
    with pytest.raises(Rejected, match="subgraphs"):
        Model.read_file(path)


def test_inputs_that_are_no_real_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for kind in (TensorProto.FLOAT16, TensorProto.INT64):
        path.write_bytes(model_of([node("Identity", "x", "y")], {}, (1, 2), kind=kind).SerializeToString())
        with pytest.raises(Rejected, match="element type"):
            Model.read_file(path)


# ---- sums, and onnxruntime


@pytest.mark.parametrize("large", [1e20, 2.0**60])
@pytest.mark.parametrize("without", [False, True])
def test_coefficients_that_cancel_at_one_output_are_charged(
    large: float, without: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """large y0 + y1 - large y2 + 0.5, where all three are the same number x in [-5, 5]: x + 0.5 is not above zero."""
    if without:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    path = tmp_path / "model.onnx"
    path.write_bytes(
        model_of([node("Gather", "x i", "y", axis=1)], {"i": ints(0, 0, 0)}, (1, 1)).SerializeToString()
    )
    assert not claimed(path, [large, 1.0, -large], 0.5, [-5.0], [5.0]).accepted
    assert claimed(path, [large, 1.0, -large], 2 * large * 1e-9, [-5.0], [5.0]).accepted
    assert claimed(path, [2.0, 1.0, -2.0], 5.001, [-5.0], [5.0]).accepted


def test_coefficients_that_underflow_are_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """y = 2.2e-163 (1e-161 (1e95 x)) is 2.2e-229 x. In a walk back 2.2e-163 times 1e-161 is zero in float64, and so is all before it."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    weights = {"a": np.array([1e95]), "b": np.array([1e-161]), "c": np.array([2.2e-163])}
    graph = helper.make_graph(
        [node("Mul", "x a", "g"), node("Mul", "g b", "h"), node("Mul", "h c", "y")], "graph",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, 1])], [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )
    assert not claimed(path, [-1.0], 1e-229, [0.9], [1.0]).accepted
    assert claimed(path, [-1.0], 1e-190, [0.9], [1.0]).accepted


MISREAD: dict[str, Callable[..., Any]] = {
    "Neg": lambda self, x: x,
    "Tanh": lambda self, x: Operators.Clip(self, x, -1.0, 1.0),
    "Add": lambda self, a, b: self.builder.add_scaled(self.name, [(a, 1.0), (b, 1.001)]),
}


@pytest.mark.parametrize("op", MISREAD)
def test_what_onnxruntime_runs_otherwise_is_rejected(
    op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that is wrong, with a proof of what it reads: accepted without onnxruntime, which says so, and rejected with it."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of([node(op, "x x" if op == "Add" else "x", "y")], {}, (1, 2)).SerializeToString())
    honest = claimed(path, [1.0, 0.0], 10.0, [0.5, 0.5], [2.0, 2.0])
    assert honest.accepted
    assert "onnxruntime agrees at 16 points" in honest.compared
    monkeypatch.setattr(Operators, op, MISREAD[op])
    wrong = claimed(path, [1.0, 0.0], 10.0, [0.5, 0.5], [2.0, 2.0])
    assert not wrong.accepted
    assert "onnxruntime runs this file otherwise" in wrong.reason
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    alone = claimed(path, [1.0, 0.0], 10.0, [0.5, 0.5], [2.0, 2.0])
    assert alone.accepted
    assert "not installed" in alone.compared


@pytest.mark.parametrize("norm", [1.0, 2.0, np.inf])
def test_the_points_at_which_onnxruntime_is_asked_lie_in_the_region(norm: float) -> None:
    centre, lower, upper = np.array([0.5, 0.25, 0.0, 1.0, 0.75, 0.5]), np.zeros(6), np.ones(6)
    shares = np.array([1.0, 0.0, 0.5])
    region = CheckedRegion.ball(centre, 0.5, norm, shares, lower, upper)
    claim = Claim("proof", region, np.eye(2), np.zeros(2), ((0,),), 0.0, np.array([-1]), {}, None, "", None)
    points = points_of(claim, b"seed")
    assert (points == points_of(claim, b"seed")).all()
    assert (points[0] == centre).all()
    for point in points:
        assert inside(point, centre, 0.5 * (1 + 1e-6), norm, shares, lower, upper), point
    far = np.abs(points - centre).max(0)
    assert (far[[2, 3]] == 0).all()  # a share of zero
    assert far[[0, 1]].max() > 0.3


def test_a_softmax_that_orders_otherwise_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(
        model_of([node("Neg", "x", "n"), node("Softmax", "n", "y")], {}, (1, 3)).SerializeToString()
    )
    assert claimed(path, [1.0, -1.0, 0.0], 0.0, [0.0, 1.0, 2.0], [0.5, 2.0, 3.0]).accepted
    monkeypatch.setattr(Operators, "Neg", MISREAD["Neg"])
    verdict = claimed(path, [-1.0, 1.0, 0.0], 0.0, [0.0, 1.0, 2.0], [0.5, 2.0, 3.0])
    assert not verdict.accepted
    assert "orders" in verdict.reason


def test_a_file_that_onnxruntime_refuses_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table lets a wrong attribute through, onnxruntime does not."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of([node("Relu", "x", "y", slope=1.0)], {}, (1, 2)).SerializeToString())
    monkeypatch.setattr("holdfast_check.graph.check_attributes", lambda *_: None)
    verdict = claimed(path, [1.0, 0.0], 1.0, [0.5, 0.5], [2.0, 2.0])
    assert not verdict.accepted
    assert "onnxruntime refuses this file" in verdict.reason
