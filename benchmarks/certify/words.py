"""Sentences as word vectors: the shared texts, the shared word vectors, and an LSTM classifier."""

import csv
import lzma
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_sequence

from benchmarks.certify.data import shared
from benchmarks.certify.nets import Reader, load, save


@dataclass(frozen=True)
class Sentence:
    words: list[str]
    x: Tensor  # (words, dimension)
    label: int


@dataclass(frozen=True)
class Vectors:
    place: dict[str, int]
    matrix: Tensor  # (words, dimension) float32, rows of length 1

    @classmethod
    def read(cls, folder: Path) -> "Vectors":
        (file,) = shared("vectors", folder).glob("*.npz")
        with np.load(file, allow_pickle=False) as arrays:
            words, matrix = arrays["words"], arrays["vectors"]
        return cls({str(w): i for i, w in enumerate(words)}, torch.from_numpy(matrix).float())

    def sentence(self, text: str, label: int, longest: int) -> Sentence | None:
        """The vectors of a text without the words that have none; None where no word is left."""
        words = [w for w in (part.strip(".,:;!?\"'()-").lower() for part in text.split()) if w in self.place][
            :longest
        ]
        return Sentence(words, self.matrix[[self.place[w] for w in words]], label) if words else None


def sentences(
    file: Path, vectors: Vectors, classes: Sequence[str], longest: int = 60, most: int | None = None
) -> list[Sentence]:
    """Read lines of label, tab, text."""
    csv.field_size_limit(sys.maxsize)
    found = []
    with lzma.open(file, "rt", encoding="utf-8", newline="") as lines:
        for label, text in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            label = label.partition(":")[0]  # TREC has "COARSE:fine"
            made = vectors.sentence(text, classes.index(label), longest) if label in classes else None
            found += [made] if made else []
            if most is not None and len(found) >= most:
                break
    return found


def train(
    data: list[Sentence],
    hidden: int,
    classes: int,
    epochs: int,
    batch: int = 64,
    rate: float = 3e-3,
    cell: str = "lstm",
) -> Reader:
    """Train on the state after the last word of each sentence, whatever its length; one seed for weights and
    order.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Reader(cell, data[0].x.shape[1], hidden, classes)
        optimiser = torch.optim.Adam(module.parameters(), lr=rate, weight_decay=1e-5)
        for _ in range(epochs):
            for chosen in torch.randperm(len(data)).split(batch):
                rows = [data[int(i)] for i in chosen]
                optimiser.zero_grad(set_to_none=True)
                cross_entropy(answers(module, rows), torch.tensor([r.label for r in rows])).backward()
                nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                optimiser.step()
    return module.eval()


def answers(module: Reader, rows: list[Sentence]) -> Tensor:
    """Network outputs (sentences, classes)."""
    _, state = module.cell(pack_sequence([r.x for r in rows], enforce_sorted=False))
    last = state[0] if isinstance(state, tuple) else state  # an LSTM has two states
    logits: Tensor = module.head(last[-1])
    return logits


@torch.no_grad()
def accuracy(module: Reader, rows: list[Sentence]) -> float:
    said = torch.cat([answers(module, rows[i : i + 256]).argmax(1) for i in range(0, len(rows), 256)])
    return float((said == torch.tensor([r.label for r in rows])).double().mean())


def trained(
    file: Path, data: list[Sentence], hidden: int, classes: int, epochs: int, cell: str = "lstm"
) -> Reader:
    """The network from the file, or trained now and stored there."""
    if not file.exists():
        save(train(data, hidden, classes, epochs, cell=cell), file)
    return load(Reader(cell, data[0].x.shape[1], hidden, classes), file)
