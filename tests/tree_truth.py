"""Exact radii of sums of trees over rows of a table, by asking the estimator about one row of every cell between its thresholds."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor

import holdfast as hf
from holdfast.region import Column, Columns


def last_left(threshold: float, kind: type = np.float32) -> float:
    """The largest float64 number that a tree takes for no more than its threshold, by halves."""
    low, high = threshold - 1 - abs(threshold), threshold + 1 + abs(threshold)
    while (middle := low + (high - low) / 2) not in (low, high):
        low, high = (middle, high) if float(kind(middle)) <= threshold else (low, middle)
    return low


def cuts_of(trees: Iterable[Any], features: int) -> list[list[float]]:
    """Of scikit-learn's trees: for each feature the last numbers on the left of its thresholds."""
    found: list[set[float]] = [set() for _ in range(features)]
    for tree in trees:
        for feature, threshold in zip(tree.tree_.feature, tree.tree_.threshold, strict=True):
            if feature >= 0:
                found[feature].add(last_left(float(threshold)))
    return [sorted(ends) for ends in found]


def nearest(low: float, high: float, at: float, step: float) -> float | None:
    """The number of an interval that is nearest, in steps where there are any; None where it holds none."""
    if low <= at <= high:
        return at
    if step:
        first, last = math.ceil(low / step) * step, math.floor(high / step) * step
        return None if first > last else first if at < low else last
    return None if low > high else low if at < low else high


def radius(
    answer: Callable[[Any], Any], columns: Columns, cuts: list[list[float]], x: list[float], label: int, norm: float
) -> float:  # fmt: skip
    """answer: rows -> the class of each, or -1 where two are as large. Infinite where no row breaks."""
    options: list[list[tuple[float, list[float]]]] = []  # for each column: how far, and its numbers
    for column, places in zip(columns.each, columns.places, strict=True):
        own = [x[i] for i in places]
        if column.worded:
            words = [[float(i == k) for i in range(len(own))] for k in range(len(own))]
            free = norm == 0 and not column.frozen
            options.append([(float(word != own), word) for word in words if free or word == own])
            continue
        ends = [-math.inf, *cuts[places[0]], math.inf]
        cells = [
            (math.nextafter(low, math.inf) if low > -math.inf else low, high)
            for low, high in itertools.pairwise(ends)
        ]
        found = [
            nearest(max(low, column.low), min(high, column.high), own[0], column.step) for low, high in cells
        ]
        values = [value for value in found if value is not None and (value == own[0] or not column.frozen)]
        options.append(
            [(abs(v - own[0]) / column.scale if norm else float(v != own[0]), [v]) for v in values]
        )
    order = [place for places in columns.places for place in places]
    rows, away = [], []
    for chosen in itertools.product(*options):
        flat = [number for _, numbers in chosen for number in numbers]
        rows.append([flat[order.index(place)] for place in range(len(order))])
        far = np.array([distance for distance, _ in chosen])
        away.append(far.sum() if norm == 0 else np.linalg.norm(far, norm))
    breaks = np.asarray(answer(np.array(rows))) != label
    least = float(np.array(away)[breaks].min()) if breaks.any() else math.inf
    return least - 1 if norm == 0 else least


def forest() -> tuple[hf.Network, Columns, list[list[float]], Callable[[Any], Any], Tensor, Tensor]:
    """Three small trees over a number, a whole number, a number that stays and a word; with rows of each class."""
    generator = np.random.default_rng(5)
    number, whole, still = (
        generator.normal(0, 1, 80),
        generator.integers(0, 9, 80),
        generator.normal(0, 1, 80),
    )
    word = np.eye(3)[generator.integers(0, 3, 80)]
    score = number + (whole - 4) / 3 + still / 2 + word @ [1.0, 0.0, -1.0]
    y = np.where(score > 0.4, 2, np.where(score > -0.6, 1, 0))
    table = np.column_stack([word[:, 0], number, whole, word[:, 1:], still])
    columns = Columns(
        (
            Column("number", low=-4, high=4, scale=0.5),
            Column("whole", step=1, low=0, high=9, scale=2),
            Column("still", frozen=True, low=-4, high=4),
            Column("word", one_of=("a", "b", "c")),
        ),
        order=("a", "number", "whole", "b", "c", "still"),
    )
    model = RandomForestClassifier(3, max_depth=3, random_state=0).fit(table, y)

    def answer(rows: Any) -> Any:
        share = model.predict_proba(rows)
        tied = (np.sort(share, 1)[:, -1] - np.sort(share, 1)[:, -2]) < 1e-12
        return np.where(tied, -1, share.argmax(1))

    right = np.flatnonzero(answer(table) == y)[[0, 1, 2, 5]]
    network = hf.Network.from_sklearn(model, columns=columns)
    return (
        network,
        columns,
        cuts_of(model.estimators_, 6),
        answer,
        torch.from_numpy(table[right]),
        torch.from_numpy(y[right]),
    )
