"""The report page of 10, 1,000 and 10,000 inputs: its size and the time to write it.

The inputs are the digits, repeated, each with a counterexample. The records are synthetic, written through
the run store.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

import holdfast as hf
from holdfast.datasets import digits
from holdfast.question import DataDescription, ModelDescription, Question, Request
from holdfast.report import write_report
from holdfast.result import Bound, Bracket, Evidence, Key, Record


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--counts", type=int, nargs="+", default=[10, 1000, 10_000])


def main(chosen: argparse.Namespace) -> None:
    print("| inputs | page | seconds to write | rows with pictures |\n|---|---|---|---|")
    for count in chosen.counts:
        with tempfile.TemporaryDirectory() as folder, made_up(Path(folder) / "run", count) as store:
            began = time.perf_counter()
            page = write_report(store, Path(folder) / "report.html")
            seconds = time.perf_counter() - began
            pictures = page.read_text().count("<img") // 3
            print(
                f"| {count:,} | {page.stat().st_size / 1000:,.0f} kB | {seconds:.1f} | {pictures:,} |",
                flush=True,
            )


def made_up(folder: Path, count: int) -> hf.Store:
    data = digits("train")
    rows = torch.arange(count) % len(data.x)
    x, labels = data.x.reshape(-1, 1, 8, 8)[rows], data.y[rows].tolist()
    generator = torch.Generator().manual_seed(0)
    ends = torch.rand(count, 2, generator=generator, dtype=torch.float64).sort(1).values.tolist()
    moved = (x + 0.1 * torch.randn(x.shape, generator=generator).sign()).clamp(0, 1)
    store = hf.Store.create(
        folder,
        Question(model=ModelDescription("made up"), data=DataDescription("digits"), asked=Request("inf")),
    )
    store.put_inputs(list(x), labels, labels, [str(k) for k in range(count)], [None] * count)
    store.write([_record(k, *ends[k], moved[k]) for k in range(count)])
    return store


def _record(index: int, lower: float, upper: float, witness: torch.Tensor) -> Record:
    proof = Evidence(
        "proved", "Certify", {"rounds": 12}, 0, "torch.float64", ("the network computes in real arithmetic",)
    )
    found = Evidence("witnessed", "PGD", {"steps": 20}, 0, "torch.float32", witness=witness)
    return Record(
        Key(index), Bracket(Bound(lower, proof), Bound(upper, found)), "finished", 0.5 + index % 7, 100
    )
