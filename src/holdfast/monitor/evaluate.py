"""How good are a monitor's scores? Against enumeration, against attacks, and against what random mutants do to the user's own model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.special import ndtri
from torch import Tensor

from holdfast.monitor.engine import exact
from holdfast.monitor.engine.rerun import Data, prefix_outputs
from holdfast.monitor.engine.sampled import interval
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.score import Scores, Steps
from holdfast.result import Kind

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of the reliability table; a score of 1 has a row of its own


@dataclass(frozen=True)
class Mean:
    """A mean over sequences, and where the true one lies with the confidence asked for (normal approximation)."""

    value: float
    low: float
    high: float

    @staticmethod
    def of(values: Tensor, confidence: float) -> "Mean":
        count, mean = len(values), float(values.double().mean())
        apart = float(ndtri((1 + confidence) / 2)) * float(values.double().std()) / count**0.5 if count > 1 else 1.0
        return Mean(mean, max(0.0, mean - apart), min(1.0, mean + apart))


@dataclass(frozen=True)
class Errors:
    """Scores now against enumeration, on attackable places; `constant` is the squared error of always saying the mean."""

    squared: float
    absolute: float
    constant: float
    within: float  # share of places where enumeration lies between low and high


@dataclass(frozen=True)
class Attack:
    """How often a random mutation of one place changes the final label, the place chosen by the scores."""

    k: Steps
    least: Mean
    most: Mean


@dataclass(frozen=True)
class Reliable:
    """Places whose score lies in [low, high) (or is 1), and the share of them whose label one random mutant left as it was."""

    low: float
    high: float
    count: int
    score: float  # mean
    kept: float
    kept_low: float
    kept_high: float


@dataclass(frozen=True)
class Evaluation:
    """`evaluate` says how each was measured."""

    kind: Kind  # of the monitor's evidence
    sequences: int
    places: int
    attackable: int
    eligible: int  # sequences with an attackable place
    confidence: float
    errors: Errors | None  # None where the mutation cannot be enumerated
    random: Mean | None
    attacks: tuple[Attack, ...]
    reliability: tuple[Reliable, ...]


def evaluate(monitor: Monitor, sequences: Sequence[Any], *, confidence: float = 0.95, seed: int = 0) -> Evaluation:
    """errors: the scores now against exact ones. attacks: the expected success, over all sequences with an attackable place, of
    mutating the least robust, the most robust or any attackable place; by scores now and, but for abstract models, by final ones.
    reliability: one random mutant for each attackable place goes through the user's own model."""
    read = [monitor.read(sequence) for sequence in sequences]
    now = monitor.score_all(read)
    final = None if monitor.settings.mode == "abstract" else monitor.score_all(read, "final")
    success = _success(monitor, read, final)
    eligible = [i for i, scores in enumerate(now) if scores.least is not None]
    ranked: list[tuple[Steps, list[Scores]]] = [(0, now)] if final is None else [(0, now), ("final", final)]
    attacks, anywhere = [], None
    if eligible:
        attacks = [_attack(k, scores, success, eligible, confidence) for k, scores in ranked]
        anywhere = Mean.of(torch.stack([success[i][now[i].attackable].mean() for i in eligible]), confidence)
    attackable = torch.cat([scores.attackable for scores in now])
    return Evaluation(
        now[0].evidence.kind, len(read), len(attackable), int(attackable.sum()), len(eligible), confidence,
        _errors(monitor, read, now), anywhere, tuple(attacks), tuple(_reliability(monitor, read, now, confidence, seed)),
    )  # fmt: skip


def _success(monitor: Monitor, read: list[Tensor], final: list[Scores] | None) -> list[Tensor]:
    """How likely a mutation of each place changes the final label: exact where the mutation is finite."""
    if final is not None and (monitor.settings.mode == "exact" or not monitor.mutation.finite):
        return [scores.attack_success for scores in final]
    if not monitor.mutation.finite:  # an abstract model has no final scores; draws have
        drawing = replace(monitor.settings, mode="sampled")
        drawn = Monitor(monitor.net, monitor.mutation, monitor.outputs, drawing, view=monitor.view)
        return [scores.attack_success for scores in drawn.score_all(read, "final")]
    return [1 - part for part in _exact(monitor, read, "final").split([len(sequence) for sequence in read])]


def _exact(monitor: Monitor, read: list[Tensor], k: Steps) -> Tensor:
    return exact.labels(monitor.net, read, monitor.mutation, outputs=monitor.outputs, k=k, view=monitor.view).values


def _attack(k: Steps, scores: list[Scores], success: list[Tensor], eligible: list[int], confidence: float) -> Attack:
    least = torch.stack([success[i][scores[i].least] for i in eligible])
    most = torch.stack([success[i][scores[i].most] for i in eligible])
    return Attack(k, Mean.of(least, confidence), Mean.of(most, confidence))


def _errors(monitor: Monitor, read: list[Tensor], now: list[Scores]) -> Errors | None:
    if not monitor.mutation.finite:
        return None
    chosen = torch.cat([scores.attackable for scores in now])
    if not bool(chosen.any()):
        return None
    truth = _exact(monitor, read, 0)[chosen]
    value, low, high = (torch.cat([getattr(scores, name) for scores in now])[chosen] for name in ("values", "low", "high"))
    apart, within = (value - truth).double(), (low <= truth + 1e-12) & (truth <= high + 1e-12)
    return Errors(
        float(apart.square().mean()),
        float(apart.abs().mean()),
        float((truth - truth.mean()).square().mean()),
        float(within.double().mean()),
    )


def _reliability(monitor: Monitor, read: list[Tensor], now: list[Scores], confidence: float, seed: int) -> list[Reliable]:
    rows = torch.cat([scores.attackable for scores in now]).nonzero()[:, 0]
    if not len(rows):
        return []
    data, generator = Data.of(read), torch.Generator().manual_seed(seed)
    mutants = torch.stack([monitor.mutation.sample(element, 1, generator)[0] for element in data.elements[rows]])
    base, moved = prefix_outputs(monitor.net, data, rows, rows), prefix_outputs(monitor.net, data, rows, rows, mutants)
    kept = monitor.outputs.labels(moved, base) == monitor.outputs.own(base)
    value = torch.cat([scores.values for scores in now])[rows]
    place = torch.bucketize(value, torch.tensor(EDGES[1:], dtype=value.dtype), right=True)
    found = []
    for row, (low, high) in enumerate(zip(EDGES, (*EDGES[1:], 1.0), strict=True)):
        here = place == row
        count, hits = int(here.sum()), int(kept[here].sum())
        if count:
            ends = interval(hits, count, confidence)
            found.append(Reliable(low, high, count, float(value[here].mean()), hits / count, float(ends[0]), float(ends[1])))
    return found
