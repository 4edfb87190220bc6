"""Every argument of every public function of holdfast.api is documented."""

import inspect
import re
from typing import Any

import pytest

import holdfast as hf

FUNCTIONS = [
    name
    for name in hf.__all__
    if inspect.isfunction(getattr(hf, name)) and getattr(hf, name).__module__.startswith("holdfast.api.")
]


def undocumented(function: Any) -> list[str]:
    """The arguments that do not begin a line of the docstring, alone or in a list of names, followed by ':' or spaces."""
    text = inspect.getdoc(function) or ""
    named: set[str] = set()
    for line in text.splitlines():
        found = re.match(r"\s*([a-z_]+(?:, [a-z_]+)*)(?::\s|\s{2,})", line)
        if found:
            named |= set(found.group(1).split(", "))
        named |= set(re.findall(r"[.:] ([a-z_]+): ", line))
    return [word for word in inspect.signature(function).parameters if word not in named]


def test_the_functions_that_take_a_model_are_among_them() -> None:
    assert {
        "radius",
        "worst",
        "bounds",
        "risk",
        "saliency",
        "verify",
        "reach",
        "testgen",
        "harden",
        "load",
    } <= set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_documented(name: str) -> None:
    assert not undocumented(getattr(hf, name)), f"hf.{name} does not document them"


def test_a_missing_argument_is_seen() -> None:
    def function(x: int, seed: int) -> None:
        """Do nothing.

        Args:
            x: a number.
        """

    assert undocumented(function) == ["seed"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_begins_with_a_sentence_in_one_line(name: str) -> None:
    first = (inspect.getdoc(getattr(hf, name)) or "").splitlines()[0]
    assert first[0].isupper()
    assert "." in first or first.endswith(":"), first
