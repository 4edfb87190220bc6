"""What lies in files and in the user's own code."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput, HoldfastError, UnreadableFile
from holdfast.files import read_array
from holdfast.network import Network


def call(target: str, what: str) -> Any:
    """package.module:name; a class or function is called without arguments."""
    factory, name = named(target, what)
    if isinstance(factory, nn.Module | Network) or _fitted(factory):
        return factory
    try:
        return factory()
    except HoldfastError:
        raise
    except Exception as error:
        raise BadInput(
            f"{what} {target!r}: {name}() failed ({_told(error)}). It is called without arguments; --debug shows where."
        ) from error


def named(target: str, what: str) -> tuple[Any, str]:
    """package.module:name, imported from the working folder too -> something to call, or a model; and its name."""
    module_name, _, name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # any line of the user's own code may fail
        hint = f" Write {module_name[:-3].replace('/', '.')}:{name}." if module_name.endswith(".py") else ""
        raise BadInput(f"{what} {target!r}: cannot import {module_name} ({_told(error)}).{hint}") from error
    found: Any = vars(module).get(name)
    if found is None:
        raise BadInput(f"{what} {target!r}: {module_name} has no {name!r}.")
    if not callable(found) and not isinstance(found, Network) and not _fitted(found):
        raise BadInput(f"{what} {target!r}: {name} is {type(found).__name__}, not a function.")
    return found, name


def _fitted(found: object) -> bool:
    """An estimator itself, not its class."""
    return hasattr(found, "predict") and hasattr(found, "fit") and not isinstance(found, type)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"


def array(path: Path, what: str) -> Tensor:
    """The array of a .npy file. what: it should hold."""
    found = read_array(path, f"Write it by numpy.save, with plain {what}.")
    if found.dtype.kind not in "biufc":
        raise UnreadableFile(f"{path}: holds {found.dtype}, expected plain {what}.")
    return torch.from_numpy(found.astype(found.dtype.newbyteorder("="), copy=False))
