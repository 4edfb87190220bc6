"""Training that can be taken up again, held back and that one wild gradient does not stop."""

import torch
from torch import Tensor

from holdfast.bounding.coefficient_training import CoefficientAscent


def climbed(ascent: CoefficientAscent, steps: int, wild: int | None = None) -> Tensor:
    """Towards one, along the slope of -(v - 1)^2; one gradient is a million times too large."""
    (value,) = ascent.values
    for step in range(steps):
        ascent.step([-2 * (value.detach() - 1) * (1e6 if step == wild else 1.0)], 0.05)
    return value.detach()


def test_one_wild_gradient_does_not_stop_what_follows() -> None:
    start = torch.zeros(3, 2)
    free = climbed(CoefficientAscent([start], betas=(0.8, 0.95), usual=2.0), 40, wild=5)
    stopped = climbed(CoefficientAscent([start], betas=(0.8, 0.95)), 40, wild=5)
    assert ((free - 1).abs() < 0.1).all()
    assert ((stopped - 1).abs() > 0.3).all()
    assert (start == 0).all()


@torch.no_grad()
def test_rows_go_half_of_the_way_back_and_more_slowly_on() -> None:
    ascent, rows = CoefficientAscent([torch.zeros(2, 3)], betas=(0.9, 0.95)), torch.tensor([True, False])
    ascent.backtrack([torch.zeros(2, 3)], rows)  # before any step nothing carries them on
    for _ in range(3):
        ascent.step([torch.ones(2, 3)], 0.1)
    before = ascent.values[0].detach().clone()
    ascent.backtrack([torch.zeros(2, 3)], rows)
    assert torch.equal(ascent.values[0][0], before[0] / 2)
    assert torch.equal(ascent.values[0][1], before[1])
    after = ascent.values[0].detach().clone()
    ascent.step([torch.zeros(2, 3)], 0.1)
    moved = ascent.values[0] - after
    assert (moved[0] < 0.5 * moved[1]).all()
