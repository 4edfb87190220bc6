"""VNN-LIB 1: a text format for properties of networks with inputs X_i and outputs Y_i.

The conjunction of the asserts is brought into disjunctive normal form: a list of cases, each a box of inputs
with the polytopes that the outputs must avoid there. An inequality p(x, y) <= c of a polynomial p, also of
inputs alone, is linear in the monomials of p: each of them becomes another output of the network (`Spec.columns`),
so that it too belongs to a polytope. Numbers are kept as written (fractions), so a
counterexample is checked without rounding. Numbers that float64 cannot represent are rounded so that proofs
cover them (`Spec.box`, `Spec.rules`), or their error is added to the proof (`Spec.factor_error`). The file is
read once from left to right and each bracket is evaluated when it closes, so no nesting depth can exhaust the
stack. Within `time_limit.in_time` reading ends at the deadline.

The format: https://www.vnnlib.org.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.errors import BadInput, UnreadableFile
from holdfast.files import read_unpacked
from holdfast.memory_budget import available_bytes, format_bytes
from holdfast.property.avoid import Avoid
from holdfast.verification.declared_networks import Declaration, DeclaredNetwork
from holdfast.verification.related_inputs import RelatedInputs, relate_inputs

# Limits on what a file may contain (chosen by hand, far above published benchmarks).
MOST_BYTES = 2**29  # Size of the unpacked file in bytes.
MOST_CASES = 2**16  # Number of alternatives in disjunctive normal form.
MOST_COPIES = 2**22  # Number of conditions that the normal form repeats.
MOST_BOUNDS = 2**26  # Number of inputs, summed over all alternatives that have their own box.
MOST_OPEN = 2 * 10**5  # Number of brackets that are open at once.
MOST_STEPS = 2**27  # Number of variables, summed over all evaluated sums.
MOST_BITS = 2**15  # Bits of a computed number; written numbers have fewer.
MOST_COMPARED = 2**16  # Number of comparisons that are cached while a file is read: an estimated 30 MB.
MEMORY_PER_BYTE = 80  # Bytes of memory that one byte of the file may need while it is read.
VERSION = re.compile(r"(?:\s|;[^\n]*\n)*\(\s*vnnlib-version\s*<?\s*([^\s>)]*)")
# A bracket that bounds one variable, in one piece: large files consist of them. What the reader does not know is read
# token by token.
SIMPLE = r"\([<>]=? +[XY]_[0-9]+ +[-+.0-9eE]+ *\)"
# Newlines are counted; comments are skipped.
TOKEN = re.compile(rf"\n|;[^\n]*|{SIMPLE}|[()]|[^\s();]+")
SMALL_TOKEN = re.compile(r"[()]|[^\s()]+")  # The tokens in a SIMPLE one.
VARIABLE = re.compile(r"[XY]_(0|[1-9][0-9]{0,8})")
VALUE = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Numbers short enough for exact arithmetic.
NUMBER = re.compile(r"[+-]?([0-9]{1,400}(\.[0-9]{0,400})?|\.[0-9]{1,400})([eE][+-]?[0-9]{1,3})?")
LARGEST = Fraction(torch.finfo(torch.float64).max)
# Rows with factors between 1/LARGEST_UNSCALED and LARGEST_UNSCALED are not rescaled (chosen by hand).
LARGEST_UNSCALED = 2**64
EXACT_INTEGERS = 2**53  # float64 represents every smaller natural number.
MOST_FACTORS = 16  # Degree of a monomial (chosen by hand).
MOST_COLUMNS = 2**16  # Number of monomials, and of inputs that occur in them (chosen by hand).
IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "exit")

# X: input, Y: output, M: monomial, by its number in the reader.
Name: TypeAlias = tuple[Literal["X", "Y", "M"], int]
Product: TypeAlias = tuple[Name, ...]  # variables that are multiplied; a single one is a copy of it
Number: TypeAlias = "Fraction | float"
Token: TypeAlias = tuple[str, int]  # a token and its line


@dataclass(frozen=True)
class Term:
    """A polynomial: sum of factor * variable + constant, where monomials are variables too."""

    factors: dict[Name, Fraction]
    constant: Fraction


@dataclass(frozen=True)
class Atom:
    """An inequality: sum of factor * variable <= bound, or < if strict. `line` is its line in the file."""

    factors: dict[Name, Fraction]
    bound: Fraction
    strict: bool
    line: int


# Comparisons that consist of two others, joined by "and", or by "or" for !=.
SIGNS = {"==": ("<=", ">="), "=": ("<=", ">="), "!=": ("<", ">")}

Formula: TypeAlias = list[list[Atom]]  # disjunction of conjunctions
Item: TypeAlias = "str | Term | Formula | Declaration"


@dataclass(frozen=True)
class IntervalEnd:
    """A lower or upper bound of an input."""

    value: Fraction
    strict: bool


def is_empty(low: IntervalEnd, high: IntervalEnd) -> bool:
    """Return whether no number lies between the ends."""
    difference = _compare_fractions(low.value, high.value)
    return difference > 0 or (difference == 0 and (low.strict or high.strict))


def _compare_fractions(one: Fraction, other: Fraction) -> int:
    """A number with the sign of one - other, faster than a comparison of Fraction."""
    return one.numerator * other.denominator - other.numerator * one.denominator


Box: TypeAlias = tuple[tuple[IntervalEnd, ...], tuple[IntervalEnd, ...]]  # lower and upper bounds


@dataclass(frozen=True)
class OutputInequality:
    """An inequality of outputs: sum of factor * Y_i <= bound, or < if strict."""

    factors: tuple[tuple[int, Fraction], ...]
    bound: Fraction
    strict: bool

    def holds(self, outputs: Sequence[Number]) -> bool:
        total = sum((factor * Fraction(outputs[i]) for i, factor in self.factors), Fraction(0))
        return total < self.bound if self.strict else total <= self.bound

    @cached_property
    def scaled(self) -> "OutputInequality":
        """The inequality scaled so that float64 represents its factors where possible.

        Factors such as 0.1 become the smallest integers of the same ratio. No factor is so large or small
        that computing with it would overflow.
        """
        sizes = [abs(factor) for _, factor in self.factors]
        if (
            max(sizes) <= LARGEST_UNSCALED
            and min(sizes) * LARGEST_UNSCALED >= 1
            and all(_writable(size) for size in sizes)
        ):
            return self
        by = Fraction(
            math.lcm(*(size.denominator for size in sizes)), math.gcd(*(size.numerator for size in sizes))
        )
        largest = int(max(sizes) * by)
        by = by if largest < EXACT_INTEGERS else by / 2 ** (largest.bit_length() - 1)
        return OutputInequality(
            tuple((i, factor * by) for i, factor in self.factors), self.bound * by, self.strict
        )


@dataclass(frozen=True)
class Case:
    """A box of inputs and the polytopes that the outputs must avoid there.

    `checks` follow from the box in real arithmetic, so that proofs need not know them. They are part of the
    file, so a counterexample, which was computed with rounding, must satisfy them exactly.
    """

    lower: tuple[IntervalEnd, ...]
    upper: tuple[IntervalEnd, ...]
    polytopes: tuple[tuple[OutputInequality, ...], ...]
    checks: tuple[OutputInequality, ...] = ()

    def holds(self, inputs: Sequence[float]) -> bool:
        """Return whether the box contains a point, in exact arithmetic."""
        for given, low, high in zip(inputs, self.lower, self.upper, strict=True):
            if not math.isfinite(given):
                return False
            value = Fraction(given)
            if not (low.value < value if low.strict else low.value <= value):
                return False
            if not (value < high.value if high.strict else value <= high.value):
                return False
        return True

    def is_violated(self, outputs: Sequence[Number]) -> bool:
        """Return whether the outputs lie in one of the polytopes and satisfy the checks, in exact arithmetic."""
        return all(row.holds(outputs) for row in self.checks) and any(
            all(row.holds(outputs) for row in rows) for rows in self.polytopes
        )


@dataclass(frozen=True)
class Spec:
    """A whole file.

    A counterexample is an input in the box of a case, with outputs in a polytope of the same case.

    Attributes:
        inputs: number of inputs that are searched.
        outputs: number of outputs, including the columns.
        columns: products of the file's variables that are appended to its outputs; the copies of all inputs
            in them are among them.
        sources: for each input of the file the searched inputs whose sum it is; () if they are the same.
        networks: of version 2, as declared.
    """

    name: str
    inputs: int
    outputs: int
    cases: tuple[Case, ...]
    columns: tuple[Product, ...] = ()
    sources: tuple[tuple[int, ...], ...] = ()
    networks: tuple[DeclaredNetwork, ...] = field(default=(), compare=False)

    @property
    def measured(self) -> int:
        """The number of outputs of the file, without the columns."""
        return self.outputs - len(self.columns)

    @property
    def is_plain(self) -> bool:
        """Whether it constrains the outputs of one network over a box of its inputs, and nothing else."""
        return not self.columns and not self.sources and len(self.networks) < 2

    def exact_values(self, outputs: Sequence[float]) -> Sequence[Number]:
        """Return the outputs with their products in exact arithmetic.

        The factors are outputs and copies of inputs, as the network computed them.
        """
        if all(len(product) == 1 for product in self.columns):
            return outputs
        values: list[Number] = list(outputs)
        for place, factors in self.products:
            values[place] = math.prod((Fraction(outputs[i]) for i in factors), start=Fraction(1))
        return values

    @cached_property
    def products(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each product of several variables its number among the outputs, and those of its factors."""
        begin = self.measured
        at = {product[0]: begin + k for k, product in enumerate(self.columns) if len(product) == 1}
        return tuple(
            (begin + k, tuple(number if kind == "Y" else at[kind, number] for kind, number in product))
            for k, product in enumerate(self.columns)
            if len(product) > 1
        )

    def box(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds (cases, inputs) float64 that contain every allowed input."""
        lower = tabulate_ends((case.lower for case in self.cases), lambda end: _round_towards(end.value, -1))
        upper = tabulate_ends((case.upper for case in self.cases), lambda end: _round_towards(end.value, +1))
        return lower, upper

    def inside(self) -> tuple[Tensor, Tensor]:
        """Bounds (cases, inputs) float64 between which lie exactly the allowed float64 numbers.

        If lower > upper, no float64 number is allowed.
        """
        lower = tabulate_ends((case.lower for case in self.cases), lambda end: _inwards(end, +1))
        upper = tabulate_ends((case.upper for case in self.cases), lambda end: _inwards(end, -1))
        return lower, upper

    def rules(self) -> Avoid:
        """Return the polytopes in float64, rounded outwards. Shorter lists repeat their last entry."""
        matrix = torch.zeros(self._sizes(), dtype=torch.float64)
        offset = torch.zeros(matrix.shape[:3], dtype=torch.float64)
        for place, row in self._rows():
            offset[place] = -_round_towards(row.bound, +1)
            for i, factor in row.factors:
                matrix[(*place, i)] = float(factor)
        return Avoid(matrix, offset)

    def factor_error(self) -> Tensor:
        """(cases, polytopes, rows, outputs) float64: upper bounds on the error of the factors in `rules`."""
        found = torch.zeros(self._sizes(), dtype=torch.float64)
        for place, row in self._rows():
            for i, factor in row.factors:
                found[(*place, i)] = _round_towards(abs(factor - Fraction(float(factor))), +1)
        return found

    def _sizes(self) -> tuple[int, int, int, int]:
        polytopes = max(len(case.polytopes) for case in self.cases)
        rows = max(1, max(len(rows) for case in self.cases for rows in case.polytopes))
        return len(self.cases), polytopes, rows, self.outputs

    def _rows(self) -> Iterator[tuple[tuple[int, int, int], OutputInequality]]:
        """Yield every row of the padded table of all cases, with its index there."""
        _, polytopes, rows, _ = self._sizes()
        for c, case in enumerate(self.cases):
            for p in range(polytopes):
                written = case.polytopes[min(p, len(case.polytopes) - 1)]
                for r in range(rows if written else 0):
                    yield (c, p, r), written[min(r, len(written) - 1)].scaled

    @cached_property
    def exact(self) -> bool:
        """Whether float64 represents every factor of an output, up to a common scale for each row."""
        return all(
            _writable(f)
            for case in self.cases
            for rows in case.polytopes
            for row in rows
            for _, f in row.scaled.factors
        )


def read_vnnlib(file: str | Path) -> Spec:
    """Read a .vnnlib file, or one compressed by gzip."""
    path = Path(file)
    return parse(_text(path), str(path))


def parse(text: str, name: str = "property") -> Spec:
    """Parse the text of a file.

    BadInput names the line of an error. A file of version 2 starts with its version.
    """
    version = VERSION.match(text)
    if version is None:
        return spec_of(tokens_of(text), name)
    if not version[1].startswith("2."):
        raise BadInput(f"{name}: VNN-LIB version {version[1]} is not supported; 1 (the default) and 2.0 are.")
    from holdfast.verification.vnnlib2 import parse2  # which imports this module

    return parse2(text, name)


def spec_of(tokens: Iterable[Token], name: str) -> Spec:
    """Build the specification from tokens of version 1."""
    reader = SpecReader(name)
    for token, line in tokens:
        reader.read_token(token, line)
    return reader.finish()


def tokens_of(text: str, pattern: re.Pattern[str] = TOKEN) -> Iterator[Token]:
    """Yield tokens with their line numbers, without comments."""
    line = 1
    # An iterator: a list of all tokens would need many times the size of the file.
    for found in time_limit.checked(pattern.finditer(text)):
        token = found[0]
        if token == "\n":
            line += 1
        elif token[0] != ";":
            yield token, line


def _text(path: Path) -> str:
    content = read_unpacked(
        path, MOST_BYTES, f"larger than {format_bytes(MOST_BYTES)}, the limit for a property."
    )
    if len(content) * MEMORY_PER_BYTE > available_bytes():
        raise UnreadableFile(
            f"{path}: may need {format_bytes(len(content) * MEMORY_PER_BYTE)} of memory to read, more than is "
            "available. Split it."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{path}: not text ({error}). Is it a VNN-LIB file?") from error


def tabulate_ends(rows: Iterable[Sequence[IntervalEnd]], convert: Callable[[IntervalEnd], float]) -> Tensor:
    """(rows, ends) float64. Ends that are one object, as the reader makes of equal texts, are converted once."""
    known: dict[int, tuple[IntervalEnd, float]] = {}
    table = []
    for row in rows:
        for end in row:
            if id(end) not in known:
                known[id(end)] = end, convert(end)
        table.append([known[id(end)][1] for end in row])
    return torch.tensor(table, dtype=torch.float64)


def _round_towards(value: Fraction, towards: int) -> float:
    """Return the nearest float64 that is not below (towards +1) or not above (towards -1) the number."""
    near = float(value)
    off = Fraction(near) < value if towards > 0 else Fraction(near) > value
    return math.nextafter(near, towards * math.inf) if off else near


def _inwards(end: IntervalEnd, towards: int) -> float:
    """Return the first float64 inside an interval, starting from this bound."""
    near = _round_towards(end.value, towards)
    return math.nextafter(near, towards * math.inf) if end.strict and Fraction(near) == end.value else near


def _writable(value: Fraction) -> bool:
    return Fraction(float(value)) == value


def _size(value: Fraction) -> str:
    """Format a number that may be too large to print."""
    digits = (abs(value.numerator).bit_length() - value.denominator.bit_length()) * math.log10(2)
    return f"about {'-' if value < 0 else ''}1e{round(digits)}"


class SpecReader:
    """Parser state: the contents of the open brackets, and the asserts that were read."""

    comparisons: ClassVar[tuple[str, ...]] = ("<=", ">=", "<", ">")
    empty_boxes: ClassVar[bool] = False  # Whether an alternative without any input is no mistake.

    def __init__(self, name: str) -> None:
        self.name = name
        self.monomials: dict[Product, int] = {}
        self.factors_of: list[Product] = []  # the product of each monomial
        self.columns: dict[Product, int] = {}  # in the order of their numbers
        self.outputs = 0
        self.networks: list[DeclaredNetwork] = []
        self.open: list[tuple[int, list[Item]]] = []  # for each open bracket its line and its contents
        self.declared: dict[Name, int] = {}  # line of each declaration
        self.asserted: list[Formula] = []
        self.steps = 0
        # Cache of comparisons of two words: large files repeat them.
        self.compared: dict[object, tuple[dict[Name, Fraction], Fraction]] = {}
        # The same for brackets in one piece; and bounds by the identity of the factors, which they keep alive.
        self.simple: dict[str, tuple[dict[Name, Fraction], Fraction, bool]] = {}
        self.ends: dict[int, tuple[dict[Name, Fraction], Fraction, bool, IntervalEnd]] = {}

    def refuse(self, line: int, message: str) -> BadInput:
        return BadInput(f"{self.name}:{line}: {message}")

    def read_token(self, token: str, line: int) -> None:
        if len(token) > 1 and token[0] == "(":
            self.read_simple(token, line)
        elif token == "(":
            if len(self.open) == MOST_OPEN:
                raise self.refuse(
                    line, f"more than {MOST_OPEN} brackets are open. The file is damaged, or not VNN-LIB."
                )
            self.open.append((line, []))
        elif not self.open:
            problem = (
                "a closing bracket without an opening one"
                if token == ")"
                else f"{token!r} is outside of any bracket"
            )
            raise self.refuse(line, f"{problem}. The file is damaged, or not VNN-LIB.")
        elif token == ")":
            begun, items = self.open.pop()
            if self.open:
                self.open[-1][1].append(self.worked_out(items, begun))
            else:
                self.command(items, begun)
        else:
            self.open[-1][1].append(token)

    def read_simple(self, token: str, line: int) -> None:
        """Read a bracket that compares a variable with a number, as `worked_out` does, once for equal texts."""
        found = self.simple.get(token)
        if found is not None and self.open and len(self.open) < MOST_OPEN:
            self.open[-1][1].append([[Atom(*found, line)]])
            return
        for part in SMALL_TOKEN.findall(token):
            self.read_token(part, line)
        last = self.open[-1][1][-1] if self.open and self.open[-1][1] else None
        if isinstance(last, list) and len(self.simple) < MOST_COMPARED:
            ((atom,),) = last
            self.simple[token] = atom.factors, atom.bound, atom.strict

    def end_of(self, atom: Atom) -> tuple[bool, IntervalEnd]:
        """Whether an atom of one input is an upper bound, and the bound; computed once for equal texts."""
        key = id(atom.factors)
        known = self.ends.get(key)
        if known is not None and known[0] is atom.factors and known[1] is atom.bound:
            return known[2], known[3]
        ((name, factor),) = atom.factors.items()
        value = atom.bound if factor == 1 else -atom.bound if factor == -1 else atom.bound / factor
        if abs(value) > LARGEST:
            raise self.refuse(
                atom.line, f"the bound of {self.show(name)} is {_size(value)}, too large for float64."
            )
        end = IntervalEnd(value, atom.strict)
        if len(self.ends) < MOST_COMPARED:
            self.ends[key] = atom.factors, atom.bound, factor > 0, end
        return factor > 0, end

    def command(self, items: list[Item], line: int) -> None:
        match items:
            case ["declare-const", str(name), "Real"] | ["declare-fun", str(name), "", "Real"]:
                if VARIABLE.fullmatch(name) is None:
                    raise self.refuse(
                        line,
                        f"{name!r} is declared, but variables must be named X_0, X_1, ... (inputs) or Y_0, "
                        "... (outputs).",
                    )
                self.declared.setdefault(_name(name), line)
            case ["declare-const" | "declare-fun", *_]:
                raise self.refuse(line, "expected (declare-const X_0 Real).")
            case ["assert", list(formula)]:
                self.asserted.append(formula)
            case ["assert", *_]:
                raise self.refuse(
                    line, "expected (assert ...) around one comparison, or around one (and ...) or (or ...)."
                )
            case [str(word), *_] if word in IGNORED:
                pass
            case _:
                shown = items[0] if items and isinstance(items[0], str) else "this"
                raise self.refuse(
                    line, f"{shown!r} is not a command of VNN-LIB 1: expected declare-const or assert."
                )

    def worked_out(self, items: list[Item], line: int) -> Item:
        """Evaluate a bracket inside a command."""
        if not items:
            return ""  # the empty list of arguments in declare-fun
        operator, rest = items[0], items[1:]
        if operator in ("and", "or"):
            return self.join_formulas(str(operator), rest, line)
        if operator in self.comparisons:
            return self.read_comparison(str(operator), rest, line)
        if operator in ("+", "-", "*"):
            return self.read_arithmetic(str(operator), rest, line)
        shown = operator if isinstance(operator, str) else "a bracket"
        expected = ", ".join(["and, or", *self.comparisons, "+, -, *"])
        raise self.refuse(line, f"{shown!r} is not allowed here: expected {expected}.")

    def join_formulas(self, operator: str, items: list[Item], line: int) -> Formula:
        formulas: list[Formula] = []
        for item in items:
            if not isinstance(item, list):
                raise self.refuse(
                    line,
                    f"({operator} ...) joins comparisons, found "
                    f"{item if isinstance(item, str) else 'a sum'!r}.",
                )
            formulas.append(item)
        if operator == "or":
            return [case for formula in formulas for case in formula]
        return self.multiply_out(formulas, line)

    def multiply_out(self, formulas: list[Formula], line: int) -> Formula:
        """Conjunction of formulas, in disjunctive normal form.

        Formulas with a single alternative are merged first.
        """
        cases = [[atom for formula in formulas if len(formula) == 1 for atom in formula[0]]]
        for formula in formulas:
            if len(formula) != 1:
                if len(cases) * len(formula) > MOST_CASES:
                    raise self.refuse(
                        line,
                        f"multiplied out, the file has more than {MOST_CASES} alternatives. Split it into "
                        "several.",
                    )
                before, after = sum(map(len, cases)), sum(map(len, formula))
                if before * (len(formula) - 1) + after * (len(cases) - 1) > MOST_COPIES:
                    raise self.refuse(
                        line,
                        f"multiplied out, the file repeats more than {MOST_COPIES} conditions. Split it "
                        "into several.",
                    )
                cases = [before + case for before in cases for case in formula]
        return cases

    def read_comparison(self, operator: str, items: list[Item], line: int) -> Formula:
        """(<= a b c) means a <= b and b <= c, as in SMT-LIB."""
        if len(items) < 2 or (operator == "!=" and len(items) > 2):
            raise self.refuse(line, f"({operator} ...) compares two terms, found {len(items)}.")
        alternatives: Formula = [[]]
        for pair in pairwise(items):
            found = [self.compare(sign, *pair, line) for sign in SIGNS.get(operator, (operator,))]
            if operator == "!=":
                return [[atom] for atom in found]
            alternatives[0].extend(found)
        return alternatives

    def compare(self, operator: str, one: Item, other: Item, line: int) -> Atom:
        words = (operator, one, other) if isinstance(one, str) and isinstance(other, str) else None
        found = self.compared.get(words)
        if found is None:
            left, right = self.term(one, line), self.term(other, line)
            if operator in (">=", ">"):
                left, right = right, left
            difference = _sum([left, _scale_term(right, Fraction(-1))])
            found = difference.factors, -difference.constant
            if words is not None and len(self.compared) < MOST_COMPARED:
                self.compared[words] = found
        return Atom(*found, operator in ("<", ">"), line)

    def read_arithmetic(self, operator: str, items: list[Item], line: int) -> Term:
        terms = [self.term(item, line) for item in items]
        if not terms:
            raise self.refuse(line, f"({operator}) has no operands.")
        if operator == "*":
            product = Term({}, Fraction(1))
            for term in terms:
                product = self.check_size(self.multiply(product, term, line), line)
            return product
        if operator == "-":
            terms = (
                [_scale_term(terms[0], Fraction(-1))]
                if len(terms) == 1
                else [terms[0], *(_scale_term(t, Fraction(-1)) for t in terms[1:])]
            )
        return self.check_size(_sum(terms), line)

    def multiply(self, one: Term, other: Term, line: int) -> Term:
        """The product of two polynomials, whose monomials get numbers."""
        if not one.factors or not other.factors:
            moving, factor = (one, other.constant) if one.factors else (other, one.constant)
            return _scale_term(moving, factor)
        self.steps += len(one.factors) * len(other.factors)
        self.check_size(one, line)
        products = [
            Term({self.monomial((*self.parts(a), *self.parts(b)), line): f * g}, Fraction(0))
            for a, f in one.factors.items()
            for b, g in other.factors.items()
        ]
        linear = [
            _scale_term(Term(one.factors, Fraction(0)), other.constant),
            _scale_term(Term(other.factors, Fraction(0)), one.constant),
        ]
        return _sum([*products, *linear, Term({}, one.constant * other.constant)])

    def parts(self, name: Name) -> Product:
        """The variables that a name multiplies."""
        return self.factors_of[name[1]] if name[0] == "M" else (name,)

    def monomial(self, variables: Product, line: int) -> Name:
        product = tuple(sorted(variables))
        if len(product) > MOST_FACTORS or len(self.monomials) >= MOST_COLUMNS:
            raise self.refuse(
                line,
                f"more than {MOST_FACTORS} variables are multiplied, or the file has more than {MOST_COLUMNS} "
                "different products. Split the file, or simplify it.",
            )
        if product not in self.monomials:
            self.monomials[product] = len(self.factors_of)
            self.factors_of.append(product)
        return "M", self.monomials[product]

    def place(self, name: Name, line: int) -> int:
        """The number of the output that holds a variable or a monomial; it is appended if there is none."""
        if name[0] == "Y":
            return name[1]
        product = self.parts(name)
        missing = [
            column
            for column in (*((part,) for part in product if part[0] == "X"), product)
            if column not in self.columns
        ]
        for column in dict.fromkeys(missing):
            self.columns[column] = len(self.columns)
        if len(self.columns) > MOST_COLUMNS:
            raise self.refuse(
                line, f"the file constrains more than {MOST_COLUMNS} inputs or products together. Split it."
            )
        return self.outputs + self.columns[product]

    def show(self, name: Name) -> str:
        """A variable or monomial as the file writes it."""
        parts = self.parts(name)
        return f"{name[0]}_{name[1]}" if len(parts) == 1 else " * ".join(map(self.show, parts))

    def input_line(self, number: int) -> int:
        """The line that declares an input."""
        return self.declared["X", number]

    def check_size(self, term: Term, line: int) -> Term:
        """Return the term. BadInput if its numbers or the total work exceed a limit."""
        self.steps += 1 + len(term.factors)
        numbers = (term.constant, *term.factors.values())
        if self.steps > MOST_STEPS or any(
            max(n.numerator.bit_length(), n.denominator.bit_length()) > MOST_BITS for n in numbers
        ):
            raise self.refuse(
                line,
                "this takes too long to compute: nested sums, or products with too many digits. Simplify it.",
            )
        return term

    def term(self, item: Item, line: int) -> Term:
        if isinstance(item, Term):
            return item
        if not isinstance(item, str):
            raise self.refuse(line, "found a comparison where a number or a variable is expected.")
        return self.word(item, line)

    def word(self, item: str, line: int) -> Term:
        """A variable or a number."""
        if VARIABLE.fullmatch(item):
            if _name(item) not in self.declared:
                raise self.refuse(line, f"{item} is not declared. Add (declare-const {item} Real) before it.")
            return Term({_name(item): Fraction(1)}, Fraction(0))
        return self.number(item, line)

    def number(self, item: str, line: int) -> Term:
        if NUMBER.fullmatch(item):
            return Term({}, Fraction(item))
        if VALUE.fullmatch(item):
            shown = item if len(item) <= 40 else f"{item[:40]}..."
            raise self.refuse(
                line,
                f"{shown!r} is too long: at most 400 digits before and after the point, and 3 in the "
                "exponent, are read.",
            )
        raise self.refuse(line, f"{item!r} is neither a number nor a variable X_i or Y_i.")

    def finish(self) -> Spec:
        if self.open:
            raise self.refuse(
                self.open[-1][0], "this bracket is never closed. The file is damaged or cut off."
            )
        inputs, self.outputs = self.count("X"), self.count("Y")
        common_atoms = [atom for formula in self.asserted if len(formula) == 1 for atom in formula[0]]
        related = relate_inputs(common_atoms, inputs, several=len(self.networks) > 1)
        searched = inputs if related is None else len(related.lower)
        # Asserts with a single alternative are applied once; every choice of the other alternatives then
        # starts from there.
        common = _Alternative(self, [None] * inputs, [None] * inputs, [], related)
        if related is not None:
            common.lower, common.upper = list(related.lower), list(related.upper)
        possible = all(common.take(atom) for atom in time_limit.checked(common_atoms))
        checks = tuple(common.check_substitution(common_atoms)) if possible else ()
        choices = [formula for formula in self.asserted if len(formula) != 1]
        lenient = self.empty_boxes or (
            sum(
                any("X" in (kind for kind, _ in atom.factors) for case in f for atom in case) for f in choices
            )
            > 1
        )
        found: dict[Box, list[tuple[OutputInequality, ...]]] = {}
        # The polytopes of alternatives that do not constrain inputs.
        shared: list[tuple[OutputInequality, ...]] | None = None
        ends = 0
        for atoms in self.multiply_out(choices, 1) if possible else ():
            one = _Alternative(
                self, list(common.lower), list(common.upper), list(common.rows), related, lenient=lenient
            )
            time_limit.raise_if_expired()
            if not all(one.take(atom) for atom in atoms):
                continue
            ends += searched * one.own
            if ends > MOST_BOUNDS:
                raise self.refuse(
                    atoms[-1].line,
                    f"the file has boxes with more than {MOST_BOUNDS} bounds in all. Split it into several.",
                )
            polytopes = found.setdefault(one.box(atoms), []) if one.own or shared is None else shared
            shared = shared if one.own else polytopes
            polytopes.append(tuple(one.rows))
        cases = tuple(Case(*box, tuple(dict.fromkeys(polytopes)), checks) for box, polytopes in found.items())
        return Spec(
            self.name,
            searched,
            self.outputs + len(self.columns),
            cases,
            tuple(self.columns),
            () if related is None else tuple(related.sources),
            tuple(self.networks),
        )

    def count(self, kind: Literal["X", "Y"]) -> int:
        """Count the inputs or outputs, which must be numbered without a gap."""
        numbers = {number for letter, number in self.declared if letter == kind}
        missing = next((i for i in range(len(numbers)) if i not in numbers), None)
        if not numbers or missing is not None:
            raise BadInput(
                f"{self.name}: {kind}_{missing or 0} is not declared. Declare {kind}_0, {kind}_1, ... "
                "without a gap."
            )
        return len(numbers)


@dataclass
class _Alternative:
    """One conjunction of the disjunctive normal form."""

    reader: SpecReader
    lower: list[IntervalEnd | None]
    upper: list[IntervalEnd | None]
    rows: list[OutputInequality]
    related: RelatedInputs | None = None
    own: bool = False  # it constrains inputs beyond the box that all alternatives share
    lenient: bool = False  # several asserts offer boxes, so some combinations of them may be empty

    def take(self, atom: Atom) -> bool:
        """Add an inequality; return False if the conjunction became infeasible."""
        names = list(atom.factors)
        if not names:
            return atom.bound > 0 or (atom.bound == 0 and not atom.strict)
        if self.related is not None and id(atom) in self.related.used:
            return True  # The substitution of inputs satisfies it.
        if len(names) > 1 or names[0][0] != "X":
            self.rows.append(self.row(atom))
            return True
        number = names[0][1]
        variable = number if self.related is None else self.related.variable(number)
        if variable is None:
            self.rows.append(self.row(atom))
            return True
        self.own = True
        left = self.narrow(atom, variable)
        if not left and not self.lenient:
            shown = self.reader.show(names[0])
            raise self.reader.refuse(atom.line, f"the lower bound of {shown} is above its upper bound.")
        return left

    def row(self, atom: Atom) -> OutputInequality:
        factors = sorted((self.reader.place(name, atom.line), f) for name, f in atom.factors.items())
        row = OutputInequality(tuple(factors), atom.bound, atom.strict)
        if abs(row.scaled.bound) > LARGEST:
            terms = " and ".join(self.reader.show(name) for name in sorted(atom.factors)[:3])
            raise self.reader.refuse(
                atom.line, f"the bound of {terms} is {_size(row.scaled.bound)}, too large for float64."
            )
        return row

    def check_substitution(self, atoms: Iterable[Atom]) -> Iterator[OutputInequality]:
        """The relations of inputs that a substitution satisfies in real arithmetic, but not after rounding."""
        if self.related is not None:
            yield from (self.row(atom) for atom in atoms if id(atom) in self.related.rounded)

    def narrow(self, atom: Atom, variable: int) -> bool:
        """Add a bound of one searched input; return False if its interval became empty."""
        is_upper, end = self.reader.end_of(atom)
        side = self.upper if is_upper else self.lower
        known = side[variable]
        if known is None or (known is not end and _is_tighter(end, known, is_upper)):
            side[variable] = end
        low, high = self.lower[variable], self.upper[variable]
        return low is None or high is None or not is_empty(low, high)

    def box(self, atoms: list[Atom]) -> Box:
        for kind, ends in (("lower", self.lower), ("upper", self.upper)):
            if None in ends:
                missing = ends.index(None)
                missing = missing if self.related is None else self.related.kept[missing]
                where = f" in the alternative that ends in line {atoms[-1].line}" if atoms else ""
                raise self.reader.refuse(
                    self.reader.input_line(missing),
                    f"{self.reader.show(('X', missing))} has no {kind} bound{where}; every input needs both.",
                )
        return tuple(e for e in self.lower if e is not None), tuple(e for e in self.upper if e is not None)


def _is_tighter(end: IntervalEnd, known: IntervalEnd, is_upper: bool) -> bool:
    difference = _compare_fractions(end.value, known.value)
    difference = difference if is_upper else -difference
    return difference < 0 or (difference == 0 and end.strict and not known.strict)


def _name(text: str) -> Name:
    return "X" if text[0] == "X" else "Y", int(text[2:])


def _sum(terms: Sequence[Term]) -> Term:
    factors: dict[Name, Fraction] = {}
    for term in terms:
        for name, factor in term.factors.items():
            factors[name] = factors.get(name, Fraction(0)) + factor
    return Term({n: f for n, f in factors.items() if f}, sum((t.constant for t in terms), Fraction(0)))


def _scale_term(term: Term, factor: Fraction) -> Term:
    return Term({n: f * factor for n, f in term.factors.items() if factor}, term.constant * factor)
