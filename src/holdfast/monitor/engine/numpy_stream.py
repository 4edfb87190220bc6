"""Exact scores of token streams and short sequences, in plain numpy for speed."""

import copy
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from holdfast.monitor.engine.cells import rnn_relu
from holdfast.monitor.engine.recurrent import Recurrent
from holdfast.monitor.mutation.choices import Mutation, check_ids
from holdfast.monitor.outputs import Classes, Output

Numbers = np.ndarray[Any, Any]
CACHED_CHOICES = 2**14  # Number of elements whose choices are cached (chosen by hand).
Step = tuple[float, float, float, int, int]  # value, low, high, label, support


def compute_score(label: int, labels: Numbers, close: Numbers, probability: Numbers) -> Step:
    """Compute the score from the label of the original and the labels of all values, the original first.

    A stream cannot query the user's module about a close label, since it does not keep the past. Each widens
    the interval.
    """
    same = labels == label
    value = max(0.0, 1 - float(probability[~same].sum()))  # exactly 1 if no other label is reached
    if not close.any():
        return value, value, value, label, len(labels)
    if close[0]:
        return value, 0.0, 1.0, label, len(labels)
    low, high = (
        value - float(probability[same & close].sum()),
        value + float(probability[~same & close].sum()),
    )
    return value, max(0.0, low), min(1.0, high), label, len(labels)


class NumpyEngine:
    """Exact 0-step scores of tokens on a CPU, with an affine head and classes, in numpy only."""

    def __init__(self, view: Recurrent, mutation: Mutation) -> None:
        table = view.products()
        assert table is not None
        assert view.head is not None
        self.table = table.numpy()
        self.layers: list[tuple[Any, ...]] = [
            (x, *(None if t is None else t.numpy() for t in (x.w_in, x.b_in, x.w_rec, x.b_rec)))
            for x in view.layers
        ]
        self.weights, self.bias = view.head[0].T.contiguous().numpy(), view.head[1].numpy()
        self.first, self.width, self.slack = view.start(1).numpy(), view.width, view.slack
        # Whether outputs never grow far beyond those of the comparison.
        self.bounded = all(layer.step is not rnn_relu for layer in view.layers)
        self.relative = view.relative
        self.state: Numbers = self.first
        self.margin = 0.0  # margin of the last label
        self.said = self.weight = np.zeros(0)  # labels and probabilities of all values of the last element

        def ready(token: int) -> tuple[Numbers, Numbers]:
            found = mutation.choices(token)
            check_ids(found.values, len(self.table))
            return found.values.numpy(), found.probability.numpy()

        self._ready = lru_cache(maxsize=CACHED_CHOICES)(ready)

    @staticmethod
    def fits(view: Recurrent, mutation: Mutation, output: Output) -> bool:
        if (
            view.tokens is None
            or view.head is None
            or view.device.type != "cpu"
            or not isinstance(output, Classes)
        ):
            return False
        return mutation.finite and view.products() is not None

    def fresh(self) -> "NumpyEngine":
        """Return an engine in the initial state; tables and cached choices are shared."""
        other = copy.copy(self)
        other.reset()
        return other

    def reset(self) -> None:
        self.state = self.first

    @property
    def after(self) -> Numbers:
        """(d,): the state after the last element."""
        behind: Numbers = self.state[0]
        return behind

    def step(self, token: int) -> Step:
        ids, probability = self._ready(token)
        new = np.empty((len(ids), self.width), dtype=self.table.dtype)
        gates, below, at = self.table[ids], new, 0
        for layer, w_in, b_in, w_rec, b_rec in self.layers:
            if at:
                gates = below @ w_in.T + b_in
            recalled = w_rec @ self.state[0, at : at + layer.size]
            if b_rec is not None:
                recalled += b_rec
            ends = at + layer.width
            layer.step(gates, recalled[None], self.state[:, at:ends], new[:, at:ends], layer.size)
            below, at = new[:, at : at + layer.size], ends
        self.state = new[:1]
        outputs = new @ self.weights
        outputs += self.bias
        best = np.partition(outputs, -2, axis=1)
        margins = (best[:, -1] - best[:, -2]) / 2
        self.margin = margins[0]
        label = int(outputs[0].argmax())
        self.said, self.weight = outputs.argmax(1), probability
        if not margins.all():
            rows = torch.from_numpy(outputs)
            self.said = Classes().labels(rows, rows[:1].expand_as(rows)).numpy()
        # As Recurrent.doubt.
        slack = self.slack if self.bounded else np.maximum(self.slack, self.relative * np.abs(outputs).max(1))
        return compute_score(label, self.said, ~(margins > slack), probability)
