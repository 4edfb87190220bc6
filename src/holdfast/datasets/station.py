"""A synthetic weather station, and a small GRU that forecasts its next hour."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.process_state import own_random_numbers

WINDOW_HOURS = 6  # Length of a window in hours.
OUTPUTS = ("temperature in °C", "wind in m/s")
# Number of training windows, and of optimiser steps (chosen by hand).
TRAINING_WINDOWS, TRAINING_STEPS = 240, 80


@dataclass(frozen=True)
class Station:
    x: Tensor  # (windows, hours, 2): temperature in °C and wind in m/s
    y: Tensor  # (windows, 2): the following hour


@cache
def _series() -> Tensor:
    """Return (hours, 2): daily and slower cycles, with the noise of two instruments."""
    hour = torch.arange(TRAINING_WINDOWS + 3 * WINDOW_HOURS + 60, dtype=torch.float64)
    noise = torch.randn((len(hour), 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    warmth = 15 + 7 * torch.sin(2 * math.pi * hour / 24) + 3 * torch.sin(2 * math.pi * hour / 137)
    wind = 5 + 2 * torch.sin(2 * math.pi * hour / 24 + 1) + torch.sin(2 * math.pi * hour / 61)
    return (torch.stack([warmth, wind], dim=1) + noise * torch.tensor([0.3, 0.2])).float()


def station(part: str = "test") -> Station:
    """Return windows. part: "train", or "test", which is later in time."""
    series = _series()
    starts = (
        range(TRAINING_WINDOWS)
        if part == "train"
        else range(TRAINING_WINDOWS + WINDOW_HOURS, TRAINING_WINDOWS + WINDOW_HOURS + 48, 6)
    )
    return Station(
        torch.stack([series[k : k + WINDOW_HOURS] for k in starts]),
        torch.stack([series[k + WINDOW_HOURS] for k in starts]),
    )


def windows() -> dict[str, Any]:
    """Return test windows without labels, and the names of features and outputs, for the command line."""
    return {"x": station("test").x, "columns": list(OUTPUTS), "classes": list(OUTPUTS)}


class Forecaster(nn.Module):
    """(n, hours, 2) in °C and m/s -> (n, 2), the next hour in the same units."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.read = nn.GRU(2, hidden, batch_first=True)
        self.say = nn.Linear(hidden, 2)
        usual = _series()[:TRAINING_WINDOWS]
        self.register_buffer("mean", usual.mean(0))
        self.register_buffer("std", usual.std(0))

    def forward(self, x: Tensor) -> Tensor:
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        answer: Tensor = self.say(self.read((x - mean) / std)[0][:, -1]) * std + mean
        return answer


@cache
def forecaster() -> Forecaster:
    """Return the network, trained in the same way every time."""
    with own_random_numbers(0), torch.enable_grad():
        model, data = Forecaster(), station("train")
        adam = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(TRAINING_STEPS):
            adam.zero_grad()
            loss = ((model(data.x) - data.y) / model.get_buffer("std")).square().mean()
            loss.backward()
            adam.step()
    return model.eval()
