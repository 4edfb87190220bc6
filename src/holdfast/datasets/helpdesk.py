"""Help desk messages: 440 short sentences written for this package, synonyms of words, and a small LSTM.

After every word the LSTM classifies the topic of the sentence so far; scripts/train_helpdesk.py trained it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.network.text import WordTokenizer
from holdfast.process_state import own_random_numbers

INTENTS = ("greeting", "password", "delivery", "refund", "broken", "invoice", "hours", "cancel")
UNKNOWN = "<unk>"
DIMENSION, HIDDEN = 32, 32  # Sizes of the word vectors and of the state of the stored network.
FOLDER = "words"

Split = Literal["train", "test"]


@dataclass(frozen=True)
class SentenceSplit:
    """One split: sentences in lower case, and for each the index of its intent in INTENTS."""

    text: tuple[str, ...]
    y: Tensor  # (n,) int64

    @property
    def tokens(self) -> list[Tensor]:
        """Token ids of each sentence, (length,) int64."""
        return [tokens(text) for text in self.text]


class HelpdeskLSTM(nn.Module):
    """(batch, length) token ids -> (batch, 8) logits after the last word."""

    def __init__(self, words: int, drop: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Embedding(words, DIMENSION)
        self.drop = nn.Dropout(drop)
        self.recurrent = nn.LSTM(DIMENSION, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, len(INTENTS))

    def after_every_word(self, tokens: Tensor) -> Tensor:
        """(batch, length) -> (batch, length, 8)."""
        outputs, _ = self.recurrent(self.drop(self.table(tokens)))
        logits: Tensor = self.head(self.drop(outputs))
        return logits

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.recurrent(self.table(tokens))
        logits: Tensor = self.head(outputs[:, -1])
        return logits


def sentences(split: Split = "test") -> SentenceSplit:
    """Return the 352 training or the 88 test sentences, 11 of each intent, always in the same order."""
    if split not in ("train", "test"):
        raise BadInput(f"split is {split!r}; the help desk has the splits 'train' and 'test'")
    pairs = [line.split("\t") for line in _text(f"helpdesk_{split}.tsv").splitlines()]
    return SentenceSplit(
        tuple(text for _, text in pairs), torch.tensor([INTENTS.index(intent) for intent, _ in pairs])
    )


@cache
def vocabulary() -> tuple[str, ...]:
    """The words of the training sentences and all substitutes, by id; 0 is any other word.

    Some substitutes are in no training sentence, so the network has learned little about them.
    """
    read = {word for text in sentences("train").text for word in text.split()}
    return (UNKNOWN, *sorted(read.union(*sets().values())))


@cache
def _words() -> WordTokenizer:
    return WordTokenizer(vocabulary())


def tokens(text: str | Sequence[str]) -> Tensor:
    """Tokenize a sentence or a list of words: (length,) token ids."""
    found = _words().cut(text if isinstance(text, str) else " ".join(text))
    return torch.tensor([token or 0 for token in found.ids], dtype=torch.int64)


def substitutes() -> dict[str, list[str]]:
    """Map words to their substitutes, all in the vocabulary. Words without an entry have none."""
    sets: dict[str, list[str]] = json.loads(_text("helpdesk_substitutes.json"))
    return sets


def sets() -> dict[str, list[str]]:
    """Map words to themselves and their substitutes, the argument of Groups.of_sets."""
    return {word: [word, *others] for word, others in substitutes().items()}


def network(device: str = "cpu") -> Network:
    """Return the trained LSTM with its vocabulary."""
    return Network.from_torch(
        helpdesk_lstm(), vocabulary=vocabulary(), classes=INTENTS, name="help desk LSTM", device=device
    )


def helpdesk_lstm() -> HelpdeskLSTM:
    """Return the trained LSTM as a plain module, in eval mode."""
    from safetensors.torch import load_file  # imported here, so that the sentences do not need safetensors

    with own_random_numbers(0):  # initial weights are replaced: keep the caller's random state
        module = HelpdeskLSTM(len(vocabulary()))
    with as_file(files("holdfast.datasets") / FOLDER / "helpdesk_lstm.safetensors") as path:
        module.load_state_dict(load_file(path))
    return module.eval()


def train() -> dict[str, object]:
    """Return the training sentences for the command line: --data holdfast.datasets.helpdesk:train."""
    return _for_commands("train")


def test() -> dict[str, object]:
    """Return the test sentences for the command line."""
    return _for_commands("test")


def _for_commands(split: Split) -> dict[str, object]:
    found = sentences(split)
    return {"x": found.tokens, "y": found.y, "names": list(found.text), "classes": list(INTENTS)}


def _text(name: str) -> str:
    return (files("holdfast.datasets") / FOLDER / name).read_text(encoding="utf-8")
