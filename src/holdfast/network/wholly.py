"""One hash for all that a function of the user reads, or what of it cannot be hashed.

A hash that misses a part of a model takes two models for one. So only what is known to be whole counts: numbers, arrays, weights,
collections of these; code with all that it closes over and reads; objects by what their class itself would keep of them (`__reduce_ex__`,
as for a pickle, which is never loaded). Libraries that compute and keep nothing are known by name. All the rest is named as not hashed:
files and services that code opens, sessions, anything behind a language that shows nothing.
"""

import copyreg
import dis
import inspect
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.network.fingerprint import code_of, of_module, of_tensors, of_text

# Their functions answer by their arguments alone, and their objects keep all that they know where a pickle would find it.
KNOWN = (
    *(
        "numpy",
        "torch",
        "torchvision",
        "torchaudio",
        "transformers",
        "timm",
        "scipy",
        "sklearn",
        "xgboost",
        "lightgbm",
        "pandas",
        "holdfast",
    ),
    *("abc", "bisect", "builtins", "cmath", "collections", "copy", "copyreg", "dataclasses", "enum", "fractions", "functools", "heapq"),
    *("itertools", "logging", "math", "numbers", "operator", "re", "statistics", "string", "types", "typing", "warnings"),
)
BEYOND = ("open", "exec", "eval", "compile", "input", "__import__", "globals", "locals", "vars")  # builtins that reach further
READING = ("load", "loads", "fromfile", "memmap", "loadtxt", "genfromtxt", "hub", "read_csv", "read_parquet", "read_pickle")
SAID = bool | int | float | str | bytes | complex | Fraction | torch.dtype | torch.device | np.generic | None  # by their words
PYTHONS_OWN = (
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__qualname__",
    "__annotations__",
    "__orig_bases__",
    "__parameters__",
    "__firstlineno__",
    "__slotnames__",
    "__static_attributes__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__abstractmethods__",
    "_abc_impl",
)


def hashed(function: Callable[..., Any]) -> tuple[str, str]:
    """The hash of all that the function reads, and ""; or "", and the first thing that cannot be hashed."""
    try:
        return _Walk().of(function, getattr(function, "__qualname__", type(function).__qualname__)), ""
    except _Missed as error:
        return "", str(error)


class _Missed(Exception):
    """Something that is read and cannot be hashed."""


class _Walk:
    """What was hashed already is known by its place, so it is kept until the end. where: how a reader finds what is spoken of."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._kept: list[Any] = []

    def of(self, value: Any, where: str) -> str:
        if isinstance(value, SAID):
            return of_text(f"{type(value).__name__} {value!r}")
        if id(value) not in self._known:
            self._kept.append(value)
            self._known[id(value)] = f"the {len(self._known)}th"  # met again while it is walked: what it holds is told there
            self._known[id(value)] = self._told(value, where)
        return self._known[id(value)]

    def _told(self, value: Any, where: str) -> str:
        if isinstance(value, Tensor):
            return of_tensors({"": value})
        if type(value) in (np.ndarray, np.memmap):
            return self._array(value, where)
        if type(value) in (dict, OrderedDict, types.MappingProxyType):
            return of_text(f"{[(self.of(key, where), self.of(part, f'{where}[{key!r}]')) for key, part in value.items()]}")
        if type(value) in (list, tuple):
            return of_text(f"{type(value).__name__} {[self.of(part, f'{where}[{place}]') for place, part in enumerate(value)]}")
        if type(value) in (set, frozenset):
            return of_text(f"set {sorted(self.of(part, where) for part in value)}")
        if isinstance(value, nn.Module):
            return self._module(value, where)
        if isinstance(value, types.MethodType):
            return of_text(f"{self.of(value.__self__, where)} {self.of(value.__func__, where)}")
        if isinstance(value, types.FunctionType):
            return self._function(value, where)
        if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            own = value.__self__
            return of_text(f"{self._named(value, where)} {'' if isinstance(own, types.ModuleType) else self.of(own, where)}")
        if isinstance(value, type):
            return self._code(value, where)
        if isinstance(value, staticmethod | classmethod):
            return self.of(value.__func__, where)
        if isinstance(value, property):
            return self.of((value.fget, value.fset), where)
        return self._object(value, where)

    def _module(self, module: nn.Module, where: str) -> str:
        """The weights and the structure, and what Python keeps beside them."""
        beside = [(self._code(type(part), where), {k: v for k, v in vars(part).items() if k[0] != "_"}) for part in module.modules()]
        traced = [str(code) for part in module.modules() if isinstance(code := getattr(part, "code", None), str)]
        return of_text(f"{of_module(module)} {traced} {[(code, self.of(kept, where)) for code, kept in beside]}")

    def _array(self, value: "np.ndarray[Any, Any]", where: str) -> str:
        if value.dtype.names:  # between the fields of a record may lie bytes that nobody wrote
            return of_text(f"{value.dtype} {[self._array(value[name], where) for name in value.dtype.names]}")
        if value.dtype.hasobject:
            return of_text(f"{value.shape} {self.of(value.tolist(), where)}")
        return of_text(f"{value.dtype} {value.shape} {np.ascontiguousarray(value).tobytes().hex()}")

    def _function(self, function: types.FunctionType, where: str) -> str:
        if str(function.__globals__.get("__name__")).partition(".")[0] in KNOWN:  # what it says of itself may be of one that it wraps
            return self._named(function, where)
        parts = [code_of(function.__code__)]
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        parts += [self.of(cell.cell_contents, f"{name} of {where}") for name, cell in cells if _filled(cell)]
        parts.append(self.of((function.__defaults__, function.__kwdefaults__, function.__dict__), f"a default of {where}"))
        names = dict(_read(function.__code__))
        for name, how in sorted(names.items()):
            if how == "import":
                self._known_library(name.partition(".")[0], f"{name}, which {where} imports")
            elif name in function.__globals__:
                parts.append(f"{name} {self._global(function.__globals__[name], names, f'{name} of {function.__module__}')}")
            elif how == "global" and name in BEYOND:
                raise _Missed(f"what {where} reads by {name}()")
        return of_text(" ".join(parts))

    def _global(self, value: Any, names: Mapping[str, str], where: str) -> str:
        """A module is known by its name if it is a library that is, else by whatever of it the code names."""
        if not isinstance(value, types.ModuleType):
            return self.of(value, where)
        if value.__name__.partition(".")[0] in KNOWN:
            for name in READING:
                if name in names and hasattr(value, name):
                    raise _Missed(f"what is read by {value.__name__}.{name}")
            return value.__name__
        if _installed(value):
            self._known_library(value.__name__, where)
            return value.__name__
        told = [(name, self.of(part, f"{value.__name__}.{name}")) for name, part in sorted(vars(value).items()) if name in names]
        return f"{value.__name__} {told}"

    def _code(self, kind: type, where: str) -> str:
        """A class: by name if a known library's, else by all that it and those above it hold."""
        parts = []
        for part in kind.__mro__:
            parts.append(f"{part.__module__}.{part.__qualname__}")
            if _library(part) in KNOWN:
                continue
            if part.__module__ in sys.modules and _installed(sys.modules[part.__module__]):
                self._known_library(_library(part), where)
                continue
            own = {name: value for name, value in vars(part).items() if not _bookkeeping(name, value)}
            parts += [f"{name} {self.of(value, f'{part.__qualname__}.{name}')}" for name, value in own.items()]
        return of_text(" ".join(parts))

    def _object(self, value: Any, where: str) -> str:
        """By its class and what that would keep of it."""
        if (_library(value) in KNOWN and hasattr(value, "__qualname__")) or (isinstance(value, np.ufunc) and _public(value)):
            return self._named(value, where)  # compiled, or of a kind of its own
        told = self._code(type(value), where)
        if _library(type(value)) == "holdfast" and isinstance(own := getattr(value, "fingerprint", None), str):
            if not own:
                raise _Missed(where)
            return of_text(f"{told} {own}")  # a network, which counts how often it is asked
        if hasattr(value, "__wrapped__"):
            return of_text(f"{told} {self.of(value.__wrapped__, where)}")
        try:
            kept = copyreg.dispatch_table[type(value)](value) if type(value) in copyreg.dispatch_table else value.__reduce_ex__(4)
        except Exception:  # whatever a class says that cannot be kept
            kept = ""
        if isinstance(kept, str):  # no more than a name
            raise _Missed(f"{where} ({type(value).__qualname__})")
        make, arguments, state, *items = (*kept, None, None, None)[:5]
        every = [arguments, state, *(None if part is None else list(part) for part in items)]
        self._kept.append(every)
        return of_text(f"{told} {self.of(make, where)} {self.of(every, where)}")

    def _named(self, function: Any, where: str) -> str:
        name = getattr(function, "__qualname__", repr(function))
        if _library(function) and _library(function) not in KNOWN:
            self._known_library(_library(function), where)
        if name in READING or (name in BEYOND and _library(function) == "builtins"):
            raise _Missed(f"what is read by {name} ({where})")
        return of_text(f"{getattr(function, '__module__', '')}.{name}")

    def _known_library(self, name: str, where: str) -> None:
        if name.lstrip("_") not in KNOWN:
            raise _Missed(f"{where} ({name})")


def _read(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Names that the code, also of functions inside, uses: attributes first, so that a global of the same name counts."""
    yield from ((name, "attribute") for name in code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _read(inner)
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval, "global"
        elif step.opname == "IMPORT_NAME":
            yield step.argval, "import"


def _public(function: np.ufunc) -> bool:
    """numpy's own: those that are made of Python functions show nothing of them."""
    return getattr(np, function.__name__, None) is function


def _library(of: Any) -> str:
    return str(getattr(of, "__module__", None) or "").partition(".")[0].lstrip("_")


def _installed(module: types.ModuleType) -> bool:
    """Not the user's own: of Python, compiled, or from a folder of packages."""
    file = getattr(module, "__file__", None) or ""
    standard = module.__name__.partition(".")[0] in sys.stdlib_module_names and module.__name__ != "__main__"
    return standard or "site-packages" in file or "dist-packages" in file or (not file.endswith(".py") and module.__name__ != "__main__")


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _bookkeeping(name: str, value: Any) -> bool:
    """What Python itself puts into classes, and where members lie."""
    return name in PYTHONS_OWN or (inspect.isdatadescriptor(value) and not isinstance(value, property))
