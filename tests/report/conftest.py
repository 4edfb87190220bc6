"""Stores to report on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import QUESTION

import holdfast as hf


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Callable[..., hf.Store]]:
    stores: list[hf.Store] = []

    def create(**question: Any) -> hf.Store:
        stores.append(hf.Store.create(tmp_path / f"run{len(stores)}", {**QUESTION, **question}))
        return stores[-1]

    yield create
    for store in stores:
        store.close()
