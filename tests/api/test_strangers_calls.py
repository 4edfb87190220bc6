"""Wrong calls with the habits of other libraries: names of arguments, kinds of models and containers, shapes.

Each is answered by what is meant here. A name that the function does not have is a TypeError, as everywhere in Python;
all else is a HoldfastError.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
X = torch.rand(4, 3, 2)
Y = [0, 1, 2, 0]
BALL = hf.Ball(X, 0.1, math.inf, (0, 1))
PAIR = (torch.zeros(1, 3, 2), torch.ones(1, 3, 2))
DATA = TensorDataset(X, torch.tensor(Y))


class Answer(nn.Module):
    """Answers with whatever a function makes of the logits."""

    def __init__(self, form: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.body, self.form = nn.Linear(6, 3), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.body(x.flatten(1)))


def call(function: Any, *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: function(*arguments, **options)


def radius(**options: Any) -> Callable[[], Any]:
    return call(hf.radius, MODEL, X, Y, **options)


# what is called, and what the message must say
NAMES: list[tuple[Callable[[], Any], str]] = [
    (radius(epsilon=0.1), r"hf.radius searches for the radius itself.*hf.worst\(net, hf.Ball"),
    (radius(eps=0.1), "'eps'.*hf.radius searches"),
    (radius(p=2), "'p'. It is called norm here"),
    (radius(timeout=5), "'timeout'. It is called seconds here"),
    (call(hf.radius, MODEL, X, labels=Y), "'labels'. It is called y here"),
    (call(hf.radius, model=MODEL, x=X, y=Y), "'model'. It is called net here"),
    (radius(attack="pgd"), "'attack'. It is called methods here"),
    (radius(clip_values=(0, 1)), "'clip_values'. It is called domain here"),
    (radius(device="cuda"), r"belongs to the network: hf.Network.from_torch\(model, device=...\)"),
    (radius(batch_size=8), "'batch_size'. Leave it out"),
    (radius(verbose=True), "'verbose'. It is called progress here"),
    (radius(teir="fast"), "'teir'. Did you mean 'tier'"),
    (radius(zzz=1), "'zzz'. There are net, x, y"),
    (call(hf.radius, MODEL, X, Y, 2), r"at most 3 arguments by position, \(net, x, y\), got 4.*norm="),
    (call(hf.radius, MODEL), r"radius\(\) is missing x. x holds the inputs"),
    (call(hf.worst, MODEL, BALL), r"missing property. What must hold: hf.Robustness"),
    (call(hf.worst, MODEL, X, hf.Robustness(torch.tensor(Y)), radius=0.1), r"'radius'. It is part of the region: hf.Ball\("),
    (call(hf.worst, MODEL, BALL, y=Y), r"'y'. Classes are given as a property"),
    (call(hf.bounds, MODEL, X, radius=0.1), "'radius'. It is part of the region"),
    (call(hf.bounds, MODEL, BALL, method="crown"), "'method'. There are net, region, rows, offset"),
    (call(hf.risk, MODEL, X, radius=0.1), r"missing property.*'confidence'"),
    (call(hf.risk, MODEL, X, "targeted", radius=0.1, target=1), "'target'. The class is targets="),
    (call(hf.verify, MODEL, BALL, hf.Robustness(torch.tensor(Y))), "hf.verify answers a VNN-LIB file.*hf.worst"),
    (call(hf.verify, MODEL), "missing spec. The question is the path of a VNN-LIB file"),
    (call(hf.reach, MODEL), r"missing box.*hf.Box.between"),
    (call(hf.smoothed, MODEL, X), "missing sigma. The standard deviation of the noise"),
    (call(hf.smoothed, MODEL, X, std=0.1), "'std'. It is called sigma here"),
    (call(hf.harden, MODEL, X, Y, 0.1), "at most 3 arguments by position.*is radius="),
    (call(hf.harden, MODEL, X, Y, radius=0.1, eps=1), "'eps'. It is called radius here"),
    (call(hf.harden, MODEL, X, Y, radius=0.1, optimizer="adam"), "'optimizer'.*hf.hardening.Recipe"),
    (call(hf.radius, MODEL, X, quantiles=[0.5]), "'quantiles'. They belong to the property: hf.Within"),
    (call(hf.radius, MODEL, X, Y, scales=[1, 2]), "'scales'. It is shares= of features.*of_channels"),
    (lambda: hf.radius(MODEL, X, Y, methods=["pgd"], seconds=5)["lower"], r"numbered from 0 to 3.*to_frame\(\)\['lower'\]"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), NAMES, ids=[message[:40] for _, message in NAMES])
def test_a_name_of_another_library_is_translated(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        wrong()
    assert re.search(message, str(caught.value)), str(caught.value)


VALUES: list[tuple[Callable[[], Any], str]] = [
    # ---- models
    (call(hf.radius, torch.jit.trace(MODEL, X), X, Y), "TorchScript .* cannot be measured. Give the module"),
    (call(hf.radius, torch.jit.script(MODEL), X, Y), "TorchScript"),
    (call(hf.radius, nn.Linear(6, 3, device="meta").eval(), X.flatten(1), Y), "weight is on the device 'meta'"),
    (call(hf.radius, Answer(lambda y: y.argmax(1)).eval(), X, Y), "answers with torch.int64.*without its last step"),
    (call(hf.radius, Answer(lambda y: y.detach().numpy()).eval(), X, Y), "answers with ndarray, not with a tensor"),
    (call(hf.radius, Answer(lambda y: y * math.nan).eval(), X, Y), "NaN or infinity on the first inputs"),
    (call(hf.radius, Answer(lambda y: y + torch.randn(1)).eval(), X, Y), "draws random numbers"),
    (call(hf.Network, MODEL), r"build one with hf.Network.from_torch\(module\)"),
    # ---- containers of inputs
    (call(hf.radius, MODEL, DataLoader(DATA)), r"x is a DataLoader.*x, y = next\(iter\(loader\)\)"),
    (call(hf.radius, MODEL, DATA), "x is a TensorDataset"),
    (call(hf.radius, MODEL, (X * 255).byte(), Y), r"integers \(uint8\).*x.float\(\), and / 255"),
    (call(hf.radius, MODEL, X.to(torch.complex64), Y), "x holds torch.complex64: give floating-point numbers"),
    (call(hf.radius, MODEL, X > 0.5, Y), "x holds torch.bool"),
    (call(hf.radius, MODEL, np.array([None, "a"], dtype=object), Y), "x is an array of objects"),
    (call(hf.radius, MODEL, np.array(["a", "b"]), Y), "x is an array of texts"),
    (call(hf.radius, MODEL, {1, 2}, Y), "x does not hold inputs"),
    # ---- classes
    (call(hf.radius, MODEL, X, np.array(Y)[:, None]), r"y has shape \(4, 1\).*y\[:, 0\]"),
    (call(hf.radius, MODEL, X, torch.tensor(Y), targets=Y), "target 0 of input 0 is its own label"),
    # ---- regions, domains, properties
    (radius(domain=(torch.zeros(5), torch.ones(5))), r"domain: bounds of shape \(5,\) do not fit inputs of shape \(3, 2\)"),
    (radius(domain=(torch.zeros(1, 1, 1, 1), 1)), "domain: bounds of shape"),
    (call(hf.Ball, X, 0.1, math.inf, "0,1"), "domain: expected the lowest and the highest value"),
    (call(hf.Ball, X, 0.1, math.inf, 1), "domain: expected the lowest and the highest value"),
    (call(hf.worst, MODEL, BALL, Y), r"property: these are classes.*hf.Robustness\(torch.as_tensor\(y\)\)"),
    (call(hf.worst, MODEL, BALL, torch.tensor(Y)), "property: these are classes"),
    (call(hf.risk, MODEL, X, np.array(Y), radius=0.1), "property: these are classes.*y="),
    (call(hf.worst, MODEL, PAIR, hf.Robustness(torch.tensor(Y))), r"region: a pair of bounds is given as hf.Box.between"),
    (call(hf.bounds, MODEL, hf.Ball), r"region: Ball is a class; give an instance"),
    (call(hf.reach, MODEL, (0.0, 1.0)), "box: a bound for each number of an input is needed, got a single number"),
    (call(hf.reach, MODEL, ("low", "high")), "box: expected two tensors"),
    (call(hf.reach, MODEL, BALL), "box: expected hf.Box.between.*got a Ball"),
    (call(hf.verify, MODEL, hf.Robustness(torch.tensor(Y))), "spec: expected the path.*got a Robustness"),
    (call(hf.worst, MODEL, BALL, hf.Robustness(Y)), r"label must be a tensor.*torch.as_tensor\(\[0, 1, 2, 0\]\)"),
    (lambda: hf.radius(hf.Network.from_torch(MODEL, classes=["a", "b"]), X, Y), "2 classes are named, but .* has 3 outputs"),
    (call(hf.Network.from_torch, MODEL, shape=6), r"shape: expected the sizes of one input, as in .*, got 6"),
    (call(hf.Network.from_torch, MODEL, shape="6"), "shape: expected the sizes of one input"),
    (call(hf.Network.from_onnx, b"net.onnx"), "expected the path of a model file, got bytes"),
    (lambda: hf.Network.from_torch(MODEL).with_columns(None), r"expected hf.Columns.of\(frame\)"),  # type: ignore[arg-type]
    (call(hf.Within, None), "within 'None': expected a width"),
    (call(hf.radius, MODEL, X, property=hf.Threshold("half")), "threshold: expected a number, .* got 'half'"),  # type: ignore[arg-type]
    # ---- numbers
    (call(hf.saliency, MODEL, X, domain=(0, 1), levels=10**9), "levels: 1000000000 values of each of 6 numbers need about .* of memory"),
    (call(hf.Stop, "5"), "stop: seconds must be a number, got '5'"),
    (call(hf.Stop, queries="many"), "stop: queries must be a number"),
    # ---- monitors
    (call(hf.Monitor, MODEL), r"build one with hf.Monitor.fit\(net, sequences, mutation\)"),
    (call(hf.Monitor, "monitor.folder"), r"hf.Monitor.load\(folder, net\)"),
    (call(hf.Monitor.fit, MODEL, X, Y), r"net: a monitor needs a hf.Network, got Sequential.*from_torch"),
    (call(hf.Monitor.fit, hf.Network.from_torch(MODEL), X, Y), r"mutation: what may replace an element, got list.*hf.monitor.Noise"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), VALUES, ids=[message[:40] for _, message in VALUES])
def test_a_value_of_another_habit_is_answered_in_words(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(hf.HoldfastError) as caught:
        wrong()
    assert re.search(message, str(caught.value)), str(caught.value)


def test_a_class_of_a_package_is_named_where_it_is_missing() -> None:
    with pytest.raises(AttributeError, match=r"It is hf.property.Linear"):
        hf.Linear  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'Nothing'$"):
        hf.Nothing  # noqa: B018


# ---- what is taken


def test_classes_as_truth_values_a_gradient_and_columns_with_numbers_for_names() -> None:
    pandas = pytest.importorskip("pandas")
    expected = hf.radius(MODEL, X, [0, 1, 1, 0], methods=["pgd"]).upper.tolist()
    for y in ([False, True, True, False], np.array([0, 1, 1, 0]) > 0, pandas.Series([0, 1, 1, 0])):
        assert hf.radius(MODEL, X, y, methods=["pgd"]).upper.tolist() == expected
    with_gradient = hf.radius(MODEL, X.clone().requires_grad_(), [0, 1, 1, 0], methods=["pgd"])
    assert with_gradient.upper.tolist() == expected
    frame = pandas.DataFrame(X.flatten(1).numpy())  # columns 0 to 5, the numbers
    flat = hf.radius(MODEL, X.flatten(1), [0, 1, 1, 0], methods=["pgd"]).upper
    assert torch.allclose(hf.radius(MODEL, frame, [0, 1, 1, 0], methods=["pgd"]).upper, flat, rtol=1e-4)
    with pytest.raises(
        hf.HoldfastError, match=r"y is a table: give the column of the classes, as in y\['label'\]"
    ):
        hf.radius(MODEL, X, pandas.DataFrame({"label": Y}))


def test_a_network_survives_copying_after_its_class_refuses_short_calls() -> None:
    import copy
    import dataclasses

    net = hf.Network.from_torch(MODEL)
    assert copy.copy(net).name == dataclasses.replace(net, name="Sequential").name == "Sequential"
