"""Check records: replay each counterexample through the model, and recompute each proved bound."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from holdfast.batch_solver import BatchWorker, Choice
from holdfast.batch_state import Stop
from holdfast.errors import HoldfastError
from holdfast.execution.task import Outputs, Task
from holdfast.formatting import exact_text
from holdfast.problem import Problem
from holdfast.replay import replay
from holdfast.result import RECOMPUTATION_TOLERANCE, Bracket, Key, Record
from holdfast.solver import BatchSettings


@dataclass(frozen=True)
class Doubt:
    """A record that could not be confirmed.

    Attributes:
        key: the record.
        kind: witness: the counterexample does not show the recorded value. contradiction: a counterexample
            excludes the proved bound. unproved: the bound was not proved again, which does not make it false.
        told: the details, as text.
    """

    key: Key
    kind: Literal["witness", "contradiction", "unproved"]
    told: str

    def __str__(self) -> str:
        return f"input {self.key}: {self.told}"


def replay_witnesses(problem: Problem, records: Sequence[Record]) -> Iterator[Doubt]:
    """Replay the witnesses of a problem's rows, in order, and yield a doubt for each that fails or
    contradicts a proof.
    """
    asked = problem.lowest()
    points, found, doubts = list[Tensor](), list[int](), list[Doubt]()
    for row, record in enumerate(records):
        witness = record.oriented.upper.evidence.witness
        point = None if witness is None else asked.region.from_data(witness)
        # A point of a region of edited texts is a row of token ids, and no array of the centre's shape.
        if point is None or (point.shape != asked.region.shape and not asked.region.changes_length):
            doubts.append(
                Doubt(
                    record.key,
                    "witness",
                    "it has no witness" if witness is None else "its witness is no input of this network",
                )
            )
            continue
        points.append(point)
        found.append(row)
    yield from doubts
    if not found:
        return
    part = asked.take(torch.tensor(found, device=asked.region.centre.device))
    said = replay(part, torch.stack(points), asked.network.double(asked.region.centre))
    least = asked.objective.least  # A count of changes is at least zero.
    for row, value, slack in zip(
        found, said.value.clamp_min(least).tolist(), said.slack.tolist(), strict=True
    ):
        yield from _compare_witness(records[row], value, slack)


def _compare_witness(record: Record, value: float, slack: float) -> Iterator[Doubt]:
    """Compare a record with the value that its witness gives now."""
    ends, scored = record.oriented, record.objective.scored
    lower, upper, sign = ends.lower.value, ends.upper.value, record.objective.sign
    room = slack + ends.upper.slack + RECOMPUTATION_TOLERANCE * max(1.0 if scored else 0.0, abs(upper))
    if not value <= upper + room or (scored and upper <= 0 < value):
        what = (
            "it shows nothing (it lies outside, or the property holds there)"
            if value == math.inf
            else f"it shows {exact_text(sign * value)}"
        )
        yield Doubt(record.key, "witness", f"its witness should show {exact_text(sign * upper)}, but {what}")
    if value < lower - slack - ends.lower.slack - RECOMPUTATION_TOLERANCE * abs(lower):
        yield Doubt(
            record.key,
            "contradiction",
            f"the record claims a proof of {exact_text(sign * lower)}, but its own witness shows "
            f"{exact_text(sign * value)}",
        )


class _Enough(Exception):
    """All claimed bounds are proved again; the search ends."""


def prove_again(
    problems: Sequence[Problem],
    methods: Choice,
    stop: Stop,
    records: Mapping[Key, Record],
    settings: BatchSettings,
    *,
    held: Mapping[Key, bool],
    tolerance: float = 1e-3,
    seconds: float = math.inf,
) -> Iterator[Doubt]:
    """Solve the problems again with the run's methods, starting without its proved bounds, and yield a doubt
    for each bound that is not reached.

    Args:
        problems: the problems of the run.
        methods: the methods of the run.
        stop: when the run stopped.
        records: the records of the run.
        settings: the seed and the batch size of the run. No question is hashed.
        held: the records whose witness was replayed with success; the search may start from it.
        tolerance: relative; a bound within the tolerance counts, because searches end near a bound and not at
            it.
        seconds: the time limit.
    """
    worker, until = (
        BatchWorker(problems, methods, stop, settings.seed, hashed=False),
        time.monotonic() + seconds,
    )
    units = worker.units(
        {key for problem in problems for key in problem.keys if key not in records}, settings.rows
    )
    left = sum(len(unit.keys) for unit in units)
    for unit in units:
        known = {record.key: record for record in worker.unknown(unit.keys)}
        for key, record in known.items():
            if held.get(key):
                known[key] = _keep_witness_only(record, records[key].oriented)
        fresh = dict(known)

        def has_reached(key: Key, fresh: dict[Key, Record] = fresh) -> bool:
            wanted, got = records[key].oriented.lower.value, fresh[key].oriented.lower.value
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
    """Return the record before the search: with the witness and without a proved bound."""
    known = unknown.oriented.tighten(upper=ends.upper)
    return replace(unknown, bracket=unknown.objective.orient(known))


def _answers(stop: Stop, reached: bool, record: Record, fresh: Record) -> bool:
    """Whether the bound is confirmed. If the run stopped at the sign, only the sign must be proved again."""
    return reached or (stop.sign and record.oriented.lower.value > 0 and fresh.oriented.lower.value > 0)


def _judge_record(record: Record, fresh: Record, again: bool, why: str) -> Iterator[Doubt]:
    ends, now, sign = record.oriented, fresh.oriented, record.objective.sign
    wanted, met = ends.lower.value, now.upper
    if fresh.status == "refuted":
        yield Doubt(record.key, "contradiction", fresh.bracket.note)
    elif met.value < wanted - met.slack - ends.lower.slack - RECOMPUTATION_TOLERANCE * (
        abs(wanted) if math.isfinite(wanted) else 0.0
    ):
        yield Doubt(
            record.key,
            "contradiction",
            f"the record claims a proof of {exact_text(sign * wanted)}, but {met.evidence.method} found "
            f"{exact_text(sign * met.value)}",
        )
    elif not again:
        yield Doubt(
            record.key,
            "unproved",
            f"{exact_text(sign * wanted)} was not proved again, only "
            f"{exact_text(sign * now.lower.value)}{why}",
        )
