"""Stores to report on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import MODEL, question

import holdfast as hf
from holdfast.report.plots import canvas


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Callable[..., hf.Store]]:
    stores: list[hf.Store] = []

    def create(**said: Any) -> hf.Store:
        """Each of a network of its own, unless the question names one."""
        model = {**MODEL, "fingerprint": f"{MODEL['fingerprint']}{len(stores) or ''}"}
        stores.append(hf.Store.create(tmp_path / f"run{len(stores)}", question(**{"model": model, **said})))
        return stores[-1]

    yield create
    for store in stores:
        store.close()


@pytest.fixture(scope="package", autouse=True)
def arranged_charts() -> Iterator[None]:
    """Charts are arranged as users see them; other folders save the time (tests/conftest.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas, "LAYOUT", "constrained")
        yield
