"""All texts with exactly n edits at once, in a recurrent network: common prefixes are computed once.

Statement. The cell (i, u) holds the states of the network after every edited prefix that consumes i words of the
original and uses u = (edits of each kind). The cells are filled for i = 0, 1, ... by

    keep, substitute:  (i, u) -> (i + 1, u')  one step      insert:     (i, u) -> (i, u')      one step
    delete:            (i, u) -> (i + 1, u')  no step       duplicate:  (i, u) -> (i + 1, u')  two steps
    swap:              (i, u) -> (i + 2, u')  two steps

All prefixes of a cell have emitted the same number of words, i + insertions + duplications - deletions, so a cell
that reached the length at which the network stops reading is complete. A text costs one step for each word behind
its first edit, and steps of all cells at one place share a product of matrices.

Arithmetic: scores within `doubt` of the boundary come from the user's own module, evaluated on the text alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.region.edits import (
    DELETE,
    DUPLICATE,
    INSERT,
    KINDS,
    NO_WORD,
    SWAP,
    EditRules,
    Text,
    TextEdits,
    Used,
    add_edit,
)

if TYPE_CHECKING:
    from holdfast.monitor.engine.state_view import StateView

# Texts of one sweep; more are divided by the place of their first edit (chosen by hand: their states and words take
# some hundred megabytes).
TEXTS_IN_SWEEP = 2**18
NOTHING: Used = (0,) * len(KINDS)


@dataclass(frozen=True)
class Prefixes:
    """Edited prefixes: the states behind them, (n, width), and their words, (n, emitted)."""

    states: Tensor
    words: Tensor

    def __len__(self) -> int:
        return len(self.states)

    @staticmethod
    def join(parts: "list[Prefixes]") -> "Prefixes":
        if len(parts) == 1:
            return parts[0]
        return Prefixes(torch.cat([p.states for p in parts]), torch.cat([p.words for p in parts]))


@dataclass(frozen=True)
class Sweep:
    """The texts with exactly `edits` edits of one original.

    first: the places of the original where the first edit may begin; None: all.
    """

    view: "StateView"
    options: TextEdits
    edits: int
    first: frozenset[int] | None = None

    @property
    def rules(self) -> EditRules:
        return self.options.rules

    def iterate_texts(self) -> Iterator[Prefixes]:
        """Yield all texts as the network reads them, with the states at their ends; equal texts may come twice."""
        text, start = self.options.text, self.view.start(1)
        none = torch.zeros((1, 0), dtype=torch.int64, device=start.device)
        waiting: list[dict[Used, list[Prefixes]]] = [{} for _ in range(len(text) + 3)]
        waiting[0][NOTHING] = [Prefixes(start, none)]
        for place in range(len(text) + 1):
            here = waiting[place]
            for made in range(self.edits + 1):  # Insertions lead to more edits at the same place.
                for used in [used for used in here if sum(used) == made]:
                    time_limit.raise_if_expired()
                    prefixes = Prefixes.join(here.pop(used))
                    if self._is_read(prefixes.words.shape[1]):
                        if made == self.edits:
                            yield prefixes
                        continue  # Edits behind the last word that is read change nothing.
                    self._edit(place, used, prefixes, waiting)
                    if place < len(text):
                        kept = self._emit(prefixes, (text[place],))
                        waiting[place + 1].setdefault(used, []).append(kept)
                    elif made == self.edits and prefixes.words.shape[1]:
                        yield self._pad(prefixes)

    def _is_read(self, emitted: int) -> bool:
        """Return whether the network reads no more words."""
        return self.rules.length is not None and emitted >= self.rules.length

    def _edit(
        self, place: int, used: Used, prefixes: Prefixes, waiting: list[dict[Used, list[Prefixes]]]
    ) -> None:
        """Add what the edits at this place make of the prefixes."""
        if sum(used) == self.edits or (
            used == NOTHING and self.first is not None and place not in self.first
        ):
            return
        by_kind: dict[int, list[Text]] = {}
        for edit in self.options.at[place]:
            by_kind.setdefault(edit.kind, []).append(edit.words)
        for kind, words in by_kind.items():
            after = add_edit(used, kind)
            if not self.rules.allows(after):
                continue
            to = place + (0 if kind == INSERT else 2 if kind == SWAP else 1)
            if kind == DELETE:
                made = prefixes
            elif kind in (SWAP, DUPLICATE):
                made = self._emit(prefixes, words[0])
            else:
                made = self._each(prefixes, torch.tensor([word for (word,) in words]))
            waiting[to].setdefault(after, []).append(made)

    def _emit(self, prefixes: Prefixes, words: Text) -> Prefixes:
        """Append these words to every prefix, as far as they are read."""
        for word in words:
            if self._is_read(prefixes.words.shape[1]):
                break
            gates = self.view.gates(torch.tensor([word])).expand(len(prefixes), -1).clone()
            states = self.view.step(gates, self.view.recall(prefixes.states), prefixes.states)
            column = torch.full((len(prefixes), 1), word, device=prefixes.words.device)
            prefixes = Prefixes(states, torch.cat([prefixes.words, column], 1))
        return prefixes

    def _each(self, prefixes: Prefixes, words: Tensor) -> Prefixes:
        """Append each of the words to every prefix."""
        rows = torch.arange(len(prefixes), device=prefixes.states.device).repeat_interleave(len(words))
        column = words.to(rows.device).repeat(len(prefixes))
        recalled = self.view.recall(prefixes.states)
        gates = self.view.gates(words).repeat(len(prefixes), 1)
        states = self.view.step(gates, recalled[rows], prefixes.states[rows])
        return Prefixes(states, torch.cat([prefixes.words[rows], column[:, None]], 1))

    def _pad(self, prefixes: Prefixes) -> Prefixes:
        """Append the padding that the network reads behind shorter texts."""
        if self.rules.padding is None or self.rules.length is None:
            return prefixes
        missing = self.rules.length - prefixes.words.shape[1]
        return self._emit(prefixes, (self.rules.padding,) * missing)


def sweeps(view: "StateView", options: TextEdits, edits: int) -> Iterator[Sweep]:
    """Yield sweeps that together hold all texts with exactly this number of edits, each of bounded size where the first
    edit begins at different places.
    """
    if options.count(edits) <= TEXTS_IN_SWEEP:
        yield Sweep(view, options, edits)
        return
    for place in range(len(options.at)):
        if options.at[place]:
            yield Sweep(view, options, edits, frozenset({place}))


def rows_of_words(words: Tensor) -> list[Text]:
    """(n, length) -> the texts, without what fills them up."""
    return [tuple(word for word in row if word != NO_WORD) for row in words.tolist()]
