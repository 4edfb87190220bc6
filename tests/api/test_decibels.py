"""Radii in decibels below the peak of each recording."""

import pytest
import torch

import holdfast as hf


def test_decibels_refer_to_the_peak_of_each_recording() -> None:
    x = torch.tensor([[0.5, -2.0, 0.0], [0.1, 0.0, -0.05]])
    assert hf.decibels(x, -80).tolist() == pytest.approx([2e-4, 1e-5], rel=1e-7)
    assert hf.decibels(x, 0).tolist() == pytest.approx([2.0, 0.1], rel=1e-7)
    assert hf.decibels(x.double()[:, None], -20).tolist() == pytest.approx([0.2, 0.01], rel=1e-7)
    assert hf.Ball(x, hf.decibels(x, -80), torch.inf).radius.shape == (2,)


@pytest.mark.parametrize(
    ("x", "level", "said"),
    [
        (torch.zeros(2, 8), -80, "recording 0 is silent"),
        (torch.tensor([[1.0], [torch.nan]]), -80, "recording 1"),
        (torch.ones(8), -80, r"x\[None\]"),
        (torch.ones((1, 8), dtype=torch.int16), -80, "floating-point"),
        (torch.ones(1, 8), "-80dB", "level: expected decibels"),
        (torch.ones(1, 8), float("nan"), "level: expected decibels"),
    ],
)
def test_wrong_calls_say_what_is_expected(x: torch.Tensor, level: float, said: str) -> None:
    with pytest.raises(hf.HoldfastError, match=said):
        hf.decibels(x, level)
