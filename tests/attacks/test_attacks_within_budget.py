"""Where one gradient of all rows would take the whole budget, a few rows are witnessed all the same."""

import time

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf


class Slow(nn.Module):
    """As a very large network is: every row takes its time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.005 * len(x))
        answer: Tensor = self.inner(x)
        return answer


@pytest.mark.usefixtures("still_clock")  # only the network takes time
@pytest.mark.parametrize("goal", ["radius", "worst"])
def test_something_is_witnessed_in_a_small_budget(goal: str) -> None:
    net, x = hf.Network.from_torch(Slow().eval(), domain=(0, 1)), torch.rand(80, 4)
    y, stop, methods = (
        net(x).argmax(-1),
        hf.Stop(seconds=1.5),
        [hf.attacks.PGD(restarts=1 if goal == "radius" else 8)],
    )
    if goal == "radius":
        found = [b.upper.value for b in hf.radius(net, x, y, methods=methods, stop=stop)]
    else:
        found = [
            b.upper.value
            for b in hf.worst(
                net, hf.Ball(x, 1.0, torch.inf, (0, 1)), hf.Robustness(y), methods=methods, stop=stop
            )
        ]
    margins = hf.Robustness(y).score(net(x)).tolist()
    better = [
        end
        for end, margin in zip(found, margins, strict=True)
        if end < (1.0 if goal == "radius" else margin - 1e-6)
    ]
    assert 1 <= len(better) < len(found)


@pytest.mark.usefixtures("cpu_clock")
def test_quick_networks_are_searched_as_ever() -> None:
    """With time to spare, a deadline changes nothing."""
    torch.manual_seed(0)
    net, x = hf.Network.from_torch(nn.Linear(4, 3).eval(), domain=(0, 1)), torch.rand(5, 4)
    y = net(x).argmax(-1)
    ends = [
        [b.upper.value for b in hf.radius(net, x, y, methods=[hf.attacks.PGD()], stop=stop)]
        for stop in (hf.Stop(), hf.Stop(seconds=60))
    ]
    assert ends[0] == ends[1]
