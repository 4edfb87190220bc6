"""The truth for the ONNX importer: onnxruntime, on the same inputs."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from holdfast.network.onnx import OnnxModule, import_onnx, session

Array = np.ndarray[Any, Any]

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def integers(*values: Any) -> Array:
    return np.array(values, dtype=np.int64)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 17,
    output_type: int = TensorProto.FLOAT,
    free_batch: bool = False,
) -> onnx.ModelProto:
    """A model around some nodes, with the inputs' own types and shapes (the first axis free on request)."""

    def shape(array: Array) -> list[int | str]:
        return ["batch", *array.shape[1:]] if free_batch and array.ndim else list(array.shape)

    graph = helper.make_graph(
        list(nodes),
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape(array))
            for name, array in inputs.items()
        ],
        [helper.make_tensor_value_info(name, output_type, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(
    module: torch.nn.Module, inputs: Sequence[Array], dtype: torch.dtype | None = torch.float32
) -> list[Array]:
    """The results on these inputs, floats first turned into the type unless it is None."""
    tensors = [torch.from_numpy(np.array(value)) for value in inputs]
    tensors = [
        value.to(dtype) if dtype is not None and value.is_floating_point() else value for value in tensors
    ]
    results = module(*tensors)
    return [value.detach().numpy() for value in (results if isinstance(results, tuple) else (results,))]


def truth(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    results = session(model)(*inputs)
    return list(results) if isinstance(results, tuple) else [results]


def close(found: Array, wanted: Array, tolerance: float = 1e-5) -> None:
    """Relative to the largest element, as sums of many terms round relative to the terms."""
    assert found.shape == wanted.shape
    if wanted.size:
        finite = np.abs(wanted[np.isfinite(wanted)])
        np.testing.assert_allclose(
            found, wanted, rtol=tolerance, atol=tolerance * max(finite.max(initial=0.0), 1e-3)
        )


def agrees(
    model: onnx.ModelProto, *inputs: Array, bind: Mapping[str, Any] | None = None, tolerance: float = 1e-5
) -> OnnxModule:
    """Imports the model and asserts that it, and its float64 twin, answer as onnxruntime does."""
    module = import_onnx(model, "test.onnx", constants=bind)
    fed = iter(inputs)
    names = [port.name for port in session(model).inputs]
    wanted = truth(model, [np.asarray(bind[name]) if bind and name in bind else next(fed) for name in names])
    found = run(module, inputs)
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        close(mine, theirs, tolerance)
    twin = copy.deepcopy(module).double()
    for wide, theirs in zip(run(twin, inputs, torch.float64), wanted, strict=True):
        assert wide.dtype == (np.float64 if theirs.dtype == np.float32 else theirs.dtype)
        close(wide, theirs, tolerance)
    return module
