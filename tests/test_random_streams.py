"""Random numbers by row: a row's own, whoever stands beside it, and as good as those of torch."""

import math
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from holdfast.random_streams import RandomStreams, _mix_bits, _shift_right

LIKE = torch.zeros((), dtype=torch.float64)


def reference(x: int) -> int:
    """The finaliser of SplitMix64 among whole numbers without a sign."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def signed(x: int) -> int:
    return x % 2**64 - 2**64 * (x % 2**64 >= 2**63)


def test_the_hash_gives_the_published_numbers_of_splitmix64() -> None:
    """The first five for the seed 1234567, as implementations in many languages print them."""
    states = [signed(1234567 + k * 0x9E3779B97F4A7C15) for k in range(1, 6)]
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [int(x) % 2**64 for x in _mix_bits(torch.tensor(states))] == published


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20), st.integers(1, 63))
def test_products_wrap_and_shifts_bring_in_zeros(numbers: list[int], by: int) -> None:
    x = torch.tensor([signed(n) for n in numbers])
    assert [int(v) % 2**64 for v in _shift_right(x, by)] == [n >> by for n in numbers]
    assert [int(v) % 2**64 for v in _mix_bits(x.clone())] == [reference(n) for n in numbers]


@given(
    st.integers(0, 2**40), st.permutations(range(7)), st.integers(1, 7), st.integers(1, 4), st.integers(0, 3)
)
def test_a_row_draws_the_same_alone_among_others_and_in_any_order(
    seed: int, order: list[int], many: int, count: int, before: int
) -> None:
    whole, part, fewer = (
        RandomStreams.of(range(7), seed),
        RandomStreams.of(order[:many], seed),
        RandomStreams.of(order[:many], seed),
    )
    for chance in (whole, part, fewer):
        for _ in range(before):
            chance.uniform(2, (3,), LIKE)
    rows = torch.tensor(order[:many])
    numbers = whole.uniform(count, (2, 3), LIKE)[:, rows]
    assert torch.equal(numbers, part.uniform(count, (2, 3), LIKE))
    assert torch.equal(numbers[:1], fewer.uniform(1, (2, 3), LIKE))  # more of them are the same and more
    for one, other in (
        (whole.take(rows), part),
        (whole.substream(5).take(rows), part.substream(5)),
        (whole.take(rows).tile(3), part.tile(3)),
    ):
        assert torch.equal(one.normal(count, (4,), LIKE), other.normal(count, (4,), LIKE))


def test_large_draws_are_made_in_pieces_and_are_the_same() -> None:
    large, small = (
        RandomStreams.of(range(64), 3).uniform(3, (5000,), LIKE),
        RandomStreams.of([63], 3).uniform(3, (5000,), LIKE),
    )
    assert torch.equal(large[:, 63:], small)


def test_seeds_keys_draws_streams_and_copies_are_all_different() -> None:
    chance = RandomStreams.of(range(50), 0)
    drawn = [chance.uniform(2, (4,), LIKE) for _ in range(20)]
    drawn += [chance.substream(k).uniform(2, (4,), LIKE) for k in range(20)]
    drawn += [
        chance.substream(torch.arange(50) + 100).uniform(2, (4,), LIKE),
        *(RandomStreams.of(range(50), s).uniform(2, (4,), LIKE) for s in (1, 2)),
    ]
    drawn += list(chance.tile(5).uniform(2, (4,), LIKE).split(50, 1))
    numbers = torch.stack(drawn).flatten()
    assert len(numbers.unique()) == len(numbers)
    assert torch.equal(RandomStreams.of(["3"], 1).rows, RandomStreams.of([3], 1).rows)


@cache
def layouts() -> dict[str, Tensor]:
    """The same amount of numbers, along rows, draws, places, streams and copies: (many, 64) each."""
    rows = RandomStreams.of(range(2000), 1)
    draws, places, streams = (
        RandomStreams.of(range(4), 2),
        RandomStreams.of([0], 3),
        RandomStreams.of(range(4), 4),
    )
    return {
        "rows": rows.uniform(1, (64,), LIKE)[0],
        "draws": torch.cat([draws.uniform(1, (64,), LIKE)[0] for _ in range(500)]),
        "places": places.uniform(2000, (64,), LIKE)[:, 0],
        "streams": torch.cat([streams.substream(k).uniform(1, (64,), LIKE)[0] for k in range(500)]),
        "copies": streams.tile(500).uniform(1, (64,), LIKE)[0],
    }


@pytest.mark.parametrize("name", ["rows", "draws", "places", "streams", "copies"])
def test_numbers_are_uniform_and_neighbours_independent(name: str) -> None:
    """By chi-square over 256 bins and pairs of neighbours over 16 x 16, correlations and single bits, at one in ten thousand."""
    numbers = layouts()[name]
    bins = (numbers * 256).long().flatten().bincount(minlength=256)
    assert stats.chisquare(bins.numpy()).pvalue > 1e-4
    many = numbers.numel()
    for neighbour in (numbers.roll(1, 0), numbers.roll(1, 1), numbers.roll(2, 0), numbers.roll(4, 0)):
        pairs = ((numbers * 16).long() * 16 + (neighbour * 16).long()).flatten().bincount(minlength=256)
        assert stats.chisquare(pairs.numpy()).pvalue > 1e-4
        assert abs(
            float(torch.corrcoef(torch.stack([numbers.flatten(), neighbour.flatten()]))[0, 1])
        ) < 4.5 / math.sqrt(many)
    bits = (numbers * 2**53).long()
    ones = torch.stack([(bits >> k & 1).double().mean() for k in range(53)])
    assert float((ones - 0.5).abs().max()) < 4.5 * 0.5 / math.sqrt(many)


def test_normal_numbers_are_normal_and_finite_at_both_ends() -> None:
    numbers = RandomStreams.of(range(100), 7).normal(20, (50,), LIKE)
    assert stats.kstest(numbers.flatten()[:20_000].numpy(), "norm").pvalue > 1e-3
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        spread = math.sqrt(math.prod(range(1, 2 * power, 2)))  # of the power of a normal number, at most
        assert float((numbers**power).mean()) == pytest.approx(
            moment, abs=4.5 * spread / math.sqrt(numbers.numel())
        )
    extremes = (torch.tensor([0, 2**52 - 1]).double() + 0.5) * 2.0**-51 - 1
    assert torch.erfinv(extremes).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_uniform_numbers_stay_below_one_in_every_arithmetic(dtype: torch.dtype) -> None:
    numbers = RandomStreams.of(range(16), 0).uniform(16, (1000,), torch.zeros((), dtype=dtype))
    assert numbers.dtype == dtype
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    assert float(numbers.double().mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("low", "high"), [(0, 2), (1, 16), (-3, 4), (0, 2**31 - 1)])
def test_integers_are_alike_likely(low: int, high: int) -> None:
    numbers = RandomStreams.of(range(100), 5).integers(10, (30,), low, high)
    assert low <= int(numbers.min())
    assert int(numbers.max()) < high
    shares = ((numbers - low) * 1.0 / (high - low)).flatten()
    cells = min(high - low, 32)
    assert stats.chisquare((shares * cells + 1e-9).long().bincount(minlength=cells).numpy()).pvalue > 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics card")
def test_a_graphics_card_draws_the_same() -> None:
    here, there = (RandomStreams.of(range(200), 9, torch.device(name)) for name in ("cpu", "cuda"))
    like = LIKE.float()
    assert torch.equal(here.uniform(4, (100,), LIKE), there.uniform(4, (100,), LIKE.cuda()).cpu())
    assert torch.equal(here.integers(4, (100,), 0, 9), there.integers(4, (100,), 0, 9).cpu())
    torch.testing.assert_close(
        here.normal(4, (100,), like), there.normal(4, (100,), like.cuda()).cpu(), rtol=2e-7, atol=0
    )
