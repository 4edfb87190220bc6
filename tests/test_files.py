"""Errors of readers: what is missing is named, a damaged file or memory."""

import pytest
import torch

from holdfast.errors import UnreadableFile
from holdfast.files import explained_errors


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("CUDA error: out of memory"), torch.OutOfMemoryError("full")]
)
def test_missing_memory_is_no_damage(error: Exception) -> None:
    with (
        pytest.raises(UnreadableFile, match=r"net\.onnx: does not fit into the memory"),
        explained_errors("net.onnx", "it is damaged", "Free some memory."),
    ):
        raise error


def test_other_errors_are_damage() -> None:
    with (
        pytest.raises(UnreadableFile, match=r"net\.onnx: it is damaged \(bad\)\. Export it again\."),
        explained_errors("net.onnx", "it is damaged", "Export it again."),
    ):
        raise ValueError("bad")
