"""Steps and functions that a graphics card records: the same numbers as without, and without a card nothing but calls."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from holdfast.bounding.coefficient_training import CoefficientAscent
from holdfast.bounding.crown import _relax_over_box
from holdfast.bounding.relax import Relaxation, SigmoidTanh, SigmoidTimes, Tanh
from holdfast.bounding.relax.base import planes, value_range
from holdfast.cuda_graphs import RecordedStep, record_function

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics card")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_a_repeated_step_is_taken_as_often_as_it_is_asked_for(device: str) -> None:
    count = torch.zeros(3, device=device)
    add = torch.arange(3.0, device=device)
    once = RecordedStep(lambda: count.add_(add), count.device)  # type: ignore[arg-type, return-value]
    for times in range(1, 6):
        once()
        assert count.tolist() == [0, times, 2 * times]
    add.fill_(10)  # what it reads may change in between
    once()
    assert count.tolist() == [10, 15, 20]


@pytest.mark.parametrize("device", DEVICES)
def test_what_decides_by_values_is_taken_all_the_same(device: str) -> None:
    """In a thread of its own, which records nothing more after that; others do."""

    def run() -> float:
        count = torch.zeros((), device=device)
        once = RecordedStep(lambda: count.add_(1 if bool(count < 3) else 10), count.device)  # type: ignore[arg-type, return-value]
        for _ in range(5):
            once()
        more = RecordedStep(lambda: count.add_(1), count.device)  # type: ignore[arg-type, return-value]
        for _ in range(3):
            more()
        return float(count)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(run).result() == 26


@pytest.mark.parametrize("device", DEVICES)
def test_a_remembered_function_answers_for_every_number_of_rows(device: str) -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * b, (a - b).abs()

    for seed, rows in enumerate((5, 5, 7, 8, 3, 6, 1, 8)):  # five to eight share a record
        a, b = torch.randn(2, rows, 4, generator=torch.Generator().manual_seed(seed)).double().to(device)
        product, apart = record_function(("test", device), function, a, b)
        assert torch.equal(product, a * b)
        assert torch.equal(apart, (a - b).abs())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "relaxation", [Tanh(), SigmoidTimes(), SigmoidTanh()], ids=lambda r: type(r).__name__
)
def test_planes_are_those_that_are_found_alone(relaxation: Relaxation, device: str) -> None:
    for seed in range(4):
        chance = torch.Generator().manual_seed(seed)
        middle, half = (
            torch.randn(relaxation.arguments, 6, 5, generator=chance),
            torch.rand(relaxation.arguments, 6, 5, generator=chance),
        )
        lower, upper = ((middle + sign * half).double().to(device).unbind(0) for sign in (-1, 1))
        found, (least, most) = _relax_over_box(relaxation, lower, upper)
        alone, values = planes(relaxation, lower, upper), value_range(relaxation, lower, upper)
        assert torch.equal(least, values[0])
        assert torch.equal(most, values[1])
        assert torch.equal(found.lower_offset, alone.lower_offset)
        assert torch.equal(found.upper_offset, alone.upper_offset)
        assert all(
            torch.equal(a, b)
            for a, b in zip((*found.lower, *found.upper), (*alone.lower, *alone.upper), strict=True)
        )


@pytest.mark.parametrize("device", DEVICES)
def test_an_ascent_that_is_recorded_goes_where_one_goes_that_is_not(device: str) -> None:
    top = torch.tensor([1.0, -2.0], device=device)
    plain, noted = (CoefficientAscent([torch.zeros(2, device=device)]) for _ in range(2))
    rate = torch.zeros((), device=device)
    once = RecordedStep(
        lambda: noted.step([2 * (top - noted.values[0].detach())], rate if rate.is_cuda else float(rate)),
        top.device,
    )
    for step in range(12):
        rate.fill_(0.3 / (1 + step))
        once()
        plain.step([2 * (top - plain.values[0].detach())], 0.3 / (1 + step))
    torch.testing.assert_close(noted.values[0], plain.values[0])
    assert float((noted.values[0] - top).abs().max()) < 1.5
