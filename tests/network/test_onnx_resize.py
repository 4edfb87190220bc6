"""Resize, Upsample and OneHot against onnxruntime, files without a batch axis, and networks that count."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx_truth import close, floats, integers, model_of, run, truth

import holdfast as hf
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.network.onnx import import_onnx

X = floats(2, 3, 4, 5)
NO_REGION = np.array([], np.float32)


def enlarged(opset: int, scales: list[float], operator: str = "Resize", **attributes: Any) -> onnx.ModelProto:
    by = np.array(scales, np.float32)
    if opset < 9:
        node = helper.make_node(operator, ["x"], ["y"], scales=scales, **attributes)
        return model_of([node], {"x": X}, ["y"], {}, opset=opset)
    inputs = ["x", "scales"] if opset < 11 else ["x", "region", "scales"]
    constants = {"scales": by} | ({"region": NO_REGION} if opset >= 11 else {})
    return model_of(
        [helper.make_node(operator, inputs, ["y"], **attributes)], {"x": X}, ["y"], constants, opset=opset
    )


@pytest.mark.parametrize(
    ("opset", "operator", "attributes"),
    [
        (7, "Upsample", {"mode": "nearest"}),
        (9, "Upsample", {"mode": "nearest"}),
        (10, "Resize", {"mode": "nearest"}),
        (13, "Resize", {"mode": "nearest"}),
        (19, "Resize", {"mode": "nearest", "nearest_mode": "round_prefer_ceil"}),
        (
            11,
            "Resize",
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        ),
        (13, "Resize", {"mode": "linear"}),
        (13, "Resize", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    ],
)
def test_enlarging_by_whole_factors_answers_as_onnxruntime(
    opset: int, operator: str, attributes: dict[str, str]
) -> None:
    model = enlarged(opset, [1.0, 1.0, 2.0, 3.0], operator, **attributes)
    (found,), (wanted,) = run(import_onnx(model, "m"), [X]), truth(model, [X])
    close(found, wanted)


def test_sizes_instead_of_scales_answer_as_onnxruntime() -> None:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest")
    model = model_of([node], {"x": X}, ["y"], {"sizes": integers(2, 3, 8, 5)}, opset=13)
    (found,), (wanted,) = run(import_onnx(model, "m"), [X]), truth(model, [X])
    close(found, wanted)


@pytest.mark.parametrize(
    ("attributes", "scales", "message"),
    [
        ({"mode": "nearest"}, [1.0, 1.0, 1.5, 2.0], "a factor of 1.5"),
        ({"mode": "nearest"}, [1.0, 1.0, 0.5, 2.0], "a factor of 0.5"),
        ({"mode": "cubic"}, [1.0, 1.0, 2.0, 2.0], "cubic"),
        ({"mode": "nearest", "nearest_mode": "ceil"}, [1.0, 1.0, 2.0, 2.0], "'ceil'"),
        (
            {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
            [1.0, 1.0, 2.0, 2.0],
            "asymmetric",
        ),
        ({"mode": "linear"}, [1.0, 2.0, 2.0, 2.0], "the batch or the channels"),
    ],
)
def test_other_forms_of_resize_are_refused(
    attributes: dict[str, str], scales: list[float], message: str
) -> None:
    model = enlarged(13, scales, **attributes)
    with pytest.raises(hf.errors.UnsupportedLayer, match=message):
        import_onnx(model, "m")(torch.from_numpy(X))


@pytest.mark.parametrize("opset", [9, 11, 17])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_answers_as_onnxruntime_also_out_of_range(opset: int, axis: int) -> None:
    """Indices from -depth to depth - 1 are classes; all others give off values only."""
    indices = np.array([[-5, -4, -1, 0], [3, 4, 9, 2]], np.int64)
    node = helper.make_node("OneHot", ["x", "depth", "values"], ["y"], axis=axis)
    constants = {"depth": integers(4), "values": np.array([-1.0, 3.0], np.float32)}
    model = model_of([node], {"x": indices}, ["y"], constants, opset=opset)
    (found,), (wanted,) = run(import_onnx(model, "m"), [indices]), truth(model, [indices])
    close(found, wanted)


def save(
    path: Path, nodes: list[onnx.NodeProto], shape: list[int], constants: dict[str, Any], kind: int
) -> Path:
    model = model_of(nodes, {"x": np.zeros(shape, np.float32)}, ["y"], constants, opset=13, output_type=kind)
    onnx.save(model, path)
    return path


def counting(path: Path) -> Path:
    """The number of pixels of a 2 x 3 image whose first of two channels is the larger one: an integer."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["class"], axis=1, keepdims=0),
        helper.make_node("OneHot", ["class", "depth", "values"], ["classes"], axis=1),
        helper.make_node("Gather", ["classes", "first"], ["ones"], axis=1),
        helper.make_node("ReduceSum", ["ones"], ["y"], keepdims=0),
    ]
    constants = {
        "depth": integers(2),
        "values": integers(0, 1),
        "first": np.array(0, np.int64),
    }
    return save(path, nodes, [1, 2, 2, 3], constants, TensorProto.INT64)


def specification(path: Path, centre: np.ndarray[Any, Any], radius: float, output: str) -> Path:
    lines = [f"(declare-const X_{i} Real)" for i in range(centre.size)] + ["(declare-const Y_0 Real)"]
    for i, value in enumerate(centre.ravel()):
        lines += [f"(assert (>= X_{i} {value - radius:.6f}))", f"(assert (<= X_{i} {value + radius:.6f}))"]
    path.write_text("\n".join([*lines, output]) + "\n")
    return path


def image() -> np.ndarray[Any, Any]:
    """Four pixels in which the first channel is larger by 0.2, one by 0.02, and one in which it is smaller."""
    centre = np.zeros((1, 2, 2, 3), np.float32)
    centre[0, 0] = np.array([[0.2, 0.2, 0.2], [0.2, 0.02, -0.2]])
    return centre


@pytest.mark.parametrize(("least", "answer"), [(3, "unsat"), (4, "sat"), (5, "sat")])
def test_a_count_of_pixels_is_proved_and_attacked(tmp_path: Path, least: int, answer: str) -> None:
    """With radius 0.05 four pixels keep their class, one may lose it, one never has it: the count is 4 or 5."""
    file = counting(tmp_path / "m.onnx")
    spec = specification(tmp_path / "s.vnnlib", image(), 0.05, f"(assert (<= Y_0 {least}))")
    found = hf.verify(file, spec, methods=[ActivationSplit()])
    assert found.answer == answer
    if answer == "sat":
        assert found.witness is not None
        assert float(hf.Network.from_onnx(file)(found.witness.reshape(1, 2, 2, 3))) <= least


def test_first_bounds_settle_what_one_pass_settles(tmp_path: Path) -> None:
    """The record says that no subproblem was bounded."""
    file = counting(tmp_path / "m.onnx")
    spec = specification(tmp_path / "s.vnnlib", image(), 0.005, "(assert (<= Y_0 4))")
    found = hf.verify(file, spec, methods=[ActivationSplit()])
    assert found.answer == "unsat"
    assert found.nodes == 0


def test_a_black_box_without_a_batch_axis_is_evaluated_row_by_row(tmp_path: Path) -> None:
    """An operator without a rule, and an input of five numbers."""
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["wide"], mode="nearest"),
        helper.make_node("ReduceSum", ["wide"], ["y"], keepdims=1),
    ]
    file = save(tmp_path / "m.onnx", nodes, [5], {"scales": np.array([1.5], np.float32)}, TensorProto.FLOAT)
    net = hf.Network.from_onnx(file, batched=False)
    assert not net.differentiable
    rows = torch.rand(3, 5)
    one_by_one = [truth(onnx.load(file), [row.numpy()])[0] for row in rows]
    torch.testing.assert_close(net(rows), torch.from_numpy(np.stack(one_by_one)))
    spec = specification(tmp_path / "s.vnnlib", np.full(5, 0.5, np.float32), 0.1, "(assert (<= Y_0 0.5))")
    assert hf.verify(net, spec).answer == "unknown"
