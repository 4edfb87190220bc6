"""Deadlines hold where they are set, and an inner one never outlives an outer one."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast import time_limit
from holdfast.cli import app
from holdfast.store import Store


def test_a_deadline_holds_inside_and_ends_with_its_block() -> None:
    assert time_limit.deadline() == math.inf
    assert not time_limit.has_expired()
    soon = time.monotonic() + 100
    with time_limit.within(soon):
        assert time_limit.deadline() == soon
        with time_limit.within(soon + 1):
            assert time_limit.deadline() == soon
        with time_limit.within(soon - 200):
            assert time_limit.has_expired()
        assert not time_limit.has_expired()
    with pytest.raises(ZeroDivisionError), time_limit.within(0.0):
        raise ZeroDivisionError
    assert time_limit.deadline() == math.inf


LONG_AGO = -1e9  # of the monotonic clock


def at_rest() -> bool:
    """No signal is on its way, nobody listens to one, and no deadline is in force."""
    handled = signal.getsignal(signal.SIGALRM) not in (signal.SIG_DFL, signal.SIG_IGN)
    return (
        signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        and not handled
        and time_limit.deadline() == math.inf
    )


def test_work_that_looks_at_no_clock_is_interrupted() -> None:
    def hangs() -> str:
        with time_limit.within(LONG_AGO - 1):
            time.sleep(600)
        return "done"

    with time_limit.within(LONG_AGO):
        assert time_limit.interrupt_late(hangs, "cut") == "cut"
        assert time_limit.deadline() == LONG_AGO
    assert at_rest()
    assert time_limit.interrupt_late(lambda: "done", "cut") == "done"
    with time_limit.within(time.monotonic() + 600):
        assert time_limit.interrupt_late(lambda: "done", "cut") == "done"
        with pytest.raises(ZeroDivisionError):
            time_limit.interrupt_late(lambda: 1 // 0, 0)
    assert at_rest()


def test_only_whose_time_is_up_goes_on_after_an_interruption() -> None:
    """An inner one must not take the signal of the outer one for its own, and go on with half a result."""
    went_on: list[str] = []

    def inner() -> str:
        time_limit.interrupt_late(lambda: time.sleep(600), None)
        went_on.append("inner")
        return "done"

    with time_limit.within(LONG_AGO):
        assert (
            time_limit.interrupt_late(lambda: time_limit.in_time(inner, "inner cut"), "outer cut")
            == "outer cut"
        )
    assert went_on == []
    with time_limit.within(time.monotonic() + 600):

        def outer() -> str:
            with time_limit.within(LONG_AGO):
                assert time_limit.interrupt_late(lambda: time.sleep(600), None) is None
            return "outer goes on"

        assert time_limit.interrupt_late(outer, "outer cut") == "outer goes on"
    assert at_rest()


def test_nothing_is_interrupted_while_it_leaves_a_context() -> None:
    left: list[str] = []

    class Held:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            for _ in range(3):
                time.sleep(time_limit.SIGNAL_INTERVAL)  # a signal comes in each
            left.append("whole")

    def work() -> None:
        with Held():
            pass
        time.sleep(600)

    with time_limit.within(LONG_AGO):
        time_limit.interrupt_late(work, None)
    assert left == ["whole"]


def test_code_that_catches_everything_is_interrupted_again() -> None:
    caught: list[str] = []

    def stubborn() -> None:
        try:
            time.sleep(600)
        except BaseException:
            caught.append("once")
        time.sleep(600)

    with time_limit.within(LONG_AGO):
        time_limit.interrupt_late(stubborn, None)
    assert caught == ["once"]


JUMPS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long off(void) { static int asked; return ++asked % 3 == 0 ? 86400 : asked % 3 == 1 ? -86400 : 0; }
int clock_gettime(clockid_t which, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int said = real(which, t);
    if (which == CLOCK_REALTIME) t->tv_sec += off();
    return said;
}
int gettimeofday(struct timeval *t, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec; t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""


def _asked(out: Path) -> list[str]:
    networks = "holdfast.datasets.digits_networks:digits_cnn"
    return [
        "radius", "-m", networks, "-d", "holdfast.datasets.digits:images", "--domain", "0,1", "--limit", "2", "--batch", "1",
        "--methods", "pgd,certify",
        "--seconds", "600", "--out", str(out),
    ]  # fmt: skip


def _found(out: Path) -> list[tuple[float, float, str]]:
    with Store.read(out) as store:
        return [(r.bracket.lower.value, r.bracket.upper.value, r.status) for r in store.records()]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to build a clock that jumps")
def test_a_wall_clock_that_jumps_by_days_changes_nothing(tmp_path: Path) -> None:
    source, library = tmp_path / "jumps.c", tmp_path / "jumps.so"
    source.write_text(JUMPS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    disturbed = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    seen = subprocess.run(
        [sys.executable, "-c", "import time; print(max(abs(time.time() - time.time()) for _ in range(9)) > 80000)"],
        env=disturbed, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert seen.stdout.strip() == "True"
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *_asked(tmp_path / "jumped")],
        env=disturbed,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert CliRunner().invoke(app, _asked(tmp_path / "calm")).exit_code == 0
    found = _found(tmp_path / "jumped")
    assert len(found) == 2
    assert found == _found(tmp_path / "calm")
