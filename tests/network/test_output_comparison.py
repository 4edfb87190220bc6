"""Which differences of outputs rounding explains."""

import pytest
import torch

from holdfast.network.output_comparison import same_by_rounding


def test_a_small_output_may_have_the_rounding_of_large_inner_values() -> None:
    own = torch.tensor([[1e4, 2e-3]])
    assert same_by_rounding(own, own + torch.tensor([[0.0, 5e-3]]))
    assert not same_by_rounding(own, own + torch.tensor([[0.0, 0.5]]))
    small = torch.tensor([[1.0, 2e-3]])
    assert not same_by_rounding(small, small + torch.tensor([[0.0, 5e-3]]))


@pytest.mark.parametrize(
    "outputs", [torch.tensor([[3, 4]]), torch.zeros(1, 0), torch.tensor([[torch.nan, 1.0]])]
)
def test_outputs_of_any_kind_equal_themselves(outputs: torch.Tensor) -> None:
    assert same_by_rounding(outputs, outputs)


def test_an_infinite_output_excuses_no_other() -> None:
    one, other = torch.tensor([[torch.inf, 1.0]]), torch.tensor([[torch.inf, 1.1]])
    assert not same_by_rounding(one, other)
    assert same_by_rounding(one, one)
