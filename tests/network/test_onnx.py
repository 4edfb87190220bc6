"""The ONNX importer against onnxruntime: files, single operators, exported models; and files not to be trusted."""

import contextlib
import copy
import gzip
import io
import pickle
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx_truth import SHARED, Array, agrees, close, floats, integers, model_of, run, truth
from torch import nn

from holdfast.errors import BadInput, MissingExtra, UnreadableFile, UnsupportedLayer
from holdfast.network.onnx import import_onnx, read_onnx, session
from sizes import FULL, combinations

FILES = sorted(SHARED.glob("**/*.onnx*"))
INT64 = TensorProto.INT64
BOOL = TensorProto.BOOL


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


# ---------------------------------------------------------------- files


@pytest.mark.skipif(not FILES, reason=f"no networks under {SHARED}")
def test_the_shared_networks_are_all_there() -> None:
    assert sum("ACASXU" in path.name for path in FILES) == 45


# Files without a rule for one of their operators, or that onnxruntime does not load either.
REFUSED = {
    "acc.onnx", "patch-1.onnx.gz", "patch-3.onnx.gz", "mscn_2048d_dual.onnx.gz",
}  # fmt: skip


@pytest.mark.parametrize("path", [path for path in FILES if path.name in REFUSED], ids=lambda path: path.name)
def test_shared_networks_without_a_rule_are_refused_by_name(path: Path) -> None:
    with pytest.raises(
        (UnsupportedLayer, UnreadableFile),
        match=r"no rule for operator|onnxruntime cannot load|not an ONNX model",
    ):
        agrees(model := read_onnx(path), floats(*[size or 1 for size in session(model).inputs[0].shape]))


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.name not in REFUSED and (FULL or "N=M=48" not in path.name)],
    ids=lambda path: path.name,
)
def test_shared_networks_answer_as_onnxruntime_does(path: Path) -> None:
    model = read_onnx(path)
    shape = [size or 1 for size in session(model).inputs[0].shape]
    module = agrees(model, floats(*shape))
    assert module.inputs == session(path).inputs
    assert module.outputs == session(path).outputs


@pytest.mark.parametrize("path", [*FILES[:1], *SHARED.glob("**/mnist*.onnx*")], ids=lambda path: path.name)
def test_networks_of_batch_one_run_in_batches_under_vmap(path: Path) -> None:
    module = import_onnx(read_onnx(path), path.name)
    box = session(path)
    batch = floats(4, *[size or 1 for size in module.inputs[0].shape])
    found = torch.func.vmap(module)(torch.from_numpy(batch))
    close(found.numpy(), np.stack([box(item) for item in batch]))


# ---------------------------------------------------------------- single operators


@dataclass(frozen=True)
class Case:
    """One operator: its inputs (None is one left out), which of them are constants of the file, its attributes."""

    operator: str
    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    constant: tuple[int, ...] = ()
    outputs: int = 1
    output_type: int = TensorProto.FLOAT

    def __str__(self) -> str:
        settings = ",".join(f"{key}={value}" for key, value in self.attributes.items())
        return f"{self.operator}-{self.opset}({settings})".replace(" ", "")

    def model(self) -> tuple[onnx.ModelProto, list[Array]]:
        names = ["" if value is None else f"in{i}" for i, value in enumerate(self.inputs)]
        free = {
            f"in{i}": value
            for i, value in enumerate(self.inputs)
            if value is not None and i not in self.constant
        }
        held = {
            f"in{i}": value for i, value in enumerate(self.inputs) if value is not None and i in self.constant
        }
        outputs = [f"out{i}" for i in range(self.outputs)]
        node = helper.make_node(self.operator, names, outputs, name="it", **self.attributes)
        model = model_of([node], free, outputs, held, opset=self.opset, output_type=self.output_type)
        return model, list(free.values())


def case(operator: str, *inputs: Any, opset: int = 17, constant: tuple[int, ...] = (), outputs: int = 1,
         output_type: int = TensorProto.FLOAT, **attributes: Any) -> Case:  # fmt: skip
    return Case(operator, inputs, attributes, opset, constant, outputs, output_type)


def number(value: float) -> Array:
    return np.array(value, dtype=np.float32)


X = floats(2, 3, 4)
IMAGE = floats(2, 4, 7, 9)
POSITIVE = np.abs(X) + 0.1
FLAGS = X > 0

ELEMENTWISE = [
    *(case(name, X) for name in (
        "Abs", "Atan", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Identity", "Neg", "Relu", "Round", "Sigmoid",
        "Sign", "Sin", "Softplus", "Softsign", "Tan", "Tanh", "Elu", "LeakyRelu", "Selu", "HardSigmoid", "Celu",
        "ThresholdedRelu", "Sinh", "Cosh")),
    *(case(name, POSITIVE) for name in ("Log", "Sqrt", "Reciprocal")),
    *(case(name, X / 5) for name in ("Acos", "Asin")),
    case("Mish", X, opset=18),
    case("Gelu", X, opset=20),
    case("Gelu", X, opset=20, approximate="tanh"),
    case("Elu", X, alpha=0.5),
    case("LeakyRelu", X, alpha=0.3),
    case("Selu", X, alpha=1.2, gamma=0.7),
    case("HardSigmoid", X, alpha=0.4, beta=0.3),
    case("Celu", X, alpha=2.0),
    case("ThresholdedRelu", X, alpha=0.4),
    case("PRelu", X, floats(4), constant=(1,)),
    case("PRelu", IMAGE, floats(4, 1, 1), constant=(1,)),
    case("PRelu", IMAGE, floats(1), constant=(1,)),
    case("PRelu", IMAGE, floats(4, 7, 9), constant=(1,)),
    *(case(name, X, floats(3, 1, seed=1)) for name in ("Add", "Sub", "Mul", "Div")),
    case("Div", integers(7, -7, 7, -7), integers(2, 2, -2, -2), output_type=INT64),
    case("Mod", integers(7, -7, 7, -7), integers(3, 3, -3, -3), output_type=INT64),
    case("Mod", X, floats(4, seed=2), fmod=1),
    case("Pow", POSITIVE, number(2.5), constant=(1,)),
    case("Pow", X, number(3), constant=(1,)),
    case("Pow", X, integers(2), constant=(1,)),
    case("Pow", POSITIVE, floats(4)),
    *(case(name, X, floats(4, seed=1), floats(3, 1, seed=2)) for name in ("Sum", "Mean", "Min", "Max")),
    *(case(name, X, np.round(floats(4, seed=1)), output_type=BOOL) for name in ("Less", "Greater")),
    *(case(name, np.round(X), np.round(floats(4, seed=1)), output_type=BOOL) for name in (
        "Equal", "LessOrEqual", "GreaterOrEqual")),
    *(case(name, FLAGS, floats(4) > 0, output_type=BOOL) for name in ("And", "Or", "Xor")),
    case("Not", FLAGS, output_type=BOOL),
    case("Where", FLAGS, X, floats(4)),
    case("Clip", X, opset=9, min=-0.5, max=0.5),
    case("Clip", X, opset=9, max=0.5),
    case("Clip", X, number(-0.5), number(0.25), constant=(1, 2)),
    case("Clip", X, None, number(0.25), constant=(2,)),
    case("Clip", X, number(-0.25), constant=(1,)),
    case("Clip", X, number(-0.25), number(0.5)),
    case("Clip", X, number(-0.25), number(0.5), constant=(1,)),
    case("Clip", X),
    *(case("Cast", X * 3, to=to, output_type=to) for to in (TensorProto.INT32, INT64, BOOL)),
    case("Cast", integers(1, -2, 3), to=TensorProto.FLOAT),
    case("CastLike", integers(1, -2, 3), floats(2)),
    case("Dropout", X, opset=10, ratio=0.5),
    case("Dropout", X, number(0.5), constant=(1,), opset=13),
    case("Softmax", X, opset=13),
    case("Softmax", X, opset=13, axis=1),
    case("Softmax", X, opset=11),
    case("Softmax", X, opset=11, axis=2),
    case("Softmax", X, opset=11, axis=0),
    case("LogSoftmax", X, opset=11),
    case("LogSoftmax", X, opset=13, axis=0),
]  # fmt: skip

PRODUCTS = [
    case("MatMul", floats(2, 3, 4), floats(4, 5), constant=(1,)),
    case("MatMul", floats(4), floats(4, 5), constant=(1,)),
    case("MatMul", floats(2, 3, 4), floats(2, 4, 5)),
    case("Gemm", floats(3, 4), floats(4, 5), floats(5), constant=(1, 2)),
    case("Gemm", floats(3, 4), floats(5, 4), floats(5), constant=(1, 2), transB=1),
    case(
        "Gemm",
        floats(4, 3),
        floats(5, 4),
        floats(3, 1),
        constant=(1, 2),
        transA=1,
        transB=1,
        alpha=0.5,
        beta=2.0,
    ),
    case("Gemm", floats(3, 4), floats(4, 5), floats(3, 5), constant=(1, 2)),
    case("Gemm", floats(3, 4), floats(4, 5), number(0.3), constant=(1, 2)),
    case("Gemm", floats(3, 4), floats(4, 5), constant=(1,)),
    case("Einsum", floats(2, 3, 4), floats(2, 4, 5), equation="bij,bjk->bik"),
]

CONVOLUTIONS = [
    case("Conv", floats(2, 4, 9), floats(6, 4, 3), constant=(1,), strides=[2], pads=[1, 1]),
    case("Conv", IMAGE, floats(6, 4, 3, 3), floats(6), constant=(1, 2)),
    case("Conv", IMAGE, floats(6, 2, 3, 3), floats(6), constant=(1, 2), group=2, strides=[2, 1], dilations=[1, 2]),
    case("Conv", IMAGE, floats(6, 4, 3, 3), constant=(1,), pads=[0, 1, 2, 3]),
    case("Conv", IMAGE, floats(6, 4, 3, 2), constant=(1,), auto_pad="SAME_UPPER", strides=[2, 2]),
    case("Conv", IMAGE, floats(6, 4, 4, 2), constant=(1,), auto_pad="SAME_LOWER", strides=[1, 2]),
    case("Conv", IMAGE, floats(6, 4, 4, 2), constant=(1,), auto_pad="VALID"),
    case("Conv", floats(1, 2, 5, 6, 7), floats(3, 2, 3, 2, 3), constant=(1,), pads=[1, 1, 1, 1, 1, 1]),
    case("ConvTranspose", floats(2, 4, 5), floats(4, 3, 3), constant=(1,), strides=[2]),
    case("ConvTranspose", IMAGE, floats(4, 3, 3, 3), floats(3), constant=(1, 2), strides=[2, 3], pads=[1, 1, 1, 1],
         output_padding=[1, 2]),
    case("ConvTranspose", IMAGE, floats(4, 3, 3, 3), constant=(1,), strides=[2, 2], pads=[0, 1, 1, 0]),
    case("ConvTranspose", IMAGE, floats(4, 2, 3, 3), constant=(1,), group=2, dilations=[2, 1]),
    case("ConvTranspose", IMAGE, floats(4, 3, 3, 3), constant=(1,), strides=[2, 2], output_shape=[14, 18]),
    case("ConvTranspose", IMAGE, floats(4, 3, 3, 3), constant=(1,), strides=[2, 2], auto_pad="SAME_UPPER"),
    case("ConvTranspose", IMAGE, floats(4, 3, 3, 3), constant=(1,), strides=[2, 2], auto_pad="SAME_LOWER"),
    case("MaxPool", floats(2, 3, 9), kernel_shape=[3], strides=[2]),
    case("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 2, 0]),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1, 0, 0, 1]),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 3]),
    case("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("MaxPool", floats(1, 2, 5, 6, 7), kernel_shape=[2, 2, 2]),
    case("AveragePool", floats(2, 3, 9), kernel_shape=[3], strides=[2]),
    case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 2, 0]),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 2, 0], count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[0, 1, 1, 0]),
    case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("AveragePool", floats(1, 2, 5, 6, 7), kernel_shape=[2, 3, 2]),
    case("GlobalAveragePool", IMAGE),
    case("GlobalMaxPool", IMAGE),
]  # fmt: skip

NORMALISATIONS = [
    case("BatchNormalization", IMAGE, floats(4), floats(4, seed=1), floats(4, seed=2), np.abs(floats(4, seed=3)),
         constant=(1, 2, 3, 4)),
    case("BatchNormalization", floats(5, 4), floats(4), floats(4, seed=1), floats(4, seed=2), np.abs(floats(4, seed=3)),
         constant=(1, 2, 3, 4), opset=8, epsilon=0.01),
    case("InstanceNormalization", IMAGE, floats(4), floats(4, seed=1), constant=(1, 2), epsilon=0.01),
    case("LayerNormalization", X, floats(4), floats(4, seed=1), constant=(1, 2)),
    case("LayerNormalization", X, floats(3, 4), constant=(1,), axis=1, epsilon=0.01),
    case("LayerNormalization", X, floats(4), floats(4, seed=1), constant=(1, 2), axis=1),
    case("LayerNormalization", IMAGE, floats(9), floats(9, seed=1), constant=(1, 2), axis=-2),
    case("LpNormalization", X, axis=1),
    case("LpNormalization", X, p=1),
]  # fmt: skip

REDUCTIONS = [
    *(case(f"Reduce{name}", POSITIVE, opset=opset, **attributes)
      for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
      for opset, attributes in ((12, {"axes": [1], "keepdims": 0}), (17, {"axes": [0, -1]}), (17, {}))),
    *(case(f"Reduce{name}", POSITIVE, integers(2, 0), constant=(1,), opset=18, keepdims=0)
      for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare", "Sum")),
    case("ReduceSum", X, opset=11, axes=[1]),
    case("ReduceSum", X, integers(1), constant=(1,), opset=13),
    case("ReduceSum", X, opset=13, noop_with_empty_axes=1),
    case("ReduceSum", X, opset=13, keepdims=0),
    case("ArgMax", X, axis=1, output_type=INT64),
    case("ArgMax", X, axis=-1, keepdims=0, output_type=INT64),
    case("ArgMax", np.zeros((2, 3), np.float32), axis=1, select_last_index=1, output_type=INT64),
    case("ArgMin", X, axis=1, output_type=INT64),
    case("CumSum", X, np.array(1, dtype=np.int64), constant=(1,)),
]  # fmt: skip

SHAPES = [
    case("Flatten", X),
    case("Flatten", X, axis=0),
    case("Flatten", X, axis=2),
    case("Flatten", X, axis=-1, opset=11),
    case("Flatten", X, axis=3),
    case("Flatten", floats(5)),
    case("Reshape", X, integers(0, -1), constant=(1,)),
    case("Reshape", X, integers(4, 6), constant=(1,)),
    case("Squeeze", floats(1, 3, 1), opset=11),
    case("Squeeze", floats(1, 3, 1), opset=11, axes=[-1]),
    case("Squeeze", floats(1, 3, 1), integers(0), constant=(1,), opset=13),
    case("Unsqueeze", X, opset=11, axes=[0, -1]),
    case("Unsqueeze", X, integers(-1, 1), constant=(1,), opset=13),
    case("Transpose", X),
    case("Transpose", X, perm=[2, 0, 1]),
    case("Expand", floats(3, 1), integers(2, 1, 4), constant=(1,)),
    case("Expand", floats(3, 1), integers(1), constant=(1,)),
    case("Tile", floats(2, 3), integers(2, 3), constant=(1,)),
    case("Concat", X, floats(2, 5, 4), axis=1),
    case("Concat", X, floats(2, 3, 1), constant=(1,), axis=-1),
    case("Split", floats(6, 4), opset=11, outputs=3),
    case("Split", floats(6, 4), opset=11, outputs=2, split=[2, 4]),
    case("Split", floats(4, 6), integers(1, 5), constant=(1,), opset=13, outputs=2, axis=1),
    case("Split", floats(4, 6), opset=13, outputs=2, axis=-1),
    case("Split", floats(7, 4), opset=18, outputs=3, num_outputs=3),
    case("Slice", X, opset=9, starts=[0, 1], ends=[1, 10], axes=[0, 2]),
    case("Slice", X, opset=9, starts=[1, -2], ends=[2, 1000]),
    case("Slice", X, integers(1), integers(2**63 - 1), integers(-1), integers(2), constant=(1, 2, 3, 4)),
    case("Slice", X, integers(-1), integers(-(2**63)), integers(2), integers(-1), constant=(1, 2, 3, 4)),
    case("Slice", X, integers(-1, 2), integers(0, -100), integers(2, 1), integers(-2, -1), constant=(1, 2, 3, 4)),
    case("Slice", X, integers(0), integers(2), integers(1), integers(-1), constant=(1, 2, 3, 4)),
    case("Gather", X, np.array(-1, dtype=np.int64), constant=(1,), axis=1),
    case("Gather", X, integers(2, 0, -1), constant=(1,), axis=2),
    case("Gather", X, integers(1, 0)[None], axis=0),
    case("Gather", X, np.array(1, dtype=np.int64), axis=1),
    case("Gather", floats(9, 4), integers(1, 0, 8)[None], constant=(0,)),
    case("Gather", floats(9, 4), integers(1, 0, 8)[None], constant=(0,), axis=-2),
    case("Gather", floats(9, 4), integers(3, -2)[None], constant=(1,)),
    case("Gather", floats(9, 4), integers(3, -2), constant=(0,), axis=1),
    case("Gather", floats(9), integers(3, -2), constant=(0,)),
    case("GatherElements", X, integers(0, 1, 2, 1).reshape(1, 1, 4), axis=1, constant=(1,)),
    case("GatherElements", X, integers(0, -1, 2, 1).reshape(1, 1, 4), axis=1),
    case("GatherND", X, integers([0, 1], [1, 2]), constant=(1,)),
    case("Pad", X, opset=10, pads=[0, 1, 0, 2, 0, 1], value=0.5),
    case("Pad", X, integers(0, 1, 0, 2, 0, 1), number(0.5), constant=(1, 2)),
    case("Pad", X, integers(0, 0, -1, 0, 0, -1), constant=(1,)),
    case("Pad", X, integers(2, 1), None, integers(-1), constant=(1, 3), opset=18),
    *(case("Pad", data, integers(*pads), constant=(1,), mode=mode)
      for mode in ("reflect", "edge")
      for data, pads in ((X, (0, 0, 2, 0, 0, 1)), (X, (0, 2, 1, 0, 1, 2)), (X[0], (2, 1, 1, 2)), (IMAGE, [0] * 8),
                         (IMAGE, (0, 0, 2, 1, 0, 0, 1, 3)), (floats(2, 2, 3, 4, 5), (0, 0, 0, 0, 3, 0, 0, 0, 0, 2)))),
    case("Pad", IMAGE, integers(0, 0, 2, 1, 0, 0, 1, 3), constant=(1,), opset=19, mode="wrap"),
    case("Shape", X, output_type=INT64),
    case("Shape", X, opset=15, start=1, end=-1, output_type=INT64),
    case("Size", X, output_type=INT64),
    case("Trilu", X),
    case("Trilu", X, np.array(-1, dtype=np.int64), constant=(1,), upper=0),
]  # fmt: skip


@pytest.mark.parametrize(
    "one", [*ELEMENTWISE, *PRODUCTS, *CONVOLUTIONS, *NORMALISATIONS, *REDUCTIONS, *SHAPES], ids=str
)
def test_one_operator_answers_as_onnxruntime_does(one: Case) -> None:
    model, inputs = one.model()
    agrees(model, *inputs)


def test_the_comparison_can_fail() -> None:
    model, inputs = case("LeakyRelu", X, alpha=0.3).model()
    model.graph.node[0].attribute[0].f = 0.3001
    wrong = run(import_onnx(model, "wrong.onnx"), inputs)
    model.graph.node[0].attribute[0].f = 0.3
    with pytest.raises(AssertionError):
        close(wrong[0], truth(model, inputs)[0])


def test_gradients_flow() -> None:
    model, inputs = case("Conv", IMAGE, floats(6, 4, 3, 3), constant=(1,), pads=[0, 1, 2, 3]).model()
    data = torch.from_numpy(inputs[0])[:1, :, :3, :3].double().requires_grad_()
    module = import_onnx(model, "it").double()
    assert torch.autograd.gradcheck(lambda value: module(value).tanh().sum(), data)


# ---------------------------------------------------------------- shape arithmetic, constants, choices


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Names are separated by spaces; a dot is one left out."""
    names = [[name.replace(".", "") for name in side.split()] for side in (inputs, outputs)]
    return helper.make_node(operator, *names, name=f"{operator}/{outputs}", **attributes)


def reshape_by_its_own_shape() -> onnx.ModelProto:
    """x.reshape(batch, -1) and a broadcast to (batch, 12), as torch's exporters write them."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "batch", axis=0),
        node("Unsqueeze", "batch zeros", "batches"),
        node("Concat", "batches minus", "target", axis=0),
        node("Reshape", "x target", "flat"),
        node("Concat", "batches twelve", "wide", axis=0),
        node("Shape", "wide", "rank"),
        node("ConstantOfShape", "rank", "ones", value=helper.make_tensor("one", INT64, [1], [1])),
        node("Mul", "ones minus", "minuses"),
        node("Equal", "wide minuses", "free"),
        node("Where", "free ones wide", "size"),
        node("Expand", "row size", "rows"),
        node("ConstantOfShape", "wide", "noughts"),
        node("Cast", "batch", "count", to=TensorProto.FLOAT),
        node("Div", "rows count", "scaled"),
        node("Add", "flat scaled", "sum"),
        node("Add", "sum noughts", "y"),
    ]
    constants = {
        "zero": np.array(0, dtype=np.int64),
        "zeros": integers(0),
        "minus": integers(-1),
        "twelve": integers(12),
        "row": floats(1, 12),
    }
    return model_of(nodes, {"x": X}, ["y"], constants, free_batch=True)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_shape_arithmetic_follows_the_batch(batch: int) -> None:
    agrees(reshape_by_its_own_shape(), floats(batch, 3, 4))


def test_shape_arithmetic_is_traced_with_a_dynamic_batch() -> None:
    model = reshape_by_its_own_shape()
    module = import_onnx(model, "it")
    program = torch.export.export(
        module, (torch.from_numpy(X),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    for batch in (3, 7):
        data = floats(batch, 3, 4)
        close(program.module()(torch.from_numpy(data)).numpy(), truth(model, [data])[0])


@pytest.mark.parametrize(
    "last",
    [
        *(node(name, "numbers threes", "z") for name in ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")),
        *(
            node(name, "numbers threes", "z")
            for name in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
        ),
        *(node(name, "numbers", "z") for name in ("Neg", "Abs", "Identity", "Shape", "Size", "ReduceProd")),
        node("ReduceProd", "numbers", "z", axes=[0], keepdims=0),
        node("Where", "flags numbers threes", "z"),
        node("Not", "flags", "z"),
        node("And", "flags yes", "z"),
        node("Or", "flags yes", "z"),
        node("Concat", "numbers threes", "z", axis=0),
        node("Gather", "numbers back", "z"),
        node("Slice", "numbers back far zero back", "z"),
        node("Unsqueeze", "numbers zero", "z"),
        node("Reshape", "numbers column", "z"),
        node("Cast", "numbers", "z", to=BOOL),
    ],
    ids=lambda last: last.op_type,
)
def test_shape_arithmetic_is_the_arithmetic_of_tensors(last: onnx.NodeProto) -> None:
    """On sizes less three, so that negative numbers are among them."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Sub", "shape three", "numbers"),
        node("Greater", "numbers zero", "flags"),
        last,
        node("Cast", "z", "y", to=TensorProto.FLOAT),
    ]
    constants = {
        "three": integers(3),
        "threes": integers(2, -3, 1),
        "zero": integers(0),
        "yes": np.array([True, False, True]),
        "back": integers(-1),
        "far": integers(-(2**63)),
        "column": integers(-1, 1),
    }
    used = {name: value for name, value in constants.items() if any(name in each.input for each in nodes)}
    model = model_of(nodes, {"x": X}, ["y"], used)
    for data in (X, floats(0, 8, 3)):
        model.graph.input[0].CopyFrom(
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, None])
        )
        module = agrees(model, data)
        assert all(
            getattr(step, "table", "") == "numbers" or step.node.operator == "Shape"
            for step in module.plan.steps
        )


def test_range_follows_the_length() -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape one", "length", axis=0),
        node("Range", "zero length one", "steps"),
        node("Cast", "steps", "times", to=TensorProto.FLOAT),
        node("Add", "x times", "y"),
    ]
    constants = {"zero": np.array(0, dtype=np.int64), "one": np.array(1, dtype=np.int64)}
    model = model_of(nodes, {"x": floats(2, 5)}, ["y"], constants)
    module = agrees(model, floats(2, 5))
    program = torch.export.export(
        module, (torch.zeros(2, 5),), dynamic_shapes=({1: torch.export.Dim("time")},)
    )
    assert program.module()(torch.zeros(2, 8))[0].tolist() == list(range(8))


def test_constants_are_folded_and_held_once() -> None:
    nodes = [
        node("Transpose", "weight", "turned", perm=[1, 0]),
        node("Mul", "turned two", "doubled"),
        node("MatMul", "x doubled", "hidden"),
        node("MatMul", "hidden doubled", "y"),
    ]
    model = model_of(nodes, {"x": floats(3, 4)}, ["y"], {"weight": floats(4, 4), "two": number(2)})
    module = agrees(model, floats(3, 4))
    assert len(module.plan.steps) == 2
    assert [tuple(value.shape) for value in module.constants.buffers()] == [(4, 4)]


def test_float64_twin_is_not_truncated() -> None:
    """A cast to float on the way follows the twin, so that 1e-9 survives beside 1; in float32 it does not."""
    nodes = [
        node("Add", "x one", "shifted"),
        node("Cast", "shifted", "cast", to=TensorProto.FLOAT),
        node("Sub", "cast one", "y"),
    ]
    model = model_of(nodes, {"x": floats(1)}, ["y"], {"one": number(1)})
    module = import_onnx(model, "it")
    small = torch.tensor([1e-9], dtype=torch.float64)
    assert module(small.float()).item() == 0
    assert module.double()(small).item() == pytest.approx(1e-9, rel=1e-6)


def test_a_network_of_words_in_float64_stays_in_float64() -> None:
    table, words = np.random.default_rng(0).standard_normal((9, 4)), integers(1, 8)
    nodes = [node("Gather", "table words", "y")]
    model = model_of(nodes, {"words": words}, ["y"], {"table": table}, output_type=TensorProto.DOUBLE)
    [found] = run(import_onnx(model, "it"), [words])
    np.testing.assert_array_equal(found, table[words])


def test_half_precision_between_float_layers_is_refused_but_folded_in_constants() -> None:
    half = {"weight": floats(3).astype(np.float16)}
    fine = [node("Cast", "weight", "wide", to=TensorProto.FLOAT), node("Add", "x wide", "y")]
    agrees(model_of(fine, {"x": floats(3)}, ["y"], half), floats(3))
    lossy = [
        node("Cast", "x", "narrow", to=TensorProto.FLOAT16),
        node("Cast", "narrow", "y", to=TensorProto.FLOAT),
    ]
    with pytest.raises(UnsupportedLayer, match="float16"):
        import_onnx(model_of(lossy, {"x": floats(3)}, ["y"]), "it")


def branch(operator: str, value: str, output: str, number: float = 2.0) -> onnx.GraphProto:
    nodes = [node("Constant", "", "shared", value_float=number), node(operator, f"{value} shared", output)]
    return helper.make_graph(
        nodes, operator, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    )


def chosen_by_rate() -> onnx.ModelProto:
    """Twice, so that the names within the branches are used anew."""
    nodes = [
        node("Equal", "rate sixteen", "fast"),
        node("If", "fast", "z", then_branch=branch("Mul", "x", "a"), else_branch=branch("Pow", "x", "a")),
        node("Sub", "z x", "w"),
        node(
            "If",
            "fast",
            "y",
            then_branch=branch("Pow", "w", "a", 3.0),
            else_branch=branch("Add", "w", "a", 5.0),
        ),
    ]
    inputs = {"x": X, "rate": np.array(1, dtype=np.int64)}
    return model_of(nodes, inputs, ["y"], {"sixteen": np.array(16, dtype=np.int64)})


@pytest.mark.parametrize("rate", [8, 16])
def test_a_choice_known_at_import_is_made_there(rate: int) -> None:
    module = agrees(chosen_by_rate(), X, bind={"rate": rate})
    assert [port.name for port in module.inputs] == ["x"]


def test_a_choice_by_data_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedLayer, match="constants=") as caught:
        import_onnx(chosen_by_rate(), "it")
    assert str(caught.value).count("onnxruntime") == 1
    with pytest.raises(BadInput, match="tempo"):
        import_onnx(chosen_by_rate(), "it", constants={"tempo": 1})


@pytest.mark.parametrize("batch", [1, 2])
def test_a_choice_by_shape_is_made_when_it_runs(batch: int) -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "batch", axis=0),
        node("Equal", "batch one", "single"),
        node(
            "If", "single", "chosen", then_branch=branch("Mul", "x", "a"), else_branch=branch("Pow", "x", "a")
        ),
        node("Add", "chosen x", "y"),
    ]
    constants = {"zero": np.array(0, dtype=np.int64), "one": np.array(1, dtype=np.int64)}
    agrees(model_of(nodes, {"x": X}, ["y"], constants, free_batch=True), floats(batch, 3, 4))


def test_several_inputs_and_outputs() -> None:
    nodes = [node("Add", "a b", "s"), node("Sub", "a b", "d")]
    module = agrees(model_of(nodes, {"a": X, "b": floats(4)}, ["s", "d"]), X, floats(4))
    assert [port.name for port in module.outputs] == ["s", "d"]
    with pytest.raises(BadInput, match="takes 2 inputs"):
        module(torch.zeros(1))


def test_a_failing_node_is_named() -> None:
    model, _ = case("MatMul", floats(3, 4), floats(4, 5), constant=(1,)).model()
    with pytest.raises(RuntimeError) as caught:
        import_onnx(model, "it")(torch.zeros(3, 7))
    assert any("'it' (MatMul)" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------- models exported by torch


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        start = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.first = nn.Sequential(start, nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8), nn.LeakyReLU(0.2)
        )
        self.last = nn.Sequential(
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 2 * 2, 16), nn.GELU(), nn.Linear(16, 5)
        )

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        hidden = self.first(data)
        return self.last(hidden + self.block(hidden)).log_softmax(-1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
        self.head = nn.Linear(8, 3)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(data).mean(1))


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)
    )


def convolutional() -> nn.Module:
    network = Residual()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after training, so that a dropped statistic shows
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "perceptron": (perceptron, (3, 4)),
    "convolutional": (convolutional, (3, 8, 8)),
    "attention": (Attention, (5, 8)),
}


def exported(
    network: nn.Module, example: torch.Tensor, axes: dict[int, str], dynamo: bool
) -> onnx.ModelProto:
    """By torch's exporter, the new one or the old, with free axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = ({axis: torch.export.Dim(name, min=2) for axis, name in axes.items()},)
            program = torch.onnx.export(
                network, (example,), dynamo=True, dynamic_shapes=shapes, verbose=False
            )
            assert program is not None
            return program.model_proto
        buffer = io.BytesIO()
        torch.onnx.export(
            network, (example,), buffer, dynamo=False, input_names=["x"], dynamic_axes={"x": axes}
        )
        return onnx.load_from_string(buffer.getvalue())


@pytest.mark.parametrize(("name", "dynamo"), combinations(list(MODELS), [True, False]))
def test_exported_models(name: str, dynamo: bool) -> None:
    build, shape = MODELS[name]
    network = build().eval()
    model = exported(network, torch.randn(2, *shape), {0: "batch"}, dynamo)
    module = agrees(model, floats(4, *shape))
    data = floats(6, *shape)
    close(run(module, [data])[0], network(torch.from_numpy(data)).detach().numpy())
    program = torch.export.export(
        module, (torch.randn(2, *shape),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    close(program.module()(torch.from_numpy(data)).numpy(), truth(model, [data])[0])
    mapped = torch.func.vmap(module)(torch.from_numpy(data[:, None]))
    close(mapped[:, 0].detach().numpy(), truth(model, [data])[0])


def test_a_linear_layer_is_traced_as_one_however_the_file_holds_its_weight() -> None:
    for turned, weight in ((0, floats(4, 5)), (1, floats(5, 4))):
        model, inputs = case("Gemm", floats(3, 4), weight, floats(5), constant=(1, 2), transB=turned).model()
        program = torch.export.export(import_onnx(model, "it"), (torch.from_numpy(inputs[0]),))
        assert [str(node.target) for node in program.graph.nodes if node.op == "call_function"] == [
            "aten.linear.default"
        ]


def test_a_module_can_be_sent_to_another_process() -> None:
    model = reshape_by_its_own_shape()
    module = pickle.loads(pickle.dumps(import_onnx(model, "it")))
    close(run(module, [X])[0], truth(model, [X])[0])


def test_a_copy_does_not_lean_on_the_original() -> None:
    """And constants may be called anything, even what a torch module calls its own."""
    model, inputs = case("Gemm", floats(3, 4), floats(5, 4), floats(5), constant=(1, 2), transB=1).model()
    for old, new in (("in1", "_buffers"), ("in2", "a.b/c")):
        names = model.graph.node[0].input
        names[list(names).index(old)] = new
        next(tensor for tensor in model.graph.initializer if tensor.name == old).name = new
    module = import_onnx(model, "it")
    assert set(module.constants.state_dict()) == {"_buffers_", "a_b_c"}
    wanted = run(module, inputs)[0]
    twin = copy.deepcopy(module)
    for value in module.buffers():
        value.zero_()
    close(run(twin, inputs)[0], wanted)
    twin.load_state_dict(module.state_dict())
    assert not run(twin, inputs)[0].any()


# ---------------------------------------------------------------- what cannot be imported


def test_all_unknown_operators_are_named_at_once() -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Det", "a", "b"),
        node("Det", "b", "c"),
        node("TorchLSTM", "c", "made_up"),
        node("Frobnicate", "c", "d", domain="com.example"),
        node(
            "If", "yes", "y", then_branch=branch("Bernoulli", "d", "e"), else_branch=branch("Mul", "d", "f")
        ),
    ]
    model = model_of(nodes, {"x": floats(2, 3, 3)}, ["y"], {"yes": np.array(True)})
    with pytest.raises(UnsupportedLayer) as caught:
        import_onnx(model, "strange.onnx")
    message = str(caught.value)
    operators = ("Det (node 'Det/b', 'Det/c')", "com.example::Frobnicate", "TorchLSTM", "Bernoulli")
    for part in ("strange.onnx", *operators, "holdfast[runtime]"):
        assert part in message


def test_a_target_computed_from_data_is_refused_at_import() -> None:
    nodes = [node("Cast", "x", "target", to=INT64), node("Reshape", "x target", "y")]
    with pytest.raises(UnsupportedLayer, match="'target'"):
        import_onnx(model_of(nodes, {"x": floats(3)}, ["y"]), "it")


def test_options_that_torch_lacks_are_refused_at_import() -> None:
    for one in (
        case("AveragePool", IMAGE, opset=19, kernel_shape=[2, 2], dilations=[2, 2]),
        case("MaxPool", IMAGE, kernel_shape=[2, 2], outputs=2),
        case("CumSum", X, np.array(1, dtype=np.int64), constant=(1,), reverse=1),
        case("LayerNormalization", X, floats(4), constant=(1,), outputs=2),
    ):
        with pytest.raises(UnsupportedLayer, match="onnxruntime"):
            import_onnx(one.model()[0], "it")


def test_an_old_operator_set_is_refused() -> None:
    with pytest.raises(UnsupportedLayer, match="version_converter"):
        import_onnx(case("Relu", X, opset=6).model()[0], "it")


def test_a_dangling_name_is_damage() -> None:
    with pytest.raises(UnreadableFile, match="nowhere"):
        import_onnx(model_of([node("Add", "x nowhere", "y")], {"x": X}, ["y"]), "it")
    with pytest.raises(UnreadableFile, match="nowhere"):
        import_onnx(model_of([node("Relu", "x", "y")], {"x": X}, ["nowhere"]), "it")
    with pytest.raises(UnreadableFile, match="exists already"):
        import_onnx(model_of([node("Relu", "x", "y"), node("Relu", "x", "y")], {"x": X}, ["y"]), "it")
    with pytest.raises(UnreadableFile, match="not as ONNX defines it"):
        import_onnx(model_of([node("Concat", "x x", "y")], {"x": X}, ["y"]), "it")


def test_a_small_file_cannot_unfold_to_a_huge_constant() -> None:
    nodes = [node("ConstantOfShape", "size", "huge"), node("Add", "x huge", "y")]
    with pytest.raises(UnreadableFile, match="elements"):
        import_onnx(model_of(nodes, {"x": X}, ["y"], {"size": integers(2**20, 2**20)}), "it")


# ---------------------------------------------------------------- files that are not to be trusted


def saved(folder: Path, content: bytes, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.fixture
def content() -> bytes:
    return case("Gemm", floats(3, 4), floats(4, 5), floats(5), constant=(1, 2)).model()[0].SerializeToString()


def test_plain_and_compressed_files_are_the_same(tmp_path: Path, content: bytes) -> None:
    plain = read_onnx(saved(tmp_path, content))
    assert read_onnx(str(saved(tmp_path, gzip.compress(content), "model.onnx.gz"))) == plain
    assert read_onnx(saved(tmp_path, gzip.compress(content), "compressed.onnx")) == plain


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="no such file"):
        read_onnx(tmp_path / "nothing.onnx")
    with pytest.raises(UnreadableFile, match="is a folder"):
        read_onnx(tmp_path)


def test_truncated_files(tmp_path: Path, content: bytes) -> None:
    for length in range(len(content)):
        with pytest.raises(UnreadableFile):
            read_onnx(saved(tmp_path, content[:length]))
    packed = gzip.compress(content)
    for length in range(0, len(packed), 7):
        with pytest.raises(UnreadableFile):
            read_onnx(saved(tmp_path, packed[:length], "model.onnx.gz"))


def test_random_bytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for length in (1, 2, 10, 100, 1000):
        for _ in range(20):
            with pytest.raises(UnreadableFile):
                read_onnx(saved(tmp_path, generator.bytes(length)))
    with pytest.raises(UnreadableFile, match="gzip"):
        read_onnx(saved(tmp_path, b"not compressed at all", "model.onnx.gz"))


def test_flipped_bytes_never_escape_the_errors(tmp_path: Path, content: bytes) -> None:
    """Whatever one damaged byte does, the answer is a model or one of our errors."""
    generator = np.random.default_rng(0)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= int(generator.integers(1, 256))
        with contextlib.suppress(UnreadableFile, UnsupportedLayer, BadInput):
            import_onnx(read_onnx(saved(tmp_path, bytes(damaged))), "it")


def test_a_gzip_bomb_stops_at_the_cap(tmp_path: Path) -> None:
    bomb = saved(tmp_path, gzip.compress(bytes(50_000_000)), "bomb.onnx.gz")
    assert bomb.stat().st_size < 100_000
    with pytest.raises(UnreadableFile, match="1000000 bytes"):
        read_onnx(bomb, max_bytes=1_000_000)


@pytest.mark.parametrize("dims", [[4, 6], [4, 4], [-4, -5], [2**40, 2**40]])
def test_declared_dimensions_must_match_the_values(tmp_path: Path, content: bytes, dims: list[int]) -> None:
    model = onnx.load_from_string(content)
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)
    with pytest.raises(UnreadableFile, match="in1"):
        read_onnx(saved(tmp_path, model.SerializeToString()))
    with pytest.raises(UnreadableFile):
        import_onnx(model, "it")


def test_typed_values_are_counted_too(tmp_path: Path, content: bytes) -> None:
    model = onnx.load_from_string(content)
    model.graph.initializer[1].CopyFrom(helper.make_tensor("in2", TensorProto.FLOAT, [5], [1.0] * 5))
    read_onnx(saved(tmp_path, model.SerializeToString()))
    model.graph.initializer[1].float_data.pop()
    with pytest.raises(UnreadableFile, match="in2"):
        read_onnx(saved(tmp_path, model.SerializeToString()))


def external(content: bytes, location: str, **entries: str) -> bytes:
    model = onnx.load_from_string(content)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return model.SerializeToString()


def test_external_data_beside_the_model_is_read(tmp_path: Path, content: bytes) -> None:
    raw = onnx.load_from_string(content).graph.initializer[0].raw_data
    saved(tmp_path, b"12345678" + raw, "weights.bin")
    path = saved(tmp_path, external(content, "weights.bin", offset="8", length=str(len(raw))))
    model = read_onnx(path)
    assert model.graph.initializer[0].raw_data == raw
    agrees(model, floats(3, 4))


@pytest.mark.parametrize("location", ["../../etc/passwd", "../weights.bin", "/etc/passwd", "link/passwd", ""])
def test_external_data_outside_the_directory_is_refused(
    tmp_path: Path, content: bytes, location: str
) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "link").symlink_to("/etc")
    saved(tmp_path, bytes(80), "weights.bin")
    with pytest.raises(UnreadableFile, match="outside"):
        read_onnx(saved(folder, external(content, location)))


@pytest.mark.parametrize(
    "entries", [{}, {"offset": "70"}, {"offset": "-1"}, {"offset": "x"}, {"length": "40"}]
)
def test_external_data_that_is_missing_or_short(
    tmp_path: Path, content: bytes, entries: dict[str, str]
) -> None:
    if entries:
        saved(tmp_path, bytes(80), "weights.bin")
    with pytest.raises(UnreadableFile, match="in1"):
        read_onnx(saved(tmp_path, external(content, "weights.bin", **entries)))


def test_external_data_not_yet_read_is_refused_by_the_importer(content: bytes) -> None:
    with pytest.raises(UnreadableFile):
        import_onnx(onnx.load_from_string(external(content, "weights.bin")), "it")


# ---------------------------------------------------------------- black box


def test_the_black_box_runs_what_the_importer_does_not_know() -> None:
    model, inputs = case("Det", floats(2, 3, 3)).model()
    box = session(model)
    close(np.asarray(box(*inputs)), np.linalg.det(inputs[0]), 1e-4)
    assert [port.name for port in box.inputs] == ["in0"]


def test_the_black_box_explains_bad_inputs() -> None:
    box = session(case("Det", floats(2, 3, 3)).model()[0], "det.onnx")
    with pytest.raises(BadInput, match=r"det\.onnx"):
        box(floats(2, 3))
    with pytest.raises(BadInput, match="takes 1 inputs"):
        box()


def test_without_onnxruntime_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"holdfast\[runtime\]"):
        session(case("Relu", X).model()[0])


def test_initialisers_listed_as_inputs_are_constants() -> None:
    """Files of the third version of the format list every constant among the inputs."""
    model, inputs = case("Gemm", floats(3, 4), floats(4, 5), constant=(1,)).model()
    model.graph.input.append(helper.make_tensor_value_info("in1", TensorProto.FLOAT, [4, 5]))
    module = agrees(model, *inputs)
    assert [port.name for port in module.inputs] == ["in0"]
    assert numpy_helper.to_array(model.graph.initializer[0]).shape == (4, 5)
