"""The labelled Markov decision process of MARBLE (Definition 3.2), and k-step robustness by propagation through it.

The paper's k-step (Definition 3.4) walks k unmutated steps and then reads eta, which mutates the element at i + k: that is another
question than the one asked, which mutates the element at i. `corrected` answers the one asked: step 0 goes to where the mutants went,
later steps follow the unmutated transitions, and the read-out is how often each label was emitted without any mutation. Both lose what
was never seen; the mass that is left comes back beside the value.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from holdfast.errors import BadInput

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MDP:
    """Abstract states 0..states-1, abstract inputs 0..inputs-1. Pairs (input, state) that were seen are sorted by input, then state."""

    states: int
    inputs: int
    initial: int
    keys: Ints  # (pairs,) input * states + state, rising
    count: Ints  # (pairs,) concrete transitions behind each
    eta: Floats  # (pairs, labels) mean of gamma_0: what mutants emit
    emitted: Floats  # (pairs, labels) what was emitted without mutation
    delta: Any  # csr (pairs, states): where the unmutated went
    mutated: Any  # csr (pairs, states): where the mutants went; None where they were not recorded

    @property
    def transitions(self) -> int:
        """Distinct (state, input, successor)."""
        return int(self.delta.nnz)

    @property
    def state(self) -> Ints:
        return self.keys % self.states

    @property
    def input(self) -> Ints:
        return self.keys // self.states

    def pair(self, states: Ints, inputs: Ints) -> Ints:
        """-> the place of each (state, input) among the pairs, -1 where it was never seen."""
        return _find(self.keys, inputs * self.states + states)

    def seen(self, states: Ints, inputs: Ints, successors: Ints) -> NDArray[np.bool_]:
        """Whether each whole transition is in the model: the stricter of the two meanings of 'missed'."""
        known = self.delta.tocoo()
        keys = np.sort(known.row.astype(np.int64) * self.states + known.col)
        pair = self.pair(states, inputs)
        found: NDArray[np.bool_] = (pair >= 0) & (_find(keys, pair * self.states + successors) >= 0)
        return found

    def robustness(
        self, states: Ints, inputs: Ints, labels: Ints, k: int = 0, *, corrected: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """One sequence: abstract states before each element, inputs, emitted labels (n,) each -> k-step value and the mass behind it, (n,).

        The value is the sum over what was seen, so it is at most the mass; value / mass estimates the score, and a mass of 0
        says that nothing is known. NaN where i + k is beyond the end.
        """
        value, mass = np.full(len(states), np.nan), np.full(len(states), np.nan)
        first = self.mutated if corrected else self.delta
        if first is None:
            raise BadInput(
                "the corrected k-step needs to know where mutants went: profile with mutants=True."
            )
        read = self.emitted if corrected and k else self.eta
        for i in range(len(states) - k):
            here = np.zeros(self.states)
            here[states[i]] = 1.0
            for step in range(k):
                here = self._walk(here, int(inputs[i + step]), first if step == 0 else self.delta)
            rows = self._rows(int(inputs[i + k]))
            weight = here[self.state[rows]]
            value[i], mass[i] = weight @ read[rows, labels[i + k]], weight.sum()
        return value, mass

    def _rows(self, element: int) -> slice:
        low, high = np.searchsorted(self.keys, [element * self.states, (element + 1) * self.states])
        return slice(int(low), int(high))

    def _walk(self, here: Floats, element: int, table: Any) -> Floats:
        rows = self._rows(element)
        there: Floats = table[rows].T @ here[self.state[rows]]
        return there


def build(
    before: Ints,
    inputs: Ints,
    after: Ints,
    labels: Ints,
    gamma: Floats,
    *,
    states: int,
    initial: int,
    mutants: tuple[Ints, Ints, Floats] | None = None,
) -> MDP:
    """Counts over concrete transitions (N,). mutants: where each mutant went, whose mutant it is (a transition), its probability."""
    keys, pair, count = np.unique(inputs * states + before, return_inverse=True, return_counts=True)
    ones = np.ones(len(pair))
    emitted = csr_matrix((ones, (pair, labels)), shape=(len(keys), gamma.shape[1])).toarray()
    eta = np.stack([np.bincount(pair, gamma[:, j], len(keys)) for j in range(gamma.shape[1])], 1)
    share = 1.0 / count
    return MDP(
        states,
        int(inputs.max()) + 1,
        initial,
        keys,
        count,
        eta * share[:, None],
        emitted * share[:, None],
        _rates(pair, after, ones, share, states),
        None if mutants is None else _rates(pair[mutants[1]], mutants[0], mutants[2], share, states),
    )


def _rates(pair: Ints, after: Ints, weight: Floats, share: Floats, states: int) -> Any:
    """-> csr (pairs, states): the weights that went from each pair to each state, over the pair's count."""
    table = csr_matrix((weight * share[pair], (pair, after)), shape=(len(share), states))
    table.sum_duplicates()
    return table


def _find(sorted_keys: Ints, wanted: Ints) -> Ints:
    place = np.searchsorted(sorted_keys, wanted).clip(max=len(sorted_keys) - 1)
    return np.where(sorted_keys[place] == wanted, place, -1)
