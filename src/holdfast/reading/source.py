"""Import code that the user names, and read arrays from files."""

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput, HoldfastError, UnreadableFile
from holdfast.files import read_array
from holdfast.foreign_text import first_line
from holdfast.formatting import suggest
from holdfast.network import Network

OWN = "holdfast.datasets."  # Models and data that ship with holdfast: any file may name them.


@dataclass(frozen=True)
class _Confirmed:
    """The names of code that the user typed, and a hint for every other name."""

    names: frozenset[str]
    hint: str


# None: the user typed every name.
_confirmed: ContextVar[_Confirmed | None] = ContextVar("confirmed", default=None)


@contextmanager
def import_only(names: Iterable[str] | None, hint: str = "") -> Iterator[None]:
    """Refuse, inside this block, to import any code but `names`, which the user typed; None: import any code.

    Options from a file (a run, a saved monitor) are used inside such a block, so that the author of the file
    does not choose which code runs. hint: how the user can confirm a name.
    """
    token = _confirmed.set(None if names is None else _Confirmed(frozenset(names), hint))
    try:
        yield
    finally:
        _confirmed.reset(token)


def call(target: str, what: str) -> Any:
    """The object package.module:name; a class or function is called without arguments."""
    factory, name = import_named(target, what)
    if isinstance(factory, nn.Module | Network) or _is_fitted(factory):
        return factory
    try:
        return factory()
    except HoldfastError:
        raise
    except Exception as error:
        raise BadInput(
            f"{what} {target!r}: {name}() failed ({_describe_error(error)}). It was called without "
            "arguments (if it needs some, name a function that calls it with them); --debug shows where it "
            "failed."
        ) from error


def import_named(target: str, what: str) -> tuple[Any, str]:
    """Import package.module:name, also from the working folder; returns the object and its name."""
    confirmed = _confirmed.get()
    if confirmed is not None and target not in confirmed.names and not target.startswith(OWN):
        raise BadInput(
            f"{what} {target!r} is code, and a file names it, not you: it is not run. {confirmed.hint}"
        )
    module_name, _, name = target.partition(":")
    try:
        module = _import(module_name)
    except Exception as error:  # Any line of the user's code may fail.
        hint = f" Write {module_name[:-3].replace('/', '.')}:{name}." if module_name.endswith(".py") else ""
        raise BadInput(
            f"{what} {target!r}: cannot import {module_name} ({_describe_error(error)}).{hint}"
        ) from error
    found: Any = vars(module).get(name)
    if found is None:
        public = [own for own, value in vars(module).items() if callable(value) and not own.startswith("_")]
        raise BadInput(f"{what} {target!r}: {module_name} has no {name!r}.{suggest(name, public)}")
    if not callable(found) and not isinstance(found, Network) and not _is_fitted(found):
        raise BadInput(f"{what} {target!r}: {name} is {type(found).__name__}, not a function.")
    return found, name


def _import(name: str) -> ModuleType:
    """Import a module that the user named, from the working folder too.

    The working folder stays on sys.path only if the module came from it, since its functions may import
    neighbouring modules later. Otherwise it is removed: a file `onnxruntime.py` in a folder of data must not
    be imported by holdfast or torch.
    """
    folder = os.getcwd()
    added = folder not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
        added = added and not _lies_in(sys.modules[name.partition(".")[0]], Path(folder))
        return module
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Whether a top-level module or package is a file or folder in `folder`."""
    packages = [Path(path).resolve().parent for path in getattr(module, "__path__", ())]
    file = getattr(module, "__file__", None)
    return folder.resolve() in (packages or ([Path(file).resolve().parent] if file else []))


def _is_fitted(found: object) -> bool:
    """Whether the object is an estimator or a scaler, not its class."""
    answers = hasattr(found, "predict") or hasattr(found, "transform")
    return answers and hasattr(found, "fit") and not isinstance(found, type)


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error, silent='no message')}"


def array(path: Path, what: str) -> Tensor:
    """The array of a .npy file; what: the expected content, for messages."""
    found = read_array(path, f"Write it by numpy.save, with plain {what}.")
    if found.dtype.kind not in "biufc":
        raise UnreadableFile(f"{path}: holds {found.dtype}, expected plain {what}.")
    return torch.from_numpy(found.astype(found.dtype.newbyteorder("="), copy=False))
