"""Intervals for training: they hold what random and attacked points of the box do, up to float32, for whatever users have."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.attacks.descent import descend
from holdfast.errors import UnsupportedLayer
from holdfast.hardening.initialisation import begin_afresh
from holdfast.hardening.intervals import Traced
from holdfast.hardening.training import prepare_training
from holdfast.problem import Problem
from holdfast.property import Linear, Robustness
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball

SLACK = 2e-4


class Sequenced(nn.Module):
    """A recurrent layer and what reads its last output."""

    def __init__(self, kind: type[nn.RNNBase], features: int = 3, hidden: int = 5, **how: object) -> None:
        super().__init__()
        self.recurrent = kind(features, hidden, batch_first=True, **how)  # type: ignore[arg-type]
        self.head = nn.Linear(hidden * (2 if how.get("bidirectional") else 1), 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(x)[0][:, -1])
        return logits


class States(nn.Module):
    """Reads the last states instead of the outputs, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(3, 5, num_layers=2)

    def forward(self, x: Tensor) -> Tensor:
        _, (hidden, memory) = self.recurrent(x.transpose(0, 1))
        return torch.cat([hidden[-1], memory[0]], 1)


class ByHand(nn.Module):
    """A cell that somebody wrote with linear layers and gates."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(7, 4), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 4)
        for frame in x.unbind(1):
            both = torch.cat([frame, state], 1)
            gate = torch.sigmoid(self.gate(both))
            state = gate * torch.tanh(self.value(both)) + (1 - gate) * state
        return state


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 9, 4)
        with torch.no_grad():
            for values in (self.norm.running_mean, self.norm.bias):
                values.normal_()  # type: ignore[operator]
            for values in (self.norm.running_var, self.norm.weight):
                values.uniform_(0.5, 2)  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.norm(self.one(x)))
        pooled = nn.functional.max_pool2d(first + self.two(first), 2)
        logits: Tensor = self.head(pooled.flatten(1))
        return logits


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(3, 4) for _ in range(3))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x) @ self.key(x).transpose(1, 2)).softmax(-1)
        return self.norm(weights @ self.value(x)).mean(1)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 9),
        nn.GELU(),
        nn.Linear(9, 9),
        nn.LeakyReLU(),
        nn.Linear(9, 9),
        nn.SiLU(),
        nn.Linear(9, 4),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (_mlp, (6,)),
    "ends in softmax": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.Softmax(-1)),
        (6,),
    ),
    "no linear end": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.ELU()), (6,)),
    "rnn": (lambda: Sequenced(nn.RNN), (6, 3)),
    "rnn relu": (lambda: Sequenced(nn.RNN, nonlinearity="relu"), (6, 3)),
    "lstm": (lambda: Sequenced(nn.LSTM, num_layers=2), (6, 3)),
    "lstm both ways": (lambda: Sequenced(nn.LSTM, num_layers=2, bidirectional=True), (6, 3)),
    "lstm states": (States, (6, 3)),
    "gru": (lambda: Sequenced(nn.GRU, num_layers=2), (6, 3)),
    "gru both ways": (lambda: Sequenced(nn.GRU, bidirectional=True, bias=False), (6, 3)),
    "by hand": (ByHand, (6, 3)),
    "residual": (Residual, (2, 6, 6)),
    "attention": (Attention, (5, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_point_of_the_box_leaves_the_intervals(name: str) -> None:
    torch.manual_seed(1)
    make, shape = MODELS[name]
    net = hf.Network.from_torch(make().eval())
    x, reach, batch = torch.randn(4, *shape), 0.1, 4
    live = prepare_training(net, (), words=False)
    traced = Traced(live.net, x, live.module)
    still = traced.logits(x, x)
    label = still[0].argmax(-1).detach()
    low, high = (end.detach() for end in traced.logits(x - reach, x + reach))
    least = traced.margins(x - reach, x + reach, label).detach()
    assert (still[1] - still[0]).abs().max() < SLACK  # a point stays a point
    region = Ball(x, torch.full((batch,), reach, dtype=torch.float64))
    points = [region.sample(200, RandomStreams.of(range(batch), 0))]
    for output in range(4):  # attacked: each output downwards and upwards, and the class
        for sign in (1.0, -1.0):
            row = torch.zeros(batch, 1, low.shape[1], dtype=torch.float64)
            row[..., output] = sign
            problem = Problem(net, region, Linear(row, torch.zeros(batch, 1, dtype=torch.float64)), "worst")
            points.append(descend(problem, x[None], 10)[0])
    points.append(descend(Problem(net, region, Robustness(label), "worst"), x[None], 10)[0])
    every = torch.cat(points)
    answers = net(every.flatten(0, 1)).reshape(len(every), batch, -1)
    if name == "ends in softmax":
        answers = (
            answers.log()
        )  # which the intervals leave out: logits, up to a number that is the same for all
    else:
        assert (answers >= low - SLACK).all()
        assert (answers <= high + SLACK).all()
    own = answers.gather(-1, label.expand(len(every), -1)[..., None])
    assert (own - answers >= least - SLACK).all()
    assert (high - low).mean() < 50  # they say something, too


def test_differences_are_bounded_as_rows_of_their_own() -> None:
    """The last layer's bias and what both outputs share cancels."""
    torch.manual_seed(0)
    net = hf.Network.from_torch(_mlp().eval())
    live = prepare_training(net, (), words=False)
    x = torch.randn(8, 6)
    traced = Traced(live.net, x, live.module)
    label = torch.zeros(8, dtype=torch.int64)
    low, high = traced.logits(x - 0.2, x + 0.2)
    apart = (low[:, :1] - high).detach()
    together = traced.margins(x - 0.2, x + 0.2, label).detach()
    assert (together[:, 1:] >= apart[:, 1:] - 1e-5).all()
    assert (together[:, 1:] > apart[:, 1:] + 1e-3).any()
    assert (together[:, 0].abs() < 1e-6).all()


def test_weights_get_gradients_and_are_read_as_they_are_now() -> None:
    net = hf.Network.from_torch(Sequenced(nn.GRU).eval())
    live = prepare_training(net, (), words=False)
    x = torch.randn(3, 6, 3)
    traced = Traced(live.net, x, live.module)
    traced.margins(x - 0.1, x + 0.1, torch.tensor([0, 1, 2])).sum().backward()  # type: ignore[no-untyped-call]
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0
        for n, p in live.module.named_parameters()
        if n != "model.head.bias"
    )
    with torch.no_grad():
        live.module.model.head.bias += 1  # type: ignore[union-attr, operator]
    low, _ = traced.logits(x, x)
    assert torch.allclose(low, net(x) + 1, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_afresh_intervals_stay_narrow_over_many_frames(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    net = hf.Network.from_torch(Sequenced(kind, 28, 32).eval())
    x = torch.randn(4, 20, 28)
    widths = []
    for fresh in (False, True):
        live = prepare_training(net, (), words=False)
        if fresh:
            begin_afresh(live.module, 0)
        low, high = Traced(live.net, x, live.module).logits(x - 0.1, x + 0.1)
        widths.append(float(((high - low) / live.module.model.head.weight.abs().sum(1)).mean().detach()))  # type: ignore[union-attr, operator]
    assert widths[1] < 0.6 * widths[0]


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.odd = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(self.odd(x))


def test_a_layer_without_intervals_is_named() -> None:
    live = prepare_training(hf.Network.from_torch(Strange().eval()), (), words=False)
    x = torch.randn(2, 3)
    with pytest.raises(UnsupportedLayer, match="bessel_j0"):
        Traced(live.net, x, live.module).check(x)
