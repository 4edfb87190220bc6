"""Every sentence that substitution allows, asked one by one: for small sets the answer is exact, and that is a proof."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.region import Words
from holdfast.result import Traits

ASSUMPTIONS = ("every allowed sentence was asked, in the network's own arithmetic",)


@dataclass(frozen=True)
class EnumerationState:
    """Row by row: all sentences with up to `count` replaced words were asked; `open` rows kept their class so far."""

    count: int
    open: Tensor  # (batch,) bool


@dataclass(frozen=True)
class Enumerate(Method[EnumerationState]):
    """One replaced word, then two, ... up to `sentences` asked for each input and step."""

    finds: ClassVar[str] = "exact counts of replaced words"
    help: ClassVar[str] = "every sentence that the sets allow is asked"
    traits: ClassVar[Traits] = Traits(complete=True, seeded=False, glass=False, exact=True, runs=True)

    sentences: int = 100_000

    # Enumerate an input before all other methods if it has at most this many sentences. The default
    # attacks take about 1,200 queries an input, most with gradients (three times the cost of a plain
    # query), and a proof comes on top.
    cheap: ClassVar[int] = 4096

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.region, Words) or problem.goal != "radius":
            return "enumerates sentences with replaced words, which this question does not ask for"
        return None

    def settles(self, problem: Problem) -> Tensor | None:
        region = problem.region
        assert isinstance(region, Words)
        most = min(self.cheap, self.sentences)
        counts = [
            math.prod(1 + len(words) for words in _options(region, row).values())
            for row in range(len(problem))
        ]
        return torch.tensor([count <= most for count in counts])

    def start(self, problem: Problem, seed: int) -> EnumerationState:
        return EnumerationState(0, torch.ones(len(problem), dtype=torch.bool))

    def step(self, problem: Problem, state: EnumerationState) -> tuple[EnumerationState | None, Claims]:
        region = problem.region
        assert isinstance(region, Words)
        count = state.count + 1
        options = {row: _options(region, row) for row in state.open.nonzero().flatten().tolist()}
        asked = [row for row, places in options.items() if 0 < sentences(places, count) <= self.sentences]
        broken = _first_broken(problem, {row: options[row] for row in asked}, count)
        proved = torch.full((len(problem),), math.nan, dtype=torch.float64)
        witness, found, still = (
            region.centre.clone(),
            torch.zeros(len(problem), dtype=torch.bool),
            torch.zeros_like(state.open),
        )
        for row in asked:
            if row in broken:
                witness[row], found[row] = region.vectors.table[broken[row]], True
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


Places = dict[int, list[int]]  # position -> the other words that may stand there


def _options(region: Words, row: int) -> Places:
    own, choices = region.tokens[row].tolist(), region.choices[row].tolist()
    found = {place: sorted(set(words) - {own[place]}) for place, words in enumerate(choices)}
    return {place: words for place, words in found.items() if words}


def sentences(options: Places, count: int) -> int:
    """How many sentences differ in exactly `count` words."""
    ways = [1, *([0] * count)]  # the elementary symmetric polynomials of the sizes
    for words in options.values():
        for k in range(count, 0, -1):
            ways[k] += ways[k - 1] * len(words)
    return ways[count]


def _first_broken(
    problem: Problem, options: dict[int, Places], count: int, at_once: int = 4096
) -> dict[int, Tensor]:
    """row -> the tokens of its first sentence with `count` replaced words that breaks the property; rows without one are left out."""
    region = problem.region
    assert isinstance(region, Words)
    broken: dict[int, Tensor] = {}

    def variants() -> Iterator[tuple[int, list[int]]]:
        for row, places in options.items():
            own = region.tokens[row].tolist()
            for chosen in itertools.combinations(places, count):
                if row in broken:
                    break
                for words in itertools.product(*(places[p] for p in chosen)):
                    new = dict(zip(chosen, words, strict=True))
                    yield row, [new.get(place, word) for place, word in enumerate(own)]

    waiting = variants()
    while chunk := list(itertools.islice(waiting, at_once)):
        rows, tokens = (torch.tensor(part, device=region.centre.device) for part in zip(*chunk, strict=True))
        scores = batch.take(problem.property, rows).score(_query_sentences(problem, tokens))
        for place in (~(scores > 0)).nonzero().flatten().tolist():
            broken.setdefault(int(rows[place]), tokens[place])
    return broken


def _query_sentences(problem: Problem, tokens: Tensor) -> Tensor:
    """What the user's own model says of sentences; the vectors stand in where it is one of vectors."""
    region = problem.region
    assert isinstance(region, Words)
    if problem.network.token_model is not None:
        return problem.network.ask_tokens(tokens)
    return problem.network(region.vectors.table[tokens])
