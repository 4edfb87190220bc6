"""A decision tree that estimates robustness scores where enumeration is too expensive.

    estimate = base(leaf) + effect(leaf, abstract input),   clipped to [0, 1]

MARBLE's refinement mostly learns which label is emitted, but the label and its margin are known at run time.
So this model estimates the score for (leaf, abstract input, emitted label), from attackable elements only
(others score 1 by definition). The leaf is found by a few linear splits of the state after the element and
the margin. An abstract input that was not seen in a leaf is answered by the deepest ancestor that has seen
it; then `support` is 0, and [low, high], calibrated on held-out sequences, is wider.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.monitor.abstract.traces import Traces
from holdfast.monitor.abstract.tree_growth import Floats, Growing, Grown, TransitionRows, bands, grow

# One in CALIBRATION_FOLD sequences is held out to calibrate the interval (chosen by hand).
CALIBRATION_FOLD = 10


@dataclass(frozen=True)
class DecisionTreeEstimate:
    """The tree as flat arrays; see `tree_growth`. An estimate, never a proof."""

    needs_state_before: ClassVar[bool] = False  # It reads the state after the element.

    growing: Growing
    inputs: int
    parent: Tensor  # (nodes,)
    base: Tensor  # (nodes,) float64
    split: Tensor  # (nodes,) index of the split, -1 for a leaf
    weight: Tensor  # (splits, d + 1) float32: of the state, then of log(1 + margin)
    threshold: Tensor  # (splits,)
    below: Tensor  # (splits, 2) child nodes
    keys: Tensor  # (entries,) node * inputs + abstract input, ascending
    effect: Tensor  # (entries,) float64
    support: Tensor  # (entries,)
    edges: Tensor  # (bins - 1,) boundaries of bins of the estimate
    errors: Tensor  # (2, 2, bins): unseen or seen in its leaf; lower or upper bound of the error
    labels: int = field(default=0)

    @classmethod
    def fit(
        cls, traces: Traces, settings: Growing | None = None, *, scores: Tensor | None = None
    ) -> "DecisionTreeEstimate":
        """Grow the tree twice: without held-out sequences, which calibrate the interval, and on all.

        scores: (N,) targets in place of the traces' 0-step scores, such as exact final-step scores of the
        same transitions.
        """
        settings = settings or Growing()
        if not bool(traces.attackable.any()):
            raise BadInput(
                "no element of these sequences has a mutant other than itself, so every score is 1 and "
                "there is nothing to learn."
            )
        labels, inputs = traces.gamma.shape[1], int(traces.abstract.max()) + 1
        some = traces.rows(traces.attackable)
        rows = _rows(some, (traces.scores if scores is None else scores)[traces.attackable])
        drawn = (
            np.random.default_rng(settings.seed).permutation(int(some.sequence.max()) + 1) % CALIBRATION_FOLD
            == 0
        )
        held = drawn[some.sequence.numpy()]
        edges, errors = bands(np.empty(0), np.empty(0, dtype=bool), np.empty(0), settings.confidence)
        if held.any() and not held.all():
            first = cls._flat(
                grow(rows.some(~held), labels, inputs, settings), settings, labels, inputs, edges, errors
            )
            chosen = some.rows(torch.from_numpy(held))
            value, support, _, _ = first.estimate(
                chosen.successors, chosen.abstract, chosen.labels, chosen.margins
            )
            edges, errors = bands(value.numpy(), support.numpy() > 0, rows.scores[held], settings.confidence)
        return cls._flat(grow(rows, labels, inputs, settings), settings, labels, inputs, edges, errors)

    @classmethod
    def _flat(
        cls, grown: Grown, settings: Growing, labels: int, inputs: int, edges: Floats, errors: Floats
    ) -> "DecisionTreeEstimate":
        return cls(
            settings,
            inputs,
            torch.tensor(grown.parent),
            torch.tensor(grown.base, dtype=torch.float64),
            torch.tensor(grown.split),
            torch.from_numpy(
                np.array(grown.weight, dtype=np.float32).reshape(len(grown.weight), grown.width)
            ),
            torch.tensor(grown.threshold, dtype=torch.float32),
            torch.tensor(grown.below, dtype=torch.int64).reshape(-1, 2),
            torch.from_numpy(np.concatenate(grown.keys)),
            torch.from_numpy(np.concatenate(grown.effect)),
            torch.from_numpy(np.concatenate(grown.support)),
            torch.from_numpy(edges),
            torch.from_numpy(errors),
            labels,
        )

    def to(self, device: torch.device) -> "DecisionTreeEstimate":
        """Return the tree on this device; copies are cached, one for each device."""
        if self.base.device == device:
            return self
        if device not in self._elsewhere:
            moved: dict[str, Any] = {name: value.to(device) for name, value in self.tensors().items()}
            self._elsewhere[device] = replace(self, **moved)
        return self._elsewhere[device]

    @cached_property
    def _elsewhere(self) -> "dict[torch.device, DecisionTreeEstimate]":
        return {}

    @property
    def leaves(self) -> int:
        """Number of leaves (abstract states)."""
        return int((self.split[1:] < 0).sum())

    @property
    def depth(self) -> int:
        """Upper bound on the number of nodes from the root to the deepest leaf."""
        return self.growing.depth + 2

    # ---- a batch

    @torch.no_grad()
    def estimate(
        self, after: Tensor, abstract: Tensor, labels: Tensor, margins: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Estimate scores: value, support, low, high, each (n,).

        Args:
            after: (n, d) states after the elements.
            abstract, labels, margins: (n,) abstract inputs, emitted labels and their margins.
        """
        node = self.descend(after, labels, margins)
        effect, support = self._known_to(node, abstract)
        value = (self.base[node] + effect).clamp(0, 1)
        ends = (
            value + self.errors[(support > 0).long(), :, torch.searchsorted(self.edges, value, right=True)].T
        )
        low, high = torch.minimum(ends[0], value).clamp(0, 1), torch.maximum(ends[1], value).clamp(0, 1)
        return value, support, low, high

    def descend(self, after: Tensor, labels: Tensor, margins: Tensor) -> Tensor:
        """Return the leaves (n,); the root for a label that does not exist."""
        node = torch.where((labels >= 0) & (labels < self.labels), labels + 1, 0)
        if not len(self.weight):
            return node
        right = (
            after.float() @ self.weight[:, :-1].T + margins.float().log1p()[:, None] * self.weight[:, -1]
            > self.threshold
        )
        for _ in range(self.growing.depth):
            split = self.split[node]
            side = right.gather(1, split.clamp_min(0)[:, None])[:, 0].long()
            node = torch.where(split < 0, node, self.below[split.clamp_min(0), side])
        return node

    def _known_to(self, leaf: Tensor, abstract: Tensor) -> tuple[Tensor, Tensor]:
        """The effect of each input at the deepest node that has seen it, and its support in the leaf."""
        effect, support, missing, node = (
            torch.zeros(len(leaf), dtype=torch.float64, device=leaf.device),
            torch.zeros_like(leaf),
            torch.ones_like(leaf).bool(),
            leaf,
        )
        known = (abstract >= 0) & (abstract < self.inputs)
        for step in range(self.depth):
            wanted = node * self.inputs + abstract
            at = torch.searchsorted(self.keys, wanted).clamp_max(len(self.keys) - 1)
            hit = missing & known & (self.keys[at] == wanted) & (node >= 0)
            effect = torch.where(hit, self.effect[at], effect)
            support = torch.where(hit, self.support[at], support) if step == 0 else support
            missing, node = missing & ~hit, torch.where(node >= 0, self.parent[node], node)
        return effect, support

    # ---- one state at a time

    @cached_property
    def _fast(self) -> "_Fast":
        return _Fast(self)

    def single(
        self, after: NDArray[np.float32], abstract: int, label: int, margin: float
    ) -> tuple[float, int, float, float]:
        """Return `estimate` for one state (d,) as Python numbers; takes microseconds."""
        return self._fast.estimate(after, abstract, label, margin)

    # ---- on disk

    def tensors(self) -> dict[str, Tensor]:
        return {name: value.contiguous() for name, value in vars(self).items() if isinstance(value, Tensor)}

    def settings(self) -> dict[str, Any]:
        return {"growing": asdict(self.growing), "inputs": self.inputs, "labels": self.labels}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> "DecisionTreeEstimate":
        return cls(
            Growing(**settings["growing"]),
            int(settings["inputs"]),
            **dict(tensors),
            labels=int(settings["labels"]),
        )


class _Fast:
    """The tree as lists and a dictionary.

    Each label has its own matrix of splits, so one small product evaluates them all.
    """

    def __init__(self, tree: DecisionTreeEstimate) -> None:
        self.inputs, self.labels, self.limit = tree.inputs, tree.labels, tree.depth
        self.parent, self.base = tree.parent.tolist(), tree.base.tolist()
        self.known = dict(
            zip(
                tree.keys.tolist(), zip(tree.effect.tolist(), tree.support.tolist(), strict=True), strict=True
            )
        )
        self.edges, self.errors = tree.edges.tolist(), tree.errors.tolist()
        self.tables = [self._table(tree, label) for label in range(tree.labels)]

    @staticmethod
    def _table(
        tree: DecisionTreeEstimate, label: int
    ) -> tuple[
        NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], dict[int, tuple[int, int, int]]
    ]:
        """Weights of state and margin, thresholds, and node -> (row, left, right), below a label."""
        where: dict[int, tuple[int, int, int]] = {}
        rows: list[int] = []
        waiting = [1 + label]
        while waiting:
            node = waiting.pop()
            split = int(tree.split[node])
            if split >= 0:
                left, right = tree.below[split].tolist()
                where[node] = (len(rows), left, right)
                rows.append(split)
                waiting += [left, right]
        weight = tree.weight[rows].numpy()
        return np.ascontiguousarray(weight[:, :-1]), weight[:, -1].copy(), tree.threshold[rows].numpy(), where

    def estimate(
        self, after: NDArray[np.float32], abstract: int, label: int, margin: float
    ) -> tuple[float, int, float, float]:
        node = label + 1 if 0 <= label < self.labels else 0
        if node and self.tables[label][3]:
            weight, slope, threshold, where = self.tables[label]
            right = (weight @ after + slope * math.log1p(margin) > threshold).tolist()
            while node in where:
                row, low, high = where[node]
                node = high if right[row] else low
        leaf, found = node, None
        while node >= 0 and 0 <= abstract < self.inputs and found is None:
            found = self.known.get(node * self.inputs + abstract)
            at, node = node, self.parent[node]
        effect, support = (0.0, 0) if found is None else (found[0], found[1] if at == leaf else 0)
        value = min(1.0, max(0.0, self.base[leaf] + effect))
        below, above = self.errors[support > 0]
        part = bisect_right(self.edges, value)
        return (
            value,
            support,
            max(0.0, min(value, value + below[part])),
            min(1.0, max(value, value + above[part])),
        )


def _rows(traces: Traces, scores: Tensor) -> TransitionRows:
    margin = traces.margins.double().log1p().numpy()
    return TransitionRows(
        traces.successors.float().numpy(),
        margin,
        traces.abstract.numpy(),
        traces.labels.numpy(),
        scores.double().numpy(),
    )
