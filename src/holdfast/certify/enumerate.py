"""Exhaustive enumeration of all sentences that the substitution sets allow: exact for small sets, and
therefore a proof.

Statement. Let S(k) be the finite set of sentences in which at most k words are replaced, each by one of its
substitutes. If the network was queried at every sentence of S(k) and kept its class, then k is certified, for
the network as executed.

Assumption: the network answers a sentence the same way every time (`network.statefulness`).

Reference: none; every sentence is queried.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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


# Sentences with one more replaced word are queried before attacks and proofs begin while those of all inputs of a batch
# take at most this many multiply-adds. Chosen by hand: tens of CPU-seconds on one core, in which linear bounds
# of a single sentence of a transformer with two layers, 32 wide, were not finished.
FIRST_PRODUCTS = 2**38
# A sentence counts as at least this number of multiply-adds: writing it down takes as long (chosen by hand).
LEAST_PRODUCTS = 2**18
# Sentences of one step, after which other methods and the budget have their turn; a step holds at least one input
# (chosen by hand).
SENTENCES_IN_STEP = 2**15


@dataclass(frozen=True)
class EnumerationState:
    """The state of the enumeration: all sentences with fewer than `count` replaced words were queried, and those with
    `count` of them for the rows that are open and not waiting.
    """

    count: int
    open: Tensor  # (batch,) bool: the rows that kept their class so far and have more sentences
    waiting: tuple[int, ...]  # the rows whose sentences with `count` replaced words come next, fewest first
    sentences: int  # the number of all sentences with `count` replaced words of the rows that are open
    first_sentences: int  # at most this number is queried before all other methods


@dataclass(frozen=True)
class Enumerate(Method[EnumerationState]):
    """Query all sentences with one replaced word, then two, and so on; of each input, up to `sentences` with the same
    number of replaced words.
    """

    finds: ClassVar[str] = "exact counts of replaced words"
    help: ClassVar[str] = "queries every sentence that the substitution sets allow"
    traits: ClassVar[Traits] = Traits(complete=True, seeded=False, glass=False, exact=True, runs=True)
    goals: ClassVar[tuple[Goal, ...]] = ("radius",)
    has_opening: ClassVar[bool] = True

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
        every = torch.ones(len(problem), dtype=torch.bool)
        return self._count_next(problem, 1, every, _first_sentences(problem))

    def is_opening(self, state: EnumerationState) -> bool:
        return state.sentences <= state.first_sentences

    def update_bounds(
        self, problem: Problem, state: EnumerationState, lower: Tensor, upper: Tensor
    ) -> EnumerationState:
        settled = (lower >= upper).cpu()
        waiting = tuple(row for row in state.waiting if not settled[row])
        return replace(state, open=state.open & ~settled, waiting=waiting)

    def step(self, problem: Problem, state: EnumerationState) -> tuple[EnumerationState | None, Claims]:
        region = problem.region
        count = state.count
        options = {row: _options(region, row) for row in state.waiting}
        sizes = [sentences(places, count) for places in options.values()]
        ends = itertools.accumulate(sizes)
        now = [row for row, end in zip(state.waiting, ends, strict=True) if end <= SENTENCES_IN_STEP]
        now = now or list(state.waiting[:1])
        counterexamples = _first_counterexamples(problem, {row: options[row] for row in now}, count)
        proved = torch.full((len(problem),), math.nan, dtype=torch.float64)
        witness, found, still = (
            region.centre.clone(),
            torch.zeros(len(problem), dtype=torch.bool),
            state.open.clone(),
        )
        for row in now:
            if row in counterexamples:
                witness[row], found[row], still[row] = counterexamples[row], True, False
            else:
                proved[row], still[row] = count, count < len(options[row])
        claims = Claims(
            proved=proved,
            witness=witness,
            found=found,
            assumptions=ASSUMPTIONS,
            dtype=str(problem.network.dtype),
        )
        if waiting := state.waiting[len(now) :]:
            state = replace(state, open=still, waiting=waiting)
        else:
            state = self._count_next(problem, count + 1, still, state.first_sentences)
        return state if state.waiting else None, claims

    def _count_next(self, problem: Problem, count: int, still: Tensor, first: int) -> EnumerationState:
        """The state before sentences with `count` replaced words; rows that have none, or too many, are left out."""
        sizes = {
            row: sentences(_options(problem.region, row), count) for row in still.nonzero().flatten().tolist()
        }
        waiting = sorted(
            (row for row, size in sizes.items() if 0 < size <= self.sentences), key=sizes.__getitem__
        )
        kept = torch.zeros_like(still)
        kept[waiting] = True
        return EnumerationState(count, kept, tuple(waiting), sum(map(sizes.__getitem__, waiting)), first)


def _first_sentences(problem: Problem) -> int:
    """Return the number of sentences whose queries take `FIRST_PRODUCTS` multiply-adds, if each word is multiplied
    with every weight once; 0 where the weights are not known, as those of a black box.
    """
    if not problem.network.differentiable:
        return 0
    weights = sum(weight.numel() for weight in problem.network.module.parameters())
    words = problem.region.as_data(problem.region.centre)[0].numel()
    return FIRST_PRODUCTS // max(LEAST_PRODUCTS, weights * words) if weights else 0


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
