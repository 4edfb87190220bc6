"""Stores to report on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from report_runs import QUESTION

import holdfast as hf


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Callable[..., hf.Store]]:
    stores: list[hf.Store] = []

    def create(**question: Any) -> hf.Store:
        stores.append(hf.Store.create(tmp_path / f"run{len(stores)}", {**QUESTION, **question}))
        return stores[-1]

    yield create
    for store in stores:
        store.close()
