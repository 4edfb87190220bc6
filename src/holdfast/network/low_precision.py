"""Networks in low precision: modules that `torch.ao.quantization` made, and types that round more than float32.

Layers of torch.ao.quantization keep integers in packed form, which torch.export cannot read. So they have no graph, no
gradients and no copy in float64, and nothing about them is proved; searches that only evaluate the module work. The
same holds for proofs about half precision, whose rounding is no part of real arithmetic and may change the class.
"""

from collections.abc import Iterator

import torch
from torch import fx, nn

# Packages of torch whose layers compute with integers.
PACKAGES = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")

DYNAMIC_NOTE = (
    "dynamic quantisation: the grids depend on all inputs of a batch, so answers change with the batch; each input is "
    "measured alone, as in a batch of one"
)


def is_coarse(kind: torch.dtype) -> bool:
    """Whether a floating-point type rounds more than float32."""
    return kind.is_floating_point and torch.finfo(kind).eps > torch.finfo(torch.float32).eps


def quantised_parts(module: nn.Module) -> Iterator[tuple[str, str, bool]]:
    """The quantised layers, then the quantising calls of a module: name, kind, and whether its grid depends on the
    data."""
    for name, part in module.named_modules():
        package = type(part).__module__
        if package.startswith(PACKAGES) and ".reference" not in package:
            yield name, type(part).__name__, ".dynamic" in package
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for node in part.graph.nodes:
            called = getattr(node.target, "__name__", str(node.target))
            if node.op == "call_function" and called.startswith("quantize_per_"):
                yield node.name, "a call in its graph", "dynamic" in called


def is_quantised(module: nn.Module) -> bool:
    """Whether some layer of the module computes with integers: of an imported file, or of torch."""
    if any(getattr(part, "is_quantised", False) for part in module.modules()):
        return True
    return next(quantised_parts(module), None) is not None


def is_dynamically_quantised(module: nn.Module) -> bool:
    """Whether the grid of some layer of torch depends on the data."""
    return any(dynamic for _, _, dynamic in quantised_parts(module))


def obstacle_to_graph(module: nn.Module) -> str | None:
    """Why a module of torch.ao.quantization has no graph; None if it is no such module."""
    found = next(quantised_parts(module), None)
    if found is None:
        return None
    name, kind, _ = found
    # The wrappers around the user's own module are called "model".
    own = name.split("model.")[-1] if name.startswith("model.") else name
    return (
        f"{own} ({kind}): layers that torch.ao.quantization made have no bounds here, so nothing is "
        "proved; attacks still work. To prove bounds, export the float module to ONNX and quantise the file with "
        "onnxruntime.quantization."
    )
