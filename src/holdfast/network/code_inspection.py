"""Inspection of Python code, classes and objects without running any of their code."""

import copyreg
import dis
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from importlib import metadata
from itertools import pairwise
from typing import Any

import numpy as np

# Libraries whose functions depend only on their arguments, and whose objects keep all of their state where
# pickle finds it.
KNOWN = (
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
    "abc",
    "bisect",
    "builtins",
    "cmath",
    "collections",
    "copy",
    "copyreg",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "logging",
    "math",
    "numbers",
    "operator",
    "re",
    "statistics",
    "string",
    "types",
    "typing",
    "warnings",
)
# Built-in functions that read data outside of the program, or run other code.
BEYOND = (
    "open",
    "exec",
    "eval",
    "compile",
    "input",
    "__import__",
    "globals",
    "locals",
    "vars",
)
# Functions of libraries that read files.
READING = (
    "load",
    "loads",
    "fromfile",
    "memmap",
    "loadtxt",
    "genfromtxt",
    "hub",
    "read_csv",
    "read_parquet",
    "read_pickle",
)
# Attributes through which code reads objects that it does not name.
HIDDEN = (
    "__globals__",
    "__builtins__",
    "f_globals",
    "f_locals",
    "f_back",
    "__subclasses__",
    "__closure__",
    "__loader__",
    "gi_frame",
)
# Functions and attributes that read an attribute whose name is computed.
BY_NAME = (
    "getattr",
    "attrgetter",
    "methodcaller",
    "__getattribute__",
    "__dict__",
    "dir",
    "getattr_static",
)
# Parts of torch.ops that are defined by the libraries in KNOWN.
OPERATORS = (
    "aten",
    "prim",
    "prims",
    "higher_order",
    "torchvision",
    "torchaudio",
)
# Attributes that Python itself adds to classes.
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
# Methods that do not take part in an evaluation unless some code names them.
NOT_CALLED = (
    "__init__",
    "__repr__",
    "__str__",
    "__del__",
    "extra_repr",
)
# Functions through which code calls methods of NOT_CALLED without naming them.
SHOWING = (
    "repr",
    "str",
    "format",
    "print",
    "type",
    "__class__",
)
# Types of the attributes of classes that are implemented in C.
COMPILED = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


class NotHashableError(Exception):
    """A function or module reads data that cannot be hashed. The message names the data."""


def names_read(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """The names that code uses, including functions inside it, each with its use: "attribute", "global" or
    "import".

    Attributes come first, so that a dictionary of the result keeps "global" for a name with both uses.
    """
    yield from ((name, "attribute") for name in code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from names_read(inner)
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval, "global"
        elif step.opname == "IMPORT_NAME":
            yield step.argval, "import"


def instance_state(value: Any, kind: type, where: str) -> dict[str, Any]:
    """The attributes in the dictionary and the slots of an instance, read without `__getattr__` and
    properties."""
    found: dict[str, Any] = {}
    for part in kind.__mro__:
        for name, slot in vars(part).items():
            if name == "__dict__":
                own = slot.__get__(value, kind) if type(slot) is types.GetSetDescriptorType else None
                if type(own) is not dict:
                    raise NotHashableError(f"{where} ({kind.__qualname__}, which hides its attributes)")
                found |= own
            elif type(slot) is types.MemberDescriptorType and not is_foreign(part):
                try:
                    found[f"{part.__qualname__}.{name}"] = slot.__get__(value, kind)
                except AttributeError:  # an unset slot
                    continue
    return found


def pickled_state(value: Any, kind: Any) -> Any:
    """The state that pickle would store of an object of a library's class."""
    return (
        copyreg.dispatch_table[kind](value)
        if kind in copyreg.dispatch_table
        else kind.__reduce_ex__(value, 4)
    )


def check_operators(code: types.CodeType, where: str) -> None:
    """Raise NotHashableError if code calls custom operators of torch.ops, whose implementation is
    elsewhere."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    for step, following in pairwise((*steps, None)):
        if step is not None and step.opname == "LOAD_ATTR" and step.argval == "ops":
            name = following.argval if following is not None and following.opname == "LOAD_ATTR" else ""
            if name not in OPERATORS:
                raise NotHashableError(f"the operators torch.ops.{name or '...'}, which {where} calls,")
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            check_operators(inner, where)


def check_reading(module: types.ModuleType, names: Iterable[str]) -> None:
    """Raise NotHashableError if the names that code uses include a function of this library that reads
    files."""
    for name in READING:
        if name in names and name in vars(module):
            raise NotHashableError(f"a file that {module.__name__}.{name} reads")


def closure_cells(function: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    """The names and cells of the variables that a function closes over."""
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)


def is_numpy_ufunc(function: np.ufunc) -> bool:
    """Whether a ufunc is numpy's own.

    A ufunc made from a Python function does not give access to that function.
    """
    return getattr(np, function.__name__, None) is function


def library_of(of: Any) -> str:
    """The top-level package of a class or function."""
    return str(getattr(of, "__module__", None) or "").partition(".")[0].lstrip("_")


def is_of_known_library(kind: type) -> bool:
    """Whether a class belongs to a library in KNOWN."""
    return is_foreign(kind) and library_of(kind) in KNOWN


def is_foreign(kind: type) -> bool:
    """Whether a class belongs to Python or an installed package, and really is in the module that it
    names."""
    module = sys.modules.get(kind.__module__)
    if module is None or not is_installed(module):
        return False
    found: Any = module
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind or not is_python_class(kind)


def is_python_class(kind: type) -> bool:
    """Whether the class was written in Python: it has Python functions, a dictionary or slots."""
    return (
        any(type(value) is types.FunctionType for value in vars(kind).values())
        or "__dict__" in vars(kind)
        or "__slots__" in vars(kind)
    )


def has_hidden_state(kind: type) -> bool:
    """Whether instances of the class may have state that Python cannot read."""
    shown = ("__dict__", "__weakref__", *(vars(kind).get("__slots__") or ()))
    hidden = (types.GetSetDescriptorType, types.MemberDescriptorType)
    return any(
        isinstance(v, COMPILED) or (isinstance(v, hidden) and name not in shown)
        for name, v in vars(kind).items()
    )


@functools.lru_cache(maxsize=256)
def package_version(name: str) -> str:
    """The version of an installed package; of a module of the standard library the version of Python."""
    try:
        return metadata.version({"sklearn": "scikit-learn"}.get(name, name))
    except metadata.PackageNotFoundError:
        return ".".join(map(str, sys.version_info[:3]))


def is_installed(module: types.ModuleType) -> bool:
    """Whether a module belongs to Python or an installed package, or is compiled, so that it is not the
    user's own."""
    file = getattr(module, "__file__", None) or ""
    top = module.__name__.partition(".")[0]
    standard = top in sys.stdlib_module_names and module.__name__ != "__main__"
    packaged = (
        "site-packages" in file
        or "dist-packages" in file
        or (not file.endswith(".py") and module.__name__ != "__main__")
    )
    return standard or packaged or top == "holdfast"


def is_filled(cell: types.CellType) -> bool:
    """Whether the variable of a closure has a value."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def is_bookkeeping(name: str, value: Any) -> bool:
    """Whether an attribute of a class is one that Python adds, or a descriptor of a slot."""
    return name in PYTHONS_OWN or isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType)
