"""Networks and data of the changed-pixel benchmarks: the digits CNN, ConvSmall on MNIST, a CNN on CIFAR-10.

A network that is not in the cache is trained with a fixed seed and stored there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.nets import CACHE
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn

Augment = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """A network with its training and test images in [0, 1]."""

    net: hf.Network
    train: Tensor
    x: Tensor
    y: Tensor
    module: nn.Module

    @property
    def accuracy(self) -> float:
        said = torch.cat([self.net(part.to(self.net.device)).argmax(1).cpu() for part in self.x.split(1000)])
        return float((said == self.y).double().mean())

    def right(self, count: int) -> tuple[Tensor, Tensor]:
        """The first correctly classified test images."""
        said = torch.cat([self.net(part.to(self.net.device)).argmax(1).cpu() for part in self.x.split(1000)])
        which = (said == self.y).nonzero().flatten()[:count]
        return self.x[which], self.y[which]


def case(name: str, folder: Path, device: str = "cpu") -> Case:
    if name == "digits":
        train, test = digits("train"), digits("test")
        return _case(digits_cnn(), train.x, test.x, test.y, device)
    if name == "mnist":
        x_train, y_train, x, y = mnist(folder)
        return _case(trained("mnist_cnn", conv_small, x_train, y_train, epochs=6), x_train, x, y, device)
    if name == "cifar":
        x_train, y_train, x, y = cifar(folder)
        return _case(
            trained("cifar_cnn", cifar_cnn, x_train, y_train, epochs=14, augment=shifted),
            x_train,
            x,
            y,
            device,
        )
    raise SystemExit(f"unknown network {name!r}; known: digits, mnist, cifar.")


def _case(module: nn.Module, train: Tensor, x: Tensor, y: Tensor, device: str) -> Case:
    return Case(hf.Network.from_torch(module, domain=(0, 1), device=device), train, x, y, module.to(device))


# ---------------------------------------------------------------- data


def mnist(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """MNIST: x_train (n, 1, 28, 28) in [0, 1], y_train, x_test, y_test."""
    with np.load(_only(shared("mnist", folder)), allow_pickle=False) as arrays:
        train, test = (
            torch.from_numpy(arrays[f"x_{part}"]).reshape(-1, 1, 28, 28).float() / 255
            for part in ("train", "test")
        )
        return (
            train,
            torch.from_numpy(arrays["y_train"]).long(),
            test,
            torch.from_numpy(arrays["y_test"]).long(),
        )


def cifar(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """CIFAR-10: x_train (n, 3, 32, 32) in [0, 1], y_train, x_test, y_test."""
    with np.load(_only(shared("cifar10", folder)), allow_pickle=False) as arrays:
        train, test = (
            torch.from_numpy(arrays[f"x_{part}"]).permute(0, 3, 1, 2).float() / 255
            for part in ("train", "test")
        )
        return (
            train,
            torch.from_numpy(arrays["y_train"]).long().flatten(),
            test,
            torch.from_numpy(arrays["y_test"]).long().flatten(),
        )


def _only(folder: Path) -> Path:
    (file,) = folder.glob("*.npz")
    return file


# ---------------------------------------------------------------- networks


def conv_small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def cifar_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def shifted(x: Tensor) -> Tensor:
    """Augment images: random mirroring, and shifts by up to three pixels."""
    x = x.flip(-1) if torch.rand(()) < 0.5 else x
    down, right = torch.randint(-3, 4, (2,)).tolist()
    return nn.functional.pad(x, (3, 3, 3, 3), mode="reflect")[
        ..., 3 + down : 3 + down + x.shape[-2], 3 + right : 3 + right + x.shape[-1]
    ]


def trained(
    name: str,
    build: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    rate: float = 3e-3,
    batch: int = 128,
    augment: Augment | None = None,
    device: str = "cpu",
) -> nn.Module:
    """The network from the cache, or trained now and stored there; one seed for weights and order."""
    file = CACHE / f"hamming_{name}.pt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(
            _train(build, x.to(device), y.to(device), epochs, rate, batch, augment).cpu().state_dict(), file
        )
    module = build()
    module.load_state_dict(torch.load(file, weights_only=True))
    return module.eval().requires_grad_(False)


def _train(
    build: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    epochs: int,
    rate: float,
    batch: int,
    augment: Augment | None,
) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build().to(x.device).train()
        optimiser = torch.optim.Adam(module.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, max_lr=rate, total_steps=epochs * -(-len(x) // batch)
        )
        for _ in range(epochs):
            for chosen in torch.randperm(len(x)).to(x.device).split(batch):
                optimiser.zero_grad(set_to_none=True)
                some = x[chosen] if augment is None else augment(x[chosen])
                cross_entropy(module(some), y[chosen]).backward()
                optimiser.step()
                schedule.step()
    return module
