"""`holdfast risk`: what it writes can be looked at and checked, and what a user gets wrong is told before any work."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_workshop import Ask

BASE = ("risk", "-m", "cli_own_code:pooled", "-d", "images.npz", "--domain", "0,1", "-o", "out")


@pytest.fixture
def images(ask: Ask, monkeypatch: pytest.MonkeyPatch, workshop: Path) -> None:
    monkeypatch.syspath_prepend(str(workshop))
    import cli_own_code

    x = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0)) * 0.4
    np.savez("images.npz", x=x.numpy(), y=cli_own_code.pooled()(x).argmax(-1).numpy())


def test_what_is_written_holds_up(ask: Ask, images: None) -> None:
    import cli_own_code

    said = ask(*BASE, "--property", "confidence", "--radius", "0.3", "--queries", "60", "--pictures", "1")
    assert said.code == 0, said.err
    assert "worst score" in said.out
    with np.load("out/risk.npz", allow_pickle=False) as found:
        x, y, example = (torch.from_numpy(found[name]) for name in ("x", "y", "example"))
    told = json.loads(Path("out/risk.json").read_text())
    assert len(told) == 3
    for row, one in enumerate(told):
        assert one["metric"]["upper_kind"] == "proved"
        assert one["metric"]["lower"] <= one["metric"]["upper"]
        assert one["worst"]["lower"] <= one["worst"]["upper"]
        if one["found"]:
            p = cli_own_code.pooled()(example[row][None]).softmax(-1)[0]
            rest = p.clone()
            rest[y[row]] = 0
            assert float(p[y[row]] - rest.max()) <= 1e-6
            assert float((example[row] - x[row]).abs().max()) <= one["radius"]["upper"] * (1 + 1e-6)
    assert Path("out/risk-0000.png").stat().st_size > 1000
    assert not Path("out/risk-0001.png").exists()


def test_your_own_score(ask: Ask, images: None, workshop: Path) -> None:
    (workshop / "mine.py").write_text("def score(z):\n    return z[:, 0] - z[:, 1] + 5\n")
    said = ask(*BASE, "--property", "mine:score", "--radius", "0.05", "--queries", "30", "--pictures", "0")
    assert said.code == 0, said.err
    assert json.loads(Path("out/risk.json").read_text())[0]["worst"]["lower"] is not None


def test_a_square_of_the_image(ask: Ask, images: None) -> None:
    said = ask(*BASE, "--patch", "0,1,4", "--queries", "30", "--pictures", "0")
    assert said.code == 0, said.err
    with np.load("out/risk.npz", allow_pickle=False) as found:
        moved = (found["worst"] != found["x"]).any((0, 1))
    assert moved.any()
    moved[0:4, 1:5] = False
    assert not moved.any()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--property", "robust", "--radius", "0.1"), "property 'robust' is unknown"),
        (("--property", "robustness"), "Give a radius"),
        (("--radius", "0.1", "--norm", "0"), "holdfast radius --norm 0"),
        (("--property", "targeted", "--radius", "0.1"), "name it"),
        (("--property", "reach", "--radius", "0.1", "--target", "runner-up"), "name a class"),
        (("--patch", "1,2"), "top,left,size"),
        (("--property", "nowhere:score", "--radius", "0.1"), "cannot import nowhere"),
        (("--radius", "0.1", "--queries", "5"), "at least"),
    ],
)
def test_bad_input_is_told_at_once(ask: Ask, images: None, options: tuple[str, ...], says: str) -> None:
    said = ask(*BASE, *options)
    assert said.code == 2
    assert says in " ".join(said.err.split())
    assert not Path("out").exists()
