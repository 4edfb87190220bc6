"""What every region promises. A new region is one line in REGIONS."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdfast import batch
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region import (
    Ball,
    Box,
    ChangedColumns,
    Column,
    Columns,
    Domain,
    Drift,
    Family,
    Features,
    Frames,
    Patch,
    Region,
    Rows,
    Sparse,
    Words,
)

UNIT = (0.0, 1.0)


@dataclass(frozen=True)
class Draw:
    """What hypothesis varies: chance, arithmetic, the size of the region and of the numbers in it."""

    seed: int
    dtype: torch.dtype
    radius: float
    scale: float

    def generator(self, salt: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * self.seed + salt)

    def chance(self, region: Region, salt: int = 0) -> RandomStreams:
        return RandomStreams.of(range(len(region)), 1000 * self.seed + salt)

    def uniform(self, *shape: int, salt: int = 0) -> Tensor:
        return torch.rand(shape, generator=self.generator(salt), dtype=torch.float64).to(self.dtype)

    def gauss(self, *shape: int, salt: int = 0) -> Tensor:
        return torch.randn(shape, generator=self.generator(salt), dtype=torch.float64).to(self.dtype)

    def radii(self, count: int) -> Tensor:
        """Different for every row, zero now and then."""
        share = torch.rand(count, generator=self.generator(7), dtype=torch.float64)
        return torch.where(share < 0.1, 0, share) * self.radius

    def counts(self, count: int, most: int) -> Tensor:
        return torch.randint(0, most + 2, (count,), generator=self.generator(8)).double()

    def domain(self, ends: tuple[float, float] | None) -> Domain:
        return Domain.of(None if ends is None else (ends[0] * self.scale, ends[1] * self.scale))

    def centre(self, *shape: int, ends: tuple[float, float] | None = None) -> Tensor:
        values = (
            self.gauss(*shape) * self.scale
            if ends is None
            else self.domain(ends).clamp(self.uniform(*shape) * self.scale)
        )
        edge = self.uniform(*shape, salt=1) < 0.2  # inputs often lie on the edge of their domain
        return torch.where(edge, values.new_zeros(()), values)


draws = st.builds(
    Draw,
    seed=st.integers(0, 10_000),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    radius=st.sampled_from([0.0, 1e-12, 1e-7, 1e-3, 0.05, 0.3, 2.0, 100.0]),
    scale=st.sampled_from([1e-4, 0.7, 1.0, 255.0, 1e6]),
)


@dataclass(frozen=True)
class Case:
    """name, how to build it, and whether vertex() and minimise_linear() are exact for linear functions."""

    name: str
    build: Callable[[Draw], Region]
    exact_vertex: bool = True
    exact_minimum: bool = True


def ball(p: float, ends: tuple[float, float] | None = None) -> Callable[[Draw], Region]:
    return lambda d: Ball(d.centre(3, 2, 3, ends=ends), d.radii(3), p, d.domain(ends))


def frames(p: float, ends: tuple[float, float] | None = None) -> Callable[[Draw], Region]:
    def build(d: Draw) -> Region:
        mask = d.uniform(3, 4, salt=3) < 0.6
        return Frames(d.centre(3, 4, 2, ends=ends), d.radii(3), p, d.domain(ends), mask=mask)

    return build


def weighted(p: float, ends: tuple[float, float] | None = None) -> Callable[[Draw], Region]:
    """Frames that move by different shares of the radius, some not at all; one input whose frames all stay."""

    def build(d: Draw) -> Region:
        share = 3 * d.uniform(3, 4, salt=3).double()
        mask = torch.where(share < 1, 0, share ** torch.tensor([[1.0], [20.0], [1.0]]))
        mask[2] *= d.seed % 2
        return Frames(d.centre(3, 4, 2, ends=ends), d.radii(3), p, d.domain(ends), mask=mask)

    return build


def drift(
    p: float, ends: tuple[float, float] | None = None, *, shares: bool = False
) -> Callable[[Draw], Region]:
    def build(d: Draw) -> Region:
        share = 3 * d.uniform(3, 2, salt=3).double()
        return Drift(
            d.centre(3, 4, 2, ends=ends),
            d.radii(3),
            p,
            d.domain(ends),
            shares=torch.where(share < 1, 0, share) if shares else None,
        )

    return build


def features(d: Draw) -> Region:
    share = 3 * d.uniform(3, 4, 2, salt=3).double()
    return Features(
        d.centre(3, 4, 2, ends=UNIT),
        d.radii(3),
        math.inf,
        d.domain(UNIT),
        shares=torch.where(share < 1, 0, share),
    )


def sparse(axes: tuple[int, ...]) -> Callable[[Draw], Region]:
    return lambda d: Sparse(d.centre(3, 2, 3, 2, ends=UNIT), d.counts(3, 4), d.domain(UNIT), axes=axes)


def sparse_choice(axes: tuple[int, ...], *, mask: bool, levels: bool) -> Callable[[Draw], Region]:
    """Some units may change, and only to some values; the levels leave out the ends of the domain, the centre does not."""

    def build(d: Draw) -> Region:
        unit_shape = (1, 3, 2) if axes == (0,) else (2, 3, 2)
        free = d.uniform(3, *unit_shape, salt=9) < 0.6
        free[2] &= d.seed % 2 == 0  # one input in which nothing may change
        values = torch.tensor([0.75, 0.1, 0.5, 0.1]) * d.scale
        plain = Sparse(d.centre(3, 2, 3, 2, ends=UNIT), d.counts(3, 4), d.domain(UNIT), axes=axes)
        return replace(plain, free=free if mask else None, levels=values if levels else None)

    return build


def words(d: Draw) -> Region:
    tokens = torch.randint(0, 6, (3, 4), generator=d.generator(4))
    sets = {0: [1, 2], 1: [0], 2: [3, 0, 5, 4], 4: [4, 1]}
    return Words.around(tokens, sets, d.gauss(6, 3) * d.scale).at(d.counts(3, 3))


def patch(ends: tuple[float, float] | None) -> Callable[[Draw], Region]:
    def build(d: Draw) -> Region:
        return Patch(
            d.centre(3, 2, 4, ends=ends), d.radii(3), d.uniform(3, 2, 4, salt=5) < 0.5, d.domain(ends)
        )

    return build


def sticker(d: Draw) -> Region:
    return Patch.square(d.centre(3, 1, 4, 4, ends=UNIT), top=1, left=2, size=2, domain=d.domain(UNIT))


def box(d: Draw) -> Region:
    one, two = d.gauss(3, 2, 2) * d.scale, d.gauss(3, 2, 2, salt=6) * d.scale
    return Box.between(torch.minimum(one, two), torch.maximum(one, two))


def table(d: Draw) -> tuple[Tensor, Columns]:
    """A free number, one in steps, one that stays, and two words, of which the numbers of one stand apart."""
    step = (0.1, 1.0, 4.0)[d.seed % 3] * d.scale
    columns = Columns(
        (
            Column("free", low=-3 * d.scale, high=3 * d.scale, scale=0.3 * d.scale),
            Column("whole", step=step, low=-50 * step, high=60 * step, scale=2 * step),
            Column("still", frozen=True, low=-9 * d.scale, high=9 * d.scale),
            Column("word", values=("a", "b", "c")),
            Column("spread", one_of=("s0", "s1")),
        ),
        order=("s1", "free", "whole", "word=a", "word=b", "word=c", "still", "s0"),
    )
    numbers = d.gauss(3, 3).clamp(-2.9, 2.9) * d.scale
    count = torch.randint(-50, 60, (3,), generator=d.generator(12))
    word, other = (
        torch.nn.functional.one_hot(torch.randint(0, n, (3,), generator=d.generator(n)), n).to(d.dtype)
        for n in (3, 2)
    )
    whole = (count.double() * step).to(d.dtype)
    return torch.stack([other[:, 1], numbers[:, 0], whole, *word.T, numbers[:, 2], other[:, 0]], 1), columns


def rows(p: float) -> Callable[[Draw], Region]:
    def build(d: Draw) -> Region:
        centre, columns = table(d)
        return Rows(centre, d.radii(3), columns, norm=p)

    return build


def changed_columns(d: Draw) -> Region:
    centre, columns = table(d)
    return ChangedColumns(centre, d.counts(3, 4), columns)


REGIONS = [
    *(Case(f"rows {p}", rows(p), exact_vertex=False, exact_minimum=False) for p in (1, 2, math.inf)),
    Case("changed columns", changed_columns, exact_vertex=False, exact_minimum=False),
    *(Case(f"ball {p}", ball(p)) for p in (1, 1.5, 2, 3, math.inf)),
    Case("ball 1 in a domain", ball(1, UNIT), exact_minimum=False),
    Case("ball 1.5 in a domain", ball(1.5, UNIT), exact_vertex=False, exact_minimum=False),
    Case("ball 2 in a domain", ball(2, UNIT), exact_vertex=False, exact_minimum=False),
    Case("ball 3 in a domain", ball(3, UNIT), exact_vertex=False, exact_minimum=False),
    Case("ball inf in a domain", ball(math.inf, UNIT)),
    Case("frames 1", frames(1)),
    Case("frames 2", frames(2)),
    Case("frames inf in a domain", frames(math.inf, UNIT)),
    Case("frames 3 in a domain", frames(3, UNIT), exact_vertex=False, exact_minimum=False),
    Case("weighted frames 1 in a domain", weighted(1, UNIT), exact_minimum=False),
    Case("weighted frames 2", weighted(2)),
    Case("weighted frames inf in a domain", weighted(math.inf, UNIT)),
    Case("features by shares in a domain", features),
    *(Case(f"drift {p}", drift(p)) for p in (1, 2, math.inf)),
    Case("drift inf in a domain", drift(math.inf, UNIT)),
    Case(
        "drift 2 in a domain by shares", drift(2, UNIT, shares=True), exact_vertex=False, exact_minimum=False
    ),
    Case("sparse numbers", sparse(())),
    Case("sparse pixels", sparse((0,))),
    Case("sparse numbers at levels", sparse_choice((), mask=False, levels=True)),
    Case("sparse pixels, some locked", sparse_choice((0,), mask=True, levels=False)),
    Case("sparse pixels at levels, some locked", sparse_choice((0,), mask=True, levels=True)),
    Case("words", words),
    Case("patch", patch(None)),
    Case("patch in a domain", patch(UNIT)),
    Case("sticker", sticker),
    Case("box", box),
]


def named(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda c: c.name.replace(" ", "_"))


FAMILIES = [c for c in REGIONS if isinstance(c.build(Draw(0, torch.float64, 1.0, 1.0)), Family)]
every_region, every_family = named(REGIONS), named(FAMILIES)


def family(case: Case, draw: Draw) -> Family:
    built = case.build(draw)
    assert isinstance(built, Family)
    return built


def points_around(region: Region, draw: Draw, count: int = 6) -> Tensor:
    """(count, batch, *shape): inside, near and far away."""
    inside = region.sample(count, draw.chance(region, 20))
    away = draw.gauss(count, *region.centre.shape, salt=21) * draw.scale
    size = torch.tensor([0.0, 1e-7, 1e-3, 0.1, 1.0, 30.0], dtype=draw.dtype)[:count]
    return inside + away * size.reshape(-1, *(1 for _ in region.centre.shape))


def dot(a: Tensor, x: Tensor, region: Region) -> Tensor:
    return (region.flatten(a).double() * region.flatten(x).double()).sum(-1)


def exact_dot(a: Tensor, x: Tensor) -> Fraction:
    """In rational arithmetic: no rounding at all."""
    pairs = zip(a.flatten().double().tolist(), x.flatten().double().tolist(), strict=True)
    return sum((Fraction(u) * Fraction(v) for u, v in pairs), Fraction(0))


# ---------------------------------------------------------------- points


@every_region
@given(draw=draws)
def test_samples_are_inside_and_so_are_centres(case: Case, draw: Draw) -> None:
    region = case.build(draw)
    samples = region.sample(9, draw.chance(region, 20))
    assert samples.shape == (9, *region.centre.shape)
    assert samples.dtype == region.centre.dtype
    assert region.contains(samples).all()
    assert region.contains(region.centre).all()


@every_region
@given(draw=draws)
def test_projection_is_inside_idempotent_and_leaves_inside_points_alone(case: Case, draw: Draw) -> None:
    region = case.build(draw)
    points = points_around(region, draw)
    projected = region.project(points)
    assert projected.dtype == points.dtype
    assert region.contains(projected).all()
    assert torch.equal(region.project(projected), projected)
    inside = region.contains(points)
    assert torch.equal(projected[inside], points[inside])


@named([c for c in REGIONS if c.name.split()[0] in ("ball", "frames", "weighted", "patch", "drift")])
@pytest.mark.parametrize("centre", [1.0, 1000.1, 1e6, 3e-5, 0.0])
@pytest.mark.parametrize("radius", [1e-9, 1e-6, 3e-5])
def test_tiny_radii_around_large_float32_centres(case: Case, centre: float, radius: float) -> None:
    draw = Draw(3, torch.float32, radius, max(centre, 1e-3))
    region = family(case, draw).at(radius)
    points = torch.cat([points_around(region, draw), region.vertex(draw.gauss(2, *region.centre.shape))])
    projected = region.project(points)
    assert projected.dtype == torch.float32
    assert region.contains(projected).all()
    assert (region.distance(projected) <= radius).all()


@every_region
@given(draw=draws)
def test_vertex_is_inside_and_lowest_where_it_is_exact(case: Case, draw: Draw) -> None:
    region = case.build(draw)
    a = draw.gauss(2, *region.centre.shape, salt=30)
    corner = region.vertex(a)
    assert corner.shape == a.shape
    assert region.contains(corner).all()
    if case.exact_vertex:
        samples = region.sample(12, draw.chance(region, 31))
        lowest = dot(a[:, None], samples, region).amin(1)
        slack = (
            40
            * torch.finfo(draw.dtype).eps
            * (region.flatten(a).abs() * region.flatten(region.centre).abs().add(1e-3)).sum(-1)
        )
        reached = dot(a, corner, region)
        fall = (dot(a, region.centre, region) - reached).abs()
        assert (reached <= lowest + slack + 1e-5 * fall).all()


# ---------------------------------------------------------------- linear bounds and boxes


@every_region
@given(draw=draws)
def test_linear_minimum_is_below_every_point_in_exact_arithmetic(case: Case, draw: Draw) -> None:
    region = case.build(draw)
    rows = draw.gauss(len(region), 2, *region.shape, salt=40).double()
    rows[:, 1][torch.rand(rows[:, 1].shape, generator=draw.generator(41)) < 0.5] = 0
    minimum = region.minimise_linear(rows)
    assert minimum.shape == (len(region), 2)
    assert minimum.dtype == torch.float64
    assert not minimum.isnan().any()
    points = torch.cat(
        [region.sample(3, draw.chance(region, 42)), region.vertex(rows.transpose(0, 1).to(draw.dtype))]
    )
    for row, k in itertools.product(range(len(region)), range(2)):
        bound = float(minimum[row, k])
        if math.isfinite(bound):
            assert all(Fraction(bound) <= exact_dot(rows[row, k], x[row]) for x in points)


@named([c for c in REGIONS if c.exact_minimum and c.exact_vertex])
@given(draw=draws)
def test_linear_minimum_is_reached_where_it_is_exact(case: Case, draw: Draw) -> None:
    region = case.build(replace(draw, dtype=torch.float64))
    rows = draw.gauss(len(region), 2, *region.shape, salt=40).double()
    minimum = region.minimise_linear(rows)
    reached = dot(rows, region.vertex(rows.transpose(0, 1)).transpose(0, 1), region)
    size = (region.flatten(rows).abs() * region.flatten(region.centre)[:, None].abs()).sum(-1) + reached.abs()
    held = minimum.isfinite()  # a sticker in an unbounded domain has no minimum
    assert (reached - minimum <= 1e-6 * size + 1e-12)[held].all()


@pytest.mark.parametrize("p", [1, 2])
def test_a_linear_minimum_over_a_ball_in_its_domain_is_that_of_both_together(p: int) -> None:
    """By the program itself: features on the edge of the domain, or near it, leave the length to the others."""
    scipy = pytest.importorskip("scipy.optimize")
    generator = torch.Generator().manual_seed(p)
    for size in range(1, 8):
        centre = torch.rand((1, size), generator=generator, dtype=torch.float64)
        centre = torch.where(torch.rand((1, size), generator=generator) < 0.4, centre.round(), centre)
        radius, row = (
            torch.rand(1, generator=generator, dtype=torch.float64),
            torch.randn(size, generator=generator, dtype=torch.float64),
        )
        found = float(Ball(centre, radius, p, Domain.of(UNIT)).minimise_linear(row[None, None]))
        c, a, r = centre[0].numpy(), row.numpy(), float(radius)
        if p == 1:
            solved = scipy.linprog(
                [*a, *-a],
                A_ub=[[1] * (2 * size)],
                b_ub=[r],
                bounds=[*((0, 1 - v) for v in c), *((0, v) for v in c)],
            )
        else:
            ball = {"type": "ineq", "fun": lambda d, r=r: r * r - d @ d, "jac": lambda d: -2 * d}
            solved = scipy.minimize(
                lambda d, a=a: a @ d, 0 * c, jac=lambda d, a=a: a, bounds=list(zip(-c, 1 - c, strict=True)), constraints=[ball],
                method="SLSQP", options={"maxiter": 500, "ftol": 1e-13},
            )  # fmt: skip
        assert found == pytest.approx(a @ c + solved.fun, abs=1e-6)


@every_region
@given(draw=draws)
def test_enclosing_box_holds_every_point(case: Case, draw: Draw) -> None:
    region = case.build(draw)
    lower, upper = region.enclosing_box()
    assert lower.shape == upper.shape == region.centre.shape
    assert lower.dtype == upper.dtype == torch.float64
    points = torch.cat(
        [
            region.sample(6, draw.chance(region, 20)),
            region.vertex(draw.gauss(3, *region.centre.shape)),
            region.centre[None],
        ]
    )
    assert ((points.double() >= lower) & (points.double() <= upper)).all()


def test_a_linear_minimum_over_an_infinite_region_is_minus_infinity_not_nan() -> None:
    centre = torch.ones(1, 3)
    rows = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]], dtype=torch.float64)
    for region in (
        Ball(centre, torch.tensor([math.inf]), 2),
        Patch(centre, torch.tensor([math.inf]), torch.ones(1, 3, dtype=torch.bool)),
    ):
        low = region.minimise_linear(rows)[0]
        assert float(low[0]) == -math.inf
        assert -1e-6 < float(low[1]) <= 0


# ---------------------------------------------------------------- growing


@every_family
@given(draw=draws)
def test_a_point_is_inside_exactly_from_its_distance_on(case: Case, draw: Draw) -> None:
    region = family(case, draw)
    points = points_around(region, draw)
    distance = region.distance(points)
    assert distance.dtype == torch.float64
    assert torch.equal(region.contains(points), (distance <= region.radius) & distance.isfinite())
    assert (region.distance(region.centre) == 0).all()
    for point, away in zip(points, distance, strict=True):
        reached = torch.where(away.isfinite(), away, 0).double()
        grown = replace(region, radius=reached)
        assert torch.equal(grown.contains(point), away.isfinite())


@every_family
@given(draw=draws)
def test_larger_members_hold_smaller_ones(case: Case, draw: Draw) -> None:
    region = family(case, draw)
    small, large = region.at(0.5 * draw.radius), region.at(draw.radius)
    assert large.contains(small.sample(6, draw.chance(small, 50))).all()
    rows = draw.gauss(len(region), 2, *region.shape, salt=51).double()
    assert (large.minimise_linear(rows) <= small.minimise_linear(rows) + 1e-9 * draw.scale).all()
    assert (small.enclosing_box()[0] >= large.enclosing_box()[0]).all()
    assert (small.enclosing_box()[1] <= large.enclosing_box()[1]).all()
    assert torch.equal(small.radius, torch.full_like(region.radius, 0.5 * draw.radius))


@every_family
@given(draw=draws)
def test_a_region_of_radius_zero_is_its_centre(case: Case, draw: Draw) -> None:
    point = family(case, draw).at(0)
    assert torch.equal(point.sample(3, draw.chance(point, 20)), point.centre.expand(3, *point.centre.shape))
    assert torch.equal(point.project(points_around(point, draw)), point.centre.expand(6, *point.centre.shape))


@every_family
@given(draw=draws)
def test_beyond_its_limit_a_region_grows_no_more(case: Case, draw: Draw) -> None:
    region = family(case, draw)
    limit = region.limit()
    assert limit.shape == (len(region),)
    assert limit.dtype == torch.float64
    assert (region.reach().isfinite() & ((region.reach() == limit) | limit.isinf())).all()
    whole, beyond = region.at(limit), region.at(3 * limit + 1)
    points = torch.cat(
        [beyond.sample(6, draw.chance(beyond, 20)), beyond.vertex(draw.gauss(3, *region.centre.shape))]
    )
    assert whole.contains(points)[:, limit.isfinite()].all()
    assert (points == region.centre).flatten(2).all(-1)[:, limit == 0].all()
    lower, upper = (end.flatten(1) for end in whole.enclosing_box())
    wide_lower, wide_upper = (end.flatten(1) for end in beyond.enclosing_box())
    ended = limit.isfinite()
    assert torch.equal(lower[ended], wide_lower[ended])
    assert torch.equal(upper[ended], wide_upper[ended])


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
def test_limits_are_the_distance_to_the_furthest_corner(p: float) -> None:
    centre = torch.tensor([[[0.25, 0.5], [1.0, 0.0]]], dtype=torch.float64)
    far = [torch.tensor([0.75, 0.5], dtype=torch.float64), torch.tensor([1.0, 1.0], dtype=torch.float64)]
    lengths = [float(torch.linalg.vector_norm(v, ord=p)) for v in far]
    radius, unit = torch.zeros(1), Domain.of(UNIT)

    def limit(*shares: float, domain: Domain = unit) -> float:
        return float(Frames(centre, radius, p, domain, mask=torch.tensor([shares])).limit())

    assert limit(1, 1) == pytest.approx(max(lengths), rel=1e-12)
    assert limit(1, 1) >= max(lengths)
    assert limit(0.5, 2) == pytest.approx(max(lengths[0] / 0.5, lengths[1] / 2), rel=1e-12)
    assert limit(1, 0) == pytest.approx(lengths[0], rel=1e-12)
    assert limit(0, 0) == 0
    half = Domain.of((torch.tensor([[0.0, 0.0], [-torch.inf, 0.0]]), 1.0))
    assert limit(1, 0, domain=half) == pytest.approx(lengths[0], rel=1e-12)
    assert limit(1, 1, domain=half) == limit(1, 1, domain=Domain.of(None)) == math.inf
    assert limit(0, 0, domain=Domain.of(None)) == 0
    assert float(Ball(centre, radius, p, unit).limit()) >= float(
        torch.linalg.vector_norm(torch.cat(far), ord=p)
    )
    patch_ = Patch(centre, radius, torch.tensor([[[True, True], [False, False]]]), unit)
    assert float(patch_.limit()) == pytest.approx(0.75)


def test_frames_move_by_their_share_of_the_radius() -> None:
    mask = torch.tensor([[1.0, 0.25, 0.0, 2.0]])
    region = Frames(torch.zeros(1, 4, 2), torch.tensor([0.5]), math.inf, mask=mask)
    lower, upper = region.enclosing_box()
    assert torch.allclose(upper[0, :, 0], torch.tensor([0.5, 0.125, 0, 1], dtype=torch.float64))
    assert torch.equal(lower, -upper)
    assert torch.allclose(region.vertex(torch.ones(1, 4, 2)).double(), lower)
    assert float(region.minimise_linear(torch.ones(1, 1, 4, 2))) == pytest.approx(-2 * (0.5 + 0.125 + 1))
    point = torch.tensor([[[0.1, 0], [0.1, 0.05], [0, 0], [0.1, 0.1]]])
    assert float(region.distance(point)) == pytest.approx(0.4)
    assert float(region.length(point)) == pytest.approx(0.4)
    assert float(region.distance(point + torch.tensor([[0], [0], [1e-9], [0]]))) == math.inf
    flags = Frames(torch.zeros(1, 4, 2), torch.tensor([0.5]), 2, mask=mask > 0)
    assert torch.equal(
        flags.minimise_linear(torch.ones(1, 1, 4, 2)),
        replace(flags, mask=(mask > 0).int()).minimise_linear(torch.ones(1, 1, 4, 2)),
    )


def test_only_some_frames_or_words() -> None:
    mask = torch.tensor([[1.0, 0.25, 0.0]])
    one = Frames(torch.zeros(1, 3, 2), torch.ones(1), mask=mask).only(torch.tensor([[False, True, True]]))
    assert one.free().tolist() == [[0, 0.25, 0]]
    sentence = Words.around(torch.tensor([[0, 1, 1]]), {1: [2]}, torch.eye(3))
    assert sentence.only(torch.tensor([[True, True, False]])).limit().tolist() == [1]
    assert sentence.only(torch.tensor([[True, False, False]])).limit().tolist() == [0]


def test_words_that_depend_on_their_place() -> None:
    tokens = torch.tensor([[1, 1, 0], [2, 0, 0]])
    sets = [[[2], [], [1, 0, 1]], [[], [], [2]]]
    region = Words.around(tokens, sets, torch.eye(3))
    assert region.limit().tolist() == [2, 1]
    assert region.choices[0].tolist() == [[1, 2], [1, 1], [0, 1]]
    assert region.distance(torch.eye(3)[torch.tensor([[1, 2, 0], [2, 0, 2]])]).tolist() == [math.inf, 1]
    everywhere = Words.around(tokens, {1: [2], 0: [1, 2]}, torch.eye(3))
    same = Words.around(tokens, [[[2], [2], [1, 2]], [[], [1, 2], [1, 2]]], torch.eye(3))
    assert torch.equal(everywhere.choices, same.choices)


@pytest.mark.parametrize("p", [1, 2, math.inf])
@given(draw=draws)
def test_distance_is_never_below_the_rational_one(p: float, draw: Draw) -> None:
    centre = draw.centre(2, 5)
    x = centre + draw.gauss(2, 5, salt=60) * draw.radius
    ball_ = Ball(centre, torch.ones(2, dtype=torch.float64), p)
    for row in range(2):
        pairs = zip(x[row].tolist(), centre[row].tolist(), strict=True)
        changes = [abs(Fraction(u) - Fraction(v)) for u, v in pairs]
        found = Fraction(float(ball_.distance(x)[row]))
        if p == 2:
            found, truth = found**2, sum(c**2 for c in changes)
        else:
            truth = max(changes) if p == math.inf else sum(changes)
        assert truth <= found <= truth * (1 + Fraction(1, 10**9))


@given(draw=draws)
def test_distance_is_never_below_the_rational_one_where_frames_have_shares(draw: Draw) -> None:
    centre, share = draw.centre(2, 3), 0.1 + draw.uniform(2, 3, salt=3).double()
    x = centre + draw.gauss(2, 3, salt=60) * draw.radius
    region = Frames(centre, torch.ones(2, dtype=torch.float64), mask=share)
    for row in range(2):
        triples = zip(x[row].tolist(), centre[row].tolist(), share[row].tolist(), strict=True)
        truth = max(abs(Fraction(u) - Fraction(v)) / Fraction(w) for u, v, w in triples)
        assert truth <= Fraction(float(region.distance(x)[row])) <= truth * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, math.inf])
@pytest.mark.parametrize("size", [1e-200, 1e-100, 1e100])
def test_distance_survives_extreme_numbers(p: float, size: float) -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64) * size
    truth = float(torch.linalg.vector_norm(torch.tensor([3.0, 4.0], dtype=torch.float64), ord=p)) * size
    found = float(Ball(torch.zeros_like(x), torch.ones(1, dtype=torch.float64), p).distance(x))
    assert truth * (1 - 1e-13) <= found <= truth * (1 + 1e-9)


def test_counting_distances_count() -> None:
    image = torch.zeros(1, 2, 2, 2)
    changed = image.clone()
    changed[0, :, 0, 0] = 1  # both channels of one pixel
    changed[0, 0, 1, 1] = 0.5
    domain, radius = Domain.of(UNIT), torch.ones(1)
    assert Sparse(image, radius, domain).distance(changed).tolist() == [3]
    assert Sparse(image, radius, domain, axes=(0,)).distance(changed).tolist() == [2]
    assert Sparse(image, radius, domain).distance(changed * 2).tolist() == [math.inf]  # out of the domain
    assert Sparse(image, radius, domain).limit().tolist() == [8]
    assert Sparse(image, radius, domain, axes=(0,)).limit().tolist() == [4]
    sentence = Words.around(torch.tensor([[0, 1, 1]]), {1: [2]}, torch.eye(3))
    x = torch.eye(3)[torch.tensor([[0, 2, 1]])]
    assert sentence.decode(x).tolist() == [[0, 2, 1]]
    assert sentence.distance(x).tolist() == [1]
    assert sentence.distance(torch.eye(3)[torch.tensor([[2, 1, 1]])]).tolist() == [
        math.inf
    ]  # 0 has no substitute
    assert sentence.distance(x / 2).tolist() == [math.inf]
    assert sentence.limit().tolist() == [2]


def test_a_half_unit_is_no_unit() -> None:
    """Between whole numbers nothing grows: at(1.5) is at(1)."""
    for region in (
        Sparse(torch.full((1, 5), 0.5), torch.tensor([1.5]), Domain.of(UNIT)),
        Words.around(torch.zeros(1, 5, dtype=torch.int64), {0: [1]}, torch.eye(3), radius=1.5),
    ):
        assert region.contains(region.sample(20, RandomStreams.of(range(len(region)), 0))).all()
        assert region.contains(region.vertex(torch.randn(1, *region.shape))).all()
        assert region.contains(region.project(torch.rand(1, *region.shape))).all()


def test_a_radius_in_plain_python_is_what_was_typed() -> None:
    for typed in (0.7, [0.7, 0.7]):  # float32 would hold less than that
        assert Ball(torch.zeros(2, 3), typed).radius.tolist() == [0.7, 0.7]  # type: ignore[arg-type]


def test_samples_of_a_ball_reach_its_surface_and_its_inside() -> None:
    for p in (1, 1.5, 2, 3, math.inf):
        ball_ = Ball(torch.zeros(1, 5), torch.ones(1), p)
        distance = ball_.distance(ball_.sample(200, RandomStreams.of(range(len(ball_)), 0)))
        assert float(distance.max()) > 0.999
        assert (distance > 0.999).double().mean() > 0.2
        assert (distance < 0.8).double().mean() > 0.2


def test_frames_that_may_not_move_do_not_move() -> None:
    mask = torch.tensor([[True, False, True]])
    region = Frames(torch.zeros(1, 3, 2), torch.ones(1), 2, mask=mask)
    moved = region.vertex(torch.ones(1, 3, 2))
    assert (moved[0, 1] == 0).all()
    assert torch.allclose(moved[0, 0], torch.full((2,), -math.sqrt(0.5)))
    assert region.distance(torch.ones(1, 3, 2)).tolist() == [math.inf]
    everywhere = Frames(torch.zeros(1, 3, 2), torch.ones(1), 2)
    assert float(everywhere.distance(torch.ones(1, 3, 2))) == pytest.approx(math.sqrt(2))


def test_a_locked_unit_or_a_value_between_the_levels_is_never_reached() -> None:
    centre = torch.full((1, 2, 2, 2), 0.25)
    levels = torch.tensor(
        [0.0, 1 / 3, 1.0], dtype=torch.float64
    )  # float32 has no third: its own nearest number counts
    region = Sparse(
        centre,
        torch.tensor([2.0]),
        IN_UNIT,
        axes=(0,),
        free=torch.tensor([[True, False], [True, True]]),
        levels=levels,
    )

    def changed(channel: int, row: int, column: int, value: float) -> Tensor:
        point = centre.clone()
        point[0, channel, row, column] = value
        return point

    assert region.distance(changed(0, 0, 0, 1 / 3)).tolist() == [1.0]
    assert region.distance(changed(0, 0, 0, 0.5)).tolist() == [math.inf]
    assert region.distance(changed(1, 0, 1, 1.0)).tolist() == [math.inf]
    assert region.limit().tolist() == [3.0]
    assert region.project(changed(0, 0, 0, 0.9))[0, 0, 0, 0] == 1
    assert (
        region.project(changed(0, 0, 0, 0.26))[0, 0, 0, 0] == 0.25
    )  # nearer to where it was than to any level
    assert torch.equal(region.project(changed(1, 0, 1, 1.0)), centre)
    still = replace(region, free=torch.zeros(1, 1, 2, 2, dtype=torch.bool))
    assert still.limit().tolist() == [0.0]


@given(draw=draws)
def test_the_vertex_of_a_sparse_region_beats_every_choice_of_units_and_levels(draw: Draw) -> None:
    """Against all of them: three pixels of two channels, each number left alone or at one of three levels."""
    values = torch.tensor([0.1, 0.5, 0.75], dtype=draw.dtype) * draw.scale
    centre = draw.centre(1, 2, 3, ends=UNIT)
    free = torch.tensor([[[True, draw.seed % 3 > 0, True]]])
    region = Sparse(
        centre, torch.tensor([float(draw.seed % 4)]), draw.domain(UNIT), axes=(0,), free=free, levels=values
    )
    a = draw.gauss(1, 2, 3, salt=3)
    picks = torch.cartesian_prod(*(torch.arange(4) for _ in range(6))).reshape(-1, 1, 2, 3)
    points = torch.where(picks < 3, values[picks.clamp_max(2)], centre)
    inside = points[region.contains(points)[:, 0]]
    lowest = dot(a, inside, region).amin(0)
    slack = 1e-5 * float(a.abs().sum()) * draw.scale if draw.dtype == torch.float32 else 1e-12 * draw.scale
    assert (dot(a, region.vertex(a), region) <= lowest + slack).all()
    bound = region.minimise_linear(a[:, None].double())[:, 0]
    assert (bound <= lowest).all()
    assert (bound >= lowest - 1e-9 * draw.scale).all()


# ---------------------------------------------------------------- axes and batches


def numbers(region: Region, points: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "contains", region.contains(points)
    yield "project", region.project(points)
    yield "vertex", region.vertex(points)
    if isinstance(region, Family):
        yield "distance", region.distance(points)


@every_region
@given(draw=draws)
def test_leading_axes_and_rows_are_independent(case: Case, draw: Draw) -> None:
    region = case.build(draw)
    points = points_around(region, draw).reshape(2, 3, *region.centre.shape)
    together = dict(numbers(region, points))
    for k, m in itertools.product(range(2), range(3)):
        for name, alone in numbers(region, points[k, m]):
            assert torch.equal(together[name][k, m], alone), name
    axis = 2
    for row in range(len(region)):
        single = batch.take(region, torch.tensor([row]))
        for name, alone in numbers(single, points.narrow(axis, row, 1)):
            assert torch.equal(together[name].narrow(axis, row, 1), alone), name


def tensors(item: object) -> dict[str, Tensor]:
    return {name: value for name, value in vars(item).items() if isinstance(value, Tensor)}


@every_region
@given(draw=draws)
def test_take_and_concatenate_round_trip(case: Case, draw: Draw) -> None:
    region = case.build(draw)
    pieces = [batch.take(region, torch.tensor(rows)) for rows in ([0], [1, 2])]
    assert [len(piece) for piece in pieces] == [1, 2]
    whole = batch.concatenate(pieces)
    assert type(whole) is type(region)
    assert tensors(whole).keys() == tensors(region).keys()
    assert all(torch.equal(value, tensors(region)[name]) for name, value in tensors(whole).items())
    assert batch.signature(whole) == batch.signature(region)
    turned = batch.take(region, torch.tensor([2, 0]))
    assert torch.equal(turned.centre, region.centre[[2, 0]])
    masked = batch.take(region, torch.tensor([False, True, False]))
    assert torch.equal(masked.centre, region.centre[1:2])


def test_signatures_differ_where_batches_cannot_be_joined() -> None:
    base = Ball(torch.zeros(2, 3), torch.ones(2), 2)
    others = [
        Ball(torch.zeros(2, 3), torch.ones(2), 1),
        Ball(torch.zeros(2, 4), torch.ones(2), 2),
        Ball(torch.zeros(2, 3, dtype=torch.float64), torch.ones(2), 2),
        Frames(torch.zeros(2, 3), torch.ones(2), 2),
        Ball(torch.zeros(2, 3), torch.ones(2), 2, Domain.of(UNIT)),
    ]
    assert batch.signature(base) == batch.signature(Ball(torch.ones(5, 3), torch.ones(5), 2))
    assert all(batch.signature(base) != batch.signature(other) for other in others)


# ---------------------------------------------------------------- refusals

X, R = torch.full((2, 3), 0.5), torch.ones(2)
NAN, INF = (
    torch.tensor([[0.5, 0.5, 0.5], [0.5, math.nan, 0.5]]),
    torch.tensor([[0.5, 0.5, math.inf], [0.5, 0.5, 0.5]]),
)
IN_UNIT = Domain.of(UNIT)
MASK = torch.ones(2, 3, dtype=torch.bool)
PIXELS = torch.full((2, 3, 2, 2), 0.5)

REFUSED = [
    ("NaN in a ball", lambda: Ball(NAN, R), "input 1 holds NaN"),
    ("NaN in frames", lambda: Frames(NAN, R), "input 1 holds NaN"),
    ("NaN in sparse", lambda: Sparse(NAN, R, IN_UNIT), "input 1 holds NaN"),
    ("NaN in a patch", lambda: Patch(NAN, R, MASK), "input 1 holds NaN"),
    ("NaN in a box", lambda: Box(NAN, X - 1, X + 1), "input 1 holds NaN"),
    ("NaN ends of a box", lambda: Box.between(NAN, X + 1), "NaN|nan"),
    ("infinity", lambda: Ball(INF, R), "input 0 holds NaN or infinity"),
    ("outside the domain", lambda: Ball(X * 4, R, 2, IN_UNIT), r"input 0 has values from 2 to 2, .* is \[0, 1\]"),
    ("outside the domain, sparse", lambda: Sparse(X * 4, R, IN_UNIT), "the domain is"),
    ("outside the domain, patch", lambda: Patch(-X, R, MASK, IN_UNIT), "the domain is"),
    ("negative radius", lambda: Ball(X, -R), "negative"),
    ("NaN radius", lambda: Frames(X, R * math.nan), "NaN"),
    ("negative count", lambda: Sparse(X, -R, IN_UNIT), "negative"),
    ("negative words", lambda: Words.around(torch.zeros(1, 2, dtype=torch.int64), {}, torch.eye(2), -1), "negative"),
    ("one radius for two", lambda: Ball(X, torch.ones(1)), r"shape \(1,\), expected one number for each of the 2"),
    ("p below one", lambda: Ball(X, R, 0.5), "norm 0.5: a norm needs a number p >= 1"),
    ("p = 0", lambda: Frames(X, R, 0), "norm 0"),
    ("p is NaN", lambda: Ball(X, R, math.nan), "norm nan"),
    ("mask of wrong shape", lambda: Frames(X, R, mask=MASK[:, :2]), r"mask has shape \(2, 2\), expected \(2, 3\)"),
    ("mask of negative numbers", lambda: Frames(X, R, mask=-torch.ones(2, 3)), "must be 0 or between .*; got -1 to -1"),
    ("mask of NaN", lambda: Frames(X, R, mask=X * math.nan), "must be 0 or between"),
    ("mask of infinity", lambda: Frames(X, R, mask=X * math.inf), "must be 0 or between"),
    ("mask of next to nothing", lambda: Frames(X, R, mask=X * 1e-40), "must be 0 or between 1e-30"),
    ("patch mask of wrong shape", lambda: Patch(X, R, MASK[:1]), r"mask must be bool of shape \(2, 3\)"),
    ("patch mask of numbers", lambda: Patch(X, R, torch.ones(2, 3)), "torch.float32"),
    ("a square outside", lambda: Patch.square(torch.zeros(1, 1, 4, 4), top=9, left=0, size=2), "is outside"),
    ("empty batch", lambda: Ball(torch.zeros(0, 3), torch.ones(0)), "the data are empty"),
    ("empty frames", lambda: Frames(torch.zeros(0, 3, 2), torch.ones(0)), "the data are empty"),
    ("empty sparse", lambda: Sparse(torch.zeros(0, 3), torch.ones(0), IN_UNIT), "the data are empty"),
    ("empty patch", lambda: Patch(torch.zeros(0, 3), torch.ones(0), MASK[:0]), "the data are empty"),
    ("empty box", lambda: Box.between(torch.zeros(0, 3), torch.zeros(0, 3)), "the data are empty"),
    ("empty words", lambda: Words.around(torch.zeros(0, 3, dtype=torch.int64), {}, torch.eye(3)), "the data are empty"),
    ("single numbers have no frames", lambda: Frames(torch.zeros(2), R), "scalars"),
    ("sparse without a domain", lambda: Sparse(X, R, Domain.of(None)), "bounded domain"),
    ("a mask that does not fit", lambda: Sparse(X, R, IN_UNIT, free=MASK[:, :2]), r"may change has shape \(2, 2\), expected \(2, 3\)"),
    ("a mask of channels", lambda: Sparse(PIXELS, R, IN_UNIT, axes=(0,), free=PIXELS > 0), r"\(2, 3, 2, 2\), expected \(2, 1, 2, 2\)"),
    ("a mask of numbers, sparse", lambda: Sparse(X, R, IN_UNIT, free=X), "must be a bool tensor .* got torch.float32"),
    ("a mask in a list", lambda: Sparse(X, R, IN_UNIT, free=[True, False, True]), "must be a bool tensor .* got list"),  # type: ignore[arg-type]
    ("one level", lambda: Sparse(X, R, IN_UNIT, levels=torch.tensor([0.5, 0.5])), r"at least two values, got \[0.5, 0.5\]"),
    ("no level", lambda: Sparse(X, R, IN_UNIT, levels=torch.zeros(0)), "at least two values"),
    ("levels outside", lambda: Sparse(X, R, IN_UNIT, levels=torch.tensor([0.5, 2.0])), r"levels run from 0.5 to 2, .* is \[0, 1\]"),
    ("levels of NaN", lambda: Sparse(X, R, IN_UNIT, levels=torch.tensor([0.5, math.nan])), "levels run from 0.5 to nan"),
    ("a table of levels", lambda: Sparse(X, R, IN_UNIT, levels=torch.eye(2)), r"one-dimensional tensor .* got shape \(2, 2\)"),
    ("levels in a list", lambda: Sparse(X, R, IN_UNIT, levels=[0, 1]), "one-dimensional tensor .* got list"),  # type: ignore[arg-type]
    ("axes that do not exist", lambda: Sparse(X, R, IN_UNIT, axes=(1,)), r"axes \(1,\)"),
    ("box upside down", lambda: Box.between(X + 1, X), r"at \(0, 0\) the lower bound 1.5 is above the upper bound 0.5"),
    ("box of two shapes", lambda: Box.between(X, X[:, :2]), "different shapes"),
    ("centre outside its box", lambda: Box(X + 9, X, X + 1), "outside its box"),
    ("words out of it", lambda: Words.around(torch.tensor([[0, 7]]), {}, torch.eye(3)), "token id 7 does not exist: .* 3 words"),
    ("substitutes out", lambda: Words.around(torch.tensor([[0]]), {1: [5]}, torch.eye(3)), "token id 5 does not exist"),
    ("a norm by name", lambda: Ball(X, R, "inf"), "norm 'inf': a norm needs a number"),  # type: ignore[arg-type]
    ("substitutes by name", lambda: Words.around(torch.tensor([[0]]), {0: ["good"]}, torch.eye(3)), "token ids, got 'good'"),  # type: ignore[list-item]
    ("substitutes of a name", lambda: Words.around(torch.tensor([[0]]), {"good": [1]}, torch.eye(3)), "token ids, got 'good'"),  # type: ignore[dict-item]
    ("a substitute without a list", lambda: Words.around(torch.tensor([[0]]), {0: 1}, torch.eye(3)), "must be a list of token ids, got 1"),  # type: ignore[dict-item]
    ("substitutes of nothing", lambda: Words.around(torch.tensor([[0]]), [None], torch.eye(3)), "substitutes for no positions"),  # type: ignore[list-item]
    ("substitutes for one", lambda: Words.around(torch.tensor([[0], [1]]), [[[1]]], torch.eye(3)), "for 1 sentences, but there are 2"),
    ("substitutes for two", lambda: Words.around(torch.tensor([[0]]), [[[1], []]], torch.eye(3)), "has 1 words, but substitutes for 2 positions"),
    ("a word without a number", lambda: Words.around(torch.tensor([[0]]), {0: [1]}, torch.eye(3) / torch.tensor([1, 0, 1])), "NaN"),
    ("words that are no ids", lambda: Words.around(torch.zeros(1, 2), {}, torch.eye(3)), "must be integers"),
    ("a domain upside down", lambda: Domain.of((1, 0)), "below its upper bound"),
    ("a domain of NaN", lambda: Domain.of((math.nan, 1)), "below its upper bound"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), [pytest.param(b, m, id=name) for name, b, m in REFUSED])
def test_what_cannot_be_a_region_is_refused_in_words(build: Callable[[], object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build()


@pytest.mark.parametrize("ends", [(0.1, 0.3), (0.0, 0.7), (-0.7, 1 / 3)])
def test_ends_of_a_domain_that_float32_cannot_hold(ends: tuple[float, float]) -> None:
    """What float32 data reach by rounding, the float64 bounds must hold: no proof about less than what is attacked."""
    centre = torch.tensor([ends], dtype=torch.float32)
    region = Ball(centre, torch.ones(1, dtype=torch.float64), math.inf, Domain.of(ends))
    lower, upper = region.enclosing_box()
    points = torch.cat(
        [region.vertex(torch.tensor([[1.0, 1.0]])), region.vertex(torch.tensor([[-1.0, -1.0]])), centre]
    )
    assert region.contains(points[:, None]).all()
    assert ((points.double() >= lower) & (points.double() <= upper)).all()


def test_inputs_that_are_single_numbers() -> None:
    region = Ball(torch.tensor([0.5, 0.25]), torch.ones(2), 2, Domain.of((0, 1)))
    assert region.contains(region.sample(5, RandomStreams.of(range(len(region)), 0))).all()
    assert torch.equal(region.vertex(torch.tensor([1.0, -1.0])), torch.tensor([0.0, 1.0]))
