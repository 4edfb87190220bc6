"""Fingerprints of the user's models and functions: a hash of everything that their outputs can depend on.

A hash that misses a part of a model would give two models the same fingerprint, and a store would return the
proof for one as that for the other. So only data that can be read completely are hashed: numbers, arrays,
weights and collections of these; code with everything it closes over and reads; objects of Python classes
with all of their attributes; and objects of the libraries in KNOWN with the state that pickle would store.
For everything else there is no hash, but the name of the first such part: files and services that code opens,
sessions, and objects implemented in other languages.

No code of the user is executed and nothing is pickled: attributes are read from where Python stores them, not
through `__getattr__`, properties or `__reduce__`. The number of objects and bytes is limited; larger data
count as not hashable.

Strings that are hashed are part of stored fingerprints and must not change.
"""

import functools
import hashlib
import inspect
import io
import sys
import types
import uuid
import weakref
import zipfile
from abc import ABCMeta
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from holdfast.network.code_inspection import (
    BEYOND,
    BY_NAME,
    HIDDEN,
    KNOWN,
    NOT_CALLED,
    READING,
    SHOWING,
    NotHashableError,
    check_operators,
    check_reading,
    closure_cells,
    has_hidden_state,
    instance_state,
    is_bookkeeping,
    is_filled,
    is_foreign,
    is_installed,
    is_numpy_ufunc,
    is_of_known_library,
    library_of,
    names_read,
    package_version,
    pickled_state,
)
from holdfast.network.fingerprint import code_of, each_row, of_tensors, of_text

# Types whose `repr` determines the value.
PLAIN = (
    *(type(None), type(...), type(NotImplemented), bool, float, complex, Fraction, range, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme),
)
COLLECTIONS = (dict, list, tuple, set, frozenset)
NUMBERS = (int, float, complex, str, bytes, bytearray)
TENSORS = (Tensor, nn.Parameter, getattr(nn, "Buffer", nn.Parameter))
# The attributes with the hooks of a module, and suffixes of the attributes with their flags.
HOOKS = tuple(
    name
    for name, value in vars(nn.Module()).items()
    if name.endswith("_hooks") and type(value) is OrderedDict
)
HOOK_FLAGS = ("_with_kwargs", "_always_called")
# Largest number of objects that are hashed; this many take about half a minute (chosen by hand).
MOST_OBJECTS = 2_000_000
# Largest number of bytes in tensors, arrays, code and text that are hashed; this many take about half a
# minute (chosen by hand).
MOST_BYTES = 2**35
# Values that cannot be hashed, by their ids. They are kept alive, so that no other object gets the same id.
_unhashed: dict[int, Any] = {}
# Part of the hash of values that cannot be hashed, so that it differs in every process.
PROCESS = uuid.uuid4().hex


def hash_callable(value: Any) -> tuple[str, str]:
    """The hash of everything that a function or module reads, and ""; or "", and a description of a part that
    cannot be hashed."""
    name = (
        value.__qualname__
        if isinstance(value, types.FunctionType | types.MethodType)
        else type(value).__qualname__
    )
    try:
        walk = _Walk()
        digest = walk.of(value, name)
        walk.check_names()
    except NotHashableError as error:
        return "", str(error)
    except RecursionError:
        return "", f"{name}, which is nested too deep,"
    return digest, ""


def of_value(value: Any) -> str:
    """The hash of a part of a question: numbers, texts, tensors, functions and collections of them.

    A value that cannot be hashed gets a hash that is different in every process.
    """
    if isinstance(value, Tensor):
        return of_tensors({"": value})
    if is_dataclass(value) and not isinstance(value, type):
        return of_text(
            f"{type(value).__qualname__} "
            f"{[(f.name, of_value(getattr(value, f.name))) for f in fields(value)]}"
        )
    if isinstance(value, Mapping):
        return of_text(str([(str(key), of_value(part)) for key, part in value.items()]))
    if isinstance(value, list | tuple):
        return of_text(str([of_value(part) for part in value]))
    if type(value) in (*PLAIN, int, str, bytes):
        return of_text(f"{type(value).__name__} {value!r}")
    digest, missed = hash_callable(value)
    if not missed:
        return digest
    _unhashed[id(value)] = value
    return of_text(f"not hashed {PROCESS} {id(value)}")


def of_rows(first: str, tensors: Sequence[Tensor]) -> list[str]:
    """For every row of tensors with a common batch axis, `of_value` of [first, the row of each tensor]."""
    begun = of_value(first)
    return [of_text(str([begun, *row])) for row in zip(*map(each_row, tensors), strict=True)]


class _Walk:
    """A recursive traversal of everything that a value consists of.

    The arguments `where` of its methods describe a value to the user.

    Attributes:
        _known: hashes of traversed objects by their ids.
        _kept: these objects, kept alive so that their ids remain unique.
        _bytes: number of bytes hashed.
        _classes: hashes of classes of modules.
        _names: all names that the traversed code uses.
        _constructor_names: names that constructors use; they count only if the code can create modules.
        _doubtful: methods of modules that cannot be hashed, with the reason; they are ignored if no code
            names them.
        _libraries: libraries that are stored as values, so that any of the code may call them.
    """

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._kept: list[Any] = []
        self._bytes = 0
        self._classes: dict[type, str] = {}
        self._names: dict[str, None] = {}
        self._constructor_names: dict[str, None] = {}
        self._doubtful: dict[str, str] = {}
        self._libraries: list[types.ModuleType] = []

    def of(self, value: Any, where: str) -> str:
        """The hash of a value; NotHashableError if a part of it cannot be hashed."""
        kind = type(value)
        if kind in PLAIN:
            return of_text(f"{kind.__name__} {value!r}")
        if kind is int:
            return of_text(f"int {value:x}")
        if kind in (str, bytes):
            self._count(len(value), where)
            return of_text(f"{kind.__name__} {value!r}")
        if id(value) not in self._known:
            if len(self._known) >= MOST_OBJECTS:
                raise NotHashableError(f"{where}, after {MOST_OBJECTS:,} objects,")
            self._kept.append(value)
            # The hash of the object where it is part of itself.
            self._known[id(value)] = f"the {len(self._known)}th"
            self._known[id(value)] = self._hash_object(value, kind, where)
        return self._known[id(value)]

    def check_names(self) -> None:
        """Raise NotHashableError if a method that cannot be hashed may be called, or a library stored as a
        value may read files."""
        if any(word in self._names for word in SHOWING):
            self._names |= self._constructor_names
        by_text = any(name in self._names for name in BY_NAME)
        for name, why in self._doubtful.items():
            if (
                by_text
                or name in self._names
                or (name in NOT_CALLED and any(word in self._names for word in SHOWING))
            ):
                raise NotHashableError(why)
        for module in self._libraries:
            check_reading(module, self._names)

    def _count(self, size: int, where: str) -> None:
        self._bytes += size
        if self._bytes > MOST_BYTES:
            raise NotHashableError(f"{where}, after {MOST_BYTES >> 30} GiB,")

    def _hash_object(self, value: Any, kind: type, where: str) -> str:
        if issubclass(kind, Tensor):
            return self._tensor(value, kind, where)
        if issubclass(kind, np.generic) and is_of_known_library(kind):
            return self._array(np.asarray(value), where)
        if kind in (np.ndarray, np.memmap):
            return self._array(value, where)
        if issubclass(kind, nn.Module):
            return self._module(value, kind, where)
        if issubclass(kind, types.ModuleType):
            return self._library(value, (), where)
        if kind is types.MappingProxyType:
            return of_text(f"dict {self._items(dict(value), where)}")
        if kind is types.MethodType:
            return of_text(f"{self.of(value.__self__, where)} {self.of(value.__func__, where)}")
        if kind is types.FunctionType:
            return self._function(value, where)
        if kind in (types.BuiltinFunctionType, types.MethodWrapperType):
            holder = value.__self__
            named = self._hash_named(value, where)
            return of_text(
                f"{named} {'' if isinstance(holder, types.ModuleType) else self.of(holder, where)}"
            )
        if kind in (weakref.ref, weakref.ReferenceType):
            return of_text(f"reference {self.of(value(), where)}")
        if kind is types.CodeType:
            return self._code(value, where)
        if kind is types.CellType:
            return self.of(value.cell_contents if is_filled(value) else None, where)
        if issubclass(kind, type):
            return of_text(
                f"{self._class(value, where)} {'' if kind in (type, ABCMeta) else self.of(kind, where)}"
            )
        if kind is inspect.Signature:
            return of_text(f"signature {self._parameters(value, where)}")
        if kind in (staticmethod, classmethod):
            return of_text(f"{kind.__name__} {self.of(value.__func__, where)}")
        if kind is property:
            return of_text(
                f"property {[self.of(part, where) for part in (value.fget, value.fset, value.fdel)]}"
            )
        if kind is functools.cached_property:
            return of_text(f"cached {self.of(value.func, where)}")
        if kind is functools._lru_cache_wrapper:
            return of_text(f"cached {self.of(vars(value).get('__wrapped__'), where)}")
        for base in (*COLLECTIONS, *NUMBERS):
            own = kind is base or (base is dict and kind is OrderedDict)
            if own or (issubclass(kind, base) and not is_foreign(kind)):
                more = ""
                if not own:
                    self._check_python(kind, base, where)
                    more = f"{self._class(kind, where)} {self._attributes(value, kind, where)}"
                return of_text(f"{base.__name__} {self._content(value, base, where)} {more}")
        return self._object(value, kind, where)

    def _parameters(self, signature: inspect.Signature, where: str) -> list[tuple[str, int, str]]:
        """The names, kinds and defaults of a signature, which a decorator may keep. Annotations are no code."""
        empty = inspect.Parameter.empty
        return [
            (
                one.name,
                int(one.kind),
                "" if one.default is empty else self.of(one.default, f"{one.name} of {where}"),
            )
            for one in signature.parameters.values()
        ]

    def _content(self, value: Any, base: type, where: str) -> str:
        """The content of a collection, number or text, read without the methods of the user's subclass."""
        if base is dict:
            return self._items(
                OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value), where
            )
        if base in (set, frozenset):
            members: Iterable[Any] = (set if base is set else frozenset).__iter__(value)
            return str(sorted(self.of(part, where) for part in members))
        if base in (list, tuple):
            members = (list if base is list else tuple).__iter__(value)
            return str([self.of(part, f"{where}[{i}]") for i, part in enumerate(members)])
        if base is bytearray:
            return self.of(bytes(memoryview(value)), where)
        plain: dict[type, Callable[[Any], Any]] = {
            int: int.__int__,
            float: float.__float__,
            complex: complex.__complex__,
            str: str.__str__,
            bytes: bytes.__bytes__,
        }
        return self.of(plain[base](value), where)

    def _items(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]], where: str) -> str:
        pairs = items.items() if isinstance(items, dict) else items
        return str(
            [
                (
                    self.of(key, where),
                    self.of(part, f"{where}[{key!r}]" if type(key) in (str, int) else where),
                )
                for key, part in pairs
            ]
        )

    def _tensor(self, value: Tensor, kind: type, where: str) -> str:
        """A tensor by its dtype, shape, values and attributes.

        Of an expanded axis only one copy is hashed.
        """
        if (
            kind not in TENSORS
            or value.layout is not torch.strided
            or value.is_quantized
            or value.is_meta
            or is_lazy(value)
        ):
            raise NotHashableError(f"{where} (a tensor of the kind {kind.__name__}, {value.layout})")
        plain = value.detach().resolve_conj().resolve_neg()
        expanded = [axis for axis, step in enumerate(plain.stride()) if step == 0 and plain.shape[axis] > 1]
        for axis in expanded:
            plain = plain.narrow(axis, 0, 1)
        self._count(plain.numel() * plain.element_size(), where)
        more = {
            name: part
            for name, part in vars(value).items()
            if name not in ("_is_param", "_is_hf_initialized")
        }
        if kind is Tensor and value.is_leaf and value.grad is not None:
            more["grad"] = value.grad
        attributes = self._items(more, where) if more else ""
        values = of_tensors({"": plain})
        return of_text(f"{kind.__name__} {tuple(value.shape)} {expanded} {values} {attributes}")

    def _array(self, value: "np.ndarray[Any, Any]", where: str) -> str:
        """An array by its dtype, shape and values. Of an expanded axis only one copy is hashed."""
        expanded = [axis for axis, step in enumerate(value.strides) if step == 0 and value.shape[axis] > 1]
        one: Any = np.asarray(
            value[tuple(slice(0, 1) if axis in expanded else slice(None) for axis in range(value.ndim))],
            dtype=value.dtype,
        )
        self._count(one.nbytes, where)
        begin = f"{value.dtype.str} {value.dtype.name} {value.shape} {expanded}"
        if value.dtype.names:  # the bytes between the fields of a record are undefined
            return of_text(
                f"{begin} "
                f"{[(name, self._array(np.asarray(value[name]), where)) for name in value.dtype.names]}"
            )
        if value.dtype.hasobject:
            return of_text(f"{begin} {self.of(one.tolist(), where)}")
        data = np.ascontiguousarray(one).reshape(-1).view(np.uint8).data if one.nbytes else b""
        return of_text(f"{begin} {hashlib.sha256(data).hexdigest()}")

    def _module(self, module: nn.Module, kind: type, where: str) -> str:
        """A module by the code of its class, its weights, submodules and attributes of any name, and its
        hooks in their order."""
        if kind.__name__ == "GuardsFn" and is_foreign(kind):
            return of_text("GuardsFn")  # part of an exported program; it raises an exception or does nothing
        own = instance_state(module, kind, where)
        own.pop("_compiled_call_impl", None)  # the module itself, compiled
        if issubclass(kind, torch.jit.ScriptModule):
            if not is_foreign(kind):
                raise NotHashableError(f"{where} (a class derived from a script, {kind.__qualname__})")
            code = self._script(module, where)
            shown = {name: part for name, part in own.items() if name[0] != "_" or "hook" in name}
            own = {name: part for name, part in shown.items() if not isinstance(part, torch.ScriptMethod)}
        else:
            code = self._class_of_a_module(kind, where)
        if issubclass(kind, fx.GraphModule):  # its class has the code generated from the graph
            for name in (
                "_graph",
                "meta",
                "_tracer_cls",
                "_tracer_extras",
                "_graphmodule_cls_name",
                "shape_env",
            ):
                own.pop(name, None)
        hooks = []  # without their keys, which count all hooks of the process
        for name in HOOKS:
            held = own.pop(name, {})
            flags = [[key in own.get(f"{name}{flag}", {}) for key in held] for flag in HOOK_FLAGS]
            hooks.append((name, [self.of(hook, where) for hook in held.values()], flags))
            for flag in HOOK_FLAGS:
                own.pop(f"{name}{flag}", None)
        kept = [
            (name, self.of(part, f"{where}.{name}" if name[0] != "_" else where))
            for name, part in own.items()
        ]
        return of_text(f"{code} {hooks} {kept}")

    def _script(self, module: Any, where: str) -> str:
        """A script by the code, constants, weights and attributes that torch would write to a file, without
        debug information."""
        try:
            file = zipfile.ZipFile(io.BytesIO(module.save_to_buffer()))
        except Exception as error:
            raise NotHashableError(f"{where} (a script that torch cannot write)") from error
        names = [name for name in file.namelist() if not name.endswith((".debug_pkl", "serialization_id"))]
        return str(
            [(name.partition("/")[2], hashlib.sha256(file.read(name)).hexdigest()) for name in sorted(names)]
        )

    def _class_of_a_module(self, kind: type, where: str) -> str:
        """`_class` for a class of modules, computed once."""
        if kind not in self._classes:
            self._classes[kind] = self._class(kind, where, of_a_module=True)
        return self._classes[kind]

    def _function(self, function: types.FunctionType, where: str) -> str:
        """A function of a known library by its name and closure.

        Any other function is hashed by its code and everything that the code reads.
        """
        library = str(function.__globals__.get("__name__"))
        if (
            library.partition(".")[0] in KNOWN
            and vars(sys.modules.get(library, types)) is function.__globals__
        ):
            name_in_code = function.__code__.co_qualname
            if function.__closure__ is None or not (function.__dict__ or "<locals>" in name_in_code):
                return self._hash_named(function, where)
            # The closure may contain a function of the user that this one wraps.
            cells = [self.of(cell, f"{name} of {where}") for name, cell in closure_cells(function)]
            defaults = self.of((function.__defaults__, function.__kwdefaults__), where)
            return of_text(f"{library}.{name_in_code} {cells} {defaults}")
        names = dict(names_read(function.__code__))
        self._names.update(dict.fromkeys(name for name, how in names.items() if how != "import"))
        for name in names:
            if name in HIDDEN:
                raise NotHashableError(f"data that {where} reads with {name}")
        parts = [self._code(function.__code__, where)]
        for name, cell in closure_cells(function):
            content = cell.cell_contents if is_filled(cell) else None
            parts.append(f"{name} {self._global(content, names, f'{name} of {where}')}")
        parts.append(
            self.of(
                (function.__defaults__, function.__kwdefaults__, function.__dict__), f"a default of {where}"
            )
        )
        for name, how in sorted(names.items()):
            if how == "import":
                self._known_library(name.partition(".")[0], f"{name}, which {where} imports")
            elif how in ("global", "attribute") and name in function.__globals__:
                content = function.__globals__[name]
                parts.append(f"{name} {self._global(content, names, f'{name} of {function.__module__}')}")
            elif how == "global" and name in BEYOND:
                raise NotHashableError(f"data that {where} reads with {name}()")
        return of_text(" ".join(parts))

    def _code(self, code: types.CodeType, where: str) -> str:
        self._count(len(code.co_code), where)
        check_operators(code, where)
        return of_text(code_of(code))

    def _global(self, value: Any, names: Mapping[str, str], where: str) -> str:
        """The value of a global variable or closure.

        Of a Python module, only the parts that the code names are hashed.
        """
        return (
            self._library(value, names, where)
            if issubclass(type(value), types.ModuleType)
            else self.of(value, where)
        )

    def _library(self, module: types.ModuleType, names: Iterable[str], where: str) -> str:
        """A library by its name and version; a module of the user by the values that the code names."""
        name = module.__name__
        top = name.partition(".")[0]
        if type(module) is types.ModuleType and sys.modules.get(name) is not module:
            raise NotHashableError(f"{where} (the module {name}, which is not imported under that name)")
        if is_installed(module):
            self._known_library(top, where)
            check_reading(module, names)
            if not names:
                self._libraries.append(module)
            return f"{name} {package_version(top)}"
        if not names or any(word in names for word in BY_NAME):
            raise NotHashableError(f"{where} (the module {name}, of which anything may be read)")
        values = [
            (part, self._part(vars(module)[part], names, f"{name}.{part}"))
            for part in sorted({*names} & vars(module).keys())
        ]
        return f"{name} {values}"

    def _part(self, value: Any, names: Iterable[str], where: str) -> str:
        if not issubclass(type(value), types.ModuleType):
            return self.of(value, where)
        if id(value) not in self._known:  # modules may refer to each other
            self._known[id(value)] = f"the module {value.__name__}"
            return self._library(value, names, where)
        return self._known[id(value)]

    def _class(self, kind: type, where: str, *, of_a_module: bool = False) -> str:
        """A class by its code and attributes and those of its bases, down to the classes of libraries.

        of_a_module: methods that cannot be hashed are ignored, unless some code names them or a library calls
            them.
        """
        parts = []
        foreign = [part for part in kind.__mro__ if is_foreign(part)]
        for part in kind.__mro__:
            parts.append(f"{part.__module__}.{part.__qualname__}")
            if part in foreign:
                self._known_library(library_of(part), where)
                continue
            for name, value in vars(part).items():
                if is_bookkeeping(name, value):
                    continue
                path = f"{part.__qualname__}.{name}"
                method = type(value) in (types.FunctionType, classmethod, staticmethod)
                called = name[:2] == "__" or name == "forward" or any(name in vars(base) for base in foreign)
                if of_a_module and method and (not called or name in NOT_CALLED):
                    parts.append(f"{name} {self._method(name, value, path)}")
                else:
                    parts.append(f"{name} {self.of(value, path)}")
        return of_text(" ".join(parts))

    def _method(self, name: str, value: Any, where: str) -> str:
        """A method that may never be called.

        If it cannot be hashed, everything that was recorded during its traversal is removed. The names that a
        constructor uses are stored separately, because they count only if the code creates further modules.
        """
        kept: tuple[dict[Any, Any], ...] = (self._known, self._names, self._doubtful, self._classes)
        before = [len(part) for part in kept]
        libraries = len(self._libraries)
        try:
            digest, why = self.of(value, where), ""
        except NotHashableError as error:
            digest, why = "not hashed", str(error)
        if why or name in NOT_CALLED:
            if not why:
                self._constructor_names.update(dict.fromkeys(list(self._names)[before[1] :]))
            for part, count in zip(kept, before, strict=True):
                for key in list(part)[count:]:
                    del part[key]
            del self._libraries[libraries:]
        if why:
            self._doubtful[name] = why
        return digest

    def _attributes(self, value: Any, kind: type, where: str) -> str:
        """All attributes of an instance of a Python class."""
        return str(
            [
                (self.of(name, where), self.of(part, f"{where}.{name}"))
                for name, part in instance_state(value, kind, where).items()
            ]
        )

    def _check_python(self, kind: type, base: type, where: str) -> None:
        """Raise NotHashableError if instances of the class have state that Python cannot read, except the
        content of `base`."""
        shown = (object, base, OrderedDict) if base is dict else (object, base)
        compiled = next(
            (
                part
                for part in kind.__mro__
                if part not in shown and is_foreign(part) and has_hidden_state(part)
            ),
            None,
        )
        if compiled is not None:
            raise NotHashableError(
                f"{where} ({kind.__qualname__}, which is derived from {compiled.__qualname__})"
            )

    def _object(self, value: Any, kind: type, where: str) -> str:
        """An object by its class and its state."""
        if not is_foreign(kind):
            self._check_python(kind, object, where)
            return of_text(f"{self._class(kind, where)} {self._attributes(value, kind, where)}")
        if (library_of(value) in KNOWN and hasattr(value, "__qualname__")) or (
            isinstance(value, np.ufunc) and is_numpy_ufunc(value)
        ):
            return self._hash_named(value, where)  # a compiled function or similar
        of_class = self._class(kind, where)
        if library_of(kind) == "holdfast" and isinstance(own := getattr(value, "fingerprint", None), str):
            if not own:
                raise NotHashableError(where)
            return of_text(f"{of_class} {own}")  # a network, whose count of queries changes
        try:
            pickled = pickled_state(value, kind)
        except Exception:  # the class cannot be pickled
            pickled = ""
        if isinstance(pickled, str):  # pickle would store only a name
            raise NotHashableError(f"{where} ({kind.__qualname__})")
        make, arguments, state, *items = (*pickled, None, None, None)[:5]
        content = [arguments, state, *(None if part is None else list(part) for part in items)]
        self._kept.append(content)
        return of_text(f"{of_class} {self.of(make, where)} {self.of(content, where)}")

    def _hash_named(self, function: Any, where: str) -> str:
        """A function of a known library by its name."""
        name = getattr(function, "__qualname__", repr(function))
        if library_of(function) and library_of(function) not in KNOWN:
            self._known_library(library_of(function), where)
        if name in READING or (name in BEYOND and library_of(function) == "builtins"):
            raise NotHashableError(f"data that {name} reads ({where})")
        return of_text(f"{getattr(function, '__module__', '')}.{name}")

    def _known_library(self, name: str, where: str) -> None:
        if name.lstrip("_") not in KNOWN:
            raise NotHashableError(f"{where} ({name})")
