"""The coefficients are the derivatives along the flow, for every operator that has a rule."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from holdfast.errors import UnsupportedLayer
from holdfast.network import Network
from holdfast.network.trace import as_plain_module
from holdfast.reachability import taylor_coefficients
from holdfast.reachability.taylor_coefficients import (
    JoinedPlant,
    PartialDerivatives,
    TaylorCoefficients,
    check_coefficients,
)

Right = Callable[[Tensor, Tensor], Tensor]

WEIGHT = torch.tensor([[0.5, -0.25], [0.75, 0.5]], dtype=torch.float64)

PLANTS: dict[str, Right] = {
    "waves": lambda x, u: torch.stack(
        [torch.sin(x[..., 1]) * u[..., 0], torch.cos(x[..., 1]) + x[..., 0]], -1
    ),
    "one wave": lambda x, u: torch.sin(x) + u,
    "powers": lambda x, u: torch.stack(
        [x[..., 0] ** 3 - x[..., 1] ** 2, x[..., 0] ** -2 + x[..., 1] ** 4], -1
    ),
    "quotients": lambda x, u: torch.stack([x[..., 0] / x[..., 1], (1.5 + u[..., 0]) / x[..., 0]], -1),
    "quotient by a constant": lambda x, u: x / 3 - 2 * u / 7,
    "exponentials": lambda x, u: torch.stack([torch.exp(-x[..., 1]), torch.log(x[..., 0]) - u[..., 0]], -1),
    "roots": lambda x, u: torch.stack([torch.sqrt(x[..., 1]), x[..., 0] ** 0.5 + torch.rsqrt(x[..., 1])], -1),
    "saturations": lambda x, u: torch.stack(
        [torch.tanh(x[..., 1]), torch.sigmoid(x[..., 0] * u[..., 0])], -1
    ),
    "matrices": lambda x, u: x @ WEIGHT + torch.nn.functional.linear(x * x, WEIGHT, WEIGHT[0]) + u,
    "sums with constants": lambda x, u: (
        (1 - x) * (x - 2) + (3 - u) + torch.cat([x[..., 1:], 0 * x[..., :1] + 1], -1)
    ),
    "broadcast constants": lambda x, u: torch.cat(
        [(x[..., :1] + WEIGHT[0])[..., 1:] * x[..., :1], (u - WEIGHT[0])[..., :1] * x[..., 1:]], -1
    ),
    "constant": lambda x, u: torch.stack([0 * x[..., 0] + 2, u[..., 0]], -1),
    "unbound": lambda x, u: torch.stack(
        [(lambda a, b: b * b + a)(*x.unbind(-1)), x.sum(-1) * x.mean(-1)], -1
    ),
    "square of a square": lambda x, u: torch.square(torch.square(x)) + u.reciprocal(),
}


def traced(plant: Right) -> torch.fx.GraphModule:
    net = Network.from_torch(JoinedPlant(plant, 2).eval(), shape=(3,), fingerprint="test")
    return as_plain_module(net.program(torch.ones(1, 3)))


@pytest.mark.parametrize("name", PLANTS)
def test_each_coefficient_is_the_derivative_of_the_one_before_along_the_flow(name: str) -> None:
    plant, orders = PLANTS[name], 5
    module = TaylorCoefficients(traced(plant), 2, 1, orders)
    z = 0.5 + torch.rand(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = module(z).reshape(3, orders, 2)
    u = z[:, 2:]

    def along(value: Callable[[Tensor], Tensor], order: int) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.func.jvp(value, (x,), (plant(x, u),))[1] / order

    value: Callable[[Tensor], Tensor] = lambda x: plant(x, u)  # noqa: E731
    for j in range(1, orders + 1):
        torch.testing.assert_close(found[:, j - 1], value(z[:, :2]).expand(3, 2), rtol=1e-9, atol=1e-12)
        value = along(value, j + 1)


@pytest.mark.parametrize("name", PLANTS)
def test_partial_derivatives(name: str) -> None:
    plant = PLANTS[name]
    z = 0.5 + torch.rand(1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = PartialDerivatives(traced(plant), 2)(z).reshape(2, 2)
    wanted = torch.func.jacfwd(lambda x: plant(x[None], z[:, 2:])[0])(z[0, :2])
    torch.testing.assert_close(found, wanted.mT, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "plant", [lambda x, u: torch.relu(x) + u, lambda x, u: x.abs() * u, lambda x, u: x.clamp(0, 1) + u]
)
def test_functions_with_a_kink_are_refused_by_name(plant: Right) -> None:
    with pytest.raises(UnsupportedLayer, match=r"aten\.(relu|abs|clamp).*discrete=True"):
        TaylorCoefficients(traced(plant), 2, 1, 2)(torch.ones(1, 3, dtype=torch.float64))


def test_casts_to_integers_are_refused() -> None:
    with pytest.raises(UnsupportedLayer, match="no Taylor expansion"):
        TaylorCoefficients(traced(lambda x, u: x * x.long() + u), 2, 1, 2)(torch.ones(1, 3).double())


def test_a_wrong_coefficient_is_noticed_before_any_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = JoinedPlant(PLANTS["waves"], 2)
    z = torch.rand(4, 3, dtype=torch.float64)
    found = TaylorCoefficients(traced(PLANTS["waves"]), 2, 1, 4)
    check_coefficients(plant, found, z)
    right = taylor_coefficients._chain
    monkeypatch.setattr(
        taylor_coefficients, "_chain", lambda y, slope, j: right(y, slope, j) * (1 + (j == 3))
    )
    with pytest.raises(UnsupportedLayer, match="order 4"):
        check_coefficients(plant, found, z)


def test_a_power_that_is_no_integer_is_refused() -> None:
    with pytest.raises(UnsupportedLayer, match=r"1\.5"):
        TaylorCoefficients(traced(lambda x, u: x**1.5 + u), 2, 1, 2)(torch.ones(1, 3, dtype=torch.float64))
