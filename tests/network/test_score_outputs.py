"""A function of the outputs as part of the network."""

import math

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.network.scored import append_score


@pytest.fixture
def net() -> hf.Network:
    torch.manual_seed(0)
    return hf.Network.from_torch(
        nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).eval(), domain=(-1, 1)
    )


def test_says_what_the_function_says_and_can_be_bounded(net: hf.Network) -> None:
    x = torch.zeros(2, 3)

    def margin(z: Tensor) -> Tensor:
        return z[:, 0] - 2 * z[:, 1].relu() + 1

    whole = append_score(net, margin, x)
    assert whole is not None
    points = torch.rand(50, 3) * 2 - 1
    torch.testing.assert_close(whole(points).squeeze(-1), margin(net(points)))
    found = hf.bounds(whole, hf.Ball(torch.zeros(1, 3), 1.0, math.inf, net.domain))
    inside = margin(net(points)).double()
    assert bool((found.lower[0, 0] <= inside).all())
    assert bool((inside <= found.upper[0, 0]).all())


def by_numpy(z: Tensor) -> Tensor:
    return torch.as_tensor(z.detach().numpy()[:, 0])


def by_a_branch(z: Tensor) -> Tensor:
    return z[:, 0] if z.sum() > 0 else z[:, 1]


@pytest.mark.parametrize("score", [by_numpy, by_a_branch])
def test_what_has_no_graph_is_none_and_nothing_is_printed(
    net: hf.Network, score: object, capfd: pytest.CaptureFixture[str]
) -> None:
    assert append_score(net, score, torch.zeros(2, 3)) is None  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""


def test_a_black_box_has_no_graph() -> None:
    box = hf.Network.from_callable(lambda x: x[:, :2], shape=(3,))
    assert append_score(box, lambda z: z[:, 0], torch.zeros(2, 3)) is None
