"""Run the user's own module on whole prefixes: for black boxes, and to decide labels that are too close.

A prefix of n elements costs the module n steps, so all prefixes of a sequence cost n^2 / 2 for each mutant of
a position: slow, but exact. Bidirectional layers are handled this way too, since a new element at the end
changes every state of the backward direction. For a proof, sequences share a batch only if the module's code
was found to keep rows separate; otherwise each is run alone.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast import process_state
from holdfast.errors import BadInput, HoldfastError
from holdfast.foreign_text import first_line
from holdfast.monitor.structure.structure import rows_apart
from holdfast.network import Network
from holdfast.network.statefulness import generators

ELEMENTS_PER_CALL = 2**20  # Number of input elements in one call of the user's module (chosen by hand).
# Relative difference of outputs that different arithmetics may cause (some tens of units in the last place;
# chosen by hand).
ROUNDING_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}
# A difference above this multiple of ROUNDING_TOLERANCE is not explained by rounding (chosen by hand).
INCONSISTENCY_FACTOR = 100
MOST_TRIES = 3  # Repetitions of a check if another thread draws random numbers meanwhile (chosen by hand).


@dataclass(frozen=True)
class ConcatenatedSequences:
    """Concatenated sequences; a row is one element of one of them."""

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
            raise BadInput("there is no sequence to score.")
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


# Results of `keeps_rows_separate`, by the shape of a sequence.
_apart: "WeakKeyDictionary[Network, dict[tuple[int, ...], bool]]" = WeakKeyDictionary()


def keeps_rows_separate(net: Network, like: Tensor) -> bool:
    """Whether the network's code treats rows separately, for sequences of shape (length, ...)."""
    known, shape = _apart.setdefault(net, {}), tuple(like.shape)
    if shape not in known:
        generator = torch.Generator().manual_seed(0)

        def example(count: int, _: int) -> Tensor:
            if net.vectors is not None:
                return torch.randint(0, len(net.vectors), (count, *shape), generator=generator).to(net.device)
            return torch.randn((count, *shape), generator=generator, dtype=net.dtype).to(net.device)

        known[shape] = rows_apart(net.token_model if net.token_model is not None else net.module, example)
    return known[shape]


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Disable TF32, as in Network.__call__: its reduced precision could change labels."""
    return process_state.without_tf32() if device.type == "cuda" else nullcontext()


def query(net: Network, prefixes: Tensor, *, apart: bool = False) -> Tensor:
    """(m, length, ...) -> (m, o). apart: one by one, unless the network keeps rows separate."""
    width = prefixes[0].numel() * (net.vectors.shape[1] if net.vectors is not None else 1)
    single = apart and len(prefixes) > 1 and not keeps_rows_separate(net, prefixes[0])
    parts = prefixes.split(1 if single else max(1, ELEMENTS_PER_CALL // max(1, width)))
    try:
        with full_precision(net.device):
            asked = net.ask_tokens if net.token_model is not None else net
            found = torch.cat([asked(part.clone()) for part in parts]).cpu()
    except HoldfastError:
        raise
    except Exception as error:
        reason = first_line(error)
        raise BadInput(
            f"{net.name} rejected sequences of shape {tuple(prefixes.shape[1:])}: {reason}"
        ) from error
    if not bool(found.isfinite().all()):
        raise BadInput(
            f"{net.name} returns NaN or infinity on one of the sequences; check its weights and the scale "
            "of the data."
        )
    return found


def find_inconsistency(net: Network, sequence: Tensor) -> str | None:
    """(length, ...) -> None if the module is consistent alone, repeated and in a batch, else why not.

    Scores of a module with randomness, state between calls, or dependence on the batch are meaningless.
    """
    if net.vectors is not None:
        other = (sequence + 1) % len(net.vectors)
    else:
        other = 0.5 * sequence.flip(0) if sequence.is_floating_point() else sequence.flip(0)
    for _ in range(MOST_TRIES):
        before = generators(net.device)
        first, again = query(net, sequence[None]), query(net, sequence[None])
        batched = query(net, torch.stack([sequence, other, sequence]))
        if generators(net.device) == before:
            break
    else:
        return "draws random numbers"
    close = INCONSISTENCY_FACTOR * ROUNDING_TOLERANCE.get(net.dtype, 1e-2) * float(batched.abs().max())
    if first.shape != again.shape or not float((first - again).abs().max()) <= close:
        return "answers the same sequence differently when it is run again"
    if batched.shape != (3, *first.shape[1:]) or not float((batched[[0, 2]] - first).abs().max()) <= close:
        return "answers differently when sequences share a batch"
    return None


def check_consistency(net: Network, sequence: Tensor) -> None:
    """BadInput if the module is inconsistent."""
    wrong = find_inconsistency(net, sequence)
    if wrong is not None:
        raise BadInput(
            f"{net.name} {wrong}, so its scores would be meaningless. Remove randomness, state between "
            "calls and dependence "
            f"on the batch from its forward pass."
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
    """Outputs (m, o) of prefixes up to rows `ends`; `values` (m, ...) replace the rows' elements."""
    size = data.place[ends] + 1
    found: Tensor | None = None
    for length in size.unique().tolist():
        chosen = (size == length).nonzero()[:, 0]
        for part in chosen.split(max(1, ELEMENTS_PER_CALL // length)):
            index = data.offset[data.sequence[rows[part]]][:, None] + torch.arange(length, device=rows.device)
            prefixes = data.elements[index]
            if values is not None:
                # Integers may be replaced by floating-point numbers.
                prefixes = prefixes.to(torch.promote_types(prefixes.dtype, values.dtype))
                prefixes[torch.arange(len(part), device=rows.device), data.place[rows[part]]] = values[
                    part
                ].to(prefixes.dtype)
            answer = query(net, prefixes, apart=apart)
            found = answer.new_empty(len(rows), answer.shape[1]) if found is None else found
            found[part.cpu()] = answer
    assert found is not None
    return found
