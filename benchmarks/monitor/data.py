"""Texts as token ids, a word vector for each id, and the recurrent classifiers that read them.

Word vectors are GoogleNews (the shared 22,999 words; the paper used GloVe). Words without a vector are left
out. "toxic" has 11,241 comments (the paper: 50,000), split four to one and cut to 100 words. "imdb" is cut to
256 words, and its networks train on the first 2,500 reviews only, which takes minutes on one core.
"""

import argparse
import lzma
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_sequence

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.nets import CACHE, Reader, load, save
from benchmarks.certify.titles import CLASSES as NEWS
from benchmarks.certify.words import Vectors
from holdfast.monitor.abstract.traces import Traces, profile
from holdfast.monitor.engine.exact import Transitions, labels
from holdfast.monitor.engine.recurrent import Recurrent
from holdfast.monitor.mutation.groups import Groups
from holdfast.monitor.mutation.mutation import restore

CELLS = ("lstm", "gru")


@dataclass(frozen=True)
class Texts:
    """A data set's files, and the training settings of its networks."""

    folder: str
    classes: tuple[str, ...]
    hidden: int = 128
    longest: int = 60
    epochs: int = 4
    most: int | None = None  # Number of training texts; None: all.
    omega: int = 16  # Dimensions of the hidden state that the paper keeps (its parameter omega).

    def rows(self, split: str, data: Path) -> list[tuple[str, int]]:
        """Texts and labels; a single file for both parts is split four to one."""
        folder = shared(self.folder, data)
        whole = folder / "all.tsv.xz"
        with lzma.open(
            whole if whole.exists() else folder / f"{split}.tsv.xz", "rt", encoding="utf-8"
        ) as lines:
            rows = [line.rstrip("\n").split("\t", 1) for line in lines]
        if whole.exists():
            rows = [row for i, row in enumerate(rows) if (i % 5 == 0) == (split == "test")]
        return [(text, self.classes.index(label.split(":")[0])) for label, text in rows]


SETS = {
    "news": Texts("news_titles", NEWS),
    "trec": Texts("trec_qc", ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"), epochs=6),
    "toxic": Texts("toxic_jigsaw", ("0", "1"), longest=100, epochs=3),
    "imdb": Texts("imdb", ("0", "1"), hidden=300, longest=256, epochs=3, most=2500, omega=32),
}


class Words(nn.Module):
    """(batch, words) token ids -> (batch, classes)."""

    def __init__(self, table: Tensor, reader: Reader) -> None:
        super().__init__()
        self.embedding, self.cell, self.head = (
            nn.Embedding.from_pretrained(table, freeze=True),
            reader.cell,
            reader.head,
        )

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(self.embedding(tokens))[0][:, -1])
        return logits


@dataclass(frozen=True)
class Split:
    tokens: list[Tensor]  # (words,) each
    labels: Tensor


def split(texts: Texts, part: str, vectors: Vectors, data: Path, most: int | None = None) -> Split:
    tokens, labels = [], []
    for text, label in texts.rows(part, data):
        words = [
            w for w in (word.strip(".,:;!?\"'()-").lower() for word in text.split()) if w in vectors.place
        ][: texts.longest]
        if words:
            tokens.append(torch.tensor([vectors.place[w] for w in words]))
            labels.append(label)
        if most is not None and len(tokens) >= most:
            break
    return Split(tokens, torch.tensor(labels))


def network(
    name: str,
    cell: str,
    vectors: Vectors,
    data: Path,
    nets: Path = CACHE,
    hidden: int | None = None,
    learn: int | None = None,
) -> Words:
    """The network from the file, or trained now (on the first `learn` texts) and stored there."""
    texts, hidden = SETS[name], hidden or SETS[name].hidden
    part = f"-{learn}" if learn else ""
    file = nets / f"monitor-{name}-{cell}-{hidden}{part}.npz"
    reader = Reader(cell, vectors.matrix.shape[1], hidden, len(SETS[name].classes))
    if not file.exists():
        seen = split(texts, "train", vectors, data, learn or texts.most)
        save(train(cell, hidden, texts, seen, vectors), file)
    return Words(vectors.matrix, load(reader, file)).eval()


def train(
    cell: str, hidden: int, texts: Texts, part: Split, vectors: Vectors, batch: int = 64, rate: float = 3e-3
) -> Reader:
    """Train on the state after the last word; one seed for weights and order; texts of similar length share a
    batch.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reader = Reader(cell, vectors.matrix.shape[1], hidden, len(texts.classes))
        optimiser = torch.optim.Adam(reader.parameters(), lr=rate, weight_decay=1e-5)
        lengths = torch.tensor([len(t) for t in part.tokens])
        for _ in range(texts.epochs):
            near = (lengths + torch.rand(len(lengths))).argsort().split(batch)
            for which in torch.randperm(len(near)).tolist():
                chosen = near[which]
                optimiser.zero_grad(set_to_none=True)
                rows = pack_sequence(
                    [vectors.matrix[part.tokens[i]] for i in chosen.tolist()], enforce_sorted=False
                )
                cross_entropy(reader.head(last(reader.cell(rows)[1])), part.labels[chosen]).backward()
                nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
                optimiser.step()
    return reader.eval()


def last(state: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    return (state[0] if isinstance(state, tuple) else state)[-1]


@torch.no_grad()
def predicted(net: Words, tokens: list[Tensor], batch: int = 256) -> Tensor:
    """Predicted classes (texts,)."""
    said = []
    for i in range(0, len(tokens), batch):
        rows = pack_sequence([net.embedding(t) for t in tokens[i : i + batch]], enforce_sorted=False)
        said.append(net.head(last(net.cell(rows)[1])).argmax(1))
    return torch.cat(said)


def accuracy(net: Words, part: Split) -> float:
    return float((predicted(net, part.tokens) == part.labels).double().mean())


def antonyms(vectors: Vectors, data: Path) -> list[tuple[int, int]]:
    """Pairs of token ids that may never share a group."""
    pairs = set()
    for name in ("ppdb_antonyms", "wordnet_antonyms"):
        with lzma.open(shared("synonyms", data) / f"{name}.txt.xz", "rt", encoding="utf-8") as lines:
            for line in lines:
                words = line.split()
                if len(words) == 2 and all(w in vectors.place for w in words):
                    pairs.add((vectors.place[words[0]], vectors.place[words[1]]))
    return sorted(pairs)


def groups(vectors: Vectors, data: Path, nets: Path = CACHE) -> Groups:
    """Groups of words by complete linkage at cosine 0.65, antonyms apart.

    Takes half a minute, so it is cached.
    """
    file = nets / "monitor-groups-065.npz"
    if not file.exists():
        made = Groups.of_vectors(vectors.matrix, cosine=0.65, antonyms=antonyms(vectors, data))
        np.savez(file, **{key: value.numpy() for key, value in made.tensors().items()})
    with np.load(file, allow_pickle=False) as arrays:
        found = restore({"kind": Groups.kind}, {key: torch.from_numpy(arrays[key]) for key in arrays.files})
    assert isinstance(found, Groups)
    return found


@dataclass(frozen=True)
class Case:
    """One network, the texts of both splits as it reads them, and the groups of words that may replace each
    other.
    """

    name: str
    cell: str
    texts: Texts
    module: Words
    net: hf.Network
    view: Recurrent
    mutation: Groups
    train: Split
    test: Split

    @cached_property
    def seen(self) -> Traces:
        """The training traces of the abstract models."""
        return profile(self.net, self.train.tokens, self.mutation, None, self.view)

    @cached_property
    def new(self) -> Traces:
        return profile(self.net, self.test.tokens, self.mutation, None, self.view)

    def final(self, part: str) -> Transitions:
        """Exact final-step scores of the training or the test texts."""
        tokens = self.train.tokens if part == "train" else self.test.tokens
        return labels(self.net, tokens, self.mutation, k="final", view=self.view).to(torch.device("cpu"))

    def __str__(self) -> str:
        return f"{self.name} {self.cell.upper()}-{self.module.cell.hidden_size}"


def options(parser: argparse.ArgumentParser, sets: list[str]) -> None:
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=sets)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument(
        "--train", type=int, default=None, help="texts to profile; default: all, for imdb 1,000"
    )
    parser.add_argument(
        "--test", type=int, default=None, help="texts to test on; default: all, for imdb 1,000"
    )
    parser.add_argument("--hidden", type=int, help="hidden units; default: those of the set")
    parser.add_argument("--learn", type=int, help="texts to train the network on; default: those of the set")
    parser.add_argument(
        "--nets", type=Path, default=CACHE, help="folder of trained networks; missing ones are trained"
    )
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def case(name: str, cell: str, chosen: argparse.Namespace) -> Case:
    texts, vectors, few = SETS[name], Vectors.read(chosen.data), 1000 if name == "imdb" else None
    module = network(name, cell, vectors, chosen.data, chosen.nets, chosen.hidden, chosen.learn)
    net = hf.Network.from_torch(module, tokens=True, shape=(8,))
    parts = [
        split(texts, part, vectors, chosen.data, most or few)
        for part, most in (("train", chosen.train), ("test", chosen.test))
    ]
    view = Recurrent.of(net, parts[0].tokens[:6])
    assert view is not None, (
        "a network of an embedding, one recurrent layer and a linear head must have a view"
    )
    return Case(name, cell, texts, module, net, view, groups(vectors, chosen.data, chosen.nets), *parts)
