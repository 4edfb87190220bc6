"""POPQORN's Appendix B.1 as a benchmark: every kind of slope bounds the gates' products, and nothing stays changed."""

import pytest
import torch
from benchmarks.certify import relaxations
from benchmarks.certify.relaxations import CLOSED_FORM, PRODUCTS, RELAXATIONS

from holdfast.bounding.relax.base import Point, planes


def boxes(count: int = 40) -> tuple[Point, Point]:
    generator = torch.Generator().manual_seed(0)
    ends = 6 * torch.rand(2, 2, count, generator=generator, dtype=torch.float64) - 3
    lower, upper = ends.amin(0), ends.amax(0)
    upper[:, 0] = lower[:, 0]  # One box is a point.
    return tuple(lower), tuple(upper)


@pytest.mark.parametrize("kind", PRODUCTS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("name", list(RELAXATIONS))
def test_bounds_hold_at_many_points(kind: type, name: str) -> None:
    lower, upper = boxes()
    with relaxations.products_bounded_by(RELAXATIONS[name]):
        found = planes(kind(), lower, upper)
    share = torch.rand(2, 500, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    v, z = (low + s * (high - low) for low, high, s in zip(lower, upper, share, strict=True))
    value = kind().function(v, z)
    low = found.lower[0] * v + found.lower[1] * z + found.lower_offset
    high = found.upper[0] * v + found.upper[1] * z + found.upper_offset
    assert bool((low <= value + 1e-12).all())
    assert bool((value <= high + 1e-12).all())


@pytest.mark.parametrize("kind", PRODUCTS, ids=lambda k: k.__name__)
def test_the_descent_is_never_further_away_than_its_start(kind: type) -> None:
    """Its objective is the height of the plane over the middle of the box."""
    lower, upper = boxes()
    middle = [low / 2 + high / 2 for low, high in zip(lower, upper, strict=True)]
    heights = {}
    for name in ("planes", "planes by descent"):
        with relaxations.products_bounded_by(RELAXATIONS[name]):
            found = planes(kind(), lower, upper)
        over = sum(s * m for s, m in zip(found.upper, middle, strict=True)) + found.upper_offset
        under = sum(s * m for s, m in zip(found.lower, middle, strict=True)) + found.lower_offset
        heights[name] = over - under
    gain = heights["planes"] - heights["planes by descent"]
    assert bool((gain >= -1e-9).all())
    assert float(gain.max()) > 1e-3


def test_lines_have_one_slope_and_constants_none() -> None:
    lower, upper = boxes()
    for kind in PRODUCTS:
        (a, b), _ = RELAXATIONS["lines"](kind(), lower, upper)
        assert bool(((a == 0) | (b == 0)).all())
        assert all(bool((s == 0).all()) for s in RELAXATIONS["constants"](kind(), lower, upper)[0])


def test_the_own_slopes_are_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), relaxations.products_bounded_by(relaxations.constants):
        raise ZeroDivisionError
    assert all(kind.slopes is CLOSED_FORM[kind] for kind in PRODUCTS)
