"""Exact scores by enumeration of all mutants: a proof for one replaced element.

All mutants of an element share the state before it, hence one recurrent product, and their input products
come from a table over the vocabulary. So a score now (k = 0) costs one recurrent product and, for each
mutant, only element-wise work. For a score k steps later, or at the end, the live mutants are advanced in one
batch. A mutant costs one product for each step it lives, n / 2 on average for the final score of a sequence
of n elements. Memory is bounded: at most LIVE_MUTANT_BYTES of mutants are live at once, and the rest waits
for another sweep. A mutant whose state equals that of the unmutated sequence, bit for bit, is dropped: all
later labels are equal.

Arithmetic: the labels are those of the network as executed here. If a label is decided by less than the
view's `doubt`, rounding could change the label of the user's module. Then the module itself is queried
(`rerun`), and its answer counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.errors import BadInput
from holdfast.memory_budget import free_bytes
from holdfast.monitor.engine.in_flight import MutantsInFlight
from holdfast.monitor.engine.rerun import ConcatenatedSequences, check_consistency, prefix_outputs
from holdfast.monitor.engine.state_view import StateView, open_network
from holdfast.monitor.mutation.choices import ChoiceTable, Mutation, check_ids
from holdfast.monitor.outputs import Classes, Output
from holdfast.monitor.score import Steps
from holdfast.network import Network

Keep = Literal["labels", "states", "mutants"]
# Number of sequences in a sweep on a CPU: their gates fit into the cache (chosen by hand).
SEQUENCES_PER_SWEEP = 1024
LIVE_MUTANT_BYTES = 2**26  # Limit for states and gates of live mutants on a CPU (chosen by hand).
GPU_LIMITS = (2**14, 2**32)  # The same two limits on a GPU, where larger batches are faster (chosen by hand).
BLACK_BOX_BATCH = 2**16  # Number of mutants of a black box that are run at once (chosen by hand).
# Number of sequences on which a black box is checked alone and in a batch (chosen by hand).
CHECKED_SEQUENCES = 3


@dataclass(frozen=True)
class Transitions:
    """One row for each element of each sequence, ordered by sequence, then by position."""

    sequence: Tensor  # (N,)
    place: Tensor  # (N,)
    elements: Tensor  # (N,) or (N, ...)
    labels: Tensor  # (N,) the unmutated label k steps later; -1 if the sequence has ended
    gamma: Tensor  # (N, labels) float64: distribution of labels under mutation; NaN if the sequence has ended
    attackable: Tensor  # (N,) bool
    support: Tensor  # (N,) number of possible values of the element
    outputs: Tensor  # (N, o) of the unmutated prefix that ends here
    asked: int  # number of labels so close that the user's module was queried
    states: Tensor | None = None  # (N, d) before the element
    successors: Tensor | None = None  # (N, d) after it
    mutants: Tensor | None = None  # (M, d) after each value of an attackable element, the original included
    of: Tensor | None = None  # (M,) rows of the mutants
    probability: Tensor | None = None  # (M,)

    def to(self, device: torch.device) -> "Transitions":
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    @property
    def values(self) -> Tensor:
        """(N,) float64: the scores in [0, 1]; exactly 1 if no other label can be reached."""
        other = self.gamma.scatter(1, self.labels.clamp_min(0)[:, None], 0.0).sum(1)
        return torch.where(self.labels >= 0, (1 - other).clamp(0, 1), torch.nan)


@torch.no_grad()
def labels(
    net: Network,
    sequences: Sequence[Any],
    mutation: Mutation,
    *,
    outputs: Output | None = None,
    k: Steps = 0,
    keep: Keep = "labels",
    view: StateView | Literal["find"] | None = "find",
    apart: bool = True,
) -> Transitions:
    """Compute exact label distributions of all transitions, on the device of an opened network.

    Args:
        view: None: the network is a black box, and prefixes are rerun.
        apart: False for estimates: sequences share a batch even if the network is not known to keep rows
            separate.
    """
    if not mutation.finite:
        raise BadInput(
            f"{type(mutation).__name__} has infinitely many values, so it cannot be enumerated: sample it "
            "(mode='sampled')."
        )
    if k != "final" and not (isinstance(k, int) and k >= 0):
        raise BadInput(
            f"k={k!r}: give the number of further elements after which the label is compared (>= 0), or "
            "'final'."
        )
    data = ConcatenatedSequences.of(sequences)
    if net.vectors is not None:
        check_ids(
            data.elements,
            len(net.vectors),
            "sequences are token ids from 0 to {last}; look words up first, or let Monitor.read do it.",
        )
    found = open_network(net) if view == "find" else view
    count = _Count.of(net, data, mutation, outputs or Classes(), k, apart)
    if net.vectors is not None:
        check_ids(count.table.values, len(net.vectors))
    if found is not None and not found.covers(data.longest, count.table.values):
        found = None
    if found is None and keep != "labels":
        raise BadInput(
            f"{net.name} is a black box to the monitor, so its states are not visible; keep='labels' works."
        )
    if found is None:
        return count.black_box()
    return count.to(found.device).white_box(found, keep)


@dataclass(frozen=True)
class _Count:
    """The mutants of all rows, and how they are counted."""

    net: Network
    data: ConcatenatedSequences
    output: Output
    table: ChoiceTable
    element: Tensor  # (N,) row of the table
    due: Tensor  # (N,) row at which the label is compared; -1 if the sequence has ended
    apart: bool

    @staticmethod
    def of(
        net: Network, data: ConcatenatedSequences, mutation: Mutation, output: Output, k: Steps, apart: bool
    ) -> "_Count":
        table, element = mutation.tables(data.elements, data.length)
        row = torch.arange(len(data.elements))
        last = (data.offset + data.length - 1)[data.sequence]
        due = last if k == "final" else torch.where(row + k <= last, row + k, -1)
        return _Count(net, data, output, table, element, due, apart)

    def to(self, device: torch.device) -> "_Count":
        """Move to the device of the states: a GPU that waits for indices is no faster than a CPU."""
        data, table = self.data.to(device), self.table.to(device)
        return replace(self, data=data, table=table, element=self.element.to(device), due=self.due.to(device))

    def mutants(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for all values other than the original, their rows and their indices in the table."""
        counts = self.table.counts[self.element[rows]] - 1
        of = rows.repeat_interleave(counts)
        first = self.table.start[self.element[rows]] + 1
        within = torch.arange(len(of), device=of.device) - (counts.cumsum(0) - counts).repeat_interleave(
            counts
        )
        return of, first.repeat_interleave(counts) + within

    def _ask(self, rows: Tensor, ends: Tensor, values: Tensor | None = None) -> Tensor:
        return prefix_outputs(self.net, self.data, rows, ends, values, apart=self.apart).to(rows.device)

    # ---- a black box

    def black_box(self) -> Transitions:
        for sequence in self.data.elements.split(self.data.length.tolist())[:CHECKED_SEQUENCES]:
            check_consistency(self.net, sequence)
        rows = torch.arange(len(self.element))
        base = self._ask(rows, rows)
        of, choice = self.mutants(rows[self.due >= 0])
        found = [
            self._ask(o, self.due[o], self.table.values[c])
            for o, c in zip(of.split(BLACK_BOX_BATCH), choice.split(BLACK_BOX_BATCH), strict=True)
            if len(o)
        ]
        return self._result(
            base, of, choice, torch.cat(found) if found else base[:0], asked=len(rows) + len(of)
        )

    # ---- an opened network

    def white_box(self, view: StateView, keep: Keep) -> Transitions:
        kept = _Kept(view, len(self.element), keep)
        base = torch.empty(
            len(self.element), view.outputs(view.start(1)).shape[1], dtype=view.dtype, device=view.device
        )
        self.output.count(base.shape[1])
        found, (side_by_side, most) = [], self._most(view)
        for sequences in self.data.length.argsort(descending=True, stable=True).split(side_by_side):
            of, choice = self.mutants(self._rows(sequences, self.due >= 0))
            for begin in range(0, max(1, len(of)), most):
                part = slice(begin, begin + most)
                touched = (
                    sequences if not begin else sequences[torch.isin(sequences, self.data.sequence[of[part]])]
                )
                mutated = self._sweep(view, touched, of[part], choice[part], base, kept)
                found.append((of[part], choice[part], mutated))
        of, choice, mutated = (torch.cat(parts) for parts in zip(*found, strict=True))
        asked = self._decide_close_calls(view, base, of, choice, mutated)
        return kept.add_transitions(self, self._result(base, of, choice, mutated, asked))

    def _rows(self, sequences: Tensor, wanted: Tensor) -> Tensor:
        """Return the wanted rows of some sequences, concatenated."""
        length = self.data.length[sequences]
        begin = self.data.offset[sequences] - (length.cumsum(0) - length)
        rows = torch.arange(int(length.sum()), device=length.device) + begin.repeat_interleave(length)
        return rows[wanted[rows]]

    @staticmethod
    def _most(view: StateView) -> tuple[int, int]:
        """Return how many sequences run in one sweep, and how many mutants may be live."""
        side_by_side, limit = (
            (SEQUENCES_PER_SWEEP, LIVE_MUTANT_BYTES) if view.device.type == "cpu" else GPU_LIMITS
        )
        limit = limit if view.device.type == "cpu" else min(limit, free_bytes(view.device))
        numbers = 2 * view.width + 3 * view.recall(view.start(1)).shape[1]
        return side_by_side, max(256, limit // (4 * numbers))

    def _sweep(
        self, view: StateView, sequences: Tensor, of: Tensor, choice: Tensor, base: Tensor, kept: "_Kept"
    ) -> Tensor:
        """Advance sequences, longest first, in one batch through time, together with these mutants.

        Writes the outputs of the sequences to `base` (N, o); returns the mutants' outputs at the step that is
        compared.
        """
        place, offset, length = self.data.place, self.data.offset[sequences], self.data.length[sequences]
        here = place.device
        rank = torch.empty_like(self.data.length).index_put_(
            (sequences,), torch.arange(len(sequences), device=here)
        )
        owner, due = rank[self.data.sequence[of]], place[self.due[of]]
        order = place[of].argsort(stable=True)
        born = order.split(torch.bincount(place[of], minlength=int(length[0])).tolist())
        alive = (length[:, None] > torch.arange(int(length[0]), device=here)).sum(0).tolist()
        live, state = MutantsInFlight(view, len(of)), view.start(len(sequences))
        for t, (count, young) in enumerate(zip(alive, born, strict=True)):
            time_limit.raise_if_expired()
            row, state = offset[:count] + t, state[:count]
            gates = view.gates(self.data.elements[row])
            # All sequences begin in the same state.
            recalled = view.recall(state) if t else view.recall(state[:1]).expand(count, -1)
            live.advance(gates)
            if len(young):
                above = owner[young]
                entered = view.gates(self.table.values[choice[young]])
                fresh = view.step(entered, recalled.index_select(0, above), state.index_select(0, above))
                live.join(young, above, due[young], fresh)
                kept.add_mutant(of[young], choice[young], fresh)
            new = view.step(gates, recalled, state)
            live.leave(t, new)
            kept.base(row, state, new)
            base[row] = view.outputs(new)
            state = new
        return live.outputs(base[self.due[of]])

    def _decide_close_calls(
        self, view: StateView, base: Tensor, of: Tensor, choice: Tensor, mutated: Tensor
    ) -> int:
        """Replace outputs that rounding could decide by those of the user's module; return how many."""
        close = (~(self.output.margins(base, base) > view.doubt(base))).nonzero()[:, 0]
        if len(close):
            base[close] = self._ask(close, close)
        doubtful = close[:0]
        if len(of):
            doubtful = (~(self.output.margins(mutated, base[self.due[of]]) > view.doubt(mutated))).nonzero()[
                :, 0
            ]
        if len(doubtful):
            rows = of[doubtful]
            mutated[doubtful] = self._ask(rows, self.due[rows], self.table.values[choice[doubtful]])
        return len(close) + len(doubtful)

    def _result(self, base: Tensor, of: Tensor, choice: Tensor, mutated: Tensor, asked: int) -> Transitions:
        count = self.output.count(base.shape[1])
        at = self.due.clamp_min(0)
        label = torch.where(self.due >= 0, self.output.own(base)[at], -1)
        first = self.table.start[self.element]
        row, share = (
            [torch.arange(len(label), device=of.device), of],
            [self.table.probability[first], self.table.probability[choice]],
        )
        said = [
            self.output.labels(base, base)[at],
            self.output.labels(mutated, base[self.due[of]]) if len(of) else of,
        ]
        gamma = _sum_weights(torch.cat(row) * count + torch.cat(said), torch.cat(share), len(label) * count)
        gamma = torch.where(self.due[:, None] >= 0, gamma.reshape(-1, count), torch.nan)
        support = self.table.counts[self.element]
        return Transitions(
            self.data.sequence,
            self.data.place,
            self.data.elements,
            label,
            gamma,
            support > 1,
            support,
            base,
            asked,
        )


def _sum_weights(at: Tensor, weights: Tensor, size: int) -> Tensor:
    """Sum weights by index, (size,), in a deterministic order; bincount on a GPU is not deterministic."""
    if at.device.type == "cpu":
        return torch.bincount(at, weights=weights, minlength=size)
    return weights.new_zeros(size).index_put_((at,), weights, accumulate=True)


class _Kept:
    """States, if they are requested."""

    def __init__(self, view: StateView, size: int, keep: Keep) -> None:
        self.keep = keep
        self.before = torch.empty(
            size if keep != "labels" else 0, view.width, dtype=view.dtype, device=view.device
        )
        self.behind = torch.empty_like(self.before)
        self.mutants: list[tuple[Tensor, Tensor, Tensor]] = []

    def base(self, row: Tensor, state: Tensor, new: Tensor) -> None:
        if self.keep != "labels":
            self.before[row], self.behind[row] = state, new

    def add_mutant(self, of: Tensor, choice: Tensor, state: Tensor) -> None:
        if self.keep == "mutants":
            self.mutants.append((of, choice, state))

    def add_transitions(self, count: _Count, found: Transitions) -> Transitions:
        if self.keep == "labels":
            return found
        found = replace(found, states=self.before, successors=self.behind)
        if self.keep == "states":
            return found
        rows = found.attackable.nonzero()[:, 0]
        mutants = [(rows, count.table.start[count.element[rows]], self.behind[rows]), *self.mutants]
        of, choice, state = (torch.cat(parts) for parts in zip(*mutants, strict=True))
        order = of.argsort(stable=True)
        return replace(
            found, mutants=state[order], of=of[order], probability=count.table.probability[choice[order]]
        )
