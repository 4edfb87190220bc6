"""VNN-LIB 2, through the `vnnlib` package: read there and checked for types, then written in the words of version 1.

Where a file speaks of one network with one input and one output, element k of them (counted row by row) is X_k and Y_k of version 1. The
same reader goes on from there, so both versions mean the same here: exact numbers, boxes of inputs, linear terms of outputs.
"""

import importlib
import json
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

from holdfast.errors import BadInput, MissingExtra
from holdfast.verification.vnnlib import Spec, Token, spec_of, tokens_of

TYPES = ("Real", "Unknown", "F16", "F32", "F64", "BF16")
PLACE = re.compile(r"(.*?) at line (\d+), column \d+: (.*)", re.DOTALL)
DECIMAL = re.compile(r"[0-9]+\.?[0-9]*")
DEEPEST = 10_000  # brackets at a time
MOST_NUMBERS = 10**6  # of an input or an output
SMALLEST = sys.float_info.min
WORDS = {
    "And": "and", "Or": "or", "Plus": "+", "Minus": "-", "Negate": "-", "Multiply": "*",
    "LessThan": "<", "LessEqual": "<=", "GreaterThan": ">", "GreaterEqual": ">=",
}  # fmt: skip
BOTH = {"Equal": ("and", "<=", ">="), "NotEqual": ("or", "<", ">")}


def parse2(text: str, name: str) -> Spec:
    """The text of a file of version 2."""
    _check_depth(text, name)
    query = _query(text, name)
    return spec_of(_tokens(query, name), name)


def _check_depth(text: str, name: str) -> None:
    """The package goes down bracket by bracket on the stack of the process, which ends without a word where that is full."""
    depth = 0
    for token, line in tokens_of(text):
        depth += (token == "(") - (token == ")")
        if depth > DEEPEST:
            raise BadInput(
                f"{name}:{line}: more than {DEEPEST} brackets are open, and the package vnnlib cannot read so many."
            )


def _query(text: str, name: str) -> Any:
    try:
        vnnlib = importlib.import_module("vnnlib")
    except ImportError as error:
        raise MissingExtra(
            f"{name}: VNN-LIB 2 is read by the package vnnlib: pip install 'holdfast[vnnlib2]'."
        ) from error
    if not hasattr(vnnlib, "parse_query_string"):
        raise MissingExtra(
            f"{name}: the package vnnlib installed here is too old for VNN-LIB 2: pip install 'vnnlib>=1.0.2'."
        )
    try:
        return vnnlib.parse_query_string(text)
    except vnnlib.VNNLibException as error:
        raise BadInput(_describe_message(str(error), name)) from error
    except (
        IndexError,
        ValueError,
        OverflowError,
        RuntimeError,
    ) as error:  # the package reads every number into a float64 on its way
        raise BadInput(_beyond(text, name)) from error


def _beyond(text: str, name: str) -> str:
    """The first number that float64 cannot hold, with file and line in front."""
    for line, written in enumerate(text.split("\n"), 1):
        for number in DECIMAL.findall(written.partition(";")[0]):
            size = float(number)
            if math.isinf(size) or (size < SMALLEST and number.strip("0.")):
                shown = number if len(number) <= 40 else f"{number[:40]}..."
                return f"{name}:{line}: the number {shown} is too {'large' if math.isinf(size) else 'small'} for float64."
    return f"{name}: a number cannot be read by the package vnnlib. Write it with fewer digits."


def _describe_message(message: str, name: str) -> str:
    """What the package says, with file and line in front: the first of a list in JSON, or a sentence that ends in the place."""
    try:
        first = json.loads(message)["errors"][0]
        return f"{name}:{first['line']}: {first['message']} {first['offendingSymbol']!r}. {first['hint']}"
    except (ValueError, KeyError, IndexError, TypeError):
        found = PLACE.fullmatch(message.strip())
    return f"{name}: {message.strip()}" if found is None else f"{name}:{found[2]}: {found[1]}: {found[3]}"


def _tokens(query: Any, name: str) -> Iterator[Token]:
    """The query in the words of version 1, each with its line."""
    sizes = {}
    for letter, declared in zip("XY", _tensors(query, name), strict=True):
        sizes[declared.name] = letter, tuple(declared.shape)
        for k in range(math.prod(declared.shape)):
            yield from ((word, 1) for word in ("(", "declare-const", f"{letter}_{k}", "Real", ")"))
    for assertion in query.assertions:
        yield from _place_tokens(_written(assertion.expr, sizes))


def _tensors(query: Any, name: str) -> tuple[Any, Any]:
    """The one input and the one output."""
    if len(query.networks) != 1:
        raise BadInput(
            f"{name}: declares {len(query.networks)} networks; only properties of a single one can be verified."
        )
    (network,) = query.networks
    if network.hidden:
        raise BadInput(
            f"{name}: speaks of the hidden node {network.hidden[0].name!r}; only inputs and outputs can be verified."
        )
    for what, tensors in (("inputs", network.inputs), ("outputs", network.outputs)):
        if len(tensors) != 1:
            raise BadInput(
                f"{name}: network {network.name} has {len(tensors)} {what}; only one tensor each can be verified."
            )
        if tensors[0].dtype.name not in TYPES:
            raise BadInput(
                f"{name}: {tensors[0].name} is of type {tensors[0].dtype.name}; only real and floating numbers can be verified."
            )
        if math.prod(tensors[0].shape) > MOST_NUMBERS:
            raise BadInput(
                f"{name}: {tensors[0].name} is of shape {list(tensors[0].shape)}; at most {MOST_NUMBERS} numbers can be verified."
            )
    return network.inputs[0], network.outputs[0]


def _written(root: Any, sizes: dict[str, tuple[str, tuple[int, ...]]]) -> Iterator[tuple[str, int | None]]:
    """An expression, bracket by bracket; what is still to be written waits in a list, so no depth of nesting exhausts the stack."""
    waiting: list[Any] = [")", root, "assert", "("]
    while waiting:
        node = waiting.pop()
        kind = type(node).__name__
        if isinstance(node, str):
            yield node, None
        elif kind == "Var":
            letter, shape = sizes[node.name]
            yield f"{letter}_{_place(node.indices, shape)}", node.line
        elif hasattr(node, "lexeme"):
            yield node.lexeme, node.line
        elif kind in BOTH:
            joined, *signs = BOTH[kind]
            halves = [part for sign in signs for part in ("(", sign, node.lhs, node.rhs, ")")]
            waiting += reversed(["(", joined, *halves, ")"])
        else:
            waiting += reversed(["(", WORDS.get(kind, kind), *node.children(), ")"])


def _place_tokens(words: Iterator[tuple[str, int | None]]) -> Iterator[Token]:
    """Only variables and numbers know their line; brackets and operators before one of them get its."""
    before: list[str] = []
    last = 1
    for word, line in words:
        before.append(word)
        if line is not None:
            yield from ((early, line) for early in before)
            before, last = [], line
    yield from ((late, last) for late in before)


def _place(indices: list[int], shape: tuple[int, ...]) -> int:
    place = 0
    for index, size in zip(indices, shape, strict=True):
        place = place * size + index
    return place
