"""One batch of questions: its methods are stepped in turn until they finish or the budget is used up, and the model
is checked again after the proofs.

`batch_state` holds the brackets. Inside a batch every goal is a minimisation (`Problem.lowest`).
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.batch_state import Stop, Work, trivial_brackets
from holdfast.errors import BadInput, HoldfastError
from holdfast.execution.scheduler import Unit
from holdfast.execution.task import Outputs, Task, TaskResult, Tell
from holdfast.formatting import format_lower
from holdfast.goals import objective_of
from holdfast.method import Claims, Method
from holdfast.network.callable_fingerprint import of_value
from holdfast.network.output_comparison import alike, same_by_rounding
from holdfast.problem import Problem, merge
from holdfast.property import Robustness, Targeted
from holdfast.replay import Replayed, replay, replay_adjusted, spot_points
from holdfast.result import (
    DEFINITION,
    Bound,
    Bracket,
    Evidence,
    Key,
    Record,
    Status,
    trivial_bound,
)

NOTHING_MOVES = "nothing may change here: the region holds the input alone"
# A check that a proof records once it has passed.
RECHECKED = "after the proof the model still answers as it did before"
RECHECK_SECONDS = (
    1.0  # Seconds after the deadline for evaluating the model again after the proofs; chosen by hand.
)
REPLAY_SECONDS = (
    2.0  # Seconds after the deadline for replaying the counterexamples of the last step; chosen by hand.
)
# Time kept for replaying and evaluating again after the last step, in evaluations of the batch's inputs (float64 takes
# two to three) and as a share of the batch's time; chosen by hand.
CLOSING_EVALUATIONS = 8
CLOSING_SHARE = 0.2
TOO_LATE = "there was no time to find out whether it applies"
UNEXAMINED = "the budget ended before it began"
NOT_BEGUN = "not begun"  # Beginning of the reason where a method cannot finish anything in the budget.
# Share of the remaining time in which all methods must decide whether they apply, tracing included; chosen by
# hand.
APPLICABILITY_SHARE = 0.5
# Numbers in the inputs of one batch: attacks hold several tensors with some ten copies of each (chosen by hand).
CPU_BATCH_NUMBERS = 2**22
GPU_BATCH_NUMBERS = 2**25
NO_NUMBER = "the model answers NaN at the input itself"
RECHECKED_ALONE = 16  # Counterexamples of a batch that are evaluated again in a batch of one; chosen by hand.
UNBROKEN = "no change that is allowed breaks it, however large"


Choice = Sequence[Method[Any]] | Callable[[Problem], Sequence[Method[Any]]]


class BatchWorker:
    """Answers tasks about rows of problems. hashed: records carry the hash of their question, as a store
    needs it.
    """

    def __init__(
        self, problems: Sequence[Problem], methods: Choice, stop: Stop, seed: int, *, hashed: bool = True
    ) -> None:
        self.problems, self._stop, self._seed, self._hashed = problems, stop, seed, hashed
        self._ways = [methods(problem) if callable(methods) else methods for problem in problems]
        self._means = [
            of_value([(m.name, m.settings()) for m in way] + [seed, stop.gap, stop.sign])
            for way in self._ways
        ]
        self._place = {
            key: (at, row) for at, problem in enumerate(problems) for row, key in enumerate(problem.keys)
        }
        self._digests: dict[int, list[str]] = {}  # problem index -> question hashes of its rows, on demand

    def __len__(self) -> int:
        return len(self._place)

    def units(self, done: set[Key], size: int | None) -> list[Unit]:
        """Group the open rows that can share a batch, and divide the groups into batches of at most `size`
        rows.
        """
        groups: dict[tuple[object, ...], list[Key]] = {}
        for at, problem in enumerate(self.problems):
            group = groups.setdefault((self._means[at], *problem.lowest().mergeable()), [])
            group += [key for key in problem.keys if key not in done]
        each = math.inf if self._stop.each is None else self._stop.each
        found = []
        for group in groups.values():
            on_gpu = bool(group) and self.problems[self._place[group[0]][0]].region.centre.is_cuda
            many = size or (1024 if on_gpu else 128)
            if group and size is None:
                region = self.problems[self._place[group[0]][0]].region
                numbers = GPU_BATCH_NUMBERS if on_gpu else CPU_BATCH_NUMBERS
                many = max(1, min(many, numbers // max(1, math.prod(region.shape))))
            found += [
                Unit(tuple(group[at : at + many]), each * len(group[at : at + many]))
                for at in range(0, len(group), many)
            ]
        return found

    def question_hashes(self, key: Key) -> tuple[str, str]:
        """The hash of the key's question, and the hash of the methods and settings that answer it."""
        at, row = self._place[key]
        if not self._hashed:
            return "", self._means[at]
        if at not in self._digests:
            self._digests[at] = self.problems[at].digests()
        return self._digests[at][row], self._means[at]

    def question(self, key: Key) -> str:
        return self.question_hashes(key)[0]

    def unknown(self, keys: Sequence[Key]) -> list[Record]:
        return self._work(self._batch(keys)).records("stopped") if keys else []

    def answer(self, task: Task, tell: Tell) -> TaskResult:
        problem, until = self._batch(task.keys), time.monotonic() + task.seconds
        work, methods = self._work(problem), self._ways[self._place[task.keys[0]][0]]
        status: Status = "interrupted"
        try:
            with time_limit.within(until):
                in_time = time_limit.interrupt_late(lambda: _begin(work, methods, tell), False)
                for row, key in enumerate(problem.keys):
                    _resume(work, row, task.known.get(key))
                in_time = in_time and time_limit.interrupt_late(
                    lambda: apply_other_records(work, task.others) is not None, False
                )
                status = "stopped"
                if in_time:
                    kept = CLOSING_EVALUATIONS * work.evaluation_seconds
                    last = until - min(kept, CLOSING_SHARE * max(0.0, until - time.monotonic()))
                    with time_limit.within(last):
                        status = _step_in_turn(work, methods, self._stop, last, self._seed, tell)
            before = problem.network.queries
            with time_limit.within(max(until, time.monotonic()) + RECHECK_SECONDS):
                if (
                    not time_limit.interrupt_late(
                        lambda: _recheck_model(work) and _test_estimator(work), False
                    )
                    and status == "finished"
                ):
                    status = "stopped"
            work.queries += problem.network.queries - before
        except KeyboardInterrupt:
            return TaskResult(
                tuple(work.records("interrupted")), tuple(work.faults.values()), interrupted=True
            )
        return TaskResult(tuple(work.records(status)), tuple(work.faults.values()))

    def _batch(self, keys: Sequence[Key]) -> Problem:
        """Merge the rows of these keys into one minimisation problem."""
        rows: dict[int, list[int]] = {}
        for key in keys:
            at, row = self._place[key]
            rows.setdefault(at, []).append(row)
        device = self.problems[self._place[keys[0]][0]].region.centre.device
        return merge(
            [self.problems[at].lowest().take(torch.tensor(some, device=device)) for at, some in rows.items()]
        )

    def _work(self, problem: Problem) -> Work:
        hashes = [self.question_hashes(key) for key in problem.keys]
        goals = tuple(self.problems[self._place[key][0]].goal for key in problem.keys)
        return Work(
            problem,
            goals,
            trivial_brackets(problem),
            digests=tuple(question for question, _ in hashes),
            means=hashes[0][1],
        )


def _resume(work: Work, row: int, earlier: Record | None) -> None:
    """Take over the bounds, estimates and extras of an interrupted search."""
    if earlier is not None and earlier.status != "refuted":
        known = earlier.oriented
        work.tighten(row, lower=known.lower, upper=known.upper)
        work.brackets[row] = replace(work.brackets[row], estimates=known.estimates)
        for name, value in earlier.aside.items() if earlier.means == work.means else ():
            work.store_extra(name, torch.tensor([row]), value[None])


def apply_other_records(work: Work, others: Iterable[Record]) -> list[HoldfastError]:
    """Replay counterexamples that were found for other parts of the same question; return new contradictions.

    A counterexample of one part may improve, or contradict, another part's bracket. `replay` decides what it
    shows here: for a radius the property must fail, for a worst score the point must lie in the region.
    """
    problem, before = work.problem, set(work.faults)
    if not problem.keys[0].part:
        return []
    by_place: dict[tuple[int, int | None], list[tuple[str, Evidence]]] = {}
    for record in others:
        key, ends = record.key, (record.bracket.lower.evidence, record.bracket.upper.evidence)
        by_place.setdefault((key.index, key.frame), []).extend(
            (key.part, e) for e in ends if e.witness is not None
        )
    every = [
        [e for part, e in by_place.get((key.index, key.frame), ()) if part != key.part]
        for key in problem.keys
    ]
    for turn in range(max(map(len, every), default=0)):
        points, found = problem.region.centre.clone(), torch.zeros(len(problem), dtype=torch.bool)
        for row, shown in enumerate(every):
            witness = shown[turn].witness if turn < len(shown) else None
            point = None if witness is None else problem.region.from_data(witness)
            if point is not None and point.shape == problem.region.shape:
                points[row], found[row] = point, True
        said = replay(problem, points, work.twin)
        for row in found.nonzero().flatten().tolist():
            if float(said.value[row]) < work.brackets[row].upper.value:
                work.tighten(row, upper=said.bound(row, every[row][turn], problem))
    return [fault for row, fault in work.faults.items() if row not in before]


def _recheck_model(work: Work) -> bool:
    """Evaluate the model again after the proofs: it must still be the function that was proved.

    The outputs at the inputs must be those of the beginning, in a batch and alone, and at the counterexamples
    the float64 copy must agree. Otherwise the model is not a function of its input, and its proofs are
    withdrawn. A proof that passed records the check. Returns True.
    """
    problem, proved = work.problem, {row for row, bracket in enumerate(work.brackets) if _by_proof(bracket)}
    if work.answers is None:
        return True
    if proved:
        again = problem.answers(problem.region.centre)
        alone = problem.take(torch.tensor([0])).answers(problem.region.centre[:1])
        if not (alike(work.answers, again) and same_by_rounding(alone, again[:1])):
            for row in range(len(problem)):
                work.refute(row, "answers differently now than before the proofs")
    shown = [
        row
        for row, b in enumerate(work.brackets)
        if row not in work.faults and b.upper.evidence.witness is not None
    ]
    shown = shown if proved else shown[:RECHECKED_ALONE]
    if problem.region.embedded or not shown:
        _add_last_check(work, proved)
        return True
    witnesses = [work.brackets[row].upper.evidence.witness for row in shown]
    points = torch.stack([point for point in witnesses if point is not None]).to(
        problem.network.device, problem.network.dtype
    )
    size = (
        torch.where(work.answers.isnan(), 0, work.answers).abs().amax().double()
    )  # at a witness outputs may be near zero
    said, precise = problem.network(points), work.twin(points) if work.twin is not None and proved else None
    for place, row in enumerate(shown):
        if precise is not None and row in proved and not same_by_rounding(said[place], precise[place], size):
            work.refute(row, "answers differently in float64 at the witness")
        elif place < RECHECKED_ALONE and not same_by_rounding(
            said[place : place + 1], problem.network(points[place : place + 1]), size
        ):
            work.refute(row, "answers differently at the witness when it is evaluated alone")
    _add_last_check(work, proved)
    return True


def _add_last_check(work: Work, proved: set[int]) -> None:
    for row in proved - work.faults.keys():
        lower = work.brackets[row].lower
        if lower.evidence.checks and RECHECKED not in lower.evidence.checks:
            checked = replace(lower.evidence, checks=(*lower.evidence.checks, RECHECKED))
            work.set_bracket(row, replace(work.brackets[row], lower=replace(lower, evidence=checked)))


# Share of a proved radius within which an estimator itself is tested: closer to the boundary its own float32
# sums may change the class. Chosen by hand, well above the relative rounding error of such sums.
TESTED_SHARE = 1 - 1e-6


def _test_estimator(work: Work) -> bool:
    """Test proofs about an estimator: evaluate the estimator itself at points of the proved region.

    If it violates the property there, it differs from the module that was read from it, and the proof is
    withdrawn.
    """
    problem, network = work.problem, work.problem.network
    own = network.itself or (network if network.trees is not None else None)
    rows = [
        row
        for row, b in enumerate(work.brackets)
        if _by_proof(b) and b.lower.value > 0 and row not in {*work.faults, *work.failed}
    ]
    if own is None or not rows or not problem.objective.decides_property:
        return True
    if (
        network.labels is not None
        and own is not network
        and not isinstance(problem.property, Robustness | Targeted)
    ):
        return True  # the scores of a module and of its estimator may be on different scales
    part = problem.take(torch.tensor(rows, device=problem.region.centre.device))
    share = 1.0 if own is network else TESTED_SHARE
    radius = work.ends[0, rows] * share if problem.bounds_radius else None
    for points in spot_points(part, radius):
        try:
            outputs = own(points.flatten(0, 1))
        except ValueError:  # the estimator refuses such rows
            continue
        scores = part.property.score(outputs.reshape(*points.shape[:2], -1))
        for place in (scores <= 0).any(0).nonzero().flatten().tolist():
            work.refute_reading(rows[place], points[(scores[:, place] <= 0).nonzero()[0, 0], place].tolist())
    return True


def _by_proof(bracket: Bracket) -> bool:
    return bracket.lower.evidence.kind == "proved" and bracket.lower.evidence.method not in (
        "definition",
        "the input itself",
    )


def _begin(work: Work, methods: Sequence[Method[Any]], tell: Tell) -> bool:
    """Evaluate the centre, settle the rows that it decides, find the applicable methods. Returns True."""
    problem, centre = work.problem, work.problem.region.centre
    before = problem.network.queries
    began = time.monotonic()
    work.answers = outputs = problem.answers(centre)
    work.evaluation_seconds = time.monotonic() - began
    expected = (len(problem), problem.network.widths.get(problem.region.shape, *outputs.shape[1:2]))
    if outputs.shape != expected:
        raise BadInput(
            f"the model answers {tuple(outputs.shape)} here, where it answered (batch, {expected[1]}) to "
            "others of this shape."
        )
    asked = problem.network.queries - before
    tell((), "", Outputs(problem.keys, outputs.detach().cpu()))
    work.failed = dict.fromkeys(outputs.isnan().flatten(1).any(1).nonzero().flatten().tolist(), NO_NUMBER)
    for row, why in work.failed.items():
        work.set_bracket(row, replace(work.brackets[row], note=why))
    work.twin = problem.network.double(centre)  # queries for making it do not count
    before = problem.network.queries - asked
    scores = problem.property.score(outputs)
    if problem.network.itself is not None and bool(
        (scores <= 0).any()
    ):  # the estimator itself decides whether the property fails
        scores = torch.maximum(scores, problem.property.score(problem.network.itself(centre)).to(scores))
    if work.twin is not None and bool((scores == 0).any()):  # a tie may come from rounding alone
        scores = torch.where(scores == 0, problem.property.score(work.twin(centre)).to(scores), scores)
    limits = problem.family.limit().tolist() if problem.bounds_radius else []
    data = problem.region.as_data(centre)
    for row, (limit, holds) in enumerate(zip(limits, (scores > 0).tolist(), strict=False)):
        if row in work.failed:
            continue
        if not holds:
            witness = Evidence(
                "witnessed",
                "the input itself",
                dtype=str(problem.network.dtype),
                witness=problem.region.trim(data[row].cpu()),
                traits=DEFINITION,
            )
            outcome = problem.property.says(outputs[row], problem.network.classes)
            note = f"the property fails at the input itself ({outcome})"
            work.set_bracket(row, Bracket(trivial_bound(0.0), Bound(0.0, witness), note=note))
        elif limit == 0:
            proof = Evidence(
                "proved",
                "the input itself",
                dtype=str(problem.network.dtype),
                assumptions=(NOTHING_MOVES,),
                traits=DEFINITION,
            )
            work.set_bracket(
                row, Bracket(Bound(math.inf, proof), trivial_bound(math.inf), note=NOTHING_MOVES)
            )
    if problem.objective.scored:
        plain = torch.tensor([objective_of(goal).scored for goal in work.goals], device=scores.device)
        aside = {"score": torch.where(plain, scores.double(), torch.nan)} if bool(plain.any()) else {}
        _apply_claims(
            work,
            Claims(witness=centre, found=torch.ones(len(problem), dtype=torch.bool), aside=aside),
            None,
            None,
        )
    _examine_methods(work, [method for method in methods if not method.needs_graph])
    for method in methods:
        work.unfit.setdefault(method.name, TOO_LATE)  # until it is examined, after the openings
    work.queries = problem.network.queries - before
    return True


def _examine_methods(work: Work, methods: Sequence[Method[Any]]) -> None:
    """Find out which of the methods apply to the batch, and note why the others do not."""
    until = time_limit.deadline()
    with time_limit.within(time_limit.share_of_remaining(APPLICABILITY_SHARE)):
        too_late: str | None = TOO_LATE
        for method in methods:
            work.unfit[method.name] = time_limit.interrupt_late(
                partial(_why_unfit, method, work.problem, until), too_late, 0.0
            )
    found = {method.name: work.unfit[method.name] for method in methods}
    work.skipped = (
        *work.skipped,
        *(f"{name}: {reason}" for name, reason in found.items() if reason is not None),
    )


def _why_unfit(method: Method[Any], problem: Problem, until: float) -> str | None:
    """Why the method is not used: it does not apply, or it cannot finish anything until the deadline; None: it is
    used.
    """
    if method.needs_graph and math.isfinite(until):
        least, left = method.least_seconds(problem), until - time.monotonic()
        if least > left:
            return (
                f"{NOT_BEGUN}: its first result takes at least {format_lower(least)} s here, and "
                f"{max(left, 0):.1f} s are left"
            )
    return method.unfit(problem)


def _may_apply(reason: str | None) -> bool:
    """Whether a method applies or might: with more time, a resumed run begins it."""
    return reason is None or reason == TOO_LATE or reason.startswith(NOT_BEGUN)


def _note_unexamined(work: Work, methods: Sequence[Method[Any]]) -> Status:
    """Note the methods that were not examined before the budget ended. Returns "stopped"."""
    work.skipped = (
        *work.skipped,
        *(f"{method.name}: {UNEXAMINED}" for method in methods if method.needs_graph),
    )
    return "stopped"


def _step_in_turn(
    work: Work, methods: Sequence[Method[Any]], stop: Stop, deadline: float, seed: int, tell: Tell
) -> Status:
    """Step the methods in turn until all are done or the budget is used up; return which. Closed rows are
    left out.

    Cheap steps come first: methods that decide rows exactly with few queries, then the openings of methods. Only then
    the methods are examined that need the graph of the network. Methods with long steps begin when the others are
    done.
    """
    rows = work.unsettled_rows(stop)
    if not len(rows):
        return "finished"
    ready = [method for method in methods if work.unfit[method.name] is None]
    # A method whose applicability was not decided in time counts as unfinished, so that a resumed run tries
    # it.
    work.able = frozenset(method.name for method in methods if _may_apply(work.unfit[method.name]))
    if not _settle_cheap_rows(work, ready, stop, deadline, seed, tell):
        return _note_unexamined(work, methods)
    rows = work.unsettled_rows(stop)
    if not len(rows):
        return "finished"
    part = work.problem.take(rows.to(work.problem.region.centre.device))
    batch = _OpenRows(work, rows, part, stop, deadline, seed, tell)
    states = _run_openings(batch, ready)
    if states is None:
        return _note_unexamined(work, methods)
    for turn in ([m for m in methods if not m.long_steps], [m for m in methods if m.long_steps]):
        before = work.problem.network.queries
        _examine_methods(work, [method for method in turn if method.needs_graph])
        work.queries += work.problem.network.queries - before
        work.able = frozenset(method.name for method in methods if _may_apply(work.unfit[method.name]))
        live: list[tuple[Method[Any], Problem, Any]] = [
            (method, method.view(part), states.get(id(method)))
            for method in turn
            if work.unfit[method.name] is None and states.get(id(method), method) is not None
        ]
        while live:
            ongoing: list[tuple[Method[Any], Problem, Any]] = []
            for place, (method, seen, state) in enumerate(live):
                if not len(work.unsettled_rows(stop)):
                    return "finished"
                if _budget_used_up(work, stop, deadline):
                    batch.explain_stop([*ongoing, *live[place:]])
                    return "stopped"
                state = batch.start(method, seen) if state is None else state
                if state is TOO_LATE:
                    batch.explain_stop([*ongoing, *live[place:]])
                    return "stopped"
                state = batch.step(method, seen, state)
                if state is not None:
                    ongoing.append((method, seen, state))
            live = ongoing
    open_ones = [reason for reason in work.unfit.values() if reason is not None and _may_apply(reason)]
    return "stopped" if open_ones else "finished"


@dataclass(frozen=True)
class _OpenRows:
    """The open rows of a batch, as one problem, with what a step of a method needs."""

    work: Work
    rows: Tensor
    part: Problem
    stop: Stop
    deadline: float
    seed: int
    tell: Tell

    def start(self, method: Method[Any], seen: Problem) -> Any:
        """The method's first state, or TOO_LATE."""
        aside = {name: values[self.rows] for name, values in self.work.aside.items()}
        return time_limit.interrupt_late(partial(_start_method, method, seen, self.seed, aside), TOO_LATE)

    def step(self, method: Method[Any], seen: Problem, state: Any) -> Any:
        """The state after one step; its claims are applied and reported."""
        state = _step_method(self.work, seen, self.rows, method, state, self.seed)
        self.tell(self.work.improved_records(), method.name)
        return state

    def explain_stop(self, unfinished: Sequence[tuple[Method[Any], Problem, Any]]) -> None:
        """Note with the open rows why the time was too short for these methods, which have a state or None."""
        if time.monotonic() < self.deadline:
            return
        rows = self.work.unsettled_rows(self.stop).tolist()
        for method, _, state in unfinished:
            reason = UNEXAMINED if state is None else method.explain_interruption(state)
            if reason and (method.needs_graph or state is not None):
                _note_fallback(self.work, f"{method.name}: {reason}", rows)


def _run_openings(batch: _OpenRows, methods: Sequence[Method[Any]]) -> dict[int, Any] | None:
    """Run the opening steps of the methods that have some; return the states of these methods after them, by id.

    A state of None means that the method is finished. Returns None if the budget ended first.
    """
    states = dict[int, Any]()
    for method in (method for method in methods if method.has_opening):
        if not len(batch.work.unsettled_rows(batch.stop)):
            break
        if _budget_used_up(batch.work, batch.stop, batch.deadline):
            return None
        seen = method.view(batch.part)
        state = batch.start(method, seen)
        while state is not None:
            if state is TOO_LATE or _budget_used_up(batch.work, batch.stop, batch.deadline):
                return None
            if not method.is_opening(state) or not len(batch.work.unsettled_rows(batch.stop)):
                break
            state = batch.step(method, seen, state)
        states[id(method)] = state
    return states


def _settle_cheap_rows(
    work: Work, methods: Sequence[Method[Any]], stop: Stop, deadline: float, seed: int, tell: Tell
) -> bool:
    """Run each method to its end on the rows that it decides exactly with few queries, before all others.

    Returns False if the budget ended first.
    """
    for method in methods:
        cheap = method.settles(work.problem)
        rows = work.unsettled_rows(stop)
        rows = rows[:0] if cheap is None else rows[cheap.cpu()[rows]]
        if not len(rows):
            continue
        seen = method.view(work.problem.take(rows.to(work.problem.region.centre.device)))
        aside = {name: values[rows] for name, values in work.aside.items()}
        state = time_limit.interrupt_late(partial(_start_method, method, seen, seed, aside), TOO_LATE)
        while state is not None:
            if state is TOO_LATE or _budget_used_up(work, stop, deadline):
                return False
            state = _step_method(work, seen, rows, method, state, seed)
            tell(work.improved_records(), method.name)
    return True


def _start_method(method: Method[Any], seen: Problem, seed: int, aside: dict[str, Tensor]) -> Any:
    return method.resume_state(seen, method.start(seen, seed), aside)


def _step_method(work: Work, part: Problem, rows: Tensor, method: Method[Any], state: Any, seed: int) -> Any:
    """Run one step of one method on the open rows, and apply its claims."""
    before = part.network.queries
    lower, upper = work.ends[:, rows].to(part.region.centre.device)
    state, claims = method.step(part, method.update_bounds(part, state, lower, upper))
    time_limit.interrupt_late(partial(_apply_claims, work, claims, method, seed, rows), None, REPLAY_SECONDS)
    work.queries += part.network.queries - before
    return state


def _note_fallback(work: Work, description: str, rows: Sequence[int]) -> None:
    """Record a fallback once for the run, and once for each of these rows."""
    work.skipped = work.skipped if description in work.skipped else (*work.skipped, description)
    for row in rows:
        known = work.fallbacks.get(row, ())
        work.fallbacks[row] = known if description in known else (*known, description)


def _budget_used_up(work: Work, stop: Stop, deadline: float) -> bool:
    queries_used = stop.queries is not None and work.queries >= stop.queries * len(work.problem)
    return queries_used or time.monotonic() >= deadline


def _apply_claims(
    work: Work, claims: Claims, method: Method[Any] | None, seed: int | None, rows: Tensor | None = None
) -> None:
    """Apply the claims of a method to the brackets of these rows (default: all)."""
    index = torch.arange(len(work.problem)) if rows is None else rows
    name = method.name if method else "the input itself"
    settings = {**method.settings(), **claims.settings} if method else {}
    if claims.obstacle:
        work.skipped = (*work.skipped, f"{name}: {claims.obstacle}")
    if claims.fallback:
        _note_fallback(work, f"{name}: {claims.fallback}", index.tolist())
    traits = method.traits if method else DEFINITION
    base = Evidence(
        "proved",
        name,
        settings,
        seed,
        dtype=claims.dtype,
        assumptions=claims.assumptions,
        checks=claims.checks,
        traits=traits,
    )
    for name, values in claims.aside.items():
        work.store_extra(name, index, values)
    if claims.proved is not None:
        proved = claims.proved.to(index.device, torch.float64)
        limit = work.problem.limit().to(index.device, torch.float64)[index]
        unbroken = replace(base, assumptions=(*base.assumptions, UNBROKEN))
        for place in ((proved > work.ends[0, index]) | (proved >= limit)).nonzero().flatten().tolist():
            # Beyond the limit the region does not grow, so the property holds at every radius.
            if bool(proved[place] >= limit[place]):
                work.tighten(int(index[place]), lower=Bound(math.inf, unbroken), note=UNBROKEN)
            else:
                work.tighten(int(index[place]), lower=Bound(float(proved[place]), base))
    if claims.estimate is not None:
        guess = replace(
            base,
            kind=claims.estimate_kind,
            confidence=claims.confidence,
            dtype=str(work.problem.network.dtype),
        )
        for i, value in zip(index.tolist(), claims.estimate.tolist(), strict=True):
            if not math.isnan(value) and i not in work.faults and i not in work.failed:
                work.brackets[i] = work.brackets[i].with_estimate(Bound(value, guess))
    if claims.witness is not None and claims.found is not None and bool(claims.found.any()):
        which = claims.found.to(index.device).nonzero().flatten()
        part = work.problem.take(index[which].to(work.problem.region.centre.device))
        points, said = replay_adjusted(part, claims.witness[which.to(claims.witness.device)], work.twin)
        # A record shows the words, not their embedding vectors.
        seen = part.region.as_data(points).detach().cpu()
        best = work.twin if work.twin is not None and work.problem.objective.scored else work.problem.network
        shown = replace(base, kind="witnessed", dtype=str(best.dtype), checks=())
        said = Replayed(*(values.cpu() for values in said))
        lower, own = said.value < work.ends[1, index[which]], said.own < said.value
        every = zip(index[which].tolist(), lower.tolist(), own.tolist(), said.own.tolist(), strict=True)
        for place, (i, better, doubted, met) in enumerate(every):
            if not (better or doubted):
                continue
            bound = said.bound(
                place,
                replace(
                    shown,
                    assumptions=part.region.assumptions(place),
                    witness=part.region.trim(seen[place].clone()),
                ),
                part,
            )
            if doubted and (i not in work.met or met < work.met[i].value):
                work.met[i] = replace(bound, value=met)
                work.tighten(i)
            if better:
                work.tighten(i, upper=bound)
    if (
        claims.done is not None and method is not None
    ):  # This comes last: after an interruption before it, a resumed run repeats the step.
        work.done.setdefault(method.name, torch.zeros(len(work.problem), dtype=torch.bool))[
            index[claims.done.to(index.device)]
        ] = True
