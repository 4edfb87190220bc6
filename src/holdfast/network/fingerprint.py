"""Hashes by which a run knows its model, its data and its question again."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from types import CodeType

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy


def of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def of_output(name: str | None) -> str:
    """Hash of the name of the output that is measured; "" where none was chosen."""
    return "" if name is None else of_text(f"output: {name}")


def combine_hashes(main: str, *others: str) -> str:
    """One hash for all; where there are no others, the main one itself."""
    parts = [main, *filter(None, others)]
    return main if len(parts) == 1 else of_text("\n".join(parts))


def of_tensors(named: Mapping[str, Tensor], begin: str = "") -> str:
    """Names, kinds, shapes and bytes, in their order."""
    digest = hashlib.sha256(begin.encode())
    for name, value in named.items():
        if is_lazy(value):
            continue
        digest.update(_tensor_header(name, value.dtype, tuple(value.shape)))
        flat = value.detach().cpu().contiguous().reshape(-1)
        if flat.stride(0) != 1:  # of a single number that was spread out
            flat = flat.clone(memory_format=torch.contiguous_format)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def each_row(tensor: Tensor) -> list[str]:
    """For every row `of_tensors` of it alone."""
    shape, found = tuple(tensor.shape[1:]), []
    begun = hashlib.sha256(_tensor_header("", tensor.dtype, shape))
    rows = (
        tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    )  # which has strides even where it was expanded
    for row in rows.reshape(len(tensor), math.prod(shape)).view(torch.uint8).numpy():
        digest = begun.copy()
        digest.update(row.data)
        found.append(digest.hexdigest())
    return found


def _tensor_header(name: str, kind: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{name} {kind} {shape}".encode()


def of_program(program: torch.export.ExportedProgram) -> str:
    """The operators in their order with all that they were given, the weights and the constants."""
    constants = {key: value for key, value in program.constants.items() if isinstance(value, Tensor)}
    return of_tensors({**program.state_dict, **constants}, begin=str(program.graph))


def code_of(code: CodeType) -> str:
    """Instructions, names, constants and how it is called, also of functions inside; not where it stands."""
    constants = [_constant(value) for value in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    called = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {names} {called} {constants}"


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return code_of(value)
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_constant, value))}"
    return f"{[_constant(part) for part in value]}" if isinstance(value, tuple) else repr(value)
