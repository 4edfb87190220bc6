"""Attacks of other libraries: they propose points, and only replayed counterexamples count."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.attacks import External, art_attack, foolbox_attack
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn
from holdfast.errors import BadInput

DATA = digits("test")
NET = hf.Network.from_torch(digits_cnn(), domain=(0, 1))
X, Y = DATA.x[:2], DATA.y[:2]


def sign_step(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """The fast gradient sign method."""
    moving = x.clone().requires_grad_(True)
    nn.functional.cross_entropy(model(moving), y).backward()
    assert moving.grad is not None
    return x + epsilon * moving.grad.sign()


class FoolboxSignStep:
    """An attack with the interface of foolbox 3: called with a model, inputs, a criterion and one epsilon."""

    def __call__(
        self, model: Any, x: Tensor, criterion: Any, *, epsilons: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        raw = sign_step(model.module, x, criterion.labels, epsilons)
        clipped = raw.clamp(*model.bounds)
        return raw, clipped, model.module(clipped).argmax(1) != criterion.labels


class ArtSignStep:
    """An attack with the interface of ART: its own estimator, set_params, generate with arrays."""

    attack_params = ("eps", "eps_step")

    def __init__(self, model: nn.Module) -> None:
        self.model, self.eps, self.given = model, 0.3, list[float]()

    def set_params(self, *, eps: float, eps_step: float) -> None:
        self.eps = eps
        self.given.append(eps)

    def generate(self, x: Any, y: Any) -> Any:
        return sign_step(self.model, torch.from_numpy(x), torch.from_numpy(y), self.eps).detach().numpy()


@pytest.fixture
def foolbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package, which is not installed for the tests; docs/gate.md says how the real one was tried."""
    made = SimpleNamespace(
        PyTorchModel=lambda module, bounds, device: SimpleNamespace(module=module, bounds=bounds),
        criteria=SimpleNamespace(Misclassification=lambda labels: SimpleNamespace(labels=labels)),
    )
    monkeypatch.setitem(sys.modules, "foolbox", made)


@pytest.mark.usefixtures("foolbox")
def test_attacks_of_other_libraries_give_replayed_counterexamples() -> None:
    art = ArtSignStep(digits_cnn())
    methods = [
        External(sign_step),
        foolbox_attack(FoolboxSignStep(), bounds=(0, 1)),
        art_attack(art, epsilons=(0.1, 0.4)),
    ]
    for method in methods:
        for label, x, found in zip(Y, X, hf.radius(NET, X, Y, methods=[method]), strict=True):
            witness = found.counterexample
            assert found.lower.value == 0
            assert witness is not None
            assert digits_cnn()(witness[None].float()).argmax() != label
            assert found.upper.value == pytest.approx(float((witness - x).abs().max()), rel=1e-6)
            assert found.upper.evidence.method == "External"
    assert art.given == [0.1, 0.4]


def test_points_that_break_nothing_or_leave_the_domain_are_no_counterexamples() -> None:
    """Whatever an attack returns, the bracket stays true."""
    [reference] = hf.radius(NET, X[:1], Y[:1])
    for attack in (
        lambda model, x, y, epsilon: x,
        lambda model, x, y, epsilon: x * torch.nan,
        lambda model, x, y, epsilon: torch.full_like(x, 1e30),
        lambda model, x, y, epsilon: -x.numpy(),
    ):
        [found] = hf.radius(NET, X[:1], Y[:1], methods=[External(attack)])
        assert found.upper.value >= reference.lower.value
        if found.upper.evidence.witness is not None:
            assert 0 <= float(found.counterexample.min()) <= float(found.counterexample.max()) <= 1


def test_calls_that_cannot_work_are_refused() -> None:
    with pytest.raises(BadInput, match="must be a function"):
        External(3)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="positive"):
        External(sign_step, (0.1, -1.0))
    with pytest.raises(BadInput, match="generate"):
        art_attack(object())
    with pytest.raises(BadInput, match="returned points of shape"):
        hf.radius(NET, X[:1], Y[:1], methods=[External(lambda model, x, y, epsilon: np.zeros(3))])
    with pytest.raises(BadInput, match="not installed"):
        hf.radius(NET, X[:1], Y[:1], methods=[foolbox_attack(FoolboxSignStep(), bounds=(0, 1))])
