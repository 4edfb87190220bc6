"""Affine forms of an autoencoder's squared error: sound where the input is read on both sides, and few symbols."""

import math

import pytest
import torch
from bounds_regions import seeded
from torch import Tensor, nn

from holdfast.bounding import crown, first_bounds
from holdfast.bounding.first_bounds import plan_forms, propagate_first
from holdfast.bounding.graph.graph import build
from holdfast.bounding.product_forms import ProductForms
from holdfast.network import Network
from holdfast.region import Box

FRAMES, NUMBERS = 6, 9


class SquaredError(nn.Module):
    """The mean squared error of a recurrent autoencoder, (batch, 1)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.encoder = nn.LSTM(NUMBERS, 4, batch_first=True)
        self.decoder = nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, NUMBERS)

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)[0][:, -1:]
        found = self.head(self.decoder(code.expand(-1, x.shape[1], -1))[0])
        return torch.square(found - x).mean((1, 2))[:, None]


@pytest.mark.parametrize("radius", [0.02, 0.5])
def test_attacks_on_the_squared_error_stay_within_its_bounds(
    radius: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_bounds, "WALK_SHARE", 0.0)
    monkeypatch.setattr(first_bounds, "NOISE_SYMBOLS", 40)
    model = SquaredError().eval()
    graph = build(Network.from_torch(model), torch.zeros(1, FRAMES, NUMBERS))
    plan = plan_forms(graph)
    assert plan is not None
    # All reconstructed frames are live when the error is summed up, but symbols are needed for few values.
    assert plan.live >= FRAMES * NUMBERS > 2 * plan.usual
    assert plan.noise < 4 * plan.live
    centre = torch.randn((1, FRAMES, NUMBERS), generator=seeded(4)).double().expand(3, -1, -1)
    width = torch.zeros_like(centre)
    width[range(3), [0, 3, 5]] = radius
    region = Box(centre, centre - width, centre + width)
    boxes = propagate_first(graph, region)
    assert isinstance(boxes.forms, ProductForms)
    sign = torch.tensor([[[1.0], [-1.0]]]).double().expand(3, -1, -1)
    bound = crown.lower_bound(graph, boxes, sign, torch.zeros(3, 2, dtype=torch.float64))
    least = search_extremes(model.double(), region)
    assert (bound <= least).all()
    nearly = model(centre).detach()  # (rows, 1)
    if radius < 0.1:  # The bounds are of use: most of what moves is found by the attack.
        reach = (least - nearly * sign[0, :, 0]).abs()
        assert ((bound - nearly * sign[0, :, 0]).abs() <= 1.5 * reach).all()
    assert math.isfinite(float(bound.sum()))


def search_extremes(model: nn.Module, region: Box) -> Tensor:
    """(rows, 2): the smallest error and the smallest negative error that gradient steps find."""
    found = []
    for sign in (1.0, -1.0):
        share = torch.rand((16, *region.lower.shape), generator=seeded(7), dtype=torch.float64)
        share[8:] = share[8:].round()
        x, best = region.lower + share * (region.upper - region.lower), torch.full((3,), torch.inf).double()
        for _ in range(15):
            x = x.detach().requires_grad_()
            value = sign * model(x.flatten(0, 1)).reshape(16, 3)
            best = torch.minimum(best, value.detach().amin(0))
            (steep,) = torch.autograd.grad(value.sum(), x)
            x = x - 0.25 * (region.upper - region.lower) * steep.sign()
            x = torch.minimum(torch.maximum(x, region.lower), region.upper)
        found.append(best)
    return torch.stack(found, 1)
