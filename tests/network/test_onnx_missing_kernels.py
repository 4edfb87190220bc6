"""An operator for which torch has no kernel is refused as unsupported; other errors of an operator stay as they are."""

from typing import Any

import pytest
import torch

from holdfast.errors import UnsupportedLayer
from holdfast.network.onnx.operators.table import Kind, OnnxNode, Operator, run_operator

NODE = OnnxNode("Relu", "first", ("x",), ("y",), 17)


def operator_of(function: Any) -> Operator:
    return Operator(function, (Kind.TENSOR,), False, False, False)


def test_a_missing_kernel_is_unsupported() -> None:
    def run(node: OnnxNode, x: torch.Tensor) -> torch.Tensor:
        upper: torch.Tensor = torch.linalg.lu(x).U
        return upper

    with pytest.raises(UnsupportedLayer, match="something that torch does not have"):
        run_operator(NODE, operator_of(run), [torch.eye(2, dtype=torch.half)])


def test_results_are_a_tuple_and_other_errors_are_not_changed() -> None:
    def run(node: OnnxNode, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    (result,) = run_operator(NODE, operator_of(run), [torch.zeros(2)])
    assert result.tolist() == [1.0, 1.0]
    with pytest.raises(TypeError):
        run_operator(NODE, operator_of(run), [])
