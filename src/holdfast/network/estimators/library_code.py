"""Does an estimator answer by the code of its library? Only then do its attributes say what it answers."""

import sys
from types import FunctionType
from typing import Any

LIBRARIES = ("sklearn", "xgboost", "lightgbm")  # packages whose estimators are read


class NotReadable(Exception):
    """The inside of an estimator is not what holdfast can read; the message says what it is."""


def is_unmodified(part: Any) -> bool:
    """Return whether `part` is an instance of a library's own class, and no method of it was replaced.

    A subclass, or an instance with a method of its own, may answer anything, so nothing is concluded from its attributes.
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
    """Raise NotReadable unless `part` answers by a library's own code."""
    if not is_unmodified(part):
        raise NotReadable(f"{type(part).__name__} has code of its own, which may answer anything")


def _is_found_by_name(kind: type) -> bool:
    """A class that only claims to stand in a library's module is not found there."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind
