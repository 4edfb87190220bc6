"""Budgets: what is cut off in the midst proves nothing, loses nothing and goes on; memory that was allowed is what is planned for."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast import memory_budget, time_limit
from holdfast.api.risk import risk_methods
from holdfast.batch_solver import RECHECKED, BatchWorker
from holdfast.bounding.crown import Intervals
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.bounding.traversal import Backward
from holdfast.certify.smoothing import smoothing_problem
from holdfast.cli.run import executor_of
from holdfast.commands.options import ModelOptions, Running
from holdfast.commands.parse import bytes_option
from holdfast.commands.radius import Radius
from holdfast.errors import BadInput
from holdfast.execution import Local, Task
from holdfast.method import Method
from holdfast.region import Ball, Box, Sparse
from holdfast.region.base import Domain
from holdfast.solver import solve
from holdfast.verification import BranchAndBound

LONG_AGO = -1e9  # of the monotonic clock


def tanh_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def relu_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


def asked(make: Callable[[], nn.Module], goal: Any, region: Callable[[Tensor], Any]) -> hf.Problem:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net, x = hf.Network.from_torch(make().eval()), torch.rand(2, 3)
    return hf.Problem(net, region(x), hf.Robustness(net(x).argmax(1)), goal)


def near(x: Tensor) -> Ball:
    return Ball(x, 0.0, math.inf, Domain.of((0.0, 1.0)))


def box(x: Tensor) -> Box:
    return Box.between(x.double() - 0.01, x.double() + 0.01)


def sparse(x: Tensor) -> Sparse:
    return Sparse(x, torch.zeros(len(x)), Domain.of((0.0, 1.0)))


PROOFS: dict[str, tuple[Method[Any], hf.Problem]] = {
    "certify": (hf.certify.Certify(), asked(relu_net, "radius", near)),
    "tighten planes": (hf.certify.Tighten(steps=2, block=1), asked(relu_net, "radius", near)),
    "tighten models": (hf.certify.Tighten(steps=2, block=1), asked(tanh_net, "radius", near)),
    "split": (hf.certify.Split(boxes=8, steps=2), asked(tanh_net, "radius", near)),
    "bab by inputs": (BranchAndBound(), asked(relu_net, "worst", box)),
    "branch": (hf.hamming.Branch(), asked(relu_net, "radius", sparse)),
}


def steps(method: Method[Any], problem: hf.Problem, most: int = 60) -> Iterator[Tensor]:
    """What is proved after each step."""
    state: Any = method.start(problem, 0)
    for _ in range(most):
        state, claims = method.step(problem, state)
        if claims.proved is not None:
            yield claims.proved
        if state is None:
            return
    raise AssertionError("it does not end")


def end(method: Method[Any], problem: hf.Problem) -> Tensor:
    proved = torch.full((len(problem),), -math.inf, dtype=torch.float64)
    for found in steps(method, problem):
        proved = torch.fmax(proved, found)
    return proved


@pytest.mark.parametrize("name", PROOFS)
def test_after_the_deadline_a_step_looks_at_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, problem = PROOFS[name]
    state, seen = method.start(problem, 0), list[str]()
    graph_of(problem)
    for kind, what in ((Intervals, "through_map"), (Backward, "walk")):
        inner = getattr(kind, what)
        monkeypatch.setattr(
            kind, what, lambda *given, inner=inner, what=what: seen.append(what) or inner(*given)
        )
    with time_limit.within(LONG_AGO):
        after, claims = method.step(problem, state)
    assert after is not None
    assert len(seen) <= 2
    assert claims.proved is None or not bool((claims.proved > 0).any())
    assert claims.done is None


@pytest.mark.parametrize("name", PROOFS)
def test_what_is_cut_off_anywhere_goes_on_to_the_same_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off at every so many looks at the clock, wherever that is: never more is proved than without, and in the end as much."""
    method, problem = PROOFS[name]
    calm = end(method, problem)
    looks = itertools.count(1)

    def check() -> None:
        if time_limit._spared.get() and next(looks) in (2, 3, 5, 11, 23, 47, 95, 191):
            raise time_limit.Expired

    monkeypatch.setattr(time_limit, "raise_if_expired", check)
    torn = end(method, problem)
    assert next(looks) > 5, "nothing here looks at the clock"
    assert bool((torn <= calm * (1 + 1e-2) + 1e-2).all())
    torch.testing.assert_close(torn, calm, rtol=2e-2, atol=2e-2)


def test_only_what_somebody_can_do_without_is_cut_off() -> None:
    def work() -> str:
        time_limit.raise_if_expired()
        return "done"

    assert time_limit.in_time(work, "cut") == "done"
    with time_limit.within(LONG_AGO):
        assert work() == "done"
        assert time_limit.in_time(work, "cut") == "cut"
        assert work() == "done"
    with time_limit.within(
        time.monotonic() - time_limit.GRACE / 4
    ):  # a moment after the deadline: what looks at it may end what it has begun
        assert time_limit.has_expired()
        assert time_limit.in_time(work, "cut") == "done"


def test_a_last_step_after_the_deadline_is_not_taken_for_the_last() -> None:
    method, problem = hf.attacks.PGD(rounds=1), PROOFS["certify"][1]
    state = method.start(problem, 0)
    assert method.step(problem, state)[0] is None
    with time_limit.within(time.monotonic() - time_limit.GRACE / 100):
        after, claims = method.step(problem, method.start(problem, 0))
    assert after is not None
    assert claims.witness is not None


def test_samples_that_were_all_drawn_when_the_time_was_up_are_counted_by_resume() -> None:
    problem, method = (
        smoothing_problem(PROOFS["certify"][1].network, torch.rand(2, 3)),
        hf.certify.Smoothing(samples=20, choosing=5),
    )
    with time_limit.within(time.monotonic() - time_limit.GRACE / 100):
        after, claims = method.step(problem, method.start(problem, 0))
    assert after is not None
    again, counted = method.step(
        problem, method.resume_state(problem, method.start(problem, 0), claims.aside)
    )
    assert again is None
    assert torch.equal(counted.estimate, claims.estimate)


def test_what_is_cut_off_is_stopped_and_taken_up_again(tmp_path: Any) -> None:
    problem = PROOFS["tighten models"][1]
    with hf.Store.create(tmp_path / "run") as store:
        for record in hf.solve([problem], [hf.certify.Tighten(steps=2)], hf.Stop(seconds=0.0), store=store):
            assert record.status == "stopped"
        assert not store.finished_records()
        again = hf.solve([problem], [hf.certify.Tighten(steps=2)], store=store)
    assert {r.status for r in again} <= {"finished", "closed"}
    assert all(r.bracket.lower.value > 0 for r in again)


# ---- memory


def test_no_more_is_planned_than_is_allowed() -> None:
    processor = torch.device("cpu")
    free = memory_budget.free_bytes(processor)
    with memory_budget.within(1000):
        assert memory_budget.free_bytes(processor) == 1000
        with memory_budget.within(2000):
            assert memory_budget.free_bytes(processor) == 1000
        with memory_budget.within(None):
            assert memory_budget.free_bytes(processor) == 1000
        assert memory_budget.elements_per_tensor(processor, 10**6, 5) == 25
    assert memory_budget.elements_per_tensor(processor, 10**6, 5) == 10**6
    assert memory_budget.free_bytes(processor) > free / 100


def test_less_memory_changes_no_answer() -> None:
    method, problem = PROOFS["tighten planes"]
    usual = end(method, problem)
    with memory_budget.within(4096):
        torch.testing.assert_close(end(method, problem), usual, rtol=1e-6, atol=1e-9)


def test_what_does_not_fit_is_said_before_it_is_begun() -> None:
    method, problem = PROOFS["certify"]
    assert method.unfit(problem) is None
    with memory_budget.within(100):
        assert "--memory" in (method.unfit(problem) or "")


def test_every_kind_of_too_little_memory_is_known() -> None:
    for ask in (
        lambda: torch.empty(2**60, dtype=torch.uint8),
        lambda: np.empty(2**60, dtype=np.uint8),
        lambda: bytearray(2**60),
    ):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            ask()
        assert memory_budget.is_out_of_memory(caught.value)
    assert memory_budget.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not memory_budget.is_out_of_memory(RuntimeError("the size of tensor a must match"))
    assert not memory_budget.is_out_of_memory(ValueError("out of memory"))


def test_memory_as_people_write_it() -> None:
    assert [bytes_option(text) for text in (None, "500M", "2G", "1.5g", "4GiB", "4096")] == [
        None, 500 * 2**20, 2 * 2**30, 1.5 * 2**30, 4 * 2**30, 4096,
    ]  # fmt: skip
    for wrong in ("much", "0", "-1G", "2X", "inf", "nan"):
        with pytest.raises(BadInput, match="2G"):
            bytes_option(wrong)


# ---- what looks at no clock


@dataclass(frozen=True)
class Slow(hf.attacks.PGD):
    """A method of which one part never ends by itself."""

    where: str = ""  # none: `inspect` makes one of every method there is, in other tests of this process

    def obstacle(self, problem: hf.Problem) -> str | None:
        return self._slow("obstacle") or super().obstacle(problem)

    def start(self, problem: hf.Problem, seed: int) -> Any:
        self._slow("start")
        return super().start(problem, seed)

    def step(self, problem: hf.Problem, state: Any) -> Any:
        self._slow("step")
        return super().step(problem, state)

    def _slow(self, here: str) -> None:
        if here == self.where:
            time.sleep(600)


@pytest.mark.parametrize("where", ["obstacle", "start", "step"])
def test_a_method_that_looks_at_no_clock_ends_with_the_budget(where: str) -> None:
    problem = PROOFS["certify"][1]
    found = solve([problem], [hf.attacks.PGD(rounds=1), Slow(where=where)], hf.Stop(seconds=0.5))
    assert {record.status for record in found} == {"stopped"}
    assert any("no time to find out" in reason for reason in found[0].skipped) == (where == "obstacle")


def test_what_others_found_is_kept_where_one_method_is_not_looked_at_in_time() -> None:
    problem = PROOFS["certify"][1]
    found = solve([problem], [hf.attacks.PGD(rounds=1), Slow()], hf.Stop(seconds=5.0))
    assert all(math.isfinite(record.bracket.upper.value) for record in found)


def test_a_model_that_hangs_at_its_inputs_ends_with_the_budget() -> None:
    hangs = list[bool]()

    def model(x: Any) -> Any:
        if hangs:
            time.sleep(600)
        return np.stack([x.sum(1), -x.sum(1)], 1)

    net, x = (
        hf.Network.from_callable(model, domain=(0, 1), shape=(3,), fingerprint="hangs"),
        torch.full((2, 3), 0.5),
    )
    problem = hf.Problem(net, near(x), hf.Robustness(torch.zeros(2).long()), "radius")
    problem.check()
    hangs.append(True)
    worker = BatchWorker([problem], [hf.attacks.Corners()], hf.Stop(), 0, hashed=False)
    found = worker.answer(Task(problem.keys, 0.2), lambda *told: None)
    assert [record.status for record in found.records] == ["stopped"] * 2


def test_a_search_prepares_no_bound() -> None:
    """At 224 x 224 the bound of the steepness took minutes to prepare, and tier search has no use for it."""
    problem = replace(PROOFS["certify"][1], goal="steepness")
    assert [method.name for method in risk_methods("search")(problem)] == ["Steepest"]
    assert "Shells" in [method.name for method in risk_methods("fast")(problem)]


def test_a_proof_says_that_the_model_was_asked_again_only_once_it_was() -> None:
    """Of a worker that was killed before the last checks no record may claim them."""
    problem, (method, _) = PROOFS["certify"][1], PROOFS["certify"]
    told: list[Any] = []
    worker = BatchWorker([problem], [method], hf.Stop(), 0, hashed=False)
    answer = worker.answer(Task(problem.keys), lambda records, *_: told.extend(records))
    proved = [
        record.bracket.lower.evidence
        for record in told
        if record.bracket.lower.evidence.kind == "proved" and record.bracket.lower.value > 0
    ]
    assert proved
    assert not any(RECHECKED in evidence.checks for evidence in proved)
    assert all(RECHECKED in record.bracket.lower.evidence.checks for record in answer.records)


# ---- memory of a process


def test_no_process_holds_more_than_it_may() -> None:
    held = memory_budget.held_bytes()
    size = 2 * held + 2**29  # more than is refused beforehand, whatever the tests before have left in memory
    with memory_budget.limit_process(size):
        assert memory_budget.allowed_bytes() <= size - held + 2**24
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            torch.ones(size // 4)  # as many bytes as the whole process may hold
        assert memory_budget.is_out_of_memory(caught.value)
        assert len(torch.ones(2**22)) == 2**22
    assert memory_budget.allowed_bytes() == math.inf
    torch.empty(2**28)


def test_memory_that_is_full_before_anything_is_read_is_refused() -> None:
    with (
        pytest.raises(BadInput, match="before any model is read"),
        memory_budget.limit_process(memory_budget.held_bytes()),
    ):
        pass


def test_workers_may_hold_what_the_option_says() -> None:
    command = Radius(network=ModelOptions("x:y"), data="z:z")
    threads = torch.get_num_threads()
    executor = executor_of(command, Running(memory="2G"))
    torch.set_num_threads(threads)
    assert isinstance(executor, Local)
    assert executor.memory == 2 * 2**30


def test_the_seconds_of_a_call_are_counted_from_its_beginning() -> None:
    """Checks of the model before the search count: a call that began long ago has no time left for a search."""
    problem = asked(relu_net, "radius", near)
    late = replace(hf.Stop(seconds=60.0), began=LONG_AGO)
    assert late.remaining_seconds() == 0.0
    assert hf.Stop(seconds=60.0).remaining_seconds() == 60.0
    methods = [hf.attacks.PGD()]
    assert {record.status for record in solve([problem], methods, late)} == {"stopped"}
    assert {record.status for record in solve([problem], methods, hf.Stop(seconds=60.0))} <= {
        "finished",
        "closed",
    }


def test_time_for_the_closing_evaluations_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps end early enough that what they found can be replayed within the budget."""
    from holdfast import batch_solver

    seen: list[float] = []
    began = time.monotonic()

    def note(work: Any, methods: Any, stop: Any, deadline: float, seed: int, tell: Any) -> str:
        seen.append(deadline - began)
        return "stopped"

    monkeypatch.setattr(batch_solver, "_step_in_turn", note)
    monkeypatch.setattr(
        batch_solver, "_begin", lambda work, *rest: setattr(work, "evaluation_seconds", 50.0) is None
    )
    solve([asked(relu_net, "radius", near)], [hf.attacks.PGD()], hf.Stop(seconds=1000.0))
    assert seen
    assert 1000.0 * (1 - batch_solver.CLOSING_SHARE) - 60 < seen[0] < 900.0
