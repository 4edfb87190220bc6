"""What people write to a help desk: 440 short sentences of our own, words that may stand for each other, and a small LSTM.

The LSTM says after every word what the sentence so far is about; scripts/train_helpdesk.py trained it.
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
DIMENSION, HIDDEN = 32, 32
FOLDER = "words"

Split = Literal["train", "test"]


@dataclass(frozen=True)
class SentenceSplit:
    """One split: the sentences in lower case, and for each the number of its intent in INTENTS."""

    text: tuple[str, ...]
    y: Tensor  # (n,) int64

    @property
    def tokens(self) -> list[Tensor]:
        """Each sentence as the numbers of its words, (length,) int64."""
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
    """The 352 training or the 88 test sentences, 11 of each intent; the same ones in the same order on every call."""
    if split not in ("train", "test"):
        raise BadInput(f"split is {split!r}; the help desk has the splits 'train' and 'test'")
    pairs = [line.split("\t") for line in _text(f"helpdesk_{split}.tsv").splitlines()]
    return SentenceSplit(
        tuple(text for _, text in pairs), torch.tensor([INTENTS.index(intent) for intent, _ in pairs])
    )


@cache
def vocabulary() -> tuple[str, ...]:
    """The words of the training sentences and all substitutes in the order of their numbers; 0 stands for every other word.

    Some substitutes stand in no sentence: the network has a number for them, and little idea of what they mean.
    """
    read = {word for text in sentences("train").text for word in text.split()}
    return (UNKNOWN, *sorted(read.union(*sets().values())))


@cache
def _words() -> WordTokenizer:
    return WordTokenizer(vocabulary())


def tokens(text: str | Sequence[str]) -> Tensor:
    """A sentence, or its words -> (length,) token ids, as everywhere in holdfast."""
    found = _words().cut(text if isinstance(text, str) else " ".join(text))
    return torch.tensor([token or 0 for token in found.ids], dtype=torch.int64)


def substitutes() -> dict[str, list[str]]:
    """word -> other words that may stand in its place; all are in the vocabulary. Words without a line have no substitute."""
    sets: dict[str, list[str]] = json.loads(_text("helpdesk_substitutes.json"))
    return sets


def sets() -> dict[str, list[str]]:
    """word -> itself and its substitutes: what the monitor's Groups.of_sets takes."""
    return {word: [word, *others] for word, others in substitutes().items()}


def network(device: str = "cpu") -> Network:
    """The trained LSTM with its vocabulary."""
    return Network.from_torch(
        helpdesk_lstm(), vocabulary=vocabulary(), classes=INTENTS, name="help desk LSTM", device=device
    )


def helpdesk_lstm() -> HelpdeskLSTM:
    """The trained LSTM as a plain module, in eval mode."""
    from safetensors.torch import load_file  # here, so that the sentences need no safetensors

    with own_random_numbers(0):  # initial weights are drawn only to be replaced: spend no caller's numbers
        module = HelpdeskLSTM(len(vocabulary()))
    with as_file(files("holdfast.datasets") / FOLDER / "helpdesk_lstm.safetensors") as path:
        module.load_state_dict(load_file(path))
    return module.eval()


def train() -> dict[str, object]:
    """The training sentences for the command line: --data holdfast.datasets.helpdesk:train."""
    return _for_commands("train")


def test() -> dict[str, object]:
    """The test sentences for the command line."""
    return _for_commands("test")


def _for_commands(split: Split) -> dict[str, object]:
    found = sentences(split)
    return {"x": found.tokens, "y": found.y, "names": list(found.text), "classes": list(INTENTS)}


def _text(name: str) -> str:
    return (files("holdfast.datasets") / FOLDER / name).read_text(encoding="utf-8")
