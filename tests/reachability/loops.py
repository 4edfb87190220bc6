"""Small loops with known solutions, and the attack on a tube by sampled trajectories."""

import torch
from torch import Tensor, nn

from holdfast.api.loop import Loop, LoopAnswer

# Distance by which a state integrated with 64 Runge-Kutta steps a period may lie outside of a tube: the error of the
# integration (order 4, steps of 1/64 period at most 1/64) is below 1e-9 for these plants.
INTEGRATION_ERROR = 1e-8


def linear_controller(*rows: list[float]) -> nn.Module:
    """u = K x with K in float64."""
    layer = nn.Linear(len(rows[0]), len(rows), bias=False, dtype=torch.float64)
    layer.weight.data = torch.tensor(rows, dtype=torch.float64)
    return nn.Sequential(layer).eval()


def relu_controller(states: int, controls: int, seed: int = 0, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Sequential(
        nn.Linear(states, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, controls)
    ).double()
    layers[-1].weight.data *= scale
    return layers.eval()


def pendulum(x: Tensor, u: Tensor) -> Tensor:
    return torch.stack([x[..., 1], -torch.sin(x[..., 0]) - 0.3 * x[..., 1] + u[..., 0]], -1)


def oscillator(x: Tensor, u: Tensor) -> Tensor:
    """x1' = x2, x2' = -x1: turns clockwise at angle t."""
    return torch.stack([x[..., 1], -x[..., 0] + 0 * u[..., 0]], -1)


def logistic(x: Tensor, u: Tensor) -> Tensor:
    """x' = x (1 - x): x(t) = 1 / (1 + (1 / x0 - 1) exp(-t))."""
    return x * (1 - x) + 0 * u


def attack(loop: Loop, answer: LoopAnswer, count: int = 2000, steps: int = 64, seed: int = 1) -> int:
    """How many of `count` sampled trajectories leave the tube at some of `steps` times a period."""
    torch.manual_seed(seed)
    lower, upper = answer.start
    share = torch.rand(count, len(lower), dtype=torch.float64)
    share[::2] = share[::2].round()
    model = loop.model(answer.states)
    states = model.simulate(lower + share * (upper - lower), loop.steps, steps)
    assert answer.tube is not None
    assert answer.ends is not None
    at_ends = states if loop.discrete else states[:, ::steps]
    outside = _outside(at_ends, answer.ends)
    if not loop.discrete:
        for k in range(loop.steps):
            outside |= _outside(
                states[:, k * steps : (k + 1) * steps + 1], answer.tube[k].expand(steps + 1, -1, -1)
            )
    return int(outside.sum())


def _outside(states: Tensor, bounds: Tensor) -> Tensor:
    """(trajectories,) bool; states (trajectories, times, n), bounds (times, n, 2)."""
    low, high = bounds[..., 0] - INTEGRATION_ERROR, bounds[..., 1] + INTEGRATION_ERROR
    return ~((states >= low) & (states <= high)).all(-1).all(-1)
