"""POPQORN's experiment III (Figure 6): which words decide the class of a text? One is perturbed at a time.

python -m benchmarks.certify titles --hidden 32 128 --count 10
python -m benchmarks.certify titles --set trec --hidden 32 --count 10

Each word has its own certified l2 radius in the space of the vectors (all of length 1); the three smallest
are underlined. With --attack the three words with the smallest upper bounds are bold: linear bounds lose
precision with each time step, so certified radii favour the last words. MARBLE's authors measured 52.8
minutes for POPQORN on one sentence. Tracing a new length takes about half a second, which is not counted.
"""

import argparse
import math
import time
from pathlib import Path

import torch

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.nets import CACHE
from benchmarks.certify.table import Table
from benchmarks.certify.words import Sentence, Vectors, accuracy, answers, sentences, trained
from holdfast.api.radius import radius_problems
from holdfast.bounding.graph.problem_graph import graph_of

CLASSES = ("sport", "business", "us", "health", "sci_tech", "world", "entertainment")
SETS = {"news": ("news_titles", CLASSES), "trec": ("trec_qc", ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"))}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", choices=SETS, default="news", help="news titles, or TREC questions")
    parser.add_argument("--hidden", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--count", type=int, default=10, help="titles")
    parser.add_argument("--longest", type=int, default=20, help="words")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--attack", action="store_true", help="upper bounds as well")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--nets", type=Path, default=CACHE, help="folder of trained networks; missing ones are trained"
    )
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    name, classes = SETS[chosen.set]
    folder, vectors = shared(name, chosen.data), Vectors.read(chosen.data)
    test = sentences(folder / "test.tsv.xz", vectors, classes)
    columns = ["hidden", "accuracy", "class", "text: certified radius of each word", "words", "CPU-s", "s"]
    table = Table(
        [*columns, "proved / witnessed"] if chosen.attack else columns, chosen.out, f"titles-{chosen.set}"
    )
    for hidden in chosen.hidden:
        data = sentences(folder / "train.tsv.xz", vectors, classes)
        file = chosen.nets / f"{'titles' if chosen.set == 'news' else chosen.set}-lstm-{hidden}.npz"
        module = trained(file, data, hidden, len(classes), chosen.epochs)
        share = accuracy(module, test)
        net = hf.Network.from_torch(module, device=chosen.device)
        for title in right(module, test, chosen.count, chosen.longest):
            (
                net.double(title.x[None]),
                graph_of(radius_problems(net, [title.x], [title.label], norm=2, frames="each")[0]),
            )
            began, wall = time.process_time(), time.perf_counter()
            lower, upper = word_radii(net, title, attack=chosen.attack)
            spent = [time.process_time() - began, time.perf_counter() - wall]
            last = [f"{sum(lower) / sum(upper):.2f}"] if chosen.attack else []
            table.add(
                hidden,
                f"{share:.1%}",
                classes[title.label],
                marked(title.words, lower, upper),
                len(title.words),
                *spent,
                *last,
            )


def right(module: torch.nn.Module, data: list[Sentence], count: int, longest: int) -> list[Sentence]:
    """Correctly classified texts, spread over the data, since these are sorted by class."""
    fitting = [s for s in data if 4 <= len(s.words) <= longest]
    fitting = fitting[:: max(1, len(fitting) // (2 * count))]
    with torch.no_grad():
        said = answers(module.cpu(), fitting).argmax(1)  # type: ignore[arg-type]
    return [s for s, label in zip(fitting, said.tolist(), strict=True) if s.label == label][:count]


def word_radii(net: hf.Network, title: Sentence, *, attack: bool = False) -> tuple[list[float], list[float]]:
    methods: list[hf.Method] = [hf.attacks.PGD(), hf.certify.Certify()] if attack else [hf.certify.Certify()]  # type: ignore[type-arg]
    (brackets,) = hf.radius(net, title.x[None], [title.label], norm=2, frames="each", methods=methods)
    return [b.lower.value for b in brackets], [b.upper.value for b in brackets]


def marked(words: list[str], lower: list[float], upper: list[float]) -> str:
    """Every word with its certified radius; the three smallest are underlined, the three smallest upper
    bounds bold.
    """
    shown = []
    for word, low, high in zip(words, lower, upper, strict=True):
        word = f"<u>{word}</u>" if low <= sorted(lower)[2] else word
        shown.append(
            f"**{word}** {low:.2f}"
            if math.isfinite(high) and high <= sorted(upper)[2]
            else f"{word} {low:.2f}"
        )
    return ", ".join(shown)
