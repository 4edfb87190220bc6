"""Is a record what it says? Its witness is replayed through the model, and its proved bound is proved again."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from holdfast.batch_solver import BatchWorker, Choice, Stop
from holdfast.errors import HoldfastError
from holdfast.execution.task import Outputs, Task
from holdfast.formatting import exact_text
from holdfast.problem import TURNED, Problem
from holdfast.region import Words
from holdfast.replay import replay
from holdfast.result import Bracket, Key, Record

ROUNDING = 1e-9  # by which the same number may come out elsewhere
SILENT = "failed", "refuted"  # records that claim nothing


@dataclass(frozen=True)
class Doubt:
    """witness: it does not show what the record says. contradiction: a witness excludes what is said to be proved. unproved: it was not
    proved again, which does not make it false."""

    key: Key
    kind: Literal["witness", "contradiction", "unproved"]
    told: str

    def __str__(self) -> str:
        return f"input {self.key}: {self.told}"


def orient_bounds(record: Record) -> Bracket:
    """As methods are asked: the proved bound is the lower one, the witnessed one the upper."""
    return record.bracket.negate() if record.goal in TURNED else record.bracket


def claims(record: Record) -> bool:
    """Does it say that something is proved, beyond what is true by definition?"""
    return record.status not in SILENT and orient_bounds(record).lower.value > (
        0 if record.goal == "radius" else -math.inf
    )


def shows(record: Record) -> bool:
    """Does it say that something was met?"""
    return record.status not in SILENT and orient_bounds(record).upper.value < (
        0 if record.goal == "steepness" else math.inf
    )


def replay_witnesses(problem: Problem, records: Sequence[Record]) -> Iterator[Doubt]:
    """Of the rows of a problem, in order: what their witnesses do not show, and what they exclude."""
    asked = problem.lowest()
    points, found, doubts = asked.region.centre.clone(), list[int](), list[Doubt]()
    for row, record in enumerate(records):
        witness, wanted = orient_bounds(record).upper.evidence.witness, asked.region.centre.shape[1:]
        if witness is not None and isinstance(asked.region, Words):
            wanted, known = asked.region.tokens.shape[1:], len(asked.region.vectors.table)
            fits = not witness.is_floating_point() and bool(((witness >= 0) & (witness < known)).all())
        else:
            fits = witness is not None and witness.is_floating_point()
        if witness is None or not fits or witness.shape != wanted:
            doubts.append(
                Doubt(
                    record.key,
                    "witness",
                    "it has no witness" if witness is None else "its witness is no input of this network",
                )
            )
            continue
        at = witness.to(points.device)
        points[row] = asked.region.vectors.table[at] if isinstance(asked.region, Words) else at.to(points)
        found.append(row)
    yield from doubts
    if not found:
        return
    rows = torch.tensor(found, device=points.device)
    part = asked.take(rows)
    said = replay(part, points[rows], asked.network.double(asked.region.centre))
    least = (
        0.0 if asked.goal == "radius" else -math.inf
    )  # a count of changes that fails at none leaves no less than none
    for row, value, slack in zip(
        found, said.value.clamp_min(least).tolist(), said.slack.tolist(), strict=True
    ):
        yield from _compare_witness(records[row], value, slack)


def _compare_witness(record: Record, value: float, slack: float) -> Iterator[Doubt]:
    """value: what the witness shows now."""
    ends = orient_bounds(record)
    lower, upper, sign = ends.lower.value, ends.upper.value, -1.0 if record.goal in TURNED else 1.0
    room = slack + ends.upper.slack + ROUNDING * max(1.0 if record.goal == "worst" else 0.0, abs(upper))
    if not value <= upper + room or (record.goal == "worst" and upper <= 0 < value):
        what = (
            "it shows nothing (it lies outside, or the property holds there)"
            if value == math.inf
            else f"it shows {exact_text(sign * value)}"
        )
        yield Doubt(record.key, "witness", f"its witness should show {exact_text(sign * upper)}, but {what}")
    if value < lower - slack - ends.lower.slack - ROUNDING * abs(lower):
        yield Doubt(
            record.key,
            "contradiction",
            f"{exact_text(sign * lower)} is said to be proved, but its own witness shows {exact_text(sign * value)}",
        )


class _Enough(Exception):
    """All that was claimed is proved again."""


def proved_again(
    problems: Sequence[Problem],
    methods: Choice,
    stop: Stop,
    records: Mapping[Key, Record],
    *,
    held: Mapping[Key, bool],
    seed: int = 0,
    batch: int | None = None,
    tolerance: float = 1e-3,
    seconds: float = math.inf,
) -> Iterator[Doubt]:
    """Ask about these records again, with the methods of the run but without what it proved, until that is proved again or the
    seconds are spent.

    held       of which records the witness was replayed and shows what it should: the search may go on from it.
    tolerance  relative: an end that is nearly reached counts, since searches end close to it, not at it.
    """
    worker, until = BatchWorker(problems, methods, stop, seed, hashed=False), time.monotonic() + seconds
    units = worker.units({key for problem in problems for key in problem.keys if key not in records}, batch)
    left = sum(len(unit.keys) for unit in units)
    for unit in units:
        known = {record.key: record for record in worker.unknown(unit.keys)}
        for key, record in known.items():
            if held.get(key):
                known[key] = _keep_witness_only(record, orient_bounds(records[key]))
        fresh = dict(known)

        def has_reached(key: Key, fresh: dict[Key, Record] = fresh) -> bool:
            wanted, got = orient_bounds(records[key]).lower.value, orient_bounds(fresh[key]).lower.value
            return got >= wanted - tolerance * abs(wanted) if math.isfinite(wanted) else got == wanted

        def report_progress(
            better: Sequence[Record],
            _: str,
            __: Outputs | None = None,
            /,
            *,
            fresh: dict[Key, Record] = fresh,
        ) -> None:
            fresh.update((record.key, record) for record in better)
            if all(_answers(stop, has_reached(key), records[key], fresh[key]) for key in fresh):
                raise _Enough

        why = ""
        try:
            share = (until - time.monotonic()) * len(unit.keys) / left
            answer = worker.answer(Task(unit.keys, max(0.0, share), known), report_progress)
            fresh.update((record.key, record) for record in answer.records)
            if answer.interrupted:
                raise KeyboardInterrupt
        except _Enough:
            pass
        except (HoldfastError, RuntimeError, MemoryError) as error:
            why = f" ({error})"
        left -= len(unit.keys)
        for key in unit.keys:
            yield from _judge_record(
                records[key], fresh[key], _answers(stop, has_reached(key), records[key], fresh[key]), why
            )


def _keep_witness_only(unknown: Record, ends: Bracket) -> Record:
    """What is known before the search: the witness, and nothing that is proved."""
    known = orient_bounds(unknown).tighten(upper=ends.upper)
    return replace(unknown, bracket=known.negate() if unknown.goal in TURNED else known)


def _answers(stop: Stop, reached: bool, record: Record, fresh: Record) -> bool:
    """Where only the sign was asked for, the sign is what must be proved again."""
    return reached or (
        stop.sign and orient_bounds(record).lower.value > 0 and orient_bounds(fresh).lower.value > 0
    )


def _judge_record(record: Record, fresh: Record, again: bool, why: str) -> Iterator[Doubt]:
    ends, now, sign = orient_bounds(record), orient_bounds(fresh), -1.0 if record.goal in TURNED else 1.0
    wanted, met = ends.lower.value, now.upper
    if fresh.status == "refuted":
        yield Doubt(record.key, "contradiction", fresh.bracket.note)
    elif met.value < wanted - met.slack - ends.lower.slack - ROUNDING * (
        abs(wanted) if math.isfinite(wanted) else 0.0
    ):
        yield Doubt(
            record.key,
            "contradiction",
            f"{exact_text(sign * wanted)} is said to be proved, but {met.evidence.method} met {exact_text(sign * met.value)}",
        )
    elif not again:
        yield Doubt(
            record.key,
            "unproved",
            f"{exact_text(sign * wanted)} was not proved again, only {exact_text(sign * now.lower.value)}{why}",
        )
