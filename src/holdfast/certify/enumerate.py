"""Every sentence that substitution allows, asked one by one: for small sets the answer is exact, and that is a proof."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.region import Words

ASSUMPTIONS = ("every allowed sentence was asked, in the network's own arithmetic",)


@dataclass(frozen=True)
class Asked:
    """Row by row: all sentences with up to `count` replaced words were asked; `open` rows kept their class so far."""

    count: int
    open: Tensor  # (batch,) bool


@dataclass(frozen=True)
class Enumerate(Method[Asked]):
    """One replaced word, then two, ... up to `sentences` asked for each input and step."""

    sentences: int = 100_000

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.region, Words) or problem.goal != "radius":
            return "enumerates sentences with replaced words, which this question does not ask for"
        return None

    def start(self, problem: Problem, seed: int) -> Asked:
        return Asked(0, torch.ones(len(problem), dtype=torch.bool))

    def step(self, problem: Problem, state: Asked) -> tuple[Asked | None, Claims]:
        region = problem.region
        assert isinstance(region, Words)
        count, limit = state.count + 1, region.limit()
        proved = torch.full((len(problem),), math.nan, dtype=torch.float64)
        witness, found, still = region.centre.clone(), torch.zeros(len(problem), dtype=torch.bool), state.open.clone()
        for row in state.open.nonzero().flatten().tolist():
            if count > int(limit[row]):
                still[row] = False
                continue
            one = problem.take(torch.tensor([row], device=region.centre.device))
            if sentences(one.region, count) > self.sentences:
                still[row] = False
                continue
            broken = _first_broken(one, count)
            if broken is None:
                proved[row] = count
            else:
                witness[row], found[row], still[row] = region.vectors.table[broken], True, False
        claims = Claims(proved=proved, witness=witness, found=found, assumptions=ASSUMPTIONS, dtype=str(problem.network.dtype))
        return Asked(count, still) if bool(still.any()) else None, claims


def sentences(region: object, count: int) -> int:
    """How many sentences differ from the first row in exactly `count` words."""
    assert isinstance(region, Words)
    sizes = [len(options) for options in _options(region).values()]
    ways = [1, *([0] * count)]  # the elementary symmetric polynomials of the sizes
    for size in sizes:
        for k in range(count, 0, -1):
            ways[k] += ways[k - 1] * size
    return ways[count]


def _options(region: Words) -> dict[int, list[int]]:
    """Position -> the other words that may stand there, in the first row."""
    own, choices = region.tokens[0].tolist(), region.choices[0].tolist()
    found = {place: sorted(set(words) - {own[place]}) for place, words in enumerate(choices)}
    return {place: words for place, words in found.items() if words}


def _variants(region: Words, count: int) -> Iterator[list[int]]:
    own, options = region.tokens[0].tolist(), _options(region)
    for places in itertools.combinations(options, count):
        for words in itertools.product(*(options[p] for p in places)):
            changed = list(own)
            for place, word in zip(places, words, strict=True):
                changed[place] = word
            yield changed


def _first_broken(problem: Problem, count: int, at_once: int = 4096) -> Tensor | None:
    """The tokens of the first sentence that breaks the property, or None if none does."""
    region = problem.region
    assert isinstance(region, Words)
    variants = _variants(region, count)
    while chunk := list(itertools.islice(variants, at_once)):
        tokens = torch.tensor(chunk, device=region.centre.device)
        scores = problem.score(region.vectors.table[tokens][:, None])[:, 0]
        broken = (~(scores > 0)).nonzero().flatten()
        if len(broken):
            return tokens[broken[0]]
    return None
