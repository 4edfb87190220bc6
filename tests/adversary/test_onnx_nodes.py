"""What is imported is what ONNX says: the standard's own cases, and corners of the definitions that these leave out."""

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_nodes
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from holdfast.errors import HoldfastError, UnsupportedLayer
from holdfast.network.onnx import import_onnx

Array = np.ndarray[Any, Any]

# ---------------------------------------------------------------- the standard's own


def test_the_cases_that_onnx_ships_are_answered_rightly_or_refused_by_name() -> None:
    found = onnx_nodes.counts()
    assert not found.wrong
    assert found.right >= 940  # of onnx 1.23; fewer would mean that something stopped being imported
    assert len(found.right_of) >= 109
    assert all(reason.strip() for reason in found.reasons.values())


def test_the_walk_can_find_something_wrong() -> None:
    found = onnx_nodes.Counts()
    case = next(case for case in onnx_nodes.cases() if case.name == "test_softplus")
    other = copy.deepcopy(case.model)
    other.graph.node[0].op_type = "Softsign"
    onnx_nodes._judge(replace(case, model=other), found)
    assert list(found.wrong) == ["test_softplus"]


# ---------------------------------------------------------------- corners


def model_of(
    operator: str,
    inputs: list[Array | None],
    opset: int,
    constants: dict[int, Array],
    attributes: dict[str, Any],
) -> onnx.ModelProto:
    names = ["" if value is None and i not in constants else f"in{i}" for i, value in enumerate(inputs)]
    node = helper.make_node(operator, names, ["out"], **attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(f"in{i}", helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for i, v in enumerate(inputs)
            if v is not None
        ],
        [helper.make_tensor_value_info("out", TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(value, f"in{i}") for i, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


WIDE = np.array(
    [
        -800.0,
        -745.0,
        -100.0,
        -40.0,
        -20.0,
        -1e-9,
        -0.0,
        0.0,
        1e-9,
        0.5,
        1.5,
        2.5,
        19.9,
        20.0,
        20.1,
        25.0,
        36.8,
        40.0,
        800.0,
    ]
)
GRID = np.linspace(-3, 3, 2 * 3 * 4).reshape(2, 3, 4)

CORNERS: list[tuple[str, Array, int, dict[int, Array], dict[str, Any]]] = [
    ("Round", np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]), 22, {}, {}),
    ("Clip", WIDE, 13, {1: np.array(3.0), 2: np.array(-2.0)}, {}),
    ("HardSigmoid", WIDE, 22, {}, {}),
    ("HardSigmoid", WIDE, 22, {}, {"alpha": 0.3, "beta": -0.1}),
    ("LeakyRelu", WIDE, 16, {}, {}),
    ("Elu", WIDE, 22, {}, {"alpha": 0.7}),
    ("Selu", WIDE, 22, {}, {}),
    ("ThresholdedRelu", np.array([-1.0, 0.999, 1.0, 1.001]), 22, {}, {}),
    ("ThresholdedRelu", GRID, 22, {}, {"alpha": -0.5}),
    ("Mod", np.array([7.5, -7.5, 7.5, -7.5]), 13, {1: np.array([2.0, 2.0, -2.0, -2.0])}, {"fmod": 1}),
    ("ReduceSumSquare", GRID, 18, {}, {"noop_with_empty_axes": 1}),
    ("ReduceL1", GRID, 18, {1: np.array([], dtype=np.int64)}, {"keepdims": 0}),
    ("ReduceMean", GRID, 18, {1: np.array([-1, 0])}, {}),
    ("Softmax", GRID, 13, {}, {"axis": 0}),
    ("LogSoftmax", GRID * 100, 13, {}, {}),
    ("Gemm", GRID[0], 13, {1: GRID[1].T.copy(), 2: GRID[0, :1, :3].copy()}, {"beta": 0.5}),
    ("Gemm", GRID[0].T.copy(), 13, {1: GRID[1].T.copy(), 2: np.ones(1)}, {"transA": 1}),
    ("Slice", GRID, 13, {1: np.array([-1, 5]), 2: np.array([-100, -3]), 3: np.array([2, 1]), 4: np.array([-2, -1])}, {}),
    ("Gather", GRID, 13, {1: np.array([[-1, 0], [-4, 3]])}, {"axis": 2}),
    ("GatherElements", GRID[0], 13, {1: np.array([[-1, 0, 1, -3]], dtype=np.int32)}, {"axis": 0}),
    ("Expand", GRID[:, :1], 13, {1: np.array([1, 3, 1])}, {}),
    ("Split", GRID, 18, {}, {"axis": 1, "num_outputs": 1}),
    ("Pad", GRID, 13, {1: np.array([0, 0, 3, 0, 2, 1])}, {"mode": "reflect"}),
    ("Pad", GRID, 18, {1: np.array([1, 0, 2, 0]), 3: np.array([-1, 0])}, {"mode": "edge"}),
    ("MaxPool", GRID - 5, 22, {}, {"kernel_shape": [2], "pads": [1, 1], "strides": [3], "ceil_mode": 1}),
    ("MaxPool", GRID[None] - 5, 22, {}, {"kernel_shape": [2, 3], "pads": [1, 0, 0, 2], "dilations": [2, 1]}),
    ("AveragePool", GRID, 22, {}, {"kernel_shape": [3], "pads": [0, 2]}),
    ("AveragePool", GRID, 22, {}, {"kernel_shape": [3], "pads": [0, 2], "count_include_pad": 1}),
    ("LayerNormalization", GRID, 17, {1: np.ones((3, 4))}, {"axis": -2}),
    ("PRelu", GRID[0, 0], 16, {1: np.array([0.1, 0.2, 0.3, 0.4])}, {}),
    ("CumSum", GRID, 14, {1: np.array(-1)}, {}),
    ("Where", GRID > 0, 16, {1: GRID, 2: np.array(7.0)}, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "data", "opset", "constants", "attributes"),
    CORNERS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_corners_in_float64_are_as_the_reference_has_them(
    operator: str, data: Array, opset: int, constants: dict[int, Array], attributes: dict[str, Any]
) -> None:
    inputs: list[Array | None] = [data, *[None] * max(constants, default=0)]
    model = model_of(operator, inputs, opset, constants, attributes)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, {"in0": data})[0]
    found = import_onnx(model, "it")(torch.from_numpy(data))
    assert isinstance(found, torch.Tensor)
    assert found.shape == wanted.shape
    # The reference works out attributes in 32 bits here and there, the average even in halves of it.
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_softplus_is_the_logarithm_of_one_more_than_the_exponential_everywhere() -> None:
    """Also above 20, where torch's own is the identity: the difference decides questions."""
    model = model_of("Softplus", [WIDE], 22, {}, {})
    found = import_onnx(model, "it")(torch.from_numpy(WIDE))
    wanted = [max(x, 0.0) + math.log1p(math.exp(-abs(x))) for x in WIDE.tolist()]
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-15, atol=1e-300)
    assert found[WIDE.tolist().index(25.0)] > 25


def test_defaults_are_those_of_32_bits() -> None:
    found = import_onnx(model_of("HardSigmoid", [WIDE], 22, {}, {}), "it")(
        torch.tensor([1.0], dtype=torch.float64)
    )
    assert isinstance(found, torch.Tensor)
    assert found.item() == float(np.float32(0.2)) + 0.5


@pytest.mark.parametrize("pads", [(1, 2), (2, 0), (0, 2)])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("gap", [1, 2])
def test_a_padded_maximum_sees_the_data_only(pads: tuple[int, int], stride: int, gap: int) -> None:
    """All of it is negative, so that a zero of the padding would show."""
    data = GRID - 5
    model = model_of(
        "MaxPool",
        [data],
        22,
        {},
        {"kernel_shape": [3], "pads": pads, "strides": [stride], "dilations": [gap]},
    )
    found = import_onnx(model, "it")(torch.from_numpy(data))
    starts = range(-pads[0], data.shape[2] + pads[1] - 2 * gap, stride)
    seen = [
        [start + place * gap for place in range(3) if 0 <= start + place * gap < data.shape[2]]
        for start in starts
    ]
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), np.stack([data[:, :, window].max(2) for window in seen], 2))


@pytest.mark.parametrize(
    "settings",
    [
        {"strides": [2], "output_shape": [10]},
        {"output_padding": [2]},
        {"pads": [0, 1], "output_padding": [3]},
    ],
)
def test_the_bias_of_a_transposed_convolution_is_everywhere(settings: dict[str, Any]) -> None:
    """Also where the output is longer than what the kernel reaches."""
    weight = GRID[:1].transpose(1, 0, 2)[:, :, :3].copy()
    plain, shifted = (
        import_onnx(model_of("ConvTranspose", [GRID, *[None] * max(held)], 22, held, settings), "it")(
            torch.from_numpy(GRID)
        )
        for held in ({1: weight}, {1: weight, 2: np.array([5.0])})
    )
    assert isinstance(plain, torch.Tensor)
    assert isinstance(shifted, torch.Tensor)
    stride = settings.get("strides", [1])[0]
    full = np.zeros((2, 1, 3 * stride + 3))
    for place in range(4):
        full[:, 0, place * stride : place * stride + 3] += np.einsum(
            "bc,ck->bk", GRID[:, :, place], weight[:, 0]
        )
    length = plain.shape[2]
    assert (
        length
        == settings.get(
            "output_shape", [6 + settings.get("output_padding", [0])[0] - settings.get("pads", [0, 0])[1]]
        )[0]
    )
    begin = (full.shape[2] - length) - (full.shape[2] - length) // 2 if "output_shape" in settings else 0
    padded = np.pad(full, ((0, 0), (0, 0), (9, 9)))[:, :, 9 + begin : 9 + begin + length]
    np.testing.assert_allclose(plain.numpy(), padded, atol=1e-12)
    np.testing.assert_allclose(shifted.numpy(), padded + 5, atol=1e-12)


REFUSED: list[tuple[str, str, list[Array | None], int, dict[int, Array], dict[str, Any]]] = [
    ("fmod", "Mod", [GRID, GRID], 13, {}, {}),
    ("axis 1", "Softmax", [GRID[0, 0]], 11, {}, {}),
    ("one axis twice", "Slice", [GRID], 13, {1: np.array([0, 1]), 2: np.array([2, 3]), 3: np.array([2, -1])}, {}),
    ("largest integer", "Slice", [GRID], 13, {1: np.array([5]), 2: np.array([2**63 - 1]), 3: np.array([2]), 4: np.array([-1])}, {}),
    ("largest integer", "Slice", [GRID], 13, {1: np.array([5]), 2: np.array([2**31 - 1]), 3: np.array([2]), 4: np.array([-1])}, {}),
    ("an expansion to", "Expand", [GRID[:, :1, :1]], 13, {1: np.array([2, 1, 0])}, {}),
    ("an expansion to", "Expand", [GRID[:, :1]], 13, {1: np.array([-1])}, {}),
    ("empty list", "Squeeze", [GRID], 13, {1: np.array([], dtype=np.int64)}, {}),
    ("split of 5", "Split", [GRID.reshape(-1)[:5]], 18, {}, {"num_outputs": 4}),
    ("reflect padding", "Pad", [GRID], 13, {1: np.array([0, 0, 4, 0, 0, 0])}, {"mode": "reflect"}),
    ("padding only", "MaxPool", [GRID], 22, {}, {"kernel_shape": [2], "pads": [3, 3]}),
    ("padding only", "AveragePool", [GRID], 22, {}, {"kernel_shape": [2], "pads": [3, 3]}),
    ("one number", "InstanceNormalization", [GRID[:, :, :1]], 22, {1: np.ones(3), 2: np.ones(3)}, {}),
    ("axis of channels", "BatchNormalization", [GRID[0, 0]], 15, {1: np.ones(1), 2: np.ones(1), 3: np.ones(1), 4: np.ones(1)}, {}),
    ("int64", "ReduceMean", [np.array([[1, 2]])], 18, {}, {}),
    ("integers", "Gemm", [np.array([[1, 2]]), np.array([[1], [2]])], 13, {}, {}),
    ("newer", "Relu", [GRID], 29, {}, {}),
    ("cannot represent", "Add", [GRID.astype(np.float32)], 14, {1: np.array(0.1)}, {}),
    ("approximation", "Gelu", [GRID], 20, {}, {"approximate": "guess"}),
    ("axis to pool", "GlobalAveragePool", [GRID[0]], 22, {}, {}),
    ("axis to pool", "GlobalMaxPool", [GRID[0]], 22, {}, {}),
    ("ONNX forbids", "MaxPool", [GRID], 22, {}, {"kernel_shape": [2], "auto_pad": "VALID", "pads": [1, 0]}),
    ("with dilations", "MaxPool", [GRID], 22, {}, {"kernel_shape": [2], "auto_pad": "SAME_UPPER", "dilations": [2]}),
    ("ceil_mode=2", "MaxPool", [GRID], 22, {}, {"kernel_shape": [2], "ceil_mode": 2}),
    ("axis twice", "ReduceProd", [GRID], 13, {}, {"axes": [0, -3]}),
    ("larger than", "ConvTranspose", [GRID], 22, {1: np.ones((3, 1, 1))}, {"strides": [2], "auto_pad": "SAME_UPPER"}),
    ("larger than", "ConvTranspose", [GRID], 22, {1: np.ones((3, 1, 1))}, {"output_shape": [6]}),
    ("softplus", "RNN", [GRID], 22, {1: np.ones((1, 2, 4)), 2: np.ones((1, 2, 2))}, {"hidden_size": 2, "activations": ["Softplus"]}),
    ("clip at zero", "RNN", [GRID], 22, {1: np.ones((1, 2, 4)), 2: np.ones((1, 2, 2))}, {"hidden_size": 2, "clip": 0.0}),
    ("in fractions", "Range", [np.array(0.0)], 11, {1: np.array(1.0), 2: np.array(0.1)}, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "operator", "inputs", "opset", "constants", "attributes"),
    REFUSED,
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_has_no_agreed_meaning_or_no_rule_is_refused_by_name(
    word: str,
    operator: str,
    inputs: list[Array | None],
    opset: int,
    constants: dict[int, Array],
    attributes: dict[str, Any],
) -> None:
    wide = [*inputs, *[None] * (1 + max(constants, default=0) - len(inputs))]
    model = model_of(operator, wide, opset, constants, attributes)
    bound = {"in0": inputs[0]} if operator == "Range" else {}
    if bound:  # so that something is left to move
        model.graph.node.append(helper.make_node("Add", ["x", "out"], ["y"]))
        model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1]))
        model.graph.output[0].name = "y"
    with pytest.raises(UnsupportedLayer, match=word):
        import_onnx(model, "it", constants=bound)(
            *[torch.from_numpy(value) for value in inputs if value is not None]
        )


def test_no_two_answers_to_a_clipped_memory() -> None:
    """ONNX clips what goes into every activation, onnxruntime leaves the memory of an LSTM as it is."""
    node = helper.make_node("LSTM", ["x", "w", "r"], ["", "out"], hidden_size=2, clip=0.5)
    held = {"w": np.ones((1, 8, 3), np.float32), "r": np.ones((1, 8, 2), np.float32)}
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 1, 3])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    with pytest.raises(HoldfastError, match="clip"):
        import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), "it")
