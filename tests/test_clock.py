"""Deadlines hold where they are set, and an inner one never outlives an outer one."""

import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast import clock
from holdfast.cli import app
from holdfast.store import Store


def test_a_deadline_holds_inside_and_ends_with_its_block() -> None:
    assert clock.deadline() == math.inf
    assert not clock.passed()
    soon = time.monotonic() + 100
    with clock.within(soon):
        assert clock.deadline() == soon
        with clock.within(soon + 1):
            assert clock.deadline() == soon
        with clock.within(soon - 200):
            assert clock.passed()
        assert not clock.passed()
    with pytest.raises(ZeroDivisionError), clock.within(0.0):
        raise ZeroDivisionError
    assert clock.deadline() == math.inf


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
    done = subprocess.run([sys.executable, "-m", "holdfast", *_asked(tmp_path / "jumped")], env=disturbed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert CliRunner().invoke(app, _asked(tmp_path / "calm")).exit_code == 0
    found = _found(tmp_path / "jumped")
    assert len(found) == 2
    assert found == _found(tmp_path / "calm")
