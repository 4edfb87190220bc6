"""VNN-LIB 2: properties of one or several networks, each with named tensors as inputs, outputs and inner values.

A file has three parts: (vnnlib-version <2.0>), declarations of networks, and assertions, whose conjunction a
counterexample satisfies. The elements of all inputs, in the order of their declarations and row-major, are the
inputs X_0, X_1, ... of version 1; those of all outputs and inner values are its Y_0, Y_1, .... The reader of
version 1 does the rest.

The reader follows the grammar of the standard, version 2.0 of December 2025 (https://www.vnnlib.org), and is
more lenient in five places: numbers may have an exponent; = means ==; comparisons may have more than two terms,
as in SMT-LIB; the types of the terms of a comparison may differ, since numbers are compared exactly; and
comparisons without a variable are allowed.
"""

import re
from fractions import Fraction
from typing import ClassVar, Literal

from holdfast.errors import BadInput
from holdfast.verification.declared_networks import (
    Declaration,
    DeclaredNetwork,
    DeclaredRelation,
    DeclaredTensor,
    Role,
)
from holdfast.verification.vnnlib import Item, Name, Spec, SpecReader, Term, tokens_of

# Newlines are counted; comments are skipped. A string, a shape or index, or a word with an index is one token.
TOKEN = re.compile(r'\n|;[^\n]*|[()]|"(?:[^"\\\n]|\\.)*"|[^\s();"\[\]]*\[[^\]()\n]*\]?|[^\s();"\[\]]+|["\]]')
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
WHOLE = re.compile(r"[0-9]{1,9}")
VERSION = re.compile(r"<2\.[0-9]+>|2\.[0-9]+")
REAL_TYPES = ("real", "float16", "float32", "float64", "bfloat16")
# Element types of the standard that are no floating-point numbers of 16 bits or more.
OTHER_TYPES = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "bool",
    "string",
    "complex64",
    "complex128",
    "float8e4m3fn",
    "float8e5m2",
    "float8e4m3fnuz",
    "float8e5m2fnuz",
    "float4e2m1",
)
ROLES: dict[str, Role] = {
    "declare-input": "input",
    "declare-hidden": "hidden",
    "declare-output": "output",
}
MOST_ELEMENTS = 2**24  # Number of elements of all tensors of one kind (chosen by hand).
MOST_CACHED = 2**16  # Number of variables that are cached while a file is read.
ORDER = "inputs first, then (declare-hidden ...), then outputs"


def parse2(text: str, name: str) -> Spec:
    """Parse the text of a file of version 2. BadInput names the line of an error."""
    reader = _Reader2(name)
    for token, line in tokens_of(text, TOKEN):
        reader.read_token(token, line)
    return reader.finish()


class _Reader2(SpecReader):
    """The parser of version 1 with other declarations and variables."""

    comparisons: ClassVar[tuple[str, ...]] = ("<=", ">=", "<", ">", "==", "=", "!=")
    empty_boxes: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.versioned = False
        self.tensors: dict[str, DeclaredTensor] = {}
        self.sizes: dict[Literal["X", "Y"], int] = {"X": 0, "Y": 0}
        self.cached: dict[str, Name] = {}

    def read_token(self, token: str, line: int) -> None:
        if token.startswith("[") and self.open and self.asserting():
            items = self.open[-1][1]
            if items and isinstance(items[-1], str) and items[-1] in self.tensors:
                items[-1] += token  # A space stands between a variable and its index.
                return
        word, bracket, index = token.partition("[")
        if bracket and word and token[0] != '"' and self.open and not self.asserting():
            super().read_token(word, line)  # A type and a shape may follow each other without a space.
            token = bracket + index
        super().read_token(token, line)

    def asserting(self) -> bool:
        """Whether the outermost open bracket is an assertion."""
        return self.open[0][1][:1] == ["assert"]

    def command(self, items: list[Item], line: int) -> None:
        match items:
            case ["vnnlib-version", str(version)] if not (self.versioned or self.networks or self.asserted):
                if VERSION.fullmatch(version) is None:
                    raise self.refuse(line, f"{version[:40]!r} is not a version: expected <2.0>.")
                self.versioned = True
            case ["vnnlib-version", *_]:
                raise self.refuse(line, "expected (vnnlib-version <2.0>), once, at the beginning.")
            case ["declare-network", str(name), *declared]:
                if self.asserted:
                    raise self.refuse(line, "networks are declared before the first assertion.")
                self.declare(name, declared, line)
            case ["declare-network", *_]:
                raise self.refuse(line, "expected (declare-network NAME (declare-input ...) ...).")
            case ["assert", list(formula)]:
                self.asserted.append(formula)
            case ["assert", *_]:
                raise self.refuse(
                    line, "expected (assert ...) around one comparison, or around one (and ...) or (or ...)."
                )
            case _:
                shown = items[0] if items and isinstance(items[0], str) else "this"
                raise self.refuse(
                    line,
                    f"{shown[:40]!r} is not a command of VNN-LIB 2: expected declare-network or assert.",
                )

    def worked_out(self, items: list[Item], line: int) -> Item:
        match items:
            case [("declare-input" | "declare-hidden" | "declare-output") as word, *rest]:
                return self.tensor(ROLES[word], word, rest, line)
            case [("equal-to" | "isomorphic-to") as relation, str(name)]:
                return DeclaredRelation(relation, name)
            case [("equal-to" | "isomorphic-to") as relation, *_]:
                raise self.refuse(line, f"expected ({relation} NAME), with the name of another network.")
            case ["declare-network" | "assert" | "vnnlib-version" as word, *_]:
                raise self.refuse(line, f"({word} ...) stands inside another bracket; close that first.")
        if not items:
            raise self.refuse(line, "found empty brackets.")
        return super().worked_out(items, line)

    def tensor(self, role: Role, word: str, rest: list[Item], line: int) -> DeclaredTensor:
        texts = [item for item in rest if isinstance(item, str)]
        quoted = len(texts) == 4 and texts[3].startswith('"')
        if len(texts) != len(rest) or not (quoted or (len(texts) == 3 and role != "hidden")):
            example = (
                f'({word} Z float32 [1,2] "name in the ONNX file")'
                if role == "hidden"
                else (f"({word} X float32 [1,2])")
            )
            raise self.refuse(line, f"expected {example}.")
        name, kind, shape = texts[:3]
        if NAME.fullmatch(name) is None:
            raise self.refuse(line, f"{name[:40]!r} is no name: letters, digits and _, and a letter first.")
        if kind.lower() not in REAL_TYPES:
            known = "cannot be verified" if kind.lower() in OTHER_TYPES else "is no element type of VNN-LIB 2"
            raise self.refuse(
                line, f"{name} is of type {kind[:40]}, which {known}; use {', '.join(REAL_TYPES)}."
            )
        sizes = self.whole_numbers(shape, line)
        if 0 in sizes:
            raise self.refuse(line, f"{name} has the shape {shape}, which holds no element.")
        found = DeclaredTensor(name, role, kind.lower(), sizes, _unquote(texts[3]) if quoted else "", line)
        if found.size > MOST_ELEMENTS:
            raise self.refuse(line, f"{name} has {found.size} elements; at most {MOST_ELEMENTS} are read.")
        return found

    def whole_numbers(self, text: str, line: int) -> tuple[int, ...]:
        """The numbers of a shape or an index, as in [1,28,28]."""
        inside = text[1:-1].strip()
        if not (text.startswith("[") and text.endswith("]")):
            raise self.refuse(line, f"{text[:40]!r} is no shape: expected [1,28,28], or [] for a number.")
        numbers = [number.strip() for number in inside.split(",")] if inside else []
        if not all(WHOLE.fullmatch(number) for number in numbers):
            raise self.refuse(line, f"{text[:40]!r} does not consist of whole numbers, as [1,28,28] does.")
        return tuple(map(int, numbers))

    def declare(self, name: str, declared: list[Item], line: int) -> None:
        if NAME.fullmatch(name) is None:
            raise self.refuse(line, f"{name[:40]!r} is no name: letters, digits and _, and a letter first.")
        if any(name == network.name for network in self.networks):
            raise self.refuse(line, f"a network named {name} is declared already.")
        relations = [item for item in declared if isinstance(item, DeclaredRelation)]
        tensors = [item for item in declared if isinstance(item, DeclaredTensor)]
        wrong = next((i for i in declared if not isinstance(i, Declaration)), None)
        if wrong is not None:
            shown = repr(wrong[:40]) if isinstance(wrong, str) else "a formula"
            raise self.refuse(line, f"{shown} does not belong into (declare-network ...).")
        roles = [tensor.role for tensor in tensors]
        if roles != sorted(roles, key=["input", "hidden", "output"].index):
            raise self.refuse(line, f"network {name} declares its tensors in another order: {ORDER}.")
        if "input" not in roles or "output" not in roles:
            raise self.refuse(line, f"network {name} needs at least one input and one output.")
        if len(relations) > 1 or (relations and declared[0] is not relations[0]):
            raise self.refuse(
                line, f"network {name}: at most one (equal-to ...) or (isomorphic-to ...), before its inputs."
            )
        placed: dict[Role, list[DeclaredTensor]] = {"input": [], "hidden": [], "output": []}
        # The outputs of a network are counted before its inner values.
        for tensor in sorted(tensors, key=lambda t: t.role == "hidden"):
            placed[tensor.role].append(self.place_tensor(tensor))
        network = DeclaredNetwork(
            name,
            tuple(placed["input"]),
            tuple(placed["hidden"]),
            tuple(placed["output"]),
            line,
            **{r.relation.replace("-", "_"): r.name for r in relations},
        )
        self.check_names_of_nodes(network)
        for relation in relations:
            self.check_relation(network, relation)
        self.networks.append(network)

    def place_tensor(self, tensor: DeclaredTensor) -> DeclaredTensor:
        if tensor.name in self.tensors:
            raise self.refuse(tensor.line, f"{tensor.name} is declared twice; every name is unique.")
        kind: Literal["X", "Y"] = "X" if tensor.role == "input" else "Y"
        placed = DeclaredTensor(
            tensor.name,
            tensor.role,
            tensor.kind,
            tensor.shape,
            tensor.onnx_name,
            tensor.line,
            self.sizes[kind],
        )
        self.tensors[tensor.name] = placed
        self.sizes[kind] += tensor.size
        if self.sizes[kind] > MOST_ELEMENTS:
            raise self.refuse(
                tensor.line, f"the tensors have more than {MOST_ELEMENTS} elements in all, the limit."
            )
        return placed

    def check_names_of_nodes(self, network: DeclaredNetwork) -> None:
        """Inputs and outputs are found by position, or all of a network by name."""
        named = [bool(tensor.onnx_name) for tensor in (*network.inputs, *network.outputs)]
        if any(named) and not all(named):
            raise self.refuse(
                network.line,
                f"network {network.name} names the ONNX nodes of some inputs and outputs only: name all, or none.",
            )

    def check_relation(self, network: DeclaredNetwork, relation: DeclaredRelation) -> None:
        other = next((n for n in self.networks if n.name == relation.name), None)
        if other is None:
            raise self.refuse(
                network.line,
                f"network {network.name} is {relation.relation} {relation.name[:40]!r}, which is not declared before it.",
            )
        if other.equal_to or other.isomorphic_to:
            raise self.refuse(
                network.line,
                f"network {network.name} is {relation.relation} {other.name}, which refers to "
                f"{other.equal_to or other.isomorphic_to} itself; refer to that one.",
            )
        for own, its in ((network.inputs, other.inputs), (network.outputs, other.outputs)):
            if [tensor.shape for tensor in own] != [tensor.shape for tensor in its]:
                raise self.refuse(
                    network.line,
                    f"network {network.name} is {relation.relation} {other.name}, but their inputs or outputs have "
                    "other shapes.",
                )

    def word(self, item: str, line: int) -> Term:
        found = self.cached.get(item)
        if found is None:
            letters = item.partition("[")[0]
            if letters not in self.tensors:
                if NAME.fullmatch(letters) is not None:
                    raise self.refuse(
                        line, f"{letters[:40]} is not declared as an input, output or inner value."
                    )
                return self.number(item, line)
            found = self.element(item, self.tensors[letters], line)
            if len(self.cached) < MOST_CACHED:
                self.cached[item] = found
        return Term({found: Fraction(1)}, Fraction(0))

    def element(self, item: str, tensor: DeclaredTensor, line: int) -> Name:
        """The variable that an indexed tensor means."""
        index = item.removeprefix(tensor.name)
        indices = self.whole_numbers(index, line) if index else ()
        if len(indices) != len(tensor.shape):
            raise self.refuse(
                line,
                f"{item[:40]} has {len(indices)} indices, but {tensor.name} has the shape "
                f"{list(tensor.shape)}; one for each axis is needed.",
            )
        place = 0
        for number, size in zip(indices, tensor.shape, strict=True):
            if number >= size:
                raise self.refuse(
                    line,
                    f"{item[:40]} does not exist: {tensor.name} has the shape {list(tensor.shape)}, and "
                    "indices start at 0.",
                )
            place = place * size + number
        return ("X" if tensor.role == "input" else "Y"), tensor.begin + place

    def count(self, kind: Literal["X", "Y"]) -> int:
        if not self.versioned:
            raise BadInput(f"{self.name}: does not begin with (vnnlib-version <2.0>).")
        if not self.networks:
            raise BadInput(f"{self.name}: declares no network; add (declare-network NAME ...).")
        return self.sizes[kind]

    def tensor_at(self, kind: str, number: int) -> DeclaredTensor:
        return next(
            tensor
            for tensor in self.tensors.values()
            if (tensor.role == "input") == (kind == "X") and 0 <= number - tensor.begin < tensor.size
        )

    def show(self, name: Name) -> str:
        return super().show(name) if name[0] == "M" else self.tensor_at(*name).index_of(name[1])

    def input_line(self, number: int) -> int:
        return self.tensor_at("X", number).line


def _unquote(text: str) -> str:
    """The content of a string in quotation marks."""
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), text[1:-1])
