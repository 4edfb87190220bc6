"""MARBLE: refined abstraction of the states of a recurrent network (Du et al., ASE 2020).

For a transition (s, x) of the network f and a mutation distribution mu, the 0-step label distribution is

    gamma(s, x)[y] = sum of mu(x, x') over the mutants x' for which f(s, x') emits y,

and an abstract state S with an abstract input X has the mean eta(S, X) of gamma over its transitions
(equation 2). Refinement (Algorithm 1) starts with a single abstract state. In each round every abstract state
is split at the first of its abstract inputs whose transitions have an error ||gamma - eta||^2 above theta:
2-means on gamma determines the two groups, and an SVC on the states (after PCA) the boundary. The splits form
a binary tree of classifiers; its leaves are the states of a labelled MDP.

The paper leaves three points open. (1) Line 20 of Algorithm 1 uses the mean error, which never exceeds 1 -
1/labels, so theta = 1.0 would never trigger. `criterion` is "sum", which gives models of the published size,
or "mean". (2) An SVC that puts all states on one side would loop forever. The next input is tried instead,
and if none is left, the state is not split. (3) "First" is taken as the order in which inputs appear in the
data.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.monitor.abstract.mdp import MDP, Floats, Ints, build_mdp
from holdfast.monitor.abstract.traces import Traces


@dataclass(frozen=True)
class Refinement:
    """Settings of the refinement. split: "marble", or "random", the paper's baseline."""

    omega: int = 16  # dimensions kept by PCA
    theta: float = 0.6
    criterion: Literal["sum", "mean"] = "sum"
    split: Literal["marble", "random"] = "marble"
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.theta > 0 and self.omega > 0):
            raise BadInput(
                f"theta {self.theta} and omega {self.omega} must be positive: theta is the error threshold, "
                "omega the number "
                "of dimensions."
            )
        if self.criterion not in ("sum", "mean") or self.split not in ("marble", "random"):
            raise BadInput(
                f"criterion {self.criterion!r}, split {self.split!r}: write 'sum' or 'mean', and 'marble' "
                "or 'random'."
            )


@dataclass
class RefinementNode:
    """A leaf, or a classifier that sends states to one of two child nodes."""

    classifier: Any = None
    below: tuple[int, int] = (-1, -1)
    leaf: int = -1


@dataclass(frozen=True)
class Marble:
    """The refined abstraction and its labelled MDP.

    errors: the MSE of Definition 4.1 on the training data, before the first round and after each.
    """

    settings: Refinement
    pca: Any
    nodes: list[RefinementNode]
    mdp: MDP
    errors: list[float]
    mean: float  # mean score of the attackable training transitions: the estimate for unseen pairs

    @classmethod
    def fit(cls, traces: Traces, settings: Refinement | None = None) -> "Marble":
        from sklearn.decomposition import PCA

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
        return assign_leaves(self.nodes, self.pca.transform(states.numpy().astype(np.float64)))

    def estimate(self, traces: Traces) -> tuple[Floats, NDArray[np.bool_]]:
        """0-step scores (N,), the training mean for unseen pairs, and whether each pair was seen."""
        pair = self.mdp.pair(self.abstract(traces.states), traces.abstract.numpy())
        scores = self.mdp.eta[pair, traces.labels.numpy()]
        return np.where(pair >= 0, scores, self.mean), pair >= 0

    def mse(self, traces: Traces) -> float:
        """Return the MSE of Definition 4.1 over the transitions with a known (state, input) pair.

        It is the mean squared distance of the label distributions.
        """
        pair = self.mdp.pair(self.abstract(traces.states), traces.abstract.numpy())
        return float(((self.mdp.eta[pair] - traces.gamma.numpy())[pair >= 0] ** 2).sum(1).mean())

    def misses(self, traces: Traces) -> tuple[float, float]:
        """The shares of unseen transitions (state, input, successor) and of unseen pairs (state, input)."""
        before, after, inputs = (
            self.abstract(traces.states),
            self.abstract(traces.successors),
            traces.abstract.numpy(),
        )
        whole = 1 - self.mdp.seen(before, inputs, after).mean()
        return float(whole), float((self.mdp.pair(before, inputs) < 0).mean())


def assign_leaves(nodes: list[RefinementNode], points: Floats) -> Ints:
    """(n, omega) -> (n,) leaves; each classifier is applied to a whole batch."""
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
    """Algorithm 1, lines 10 to 26. The concrete states of each leaf are stored with it."""

    settings: Refinement
    points: Floats  # (N, omega)
    inputs: Ints
    gamma: Floats
    nodes: list[RefinementNode] = field(default_factory=lambda: [RefinementNode()])
    rows: dict[int, Ints] = field(default_factory=dict)  # the transitions of each leaf

    def grow(self) -> list[float]:
        """Refine until no leaf can be split; return the MSE before the first round and after each."""
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
        """Split a leaf at the first input with an error above theta: its two new leaves, or none."""
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
        """Fit an SVC that separates the states of one pair; None if it puts all of them on one side."""
        from sklearn.cluster import KMeans
        from sklearn.svm import SVC

        if self.settings.split == "random":
            side = generator.randint(0, 2, len(chosen))
        else:
            side = KMeans(2, n_init=1, random_state=generator.randint(2**31)).fit(self.gamma[chosen]).labels_
        if side.min() == side.max():
            return None
        classifier = SVC(cache_size=500).fit(self.points[chosen], side)
        predicted = classifier.predict(self.points[chosen])
        return classifier if predicted.min() < predicted.max() else None


def squared_distances(inputs: Ints, gamma: Floats) -> tuple[Ints, Floats, Ints]:
    """The input index (n,) of each row; for each input the squared distance to its mean and its count."""
    _, which, count = np.unique(inputs, return_inverse=True, return_counts=True)
    total = np.stack([np.bincount(which, column) for column in gamma.T], 1)
    error = np.bincount(which, (gamma**2).sum(1)) - (total**2).sum(1) / count
    return which, error, count


def _model(traces: Traces, pca: Any, growth: Growth) -> MDP:
    """Build the MDP of the leaves that the training data reached."""

    def leaves(states: Tensor) -> Ints:
        return assign_leaves(growth.nodes, pca.transform(states.numpy().astype(np.float64)))

    before = np.empty(len(traces), dtype=np.int64)
    for leaf, rows in growth.rows.items():
        before[rows] = growth.nodes[leaf].leaf
    after = leaves(traces.successors)
    goes_on = (traces.sequence[1:] == traces.sequence[:-1]) & (traces.place[1:] == traces.place[:-1] + 1)
    followed = goes_on.nonzero()[:, 0].numpy()
    # The successor is the next row's state: take its leaf, because rounding could classify it differently
    # here.
    after[followed] = before[followed + 1]
    return build_mdp(
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
    """Collect the successors of mutants; elements without mutants keep their own successor."""
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
