"""The table of layers and questions in docs/proofs.md, row by row: what it says is what `prove` does."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor, nn

import holdfast as hf
from holdfast.api.methods import default_methods
from holdfast.api.perturbation import Perturbation
from holdfast.api.prove import prove
from holdfast.api.radius import radius_problems
from holdfast.attacks import PGD, CarliniWagner
from holdfast.certificates.writing import Certificate
from holdfast.certify import Certify
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Box
from holdfast_check import check

DOCUMENT = Path(__file__).parents[2] / "docs" / "proofs.md"


def rows() -> dict[str, tuple[str, str]]:
    """The cells of the table: of `radius` and `worst`, and of `verify` and `reach`, by the layers."""
    text = DOCUMENT.read_text(encoding="utf-8").split(
        "| layers | `radius`, `worst` | `verify`, `reach` |\n|---|---|---|\n"
    )[1]
    cells = [re.split(r" \| ", line.strip("| \n")) for line in text.split("\n\n")[0].splitlines()]
    assert all(len(line) == 3 for line in cells), cells
    return {name: (radius, reach) for name, radius, reach in cells}


class Last(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell, self.last = kind(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(self.cell(x)[0][:, -1])
        return answer


class Bag(nn.Module):
    """Words by the mean of their vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(8, 3), nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.last(self.table(tokens).mean(1).tanh())
        return answer


def between(*layers: nn.Module) -> Callable[[], tuple[nn.Module, tuple[int, ...]]]:
    return lambda: (nn.Sequential(nn.Linear(4, 5), *layers, nn.Linear(5, 2)), (4,))


def image() -> tuple[nn.Module, tuple[int, ...]]:
    layers = nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 2)
    return nn.Sequential(*layers), (1, 3, 3)


# The first words of a row, and a network with one or more of its layers.
NETWORKS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "fully connected": image,
    "ReLU, leaky": between(nn.ReLU(), nn.Linear(5, 5), nn.LeakyReLU(), nn.Hardtanh()),
    "tanh, sigmoid": between(nn.Tanh(), nn.Linear(5, 5), nn.Sigmoid()),
    "SiLU": between(nn.SiLU(), nn.Linear(5, 5), nn.GELU("tanh")),
    "ELU": between(nn.ELU(), nn.Linear(5, 5), nn.Softplus(2)),
    "products": between(nn.Softmax(-1)),
    "RNN": lambda: (Last(nn.GRU), (2, 2)),
    "Mish": between(nn.Mish()),
}  # fmt: skip


def certificates(
    problems: list[Problem], folder: Path, what: Any = "norms", **more: Any
) -> list[Certificate]:
    methods = [
        method
        for method in default_methods(problems[0].network, problems[0].goal, "fast", what=what, **more)
        if what != "norms"
        or not isinstance(method, PGD | CarliniWagner)  # Their witnesses are tested elsewhere.
    ]
    records = hf.solve(problems, methods)
    made = prove(problems, records, folder)
    assert made
    for one in made:
        if one.file is not None:
            assert one.model is not None
            assert check(one.model, one.file).accepted
    return made


def agrees(cell: str, made: list[Certificate], kind: str = "proof") -> None:
    """Whether these certificates, or reasons, are what the cell says."""
    word = re.match(r"\w+", cell)
    assert word is not None
    own = [one for one in made if one.kind == kind]
    if word.group() == "no":
        assert own
        assert all(one.file is None and len(one.reason) > 20 for one in made), made
        return
    assert word.group() in ("yes", "less", "a", "the"), cell
    assert own
    for one in own:
        assert one.file is not None, one.reason
        size = abs(one.known) if np.isfinite(one.known) else 0.0
        assert one.value >= one.known - 0.011 * size or one.known == np.inf or "less" in cell, one


@pytest.mark.parametrize("name", NETWORKS)
def test_layers(name: str, tmp_path: Path) -> None:
    [(radius, reach)] = [cells for row, cells in rows().items() if row.startswith(name)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, shape = NETWORKS[name]()
        module = module.double().eval().requires_grad_(False)
        x = torch.rand(1, *shape, dtype=torch.float64)
    net = hf.Network.from_torch(module, shape=shape)
    agrees(radius, certificates(radius_problems(net, x, module(x).argmax(1)), tmp_path / "radius"))
    for goal in ("worst", "largest"):
        problem = Problem(net, Box(x, x - 0.02, x + 0.02), Linear.of([1.0, -0.5], batch=1), goal)
        made = prove([problem], hf.solve([problem], [Certify()]), tmp_path / goal)
        agrees(reach, made)


def onnx_file(folder: Path) -> Path:
    weight = numpy_helper.from_array(np.array([[1.0, -1.0], [0.5, 2.0]], dtype=np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_an_onnx_file_is_checked_itself(tmp_path: Path) -> None:
    [(radius, _)] = [cells for row, cells in rows().items() if row.startswith("layers made of an ONNX file")]
    file = onnx_file(tmp_path)
    problems = radius_problems(hf.Network.from_onnx(file), torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    made = prove(problems, hf.solve(problems, [Certify()]), tmp_path / "proofs", file=file)
    agrees(radius, made)
    assert {one.model for one in made} == {file}


def regions(folder: Path) -> dict[str, list[Certificate]]:
    """Certificates about the rows that name a region, a property or an arithmetic, by their first words."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        dense = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval().requires_grad_(False)
        frames = (
            nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
            .eval()
            .requires_grad_(False)
        )
        words = Bag().eval().requires_grad_(False)
        x, series = torch.rand(2, 4), torch.rand(2, 3, 2)
    net = hf.Network.from_torch(dense, domain=(0, 1))
    y = dense(x).argmax(1)
    tokens = torch.tensor([[0, 1, 2], [3, 4, 5]])
    text = hf.Network.from_torch(words, tokens=True)
    moved = hf.Network.from_torch(frames, shape=(3, 2))
    forest = RandomForestClassifier(3, max_depth=3, random_state=0)
    forest.fit(x.repeat(10, 1).numpy() + np.tile([[0.0], [1.0]], (10, 1)), np.arange(20) % 2)
    trees = hf.Network.from_sklearn(forest)
    row = x.double()
    box = Problem(net, Box(row, row - 0.1, row + 0.1), Linear.of([1.0, 0.0], batch=2), "worst")
    hardened = hf.harden(net, list(torch.rand(100, 4)), torch.arange(100) % 2, radius=0.05, epochs=2).network
    return {
        "hardened networks": certificates(radius_problems(hardened, x, hardened(x).argmax(1)), folder / "hardened"),
        "words": certificates(
            radius_problems(text, tokens, words(tokens).argmax(1), Perturbation(substitutes={i: [i ^ 1] for i in range(8)})),
            folder / "words", "words",
        ),
        "norm 0": certificates(radius_problems(net, x, y, norm=0), folder / "norm0", "units"),
        "edited texts": certificates(
            radius_problems(moved, series, frames(series).argmax(1), drift=True), folder / "drift", "offsets"
        ),
        "`Within`": certificates(radius_problems(net, x, property=hf.Within(0.5)), folder / "within"),
        "trees and ensembles": certificates(radius_problems(trees, row, trees(row).argmax(1)), folder / "trees"),
        "`reach`": prove([box], hf.solve([box], [Certify(), PGD()]), folder / "reach"),
        "executed arithmetic": certificates(radius_problems(net, x, y), folder / "run", arithmetic="executed"),
    }  # fmt: skip


def test_regions_properties_and_arithmetic(tmp_path: Path) -> None:
    table = rows()
    for name, made in regions(tmp_path).items():
        [(radius, reach)] = [cells for row, cells in table.items() if row.startswith(name)]
        agrees(reach if name == "`reach`" else radius, made)
        if name == "`reach`":
            agrees(reach, made, "witness")


def test_every_row_is_tried() -> None:
    """A new row needs an example here; only a row about proofs, not about a question, has none."""
    tried = [
        *NETWORKS,
        "layers made of an ONNX file",
        "words",
        "norm 0",
        "edited texts",
        "`Within`",
        "trees and ensembles",
    ]
    tried += ["`reach`", "executed arithmetic", "hardened networks"]
    open_ = [row for row in rows() if not any(row.startswith(name) for name in tried)]
    assert open_ == ["trees of halves and of signs together"]
