"""The labelled Markov decision process of MARBLE (Definitions 3.2 and 3.4).

For abstract states S, S' and an abstract input X,

    delta(S, X, S') = share of the transitions from S with X that lead to S',
    eta(S, X)[y]    = mean over these transitions of the probability that a mutant emits y,

and the k-step robustness at position i is the sum over abstract paths S_i, ..., S_{i+k} of

    delta(S_i, X_i, S_{i+1}) ... delta(S_{i+k-1}, X_{i+k-1}, S_{i+k}) eta(S_{i+k}, X_{i+k})[y].

This definition follows k unmutated steps and then mutates the element at i + k, whereas Definition 2.5
mutates the element at i. With `corrected`, step 0 leads to the successors of the mutants, later steps follow
unmutated transitions, and the read-out is the share of unmutated transitions that emit y. Both lose
probability mass at unseen transitions; the remaining mass is returned.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadInput

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MDP:
    """A labelled MDP with abstract states 0..states-1 and abstract inputs 0..inputs-1.

    The (state, input) pairs that were seen are sorted by input, then by state.
    """

    states: int
    inputs: int
    initial: int
    keys: Ints  # (pairs,) input * states + state, ascending
    count: Ints  # (pairs,) number of concrete transitions
    eta: Floats  # (pairs, labels) mean of gamma: distribution of labels that mutants emit
    emitted: Floats  # (pairs, labels) distribution of labels emitted without mutation
    delta: Any  # csr (pairs, states): transition probabilities without mutation
    mutated: Any  # csr (pairs, states): transition probabilities of mutants; None if they were not recorded

    @property
    def transitions(self) -> int:
        """Number of distinct (state, input, successor)."""
        return int(self.delta.nnz)

    @property
    def state(self) -> Ints:
        return self.keys % self.states

    @property
    def input(self) -> Ints:
        return self.keys // self.states

    def pair(self, states: Ints, inputs: Ints) -> Ints:
        """Return the index of each (state, input) among the pairs, -1 if it was never seen."""
        return _find(self.keys, inputs * self.states + states)

    def seen(self, states: Ints, inputs: Ints, successors: Ints) -> NDArray[np.bool_]:
        """Whether each transition is in the model (the stricter meaning of 'missed')."""
        known = self.delta.tocoo()
        keys = np.sort(known.row.astype(np.int64) * self.states + known.col)
        pair = self.pair(states, inputs)
        found: NDArray[np.bool_] = (pair >= 0) & (_find(keys, pair * self.states + successors) >= 0)
        return found

    def robustness(
        self, states: Ints, inputs: Ints, labels: Ints, k: int = 0, *, corrected: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the k-step value and its probability mass, (n,) each, for the elements of one sequence.

        Args:
            states: (n,) abstract states before each element.
            inputs: (n,) abstract inputs.
            labels: (n,) emitted labels.

        The value sums over what was seen, so it is at most the mass. value / mass estimates the score; a mass
        of 0 means that nothing is known. NaN where i + k is beyond the end of the sequence.
        """
        value, mass = np.full(len(states), np.nan), np.full(len(states), np.nan)
        first = self.mutated if corrected else self.delta
        if first is None:
            raise BadInput(
                "the corrected k-step robustness needs the successors of mutants: profile with mutants=True."
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


def build_mdp(
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
    """Build the MDP from concrete transitions (N,).

    mutants: the successor state of each mutant, the transition that it is a mutant of, and its probability.
    """
    from scipy.sparse import csr_matrix

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
    """Csr (pairs, states): summed weights from each pair to each state, divided by the pair's count."""
    from scipy.sparse import csr_matrix

    table = csr_matrix((weight * share[pair], (pair, after)), shape=(len(share), states))
    table.sum_duplicates()
    return table


def _find(sorted_keys: Ints, wanted: Ints) -> Ints:
    place = np.searchsorted(sorted_keys, wanted).clip(max=len(sorted_keys) - 1)
    return np.where(sorted_keys[place] == wanted, place, -1)
