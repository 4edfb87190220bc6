"""Exhaustive enumeration of all sentences that the substitution sets allow: exact for small sets, and
therefore a proof.

Statement. Let S(k) be the finite set of sentences in which at most k words are replaced, each by one of its
substitutes. If the network was queried at every sentence of S(k) and kept its class, then k is certified, for
the network as executed.

Assumption: the network answers a sentence the same way every time (`network.statefulness`).
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.region import Region
from holdfast.result import Goal, Traits

# Assumptions of these proofs, stored with the record.
ASSUMPTIONS = ("every allowed sentence was queried, in the network's own arithmetic",)


@dataclass(frozen=True)
class EnumerationState:
    """The state of the enumeration: all sentences with up to `count` replaced words were queried; rows in
    `open` kept their class.
    """

    count: int
    open: Tensor  # (batch,) bool


@dataclass(frozen=True)
class Enumerate(Method[EnumerationState]):
    """Query all sentences with one replaced word, then two, and so on; up to `sentences` of each input in a
    step.
    """

    finds: ClassVar[str] = "exact counts of replaced words"
    help: ClassVar[str] = "queries every sentence that the substitution sets allow"
    traits: ClassVar[Traits] = Traits(complete=True, seeded=False, glass=False, exact=True, runs=True)
    goals: ClassVar[tuple[Goal, ...]] = ("radius",)

    sentences: int = 100_000

    # Enumerate an input before all other methods if it has at most this many sentences. The default
    # attacks take about 1,200 queries an input, most with gradients (three times the cost of a plain
    # query), and a proof comes on top.
    cheap: ClassVar[int] = 4096

    def obstacle(self, problem: Problem) -> str | None:
        if not len(problem) or problem.region.substitutes(0) is None:
            return "enumerates sentences with replaced words; this problem has another region"
        return None

    def settles(self, problem: Problem) -> Tensor | None:
        most = min(self.cheap, self.sentences)
        counts = [
            math.prod(1 + len(words) for words in _options(problem.region, row).values())
            for row in range(len(problem))
        ]
        return torch.tensor([count <= most for count in counts])

    def start(self, problem: Problem, seed: int) -> EnumerationState:
        return EnumerationState(0, torch.ones(len(problem), dtype=torch.bool))

    def step(self, problem: Problem, state: EnumerationState) -> tuple[EnumerationState | None, Claims]:
        region = problem.region
        count = state.count + 1
        options = {row: _options(region, row) for row in state.open.nonzero().flatten().tolist()}
        enumerable = [
            row for row, places in options.items() if 0 < sentences(places, count) <= self.sentences
        ]
        counterexamples = _first_counterexamples(problem, {row: options[row] for row in enumerable}, count)
        proved = torch.full((len(problem),), math.nan, dtype=torch.float64)
        witness, found, still = (
            region.centre.clone(),
            torch.zeros(len(problem), dtype=torch.bool),
            torch.zeros_like(state.open),
        )
        for row in enumerable:
            if row in counterexamples:
                witness[row], found[row] = counterexamples[row], True
            else:
                proved[row], still[row] = count, count < len(options[row])
        claims = Claims(
            proved=proved,
            witness=witness,
            found=found,
            assumptions=ASSUMPTIONS,
            dtype=str(problem.network.dtype),
        )
        return EnumerationState(count, still) if bool(still.any()) else None, claims


Places = Mapping[int, list[int]]  # position -> the substitutes of the word there


def _options(region: Region, row: int) -> Places:
    """Return the substitutes of the words of one row; positions without substitutes are left out."""
    found = region.substitutes(row)
    assert found is not None
    return found


def sentences(options: Places, count: int) -> int:
    """Return the number of sentences that differ in exactly `count` words."""
    ways = [1, *([0] * count)]  # elementary symmetric polynomials of the numbers of substitutes
    for words in options.values():
        for k in range(count, 0, -1):
            ways[k] += ways[k - 1] * len(words)
    return ways[count]


def _first_counterexamples(
    problem: Problem, options: dict[int, Places], count: int, at_once: int = 4096
) -> dict[int, Tensor]:
    """Return for each row its first counterexample with `count` replaced words, (*shape); rows without one
    are left out.
    """
    region = problem.region
    sentence = region.as_data(region.centre)
    counterexamples: dict[int, Tensor] = {}

    def variants() -> Iterator[tuple[int, list[int]]]:
        for row, places in options.items():
            own = sentence[row].tolist()
            for chosen in itertools.combinations(places, count):
                if row in counterexamples:
                    break
                for words in itertools.product(*(places[p] for p in chosen)):
                    new = dict(zip(chosen, words, strict=True))
                    yield row, [new.get(place, word) for place, word in enumerate(own)]

    waiting = variants()
    while chunk := list(itertools.islice(waiting, at_once)):
        rows, tokens = (torch.tensor(part, device=region.centre.device) for part in zip(*chunk, strict=True))
        scores = batch.take(problem.property, rows).score(problem.answers_to_data(tokens))
        for place in (~(scores > 0)).nonzero().flatten().tolist():
            point = region.from_data(tokens[place])
            assert point is not None
            counterexamples.setdefault(int(rows[place]), point)
    return counterexamples
