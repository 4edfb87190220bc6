"""What all tests share: one torch thread, reproducible hypothesis, and the way to the shared data."""

import functools
import gc
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main
from hypothesis import HealthCheck, settings

from clocks import TestClock
from holdfast.report.plots import canvas
from shared_drawings import share_drawings
from shared_traces import OWN_TRACES, export_once
from sizes import FULL, leave_out

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
    """Leave out what only the full suite runs (tests/sizes.py), unless somebody names single tests."""
    if any("::" in argument for argument in config.args):
        return
    left_out = leave_out(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        dropped = set(left_out)
        items[:] = [item for item in items if item not in dropped]


# Objects between two collections. With the default of 700 the collector takes 8 % of the tests, since torch.export makes many.
gc.set_threshold(20_000, 20, 20)


INITIAL_STATES: dict[int, Any] = {}  # of each generator at the top of a test module, after its import


def seed_generators() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_collectstart() -> None:
    """A module that draws while it is imported draws the same numbers, whichever modules came before it."""
    seed_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """So does a fixture that several tests share; those of one test draw after `_reproducible`."""
    if fixturedef.scope != "function":
        seed_generators()


@pytest.fixture(autouse=True)
def _reproducible(request: pytest.FixtureRequest) -> None:
    """Every test draws the same numbers, whichever tests ran before it in its process."""
    seed_generators()
    for value in vars(request.module).values():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = INITIAL_STATES.setdefault(id(value), value.bit_generator.state)
        elif isinstance(value, torch.Generator):
            value.set_state(INITIAL_STATES.setdefault(id(value), value.get_state()))
        elif isinstance(value, random.Random):
            value.setstate(INITIAL_STATES.setdefault(id(value), value.getstate()))


@pytest.fixture(autouse=True)
def _shared_traces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of one structure are traced once, except at full size and where tracing is what is tested."""
    if not FULL and not {request.path.parent.name, request.path.name} & set(OWN_TRACES):
        monkeypatch.setattr("holdfast.network.network.export", export_once)


@pytest.fixture(autouse=True)
def _shared_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is built from its functions once in a process (20 ms each time), except at full size."""
    if not FULL:
        monkeypatch.setattr(typer.main, "get_command", command_of)


command_of = functools.cache(typer.main.get_command)


if not FULL:
    share_drawings()
    # Charts are arranged in a second pass (60 ms instead of 35) only where pages are tested (report/conftest.py).
    canvas.LAYOUT = None


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
