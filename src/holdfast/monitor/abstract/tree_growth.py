"""Growing the decision tree estimate: offsets and effects shrunk towards the parent's estimate.

The root holds all attackable transitions, its children the transitions with one emitted label each. Below
these, each split is linear in (state after the element, log(1 + margin)): the direction is a ridge regression
of the residual, the threshold the one that reduces the squared error most. The estimate of a node for an
abstract input is its parent's plus an offset of the node plus an effect of the input,

    offset = (sum of residuals) / (count + pull)
    effect = (sum of residuals of the input) / (count of the input + pull)

so rare inputs stay close to the parent's estimate.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadInput

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
RIDGE_PENALTY = 0.1  # Ridge penalty as a share of each direction's variance (chosen by hand).
MOST_PCA_ROWS = 20_000  # Limit for the number of rows that PCA is fitted on (chosen by hand).
# Smallest number of held-out transitions for an interval of their own (chosen by hand).
SMALLEST_STRATUM = 40


@dataclass(frozen=True)
class Growing:
    """Settings of the tree.

    Attributes:
        depth: largest number of splits below a label.
        fewest, share: smallest number, and share of all, of the transitions in a leaf.
        omega: number of dimensions after PCA.
        pull: weight of the parent's estimate, in transitions.
        confidence: share of held-out scores that low..high should contain.
    """

    depth: int = 8
    fewest: int = 10
    share: float = 0.008
    omega: int = 16
    pull: float = 6.0
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if (
            self.depth < 0
            or min(self.fewest, self.omega) < 1
            or not (self.pull > 0 <= self.share < 1 and 0 < self.confidence < 1)
        ):
            raise BadInput(
                f"{self}: depth >= 0, fewest and omega >= 1, pull > 0, 0 <= share < 1, and 0 < confidence < "
                "1."
            )


@dataclass(frozen=True)
class TransitionRows:
    """Attackable transitions, one row each."""

    after: NDArray[np.float32]  # (n, d)
    margin: Floats  # (n,) log(1 + margin)
    abstract: Ints
    labels: Ints
    scores: Floats

    def some(self, chosen: NDArray[np.bool_]) -> "TransitionRows":
        return TransitionRows(
            self.after[chosen],
            self.margin[chosen],
            self.abstract[chosen],
            self.labels[chosen],
            self.scores[chosen],
        )


@dataclass
class Grown:
    """The tree as flat arrays.

    Node 0 is the root, node 1 + l holds label l. Splits have their own numbering.
    """

    width: int  # d + 1
    parent: list[int] = field(default_factory=list)
    base: list[float] = field(default_factory=list)  # mean plus all offsets from the root to the node
    split: list[int] = field(default_factory=list)  # split of each node, -1 for a leaf
    weight: list[Floats] = field(default_factory=list)  # (d + 1,) for each split
    threshold: list[float] = field(default_factory=list)
    below: list[tuple[int, int]] = field(default_factory=list)
    keys: list[Ints] = field(default_factory=list)  # node * inputs + abstract input, ascending
    effect: list[Floats] = field(default_factory=list)  # summed from the root to the node
    support: list[Ints] = field(default_factory=list)


def grow(rows: TransitionRows, labels: int, inputs: int, settings: Growing) -> Grown:
    """Grow the tree on these rows."""
    growth = _Growth(rows, inputs, settings)
    growth.add(np.arange(len(rows.scores)), -1)
    for label in range(labels):
        growth.add(np.flatnonzero(rows.labels == label), 0)
    waiting = [(1 + label, np.flatnonzero(rows.labels == label), settings.depth) for label in range(labels)]
    while waiting:
        node, chosen, depth = waiting.pop()
        side = growth.cut(node, chosen) if depth else None
        if side is not None:
            both = [chosen[~side], chosen[side]]
            growth.tree.below.append((growth.add(both[0], node), growth.add(both[1], node)))
            waiting += [
                (child, part, depth - 1) for child, part in zip(growth.tree.below[-1], both, strict=True)
            ]
    return growth.tree


class _Growth:
    def __init__(self, rows: TransitionRows, inputs: int, settings: Growing) -> None:
        from sklearn.decomposition import PCA

        self.rows, self.inputs, self.settings, self.tree = (
            rows,
            inputs,
            settings,
            Grown(rows.after.shape[1] + 1),
        )
        points = rows.after.astype(np.float64)
        some = np.random.default_rng(settings.seed).permutation(len(points))[:MOST_PCA_ROWS]
        pca = PCA(min(settings.omega, len(some), points.shape[1]), random_state=settings.seed).fit(
            points[some]
        )
        features = np.column_stack([pca.transform(points), rows.margin])
        self.centre, self.scale = features.mean(0), features.std(0) + 1e-9
        self.features, self.pca = (features - self.centre) / self.scale, pca
        self.fewest = max(settings.fewest, math.ceil(settings.share * len(points)))
        # Estimate and input effect for each row, by the deepest node that contains it.
        self.predicted = np.zeros(len(points))
        self.effect = np.zeros(len(points))

    def add(self, chosen: Ints, parent: int) -> int:
        """Add a node for these rows, and update their estimates."""
        tree, pull, node = self.tree, self.settings.pull, len(self.tree.parent)
        left = self.rows.scores[chosen] - self.predicted[chosen]
        offset = left.sum() / (len(chosen) + (pull if parent >= 0 else 0) or 1)
        inputs, first, which, count = np.unique(
            self.rows.abstract[chosen], return_index=True, return_inverse=True, return_counts=True
        )
        effect = np.bincount(which, left - offset, len(inputs)) / (count + pull)
        self.effect[chosen] += effect[which]
        self.predicted[chosen] += offset + effect[which]
        tree.parent.append(parent)
        tree.base.append(offset + (tree.base[parent] if parent >= 0 else 0.0))
        tree.split.append(-1)
        tree.keys.append(node * self.inputs + inputs)
        tree.effect.append(self.effect[chosen][first])
        tree.support.append(count)
        return node

    def cut(self, node: int, chosen: Ints) -> NDArray[np.bool_] | None:
        """Record the best linear split of a node; return which rows go right, None if no split helps."""
        if len(chosen) < 2 * self.fewest:
            return None
        left, points = self.rows.scores[chosen] - self.predicted[chosen], self.features[chosen]
        centred = points - points.mean(0)
        spread = centred.T @ centred
        spread[np.diag_indices_from(spread)] += RIDGE_PENALTY * len(chosen)
        direction = np.linalg.solve(spread, centred.T @ (left - left.mean()))
        along = points @ direction
        threshold = best_cut(along, left, self.fewest)
        if threshold is None:
            return None
        weight = direction / self.scale
        state = self.pca.components_.T @ weight[:-1]
        self.tree.split[node] = len(self.tree.weight)
        self.tree.weight.append(np.append(state, weight[-1]))
        self.tree.threshold.append(threshold + float(self.centre @ weight + self.pca.mean_ @ state))
        side: NDArray[np.bool_] = along > threshold
        return side


def best_cut(along: Floats, left: Floats, fewest: int) -> float | None:
    """The threshold for which two means explain `left` best, with at least `fewest` rows on each side."""
    order = np.argsort(along, kind="stable")
    sorted_along, total = along[order], left.sum()
    lower, count = left[order].cumsum()[:-1], np.arange(1, len(left))
    gain = lower**2 / count + (total - lower) ** 2 / (len(left) - count) - total**2 / len(left)
    gain[(count < fewest) | (len(left) - count < fewest) | (sorted_along[1:] <= sorted_along[:-1])] = 0.0
    best = int(gain.argmax())
    return float((sorted_along[best] + sorted_along[best + 1]) / 2) if gain[best] > 1e-9 else None


def bands(value: Floats, known: NDArray[np.bool_], truth: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Bin edges of held-out estimates, and error bounds (2, 2, bins): seen or not, lower or upper.

    The bounds are quantiles with the finite-sample correction of split conformal prediction, for each stratum
    with enough data; [-1, 1] if there is none.
    """
    edges = np.unique(np.quantile(value, np.linspace(0, 1, 9)[1:-1])) if len(value) else np.empty(0)
    found, bins = np.empty((2, 2, len(edges) + 1)), np.searchsorted(edges, value, side="right")
    for seen in (0, 1):
        for part in range(len(edges) + 1):
            here = (known == bool(seen)) & (bins == part)
            here = here if here.sum() >= SMALLEST_STRATUM else known == bool(seen)
            found[seen, :, part] = _error_range((truth - value)[here], 1 - confidence)
    return edges, found


def _error_range(error: Floats, alpha: float) -> tuple[float, float]:
    beyond = int(np.floor((len(error) + 1) * alpha / 2))  # number of errors left out on each side
    if beyond < 1:
        return (-1.0, 1.0)
    ordered = np.sort(error)
    return float(ordered[beyond - 1]), float(ordered[-beyond])
