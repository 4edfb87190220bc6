"""What all tests share: one torch thread, reproducible hypothesis, and the way to the shared data."""

import gc
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from clocks import TestClock
from sizes import FULL

torch.set_num_threads(1)
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a shell ignores it for what it runs in the background

settings.register_profile(
    "here",
    deadline=None,
    max_examples=10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the full suite runs (tests/sizes.py)."""
    left_out = [item for item in items if not FULL and item.get_closest_marker("full_only")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full_only")]


# Objects between two collections. With the default of 700 the collector takes 8 % of the tests, since torch.export makes many.
gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> TestClock:
    """A clock that only the test moves: by `advance`, or by time.sleep, which does not wait."""
    return _installed(TestClock(lambda: 0.0), monkeypatch)


@pytest.fixture
def cpu_clock(monkeypatch: pytest.MonkeyPatch) -> TestClock:
    """A clock of the seconds that this process computes; what other processes do meanwhile takes none of its time."""
    return _installed(TestClock(time.process_time), monkeypatch)


def _installed(clock: TestClock, monkeypatch: pytest.MonkeyPatch) -> TestClock:
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(time, "sleep", clock.advance)
    return clock


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of data that lies beside the repository; its tests are skipped where it is not there."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the shared data are not here: {folder} does not exist")
    return folder
