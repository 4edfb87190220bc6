"""News titles, an LSTM, words replaced by counter-fitted neighbours: how many must be replaced?

python -m benchmarks.hamming words --count 50 --seconds 20

The titles are spread over the test set and correctly classified. A title whose class no choice of neighbours
changes has an infinite radius. The table compares the search with the exact numbers.
"""

import argparse
import json
import lzma
import math
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.nets import CACHE, Reader
from benchmarks.certify.table import Table
from benchmarks.certify.titles import CLASSES, right
from benchmarks.certify.words import Sentence, Vectors, accuracy, sentences, trained
from benchmarks.hamming.measure import clock, options
from holdfast.hamming.greedy import Greedy


class Titles(nn.Module):
    """Token ids (batch, words) -> (batch, classes)."""

    def __init__(self, reader: Reader, vectors: Tensor) -> None:
        super().__init__()
        self.words, self.reader = nn.Embedding.from_pretrained(vectors), reader

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.reader(self.words(tokens))
        return logits


def neighbours(vectors: Vectors, folder: Path) -> dict[int, list[int]]:
    """A map from token id to the ids of its counter-fitted neighbours that have a vector."""
    with lzma.open(shared("synonyms", folder) / "counterfitted_neighbors.json.xz", "rt") as file:
        known = json.load(file)
    place = vectors.place
    return {
        place[w]: found
        for w, others in known.items()
        if w in place and (found := [place[o] for o in others if o in place])
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, count=50, seconds=20)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--longest", type=int, default=20, help="words")


def main(chosen: argparse.Namespace) -> None:
    folder, vectors = shared("news_titles", chosen.data), Vectors.read(chosen.data)
    test, train = (sentences(folder / f"{part}.tsv.xz", vectors, CLASSES) for part in ("test", "train"))
    module = trained(CACHE / f"titles-lstm-{chosen.hidden}.npz", train, chosen.hidden, len(CLASSES), 4)
    titles, share = right(module, test, chosen.count, chosen.longest), accuracy(module, test)
    net = hf.Network.from_torch(Titles(module, vectors.matrix).eval(), tokens=True, device=chosen.device)
    sets = neighbours(vectors, chosen.data)
    ids = [torch.tensor([vectors.place[w] for w in title.words]) for title in titles]
    y = [title.label for title in titles]
    hf.radius(net, ids[:1], y[:1], substitutes=sets, stop=hf.Stop(seconds=0.0))  # Trace the network first.
    began = clock(net)
    found = [b.upper.value + 1 for b in hf.radius(net, ids, y, substitutes=sets, methods=[Greedy()])]
    searching = clock(net) - began
    brackets, spent = [], []
    for row, label in zip(ids, y, strict=True):
        began = clock(net)
        brackets += hf.radius(net, [row], [label], substitutes=sets, stop=hf.Stop(seconds=chosen.seconds))
        spent.append(clock(net) - began)
    _tables(
        chosen,
        titles,
        found,
        brackets,
        spent,
        searching,
        share,
        sum(bool(sets.get(int(i))) for row in ids for i in row),
    )


def _tables(
    chosen: argparse.Namespace,
    titles: list[Sentence],
    found: list[float],
    brackets: list[hf.Bracket],
    spent: list[float],
    searching: float,
    share: float,
    replaceable: int,
) -> None:
    table = Table(
        ["words to replace", "titles (exact)", "titles (search alone)"], chosen.out, "hamming-words"
    )
    exact, searched = Counter(b.upper.value + 1 for b in brackets if b.closed), Counter(found)
    for count in sorted({*exact, *searched}):
        table.add(
            "none suffices, or none found" if math.isinf(count) else int(count),
            exact[count],
            searched[count],
        )
    count, whole = len(titles), hf.result.overall(brackets)
    table.say(
        f"{sum(b.closed for b in brackets)} of {count} titles closed, {sum(spent) / count:.2f} s/title "
        f"(most {max(spent):.1f}); search "
        f"{searching / count:.3f} s. {whole.unbreakable} have no adversarial replacement; over the others "
        f"{whole.lower:.2f} <= mean <= {whole.upper:.2f} "
        f"words may change. LSTM {chosen.hidden}, accuracy {share:.1%}; "
        f"{sum(len(t.words) for t in titles) / count:.1f} words/title, {replaceable / count:.1f} with "
        "neighbours."
    )
