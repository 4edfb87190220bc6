"""DeepTRE's Table 1: coverage by generated tests, against random mutation.

python -m benchmarks.hamming coverage --networks digits mnist cifar --criteria neuron multisection boundary

Shares in per cent. Random mutation changes random pixels of random seeds to random values, seven of ten to
the smallest or largest value. As many tests: one mutant per generated test, with as many changed pixels. As
many
queries: one mutant per network evaluation of the generator, with one to `--pixels` changed pixels. Both are
means of `--runs`. The paper gives 98.95 (MNIST) and 98.63 (CIFAR-10) for DeepTRE, 97.60 and 84.98 for
DeepConcolic, at most 82.68 and 83.25 for DeepXplore, on other networks and seeds.
"""

import argparse
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.hamming.nets import Case, case
from holdfast.coverage.criteria import Criterion, Items, items
from holdfast.coverage.neurons import Neurons
from holdfast.coverage.testgen import Tests, testgen
from holdfast.random_streams import RandomStreams

PART = 2048  # Mutants evaluated in one batch.


def mutants(net: hf.Network, seeds: Tensor, changed: Tensor, generator: torch.Generator) -> Tensor:
    """For each number in `changed`, a random seed with that many random pixels changed."""
    start = torch.randint(0, len(seeds), changed.shape, generator=generator)
    chance = RandomStreams.of(range(len(start)), int(torch.randint(2**62, (), generator=generator)))
    return hf.region.Sparse(seeds[start], changed.double(), net.domain, axes=(0,)).sample(1, chance)[0]


def covered(neurons: Neurons, wanted: Items, x: Tensor) -> Tensor:
    """Coverage (neurons, kinds) bool of the items by inputs x."""
    return torch.stack([wanted.covers(values) for values, _ in neurons.read_values(x)]).any(0)


def by_chance(
    asked: Case, seeds: Tensor, train: Tensor, found: Tests, pixels: int, runs: int
) -> tuple[float, float]:
    """Share covered by seeds and random mutants, with as many tests as were generated and with as many
    queries.
    """
    neurons = Neurons.of(asked.net, seeds)
    wanted, _ = items(neurons, train, found.criterion)
    before, count = covered(neurons, wanted, seeds), wanted.exist.sum()
    shares = []
    for run in range(runs):
        generator = torch.Generator().manual_seed(run)
        few = (
            before
            if not len(found)
            else before | covered(neurons, wanted, mutants(asked.net, seeds, found.changed, generator))
        )
        many = before.clone()
        for part in torch.randint(1, pixels + 1, (found.queries,), generator=generator).split(PART):
            many |= covered(neurons, wanted, mutants(asked.net, seeds, part, generator))
        shares.append([float(few.sum() / count), float(many.sum() / count)])
    few_share, many_share = torch.tensor(shares).mean(0).tolist()
    return few_share, many_share


def compare(
    asked: Case, criterion: Criterion, seeds: int, seconds: float | None, pixels: int, runs: int
) -> tuple[Tests, float, float]:
    """Coverage by tests generated from the first seeds, and by random mutants."""
    x, train = asked.x[:seeds], asked.train[:10000]
    found = testgen(asked.net, x, criterion, y=asked.y[:seeds], train=train, stop=hf.Stop(seconds=seconds))
    return found, *by_chance(asked, x, train, found, pixels, runs)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", nargs="+", choices=("digits", "mnist", "cifar"), default=["digits"])
    parser.add_argument(
        "--criteria", nargs="+", choices=get_args(Criterion), default=list(get_args(Criterion))
    )
    parser.add_argument("--seeds", type=int, default=50, help="test images used as seeds")
    parser.add_argument("--seconds", type=float, default=120, help="limit of each search")
    parser.add_argument("--pixels", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    columns = [
        "network",
        "criterion",
        "items",
        "seeds alone",
        "generated",
        "tests",
        "mean changed",
        "adversarial",
        "questions",
        "s",
    ]
    table = Table([*columns, "chance, as many tests", "chance, as many queries"], chosen.out, "coverage")
    for name in chosen.networks:
        asked = case(name, chosen.data)
        for criterion in chosen.criteria:
            found, few, many = compare(
                asked, criterion, chosen.seeds, chosen.seconds, chosen.pixels, chosen.runs
            )
            table.add(
                name,
                criterion,
                found.total.items,
                *_per_cent(found.before, found.after),
                len(found),
                float(found.changed.double().mean()) if len(found) else None,
                int(found.adversarial.sum()),
                found.queries,
                f"{found.seconds:.0f}{'' if found.status == 'finished' else ' (stopped)'}",
                *_per_cent(few, many),
            )
    table.say(f"{chosen.seeds} seeds; ranges over at most 10,000 training images.")


def _per_cent(*shares: float) -> list[str]:
    return [f"{100 * share:.2f}" for share in shares]
