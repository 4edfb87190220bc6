"""Checks that an estimator runs the unmodified code of its library.

Only then do its attributes determine its predictions.
"""

import sys
from types import FunctionType
from typing import Any

# Packages whose estimators are read.
LIBRARIES = ("sklearn", "xgboost", "lightgbm")


class NotReadable(Exception):
    """holdfast cannot read the structure of an estimator. The message is the reason."""


def is_unmodified(part: Any) -> bool:
    """Whether `part` is an instance of a library's class without replaced methods.

    A subclass, or an instance with its own method, may predict anything, so nothing follows from its
    attributes.
    """
    kind = type(part)
    if kind.__module__.partition(".")[0] not in LIBRARIES or not _is_found_by_name(kind):
        return False
    if any(isinstance(getattr(kind, name, None), FunctionType) for name in getattr(part, "__dict__", {})):
        return False
    functions = [
        value for base in kind.__mro__ for value in vars(base).values() if isinstance(value, FunctionType)
    ]
    return all(str(function.__module__).partition(".")[0] in LIBRARIES for function in functions)


def check_unmodified(part: Any) -> None:
    """Raise NotReadable unless `part` runs the unmodified code of its library."""
    if not is_unmodified(part):
        raise NotReadable(f"{type(part).__name__} has code of its own, which may answer anything")


def _is_found_by_name(kind: type) -> bool:
    """Whether the class is really in the module that it names."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind
