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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

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
class RowsByCount:
    """The state of an enumeration: all texts with fewer than `count` changes were queried, and those with `count` of
    them for the rows that are open and not waiting.
    """

    count: int
    open: Tensor  # (batch,) bool: the rows that kept their class so far and have more texts
    waiting: tuple[int, ...]  # the rows whose texts with `count` changes come next, fewest first
    texts: int  # the number of all texts with `count` changes of the rows that are open

    def without_settled(self, lower: Tensor, upper: Tensor) -> Self:
        """The state without the rows whose bounds (batch,) are closed."""
        settled = (lower >= upper).cpu()
        waiting = tuple(row for row in self.waiting if not settled[row])
        return replace(self, open=self.open & ~settled, waiting=waiting)

    def rows_of_step(self, sizes: Iterable[int], most: int) -> list[int]:
        """The first waiting rows that have at most `most` texts together, but one row at least.

        Args:
            sizes: the number of texts of each waiting row.
        """
        ends = itertools.accumulate(sizes)
        now = [row for row, end in zip(self.waiting, ends, strict=True) if end <= most]
        return now or list(self.waiting[:1])


def fewest_first(sizes: Mapping[int, int], most: int, still: Tensor) -> tuple[Tensor, tuple[int, ...], int]:
    """The fields `open`, `waiting` and `texts` for the rows with these numbers of texts, without those of more than
    `most`. still: (batch,) bool, for its shape.
    """
    waiting = sorted((row for row, size in sizes.items() if size <= most), key=sizes.__getitem__)
    kept = torch.zeros_like(still)
    kept[waiting] = True
    return kept, tuple(waiting), sum(map(sizes.__getitem__, waiting))


@dataclass(frozen=True)
class EnumerationState(RowsByCount):
    """The state of the enumeration of sentences by the number of replaced words."""

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
        return state.texts <= state.first_sentences

    def update_bounds(
        self, problem: Problem, state: EnumerationState, lower: Tensor, upper: Tensor
    ) -> EnumerationState:
        return state.without_settled(lower, upper)

    def step(self, problem: Problem, state: EnumerationState) -> tuple[EnumerationState | None, Claims]:
        region = problem.region
        count = state.count
        options = {row: _options(region, row) for row in state.waiting}
        sizes = (sentences(places, count) for places in options.values())
        now = state.rows_of_step(sizes, SENTENCES_IN_STEP)
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
        rows = still.nonzero().flatten().tolist()
        sizes = {row: size for row in rows if (size := sentences(_options(problem.region, row), count))}
        return EnumerationState(count, *fewest_first(sizes, self.sentences, still), first)


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
