"""Bounds of quantised networks, attacked with onnxruntime on grids, at ties and next to them."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from tests.quantised_networks import FORMATS, quantise, run

import holdfast as hf
from holdfast.bounding import crown
from holdfast.bounding.graph import discontinuities
from holdfast.bounding.graph.graph import build
from holdfast.bounding.relax.rounding_interval import RoundedInput
from holdfast.region import Box


def opened(tmp_path, kind: str, style: str, seed: int = 0) -> tuple[hf.Network, bytes]:
    content = quantise(kind, style, seed=seed)
    path = tmp_path / "quantised.onnx"
    path.write_bytes(content)
    return hf.Network.from_onnx(path, domain=(0, 1)), content


def box(low: np.ndarray, high: np.ndarray) -> Box:
    return Box.between(torch.from_numpy(low)[None].double(), torch.from_numpy(high)[None].double())


def points_of(low: np.ndarray, high: np.ndarray, draw: np.random.Generator, step: float) -> np.ndarray:
    """(n, size) float32: random points, corners, and ties of the first rounding with their neighbours."""
    inside = low + (high - low) * draw.random((3000, low.size))
    ties = (np.round(inside / step - 0.5) + 0.5) * step
    corners = np.where(draw.random((200, low.size)) < 0.5, low, high)
    float_ties = ties.astype(np.float32)
    near = [float_ties, np.nextafter(float_ties, np.float32(2)), np.nextafter(float_ties, np.float32(-1))]
    points = np.concatenate([inside.astype(np.float32), *near, corners.astype(np.float32)])
    return points[((points >= low) & (points <= high)).all(1)]


def escapes(net: hf.Network, content: bytes, trials: int = 6) -> int:
    """The number of boxes with an output of onnxruntime outside of the bounds of the boxes.

    The first boxes are ties of the first rounding, alone and with their neighbours.
    """
    draw = np.random.default_rng(5)
    stored = onnx.load_from_string(content).graph.initializer
    (step,) = (float(numpy_helper.to_array(t)) for t in stored if t.name == "x_scale")
    size = net.shape[0]
    graph = build(net, torch.zeros(1, size))
    found = 0
    for trial in range(trials):
        reach = (0.0, 1e-7, 0.002, 0.01, 0.05, 0.3)[trial % 6]
        centre = draw.random(size)
        if reach < 1e-3:
            centre = ((np.floor(centre * 250) + 0.5) * step).astype(np.float32).astype(np.float64)
        low, high = (np.clip(centre + side * reach, 0, 1) for side in (-1, 1))
        boxes = crown.propagate(graph, box(low, high))
        lower, upper = (side[graph.output].numpy() for side in (boxes.lower, boxes.upper))
        points = points_of(low, high, draw, step)
        outputs = run(content, points) if len(points) else np.zeros((0, lower.shape[1]))
        # DequantizeLinear multiplies in float32: half a unit in the last place of the output.
        slack = 1e-7 * np.abs(outputs)
        found += bool(((outputs < lower - slack) | (outputs > upper + slack)).any())
    return found


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("kind", ["plane", "perceptron"])
def test_bounds_hold_for_what_onnxruntime_computes(tmp_path, style: str, kind: str) -> None:
    net, content = opened(tmp_path, kind, style)
    assert escapes(net, content) == 0


def test_bounds_without_the_margin_at_ties_are_broken(tmp_path, monkeypatch) -> None:
    """The attack finds a bound that ignores on which side of a tie float32 computes a value."""
    monkeypatch.setattr(RoundedInput, "magnitude", lambda self, lower, upper: torch.zeros_like(lower[0]))
    found = 0
    for seed in range(8):
        net, content = opened(tmp_path, "plane", "QOperator", seed)
        found += escapes(net, content, 2)
    assert found


def test_bounds_without_rounding_are_broken(tmp_path, monkeypatch) -> None:
    net, content = opened(tmp_path, "plane", "QOperator")
    monkeypatch.setattr(
        discontinuities,
        "_jumping",
        lambda graph, name, node, relaxation: graph.add_relaxed(name, [node], RoundedInput()),
    )
    assert escapes(net, content)


def test_limits_of_a_rounding_become_functions_with_one_kink(tmp_path) -> None:
    """So trained slopes and splits of signs apply to them."""
    net, _ = opened(tmp_path, "perceptron", "QOperator")
    from holdfast.bounding.alpha_beta_crown import relu_like_functions

    assert len(relu_like_functions(build(net, torch.zeros(1, 6)))) >= 2


def test_no_bound_of_gradients(tmp_path) -> None:
    """A step has no slope: where a rounding may jump, the bound is infinite."""
    from holdfast.bounding.relax import Round

    low, high = (torch.tensor([v], dtype=torch.float64) for v in (0.2, 0.8))
    ((least, most),) = Round().derivative_range((low,), (high,))
    assert float(least) == 0
    assert float(most) == float("inf")


QUESTIONS: dict[str, dict[str, Any]] = {
    "tight": {"tier": "tight"}, "split": {"tier": "split"}, "executed": {"arithmetic": "executed"},
    "norm 2": {"norm": 2}, "norm 0": {"norm": 0, "unit": "number"},
}  # fmt: skip


@pytest.mark.parametrize("question", list(QUESTIONS))
@pytest.mark.parametrize("style", FORMATS)
def test_radii_hold_for_what_onnxruntime_computes(tmp_path, style: str, question: str) -> None:
    options = QUESTIONS[question]
    net, content = opened(tmp_path, "plane", style)
    x = np.array([[0.62, 0.31]], dtype=np.float32)
    label = int(run(content, x).argmax())
    # The statement below holds whenever the search stops.
    given = {**options, "seconds": 1.5} if "tier" in options else options
    (bracket,) = hf.radius(net, torch.from_numpy(x), [label], progress=False, **given)
    proved, attacked = bracket.lower.value, bracket.upper.value
    if question == "norm 0":  # the number of changed values that keeps the class
        assert (proved, attacked) == (0, 0)
    assert "tier" in options or np.isfinite(attacked), "no attack answered"
    if question == "executed":
        assert proved == 0
        assert "as executed" in str(bracket)
        assert "attacks, and proofs in real arithmetic, still work" in str(bracket)
        return
    points = np.random.default_rng(7).random((20000, 2)).astype(np.float32)
    points[:5000, 0], points[5000:10000, 1] = x[0, 0], x[0, 1]
    moved = points.astype(np.float64) - x
    sizes = {"norm 2": np.hypot(*moved.T), "norm 0": (moved != 0).sum(1)}.get(question, np.abs(moved).max(1))
    changed = run(content, points).argmax(1) != label
    assert (sizes[changed] > proved).all()
    assert changed.any()
    assert question != "norm 2" or proved > 0.8 * sizes[changed].min(), "the proof says next to nothing"
