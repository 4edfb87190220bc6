"""The numbers of the examples 2.6, 3.3 and 4.2 of the MARBLE paper (Du et al., ASE 2020)."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.monitor.abstract.marble import Growth, Refinement, squared_distances
from holdfast.monitor.abstract.mdp import build_mdp
from holdfast.monitor.engine.exact import labels
from holdfast.monitor.mutation.groups import Groups

WORDS = ("i", "really", "like", "the", "that", "this", "movie", "we")
AFTER = {"i": 0, "we": 0, "really": 0, "like": 1, "the": 0, "that": 1, "this": 1, "movie": 1}
# The observations at the abstract state 1 with the abstract input 4: states s3, s6 and s10 of Figure 3.
OBSERVED = np.array([[1, 2], [1, 2], [2, 1]]) / 3


class LastWord(nn.Module):
    """Emits the label that Figure 1 shows after each word of the example."""

    def __init__(self) -> None:
        super().__init__()
        one_hot = nn.functional.one_hot(torch.tensor([AFTER[word] for word in WORDS]), 2).float()
        self.table = nn.Embedding.from_pretrained(one_hot)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.table(tokens)[:, -1]
        return outputs


def test_example_2_6_pointwise_robustness_of_that_is_two_thirds() -> None:
    place = {word: i for i, word in enumerate(WORDS)}
    net = hf.Network.from_torch(LastWord().eval(), tokens=True, shape=(5,))
    same = [place["the"], place["that"], place["this"]]
    mutation = Groups.of_sets(dict.fromkeys(same, same))
    sentence = torch.tensor([place[word] for word in ["i", "really", "like", "that", "movie"]])
    found = labels(net, [sentence], mutation)
    assert float(found.values[3]) == pytest.approx(2 / 3)
    assert int(found.support[3]) == 3
    assert found.attackable.tolist() == [False, False, False, True, False]


def test_example_3_3_aggregated_robustness_and_transitions() -> None:
    """Three transitions leave abstract state 1 with input 4: one to state 2, two to state 3."""
    mdp = build_mdp(
        before=np.array([1, 1, 1]),
        inputs=np.array([4, 4, 4]),
        after=np.array([2, 3, 3]),
        labels=np.array([1, 1, 0]),
        gamma=OBSERVED,
        states=5,
        initial=0,
    )
    (pair,) = mdp.pair(np.array([1]), np.array([4]))
    np.testing.assert_allclose(mdp.eta[pair], [4 / 9, 5 / 9])
    np.testing.assert_allclose(mdp.delta[[pair]].toarray()[0], [0, 0, 1 / 3, 2 / 3, 0])


def test_example_4_2_the_error_is_4_81_and_one_refinement_removes_it() -> None:
    _, error, count = squared_distances(np.array([4, 4, 4]), OBSERVED)
    assert error[0] / count[0] == pytest.approx(float(Fraction(4, 81)))
    places = np.array([[0.0], [0.1], [5.0]])  # Of s3, s6 and s10: the border of Figure 3 (c) separates s10.
    growth = Growth(
        Refinement(omega=1, theta=1 / 27, criterion="mean"), places, np.array([4, 4, 4]), OBSERVED
    )
    history = growth.grow()
    assert history == pytest.approx([4 / 81, 0.0])
    assert sorted(sorted(rows.tolist()) for rows in growth.rows.values()) == [[0, 1], [2]]


def test_a_threshold_above_the_error_keeps_the_state() -> None:
    growth = Growth(
        Refinement(omega=1, theta=5 / 81, criterion="mean"),
        np.array([[0.0], [0.1], [5.0]]),
        np.array([4, 4, 4]),
        OBSERVED,
    )
    assert growth.grow() == pytest.approx([4 / 81])
    assert len(growth.rows) == 1
