"""Evaluation of a monitor's scores: against enumeration, attacks and random mutants."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.special import rel_entr
from torch import Tensor

from holdfast.monitor.engine import exact
from holdfast.monitor.engine.rerun import ConcatenatedSequences, prefix_outputs
from holdfast.monitor.engine.sampled import interval
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.score import Steps
from holdfast.result import Bound, Bracket, Key, Kind, Record, trivial_bound

PARTS = ("now", "final")  # Which label is compared: the one right after an element, or the final one.
# Stored with a record: whether a random mutant kept the label, and bounds of an estimate.
EXTRAS = ("kept", "interval")
HALVINGS = 60  # Of the interval of a mean: the ends are then exact to the last digits of a float.
# Bins of the reliability table; a score of 1 has a bin of its own.
RELIABILITY_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Mean:
    """A mean of values in [0, 1], one for each sequence, with an interval that contains the expected value
    with at least the stated confidence, however few sequences there are.

    For independent values in [0, 1] with mean m and expected value p (Hoeffding 1963, Theorem 1),

        P(m >= a) <= exp(-n KL(a, p)) for a >= p,    KL(a, p) = a log(a / p) + (1 - a) log((1 - a) / (1 - p)),

    and the same for a <= p, so the p with n KL(m, p) <= log(2 / (1 - confidence)) form the interval.
    """

    value: float
    low: float
    high: float

    @staticmethod
    def of(values: Tensor, confidence: float) -> "Mean":
        mean = min(1.0, max(0.0, float(values.double().mean())))
        most = math.log(2 / (1 - confidence)) / len(values)
        low, high = 0.0, 1.0
        inside_low, inside_high = mean, mean
        for _ in range(HALVINGS):
            middle = (low + inside_low) / 2
            low, inside_low = (low, middle) if _divergence(mean, middle) <= most else (middle, inside_low)
            middle = (high + inside_high) / 2
            high, inside_high = (high, middle) if _divergence(mean, middle) <= most else (middle, inside_high)
        return Mean(mean, low, high)


def _divergence(mean: float, expected: float) -> float:
    """KL(mean, expected) of two Bernoulli distributions."""
    return float(rel_entr(mean, expected) + rel_entr(1 - mean, 1 - expected))


@dataclass(frozen=True)
class Errors:
    """Errors of 0-step scores on attackable elements; `constant` is the MSE of the mean score."""

    squared: float
    absolute: float
    constant: float
    within: float  # share of elements for which the exact score is between low and high


@dataclass(frozen=True)
class Attack:
    """How often a random mutation of the element selected by the scores changes the final label."""

    k: Steps
    least: Mean
    most: Mean


@dataclass(frozen=True)
class Reliable:
    """Elements with a score in [low, high) (or of 1), and the share whose label a random mutant kept."""

    low: float
    high: float
    count: int
    score: float  # mean
    kept: float
    kept_low: float
    kept_high: float


@dataclass(frozen=True)
class Evaluation:
    """Results of `evaluate`."""

    kind: Kind  # of the monitor's evidence
    sequences: int
    places: int
    attackable: int
    eligible: int  # number of sequences with an attackable element
    confidence: float
    errors: Errors | None  # None if the mutation cannot be enumerated
    random: Mean | None
    attacks: tuple[Attack, ...]
    reliability: tuple[Reliable, ...]


def evaluate(
    monitor: Monitor, sequences: Sequence[Any], *, confidence: float = 0.95, seed: int = 0
) -> Evaluation:
    """Evaluate a monitor on sequences.

    errors: 0-step scores against exact ones. attacks: the expected success of mutating the least robust, the
    most robust or any attackable element, over all sequences that have one; by 0-step scores and, except for
    abstract models, by final ones. reliability: one random mutant of each attackable element is run by the
    user's own model.
    """
    records = [
        record
        for place, sequence in enumerate(sequences)
        for record in score_sequence(monitor, sequence, place, seed)
    ]
    return evaluation(
        records,
        {name: {r.key: r.aside[name] for r in records if name in r.aside} for name in EXTRAS},
        confidence,
    )


def score_sequence(monitor: Monitor, sequence: Any, place: int, seed: int) -> list[Record]:
    """Score one sequence, now and final: one record for each element.

    If every mutant can be run, the bracket is closed, proved by enumeration; otherwise it is [0, 1] by
    definition. The monitor's own score, if it does not come from enumeration, is stored as an estimate.
    """
    began, asked = time.monotonic(), monitor.net.queries
    read = monitor.read(sequence)
    kept = _label_stays(monitor, read, torch.Generator().manual_seed(seed * 2**32 + place))
    found: list[tuple[Key, Bracket, dict[str, Tensor]]] = []
    abstract, finite = monitor.settings.fitted, monitor.mutation.finite
    for part in PARTS:
        steps: Steps = 0 if part == "now" else "final"
        # An abstract model has no final scores: sample them.
        asked_by = _drawing(monitor) if abstract and part == "final" else monitor
        own = None if abstract and part == "final" and finite else asked_by.score_all([read], steps)[0]
        truth = (
            own.values
            if own is not None and own.evidence.kind == "proved"
            else _exact(monitor, [read], steps)
            if finite
            else None
        )
        for at in range(len(read)):
            bracket = Bracket(trivial_bound(0.0), trivial_bound(1.0))
            if truth is not None:
                proof = Bound(
                    float(truth[at]),
                    replace(
                        monitor.evidence(steps), kind="proved", method="Monitor (exact)", confidence=None
                    ),
                )
                bracket = Bracket(proof, proof)
            extras = {"kept": kept[at]} if part == "now" else {}
            if own is not None and own.evidence.kind != "proved":
                bracket = bracket.with_estimate(Bound(float(own.values[at]), own.evidence))
                extras["interval"] = torch.stack([own.low[at], own.high[at]])
            found.append((Key(place, at, part), bracket, extras))
    share = max(1, len(found))
    seconds, queries = (time.monotonic() - began) / share, (monitor.net.queries - asked) // share
    return [
        Record(
            key,
            bracket,
            "closed" if bracket.closed else "finished",
            seconds,
            queries,
            goal="probability",
            aside=aside,
        )
        for key, bracket, aside in found
    ]


def keys_of(place: int, length: int) -> tuple[Key, ...]:
    """Return the keys of the records of a sequence."""
    return tuple(Key(place, at, part) for part in PARTS for at in range(length))


def evaluation(
    records: Sequence[Record], extras: Mapping[str, Mapping[Key, Tensor]], confidence: float = 0.95
) -> Evaluation:
    """Summarize the records of `score_sequence`. extras: what is stored with them, by name."""
    rows = {part: [r for r in sorted(records, key=lambda r: r.key) if r.key.part == part] for part in PARTS}
    size = list(Counter(r.key.index for r in rows["now"]).values())
    proved, now = _numbers(rows["now"], extras["interval"])
    truth, final = _numbers(rows["final"], extras["interval"])
    kept = torch.tensor([float(extras["kept"][r.key]) for r in rows["now"]], dtype=torch.float64)
    attackable = ~kept.isnan()
    success = 1 - torch.where(truth.isnan(), final[0], truth)
    ranked: list[tuple[Steps, Tensor]] = [(0, now[0])]
    if all(r.bracket.closed or r.bracket.estimates for r in rows["final"]) and not _abstract(rows):
        ranked.append(("final", final[0]))
    parts = [
        (p, a) for p, a in zip(success.split(size), attackable.split(size), strict=True) if bool(a.any())
    ]
    attacks, anywhere = [], None
    if parts:
        attacks = [
            _attack(k, scores.split(size), success.split(size), attackable.split(size), confidence)
            for k, scores in ranked
        ]
        anywhere = Mean.of(torch.stack([part[free].mean() for part, free in parts]), confidence)
    said = [e.evidence.kind for r in rows["now"] for e in r.bracket.estimates]
    return Evaluation(
        said[0] if said else "proved",
        len(size),
        len(kept),
        int(attackable.sum()),
        len(parts),
        confidence,
        _errors(proved[attackable], [part[attackable] for part in now]),
        anywhere,
        tuple(attacks),
        tuple(_reliability(now[0][attackable], kept[attackable], confidence)),
    )


def _abstract(rows: Mapping[str, Sequence[Record]]) -> bool:
    """Whether the scores come from an abstract model, which has no final scores of its own."""
    return any(e.evidence.kind == "estimated" for r in rows["now"] for e in r.bracket.estimates)


def _numbers(rows: Sequence[Record], intervals: Mapping[Key, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Proved scores (n,) or NaN; the monitor's scores with lower and upper bounds, (n,) each."""
    proved = [r.bracket.lower.value if r.bracket.closed else torch.nan for r in rows]
    own = [
        r.bracket.estimates[0].value if r.bracket.estimates else proof
        for r, proof in zip(rows, proved, strict=True)
    ]
    ends = [
        intervals[r.key].tolist() if r.key in intervals else [value, value]
        for r, value in zip(rows, own, strict=True)
    ]
    low, high = torch.tensor(ends, dtype=torch.float64).reshape(-1, 2).unbind(1)
    return torch.tensor(proved, dtype=torch.float64), [torch.tensor(own, dtype=torch.float64), low, high]


def _drawing(monitor: Monitor) -> Monitor:
    """Return a sampling monitor: an abstract model has no final scores."""
    return Monitor(
        monitor.net,
        monitor.mutation,
        monitor.outputs,
        replace(monitor.settings, mode="sampled"),
        view=monitor.view,
    )


def _exact(monitor: Monitor, read: list[Tensor], k: Steps) -> Tensor:
    return exact.labels(
        monitor.net, read, monitor.mutation, outputs=monitor.outputs, k=k, view=monitor.view
    ).values


def _attack(
    k: Steps,
    scores: Sequence[Tensor],
    success: Sequence[Tensor],
    attackable: Sequence[Tensor],
    confidence: float,
) -> Attack:
    """Attack the first element with the lowest, and with the highest, score of each sequence."""
    least, most = [], []
    for score, chance, free in zip(scores, success, attackable, strict=True):
        known = free & ~score.isnan()
        if bool(known.any()):
            least.append(chance[torch.where(known, score, torch.inf).argmin()])
            most.append(chance[torch.where(known, score, -torch.inf).argmax()])
    return Attack(k, Mean.of(torch.stack(least), confidence), Mean.of(torch.stack(most), confidence))


def _errors(truth: Tensor, now: list[Tensor]) -> Errors | None:
    if not len(truth) or bool(truth.isnan().any()):
        return None
    value, low, high = now
    apart, within = value - truth, (low <= truth + 1e-12) & (truth <= high + 1e-12)
    return Errors(
        float(apart.square().mean()),
        float(apart.abs().mean()),
        float((truth - truth.mean()).square().mean()),
        float(within.double().mean()),
    )


def _label_stays(monitor: Monitor, read: Tensor, generator: torch.Generator) -> Tensor:
    """(n,): whether one random mutant of each element keeps the label; NaN if it has none."""
    attackable = monitor.attackable(read)
    rows, kept = attackable.nonzero()[:, 0], torch.full((len(read),), torch.nan, dtype=torch.float64)
    if len(rows):
        data = ConcatenatedSequences.of([read])
        mutants = torch.stack(
            [monitor.mutation.sample(element, 1, generator)[0] for element in data.elements[rows]]
        )
        base, moved = (
            prefix_outputs(monitor.net, data, rows, rows),
            prefix_outputs(monitor.net, data, rows, rows, mutants),
        )
        kept[rows] = (monitor.outputs.labels(moved, base) == monitor.outputs.own(base)).double()
    return kept


def _reliability(value: Tensor, kept: Tensor, confidence: float) -> list[Reliable]:
    place = torch.bucketize(value, torch.tensor(RELIABILITY_EDGES[1:], dtype=value.dtype), right=True)
    found = []
    for row, (low, high) in enumerate(zip(RELIABILITY_EDGES, (*RELIABILITY_EDGES[1:], 1.0), strict=True)):
        here = place == row
        count, hits = int(here.sum()), int(kept[here].sum())
        if count:
            ends = interval(hits, count, confidence)
            found.append(
                Reliable(
                    low, high, count, float(value[here].mean()), hits / count, float(ends[0]), float(ends[1])
                )
            )
    return found
