"""Export of the labelled MDP in PRISM's explicit format, for `prism -importmodel NAME.all -mdp` and Storm.

    NAME.sta          (s), then i:(i) for each abstract state
    NAME.tra          states choices transitions, then "state choice successor probability action"
                      One choice for each abstract input that was seen in the state; its action is named after
                      the input.
    NAME.lab          0="init" 1="deadlock", and "emits_LABEL" for the output that a state emits most often
    NAME.LABEL.trew   states choices transitions, then "state choice successor reward"
                      The reward eta(state, input)[LABEL] is the probability that a mutant of the input emits
                      LABEL. Zero rewards are omitted, as in PRISM.

A state without outgoing transitions (reached by last elements only) would be a deadlock; it gets that label
and a loop "end".
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadInput
from holdfast.monitor.abstract.mdp import MDP


def write(
    mdp: MDP,
    folder: str | Path,
    name: str = "marble",
    *,
    labels: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
) -> list[Path]:
    """Write the files of a model into a folder and return their paths.

    labels, inputs: names of outputs and of abstract inputs (default: numbers).
    """
    named = _names(labels, mdp.eta.shape[1], "", "labels")
    actions = _names(inputs, mdp.inputs, "x", "inputs")
    order = np.lexsort((mdp.input, mdp.state))  # PRISM numbers choices within a state
    state, choice = mdp.state[order], _within(mdp.state[order])
    stuck = np.setdiff1d(np.arange(mdp.states), state)
    table = mdp.delta[order].tocoo()
    loops = [f"{s} 0 {s} 1 end" for s in stuck.tolist()]
    steps = sorted(zip(table.row.tolist(), table.col.tolist(), table.data.tolist(), strict=True))
    size = f"{mdp.states} {len(order) + len(stuck)} {len(steps) + len(stuck)}"
    acted = mdp.input[order].tolist()
    states, choices = state.tolist(), choice.tolist()
    moves = [f"{states[r]} {choices[r]} {to} {p!r} {actions[acted[r]]}" for r, to, p in steps]
    files = {
        "sta": ["(s)", *(f"{s}:({s})" for s in range(mdp.states))],
        "tra": [size, *sorted(moves + loops, key=lambda line: [int(part) for part in line.split()[:3]])],
        "lab": _labels(mdp, named, stuck),
    }
    for at, label in enumerate(named):
        eta = mdp.eta[order, at].tolist()
        rewards = [f"{states[r]} {choices[r]} {to} {eta[r]!r}" for r, to, _ in steps if eta[r] > 0]
        files[f"{label}.trew"] = [f"{mdp.states} {len(order) + len(stuck)} {len(rewards)}", *rewards]
    return [_put(Path(folder) / f"{name}.{end}", lines) for end, lines in files.items()]


def _within(sorted_states: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the elements of each run of equal states from 0."""
    _, first, run = np.unique(sorted_states, return_index=True, return_inverse=True)
    count: NDArray[np.int64] = np.arange(len(sorted_states)) - first[run]
    return count


def _labels(mdp: MDP, names: list[str], stuck: NDArray[np.int64]) -> list[str]:
    emitted = np.zeros((mdp.states, len(names)))
    np.add.at(emitted, mdp.state, mdp.emitted * mdp.count[:, None])
    most, stopped = emitted.argmax(1), set(stuck.tolist())
    marks = [
        [*([0] if s == mdp.initial else []), *([1] if s in stopped else [2 + int(most[s])])]
        for s in range(mdp.states)
    ]
    head = " ".join(
        f'{i}="{name}"' for i, name in enumerate(["init", "deadlock", *(f"emits_{name}" for name in names)])
    )
    return [head, *(f"{s}: {' '.join(map(str, mark))}" for s, mark in enumerate(marks))]


def _names(given: Sequence[str] | None, count: int, prefix: str, what: str) -> list[str]:
    """Convert names to PRISM identifiers: letters, digits and underscores.

    Duplicates get their index appended.
    """
    if given is None:
        return [f"{prefix}{i}" for i in range(count)]
    if len(given) < count:
        raise BadInput(f"{len(given)} names for {count} {what}: give one for each.")
    clean = [re.sub(r"\W", "_", name, flags=re.ASCII) or "_" for name in given[:count]]
    clean = [name if name[0].isalpha() or name[0] == "_" else f"_{name}" for name in clean]
    seen: dict[str, int] = {}
    return [name if seen.setdefault(name, i) == i else f"{name}_{i}" for i, name in enumerate(clean)]


def _put(file: Path, lines: list[str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="ascii")
    return file
