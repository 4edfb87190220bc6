"""A classifier of news titles that reads bytes, as a black box: how many bytes must change?

python -m benchmarks.hamming bytes --count 50

The network is a convolution over bytes. It is passed as a plain function of numpy arrays, so only its outputs
are available. It reads the first 64 bytes of a title; shorter titles are padded by spaces, which are not
perturbed. A changed byte may take any of the 256 values, or any printable one.
"""

import argparse
import csv
import lzma
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.table import Table
from benchmarks.certify.titles import CLASSES
from benchmarks.hamming.measure import clock, options
from benchmarks.hamming.nets import trained
from holdfast.hamming.greedy import Greedy

LENGTH = 64
SPACE = 32


class ByteReader(nn.Module):
    """(batch, bytes) -> (batch, classes): the maximum of each filter over the title, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.filters = nn.Embedding(256, 16), nn.Conv1d(16, 128, 7, padding=3)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(128, len(CLASSES)))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.filters(self.bytes(x.long()).mT)).amax(-1))
        return logits


def read(file: Path) -> tuple[Tensor, Tensor]:
    """Bytes (titles, LENGTH) float32, and classes (titles,)."""
    with lzma.open(file, "rt", encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if row[0] in CLASSES]
    x = np.stack([np.frombuffer(text.encode()[:LENGTH].ljust(LENGTH), dtype=np.uint8) for _, text in rows])
    return torch.from_numpy(x.astype(np.float32)), torch.tensor([CLASSES.index(label) for label, _ in rows])


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, count=50, seconds=20)


def main(chosen: argparse.Namespace) -> None:
    folder = shared("news_titles", chosen.data)
    x, y = read(folder / "test.tsv.xz")
    reader = trained("bytes", ByteReader, *read(folder / "train.tsv.xz"), epochs=6).to(chosen.device)

    @torch.no_grad()
    def answers(titles: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        return reader(torch.from_numpy(titles).to(chosen.device)).cpu().numpy()  # type: ignore[no-any-return]

    net = hf.Network.from_callable(answers, domain=(0, 255), shape=(LENGTH,))
    said = torch.cat([net(part).argmax(1) for part in x.split(1000)])
    share = float((said == y).double().mean())
    right = (said == y).nonzero().flatten()
    which = right[:: max(1, len(right) // chosen.count)][: chosen.count]
    x, y = x[which], y[which]
    inside = (x != SPACE).flip(1).cummax(1).values.flip(1)  # True up to the last byte that is not padding.
    columns = [
        "values of a byte",
        "titles",
        "found",
        "mean bytes",
        "median",
        "most",
        "queries/title",
        "s/title",
    ]
    table = Table(columns, chosen.out, "hamming-bytes")
    for name, values in (("0 to 255", range(256)), ("printable", range(32, 127))):
        before, began = net.queries, clock(net)
        stop = hf.Stop(seconds=chosen.seconds * len(x))
        found = hf.radius(
            net, x, y, norm=0, unit="number", free=inside, values=list(values), methods=[Greedy()], stop=stop
        )
        spent, asked = clock(net) - began, net.queries - before
        some = [b.upper.value + 1 for b in found if math.isfinite(b.upper.value)]
        cells = [statistics.mean(some), statistics.median(some), max(some)] if some else [None] * 3
        table.add(name, len(x), len(some), *cells, asked // len(x), spent / len(x))
    free = float(inside.double().sum(1).mean())
    table.say(
        f"Accuracy {share:.1%} of seven classes; {free:.0f} bytes of a title may change. Black box: no "
        "certified bounds."
    )
