"""Fewer simulations than users get: they propose violations, and the tests of proofs do not need them."""

import pytest

from holdfast.reachability import search


@pytest.fixture(autouse=True)
def _few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SAMPLES", 96)
    monkeypatch.setattr(search, "REFINEMENTS", 1)
