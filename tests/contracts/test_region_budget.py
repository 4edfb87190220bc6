"""Budget: what every region promises, and its linear minimum against all points that could be it, in exact arithmetic."""

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdfast import batch
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region.budget import Budget

SHAPES = [((6,), ()), ((2, 2, 2), (0,)), ((3, 2), (1,)), ((2, 3), (0,)), ((2, 1, 2), ())]


def regions(seed: int, which: int, dtype: torch.dtype = torch.float64, rows: int = 3) -> Budget:
    """Random groups and budgets, some of them zero or larger than their group; some units cannot move at all."""
    shape, axes = SHAPES[which]
    g = torch.Generator().manual_seed(seed)
    ends = torch.rand((2, rows, *shape), generator=g, dtype=torch.float64) * 2 - 1
    lower, upper = ends.amin(0).to(dtype), ends.amax(0).to(dtype)
    share = torch.rand((rows, *shape), generator=g, dtype=torch.float64).to(dtype)
    centre = torch.minimum(
        torch.maximum(lower + share.mul(1.4).sub(0.2).clamp(0, 1) * (upper - lower), lower), upper
    )
    fixed = torch.rand((rows, *shape), generator=g) < 0.1
    lower, upper = torch.where(fixed, centre, lower), torch.where(fixed, centre, upper)
    units = (rows, *(1 if axis in axes else size for axis, size in enumerate(shape)))
    group = torch.randint(-1, 3, units, generator=g).to(torch.int16)
    return Budget(centre, lower, upper, group, torch.randint(0, 4, (rows, 3), generator=g), axes=axes)


draws = {"seed": st.integers(0, 10_000), "which": st.integers(0, len(SHAPES) - 1)}


def corners(region: Budget, row: int) -> list[Tensor]:
    """Every point of one row in which each changed number lies at an end: among them every minimiser of a linear function."""
    one = batch.take(region, torch.tensor([row]))
    group, shape = one.group[0], one.shape
    choices = []
    for place in itertools.product(*(range(size) for size in shape)):
        c, low, high = (float(v[0][place]) for v in (one.centre, one.lower, one.upper))
        unit = tuple(0 if axis in one.axes else k for axis, k in enumerate(place))
        choices.append({c} if int(group[unit]) < 0 else {c, low, high})
    points = [
        torch.tensor(values, dtype=torch.float64).reshape(shape) for values in itertools.product(*choices)
    ]
    return [point for point in points if allowed(one, point)]


def allowed(one: Budget, point: Tensor) -> bool:
    """By the definition, unit by unit."""
    changed: dict[int, set[tuple[int, ...]]] = {}
    for place in itertools.product(*(range(size) for size in one.shape)):
        if float(point[place]) != float(one.centre[0][place]):
            unit = tuple(0 if axis in one.axes else k for axis, k in enumerate(place))
            changed.setdefault(int(one.group[0][unit]), set()).add(unit)
    return all(group >= 0 and len(units) <= int(one.budgets[0, group]) for group, units in changed.items())


def exact(a: Tensor, x: Tensor) -> Fraction:
    return sum(
        (Fraction(u) * Fraction(v) for u, v in zip(a.flatten().tolist(), x.flatten().tolist(), strict=True)),
        Fraction(0),
    )


@given(**draws, scale=st.sampled_from([1e-8, 1.0, 1e9]))
def test_the_linear_minimum_is_that_of_all_corners(seed: int, which: int, scale: float) -> None:
    region = regions(seed, which, rows=2)
    rows = (
        torch.randn(
            (2, 2, *region.shape), generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64
        )
        * scale
    )
    found = region.minimise_linear(rows)
    vertices = region.vertex(rows.transpose(0, 1)).transpose(0, 1)
    for row, k in itertools.product(range(2), range(2)):
        truth = min(exact(rows[row, k], point) for point in corners(region, row))
        assert Fraction(float(found[row, k])) <= truth
        assert float(truth) - float(found[row, k]) <= 1e-12 * scale
        assert float(exact(rows[row, k], vertices[row, k]) - truth) <= 1e-12 * scale


@given(**draws)
def test_what_it_holds_is_what_the_definition_says(seed: int, which: int) -> None:
    region = regions(seed, which, rows=1)
    g = torch.Generator().manual_seed(seed + 2)
    share = torch.rand((30, *region.centre.shape), generator=g, dtype=torch.float64)
    values = region.lower + share * (region.upper - region.lower)
    changed = torch.rand((30, *region.centre.shape), generator=g) < torch.rand(
        (30, *(1 for _ in region.centre.shape)), generator=g
    )
    points = torch.where(changed, values, region.centre)
    assert region.contains(points)[:, 0].tolist() == [allowed(region, point[0]) for point in points]
    beyond = region.centre + torch.where(region.upper > region.lower, 3.0, 0.0)
    assert region.contains(beyond).tolist() == [bool((beyond == region.centre).all())]


@given(**draws, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_points_projections_vertices_and_the_box_around(seed: int, which: int, dtype: torch.dtype) -> None:
    region = regions(seed, which, dtype)
    g = torch.Generator().manual_seed(seed + 3)
    samples = region.sample(20, RandomStreams.of(range(len(region)), seed))
    assert samples.shape == (20, *region.centre.shape)
    assert samples.dtype == dtype
    assert region.contains(samples).all()
    assert region.contains(region.centre).all()
    assert torch.equal(region.project(samples), samples)
    anywhere = torch.randn((20, *region.centre.shape), generator=g, dtype=torch.float64).to(dtype) * 2
    projected = region.project(anywhere)
    assert projected.dtype == dtype
    assert region.contains(projected).all()
    assert torch.equal(region.project(projected), projected)
    vertices = region.vertex(anywhere)
    assert region.contains(vertices).all()
    lower, upper = region.enclosing_box()
    assert lower.dtype == upper.dtype == torch.float64
    for points in (samples, projected, vertices):
        assert ((points.double() >= lower) & (points.double() <= upper)).all()
    lone = (samples != region.centre).any(0).any(0)
    assert (lower < upper).any() or not lone.any()


def test_rows_are_apart_and_can_be_taken_and_laid_end_to_end() -> None:
    region = regions(5, 1)
    rows = torch.randn((3, 4, *region.shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    each = [batch.take(region, torch.tensor([k])) for k in range(3)]
    assert torch.equal(
        torch.cat([one.minimise_linear(rows[k : k + 1]) for k, one in enumerate(each)]),
        region.minimise_linear(rows),
    )
    assert torch.equal(batch.concatenate(each).minimise_linear(rows), region.minimise_linear(rows))


def test_a_group_whose_budget_covers_it_is_a_box_and_one_without_budget_a_point() -> None:
    centre, lower, upper = torch.full((1, 4), 0.5), torch.zeros(1, 4), torch.ones(1, 4)
    region = Budget(centre, lower, upper, torch.tensor([[0, 0, 1, -1]]), torch.tensor([[2, 0]]))
    a = torch.tensor([[[1.0, -2.0, 4.0, 8.0]]], dtype=torch.float64)
    assert float(region.minimise_linear(a)) == pytest.approx(0 - 2 + 2 + 4, abs=1e-12)
    assert region.enclosing_box()[0].tolist() == [[0, 0, 0.5, 0.5]]
    assert region.vertex(a[:, 0].float()).tolist() == [[0, 1, 0.5, 0.5]]


X = torch.full((2, 3), 0.5)
GROUP, ONE = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 1, dtype=torch.int64)

REFUSED = [
    ("no inputs", lambda: Budget(X[:0], X[:0], X[:0], GROUP[:0], ONE[:0]), "the data are empty"),
    ("NaN", lambda: Budget(X * torch.nan, X, X, GROUP, ONE), "NaN"),
    ("ends of another shape", lambda: Budget(X, X[:, :2], X, GROUP, ONE), r"shapes \(2, 2\)"),
    (
        "groups of another shape",
        lambda: Budget(X, X, X, GROUP[:, :2], ONE),
        r"must be \(2, 3\) twice and \(2, 3\)",
    ),
    ("budgets for one", lambda: Budget(X, X, X, GROUP, ONE[:1]), r"\(2, groups\)"),
    ("a negative budget", lambda: Budget(X, X, X, GROUP, -ONE), ">= 0"),
    ("a group without a budget", lambda: Budget(X, X, X, GROUP + 1, ONE), "from 0 to 0"),
    ("a group below none", lambda: Budget(X, X, X, GROUP - 2, ONE), "-1 for a unit that stays"),
    ("a centre outside", lambda: Budget(X, X + 1, X + 2, GROUP, ONE), "outside its bounds"),
    ("ends of NaN", lambda: Budget(X, X * torch.nan, X, GROUP, ONE), "outside its bounds"),
]


@pytest.mark.parametrize(("build", "message"), [pytest.param(b, m, id=name) for name, b, m in REFUSED])
def test_what_cannot_be_one_is_refused_in_words(build: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build()  # type: ignore[operator]
