"""The docstrings of everything in `holdfast.__all__` name every argument, so that help() and the reference do."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast.api.results import Results

# Classes that users make by class methods, with the methods that they call.
METHODS = {"Monitor": ("score", "score_all", "save"), "Network": (), "Store": ("export",)}


def public_callables() -> Iterator[tuple[str, Any, str]]:
    """Name, callable and docstring of every public function and of every way to make a public object: its
    constructor, and class methods such as `Network.from_torch`. `Monitor` and the results have methods that
    users call.
    """
    for name in hf.__all__:
        value = getattr(hf, name)
        if inspect.isfunction(value):
            yield name, value, value.__doc__ or ""
        elif inspect.isclass(value) and not issubclass(value, Exception):
            # A constructor is documented by its class, with comments beside the fields, or by itself.
            source = inspect.getsource(value) if dataclasses.is_dataclass(value) else ""
            if name not in METHODS:
                yield name, value, f"{value.__doc__}\n{value.__init__.__doc__}\n{source}"
            for key, member in vars(value).items():
                function = getattr(member, "__func__", member)
                used = isinstance(member, classmethod | staticmethod) or key in METHODS.get(name, ())
                if not key.startswith("_") and used:
                    yield f"{name}.{key}", function, function.__doc__ or ""
    for name in ("gate", "report", "summary", "to_frame"):
        function = getattr(Results, name)
        yield f"Results.{name}", function, function.__doc__ or ""


CALLABLES = list(public_callables())


def missing(function: Any, text: str) -> list[str]:
    """The arguments that the text does not describe: `name: ...`, or the name in a sentence."""
    names = [one for one in inspect.signature(function).parameters if one not in ("self", "cls")]
    return [one for one in names if not re.search(rf"(?<![\w.]){one}(?!\w)", text)]


@pytest.mark.parametrize(("name", "function", "text"), CALLABLES, ids=[name for name, _, _ in CALLABLES])
def test_every_argument_is_described(name: str, function: Any, text: str) -> None:
    assert text.strip(), f"{name} has no docstring"
    assert not missing(function, text), (
        f"{name}: its docstring does not say what {missing(function, text)} is"
    )


def test_a_missing_argument_is_seen() -> None:
    def example(norm: float, radius: float) -> None:
        """Measure in a norm."""

    assert missing(example, example.__doc__ or "") == ["radius"]


def test_continued_lines_are_indented() -> None:
    """An argument's second line stands further right than its name; else the reference cuts the sentence."""
    for name, function, _ in CALLABLES:
        text = inspect.cleandoc(function.__doc__ or "")
        for block in re.findall(r"^Args:\n((?: +.*\n?)+)", text, re.MULTILINE):
            for line in block.splitlines():
                assert re.match(r"    \S+.*?:( |$)|     +\S", line), f"{name}: {line!r}"
