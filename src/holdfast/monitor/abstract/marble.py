"""MARBLE as published: an abstraction of a recurrent network's states, refined until its robustness labels fit (Du et al., ASE 2020).

All states begin as one abstract state. In each round every abstract state is split at the first of its abstract inputs whose labels err
by more than theta: 2-means on the label distributions says which states differ, an SVC on the states (after PCA) says where the border
runs. The splits form a binary tree of classifiers, and its leaves are the states of a labelled MDP.

Three things the paper leaves open. Line 20 of its algorithm writes a mean, which can never exceed 1 - 1/labels, so theta = 1.0 would
never fire: `criterion` is "sum" (which gives models of the published size) or "mean". An SVC that puts all states on one side would
loop for ever: the next input is tried, and where none is left the state stays as it is. "First" is the order in which inputs appear in
the data.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.svm import SVC
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.monitor.abstract.mdp import MDP, Floats, Ints, build
from holdfast.monitor.abstract.traces import Traces


@dataclass(frozen=True)
class Refinement:
    """How an abstraction is refined. split: "marble", or "random" for the paper's baseline, which draws the two sides."""

    omega: int = 16  # dimensions kept by PCA
    theta: float = 0.6
    criterion: Literal["sum", "mean"] = "sum"
    split: Literal["marble", "random"] = "marble"
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.theta > 0 and self.omega > 0):
            raise BadInput(
                f"theta {self.theta} and omega {self.omega} must be positive: theta is the error left, omega the dimensions kept."
            )
        if self.criterion not in ("sum", "mean") or self.split not in ("marble", "random"):
            raise BadInput(
                f"criterion {self.criterion!r}, split {self.split!r}: write 'sum' or 'mean', and 'marble' or 'random'."
            )


@dataclass
class RefinementNode:
    """A leaf, or a classifier that sends states to one of two nodes."""

    classifier: Any = None
    below: tuple[int, int] = (-1, -1)
    leaf: int = -1


@dataclass(frozen=True)
class Marble:
    """The refined abstraction and its labelled MDP. `errors`: Definition 4.1's MSE on the training data, before and after each round."""

    settings: Refinement
    pca: Any
    nodes: list[RefinementNode]
    mdp: MDP
    errors: list[float]
    mean: float  # score of the attackable training transitions: the answer where nothing was seen

    @classmethod
    def fit(cls, traces: Traces, settings: Refinement | None = None) -> "Marble":
        settings = settings or Refinement()
        states = traces.states.numpy().astype(np.float64)
        pca = PCA(min(settings.omega, *states.shape), random_state=settings.seed).fit(states)
        gamma, inputs = traces.gamma.numpy(), traces.abstract.numpy()
        growth = Growth(settings, pca.transform(states), inputs, gamma)
        errors = growth.grow()
        mdp = _model(traces, pca, growth)
        known = traces.scores[traces.attackable] if bool(traces.attackable.any()) else traces.scores
        return cls(settings, pca, growth.nodes, mdp, errors, float(known.mean()))

    def abstract(self, states: Tensor) -> Ints:
        """(n, d) -> (n,) abstract states."""
        return place(self.nodes, self.pca.transform(states.numpy().astype(np.float64)))

    def estimate(self, traces: Traces) -> tuple[Floats, NDArray[np.bool_]]:
        """-> 0-step scores (N,), the training mean where the (state, input) pair was never seen, and which pairs were seen."""
        pair = self.mdp.pair(self.abstract(traces.states), traces.abstract.numpy())
        scores = self.mdp.eta[pair, traces.labels.numpy()]
        return np.where(pair >= 0, scores, self.mean), pair >= 0

    def mse(self, traces: Traces) -> float:
        """Definition 4.1 over the transitions whose (state, input) pair is in the model: squared distance of whole label distributions."""
        pair = self.mdp.pair(self.abstract(traces.states), traces.abstract.numpy())
        return float(((self.mdp.eta[pair] - traces.gamma.numpy())[pair >= 0] ** 2).sum(1).mean())

    def misses(self, traces: Traces) -> tuple[float, float]:
        """Shares of transitions (state, input, successor), and of pairs (state, input), that the model has never seen."""
        before, after, inputs = (
            self.abstract(traces.states),
            self.abstract(traces.successors),
            traces.abstract.numpy(),
        )
        whole = 1 - self.mdp.seen(before, inputs, after).mean()
        return float(whole), float((self.mdp.pair(before, inputs) < 0).mean())


def place(nodes: list[RefinementNode], points: Floats) -> Ints:
    """(n, omega) -> (n,) leaves, a whole batch through each classifier."""
    found = np.empty(len(points), dtype=np.int64)
    waiting = [(0, np.arange(len(points)))]
    while waiting:
        at, rows = waiting.pop()
        node = nodes[at]
        if node.classifier is None:
            found[rows] = node.leaf
        elif len(rows):
            side = node.classifier.predict(points[rows]) > 0
            waiting += [(node.below[0], rows[~side]), (node.below[1], rows[side])]
    return found


@dataclass
class Growth:
    """Algorithm 1, lines 10 to 26, over concrete states that are kept beside their leaves."""

    settings: Refinement
    points: Floats  # (N, omega)
    inputs: Ints
    gamma: Floats
    nodes: list[RefinementNode] = field(default_factory=lambda: [RefinementNode()])
    rows: dict[int, Ints] = field(default_factory=dict)  # of each leaf

    def grow(self) -> list[float]:
        """-> the MSE before the first round and after each."""
        self.rows = {0: np.arange(len(self.points))}
        generator = np.random.RandomState(self.settings.seed)
        errors, waiting = {0: self._error(self.rows[0])}, [0]
        history = [sum(errors.values()) / len(self.points)]
        while waiting:
            split = [new for leaf in waiting for new in self._refine(leaf, generator)]
            for leaf in [leaf for leaf in errors if leaf not in self.rows]:
                del errors[leaf]
            errors |= {leaf: self._error(self.rows[leaf]) for leaf in split}
            history += [sum(errors.values()) / len(self.points)] if split else []
            waiting = split
        for number, leaf in enumerate(self.rows):
            self.nodes[leaf].leaf = number
        return history

    def _error(self, rows: Ints) -> float:
        return float(squared_distances(self.inputs[rows], self.gamma[rows])[1].sum())

    def _refine(self, leaf: int, generator: np.random.RandomState) -> tuple[int, ...]:
        """Splits a leaf at the first input that asks for it and can be split -> its two new leaves, or none."""
        rows = self.rows[leaf]
        which, error, count = squared_distances(self.inputs[rows], self.gamma[rows])
        beyond = error if self.settings.criterion == "sum" else error / count
        first = np.full(len(error), len(rows))
        np.minimum.at(first, which, np.arange(len(rows)))
        for pair in sorted(np.flatnonzero(beyond > self.settings.theta), key=lambda p: first[p]):
            chosen = rows[which == pair]
            classifier = self._border(chosen, generator)
            if classifier is None:
                continue
            side = classifier.predict(self.points[rows]) > 0
            self.nodes[leaf] = RefinementNode(classifier, (len(self.nodes), len(self.nodes) + 1))
            self.rows |= {len(self.nodes): rows[~side], len(self.nodes) + 1: rows[side]}
            self.nodes += [RefinementNode(), RefinementNode()]
            del self.rows[leaf]
            return self.nodes[leaf].below
        return ()

    def _border(self, chosen: Ints, generator: np.random.RandomState) -> Any:
        """An SVC that parts the states of one pair, or None where it puts them all on one side."""
        if self.settings.split == "random":
            side = generator.randint(0, 2, len(chosen))
        else:
            side = KMeans(2, n_init=1, random_state=generator.randint(2**31)).fit(self.gamma[chosen]).labels_
        if side.min() == side.max():
            return None
        classifier = SVC(cache_size=500).fit(self.points[chosen], side)
        said = classifier.predict(self.points[chosen])
        return classifier if said.min() < said.max() else None


def squared_distances(inputs: Ints, gamma: Floats) -> tuple[Ints, Floats, Ints]:
    """-> which input (n,) each row has, and for each input the summed squared distance of its rows to their mean, and its rows."""
    _, which, count = np.unique(inputs, return_inverse=True, return_counts=True)
    total = np.stack([np.bincount(which, column) for column in gamma.T], 1)
    error = np.bincount(which, (gamma**2).sum(1)) - (total**2).sum(1) / count
    return which, error, count


def _model(traces: Traces, pca: Any, growth: Growth) -> MDP:
    """The MDP of the leaves that the training data fell into."""

    def leaves(states: Tensor) -> Ints:
        return place(growth.nodes, pca.transform(states.numpy().astype(np.float64)))

    before = np.empty(len(traces), dtype=np.int64)
    for leaf, rows in growth.rows.items():
        before[rows] = growth.nodes[leaf].leaf
    after = leaves(traces.successors)
    goes_on = (traces.sequence[1:] == traces.sequence[:-1]) & (traces.place[1:] == traces.place[:-1] + 1)
    followed = goes_on.nonzero()[:, 0].numpy()
    after[followed] = before[followed + 1]  # the same state; rounding must not tell them apart
    return build(
        before,
        traces.abstract.numpy(),
        after,
        traces.labels.numpy(),
        traces.gamma.numpy(),
        states=len(growth.rows),
        initial=int(before[int(traces.place.argmin())]),
        mutants=_mutants(traces, leaves, after),
    )


def _mutants(traces: Traces, leaves: Any, after: Ints) -> tuple[Ints, Ints, Floats] | None:
    """Elements without mutants go where they went."""
    if traces.mutants is None:
        return None
    alone = (~traces.attackable).nonzero()[:, 0].numpy()
    there, of, probability = (
        leaves(traces.mutants.successors),
        traces.mutants.of.numpy(),
        traces.mutants.probability.double().numpy(),
    )
    return (
        np.concatenate([there, after[alone]]),
        np.concatenate([of, alone]),
        np.concatenate([probability, np.ones(len(alone))]),
    )
