"""Worker processes under real faults: the input that is at fault is named, and every other record is that of an undisturbed run."""

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import holdfast as hf
from holdfast.batch_solver import BatchWorker
from holdfast.execution import InProcess, Local, local, worker_pool
from holdfast.execution.scheduler import InMemorySink
from holdfast.execution.task import Outputs
from holdfast.method import Claims, Method
from holdfast.result import Key, Record
from holdfast.solver import BatchSettings, Progress, Stop, ask, solve

COUNT, BAD = 12, 5
MARK = np.float32(0.015625)  # the first number of the input at fault, and of no other
X = torch.rand(COUNT, 3, generator=torch.Generator().manual_seed(1)) * 0.5 + 0.25
X[BAD, 0] = float(MARK)


@dataclass(frozen=True)
class Counting(Method[int]):
    """Three steps that prove a little more each; the last one witnesses."""

    def obstacle(self, problem: hf.Problem) -> str | None:
        return None

    def start(self, problem: hf.Problem, seed: int) -> int:
        return 0

    def step(self, problem: hf.Problem, state: int) -> tuple[int | None, Claims]:
        time.sleep(0.01)
        proved = problem.region.centre.double().sum(1) * 1e-3 * (state + 1)
        return state + 1 if state < 2 else None, Claims(proved=proved)


def answers(
    x: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]",
) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.stack([x.sum(1), -x.sum(1)], 1)


def problem(fault: Callable[[], object] | None = None) -> hf.Problem:
    def asked(
        x: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]",
    ) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        said = answers(x)
        at_fault = x[:, 0] == MARK
        if fault is not None and at_fault.any():
            given = fault()
            if given == "fewer":
                return said[:, :1]
            said[at_fault] = np.nan if given is None else given
        return said

    net = hf.Network.from_callable(asked, name="asked", domain=(0, 1))
    return hf.Problem(
        net,
        hf.Ball(X, torch.full((COUNT,), torch.inf), 2, net.domain),
        hf.Robustness(torch.zeros(COUNT).long()),
        "radius",
    )


def raises() -> None:
    raise ValueError("no such word")


def exits() -> None:
    os._exit(7)


def crashes() -> None:
    faulthandler.disable()
    ctypes.string_at(0)


def hangs() -> None:
    time.sleep(600)


def interrupts() -> None:
    raise KeyboardInterrupt


def leaves() -> None:
    raise SystemExit(3)


def names_its_rank() -> None:
    raise ValueError(f"killed {Path('/proc/self/oom_score_adj').read_text().strip()} thousandths earlier")


def leaks() -> None:
    kept = [np.ones(2**24) for _ in range(9)]  # 1.1 GiB
    time.sleep(600)
    raise AssertionError(len(kept))


FAULTS = {
    "raises": (raises, "ValueError: no such word"),
    "exits": (exits, "its process ended with exit code 7"),
    "crashes": (crashes, "its process was ended by SIGSEGV"),
    "raises KeyboardInterrupt": (interrupts, "ModelRaised: asked raised KeyboardInterrupt"),
    "raises SystemExit": (leaves, "ModelRaised: asked raised SystemExit"),
    "hangs": (hangs, "it had not come back after"),
    "leaks": (leaks, "it needs more than the"),
    "answers with fewer outputs": (
        lambda: "fewer",
        "the model answers (1, 1) here, where it answered (batch, 2)",
    ),
    "answers NaN": (lambda: None, "the model answers NaN at the input itself"),
}


def seen(record: Record) -> tuple[object, ...]:
    return record.key, record.status, record.bracket


@pytest.mark.parametrize("fault", FAULTS)
def test_one_input_that_cannot_be_answered_costs_no_other(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "FIRST_ANSWER_SECONDS", 1.0)
    what, why = FAULTS[fault]
    held = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )  # which a copy of this process has as well
    expected = solve([problem()], [Counting()], batch=4)
    stop = Stop(seconds=60, each=0.5) if fault == "hangs" else None  # else the time would be shared among all
    found = solve(
        [problem(what)],
        [Counting()],
        stop,
        batch=4,
        executor=Local(2, memory=held + 2**29 if fault == "leaks" else None),
    )
    assert found[BAD].status == "failed"
    assert why in found[BAD].bracket.note
    assert (found[BAD].bracket.lower.value, found[BAD].bracket.upper.value) == (0.0, np.inf)
    others = [row for row in range(COUNT) if row != BAD]
    assert [seen(found[row]) for row in others] == [seen(expected[row]) for row in others]


@pytest.mark.parametrize("fault", [interrupts, leaves])
def test_what_would_end_the_program_is_the_failure_of_one_input_here_too(fault: Callable[[], None]) -> None:
    found = solve([problem(fault)], [Counting()], batch=4, executor=InProcess())
    assert [record.status for record in found] == [
        "failed" if row == BAD else "finished" for row in range(COUNT)
    ]


def test_a_worker_goes_before_the_run_but_not_before_everything_else() -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    found = solve([problem(names_its_rank)], [Counting()], batch=4, executor=Local(1))
    assert f"killed {own + local.BEFORE_THE_RUN} thousandths" in found[BAD].bracket.note
    assert local.BEFORE_THE_RUN <= 100


def test_what_the_model_answered_at_the_inputs_travels_with_the_tasks() -> None:
    """The run itself asks it nothing but what `check` does."""
    asked, told, here = problem(), list[Outputs](), list[int]()
    inner = asked.network.module.forward

    def counted(x: Tensor) -> Tensor:
        here.append(len(x))
        return inner(x)

    asked.network.module.forward = counted  # type: ignore[method-assign]
    asked.check()
    usual = len(here)
    ask(
        [asked],
        [Counting()],
        settings=BatchSettings(rows=4, hashed=False),
        store=InMemorySink(),
        executor=Local(2),
        outputs=told.append,
    )
    assert len(here) == usual + 1  # a second check is one call
    values = {
        key.index: row for outputs in told for key, row in zip(outputs.keys, outputs.values, strict=True)
    }
    assert torch.equal(
        torch.stack([values[row] for row in range(COUNT)]), torch.from_numpy(answers(X.numpy()))
    )


def test_a_model_that_fails_everywhere_is_no_matter_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf.Problem, "check", lambda self: None)  # which would refuse it
    asked = problem()

    def always(x: object) -> Tensor:
        raise ValueError("not even one")

    asked.network.module.forward = always  # type: ignore[method-assign]
    for executor in (InProcess(), Local(1)):
        with pytest.raises(ValueError, match="not even one"):
            solve([asked], [Counting()], executor=executor)


def test_a_killed_worker_is_replaced_and_nothing_is_lost() -> None:
    killed: list[int] = []

    def kill(now: Progress) -> None:
        child = multiprocessing.active_children()[0]
        if len(killed) < 3 and child.pid not in killed:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            killed.append(child.pid)

    expected = solve([problem()], [Counting()], batch=4)
    found = solve([problem()], [Counting()], batch=4, executor=Local(2), progress=kill)
    assert len(killed) == 3
    assert list(map(seen, found)) == list(map(seen, expected))
    assert multiprocessing.active_children() == []


def test_ctrl_c_ends_the_workers_and_keeps_what_they_told() -> None:
    def interrupt(now: Progress) -> None:
        if now.done >= 4:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        found = solve([problem()], [Counting()], batch=4, executor=Local(1), progress=interrupt)
    assert [record.status for record in found] == ["finished"] * 4 + ["interrupted"] * 8
    assert multiprocessing.active_children() == []


def test_what_was_told_before_the_time_was_over_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Stuck(Counting):
        def step(self, problem: hf.Problem, state: int) -> tuple[int | None, Claims]:
            if state == 1 and Key(BAD) in problem.keys:
                time.sleep(600)
            return super().step(problem, state)

    monkeypatch.setattr(worker_pool, "GRACE_SECONDS", 0.2)
    found = solve([problem()], [Stuck()], Stop(seconds=120, each=0.2), batch=4, executor=Local(1))
    late = found[4:8]
    assert {record.status for record in late} == {"stopped"}
    assert all(record.bracket.lower.value > 0 for record in late), "the first step was told"
    assert all("had not come back" in record.bracket.note for record in late)
    assert {record.status for record in (*found[:4], *found[8:])} == {"finished"}


def made() -> BatchWorker:
    return BatchWorker([problem()], [Counting()], Stop(), 0, hashed=False)


def test_a_process_that_begins_anew_builds_its_own_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a graphics card, which no copy of a process can use."""
    monkeypatch.setattr(local, "can_fork", lambda: False)
    asked = problem()

    def never(x: object) -> Tensor:
        raise AssertionError("asked in the run's own process")

    monkeypatch.setattr(hf.Problem, "check", lambda self: None)
    asked.network.module.forward = never  # type: ignore[method-assign]
    found = solve([asked], [Counting()], batch=6, executor=Local(1, make=made))
    assert list(map(seen, found)) == list(map(seen, solve([problem()], [Counting()], batch=6)))


def test_a_worker_ends_with_its_run(tmp_path: Path) -> None:
    """kill -9 of the run: no worker stays behind."""
    child = os.fork()
    if child == 0:

        def tell(now: Progress) -> None:
            (tmp_path / "pid").write_text(str(multiprocessing.active_children()[0].pid))
            time.sleep(600)

        solve([problem()], [Counting()], executor=Local(1), progress=tell)
        os._exit(1)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    worker = int((tmp_path / "pid").read_text())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for _ in range(500):
        state = Path(f"/proc/{worker}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {worker} outlived its run")
