"""Texts and token ids as inputs of a network."""

import contextlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.network.output_comparison import same_by_rounding
from holdfast.network.text import Texts, read_texts
from holdfast.network.tokens import of_vectors
from holdfast.process_state import without_tf32

if TYPE_CHECKING:
    from holdfast.network.network import Network

# Sentences whose outputs by ids and by word vectors are compared in one forward pass (chosen by hand).
SENTENCES_PER_COMPARISON = 256


def embed(net: "Network", tokens: Tensor) -> Tensor:
    """(batch, length) token ids -> (batch, length, dim) word vectors.

    Raises BadInput if the model also reads the ids themselves.
    """
    if net.vectors is None:
        raise BadInput(
            f"the data are integers ({str(tokens.dtype).removeprefix('torch.')}), but {net.name} takes "
            "floating-point numbers. If they are token ids, build the network with tokens=True. If they are "
            "values, convert them: x.float(), and / 255 for bytes of an image where the model was trained so."
        )
    words = len(net.vectors)
    if tokens.numel() and not bool(((tokens >= 0) & (tokens < words)).all()):
        raise BadInput(
            f"token ids run from {int(tokens.min())} to {int(tokens.max())}, but the embedding has {words} "
            f"words."
        )
    vectors = net.vectors[tokens.to(net.vectors.device)]
    if of_vectors(net.module) is not None and net.token_model is not None and len(tokens):
        _check_same_answers(net, tokens, vectors)
    return vectors


def _check_same_answers(net: "Network", tokens: Tensor, vectors: Tensor) -> None:
    """Raise BadInput if a sentence has other outputs by its token ids than by its word vectors.

    Sentences on which the model raises an exception are skipped: the exception is reported when they are
    measured.
    """
    batches = zip(
        tokens.split(SENTENCES_PER_COMPARISON), vectors.split(SENTENCES_PER_COMPARISON), strict=True
    )
    for ids, points in batches:
        with torch.no_grad(), without_tf32(), contextlib.suppress(Exception):
            by_vectors = net.module(points)
            by_ids = net.token_model(ids.to(net.device))  # type: ignore[misc]
            wrong = next((i for i in range(len(ids)) if not same_by_rounding(by_ids[i], by_vectors[i])), None)
            if wrong is not None:
                break
    else:
        return
    sentence = " ".join(net.words(ids[wrong]))
    raise BadInput(
        f"{net.name} does not answer the sentence {sentence!r} by its word vectors as it does by its token "
        f"ids: it also reads the ids, perhaps for a padding mask. Leave such words out; padding is cut off "
        f"with lengths=."
    )


def read_network_texts(
    net: "Network", texts: Sequence[str], places: Sequence[str] | None = None, **options: Any
) -> Texts:
    """`holdfast.network.text.read_texts` with the tokenizer of the network; BadInput if it has none."""
    if net.tokenizer is None:
        takes = "takes numbers" if net.vectors is None else "has no vocabulary and no tokenizer"
        raise BadInput(
            f"{net.name} {takes}: text needs a network that reads tokens, and its words (vocabulary=, "
            f"--vocabulary FILE, one a line) or its tokenizer (tokenizer=, --tokenizer)."
        )
    return read_texts(net.tokenizer, texts, places, **options)


def tokens_of_texts(net: "Network", x: Any, *, alike: bool, stacklevel: int) -> Any:
    """A list of texts as token ids: one tensor if all are equally long, else a list.

    Anything else is returned unchanged.

    Args:
        alike: raise BadInput if the texts have different numbers of tokens.
        stacklevel: of the warning about unknown words, as in `warnings.warn`, counted from the caller.
    """
    if isinstance(x, str):
        raise BadInput("x is a single text: give a list of texts.")
    if not isinstance(x, Sequence) or not any(isinstance(row, str) for row in x):
        return x
    found = net.read_texts(x)
    for note in found.notes:
        warnings.warn(note, stacklevel=stacklevel + 1)
    lengths = sorted({len(row) for row in found.tokens})
    if len(lengths) > 1 and alike:
        raise BadInput(
            f"texts of {lengths[0]} and of {lengths[-1]} tokens; here all must be of one length, "
            f"so pass texts of one length at a time."
        )
    return torch.stack(found.tokens) if len(lengths) == 1 else found.tokens
