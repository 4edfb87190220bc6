"""Convert sequences given as texts, words, ids or frames to tensors.

The user chooses how unknown words are treated.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.network.text import Texts, Unknown, number_of


def unknown_token(net: Network, unk: int | None) -> int:
    """Return the id of the token for unknown words: the given one, or the tokenizer's."""
    if net.vectors is None:
        raise BadInput(f"unknown='unk' is for words; {net.name} reads frames of numbers.")
    if unk is None and net.tokenizer is not None:
        unk = net.tokenizer.unknown
    if unk is None or not 0 <= unk < len(net.vectors):
        raise BadInput(
            "unknown='unk' needs the id of the token for unknown words (unk=..., 0 to "
            f"{len(net.vectors) - 1})."
        )
    return unk


def has_unknown(net: Network, unk: int | None = None) -> bool:
    """Return whether the network has a token for unknown words."""
    try:
        unknown_token(net, unk)
    except BadInput:
        return False
    return True


class Reader:
    """Reader of sequences for one network."""

    def __init__(
        self,
        net: Network,
        unknown: Unknown,
        unk: int | None,
        longest: int,
        frame: tuple[int, ...] | None = None,
    ) -> None:
        """frame: the shape of one frame, if known."""
        self.net, self.unknown, self.unk, self.longest = net, unknown, unk, longest
        self.frame = frame or (net.shape[1:] if net.shape else None)
        self.tokens = len(net.vectors) if net.vectors is not None else None
        self._place = number_of(net.vocabulary) if net.vocabulary is not None else None

    def read(self, sequence: Any) -> Tensor:
        """Convert a text, a list of words, ids or frames to (n,) or (n, ...)."""
        if isinstance(sequence, str):
            return self.texts([sequence]).tokens[0]
        found = self._frames(sequence) if self.tokens is None else self._ids(sequence)
        if not len(found):
            raise BadInput("the sequence is empty, or none of its words is known: there is nothing to score.")
        return self._short(found)

    def read_all(self, sequences: Sequence[Any]) -> tuple[list[Tensor], tuple[str, ...]]:
        """Convert several sequences; return notes on the texts among them."""
        texts = {i: sequence for i, sequence in enumerate(sequences) if isinstance(sequence, str)}
        if not texts:
            return [self.read(sequence) for sequence in sequences], ()
        told = self.texts(
            list(texts.values()), [f"sequence {i}" for i in texts] if len(sequences) > 1 else None
        )
        read = dict(zip(texts, told.tokens, strict=True))
        return [
            read[i] if i in read else self.read(sequence) for i, sequence in enumerate(sequences)
        ], told.notes

    def texts(self, texts: Sequence[str], places: Sequence[str] | None = None) -> Texts:
        """Tokenize texts, with this reader's treatment of unknown words."""
        found = self.net.read_texts(texts, places, policy=self.unknown, unk=self.unk)
        for tokens in found.tokens:
            self._short(tokens)
        return found

    def _short(self, found: Tensor) -> Tensor:
        if len(found) > self.longest:
            raise BadInput(
                f"the sequence has {len(found)} elements, more than max_length={self.longest}; cut it or "
                "raise the limit."
            )
        return found

    def one(self, element: Any) -> Any:
        """Convert a word, an id or a frame to an id or a frame; None: skip it."""
        if self.tokens is None:
            return self._frames(torch.as_tensor(element)[None])[0]
        return self._token(element)

    def _frames(self, sequence: Any) -> Tensor:
        try:
            found = torch.as_tensor(sequence).cpu()
        except (ValueError, TypeError, RuntimeError) as error:
            raise BadInput(
                f"the sequence is not an array of numbers ({error}); {self.net.name} reads frames, (time, "
                "...)."
            ) from error
        if found.dim() == 0:
            raise BadInput("a sequence needs a time axis first: (time, ...).")
        wanted = self.frame
        if wanted and (
            found.dim() != 1 + len(wanted)
            or any(w not in (None, s) for w, s in zip(wanted, found.shape[1:], strict=True))
        ):
            raise BadInput(f"frames of shape {tuple(found.shape[1:])}; {self.net.name} takes {wanted}.")
        if found.is_floating_point() and not bool(found.isfinite().all()):
            raise BadInput("a frame of the sequence holds NaN or infinity.")
        return found.to(self.net.dtype) if found.is_floating_point() else found

    def _ids(self, sequence: Any) -> Tensor:
        if (
            isinstance(sequence, Tensor)
            and sequence.dim() == 1
            and sequence.dtype == torch.int64
            and len(sequence)
        ):
            assert self.tokens is not None
            # If all ids are known, no lookup is needed.
            if int(sequence.min()) >= 0 and int(sequence.max()) < self.tokens:
                return sequence.cpu()
        given = sequence.tolist() if isinstance(sequence, Tensor) else list(sequence)
        return torch.tensor([i for i in map(self._token, given) if i is not None], dtype=torch.int64)

    def _token(self, word: Any) -> int | None:
        assert self.tokens is not None
        if isinstance(word, Tensor) and word.dim() == 0:
            word = word.item()
        if isinstance(word, str):
            if self._place is None:
                raise BadInput(
                    f"{word!r} is a word, but {self.net.name} has no vocabulary: give ids, or pass "
                    "vocabulary= to Network."
                )
            known = self._place.get(word)
        elif isinstance(word, Integral):
            known = int(word) if 0 <= int(word) < self.tokens else None
        else:
            raise BadInput(f"an element of this sequence must be a word or a token id, got {word!r}.")
        if known is not None or self.unknown == "skip":
            return known
        if self.unknown == "unk" and isinstance(word, str):
            return self.unk
        raise BadInput(
            f"{word!r} is unknown: {self.net.name} has {self.tokens} tokens. Fit the monitor with "
            "unknown='skip' to omit such "
            f"words, or unknown='unk' to replace them by a token."
        )
