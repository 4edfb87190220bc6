"""Digits networks of different depth, width and training, ranked by certified radius and by attacks.

Each network is trained here in a minute or less, one of them on adversarial examples. Radii are in the
maximum norm.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import holdfast as hf
from holdfast.datasets import digits
from holdfast.question import DataDescription, ModelDescription, Question, Request
from holdfast.report.compare import compare
from holdfast.report.compare_page import render
from holdfast.report.compare_table import as_markdown
from holdfast.report.pairing import Run, load
from holdfast.report.writing import write_document

NETWORKS = {  # Name -> hidden layers, and the radius of adversarial training (0: standard).
    "shallow-32": ((32,), 0.0),
    "shallow-256": ((256,), 0.0),
    "deep-64x4": ((64, 64, 64, 64), 0.0),
    "middle-64x2": ((64, 64), 0.0),
    "adversarial-64x2": ((64, 64), 0.1),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=100, help="inputs of the test split")
    parser.add_argument("--page", type=Path, help="write the comparison as an HTML page to this file")


def main(chosen: argparse.Namespace) -> None:
    test = digits("test")
    x, y = test.x[: chosen.limit].reshape(-1, 64), test.y[: chosen.limit]
    with tempfile.TemporaryDirectory() as folder:
        found = compare([_measured(name, x, y, Path(folder)) for name in NETWORKS], radii=[0.02, 0.05, 0.1])
    print(as_markdown(found))
    if chosen.page is not None:
        print(f"written: {write_document(render(found), chosen.page)}")


def _measured(name: str, x: Tensor, y: Tensor, folder: Path) -> Run:
    net = hf.Network.from_torch(trained(*NETWORKS[name]), domain=(0, 1))
    question = Question(
        model=ModelDescription(name, fingerprint=net.fingerprint),
        data=DataDescription("digits"),
        asked=Request("inf"),
    )
    with hf.Store.create(folder / name, question) as store:
        store.put_inputs(list(x), y.tolist(), net(x).argmax(-1).tolist(), [""] * len(x), [None] * len(x))
        hf.radius(net, x, y, store=store)
        return load(store, name)


def trained(hidden: tuple[int, ...], epsilon: float, *, epochs: int = 40) -> nn.Module:
    """A trained perceptron; with epsilon above 0, by adversarial training with seven PGD steps per batch."""
    torch.manual_seed(0)
    sizes = (64, *hidden, 10)
    layers = [part for k in range(len(sizes) - 1) for part in (nn.Linear(sizes[k], sizes[k + 1]), nn.ReLU())]
    module = nn.Sequential(*layers[:-1])
    data = digits("train")
    x, y = data.x.reshape(-1, 64), data.y
    optimiser = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=1e-2)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x)), 64):
            seen = _attacked(module, x[rows], y[rows], epsilon) if epsilon else x[rows]
            optimiser.zero_grad()
            cross_entropy(module(seen), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return module.eval()


def _attacked(module: nn.Module, x: Tensor, y: Tensor, epsilon: float, steps: int = 7) -> Tensor:
    moved = (x + epsilon * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
    for _ in range(steps):
        moved.requires_grad_(True)
        (gradient,) = torch.autograd.grad(cross_entropy(module(moved), y), moved)
        stepped = moved.detach() + 2.5 * epsilon / steps * gradient.sign()
        moved = torch.minimum(torch.maximum(stepped, x - epsilon), x + epsilon).clamp(0, 1)
    return moved.detach()
