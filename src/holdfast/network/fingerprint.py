"""Hashes by which a stored run recognises its model, data and question."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from types import CodeType

import torch
from torch import Tensor, fx
from torch.nn.parameter import is_lazy


def of_text(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def of_file(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def of_output(name: str | None) -> str:
    """Hash of the name of the measured output; "" if none was chosen."""
    return "" if name is None else of_text(f"output: {name}")


def combine_hashes(main: str, *others: str) -> str:
    """One hash of several; the main one itself if all others are empty."""
    parts = [main, *filter(None, others)]
    return main if len(parts) == 1 else of_text("\n".join(parts))


def of_tensors(named: Mapping[str, Tensor], begin: str = "") -> str:
    """SHA-256 of the names, dtypes, shapes and values of tensors, in their order. Lazy tensors are left out.

    begin: text that is hashed first.
    """
    digest = hashlib.sha256(begin.encode())
    for name, value in named.items():
        if is_lazy(value):
            continue
        digest.update(_tensor_header(name, value.dtype, tuple(value.shape)))
        flat = value.detach().cpu().contiguous().reshape(-1)
        if flat.stride(0) != 1:  # a single number of an expanded tensor
            flat = flat.clone(memory_format=torch.contiguous_format)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def each_row(tensor: Tensor) -> list[str]:
    """For every row of a tensor the hash `of_tensors` of the row."""
    shape, found = tuple(tensor.shape[1:]), []
    header = hashlib.sha256(_tensor_header("", tensor.dtype, shape))
    # A contiguous copy, because an expanded tensor cannot be viewed as bytes.
    rows = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    for row in rows.reshape(len(tensor), math.prod(shape)).view(torch.uint8).numpy():
        digest = header.copy()
        digest.update(row.data)
        found.append(digest.hexdigest())
    return found


def _tensor_header(name: str, kind: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{name} {kind} {shape}".encode()


def of_program(program: torch.export.ExportedProgram) -> str:
    """Hash of a traced program: its operators with their arguments, its weights and its constants."""
    constants = {key: value for key, value in program.constants.items() if isinstance(value, Tensor)}
    return of_tensors({**program.state_dict, **constants}, begin=str(program.graph))


def of_graph(module: fx.GraphModule) -> str:
    """Hash of recorded operators: their arguments, and the weights and constants of the module."""
    return of_tensors(dict(module.named_buffers(remove_duplicate=False)), begin=str(module.graph))


def code_of(code: CodeType) -> str:
    """The instructions, names, constants and signature of code, including functions inside it, without file
    and line numbers."""
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
