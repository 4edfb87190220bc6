"""A network that holds an inverted pendulum upright: proved for all starts of a box, or a trajectory that falls."""

import torch
from torch import Tensor, nn

import holdfast as hf

GRAVITY = 9.81  # m/s^2; the pendulum is 1 m long and weighs 1 kg.


def pendulum(x: Tensor, u: Tensor) -> Tensor:
    """dx/dt of the states angle (rad, from upright) and rate (rad/s); u is the torque in N m."""
    angle, rate = x[..., 0], x[..., 1]
    return torch.stack([rate, GRAVITY * torch.sin(angle) - 0.2 * rate + u[..., 0]], -1)


def train_controller(most: float) -> nn.Module:
    """A ReLU network that imitates the feedback -25 angle - 8 rate, limited to a torque of +-most."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1))
    states = 2 * torch.rand(2000, 2) - 1
    wanted = (states @ torch.tensor([[-25.0], [-8.0]])).clamp(-most, most)
    optimiser = torch.optim.LBFGS(net.parameters(), max_iter=150, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        error = nn.functional.mse_loss(net(states), wanted)
        error.backward()
        return error

    optimiser.step(loss)
    return net.eval()


start = "0.15 <= angle <= 0.2 and -0.05 <= rate <= 0.05"
for most in (20.0, 1.5):
    loop = hf.Loop(
        train_controller(most),
        pendulum,
        period=0.05,  # s, for which a torque is held
        steps=20,
        states=["angle", "rate"],
        units=["rad", "rad/s"],
    )
    print(f"torque up to {most:g} N m")
    print(loop.stay(start, "-0.3 <= angle <= 0.3"))
    answer = loop.reach(start, "-0.1 <= angle <= 0.1", at=1.0)
    print(answer)
    answer.save_page(f"pendulum-{most:g}.html")
