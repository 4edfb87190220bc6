"""Scalers of inputs and targets as part of the network: the same numbers as scikit-learn, proofs in the user's units."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import preprocessing
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPRegressor
from torch import Tensor, nn

import holdfast as hf
from holdfast.errors import BadInput

RAW = np.random.default_rng(0).normal([500.0, 15.0], [100.0, 5.0], (60, 2))
WINDOWS = torch.tensor(RAW[:12].reshape(2, 6, 2))
QUICK = (hf.attacks.PGD(), hf.certify.Certify())


class Forecaster(nn.Module):
    """Windows (frames, 2) -> the next (steps, 2)."""

    def __init__(self, steps: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head, self.steps = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 2 * steps), steps

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.cell(x)[0][:, -1]).reshape(-1, self.steps, 2)
        return found[:, 0] if self.steps == 1 else found


@pytest.mark.parametrize("kind", ["StandardScaler", "MinMaxScaler", "RobustScaler", "MaxAbsScaler"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_network_with_scalers_answers_as_the_users_own_pipeline(kind: str, steps: int) -> None:
    inputs, targets = (getattr(preprocessing, kind)().fit(part) for part in (RAW[:40], RAW[20:]))
    model = Forecaster(steps).eval()
    net = hf.Network.from_torch(model, input_scaler=inputs, output_scaler=targets)
    scaled = torch.tensor(inputs.transform(WINDOWS.reshape(-1, 2).numpy())).float().reshape(WINDOWS.shape)
    with torch.no_grad():
        said = model(scaled).reshape(-1, 2).numpy()
    truth = targets.inverse_transform(said).reshape(len(WINDOWS), -1)
    assert torch.allclose(net(WINDOWS).double(), torch.tensor(truth).double(), rtol=1e-4, atol=1e-3)
    numbers = hf.Network.from_torch(
        model, mean=[1.0, 2.0], std=3.0, shape=(6, 2), output_mean=7.0, output_std=[2.0, 5.0]
    )
    by_hand = model((WINDOWS.float() - torch.tensor([1.0, 2.0])) / 3) * torch.tensor([2.0, 5.0]) + 7
    assert torch.allclose(numbers(WINDOWS), by_hand.detach().flatten(1), rtol=1e-5)


def test_a_scaler_of_flattened_windows_has_a_number_for_each_of_their_numbers() -> None:
    flat = preprocessing.StandardScaler().fit(RAW.reshape(-1, 12))
    net = hf.Network.from_torch(Forecaster().eval(), input_scaler=flat, shape=(6, 2))
    scaled = torch.tensor(flat.transform(WINDOWS.reshape(2, 12).numpy())).float().reshape(WINDOWS.shape)
    assert torch.allclose(net(WINDOWS), Forecaster()(scaled).detach(), atol=1e-4)
    with pytest.raises(BadInput, match=r"12 numbers, which do not fit inputs of shape \(6, 2\).*shape="):
        hf.Network.from_torch(Forecaster().eval(), input_scaler=flat)(WINDOWS)


def test_a_radius_is_in_the_units_of_the_data_and_holds_on_a_grid() -> None:
    """A linear forecast has a closed form: 10 % of its value in the user's units over the sum of slopes in these units."""
    layer = nn.Linear(2, 1).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -0.25]]))
        layer.bias.copy_(torch.tensor([0.125]))
    inputs, targets = preprocessing.StandardScaler().fit(RAW), preprocessing.StandardScaler().fit(RAW[:, :1])
    net = hf.Network.from_torch(layer, input_scaler=inputs, output_scaler=targets)
    x = torch.tensor(RAW[:3])
    slope = targets.scale_[0] * (0.5 / inputs.scale_[0] + 0.25 / inputs.scale_[1])
    truth = (0.1 * net(x).double().abs() / slope).flatten().tolist()
    for bracket, right in zip(
        hf.radius(net, x, property=hf.Within("10%"), methods=QUICK), truth, strict=True
    ):
        assert bracket.lower.value <= right * (1 + 1e-4)
        assert bracket.lower.value == pytest.approx(right, rel=1e-3)
        assert bracket.upper.value == pytest.approx(right, rel=1e-2)
    [bracket] = hf.radius(hf.Network.from_torch(Forecaster().eval(), input_scaler=inputs, output_scaler=preprocessing.MinMaxScaler().fit(RAW)), WINDOWS[:1], property=hf.Within("10%"), methods=QUICK)  # fmt: skip
    assert 0 < bracket.lower.value <= bracket.upper.value < 1000


@pytest.mark.parametrize("transformer", [preprocessing.MinMaxScaler(), preprocessing.RobustScaler(), preprocessing.MaxAbsScaler()])  # fmt: skip
def test_a_regressor_with_a_scaled_target_is_proved(transformer: Any) -> None:
    rows, y = RAW / [100, 5], RAW @ [1.0, 4.0]
    for inner in (LinearRegression(), MLPRegressor(hidden_layer_sizes=(4,), max_iter=300, random_state=0)):
        model = TransformedTargetRegressor(inner, transformer=transformer).fit(rows, y)
        net = hf.Network.from_sklearn(model)
        assert torch.allclose(
            net(torch.tensor(rows[:5])).flatten().double(), torch.tensor(model.predict(rows[:5]))
        )
        [bracket] = hf.radius(net, rows[:1], property=hf.Within("5%"), methods=QUICK)
        assert bracket.lower.value > 0


def test_runs_of_different_scalers_are_runs_of_different_models() -> None:
    model = Forecaster().eval()
    scalers = [preprocessing.StandardScaler().fit(part) for part in (RAW[:30], RAW[30:])]
    prints = {hf.Network.from_torch(model, **{name: s}).fingerprint for name in ("input_scaler", "output_scaler") for s in scalers}  # fmt: skip
    assert len(prints) == 4
    nets = [hf.Network.from_torch(model, output_std=std) for std in (2.0, 3.0)]
    assert nets[0].identity(WINDOWS.float()) != nets[1].identity(WINDOWS.float())


def test_a_forecast_near_zero_is_compared_with_the_scale_of_the_targets() -> None:
    """One input has no others to be compared with."""
    layer = nn.Linear(2, 1).eval()
    with torch.no_grad():
        layer.weight.fill_(0.001)
        layer.bias.fill_(0.01)
    for std in (100.0, [100.0]):
        net = hf.Network.from_torch(layer, output_std=std)
        with pytest.warns(
            UserWarning, match=r"input 0 \(output 0\) is 1.2, near zero compared with the usual 100"
        ):
            hf.radius(net, torch.ones(1, 2), property=hf.Within("10%"), methods=QUICK)


def holding_nan() -> Any:
    scaler = preprocessing.StandardScaler().fit(RAW)
    scaler.mean_[0] = np.nan
    return scaler


class OwnScaler(preprocessing.StandardScaler):
    def transform(self, X: Any, copy: Any = None) -> Any:
        return X


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input_scaler": preprocessing.StandardScaler()}, "is not fitted"),
        ({"output_scaler": preprocessing.MinMaxScaler}, "is a class"),
        ({"input_scaler": preprocessing.PowerTransformer().fit(RAW)}, "PowerTransformer is no scaler.*mean= and std="),
        ({"output_scaler": OwnScaler().fit(RAW)}, "OwnScaler is no scaler.*output_mean= and output_std="),
        ({"input_scaler": preprocessing.MinMaxScaler(clip=True).fit(RAW)}, "clip=True"),
        ({"input_scaler": holding_nan()}, "input_scaler holds zero, NaN"),
        ({"input_scaler": preprocessing.StandardScaler().fit(RAW), "mean": 1.0}, "give one of them"),
        ({"output_scaler": preprocessing.StandardScaler().fit(RAW), "output_std": 1.0}, "give one of them"),
        ({"output_std": 0.0}, "must be positive"),
        ({"output_std": [1.0, -1.0]}, "must be positive"),
        ({"output_mean": float("nan")}, "NaN"),
        ({"output_mean": "five"}, "must be a number"),
        ({"output_std": [1.0, 2.0, 3.0]}, "3 numbers, and the model answers with 2"),
        ({"input_scaler": preprocessing.StandardScaler().fit(RAW[:, :1].repeat(3, 1))}, "3 numbers, which do not fit"),
    ],
)  # fmt: skip
def test_a_scaler_that_does_not_fit_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        hf.Network.from_torch(Forecaster().eval(), **options)(WINDOWS)
