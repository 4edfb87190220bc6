"""Reviews of 200 words: certified radii of word vectors, and their cost against the number of words.

python -m benchmarks.certify reviews                          an LSTM and a GRU, ten reviews, trained on first use
python -m benchmarks.certify reviews --cells lstm --count 1   one review of one network

An LSTM and a GRU with 32 units read the vectors of the first 200 words of IMDb reviews (all vectors have length 1). Three
questions about a correctly classified review, tier fast: how far may the middle word's vector move in the Euclidean norm
alone, how far may all words' vectors move by the same distance each, and what does one pass of bounds cost.

The cost of a pass is the CPU time of a bound of the score where one word moves, or all, by a small radius, against the
number of words of the same review; the network is traced before.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

import holdfast as hf
from benchmarks.certify.cost import exponent
from benchmarks.certify.data import shared
from benchmarks.certify.nets import CACHE, CELLS
from benchmarks.certify.table import Table
from benchmarks.certify.words import Sentence, Vectors, accuracy, answers, sentences, trained
from holdfast.bounding.first_bounds import describe_forms
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.certify.certify import proved_score
from holdfast.region import Frames
from holdfast.result import Key

CLASSES = ("0", "1")
RADIUS_OF_A_PASS = 1e-4  # Of a vector of length 1; small enough for a bound at every length (chosen by hand).


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cells", nargs="+", default=["lstm", "gru"], choices=sorted(CELLS))
    parser.add_argument("--words", type=int, default=200, help="length of a review; longer ones are cut")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--count", type=int, default=10, help="reviews that are certified")
    parser.add_argument("--train", type=int, default=4000, help="reviews to train on")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8, help="radii tried for each question at most")
    parser.add_argument(
        "--lengths", nargs="*", type=int, default=[50, 100, 200], help="words of the cost of a pass"
    )
    parser.add_argument("--nets", type=Path, default=CACHE, help="folder of trained networks")
    parser.add_argument("--out", type=Path, help="folder where the tables are written")


def main(chosen: argparse.Namespace) -> None:
    folder, vectors = shared("imdb", chosen.data), Vectors.read(chosen.data)
    radii = Table(
        ["cell", "review", "one word: proved", "found", "CPU-s", "all words: proved", "found", "CPU-s"],
        chosen.out,
        "reviews-radii",
    )
    cost = Table(
        ["cell", "words that move", "words", "bounds used first", "CPU-s"], chosen.out, "reviews-cost"
    )
    test = sentences(folder / "test.tsv.xz", vectors, CLASSES, chosen.words, 400)
    for cell in chosen.cells:
        file = chosen.nets / f"imdb-{cell}-{chosen.hidden}-{chosen.words}.npz"
        data = (
            test
            if file.exists()
            else sentences(folder / "train.tsv.xz", vectors, CLASSES, chosen.words, chosen.train)
        )
        module = trained(file, data, chosen.hidden, len(CLASSES), chosen.epochs, cell)
        whole = [s for s in test if len(s.words) == chosen.words]
        with torch.no_grad():
            said = answers(module, whole).argmax(1).tolist()
        reviews = [s for s, label in zip(whole, said, strict=True) if s.label == label][: chosen.count]
        net = hf.Network.from_torch(module)
        for number, review in enumerate(reviews):
            radii.add(cell, number, *certify_review(net, review, chosen.rounds))
        radii.say(f"{cell}: {accuracy(module, test):.1%} of {len(test)} reviews are classified correctly.")
        for moves in ("one", "all"):
            spent = []
            for length in chosen.lengths:
                forms, seconds = measure_pass(net, reviews[0].x[:length], moves == "all")
                spent.append(seconds)
                cost.add(cell, moves, length, forms, seconds)
            if len(chosen.lengths) > 2:
                cost.say(f"{cell}, {moves}: fitted exponent {exponent(chosen.lengths, spent):.2f}.")


def certify_review(net: hf.Network, review: Sentence, rounds: int) -> list[float]:
    """Proved and found radius and CPU seconds, for the middle word and for all words."""
    found = []
    for frames in (len(review.words) // 2, "all"):
        began = time.process_time()
        methods = [hf.attacks.PGD(), hf.certify.Certify(rounds=rounds)]
        [bracket] = hf.radius(net, review.x[None], [review.label], norm=2, frames=frames, methods=methods)
        found += [bracket.lower.value, bracket.upper.value, time.process_time() - began]
    return found


def measure_pass(net: hf.Network, x: Tensor, every: bool) -> tuple[str, float]:
    """What bounds the network first, and the CPU seconds of one pass."""
    mask = torch.ones((1, len(x)), dtype=torch.bool)
    if not every:
        mask[:, 1:] = False
    radius = torch.tensor([RADIUS_OF_A_PASS], dtype=torch.float64)
    family = Frames(x[None], radius, 2.0, net.domain, mask=mask)
    answer = net(x[None]).argmax(1)
    problem = hf.Problem(net, family, hf.Robustness(answer), "radius", (Key(0),))
    forms = describe_forms(graph_of(problem)) or "backward passes"
    began = time.process_time()
    proved_score(problem)
    return forms, time.process_time() - began
