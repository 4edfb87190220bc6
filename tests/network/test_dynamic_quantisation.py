"""Dynamic quantisation: the grid depends on the data. Imports against onnxruntime, and bounds attacked by it."""

import numpy as np
import onnx
import pytest
import torch
from tests.quantised_networks import quantise, run

import holdfast as hf
from holdfast.bounding import crown
from holdfast.bounding.graph.fusion import single_input_network
from holdfast.bounding.graph.graph import build
from holdfast.bounding.relax import DynamicRounding, value_range
from holdfast.network.onnx import import_onnx
from holdfast.region import Box

SHAPES = {"perceptron": (6,), "convolutional": (1, 6, 6)}


def alone(content: bytes, x: np.ndarray) -> np.ndarray:
    """What onnxruntime computes in batches of one."""
    return np.concatenate([run(content, row[None]) for row in x])


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_the_import_answers_as_onnxruntime(kind: str) -> None:
    content = quantise(kind, "dynamic")
    x = np.random.default_rng(3).random((200, *SHAPES[kind])).astype(np.float32)
    x[0] = 0  # no range: the step is one
    module = import_onnx(onnx.load_from_string(content), "file")
    found = torch.cat([module(row[None]) for row in torch.from_numpy(x)]).numpy()
    if kind == "perceptron":
        np.testing.assert_array_equal(found, alone(content, x))
    # The kernel of convolutions multiplies by its scales in another order: the last digit may differ.
    np.testing.assert_allclose(found, alone(content, x), rtol=1e-5, atol=1e-6)


def opened(tmp_path, kind: str) -> tuple[hf.Network, bytes]:
    content = quantise(kind, "dynamic")
    path = tmp_path / "dynamic.onnx"
    path.write_bytes(content)
    return hf.Network.from_onnx(path, domain=(0, 1)), content


def test_inputs_are_measured_alone_and_the_notes_say_so(tmp_path) -> None:
    net, content = opened(tmp_path, "perceptron")
    x = np.random.default_rng(4).random((5, 6)).astype(np.float32)
    np.testing.assert_array_equal(net(torch.from_numpy(x)).numpy(), alone(content, x))
    assert not np.array_equal(run(content, x), alone(content, x)), "the batch makes no difference here"
    assert any("dynamic quantisation" in note for note in net.notes)


def escapes(net: hf.Network, content: bytes) -> int:
    draw = np.random.default_rng(5)
    graph = build(single_input_network(net, torch.zeros(1, 6)), torch.zeros(1, 6))
    found = 0
    for reach in (0.0, 0.003, 0.05, 0.4):
        centre = draw.random(6)
        low, high = (np.clip(centre + side * reach, 0, 1) for side in (-1, 1))
        box = Box.between(torch.from_numpy(low)[None], torch.from_numpy(high)[None])
        boxes = crown.propagate(graph, box)
        lower, upper = (side[graph.output].numpy() for side in (boxes.lower, boxes.upper))
        points = low + (high - low) * draw.random((400, 6))
        points[:100] = np.where(draw.random((100, 6)) < 0.5, low, high)
        outputs = alone(content, points.astype(np.float32))
        slack = 1e-6 * (1 + np.abs(outputs))
        found += bool(((outputs < lower - slack) | (outputs > upper + slack)).any())
    return found


def test_bounds_hold_for_what_onnxruntime_computes(tmp_path) -> None:
    assert escapes(*opened(tmp_path, "perceptron")) == 0


def test_bounds_without_the_half_step_are_broken(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(DynamicRounding, "deviation", lambda self, lower, upper: None)
    assert escapes(*opened(tmp_path, "perceptron"))


def test_values_on_a_grid_are_within_half_a_step() -> None:
    draw = torch.Generator().manual_seed(0)
    low, small = torch.randn(200, generator=draw).double(), torch.rand(200, generator=draw).double()
    high, large = low + torch.rand(200, generator=draw), small + torch.rand(200, generator=draw)
    share = torch.rand(2, 500, 1, generator=draw).double()
    v, s = low + share[0] * (high - low), small + share[1] * (large - small)
    found = DynamicRounding().function(v, s)
    least, most = value_range(DynamicRounding(), (low, small), (high, large))
    assert bool((found >= least).all())
    assert bool((found <= most).all())


def test_a_radius_is_proved(tmp_path) -> None:
    net, _ = opened(tmp_path, "perceptron")
    x = torch.full((1, 6), 0.5)
    (bracket,) = hf.radius(net, x, net(x).argmax(1), methods=[hf.certify.Certify(), hf.attacks.PGD()])
    assert 0 < bracket.lower.value <= bracket.upper.value
