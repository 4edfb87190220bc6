"""The explicit files of PRISM, read back."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from marble_truth import traces

from holdfast.errors import BadInput
from holdfast.monitor.abstract.marble import Marble, Refinement
from holdfast.monitor.abstract.mdp import MDP, build_mdp
from holdfast.monitor.abstract.prism import write


@pytest.fixture(scope="module")
def mdp() -> MDP:
    return Marble.fit(traces(0)[0], Refinement(4, 0.3)).mdp


def numbers(file: Path) -> tuple[list[int], list[list[str]]]:
    head, *lines = file.read_text().splitlines()
    return [int(n) for n in head.split()], [line.split() for line in lines]


def test_transitions_are_distributions(mdp: MDP, tmp_path: Path) -> None:
    write(mdp, tmp_path)
    (states, choices, transitions), lines = numbers(tmp_path / "marble.tra")
    assert (states, len(lines)) == (mdp.states, transitions)
    total, action, read = defaultdict(float), defaultdict(set), {}
    for state, choice, successor, probability, name in lines:
        total[int(state), int(choice)] += float(probability)
        action[int(state), int(choice)].add(name)
        read[int(state), name, int(successor)] = float(probability)
    assert len(total) == choices
    assert all(p == pytest.approx(1.0, abs=1e-12) for p in total.values())
    assert all(len(names) == 1 for names in action.values())
    for state in range(states):
        own = sorted(choice for s, choice in total if s == state)
        assert own == list(range(len(own)))
        assert own
    for pair, (state, group) in enumerate(zip(mdp.state.tolist(), mdp.input.tolist(), strict=True)):
        row = mdp.delta[pair].toarray()[0]
        assert {s: read[state, f"x{group}", s] for s in np.flatnonzero(row)} == {
            s: row[s] for s in np.flatnonzero(row)
        }


def test_rewards_are_eta(mdp: MDP, tmp_path: Path) -> None:
    files = write(mdp, tmp_path, "m", labels=["a", "b b", "7"])
    assert [f.name for f in files] == ["m.sta", "m.tra", "m.lab", "m.a.trew", "m.b_b.trew", "m._7.trew"]
    _, moves = numbers(tmp_path / "m.tra")
    group = {(int(s), int(c)): int(a[1:]) for s, c, _, _, a in moves if a != "end"}
    summed = defaultdict(float)
    for at, file in enumerate(files[3:]):
        (states, choices, count), lines = numbers(file)
        assert (states, choices, count) == (mdp.states, numbers(tmp_path / "m.tra")[0][1], len(lines))
        for state, choice, successor, reward in lines:
            pair = mdp.pair(np.array([int(state)]), np.array([group[int(state), int(choice)]]))[0]
            assert float(reward) == mdp.eta[pair, at]
            summed[state, choice, successor] += float(reward)
    assert len(summed) == mdp.transitions
    assert all(total == pytest.approx(1.0) for total in summed.values())


def test_states_and_labels(mdp: MDP, tmp_path: Path) -> None:
    write(mdp, tmp_path)
    assert (tmp_path / "marble.sta").read_text().splitlines() == [
        "(s)",
        *(f"{s}:({s})" for s in range(mdp.states)),
    ]
    head, *lines = (tmp_path / "marble.lab").read_text().splitlines()
    assert head == '0="init" 1="deadlock" 2="emits_0" 3="emits_1" 4="emits_2"'
    marks = {int(line.split(":")[0]): [int(m) for m in line.split(":")[1].split()] for line in lines}
    assert [s for s, mark in marks.items() if 0 in mark] == [mdp.initial]


def test_a_state_without_choices_loops(tmp_path: Path) -> None:
    """Two elements, the second leads to a state where nothing is read."""
    before, after = np.array([0, 1]), np.array([1, 2])
    mdp = build_mdp(before, np.array([0, 0]), after, np.array([0, 1]), np.eye(2), states=3, initial=0)
    write(mdp, tmp_path, inputs=["the word"])
    assert (tmp_path / "marble.tra").read_text().splitlines() == [
        "3 3 3",
        "0 0 1 1.0 the_word",
        "1 0 2 1.0 the_word",
        "2 0 2 1 end",
    ]
    assert (tmp_path / "marble.lab").read_text().splitlines()[1:] == ["0: 0 2", "1: 3", "2: 1"]
    with pytest.raises(BadInput, match="one for each"):
        write(mdp, tmp_path, labels=["only"])
