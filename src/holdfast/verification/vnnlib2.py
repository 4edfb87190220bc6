"""VNN-LIB 2, read and type-checked by the package `vnnlib`, then translated to tokens of version 1.

Only files with one network, one input tensor and one output tensor are supported. Element k of these, in
row-major order, is X_k or Y_k of version 1. The reader of version 1 does the rest, so both versions have the
same semantics: exact numbers, boxes of inputs, linear inequalities of outputs.
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
# Limit for the number of open brackets: the package recurses on the stack (chosen by hand).
MOST_OPEN_BRACKETS = 10_000
MOST_NUMBERS = 10**6  # Limit for the number of elements of an input or output (chosen by hand).
# The package reads smaller numbers inexactly, as subnormal float64 numbers.
SMALLEST_NORMAL = sys.float_info.min
WORDS = {
    "And": "and",
    "Or": "or",
    "Plus": "+",
    "Minus": "-",
    "Negate": "-",
    "Multiply": "*",
    "LessThan": "<",
    "LessEqual": "<=",
    "GreaterThan": ">",
    "GreaterEqual": ">=",
}
BOTH = {"Equal": ("and", "<=", ">="), "NotEqual": ("or", "<", ">")}


def parse2(text: str, name: str) -> Spec:
    """Parse the text of a file of version 2."""
    _check_depth(text, name)
    query = _query(text, name)
    return spec_of(_tokens(query, name), name)


def _check_depth(text: str, name: str) -> None:
    """Limit the nesting depth: the package recurses, and a stack overflow would kill the process."""
    depth = 0
    for token, line in tokens_of(text):
        depth += (token == "(") - (token == ")")
        if depth > MOST_OPEN_BRACKETS:
            raise BadInput(
                f"{name}:{line}: more than {MOST_OPEN_BRACKETS} brackets are open, the limit of the package "
                "vnnlib."
            )


def _query(text: str, name: str) -> Any:
    try:
        vnnlib = importlib.import_module("vnnlib")
    except ImportError as error:
        raise MissingExtra(
            f"{name}: VNN-LIB 2 needs the package vnnlib: pip install 'holdfast[vnnlib2]'."
        ) from error
    if not hasattr(vnnlib, "parse_query_string"):
        raise MissingExtra(
            f"{name}: the package vnnlib installed here is too old for VNN-LIB 2: pip install "
            "'vnnlib>=1.0.2'."
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
    ) as error:  # the package converts every number to float64
        raise BadInput(_beyond(text, name)) from error


def _beyond(text: str, name: str) -> str:
    """Describe the first number that float64 cannot represent, with file and line."""
    for line, written in enumerate(text.split("\n"), 1):
        for number in DECIMAL.findall(written.partition(";")[0]):
            size = float(number)
            if math.isinf(size) or (size < SMALLEST_NORMAL and number.strip("0.")):
                shown = number if len(number) <= 40 else f"{number[:40]}..."
                fault = "large" if math.isinf(size) else "small"
                return f"{name}:{line}: the number {shown} is too {fault} for float64."
    return f"{name}: a number cannot be read by the package vnnlib. Write it with fewer digits."


def _describe_message(message: str, name: str) -> str:
    """Format the package's message, a JSON list or a sentence with a position, with file and line."""
    try:
        first = json.loads(message)["errors"][0]
        return f"{name}:{first['line']}: {first['message']} {first['offendingSymbol']!r}. {first['hint']}"
    except (ValueError, KeyError, IndexError, TypeError):
        found = PLACE.fullmatch(message.strip())
    return f"{name}: {message.strip()}" if found is None else f"{name}:{found[2]}: {found[1]}: {found[3]}"


def _tokens(query: Any, name: str) -> Iterator[Token]:
    """Yield the query as tokens of version 1, with line numbers."""
    sizes = {}
    for letter, declared in zip("XY", _tensors(query, name), strict=True):
        sizes[declared.name] = letter, tuple(declared.shape)
        for k in range(math.prod(declared.shape)):
            yield from ((word, 1) for word in ("(", "declare-const", f"{letter}_{k}", "Real", ")"))
    for assertion in query.assertions:
        yield from _place_tokens(_written(assertion.expr, sizes))


def _tensors(query: Any, name: str) -> tuple[Any, Any]:
    """Return the single input tensor and the single output tensor."""
    if len(query.networks) != 1:
        raise BadInput(
            f"{name}: declares {len(query.networks)} networks; only properties of a single network are "
            "supported."
        )
    (network,) = query.networks
    if network.hidden:
        raise BadInput(
            f"{name}: uses the hidden node {network.hidden[0].name!r}; only inputs and outputs are supported."
        )
    for what, tensors in (("inputs", network.inputs), ("outputs", network.outputs)):
        if len(tensors) != 1:
            raise BadInput(
                f"{name}: network {network.name} has {len(tensors)} {what}; only one tensor each is "
                "supported."
            )
        if tensors[0].dtype.name not in TYPES:
            raise BadInput(
                f"{name}: {tensors[0].name} is of type {tensors[0].dtype.name}; only real and "
                "floating-point numbers are "
                "supported."
            )
        if math.prod(tensors[0].shape) > MOST_NUMBERS:
            raise BadInput(
                f"{name}: {tensors[0].name} is of shape {list(tensors[0].shape)}; at most {MOST_NUMBERS} "
                "elements are "
                "supported."
            )
    return network.inputs[0], network.outputs[0]


def _written(root: Any, sizes: dict[str, tuple[str, tuple[int, ...]]]) -> Iterator[tuple[str, int | None]]:
    """Translate an expression, with an explicit stack so that nesting depth cannot exhaust the call stack."""
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
    """Add line numbers: brackets and operators take over that of the next variable or number."""
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
