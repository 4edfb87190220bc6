"""The user's own module on whole prefixes: the only way for a black box, and the judge of close calls for the rest.

A prefix of n elements costs the module n steps, so all prefixes of a sequence cost n^2 / 2 for each mutant a place: slow, and exact.
Bidirectional layers go this way too: a new element at the end changes every state of the backward direction. For a proof, sequences share
a batch only where the module's code was read to keep rows apart; else they are asked one by one.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast.errors import BadInput, HoldfastError
from holdfast.foreign_text import first_line
from holdfast.monitor.structure.structure import rows_apart
from holdfast.network import Network, float32_precision
from holdfast.network.statefulness import generators

NUMBERS = 2**20  # input numbers sent to the user's module at once
CLOSE = {
    torch.float32: 1e-5,
    torch.float64: 1e-13,
}  # of the outputs' size: below it two arithmetics may differ over a label
APART = 100  # times that: more is no rounding
TRIES = 3  # another thread may draw random numbers now and then


@dataclass(frozen=True)
class ConcatenatedSequences:
    """Sequences one after the other; a row is one element of one of them."""

    elements: Tensor  # (N,) ids or (N, ...) frames
    offset: Tensor  # (sequences,) row of the first element
    length: Tensor  # (sequences,)
    sequence: Tensor  # (N,)
    place: Tensor  # (N,)

    @property
    def longest(self) -> Tensor:
        """The elements of the longest sequence."""
        which = int(self.length.argmax())
        begin = int(self.offset[which])
        return self.elements[begin : begin + int(self.length[which])]

    def to(self, device: torch.device) -> "ConcatenatedSequences":
        return ConcatenatedSequences(
            *(
                part.to(device)
                for part in (self.elements, self.offset, self.length, self.sequence, self.place)
            )
        )

    @staticmethod
    def of(sequences: Sequence[Any]) -> "ConcatenatedSequences":
        if not len(sequences):
            raise BadInput("there is no sequence to look at.")
        length = torch.tensor([len(sequence) for sequence in sequences])
        if not bool((length > 0).all()):
            raise BadInput(
                f"sequence {int((length == 0).nonzero()[0])} is empty: there is nothing to score in it."
            )
        plain = all(not isinstance(sequence, Tensor) for sequence in sequences)
        if plain:
            elements = torch.as_tensor(list(chain.from_iterable(sequences)))
        else:
            elements = torch.cat([torch.as_tensor(sequence).cpu() for sequence in sequences])
        offset = length.cumsum(0) - length
        sequence = torch.arange(len(length)).repeat_interleave(length)
        return ConcatenatedSequences(
            elements, offset, length, sequence, torch.arange(len(elements)) - offset[sequence]
        )


_apart: "WeakKeyDictionary[Network, dict[tuple[int, ...], bool]]" = (
    WeakKeyDictionary()
)  # by the shape of a sequence


def keeps_apart(net: Network, like: Tensor) -> bool:
    """Whether the network's code was read to answer sequences such as this one, (length, ...), row by row."""
    known, shape = _apart.setdefault(net, {}), tuple(like.shape)
    if shape not in known:
        generator = torch.Generator().manual_seed(0)

        def example(count: int, _: int) -> Tensor:
            if net.vectors is not None:
                return torch.randint(0, len(net.vectors), (count, *shape), generator=generator).to(net.device)
            return torch.randn((count, *shape), generator=generator, dtype=net.dtype).to(net.device)

        known[shape] = rows_apart(net.token_model if net.token_model is not None else net.module, example)
    return known[shape]


def in_full(device: torch.device) -> AbstractContextManager[None]:
    """As in Network.__call__: the shortened products of TF32 would blur the boundary between two labels."""
    return float32_precision.in_full() if device.type == "cuda" else nullcontext()


def ask(net: Network, prefixes: Tensor, *, apart: bool = False) -> Tensor:
    """(m, length, ...) -> (m, o), in parts that fit. apart: one by one, unless rows are known to be kept apart by the network."""
    width = prefixes[0].numel() * (net.vectors.shape[1] if net.vectors is not None else 1)
    single = apart and len(prefixes) > 1 and not keeps_apart(net, prefixes[0])
    parts = prefixes.split(1 if single else max(1, NUMBERS // max(1, width)))
    try:
        with in_full(net.device):
            asked = net.ask_tokens if net.token_model is not None else net
            found = torch.cat([asked(part.clone()) for part in parts]).cpu()
    except HoldfastError:
        raise
    except Exception as error:
        reason = first_line(error)
        raise BadInput(
            f"{net.name} refused sequences of shape {tuple(prefixes.shape[1:])}: {reason}"
        ) from error
    if not bool(found.isfinite().all()):
        raise BadInput(
            f"{net.name} answers NaN or infinity on one of the sequences; check its weights and the scale of the data."
        )
    return found


def alone(net: Network, sequence: Tensor) -> str | None:
    """(length, ...) -> None where the module answers it the same way alone, again, and beside others; else what it does instead.

    Randomness, what is kept from call to call, and code that looks at the batch: no score of such a module has a meaning.
    """
    if net.vectors is not None:
        other = (sequence + 1) % len(net.vectors)
    else:
        other = 0.5 * sequence.flip(0) if sequence.is_floating_point() else sequence.flip(0)
    for _ in range(TRIES):
        before = generators(net.device)
        first, again = ask(net, sequence[None]), ask(net, sequence[None])
        beside = ask(net, torch.stack([sequence, other, sequence]))
        if generators(net.device) == before:
            break
    else:
        return "draws random numbers"
    close = APART * CLOSE.get(net.dtype, 1e-2) * float(beside.abs().max())
    if first.shape != again.shape or not float((first - again).abs().max()) <= close:
        return "answers the same sequence in another way when it is asked again"
    if beside.shape != (3, *first.shape[1:]) or not float((beside[[0, 2]] - first).abs().max()) <= close:
        return "answers in another way when sequences share a batch"
    return None


def check_alone(net: Network, sequence: Tensor) -> None:
    """BadInput says what is wrong."""
    wrong = alone(net, sequence)
    if wrong is not None:
        raise BadInput(
            f"{net.name} {wrong}, so no score of it has a meaning. Take randomness, memory between calls and dependence on the batch out "
            f"of its forward pass."
        )


def prefix_outputs(
    net: Network,
    data: ConcatenatedSequences,
    rows: Tensor,
    ends: Tensor,
    values: Tensor | None = None,
    *,
    apart: bool = False,
) -> Tensor:
    """(m,) rows, (m,) rows where the prefixes end -> (m, o): with `values` (m, ...) in the place of the rows' elements, if given."""
    size = data.place[ends] + 1
    found: Tensor | None = None
    for length in size.unique().tolist():
        chosen = (size == length).nonzero()[:, 0]
        for part in chosen.split(max(1, NUMBERS // length)):
            index = data.offset[data.sequence[rows[part]]][:, None] + torch.arange(length, device=rows.device)
            prefixes = data.elements[index]
            if values is not None:
                prefixes = prefixes.to(
                    torch.promote_types(prefixes.dtype, values.dtype)
                )  # whole numbers may become others
                prefixes[torch.arange(len(part), device=rows.device), data.place[rows[part]]] = values[
                    part
                ].to(prefixes.dtype)
            answer = ask(net, prefixes, apart=apart)
            found = answer.new_empty(len(rows), answer.shape[1]) if found is None else found
            found[part.cpu()] = answer
    assert found is not None
    return found
