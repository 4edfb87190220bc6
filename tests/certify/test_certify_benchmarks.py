"""POPQORN's Appendix B.1 as a benchmark: every kind of slope bounds the gates' products, and nothing stays changed.
Long recurrent networks as a benchmark: it certifies the network of the file, and no point of a ball breaks it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.certify import long, relaxations
from benchmarks.certify.measure import backward_passes_only
from benchmarks.certify.relaxations import CLOSED_FORM, PRODUCTS, RELAXATIONS

import holdfast as hf
from holdfast.bounding import first_bounds
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.bounding.relax.base import Point, planes


def boxes(count: int = 40) -> tuple[Point, Point]:
    generator = torch.Generator().manual_seed(0)
    ends = 6 * torch.rand(2, 2, count, generator=generator, dtype=torch.float64) - 3
    lower, upper = ends.amin(0), ends.amax(0)
    upper[:, 0] = lower[:, 0]  # One box is a point.
    return tuple(lower), tuple(upper)


@pytest.mark.parametrize("kind", PRODUCTS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("name", list(RELAXATIONS))
def test_bounds_hold_at_many_points(kind: type, name: str) -> None:
    lower, upper = boxes()
    with relaxations.products_bounded_by(RELAXATIONS[name]):
        found = planes(kind(), lower, upper)
    share = torch.rand(2, 500, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    v, z = (low + s * (high - low) for low, high, s in zip(lower, upper, share, strict=True))
    value = kind().function(v, z)
    low = found.lower[0] * v + found.lower[1] * z + found.lower_offset
    high = found.upper[0] * v + found.upper[1] * z + found.upper_offset
    assert bool((low <= value + 1e-12).all())
    assert bool((value <= high + 1e-12).all())


@pytest.mark.parametrize("kind", PRODUCTS, ids=lambda k: k.__name__)
def test_the_descent_is_never_further_away_than_its_start(kind: type) -> None:
    """Its objective is the height of the plane over the middle of the box."""
    lower, upper = boxes()
    middle = [low / 2 + high / 2 for low, high in zip(lower, upper, strict=True)]
    heights = {}
    for name in ("planes", "planes by descent"):
        with relaxations.products_bounded_by(RELAXATIONS[name]):
            found = planes(kind(), lower, upper)
        over = sum(s * m for s, m in zip(found.upper, middle, strict=True)) + found.upper_offset
        under = sum(s * m for s, m in zip(found.lower, middle, strict=True)) + found.lower_offset
        heights[name] = over - under
    gain = heights["planes"] - heights["planes by descent"]
    assert bool((gain >= -1e-9).all())
    assert float(gain.max()) > 1e-3


def test_lines_have_one_slope_and_constants_none() -> None:
    lower, upper = boxes()
    for kind in PRODUCTS:
        (a, b), _ = RELAXATIONS["lines"](kind(), lower, upper)
        assert bool(((a == 0) | (b == 0)).all())
        assert all(bool((s == 0).all()) for s in RELAXATIONS["constants"](kind(), lower, upper)[0])


def test_the_own_slopes_are_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), relaxations.products_bounded_by(relaxations.constants):
        raise ZeroDivisionError
    assert all(kind.slopes is CLOSED_FORM[kind] for kind in PRODUCTS)


def test_backward_passes_alone_leave_affine_forms_out_and_come_back() -> None:
    lstm = torch.nn.LSTM(2, 3, batch_first=True)

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = lstm, torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.cell(x)[0][:, -1])
            return out

    net = hf.Network.from_torch(Last().eval())
    problem = hf.Problem(
        net, hf.Ball(torch.rand(1, 4, 2), 0.1, 2.0), hf.Robustness(torch.tensor([0])), "worst"
    )
    graph = graph_of(problem)
    assert first_bounds.plan_forms(graph) is not None
    with backward_passes_only():
        assert first_bounds.plan_forms(graph) is None
    assert first_bounds.plan_forms(graph) is not None


def test_the_stack_has_the_weights_of_the_file(tmp_path: Path) -> None:
    digits = long.Digits.read(recurrent_digits(tmp_path))
    model, plain = long.LstmStack(digits.weights, 3).eval(), digits.weights
    x = digits.x[:1]
    out = x[0]
    for k in (0, 1, 1):
        h = c = torch.zeros(2)
        steps = []
        for frame in out:
            i, f, g, o = (plain[f"W{k}"] @ frame + plain[f"R{k}"] @ h + plain[f"b{k}"]).chunk(4)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            steps.append(h)
        out = torch.stack(steps)
    torch.testing.assert_close(model(x)[0], plain["Wfc"] @ out[-1] + plain["bfc"])


def test_long_networks_are_measured_at_a_small_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recurrent_digits(tmp_path)
    words = ["--images", "1", "--rounds", "4", "--deep", "3", "--frames", "2", "3", "4", "--layers", "1", "2"]
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    long.arguments(parser)
    long.main(parser.parse_args(["--data", str(tmp_path), "--out", str(tmp_path), *words]))
    radii, cost = (json.loads((tmp_path / f"long-{name}.json").read_text()) for name in ("radii", "cost"))
    assert [(row["layers"], row["frames"]) for row in radii] == [(2, 4), (3, 1)]
    digits = long.Digits.read(file)
    for row in radii:
        radius = row["smallest certified radius"]
        assert radius > 0
        model = long.LstmStack(digits.weights, row["layers"]).eval()
        x = digits.x[:1].repeat(200, 1, 1)
        at = row["at frame"]
        x[:, at] += (
            radius * (2 * torch.rand(x[:, at].shape, generator=torch.Generator().manual_seed(0)) - 1).sign()
        )
        assert bool((model(x).argmax(1) == model(digits.x[:1]).argmax(1)).all())
    assert [row["size"] for row in cost] == [2, 3, 4, 1, 2]
    assert all(row["CPU-s"] > 0 for row in cost)
    said = capsys.readouterr().out
    assert "Fitted exponent in the number of frames" in said
    assert "number of layers" not in said  # two sizes are too few


def recurrent_digits(folder: Path) -> Path:
    """A file as cert-rnn-py's, with random weights: two layers of two, 4 frames of 3."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=generator).numpy()

    file = folder / "recurrent" / "certrnn_lstm_2x32.npz"
    file.parent.mkdir()
    weights = {f"{n}{k}": random(8, w) for k, width in ((0, 3), (1, 2)) for n, w in (("W", width), ("R", 2))}
    bias = {f"b{k}": random(8) for k in range(2)}
    head = {"Wfc": random(3, 2), "bfc": random(3)}
    np.savez(file, **weights, **bias, **head, x=random(1, 4, 3), y=np.zeros(1, dtype=np.int64))
    return file
