"""MARBLE as published, against brute force over its own definitions."""

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from marble_truth import GROUP, SIZES, Small, labels_after, members, traces

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.monitor.abstract.marble import Marble, Refinement
from holdfast.monitor.abstract.mdp import build_mdp
from holdfast.monitor.abstract.traces import Traces, profile
from holdfast.monitor.mutation.groups import Groups

SOME = [
    Refinement(4, 0.3),
    Refinement(4, 0.6, split="random"),
    Refinement(4, 0.02, "mean"),
    Refinement(3, 0.6, seed=5),
]


def column(x: torch.Tensor) -> list[int]:
    return x.tolist()


@pytest.mark.parametrize("settings", SOME, ids=str)
def test_error_never_rises_in_refinement(settings: Refinement) -> None:
    """Theorem 4.3, and Definition 4.1 in its own words at the end."""
    for seed in range(4):
        found, _, _ = traces(seed)
        model = Marble.fit(found, settings)
        assert len(model.errors) > 2
        assert all(
            later <= earlier + 1e-12 for earlier, later in zip(model.errors, model.errors[1:], strict=False)
        )
        pairs = defaultdict(list)
        for state, group, gamma in zip(
            model.abstract(found.states).tolist(), column(found.abstract), found.gamma, strict=True
        ):
            pairs[state, group].append(gamma)
        total = sum(
            float(((g - torch.stack(rows).mean(0)) ** 2).sum()) for rows in pairs.values() for g in rows
        )
        assert model.errors[-1] == pytest.approx(total / len(found), abs=1e-12)
        assert model.mse(found) == pytest.approx(total / len(found), abs=1e-12)


def test_what_is_left_cannot_be_split_or_fits() -> None:
    """Without degenerate borders the sum over every pair is at most theta: here all states differ, so almost every leaf gets there."""
    found, _, _ = traces(1)
    model = Marble.fit(found, Refinement(6, 0.6))
    states = model.abstract(found.states)
    left = []
    for pair in set(zip(states.tolist(), column(found.abstract), strict=True)):
        rows = found.gamma[torch.from_numpy(states == pair[0]) & (found.abstract == pair[1])]
        left.append(float(((rows - rows.mean(0)) ** 2).sum()))
    assert np.mean(np.array(left) <= 0.6) > 0.9


def test_the_mdp_is_what_was_counted() -> None:
    found, _, _ = traces(2)
    mdp = (model := Marble.fit(found, Refinement(4, 0.3))).mdp
    before, after = model.abstract(found.states).tolist(), model.abstract(found.successors).tolist()
    groups, labels = column(found.abstract), column(found.labels)
    pairs, steps = Counter(zip(before, groups, strict=True)), Counter(zip(before, groups, after, strict=True))
    assert mdp.transitions == len(steps)
    assert len(mdp.keys) == len(pairs)
    assert mdp.initial == model.abstract(torch.zeros(1, 6))[0]
    for (state, group), count in pairs.items():
        at = mdp.pair(np.array([state]), np.array([group]))[0]
        rows = [i for i, pair in enumerate(zip(before, groups, strict=True)) if pair == (state, group)]
        assert mdp.count[at] == count
        np.testing.assert_allclose(mdp.eta[at], found.gamma[rows].mean(0).numpy())
        np.testing.assert_allclose(
            mdp.emitted[at], np.bincount([labels[i] for i in rows], minlength=3) / count
        )
        np.testing.assert_allclose(
            mdp.delta[at].toarray()[0], [steps[state, group, s] / count for s in range(mdp.states)]
        )
    np.testing.assert_allclose(mdp.mutated.sum(1), 1.0)


def test_misses_by_both_meanings() -> None:
    found, _, _ = traces(3)
    model = Marble.fit(found, Refinement(4, 0.3))
    assert model.misses(found) == (0.0, 0.0)
    other = traces(3, count=90)[0]
    other = other.rows(other.sequence >= 60)
    before, after = model.abstract(other.states).tolist(), model.abstract(other.successors).tolist()
    known = set(
        zip(
            model.abstract(found.states).tolist(),
            column(found.abstract),
            model.abstract(found.successors).tolist(),
            strict=True,
        )
    )
    steps = list(zip(before, column(other.abstract), after, strict=True))
    pairs = {(state, group) for state, group, _ in known}
    whole, pair = model.misses(other)
    assert whole == pytest.approx(np.mean([step not in known for step in steps]))
    assert pair == pytest.approx(np.mean([step[:2] not in pairs for step in steps]))
    assert whole > pair > 0
    value, seen = model.estimate(other)
    assert seen.mean() == pytest.approx(1 - pair)
    assert set(value[~seen]) == {model.mean}


def test_random_splits_need_more_states() -> None:
    """The paper's comparison, summed over seeds."""
    sizes = {
        split: sum(
            Marble.fit(traces(seed)[0], Refinement(4, 0.6, split=split)).mdp.states for seed in range(4)
        )
        for split in ("marble", "random")
    }
    assert sizes["random"] > sizes["marble"]


def test_the_same_seed_gives_the_same_model() -> None:
    found, _, _ = traces(4)
    one, two = (Marble.fit(found, Refinement(4, 0.3, seed=7)) for _ in range(2))
    assert one.errors == two.errors
    assert np.array_equal(one.abstract(found.successors), two.abstract(found.successors))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_equal_states_with_different_labels_end() -> None:
    """No border can part them: the leaf stays as it is."""
    found, _, _ = traces(0)
    same = Traces(**{**vars(found), "states": torch.zeros_like(found.states), "mutants": None})
    assert Marble.fit(same, Refinement(2, 0.1)).mdp.states == 1


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_k_steps_are_sums_over_paths(k: int, corrected: bool) -> None:
    found, _, data = traces(5)
    mdp = (model := Marble.fit(found, Refinement(4, 0.6))).mdp
    rows = (found.sequence == max(range(len(data)), key=lambda i: len(data[i]))).nonzero()[:, 0]
    states, groups, labels = (
        model.abstract(found.states[rows]),
        found.abstract[rows].numpy(),
        found.labels[rows].numpy(),
    )
    value, mass = mdp.robustness(states, groups, labels, k, corrected=corrected)

    def paths(state: int, at: int, left: int, first: bool) -> tuple[float, float]:
        pair = mdp.pair(np.array([state]), groups[at : at + 1])[0]
        if pair < 0:
            return 0.0, 0.0
        if left == 0:
            read = mdp.emitted if corrected and k else mdp.eta
            return read[pair, labels[at]], 1.0
        table = mdp.mutated if corrected and first else mdp.delta
        found = [
            (p, paths(s, at + 1, left - 1, False)) for s, p in enumerate(table[pair].toarray()[0]) if p > 0
        ]
        return sum(p * v for p, (v, _) in found), sum(p * m for p, (_, m) in found)

    expected = [paths(int(s), i, k, True) for i, s in enumerate(states[: len(rows) - k])]
    np.testing.assert_allclose(value[: len(rows) - k], [v for v, _ in expected], atol=1e-12)
    np.testing.assert_allclose(mass[: len(rows) - k], [m for _, m in expected], atol=1e-12)
    assert np.isnan(value[len(rows) - k :]).all()


def test_the_papers_k_step_asks_another_question() -> None:
    """Two states. 'flip' goes to the other, its mutant 'stay' does not, 'keep' shows the state. Flip then keep: half of the mutants
    change what keep shows. The paper's propagation walks the unmutated flip and mutates keep instead: it says that nothing can change."""
    before, groups = np.array([0, 1, 1, 0]), np.array([0, 1, 0, 1])  # flip keep flip keep
    after, gamma = np.array([1, 1, 0, 0]), np.array([[0.5, 0.5], [0, 1], [0.5, 0.5], [1, 0]])
    mutants = (
        np.array([1, 0, 0, 1, 1, 0]),
        np.array([0, 0, 2, 2, 1, 3]),
        np.array([0.5, 0.5, 0.5, 0.5, 1, 1]),
    )
    mdp = build_mdp(before, groups, after, after, gamma, states=2, initial=0, mutants=mutants)
    paper, right = (
        mdp.robustness(before[:2], groups[:2], after[:2], 1, corrected=c)[0][0] for c in (False, True)
    )
    assert (paper, right) == (1.0, 0.5)


def test_corrected_steps_need_the_mutants() -> None:
    found, _, _ = traces(0)
    mdp = Marble.fit(found.rows(torch.ones(len(found), dtype=torch.bool)), Refinement(3, 1.0)).mdp
    assert mdp.mutated is None
    with pytest.raises(BadInput, match="mutants=True"):
        mdp.robustness(np.array([0]), np.array([0]), np.array([0]), 0, corrected=True)


@pytest.mark.parametrize(
    "bad", [lambda: Refinement(theta=0), lambda: Refinement(omega=0), lambda: Refinement(criterion="max")]
)  # type: ignore[arg-type]
def test_settings_are_checked(bad: Callable[[], Refinement]) -> None:
    with pytest.raises(BadInput):
        bad()


def test_profile_equals_brute_force() -> None:
    """Through the exact engine on the user's module, and as a black box."""
    found, net, data = traces(6, count=20)
    sets = {word: members(word) for word in range(len(GROUP))}
    opened = hf.Network.from_torch(net, tokens=True, shape=(3,))
    sequences = [torch.tensor(words) for words in data]
    seen = profile(opened, sequences, Groups.of_sets(sets), mutants=True)
    for name in ("sequence", "place", "elements", "labels", "attackable"):
        assert torch.equal(getattr(seen, name), getattr(found, name)), name
    for name in ("states", "successors", "gamma"):
        torch.testing.assert_close(getattr(seen, name), getattr(found, name), atol=1e-5, rtol=1e-4)
    assert seen.mutants is not None
    assert found.mutants is not None
    assert Counter(column(seen.mutants.of)) == Counter(column(found.mutants.of))
    order, truth = seen.mutants.of.argsort(stable=True), found.mutants.of.argsort(stable=True)
    sums = [
        torch.zeros(len(found), 6).index_add_(0, m.of[o], m.successors[o])
        for m, o in ((seen.mutants, order), (found.mutants, truth))
    ]
    torch.testing.assert_close(sums[0], sums[1], atol=1e-4, rtol=1e-4)
    box = profile(opened, sequences, Groups.of_sets(sets), view=None)
    assert torch.equal(box.gamma, seen.gamma)
    assert box.states.shape == (len(found), 3)
    assert bool((box.states[box.place == 0] == 0).all())
    assert torch.equal(box.states[box.place > 0], box.successors[:-1][found.place[1:] > 0])


def test_gamma_of_the_truth_itself() -> None:
    """The helper's own numbers, once more by whole sequences."""
    found, net, data = traces(7, count=10)
    for i in range(len(found)):
        words, place = data[int(found.sequence[i])], int(found.place[i])
        others = members(words[place])
        kept = [
            labels_after(net, torch.zeros(6), [*words[:place], other]) == int(found.labels[i])
            for other in others
        ]
        assert float(found.scores[i]) == pytest.approx(np.mean(kept))
    assert isinstance(net, Small)
    assert sum(SIZES) == len(GROUP)
