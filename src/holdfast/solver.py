"""The straight line: problems in, records out, every step kept as soon as it is known."""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from holdfast import clock
from holdfast.errors import BadInput, Contradiction, HoldfastError, StoreError
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.network.fingerprint import of_value
from holdfast.network.network import alike, same_by_rounding
from holdfast.problem import TURNED, Problem, merge
from holdfast.region import Words
from holdfast.region.normed import NormFamily
from holdfast.result import DEFINITION, Bound, Bracket, Evidence, Goal, Key, Record, Status, by_definition

NOTHING_MOVES = "nothing may change here: the region holds the input alone"
ASKED_AGAIN = "after the proof the model still answers as it did before"  # else the proof is withdrawn
SINGLE = 16  # witnesses of a batch that are asked once more alone
ROUNDING = 8  # units in the last place that the score of an input may be off
SMALLEST = 5e-324  # above zero: a score that is positive, nobody knows how much
UNBROKEN = "no change that is allowed breaks it, however large"


@dataclass(frozen=True)
class Stop:
    """When to stop, whichever comes first; without any, when the methods have done all they can.

    seconds   for the whole call, shared fairly among the batches.
    queries   network evaluations for each input.
    gap       upper - lower is at most this, for every input of a batch.
    sign      a row is settled once it is known whether its number is above zero; where one case of an input is not, so are all others.
    """

    seconds: float | None = None
    queries: int | None = None
    gap: float = 0.0
    sign: bool = False

    def __post_init__(self) -> None:
        for name, value in (("seconds", self.seconds), ("queries", self.queries), ("gap", self.gap)):
            if value is not None and not value >= 0:
                raise BadInput(f"stop: {name} must not be negative, got {value}.")


class Sink(Protocol):
    """Where records go as soon as they are known, and where they are found again."""

    def finished(self) -> dict[Key, Record]: ...

    def unfinished(self) -> dict[Key, Record]: ...

    def write(self, records: Sequence[Record]) -> None: ...


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    done: int
    total: int
    records: Sequence[Record]  # of the batch in work
    method: str
    seconds: float
    seconds_left: float | None  # by the pace so far or by the budget


@dataclass
class _Work:
    """One batch in work."""

    problem: Problem  # as methods are asked: the smallest value, where the largest is meant
    goals: tuple[Goal, ...]  # of each row, as it was put
    brackets: list[Bracket]
    skipped: tuple[str, ...] = ()
    twin: Network | None = None
    digests: tuple[str, ...] = ()  # of the question of each row
    means: str = ""
    aside: dict[str, Tensor] = field(default_factory=dict)  # (batch, ...)
    answers: Tensor | None = None  # what the model said of the inputs at first
    faults: dict[int, HoldfastError] = field(default_factory=dict)  # rows of which nothing is believed any more
    able: frozenset[str] = frozenset()  # the methods that apply
    done: dict[str, Tensor] = field(default_factory=dict)  # methods, and (batch,) bool: the rows that they will not come back to
    began: float = field(default_factory=time.monotonic)
    queries: int = 0
    met: dict[int, Bound] = field(default_factory=dict)  # the lowest witness of a row that some judge does not believe
    ends: Tensor = field(init=False)  # (2, batch) float64: the values of all brackets, which `put` keeps in step

    def __post_init__(self) -> None:
        self.ends = torch.tensor([(b.lower.value, b.upper.value) for b in self.brackets], dtype=torch.float64).reshape(-1, 2).T

    def put(self, row: int, bracket: Bracket) -> None:
        self.brackets[row] = bracket
        self.ends.numpy()[:, row] = bracket.lower.value, bracket.upper.value

    def records(self, status: Status) -> list[Record]:
        share = len(self.problem)
        seconds, queries = (time.monotonic() - self.began) / share, self.queries // share
        digests, left = self.digests or ("",) * share, self._left().tolist()
        aside = {  # what is not NaN
            name: [value if told else None for value, told in zip(v, (~v.isnan()).reshape(share, -1).any(1).tolist(), strict=True)]
            for name, v in self.aside.items()
        }
        return [
            Record(
                key, bracket.turned() if goal in TURNED else bracket, self._status(row, status, left[row]), seconds, queries, self.skipped,
                digests[row], self.means, goal, {name: value for name, values in aside.items() if (value := values[row]) is not None},
            )
            for row, (key, goal, bracket) in enumerate(zip(self.problem.keys, self.goals, self.brackets, strict=True))
        ]  # fmt: skip

    def keep(self, name: str, rows: Tensor, values: Tensor) -> None:
        if name not in self.aside:
            self.aside[name] = values.new_full((len(self.problem), *values.shape[1:]), torch.nan)
        self.aside[name][rows] = values.to(self.aside[name])

    def unsettled(self, stop: Stop) -> Tensor:
        """The rows of which something is left to ask."""
        lower, upper = self.ends.unbind()
        open_rows: Tensor = (lower != upper) & (upper - lower > stop.gap) & ~self._left()
        open_rows[list(self.faults)] = False
        if stop.sign:
            index = torch.tensor([key.index for key in self.problem.keys])
            open_rows &= ~(lower > 0) & ~torch.isin(index, index[upper <= 0])
        return open_rows.nonzero().flatten()

    def _status(self, row: int, status: Status, left: bool) -> Status:
        return "refuted" if row in self.faults else "closed" if self.brackets[row].closed else "finished" if left else status

    def _left(self) -> Tensor:
        """(batch,) bool: has every method done all it can about the row?"""
        none = torch.zeros(len(self.problem), dtype=torch.bool)
        return torch.stack([self.done.get(name, none) for name in self.able] or [none]).all(0)

    def tighten(self, row: int, *, lower: Bound | None = None, upper: Bound | None = None, note: str | None = None) -> None:
        """A better end of one row. Where the ends then cross, one of them is wrong: that row is believed no more, the others are."""
        if row in self.faults:
            return
        try:
            better = self.brackets[row].tightened(lower=lower, upper=upper)
            better.tightened(upper=self.met.get(row))  # no proof may pass what the network itself gives, whatever its judges say
            if better is not self.brackets[row] or note is not None:
                self.put(row, better if note is None else replace(better, note=note))
        except Contradiction as error:
            self._disbelieve(row, Contradiction(f"input {self.problem.keys[row]}: {error}"))

    def refute(self, row: int, why: str) -> None:
        """The model is not what was proved."""
        told = (
            f"input {self.problem.keys[row]}: {self.problem.network.name} {why}, so it remembers what it was asked, draws random numbers "
            f"or chooses by its arithmetic, and nothing about it can be proved. Take that out, or fix its state."
        )
        self._disbelieve(row, BadInput(told))

    def _disbelieve(self, row: int, error: HoldfastError) -> None:
        self.faults[row] = error
        self.put(row, replace(_by_definition(self.problem)[row], note=str(error)))


Choice = Sequence[Method[Any]] | Callable[[Problem], Sequence[Method[Any]]]


def solve(
    problems: Iterable[Problem],
    methods: Choice,
    stop: Stop | None = None,
    *,
    seed: int = 0,
    batch: int | None = None,
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Record]:
    """Answer every problem with every method that applies, or with those that `methods` chooses for it; one record for each row of each
    problem, in order.

    Problems that share a network and a shape are solved in batches of at most `batch` rows (if not said: 128, on a graphics card
    1,024); a batch for which a graphics card has no room is halved and asked again. Rows the store already holds as
    finished are not asked again, interrupted ones go on from what was known; a store that holds answers to other questions is refused.
    Ctrl-C ends the search, keeps everything found so far, and marks what was not finished as interrupted. A row whose proof and witness
    exclude each other is raised as a Contradiction when all others are done and kept.
    """
    asked = list(problems)
    stop = stop or Stop()
    if batch is not None and batch < 1:
        raise BadInput(f"batch must be at least 1, got {batch}.")
    keys = [key for problem in asked for key in problem.keys]
    if len(set(keys)) != len(keys):
        raise BadInput("two questions share a key; give every row of every problem its own.")
    for problem in asked:
        problem.check()
    began = time.monotonic()
    ways = [methods(problem) if callable(methods) else methods for problem in asked]
    chosen = {key: way for problem, way in zip(asked, ways, strict=True) for key in problem.keys}
    told = [of_value([(m.name, m.settings()) for m in way] + [seed, stop.gap, stop.sign]) for way in ways]
    means = {key: hashed for problem, hashed in zip(asked, told, strict=True) for key in problem.keys}
    goals = {key: problem.goal for problem in asked for key in problem.keys}
    digests = {key: digest for problem in asked for key, digest in zip(problem.keys, problem.digests(), strict=True)} if store else {}
    answered, begun = _known(store, digests, means) if store else ({}, {})
    faults: list[HoldfastError] = []
    batches = list(_batches(asked, means, set(answered), batch))
    total = len(keys)
    deadline = math.inf if stop.seconds is None else began + stop.seconds
    interrupted = False
    solved = 0
    to_solve = sum(len(b) for b in batches)
    for place, problem in enumerate(batches):
        now, first = time.monotonic(), problem.keys[0]
        share = (deadline - now) / (len(batches) - place)

        def report(records: Sequence[Record], method: str, solved: int = solved) -> None:
            if store:
                store.write(records)
            if progress:
                passed = time.monotonic() - began
                left = passed / solved * (to_solve - solved) if solved else None
                if stop.seconds is not None:
                    left = max(0.0, min(deadline - time.monotonic(), math.inf if left is None else left))
                done = len(answered.keys() | {r.key for r in records if r.status in ("closed", "finished")})
                progress(Progress(done, total, records, method, passed, left))

        work = _Work(problem, tuple(goals[key] for key in problem.keys), _by_definition(problem), means=means[first])
        work.digests = tuple(digests[key] for key in problem.keys if store)
        try:
            with clock.within(now + share):
                if not interrupted:
                    _begin(work, chosen[first])
                for row, key in enumerate(problem.keys):
                    _resume(work, row, begun.get(key))
                _hear_others(work, answered)
                status: Status = (
                    "interrupted"
                    if interrupted
                    else _work(work, chosen[first], stop, now + share, seed, report if store or progress else None)
                )
            before = problem.network.queries
            _ask_again(work)
            work.queries += problem.network.queries - before
        except KeyboardInterrupt:
            interrupted, status = True, "interrupted"
        except torch.OutOfMemoryError:
            if len(problem) == 1:
                raise
            # Half as many may fit. What was found of them is not lost.
            begun.update((record.key, record) for record in work.records("interrupted"))
            batches[place + 1 : place + 1] = [problem.take(half) for half in _halves(problem)]
            torch.cuda.empty_cache()
            continue
        faults += work.faults.values()
        records = work.records(status)
        answered.update((record.key, record) for record in records)
        solved += len(records)
        report(records, "done", solved=solved)
    for problem in asked:
        if problem.keys[0].part:
            better, wrong = _hear_at_last(problem, answered)
            faults += wrong
            answered.update((record.key, record) for record in better)
            if store:
                store.write(better)
    if interrupted:
        warnings.warn("interrupted: what was found so far is kept, the rest is marked as interrupted.", stacklevel=2)
    if faults:
        more = f" The same is true of {len(faults) - 1} more." if len(faults) > 1 else ""
        raise type(faults[0])(f"{faults[0]}{more}")
    return [answered[key] for key in keys]


def _batches(problems: list[Problem], means: Mapping[Key, str], known: set[Key], size: int | None) -> Iterable[Problem]:
    """Group what can share a batch as methods are asked, leave out what is known, cut to size."""
    groups: dict[tuple[object, ...], list[Problem]] = {}
    for problem in (p.lowest() for p in problems):
        groups.setdefault((means[problem.keys[0]], *problem.mergeable()), []).append(problem)
    for group in groups.values():
        whole = merge(group)
        open_rows = torch.tensor([i for i, key in enumerate(whole.keys) if key not in known], dtype=torch.int64)
        usual = 1024 if whole.region.centre.is_cuda else 128
        for rows in open_rows.split(size or usual):
            if len(rows):
                yield whole.take(rows.to(whole.region.centre.device))


def _halves(problem: Problem) -> tuple[Tensor, ...]:
    return torch.arange(len(problem), device=problem.region.centre.device).tensor_split(2)


def _by_definition(problem: Problem) -> list[Bracket]:
    """What is known before anything is asked."""
    least, most = {"radius": (0.0, math.inf), "steepness": (-math.inf, 0.0)}.get(problem.goal, (-math.inf, math.inf))
    return [Bracket(by_definition(least), by_definition(most))] * len(problem)


def _known(store: Sink, digests: dict[Key, str], means: dict[Key, str]) -> tuple[dict[Key, Record], dict[Key, Record]]:
    """What the store holds of these questions: finished with these means, and begun. An answer to another question is refused."""
    finished, unfinished = store.finished(), store.unfinished()
    for key, record in {**finished, **unfinished}.items():
        if key in digests and record.question != digests[key]:
            raise StoreError(
                f"the store holds an answer for input {key} that belongs to another question: the network, the input, the region or the "
                f"property is not the one it was given for{'' if record.question else ' (it was written by an older version)'}. Use "
                f"another store (--out), or ask what was asked there."
            )
    done = {key: record for key, record in finished.items() if record.means == means.get(key)}
    return done, {**unfinished, **{key: record for key, record in finished.items() if key not in done}}


def _resume(work: _Work, row: int, earlier: Record | None) -> None:
    """An interrupted search goes on from its better ends."""
    if earlier is not None and earlier.status != "refuted":
        known = earlier.bracket.turned() if earlier.goal in TURNED else earlier.bracket
        work.tighten(row, lower=known.lower, upper=known.upper)
        work.brackets[row] = replace(work.brackets[row], estimates=known.estimates)
        for name, value in earlier.aside.items() if earlier.means == work.means else ():
            work.keep(name, torch.tensor([row]), value[None])


def _hear_others(work: _Work, answered: Mapping[Key, Record]) -> list[HoldfastError]:
    """The same inputs answer the other parts of a question too: what they witness there is replayed here, and may contradict what is
    proved. Only a property that fails is a witness of a radius, and only a point of the region one of a worst score; `replay` knows."""
    problem, before = work.problem, set(work.faults)
    if not problem.keys[0].part or isinstance(problem.region, Words):
        return []
    by_place: dict[tuple[int, int | None], list[tuple[str, Evidence]]] = {}
    for key, record in answered.items():
        ends = (record.bracket.lower.evidence, record.bracket.upper.evidence)
        by_place.setdefault((key.index, key.frame), []).extend((key.part, e) for e in ends if e.witness is not None)
    every = [[e for part, e in by_place.get((key.index, key.frame), ()) if part != key.part] for key in problem.keys]
    for turn in range(max(map(len, every), default=0)):
        points, found = problem.region.centre.clone(), torch.zeros(len(problem), dtype=torch.bool)
        for row, shown in enumerate(every):
            witness = shown[turn].witness if turn < len(shown) else None
            if witness is not None and tuple(witness.shape) == problem.region.shape:
                points[row], found[row] = witness.to(points), True
        said = replay(problem, points, work.twin)
        for row in found.nonzero().flatten().tolist():
            if float(said.value[row]) < work.brackets[row].upper.value:
                work.tighten(row, upper=said.bound(row, every[row][turn], problem))
    return [fault for row, fault in work.faults.items() if row not in before]


def _hear_at_last(problem: Problem, answered: Mapping[Key, Record]) -> tuple[list[Record], list[HoldfastError]]:
    """What was found last may better what was found first, in this run or before it was stopped."""
    rows = [row for row, key in enumerate(problem.keys) if answered[key].status != "refuted"]
    if not rows:
        return [], []
    asked = problem.take(torch.tensor(rows, device=problem.region.centre.device))
    known = [answered[key] for key in asked.keys]
    brackets = [r.bracket.turned() if r.goal in TURNED else r.bracket for r in known]
    work = _Work(asked.lowest(), (asked.goal,) * len(asked), brackets, twin=problem.network.double(problem.region.centre))
    faults = _hear_others(work, answered)
    heard = zip(known, work.records("finished"), strict=True)
    return [replace(old, bracket=new.bracket, status=new.status if new.status != "finished" else old.status) for old, new in heard], faults


def _ask_again(work: _Work) -> None:
    """After the proofs the model must still be what was proved: it says of the inputs what it said before, in a batch and alone, and at the
    witnesses its float64 twin says the same. Else it is no one function, and nothing that was proved of it is believed."""
    problem, proved = work.problem, {row for row, bracket in enumerate(work.brackets) if _by_proof(bracket)}
    if work.answers is None:
        return
    if proved:
        again = problem.answers(problem.region.centre)
        alone = problem.take(torch.tensor([0])).answers(problem.region.centre[:1])
        if not (alike(work.answers, again) and same_by_rounding(alone, again[:1])):
            for row in range(len(problem)):
                work.refute(row, "answers differently now than before the proofs")
    shown = [row for row, b in enumerate(work.brackets) if row not in work.faults and b.upper.evidence.witness is not None]
    shown = shown if proved else shown[:SINGLE]
    if isinstance(problem.region, Words) or not shown:
        return
    witnesses = [work.brackets[row].upper.evidence.witness for row in shown]
    points = torch.stack([point for point in witnesses if point is not None]).to(problem.network.device, problem.network.dtype)
    size = work.answers.abs().amax().double()  # at a witness outputs may be near zero
    said, precise = problem.network(points), work.twin(points) if work.twin is not None and proved else None
    for place, row in enumerate(shown):
        if precise is not None and row in proved and not same_by_rounding(said[place], precise[place], size):
            work.refute(row, "answers differently in float64 at the witness")
        elif place < SINGLE and not same_by_rounding(said[place : place + 1], problem.network(points[place : place + 1]), size):
            work.refute(row, "answers differently at the witness when it is asked alone")


def _by_proof(bracket: Bracket) -> bool:
    return bracket.lower.evidence.kind == "proved" and bracket.lower.evidence.method not in ("definition", "the input itself")


def _begin(work: _Work, methods: Sequence[Method[Any]]) -> None:
    """What is known before any method runs: which methods apply, and the score at the centre."""
    problem, centre = work.problem, work.problem.region.centre
    work.twin = problem.network.double(centre)  # what making it asks is no part of the search
    before = problem.network.queries
    reasons = ((m.name, m.unfit(problem)) for m in methods)
    work.skipped = tuple(f"{name}: {reason}" for name, reason in reasons if reason is not None)
    work.answers = outputs = problem.answers(centre)
    scores = problem.property.score(outputs)
    if work.twin is not None and bool((scores == 0).any()):  # a tie may be one of rounding only
        scores = torch.where(scores == 0, problem.property.score(work.twin(centre)).to(scores), scores)
    limits = problem.family.limit().tolist() if problem.goal == "radius" else []
    for row, (limit, holds) in enumerate(zip(limits, (scores > 0).tolist(), strict=False)):
        if not holds:
            itself = problem.region.tokens if isinstance(problem.region, Words) else centre
            witness = Evidence(
                "witnessed", "the input itself", dtype=str(problem.network.dtype), witness=itself[row].cpu(), traits=DEFINITION
            )
            note = f"the property fails at the input itself (the network says {int(outputs[row].argmax())})"
            work.put(row, Bracket(by_definition(0.0), Bound(0.0, witness), note=note))
        elif limit == 0:
            proof = Evidence(
                "proved", "the input itself", dtype=str(problem.network.dtype), assumptions=(NOTHING_MOVES,), traits=DEFINITION
            )
            work.put(row, Bracket(Bound(math.inf, proof), by_definition(math.inf), note=NOTHING_MOVES))
    if problem.goal == "worst":
        plain = torch.tensor([goal == "worst" for goal in work.goals], device=scores.device)
        aside = {"score": torch.where(plain, scores.double(), torch.nan)} if bool(plain.any()) else {}
        _hear(work, Claims(witness=centre, found=torch.ones(len(problem), dtype=torch.bool), aside=aside), None, None)
    work.queries = problem.network.queries - before


def _work(
    work: _Work,
    methods: Sequence[Method[Any]],
    stop: Stop,
    deadline: float,
    seed: int,
    report: Callable[[Sequence[Record], str], None] | None,
) -> Status:
    """Step the methods in turn until each is done or the budget is, and say which. Rows that are closed already are left out.

    Methods whose steps are long begin when the others have done what they can.
    """
    problem = work.problem
    rows = work.unsettled(stop)
    if not len(rows):
        return "finished"
    part = problem.take(rows.to(problem.region.centre.device))
    able = [method for method in methods if method.unfit(problem) is None]
    work.able = frozenset(method.name for method in able)
    for turn in ([m for m in able if not m.long_steps], [m for m in able if m.long_steps]):
        live: list[tuple[Method[Any], Any]] = [(method, None) for method in turn]
        while live:
            ongoing = []
            for method, state in live:
                if not len(work.unsettled(stop)):
                    return "finished"
                if _spent(work, stop, deadline):
                    return "stopped"
                if state is None:
                    state = method.recalled(part, method.start(part, seed), {name: values[rows] for name, values in work.aside.items()})
                state = _stepped(work, part, rows, method, state, seed)
                if report is not None:
                    report(work.records("interrupted"), method.name)
                if state is not None:
                    ongoing.append((method, state))
            live = ongoing
    return "finished"


def _stepped(work: _Work, part: Problem, rows: Tensor, method: Method[Any], state: Any, seed: int) -> Any:
    """One step of one method on the rows of the problem that were open, and what it found heard."""
    before = part.network.queries
    lower, upper = work.ends[:, rows].to(part.region.centre.device)
    state, claims = method.step(part, method.told(part, state, lower, upper))
    _hear(work, claims, method, seed, rows)
    work.queries += part.network.queries - before
    return state


def _spent(work: _Work, stop: Stop, deadline: float) -> bool:
    asked_enough = stop.queries is not None and work.queries >= stop.queries * len(work.problem)
    return asked_enough or time.monotonic() >= deadline


def _hear(work: _Work, claims: Claims, method: Method[Any] | None, seed: int | None, rows: Tensor | None = None) -> None:
    """Turn claims into better brackets. `rows` says which rows of the batch they speak of; None: all."""
    index = torch.arange(len(work.problem)) if rows is None else rows
    name = method.name if method else "the input itself"
    settings = {**method.settings(), **claims.settings} if method else {}
    if claims.obstacle:
        work.skipped = (*work.skipped, f"{name}: {claims.obstacle}")
    checks = (*claims.checks, ASKED_AGAIN) if claims.checks else ()
    traits = method.traits if method else DEFINITION
    base = Evidence("proved", name, settings, seed, dtype=claims.dtype, assumptions=claims.assumptions, checks=checks, traits=traits)
    for name, values in claims.aside.items():
        work.keep(name, index, values)
    if claims.done is not None and method is not None:
        work.done.setdefault(method.name, torch.zeros(len(work.problem), dtype=torch.bool))[index[claims.done.to(index.device)]] = True
    if claims.proved is not None:
        limit = work.problem.family.limit() if work.problem.goal == "radius" else torch.full((len(work.problem),), math.inf)
        proved, limit = claims.proved.to(index.device, torch.float64), limit.to(index.device, torch.float64)[index]
        unbroken = replace(base, assumptions=(*base.assumptions, UNBROKEN))
        for place in ((proved > work.ends[0, index]) | (proved >= limit)).nonzero().flatten().tolist():
            if bool(proved[place] >= limit[place]):  # the region grows no more, so what holds here holds at every radius
                work.tighten(int(index[place]), lower=Bound(math.inf, unbroken), note=UNBROKEN)
            else:
                work.tighten(int(index[place]), lower=Bound(float(proved[place]), base))
    if claims.estimate is not None:
        guess = replace(base, kind=claims.estimate_kind, confidence=claims.confidence, dtype=str(work.problem.network.dtype))
        for i, value in zip(index.tolist(), claims.estimate.tolist(), strict=True):
            if not math.isnan(value) and i not in work.faults:
                work.brackets[i] = work.brackets[i].with_estimate(Bound(value, guess))
    if claims.witness is not None and claims.found is not None and bool(claims.found.any()):
        which = claims.found.to(index.device).nonzero().flatten()
        part = work.problem.take(index[which].to(work.problem.region.centre.device))
        points, said = firm(part, claims.witness[which.to(claims.witness.device)], work.twin)
        # People look at words, not at their vectors.
        seen = (part.region.decode(points) if isinstance(part.region, Words) else points).detach().cpu()
        best = work.twin if work.twin is not None and work.problem.goal == "worst" else work.problem.network
        shown = replace(base, kind="witnessed", dtype=str(best.dtype), checks=())
        said = Replayed(*(values.cpu() for values in said))
        lower, own = said.value < work.ends[1, index[which]], said.own < said.value
        every = zip(index[which].tolist(), lower.tolist(), own.tolist(), said.own.tolist(), strict=True)
        for place, (i, better, doubted, met) in enumerate(every):
            if not (better or doubted):
                continue
            bound = said.bound(place, replace(shown, assumptions=part.region.granted(place), witness=seen[place].clone()), part)
            if doubted and (i not in work.met or met < work.met[i].value):
                work.met[i] = replace(bound, value=met)
                work.tighten(i)
            if better:
                work.tighten(i, upper=bound)


class Replayed(NamedTuple):
    """What candidates witness, each (batch,)."""

    value: Tensor  # the upper ends; infinite where they witness nothing
    slack: Tensor  # how far these may be off by rounding
    executed: Tensor  # the scores as the user's own model gives them
    own: Tensor  # the upper ends where no judge is asked

    def bound(self, row: int, evidence: Evidence, problem: Problem) -> Bound:
        own = float(self.executed[row]) if problem.goal == "worst" else None
        return Bound(float(self.value[row]), evidence, float(self.slack[row]), own)


def firm(problem: Problem, x: Tensor, twin: Network | None) -> tuple[Tensor, Replayed]:
    """Candidates (batch, *shape), and what they witness.

    A search ends so close to the boundary that another arithmetic may see it on the other side. Such a candidate is pushed on a
    little before it is given up.
    """
    said = replay(problem, x, twin)
    if problem.goal != "radius" or not isinstance(problem.region, NormFamily):
        return x, said
    centre, values = problem.region.centre, said.value
    for further in (1e-6, 1e-5, 1e-4, 1e-3):
        lost = values.isinf() & problem.family.distance(x).isfinite()
        if not bool(lost.any()):
            break
        pushed = problem.region.domain.clamp(centre + (x - centre) * (1 + further))
        again = replay(problem, pushed, twin).value
        helped = lost & again.isfinite()
        x = torch.where(problem.region.per_row(helped), pushed, x)
        values = torch.where(helped, again, values)
    return x, said._replace(value=values, own=torch.minimum(said.own, values))


def replay(problem: Problem, x: Tensor, twin: Network | None) -> Replayed:
    """(batch, *shape) candidates, replayed.

    The user's own model has the word, and so has every judge. Where it has a float64 twin, that must agree too: proofs speak of the
    network in real arithmetic, and a class that flips only by float32 rounding is no counterexample to them.
    """
    first, *others = (_replayed(problem, point, twin) for point in problem.region.stand_ins(x))
    for other in others:
        worst = [torch.maximum(a, b) for a, b in zip(first, other, strict=True)]
        first = Replayed(worst[0], worst[1], first.executed, worst[3])
    return first


def _replayed(problem: Problem, x: Tensor, twin: Network | None) -> Replayed:
    region, required = problem.region, problem.property
    outputs = [problem.answers(x).double()]
    precise = twin is not None and twin is not problem.network
    if twin is not None and precise:
        outputs.append(problem.answers(x, twin))
    own = len(outputs)
    outputs += [judge(x).double().to(x.device) for judge in problem.judges]
    scores = torch.stack([required.score(z).double() for z in outputs])
    if problem.goal == "steepness":
        ratio = _ratio(problem, x, outputs, scores, twin if precise else None)
        return Replayed(ratio, torch.zeros_like(ratio), scores[0], ratio)
    if problem.goal == "worst":
        unit = torch.finfo(torch.float64 if precise else problem.network.dtype).eps
        slack = torch.nan_to_num(required.missed(outputs[own - 1], unit), torch.inf)
        coarse = math.sqrt(torch.finfo(problem.network.dtype).eps)
        fails = torch.stack([required.fails(z) for z in outputs])
        ends = [_lowest(scores[:many], scores[own - 1], fails[:many], coarse) for many in (len(outputs), own)]
        inside = region.contains(x)
        return Replayed(torch.where(inside, ends[0], torch.inf), slack, scores[0], torch.where(inside, ends[1], torch.inf))
    family = problem.family
    found = torch.where(~(scores > 0).any(0), family.below(family.distance(x)), torch.inf)
    return Replayed(found, torch.zeros_like(found), scores[0], found)


def _lowest(scores: Tensor, best: Tensor, fails: Tensor, coarse: float) -> Tensor:
    """(arithmetics, batch), (batch,) of the best one, (arithmetics, batch) -> (batch,): proofs speak of real arithmetic, to which the best
    one comes nearest. But a score that only it gives was not met by the others, and what is not positive must be so in all of them."""
    most = scores.amax(0)
    value = torch.where(most - best > coarse * (1 + best.abs()), most, best)
    held = torch.where(value > 0, value, most.clamp_min(SMALLEST))
    return torch.where(scores.isfinite().all(0), torch.where(fails.all(0), value.clamp_max(0), held), torch.inf)


def _ratio(problem: Problem, x: Tensor, outputs: list[Tensor], scores: Tensor, twin: Network | None) -> Tensor:
    """-> (batch,): minus the change of the score over the distance, the smallest of all arithmetics, less what rounding may add to it."""
    centre = problem.region.centre
    before = [problem.answers(centre).double(), *([] if twin is None else [twin(centre)])]
    before += [judge(centre).double().to(x.device) for judge in problem.judges]
    unit = torch.finfo(problem.network.dtype).eps
    noise = torch.stack([ROUNDING * unit * z.abs().amax(-1) for z in before])
    change = (scores - torch.stack([problem.property.score(z).double() for z in before])).abs() - noise
    ratio = (change.clamp_min(0) / problem.family.distance(x)).amin(0)
    return torch.where(problem.region.contains(x) & ratio.isfinite(), -ratio, torch.inf)


def answer_in_turn(
    questions: Sequence[tuple[Sequence[Key], str]],
    answer: Callable[[int], Sequence[Record]],
    stop: Stop,
    *,
    store: Sink,
    progress: Callable[[Progress], None] | None = None,
) -> list[Record]:
    """For what is no `Problem`, such as the scores of a sequence: questions with their keys and hashes, answered one after another by a
    function, with what `solve` promises about stores, limits and Ctrl-C. What was not asked any more has no record."""
    began, total = time.monotonic(), sum(len(keys) for keys, _ in questions)
    hashes = {key: hashed for keys, hashed in questions for key in keys}
    answered, _ = _known(store, hashes, dict.fromkeys(hashes, ""))
    for place, (keys, hashed) in enumerate(questions):
        if all(key in answered for key in keys):
            continue
        if stop.seconds is not None and time.monotonic() - began >= stop.seconds:
            break
        records = [replace(record, question=hashed) for record in answer(place)]
        store.write(records)
        answered.update((record.key, record) for record in records)
        if progress:
            progress(Progress(len(answered), total, records, "done", time.monotonic() - began, None))
    return [answered[key] for keys, _ in questions for key in keys if key in answered]
