"""Underflow of coefficients: a product of weights below 2^-1022 is rounded coarsely, and large values of the
network amplify its error.
"""

from fractions import Fraction

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.bounding.graph.graph import build
from holdfast.bounding.quadratic_models import Quadratic
from holdfast.region import Box
from holdfast.rounding import LARGEST, TINY

UNIT = 2.0**-537  # UNIT * UNIT is the smallest subnormal number
FIRST = [[UNIT, 0.0], [UNIT, 0.0], [0.0, UNIT]]
SECOND = [[0.51 * UNIT, 0.51 * UNIT, 0.0], [0.0, 0.0, 1.4 * UNIT]]


def network() -> hf.Network:
    """Two linear maps. Backwards, 0.51 + 0.51 units become 1 + 1 and 1.4 units become 1."""
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False)).double().eval()
    with torch.no_grad():
        model[0].weight[:] = torch.tensor(FIRST, dtype=torch.float64)
        model[1].weight[:] = torch.tensor(SECOND, dtype=torch.float64)
    return hf.Network.from_torch(model)


@pytest.mark.parametrize("scale", [1.0, 1e20, 1e34, 1e38, 1e60, 1e89, 1e91, 1e120, 1e150])
def test_coefficients_that_underflow_are_charged_at_any_size_of_the_inputs(scale: float) -> None:
    lower = torch.tensor([[scale, scale]], dtype=torch.float64)
    upper = torch.tensor([[3 * scale, scale]], dtype=torch.float64)
    rows = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    bounds = hf.bounds(network(), Box.between(lower, upper), rows=rows)
    size = Fraction(scale) * Fraction(UNIT) ** 2
    truth = (2 * Fraction(0.51) - Fraction(1.4)) * size  # at the lower corner, in exact arithmetic
    assert truth < 0
    found = float(bounds.lower.flatten()[0])
    assert found == -float("inf") or Fraction(found) <= truth


def test_the_constants_cover_every_underflow() -> None:
    """1e15 products, each wrong by at most the smallest normal number, times the largest value."""
    smallest = Fraction(torch.finfo(torch.float64).tiny)
    assert 10**15 * smallest * Fraction(LARGEST) < Fraction(TINY)


def test_later_weights_amplify_the_underflow_of_models_only_together_with_their_remainders() -> None:
    """A quadratic model of three maps: the third multiplies the first two's product, which underflows."""
    large = 1e130
    maps = [nn.Linear(a, b, bias=False) for a, b in ((2, 3), (3, 2), (2, 1))]
    model = nn.Sequential(nn.ReLU(), *maps).double()
    with torch.no_grad():
        for layer, weight in zip(maps, (FIRST, SECOND, [[large, -large]]), strict=True):
            layer.weight[:] = torch.tensor(weight, dtype=torch.float64)
    net = hf.Network.from_torch(model.eval())
    region = Box.between(*(torch.tensor([[low, 1.0]], dtype=torch.float64) for low in (1.0, 1.0 + 1e-7)))
    view = Quadratic(build(net, region.centre))
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    bound = view.least(region, one, one[0] * 0, view.zero_coefficients(1, torch.float64), None)
    truth = (2 * Fraction(0.51) - Fraction(1.4)) * Fraction(UNIT) ** 2 * Fraction(large)
    assert truth < 0
    assert Fraction(float(bound)) <= truth
