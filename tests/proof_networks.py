"""Small networks of every kind that the checker knows, and what is proved of them."""

import functools
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import Tensor, nn

from holdfast.api.prove import prove
from holdfast.api.radius import radius_problems
from holdfast.attacks import PGD
from holdfast.certificates.writing import Certificate
from holdfast.certify import Certify
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.result import Record
from holdfast.solver import solve


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], layers: int = 1, bidirectional: bool = False) -> None:
        super().__init__()
        self.cell = kind(3, 5, num_layers=layers, bidirectional=bidirectional, batch_first=True)  # type: ignore[call-arg]
        self.last = nn.Linear(10 if bidirectional else 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.cell(x)
        answer: Tensor = self.last(seen[:, -1])
        return answer


class Memory(nn.Module):
    """Reads the last states of an LSTM, and ends with a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTM(3, 4, num_layers=2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        _, (hidden, memory) = self.cell(x.transpose(0, 1))
        answer: Tensor = self.last(hidden[-1] + memory[-1])
        return answer.softmax(-1)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Conv2d(1, 2, 3, padding=1),
            nn.BatchNorm2d(2),
            nn.Conv2d(2, 2, 3, padding=1, groups=2),
        )
        self.last = nn.Linear(8, 3)
        self.norm.running_mean = torch.randn(2)
        self.norm.running_var = torch.rand(2) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)).relu()
        hidden = nn.functional.max_pool2d(hidden + torch.tanh(self.second(hidden)), 3, 2, 1)
        answer: Tensor = self.last(nn.functional.avg_pool2d(hidden, 2, 1, 0).flatten(1)[:, :8])
        return answer


class OwnCell(nn.Module):
    """A gate that somebody wrote by hand: products of a sigmoid and a tanh, and of two values."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.new, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(self.gate(x)) * torch.tanh(self.new(x))
        answer: Tensor = self.last(h * x[:, :4] - h.abs() + h.clamp(-0.1, 0.2))
        return answer


def plain(*activations: nn.Module) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(6, 6)]
    for activation in activations:
        layers += [activation, nn.Linear(6, 6)]
    return nn.Sequential(*layers, nn.Linear(6, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: plain(nn.ReLU(), nn.ReLU()), (2, 3)),
    "smooth": (lambda: plain(nn.Tanh(), nn.Sigmoid()), (6,)),
    "clipped": (lambda: plain(nn.Hardtanh(), nn.ReLU6(), nn.LeakyReLU(0.1)), (6,)),
    "cnn": (Residual, (1, 5, 5)),
    "rnn": (lambda: Recurrent(nn.RNN, bidirectional=True), (3, 3)),
    "lstm": (lambda: Recurrent(nn.LSTM), (3, 3)),
    "gru": (lambda: Recurrent(nn.GRU, layers=2), (2, 3)),
    "memory": (Memory, (2, 3)),
    "own cell": (OwnCell, (4,)),
}


METHODS = [
    PGD(restarts=2),
    Certify(),
]  # A witness and linear bounds: all that certificates of tier fast need.


@functools.cache
def network(kind: str) -> tuple[Network, Tensor, Tensor]:
    """The network, two inputs and what it says of them. Shared, so that it is traced once."""
    torch.manual_seed(sum(map(ord, kind)))
    make, shape = NETWORKS[kind]
    net = Network.from_torch(make().eval(), domain=(-2, 2), mean=0.1, std=0.9)
    x = torch.randn(2, *shape).clamp(-1.9, 1.9)
    return net, x, net(x).argmax(-1)


@functools.cache
def _proved(
    kind: str, norm: float, frames: tuple[int, ...] | None
) -> tuple[list[Problem], list[Record], list[Certificate]]:
    net, x, y = network(kind)
    options = {} if frames is None else {"frames": list(frames)}
    problems = list(radius_problems(net, x, y, norm=norm, **options))  # type: ignore[arg-type]
    records = solve(problems, METHODS)
    return problems, records, prove(problems, records, Path(mkdtemp()))


def copies(made: list[Certificate], folder: Path) -> list[Certificate]:
    """The same certificates, with their files copied into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)

    def copied(path: Path | None) -> Path | None:
        return path and Path(shutil.copy(path, folder / path.name))

    return [replace(one, file=copied(one.file), model=copied(one.model)) for one in made]


def proved(
    kind: str, folder: Path, *, norm: float = math.inf, frames: tuple[int, ...] | None = None
) -> tuple[list[Problem], list[Record], list[Certificate]]:
    """Radii by linear bounds and by one attack, with certificates in `folder`, where a test may change them."""
    problems, records, made = _proved(kind, norm, frames)
    return problems, records, copies(made, folder)
