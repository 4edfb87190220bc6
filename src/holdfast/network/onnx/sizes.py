"""The sizes of a model's intermediate values, before they are computed: a small file may require terabytes of memory.

The size of a result of the usual operators follows from those of its arguments, so the model is called on an example
and every operator is checked before it runs. A model with other operators is called on torch's meta device, which
has no data; there every operator is possible, but torch imports its compiler first, which takes a second.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holdfast.errors import UnreadableFile, UnsupportedLayer
from holdfast.memory_budget import available_bytes, format_bytes

# Operators whose result has at most as many elements as their largest argument. Pooling adds at most one element to
# an axis, because torch pads by at most half of a window.
NOT_LARGER = """
    clone contiguous detach alias to type_as lift_fresh view reshape flatten squeeze unsqueeze
    transpose permute t select slice split split_with_sizes unbind relu sigmoid tanh neg abs
    exp log sin cos tan sqrt reciprocal clamp softmax log_softmax leaky_relu elu selu celu
    gelu sign round floor ceil erf softplus hardtanh hardsigmoid hardswish logical_not sum
    mean prod amax amin argmax argmin all any cumsum ones_like zeros_like full_like batch_norm
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
"""
# Operators whose arguments are broadcast against each other.
BROADCAST = """
    add sub mul div pow maximum minimum where eq ne lt le gt ge logical_and logical_or
"""


def _count_broadcast(*args: Any) -> int:
    shapes = [value.shape for value in args if isinstance(value, Tensor)]
    return math.prod(torch.broadcast_shapes(*shapes))


def _count_linear(x: Tensor, weight: Tensor, *_: Any) -> int:
    return math.prod(x.shape[:-1]) * math.prod(weight.shape[:-1])


def _count_matmul(a: Tensor, b: Tensor) -> int:
    many: int = math.prod(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    return many * math.prod(a.shape[-2:-1]) * math.prod(b.shape[-1:] if b.dim() > 1 else ())


def _count_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    *_: Any,
) -> int:
    dims = weight.dim() - 2
    each = zip(
        x.shape[-dims:], weight.shape[2:], _per_axis(stride, dims), _per_axis(padding, dims), strict=True
    )
    sizes = [max(0, size + 2 * pad - kernel) // step + 1 for size, kernel, step, pad in each]
    return math.prod(x.shape[: -dims - 1]) * weight.shape[0] * math.prod(sizes)


def _per_axis(values: Sequence[int], dims: int) -> Sequence[int]:
    return [values[0]] * dims if len(values) == 1 else values


def _count_transposed_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    extra: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> int:
    dims = weight.dim() - 2
    steps, more, apart = (_per_axis(values, dims) for values in (stride, extra, dilation))
    sizes = [
        size * step + kernel * gap + own
        for size, kernel, step, own, gap in zip(
            x.shape[-dims:], weight.shape[2:], steps, more, apart, strict=True
        )
    ]
    return math.prod(x.shape[: -dims - 1]) * weight.shape[1] * groups * math.prod(sizes)


def _count_concatenated(parts: Sequence[Tensor], *_: Any) -> int:
    return sum(part.numel() for part in parts)


def _count_largest(*args: Any) -> int:
    return max(value.numel() for value in args if isinstance(value, Tensor))


def _count_selected(x: Tensor, dim: int, index: Tensor, *_: Any) -> int:
    return x.numel() // max(1, x.shape[dim]) * index.numel()


def _count_expanded(x: Tensor, sizes: Sequence[int], *_: Any) -> int:
    own = (1,) * (len(sizes) - x.dim()) + tuple(x.shape)
    return math.prod(known if size == -1 else size for size, known in zip(sizes, own, strict=True))


def _count_padded(x: Tensor, pads: Sequence[int], *_: Any) -> int:
    grown = [0] * (2 * x.dim() - len(pads)) + list(pads)[::-1]
    return math.prod(
        max(0, size + before + after)
        for size, before, after in zip(x.shape, grown[::2], grown[1::2], strict=True)
    )


# (arguments) -> an upper bound on the number of elements of the result.
COUNTS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(NOT_LARGER.split(), _count_largest),
    **dict.fromkeys(BROADCAST.split(), _count_broadcast),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _count_convolution),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _count_transposed_convolution
    ),
    "linear": _count_linear,
    "matmul": _count_matmul,
    "cat": _count_concatenated,
    "stack": _count_concatenated,
    "index_select": _count_selected,
    "expand": _count_expanded,
    "pad": _count_padded,
}


class _UnknownSize(Exception):
    """The size of an operator's result does not follow from COUNTS."""


class _Watching(TorchDispatchMode):
    """Looks at the calls of operators. Nothing is compiled here; torch would import its compiler otherwise."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _CheckedBefore(_Watching):
    """Raises before an operator runs whose result could have more than `most` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = most

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function).split(".")[1]
        try:
            count = COUNTS[name](*args)
        except Exception as error:  # an operator, or a form of it, that is not in the table
            raise _UnknownSize from error
        given = [value for value in tree_leaves(args) if isinstance(value, Tensor)]
        if count * max(value.element_size() for value in given) > self.most:
            raise _UnknownSize
        return function(*args, **(kwargs or {}))


class _Largest(_Watching):
    """Records the size of the largest result of all operators, in `bytes`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        sizes = [
            value.untyped_storage().nbytes() for value in tree_leaves(found) if isinstance(value, Tensor)
        ]
        self.bytes = max([self.bytes, *sizes])
        return found


def check_sizes(module: nn.Module, example: Tensor, name: str) -> None:
    """Raise UnreadableFile if a single intermediate value would take more than half of the available
    memory, and UnsupportedLayer if an operator refuses the sizes that it meets."""
    most = available_bytes() // 2
    try:
        with torch.inference_mode(), _CheckedBefore(most):
            module(example)
        return
    except UnsupportedLayer:
        raise
    except Exception:  # of an unknown or large size, or an error that appears when the model is evaluated
        pass
    weights = {
        key: value.to("meta")
        for key, value in (*module.named_parameters(), *module.named_buffers(remove_duplicate=False))
    }
    # Models that cannot run without data are not checked; their errors appear when they are evaluated.
    refused = False
    with contextlib.suppress(Exception), torch.no_grad(), _Largest() as largest:
        try:
            functional_call(module, weights, (example.to("meta"),))
        except UnsupportedLayer:
            refused = True
    if largest.bytes > most:
        raise UnreadableFile(
            f"{name}: a value between its layers would take {format_bytes(largest.bytes)}, and "
            f"{format_bytes(most)} are available for one. The file is damaged, or needs a larger machine."
        )
    if refused:  # by an operator, or by torch, which lacks some operators without data
        with torch.no_grad():
            module(example)
