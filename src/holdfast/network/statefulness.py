"""Detection of stateful models: everything that the outputs could depend on is compared before and after
calls."""

import random
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.network.code_inspection import is_installed
from holdfast.network.output_comparison import alike
from holdfast.network.recurrent import copy_module
from holdfast.signals import call_model

# Largest number of elements of a tensor that are compared one by one; larger tensors are compared by two sums
# (chosen by hand).
SMALL = 2**14
WORD_BYTES = 8  # Bytes of the integers whose sum is compared for a large tensor.
# Libraries whose code is assumed to keep state only in the attributes of its modules.
LIBRARIES = ("torch", "numpy", "transformers")
# Private attributes of modules that are state of the user.
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def state_changed_by_calls(name: str, module: nn.Module, x: Tensor) -> str | None:
    """The name of a part of the module's state that calls change, so that outputs may depend on earlier
    inputs; None if there is none.

    State that only the first call creates (a lazily built table) is allowed, if a different first call
    creates equivalent state.

    Args:
        name: of the model, for messages.
        x: (2, *shape), two inputs.
    """
    fresh = copy_module(module)
    states = [state_of(module)]
    with torch.no_grad():
        for batch in (x, x[:1], x[1:]):
            call_model(name, module, batch)
            states.append(state_of(module))
        changed = first_change(states[1], states[2]) or first_change(states[2], states[3])
        if changed is None and first_change(states[0], states[1]) is not None:
            layers = set(module.state_dict()) - set(fresh.state_dict())
            shifted = x[1:] + 0.125
            if layers or not alike(call_model(name, fresh, shifted), call_model(name, module, shifted)):
                changed = first_change(states[0], states[1])
    return changed


def first_change(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """The name of the first entry that differs between two states, or None."""
    return next((key for key in {**before, **after} if before.get(key) != after.get(key)), None)


def state_of(module: nn.Module) -> dict[str, str]:
    """The state of a module by name: weights, buffers, attributes, hooks, attributes of classes, closures,
    and globals of functions."""
    return dict(_parts(module))


def generators(device: torch.device | None = None) -> dict[str, str]:
    """The states of the global random generators of Python, numpy and torch, and of a GPU if one is given."""
    states = {"torch's": torch.get_rng_state()}
    if device is not None and device.type == "cuda":
        states["the GPU's"] = torch.cuda.get_rng_state(device)
    known = {name: str(hash(state.numpy().tobytes())) for name, state in states.items()}
    return {
        "Python's": str(hash(random.getstate())),
        "numpy's": _token(np.random.get_state(legacy=False)),
        **known,
    }


def _parts(module: nn.Module) -> Iterator[tuple[str, str]]:
    for path, part in module.named_modules():
        at = f"{path}." if path else ""
        yield from (
            (f"{at}{name}", _token(value))
            for name, value in (*part._parameters.items(), *part._buffers.items())
        )
        own = {name: value for name, value in vars(part).items() if not name.startswith("_") or name in HOOKS}
        yield from ((f"{at}{name}", _token(value)) for name, value in own.items() if name != "training")
        for kind in type(part).__mro__:
            if kind is not object and kind.__module__.partition(".")[0] not in LIBRARIES:
                yield from (
                    (f"{kind.__qualname__}.{name}", _token(value))
                    for name, value in list(vars(kind).items())
                    if name[:2] != "__"
                )


def _token(value: Any, seen: dict[int, Any] | None = None) -> str:
    """A text that is equal for equal values, within one process.

    An object without readable state is represented by its `repr`. Every object is visited once, because
    references may be circular.
    """
    if isinstance(value, Tensor):
        return _numbers(value)
    if isinstance(value, np.ndarray):
        return str(hash(np.ndarray.tobytes(value)))  # a masked array's own method fails for read-only data
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | type | nn.Module):
        return (
            value.__qualname__
            if isinstance(value, type)
            else str(id(value))
            if isinstance(value, nn.Module)
            else repr(value)
        )
    seen = {} if seen is None else seen
    if id(value) in seen:
        return ""
    seen[id(value)] = value
    if isinstance(value, types.ModuleType):  # of the user's modules the plain values, of libraries nothing
        own = {} if is_installed(value) else vars(value)
        values = [
            (name, _token(part, seen)) for name, part in own.items() if name[:2] != "__" and _is_plain(part)
        ]
        return f"{value.__name__} {values}"
    if isinstance(value, torch.Generator):
        return _numbers(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, Mapping):
        return str([(repr(key), _token(part, seen)) for key, part in value.items()])
    if isinstance(value, list | tuple | set | frozenset):
        return str([_token(part, seen) for part in value])
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        return _token(value.__func__, seen)
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    inner = getattr(value, "__dict__", None)
    return f"{value!r} {_token(inner, seen)}" if isinstance(inner, dict) else repr(value)


def _function(value: types.FunctionType, seen: dict[int, Any]) -> str:
    """A function by the variables that it closes over, its defaults, and the plain values that it reads from
    its module."""
    if str(value.__module__).partition(".")[0] in LIBRARIES:
        return value.__qualname__
    cells = [_token(cell.cell_contents, seen) for cell in value.__closure__ or () if _is_filled(cell)]
    read = [
        _token(part, seen)
        for name, part in value.__globals__.items()
        if name in value.__code__.co_names and _is_plain(part)
    ]
    return str(
        [
            id(value.__code__),
            cells,
            read,
            _token(value.__defaults__, seen),
            _token(value.__kwdefaults__, seen),
        ]
    )


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_plain(value: Any) -> bool:
    """Whether a value has a type whose state is visible."""
    return isinstance(
        value,
        bool
        | int
        | float
        | str
        | bytes
        | list
        | tuple
        | dict
        | set
        | Tensor
        | np.ndarray
        | types.FunctionType,
    )


def _numbers(value: Tensor) -> str:
    """A tensor by its values; a large one by its version counter and the sum of its bits, or its sum and its norm."""
    plain = value.detach()
    if plain.numel() <= SMALL and not plain.is_meta:
        return f"{plain.dtype} {tuple(plain.shape)} {plain.cpu().reshape(-1).tolist()}"
    if not plain.is_meta and plain.layout == torch.strided and plain.is_contiguous():
        numbers = WORD_BYTES // plain.element_size()
        if numbers and plain.numel() % numbers == 0 and plain.storage_offset() % numbers == 0:
            # The sum of the bits, modulo 2^64, is exact and takes a hundredth of the time of a sum in float64.
            bits = int(plain.reshape(-1).view(torch.int64).sum())
            return f"{plain.dtype} {tuple(plain.shape)} {plain._version} {bits}"
    real = plain.is_floating_point() and not (plain.is_meta or plain.is_sparse)
    sums = (
        (plain.sum(dtype=torch.float64), torch.linalg.vector_norm(plain, dtype=torch.float64)) if real else ()
    )
    return f"{plain.dtype} {tuple(plain.shape)} {plain._version} {[float(part) for part in sums]}"
