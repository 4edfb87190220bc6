"""Hashes by which a run knows its model, its data and its question again."""

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def of_output(name: str | None) -> str:
    """Hash of the name of the output that is measured; "" where none was chosen."""
    return "" if name is None else of_text(f"output: {name}")


def joined(main: str, *others: str) -> str:
    """One hash for all; where there are no others, the main one itself."""
    parts = [main, *filter(None, others)]
    return main if len(parts) == 1 else of_text("\n".join(parts))


def of_tensors(named: Mapping[str, Tensor], begin: str = "") -> str:
    """Names, kinds, shapes and bytes, in their order."""
    digest = hashlib.sha256(begin.encode())
    for name, value in named.items():
        if is_lazy(value):
            continue
        digest.update(_told(name, value.dtype, tuple(value.shape)))
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def of_rows(first: str, tensors: Sequence[Tensor]) -> list[str]:
    """For every row of tensors that have a common batch axis, `of_value` of [first, the row of each], all at once."""
    begun = of_value(first)
    return [of_text(str([begun, *row])) for row in zip(*map(_each_row, tensors), strict=True)]


def _each_row(tensor: Tensor) -> list[str]:
    shape, found = tuple(tensor.shape[1:]), []
    begun = hashlib.sha256(_told("", tensor.dtype, shape))
    rows = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)  # which has strides even where it was expanded
    for row in rows.reshape(len(tensor), math.prod(shape)).view(torch.uint8).numpy():
        digest = begun.copy()
        digest.update(row.data)
        found.append(digest.hexdigest())
    return found


def _told(name: str, kind: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{name} {kind} {shape}".encode()


def of_module(module: nn.Module, seen: frozenset[int] = frozenset()) -> str:
    """The structure, the weights, the code of every class that is not torch's own, and every attribute that can be read."""
    if id(module) in seen:
        return ""
    parts, seen = [repr(module)], seen | {id(module)}
    for name, part in module.named_modules():
        kind = type(part)
        parts.append(f"{name}: {kind.__module__}.{kind.__qualname__}")
        if not kind.__module__.startswith("torch."):
            parts += [f"{key} = {of_value(value, seen)}" for key, value in vars(kind).items() if _plain(value)]
        parts += [f"{key} = {of_value(value, seen)}" for key, value in vars(part).items() if not key.startswith("_") and _plain(value)]
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return of_tensors(tensors, begin="\n".join(parts))


def of_program(program: torch.export.ExportedProgram) -> str:
    """The operators in their order with all that they were given, the weights and the constants."""
    constants = {key: value for key, value in program.constants.items() if isinstance(value, Tensor)}
    return of_tensors({**program.state_dict, **constants}, begin=str(program.graph))


def of_callable(function: Callable[..., Any], seen: frozenset[int] = frozenset()) -> str:
    """The code of a function, what it closes over and reads, and its defaults; of an object, its class and its attributes."""
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    if id(inner) in seen or str(getattr(inner, "__module__", "")).partition(".")[0] in ("torch", "numpy"):
        return of_text(f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', '')}")
    seen = seen | {id(inner)}
    if not isinstance(code, CodeType):
        return of_text(f"{_source(type(inner))} {[(key, of_value(value, seen)) for key, value in getattr(inner, '__dict__', {}).items()]}")
    cells = [of_value(cell.cell_contents, seen) for cell in getattr(inner, "__closure__", None) or ()]
    read = {
        name: of_value(value, seen) for name, value in getattr(inner, "__globals__", {}).items() if name in code.co_names and _plain(value)
    }
    return of_text(f"{code_of(code)} {cells} {read} {of_value(getattr(inner, '__defaults__', None), seen)}")


def of_value(value: Any, seen: frozenset[int] = frozenset()) -> str:
    """Anything a question is made of: numbers, words, tensors, functions and collections of them."""
    if isinstance(value, Tensor):
        return of_tensors({"": value})
    if is_dataclass(value) and not isinstance(value, type):
        return of_text(f"{type(value).__qualname__} {[(f.name, of_value(getattr(value, f.name), seen)) for f in fields(value)]}")
    if isinstance(value, Mapping):
        return of_text(str([(str(key), of_value(part, seen)) for key, part in value.items()]))
    if isinstance(value, list | tuple):
        return of_text(str([of_value(part, seen) for part in value]))
    if isinstance(value, nn.Module):
        return of_module(value, seen)
    if callable(value) and not isinstance(value, type):
        return of_callable(value, seen)
    return of_text(f"{type(value).__name__} {value!r}" if _plain(value) else _tensor_text(value))


def _plain(value: Any) -> bool:
    """What says all there is to know in its repr, or is hashed by its content."""
    if isinstance(value, list | tuple):
        return all(_plain(part) for part in value)
    if isinstance(value, dict):
        return all(_plain(part) for part in value.values())
    return (
        value is None
        or isinstance(value, bool | int | float | str | bytes | complex | Fraction | Tensor | torch.dtype | torch.device)
        or inspect.isfunction(value)
    )


def _tensor_text(value: Any) -> str:
    """Arrays by their bytes, everything else by its class: an address is no part of a question."""
    data = getattr(value, "tobytes", None)
    return f"{type(value).__qualname__} {data().hex() if callable(data) else ''}"


def code_of(code: CodeType) -> str:
    """Instructions, names and constants, also of functions inside; not where it stands."""
    constants = [
        code_of(value) if isinstance(value, CodeType) else str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
        for value in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return " ".join(f"{key} {code_of(value.__code__)}" for key, value in vars(kind).items() if inspect.isfunction(value))
