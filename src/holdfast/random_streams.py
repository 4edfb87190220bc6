"""Random numbers by row: what is drawn for a row depends on the seed, on its key and on what was drawn for it before, and on no other row.

One generator for a whole batch would give a row other numbers in another batch. Here every row has a number of its own, by hashing the seed
and its key, and what is drawn is a hash of that number, of how many draws were made, and of the place within the row. So a row
draws the same alone, among others, in any order, or when others were left out, and a batch is drawn in a few passes over one tensor.

The hash is the finaliser of SplitMix64 (Steele, Lea, Flood 2014; Stafford's variant 13), a bijection of 64 bits. Places are hashed before
they are added to a row's number: two rows that meet in one number do not meet in the next.
"""

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

DRAW, STREAM, PLACE = (
    0x1E3779B97F4A7C15,
    -0x2E2AC13DDD3A6D35,
    -0x61C8864680B583EB,
)  # odd, far from one another
CACHED = 2**16  # numbers made at once, so that they stay near the processor


@dataclass(eq=False)
class Chance:
    """A stream of numbers for each row of a batch. Drawing moves it on; `apart` begins others, which may be asked in any order."""

    rows: Tensor  # (batch,) int64: the number of each row
    drawn: int = 0  # how often

    @staticmethod
    def of(keys: Iterable[object], seed: int, device: torch.device | None = None) -> "Chance":
        """By the seed, and what each key says as a word."""
        digests = (hashlib.sha256(f"{seed} {key}".encode()).digest() for key in keys)
        numbers = [int.from_bytes(digest[:8], "big", signed=True) for digest in digests]
        return Chance(torch.tensor(numbers, dtype=torch.int64, device=device))

    def __len__(self) -> int:
        return len(self.rows)

    def apart(self, number: int | Tensor) -> "Chance":
        """For each row another stream, of which nothing is drawn; number: which, from 0 on, one for all rows or (batch,) int64."""
        which = torch.as_tensor(number, dtype=torch.int64, device=self.rows.device)
        return Chance(_mix_bits(self.rows + _mix_bits((which + 1) * STREAM)))

    def take(self, rows: Tensor) -> "Chance":
        """The streams of these rows, as far as they are."""
        return Chance(self.rows[rows], self.drawn)

    def tile(self, copies: int) -> "Chance":
        """(batch,) -> (copies * batch,): the whole batch, then again and again, every copy with streams of its own."""
        which = torch.arange(copies, device=self.rows.device).repeat_interleave(len(self))
        return Chance(self.rows.repeat(copies)).apart(-1 - which)

    def uniform(self, count: int, shape: Iterable[int], like: Tensor) -> Tensor:
        """-> (count, batch, *shape) in [0, 1), all multiples of the unit below one alike likely; of the arithmetic of `like`."""
        digits = 1 - int(math.log2(torch.finfo(like.dtype).eps))
        return self._drawn(
            count, shape, lambda bits: _shift_right(bits, 64 - digits).to(like.dtype).mul_(2.0**-digits)
        ).to(like.device)

    def normal(self, count: int, shape: Iterable[int], like: Tensor) -> Tensor:
        """-> (count, batch, *shape), of mean 0 and width 1: in float64 by the inverse of the distribution, none beyond 8.3."""

        def inverse(bits: Tensor) -> Tensor:
            share = _shift_right(bits, 12).double().add_(0.5).mul_(2.0**-51).sub_(1)  # never -1 or 1
            return torch.erfinv(share).mul_(math.sqrt(2)).to(like)

        return self._drawn(count, shape, inverse)

    def integers(self, count: int, shape: Iterable[int], low: int, high: int) -> Tensor:
        """-> (count, batch, *shape) int64, low <= each < high, which lie less than 2^31 apart."""
        return self._drawn(
            count, shape, lambda bits: _shift_right(_shift_right(bits, 32) * (high - low), 32) + low
        )

    def _drawn(self, count: int, shape: Iterable[int], made: Callable[[Tensor], Tensor]) -> Tensor:
        """-> (count, batch, *shape): what is made of 64 bits each, all values alike likely."""
        sizes = tuple(shape)
        place = _mix_bits(
            torch.arange(1, count * math.prod(sizes) + 1, device=self.rows.device).mul_(PLACE)
        ).reshape(count, 1, *sizes)
        self.drawn += 1
        rows = _mix_bits(self.rows + torch.full_like(self.rows, self.drawn) * DRAW).reshape(
            -1, *(1 for _ in sizes)
        )
        at_once = len(rows) if self.rows.is_cuda else max(1, CACHED // max(1, place.numel()))
        return torch.cat([made(_mix_bits(place + some)) for some in rows.split(max(1, at_once))], 1)


def _mix_bits(x: Tensor) -> Tensor:
    """int64 -> int64, in place: products wrap around."""
    x ^= _shift_right(x, 30)
    x *= -0x40A7B892E31B1A47
    x ^= _shift_right(x, 27)
    x *= -0x6B2FB644ECCEEE15
    x ^= _shift_right(x, 31)
    return x


def _shift_right(x: Tensor, by: int) -> Tensor:
    """To the right, zeros from the left: torch itself would bring in the sign."""
    return (x >> by).bitwise_and_(2 ** (64 - by) - 1)
