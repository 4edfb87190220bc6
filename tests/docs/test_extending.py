"""What docs/extending.md shows of the package is the package."""

import re
from pathlib import Path

import pytest
import torch

from holdfast.bounding import relax
from holdfast.bounding.relax.base import intercept, planes

ROOT = Path(__file__).parents[2]
BOUNDS = ROOT / "src" / "holdfast" / "bounding"
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_softplus_is_shown_as_it_is() -> None:
    assert BLOCKS[0] == (BOUNDS / "relax" / "softplus.py").read_text()
    [entry] = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    assert entry in (BOUNDS / "graph" / "functions.py").read_text()


@pytest.mark.parametrize("block", [0, 1], ids=["softplus", "atan"])
def test_the_relaxations_of_the_page_are_sound(block: int) -> None:
    """The classes of the page themselves, on boxes of all widths, with their own slopes and with others."""
    names: dict[str, object] = {"__name__": "page"}
    exec(BLOCKS[block].split("@handles")[0], names)
    kind = next(v for v in names.values() if isinstance(v, type) and issubclass(v, relax.Relaxation) and v.__module__ == "page")
    relaxation = kind()
    g = torch.Generator().manual_seed(0)
    centre = 6 * torch.randn(2000, generator=g, dtype=torch.float64)
    width = 10.0 ** (torch.rand(2000, generator=g, dtype=torch.float64) * 8 - 6)
    low, high = centre - width, centre + width
    slope = torch.randn(2000, generator=g, dtype=torch.float64)
    own = planes(relaxation, (low,), (high,))
    below, above = intercept(relaxation, (low,), (high,), (slope,))
    for share in torch.linspace(0, 1, 101, dtype=torch.float64):
        v = (low + share * (high - low)).clamp(low, high)
        f = relaxation.function(v)
        assert (own.lower[0] * v + own.lower_offset <= f + 1e-12).all()
        assert (own.upper[0] * v + own.upper_offset >= f - 1e-12).all()
        assert (slope * v + below <= f + 1e-12).all()
        assert (slope * v + above >= f - 1e-12).all()
