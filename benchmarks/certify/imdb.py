"""A review of IMDb's length: 256 words, an LSTM with 128 units, one word perturbed: seconds and memory.

python -m benchmarks.certify imdb --words 256 --hidden 128 --place 128

The radius is that of the word's vector in l2 (all vectors have length 1), by tier fast.
"""

import argparse
import resource
import time
from pathlib import Path

import torch

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.nets import CACHE
from benchmarks.certify.table import Table
from benchmarks.certify.words import Vectors, accuracy, answers, sentences, trained

CLASSES = ("0", "1")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--words", type=int, default=256, help="length of the review; longer ones are cut")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument(
        "--place",
        type=int,
        nargs="+",
        default=[128],
        help="index of the perturbed word, from 0; each is certified alone",
    )
    parser.add_argument("--rounds", type=int, default=7, help="radii to try")
    parser.add_argument("--train", type=int, default=4000, help="reviews to train on")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--nets", type=Path, default=CACHE, help="folder of trained networks; missing ones are trained"
    )
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    folder, vectors = shared("imdb", chosen.data), Vectors.read(chosen.data)
    file = chosen.nets / f"imdb-lstm-{chosen.hidden}.npz"
    data = (
        []
        if file.exists()
        else sentences(folder / "train.tsv.xz", vectors, CLASSES, chosen.words, chosen.train)
    )
    test = sentences(folder / "test.tsv.xz", vectors, CLASSES, chosen.words, 1000)
    module = trained(file, data or test, chosen.hidden, len(CLASSES), chosen.epochs)
    share = accuracy(module, test)
    whole = [s for s in test if len(s.words) == chosen.words]
    with torch.no_grad():
        said = answers(module, whole).argmax(1).tolist()
    review = next(s for s, label in zip(whole, said, strict=True) if s.label == label)
    net = hf.Network.from_torch(module, device=chosen.device)
    columns = [
        "words",
        "hidden",
        "accuracy",
        "word",
        "place",
        "proved",
        "witnessed",
        "CPU-s",
        "s",
        "peak memory, GiB",
    ]
    table = Table(columns, chosen.out, "imdb")
    for place in chosen.place:
        began, wall = time.process_time(), time.perf_counter()
        methods: list[hf.Method] = [hf.attacks.PGD(), hf.certify.Certify(rounds=chosen.rounds)]  # type: ignore[type-arg]
        (bracket,) = hf.radius(net, review.x[None], [review.label], norm=2, frames=place, methods=methods)
        spent = [time.process_time() - began, time.perf_counter() - wall, peak(chosen.device)]
        word = review.words[place]
        ends = [f"{end.value:.2g}" for end in (bracket.lower, bracket.upper)]
        table.add(chosen.words, chosen.hidden, f"{share:.1%}", word, place, *ends, *spent)


def peak(device: str) -> float:
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
