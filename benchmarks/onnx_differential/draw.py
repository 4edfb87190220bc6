"""Random choices from one seed, so that a case can be regenerated from its number."""

import random
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]
T = TypeVar("T")

SPECIAL_VALUES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0)
"""Values at which operators change behaviour: kinks, ties of rounding, borders of domains."""


class Draw:
    """Draws shapes, values and attributes.

    `odds_invalid` is how often a drawn axis or size is one that ONNX forbids.
    """

    def __init__(self, seed: str, odds_invalid: float = 0.03) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(self.random.getrandbits(64))
        self.odds_invalid = odds_invalid

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        return self.random.choice(choices)

    def integer(self, low: int, high: int) -> int:
        """A random integer, `low` and `high` included."""
        return self.random.randint(low, high)

    def integers(self, count: int, low: int, high: int) -> list[int]:
        return [self.integer(low, high) for _ in range(count)]

    def shape(self, low: int = 1, high: int = 4) -> tuple[int, ...]:
        """A shape of `low` to `high` axes.

        The first size is 1 in half of the cases, as in a file made for one input.
        """
        sizes = [self.pick((1, 2, 2, 3, 3, 4)) for _ in range(self.integer(low, high))]
        if sizes and self.chance(0.5):
            sizes[0] = 1
        return tuple(sizes)

    def floats(self, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        values = np.round(self.numbers.normal(0, 2, size=tuple(shape)), 3)
        special = self.numbers.choice(SPECIAL_VALUES, size=tuple(shape))
        return np.asarray(np.where(self.numbers.random(tuple(shape)) < 0.15, special, values), dtype=dtype)

    def axis(self, rank: int) -> int:
        """A random axis, counted from the front or from the back."""
        if self.chance(self.odds_invalid):
            return self.pick((rank, -rank - 1))
        return self.integer(-rank, max(rank - 1, -rank))

    def axes(self, rank: int) -> list[int]:
        """Random axes in any order, each counted from the front or from the back; sometimes none, rarely one
        twice.
        """
        if self.chance(0.12) or rank == 0:
            return []
        count = self.integer(1, rank)
        chosen = [
            axis - rank if self.chance(0.4) else axis for axis in self.random.sample(range(rank), count)
        ]
        if self.chance(self.odds_invalid):
            chosen.append(self.pick([*chosen, rank]))
        return chosen

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts against the given one; rarely one that does not."""
        kept = list(shape[self.integer(0, len(shape)) :]) if self.chance(0.4) else list(shape)
        sizes = [1 if self.chance(0.3) else size for size in kept]
        sizes = [self.integer(2, 3) if size == 1 and self.chance(0.15) else size for size in sizes]
        if sizes and self.chance(self.odds_invalid):
            sizes[-1] += 1
        if self.chance(0.06):
            sizes.insert(0, self.pick((1, 2)))
        return tuple(sizes)
