"""News titles in which all words may be replaced by synonyms at once (sets of Jia et al. 2019).

python -m benchmarks.harden titles --seconds 40 --device cuda --out OUT

Word vectors start as GoogleNews's and are trained with the rest: if they stay fixed, the boxes around
synonyms are too wide to learn anything. A linear layer with a ReLU follows, then an LSTM, or the mean of all
words (--model mean). Titles have 4 to --longest words. Proofs are those of `hf.radius` with substitutes:
enumeration where all sentences of a title can be evaluated, otherwise linear bounds over the convex hulls of
the words. Jia et al. (2019, abstract) report 75 % accuracy on IMDb (two classes) under an attack's
substitutions, against 8 to 12 % after standard training. Here there are seven classes, another task, and
certified accuracy.
"""

import argparse
import csv
import json
import lzma
import math
from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.titles import CLASSES
from benchmarks.certify.words import Vectors
from benchmarks.harden.measure import Split, options, side_by_side, table
from holdfast.hardening import Recipe

SHORTEST = 4


class Titles(nn.Module):
    """(batch, length) token ids -> (batch, classes)."""

    def __init__(self, table: Tensor, hidden: int, kind: str) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(table, freeze=False)
        self.first = nn.Linear(table.shape[1], hidden)
        self.kind, self.recurrent = (
            kind,
            nn.LSTM(hidden, hidden, batch_first=True) if kind == "lstm" else None,
        )
        self.head = nn.Linear(hidden, len(CLASSES))

    def forward(self, tokens: Tensor) -> Tensor:
        seen = torch.relu(self.first(self.table(tokens)))
        last = seen.mean(1) if self.recurrent is None else self.recurrent(seen)[0][:, -1]
        logits: Tensor = self.head(last)
        return logits


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", nargs="+", default=["mean", "lstm"], choices=["mean", "lstm"])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument(
        "--longest", type=int, default=10, help="maximum words of a title; every length is traced once"
    )
    parser.add_argument("--train", type=int, help="number of training titles; default: all")
    options(parser, seconds=40)


def main(chosen: argparse.Namespace) -> None:
    vectors = Vectors.read(chosen.data)
    folder = shared("news_titles", chosen.data)
    (x, y), test = (_read(folder / f"{part}.tsv.xz", vectors, chosen.longest) for part in ("train", "test"))
    with lzma.open(
        shared("synonyms", chosen.data) / "counterfitted_neighbors.json.xz", "rt", encoding="utf-8"
    ) as file:
        near = json.load(file)
    place = vectors.place
    sets = {place[w]: [place[o] for o in others if o in place] for w, others in near.items() if w in place}
    held = len(x) // 10
    end = len(x) if chosen.train is None else min(len(x), held + chosen.train)
    split = Split((x[held:end], y[held:end]), (x[:held], y[:held]), test)
    rows = table(chosen, "titles")
    many = [
        math.prod(1 + len(sets.get(int(token), ())) for token in title)
        for title in split.test[0][: chosen.count]
    ]
    print(
        f"{len(split.train[0])} training titles; of the certified ones {sum(m == 1 for m in many)} have no "
        "synonym at all",
        flush=True,
    )
    recipes = {
        "standard": Recipe("standard", batch=128, rate=2e-3),
        "pgd": Recipe("pgd", batch=128, rate=2e-3, attack=3),
        "hardened": Recipe("intervals", batch=128, rate=2e-3, weight=0.7),
    }
    words = tuple(sorted(place, key=place.__getitem__))
    for kind in chosen.model:

        def network(module: nn.Module) -> hf.Network:
            return hf.Network.from_torch(module, vocabulary=words, device=chosen.device)

        side_by_side(
            rows,
            chosen,
            f"titles {kind} {chosen.hidden}",
            lambda k=kind: Titles(vectors.matrix, chosen.hidden, k),
            split,
            None,
            recipes,
            network=network,
            substitutes=sets,
        )


def _read(file: Path, vectors: Vectors, longest: int) -> tuple[list[Tensor], Tensor]:
    """Titles as token ids, in random order, since the file is sorted by class."""
    found: list[tuple[Tensor, int]] = []
    with lzma.open(file, "rt", encoding="utf-8", newline="") as lines:
        for label, text in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            words = [
                w for w in (part.strip(".,:;!?\"'()-").lower() for part in text.split()) if w in vectors.place
            ]
            if label in CLASSES and SHORTEST <= len(words) <= longest:
                found.append((torch.tensor([vectors.place[w] for w in words]), CLASSES.index(label)))
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0)).tolist()
    return [found[k][0] for k in order], torch.tensor([found[k][1] for k in order])
