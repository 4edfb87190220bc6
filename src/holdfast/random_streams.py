"""One stream of random numbers for each row of a batch, independent of the other rows.

With one generator for a whole batch, a row would get other numbers in another batch. Here

    number(seed, key, draw, position) = mix(mix(position) + mix(row(seed, key) + draw * DRAW)),

so a row draws the same numbers alone, in any batch and in any order, and a batch is drawn in a few passes
over one tensor.

mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014; Stafford's variant 13), a bijection of 64-bit
integers. Positions are hashed before they are added to the row's number: two rows that agree in one number do
not agree in the next.
"""

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# Odd multipliers that keep draws, streams and positions apart. PLACE is the golden ratio times 2^64
# (SplitMix64's increment, signed); the others were chosen by hand.
DRAW = 0x1E3779B97F4A7C15
STREAM = -0x2E2AC13DDD3A6D35
PLACE = -0x61C8864680B583EB
CACHED = 2**16  # Numbers computed at once on a CPU, so that they stay in its caches; chosen by hand.


@dataclass(eq=False)
class RandomStreams:
    """A random stream for each row of a batch. Drawing advances it; `substream` begins separate streams, in any
    order.
    """

    rows: Tensor  # (batch,) int64: the state of each row
    drawn: int = 0  # number of draws so far

    @staticmethod
    def of(keys: Iterable[object], seed: int, device: torch.device | None = None) -> "RandomStreams":
        """Streams from the seed and the text of each key."""
        digests = (hashlib.sha256(f"{seed} {key}".encode()).digest() for key in keys)
        numbers = [int.from_bytes(digest[:8], "big", signed=True) for digest in digests]
        return RandomStreams(torch.tensor(numbers, dtype=torch.int64, device=device))

    def __len__(self) -> int:
        return len(self.rows)

    def substream(self, number: int | Tensor) -> "RandomStreams":
        """A new stream for each row; number: its index from 0 on, one for all rows or (batch,) int64."""
        which = torch.as_tensor(number, dtype=torch.int64, device=self.rows.device)
        return RandomStreams(_mix_bits(self.rows + _mix_bits((which + 1) * STREAM)))

    def take(self, rows: Tensor) -> "RandomStreams":
        """The streams of these rows, at their current positions."""
        return RandomStreams(self.rows[rows], self.drawn)

    def tile(self, copies: int) -> "RandomStreams":
        """(batch,) -> (copies * batch,): repeat the batch; every copy has its own streams."""
        which = torch.arange(copies, device=self.rows.device).repeat_interleave(len(self))
        return RandomStreams(self.rows.repeat(copies)).substream(-1 - which)

    def uniform(self, count: int, shape: Iterable[int], like: Tensor) -> Tensor:
        """-> (count, batch, *shape) in [0, 1), uniform on multiples of eps / 2 of the dtype of `like`."""
        digits = 1 - int(math.log2(torch.finfo(like.dtype).eps))
        return self._draw(
            count, shape, lambda bits: _shift_right(bits, 64 - digits).to(like.dtype).mul_(2.0**-digits)
        ).to(like.device)

    def normal(self, count: int, shape: Iterable[int], like: Tensor) -> Tensor:
        """-> (count, batch, *shape), standard normal, by the inverse distribution function in float64; none
        beyond 8.3.
        """

        def inverse(bits: Tensor) -> Tensor:
            share = _shift_right(bits, 12).double().add_(0.5).mul_(2.0**-51).sub_(1)  # never -1 or 1
            return torch.erfinv(share).mul_(math.sqrt(2)).to(like)

        return self._draw(count, shape, inverse)

    def integers(self, count: int, shape: Iterable[int], low: int, high: int) -> Tensor:
        """-> (count, batch, *shape) int64, low <= each < high, with high - low < 2^31."""
        return self._draw(
            count, shape, lambda bits: _shift_right(_shift_right(bits, 32) * (high - low), 32) + low
        )

    def _draw(self, count: int, shape: Iterable[int], made: Callable[[Tensor], Tensor]) -> Tensor:
        """-> (count, batch, *shape): `made` applied to uniform 64-bit integers."""
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
    """SplitMix64's finaliser, in place; products wrap around."""
    x ^= _shift_right(x, 30)
    x *= -0x40A7B892E31B1A47
    x ^= _shift_right(x, 27)
    x *= -0x6B2FB644ECCEEE15
    x ^= _shift_right(x, 31)
    return x


def _shift_right(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right; torch's own shift is arithmetic."""
    return (x >> by).bitwise_and_(2 ** (64 - by) - 1)
