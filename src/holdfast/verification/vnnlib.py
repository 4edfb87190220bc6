"""VNN-LIB 1: a text format for properties of networks with inputs X_i and outputs Y_i.

The conjunction of the asserts is brought into disjunctive normal form: a list of cases, each a box of inputs
with the polytopes that the outputs must avoid there. Numbers are kept as written (fractions), so a
counterexample is checked without rounding. Numbers that float64 cannot represent are rounded so that proofs
cover them (`Spec.box`, `Spec.rules`), or their error is added to the proof (`Spec.factor_error`). The file is
read once from left to right and each bracket is evaluated when it closes, so no nesting depth can exhaust the
stack.

The format: https://www.vnnlib.org.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from holdfast.errors import BadInput, UnreadableFile
from holdfast.files import read_unpacked
from holdfast.memory_budget import available_bytes, format_bytes
from holdfast.property.avoid import Avoid

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
TOKEN = re.compile(r"\n|;[^\n]*|[()]|[^\s();]+")  # Newlines are counted; comments are skipped.
VARIABLE = re.compile(r"[XY]_(0|[1-9][0-9]{0,8})")
VALUE = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Numbers short enough for exact arithmetic.
NUMBER = re.compile(r"[+-]?([0-9]{1,400}(\.[0-9]{0,400})?|\.[0-9]{1,400})([eE][+-]?[0-9]{1,3})?")
LARGEST = Fraction(torch.finfo(torch.float64).max)
# Rows with factors between 1/LARGEST_UNSCALED and LARGEST_UNSCALED are not rescaled (chosen by hand).
LARGEST_UNSCALED = 2**64
EXACT_INTEGERS = 2**53  # float64 represents every smaller natural number.
IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "exit")

Name: TypeAlias = tuple[Literal["X", "Y"], int]
Token: TypeAlias = tuple[str, int]  # a token and its line


@dataclass(frozen=True)
class Term:
    """An affine term: sum of factor * variable + constant."""

    factors: dict[Name, Fraction]
    constant: Fraction


@dataclass(frozen=True)
class Atom:
    """An inequality: sum of factor * variable <= bound, or < if strict. `line` is its line in the file."""

    factors: dict[Name, Fraction]
    bound: Fraction
    strict: bool
    line: int


Formula: TypeAlias = list[list[Atom]]  # disjunction of conjunctions
Item: TypeAlias = "str | Term | Formula"


@dataclass(frozen=True)
class IntervalEnd:
    """A lower or upper bound of an input."""

    value: Fraction
    strict: bool


Box: TypeAlias = tuple[tuple[IntervalEnd, ...], tuple[IntervalEnd, ...]]  # lower and upper bounds


@dataclass(frozen=True)
class OutputInequality:
    """An inequality of outputs: sum of factor * Y_i <= bound, or < if strict."""

    factors: tuple[tuple[int, Fraction], ...]
    bound: Fraction
    strict: bool

    def holds(self, outputs: Sequence[float]) -> bool:
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
    """A box of inputs and the polytopes that the outputs must avoid there."""

    lower: tuple[IntervalEnd, ...]
    upper: tuple[IntervalEnd, ...]
    polytopes: tuple[tuple[OutputInequality, ...], ...]

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

    def is_violated(self, outputs: Sequence[float]) -> bool:
        """Return whether the outputs lie in one of the polytopes, in exact arithmetic."""
        return any(all(row.holds(outputs) for row in rows) for rows in self.polytopes)


@dataclass(frozen=True)
class Spec:
    """A whole file.

    A counterexample is an input in the box of a case, with outputs in a polytope of the same case.
    """

    name: str
    inputs: int
    outputs: int
    cases: tuple[Case, ...]

    def box(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds (cases, inputs) float64 that contain every allowed input."""
        lower = [[_round_towards(end.value, -1) for end in case.lower] for case in self.cases]
        upper = [[_round_towards(end.value, +1) for end in case.upper] for case in self.cases]
        return torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64)

    def inside(self) -> tuple[Tensor, Tensor]:
        """Bounds (cases, inputs) float64 between which lie exactly the allowed float64 numbers.

        If lower > upper, no float64 number is allowed.
        """
        lower = [[_inwards(end, +1) for end in case.lower] for case in self.cases]
        upper = [[_inwards(end, -1) for end in case.upper] for case in self.cases]
        return torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64)

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
    from holdfast.verification.vnnlib2 import parse2  # imports an optional package

    return parse2(text, name)


def spec_of(tokens: Iterable[Token], name: str) -> Spec:
    """Build the specification from tokens of version 1."""
    reader = _Reader(name)
    for token, line in tokens:
        reader.read_token(token, line)
    return reader.finish()


def tokens_of(text: str) -> Iterator[Token]:
    """Yield tokens with their line numbers, without comments."""
    line = 1
    # An iterator: a list of all tokens would need many times the size of the file.
    for found in TOKEN.finditer(text):
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


class _Reader:
    """Parser state: the contents of the open brackets, and the asserts that were read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open: list[tuple[int, list[Item]]] = []  # for each open bracket its line and its contents
        self.declared: dict[Name, int] = {}  # line of each declaration
        self.asserted: list[Formula] = []
        self.steps = 0
        # Cache of comparisons of two words: large files repeat them.
        self.compared: dict[object, tuple[dict[Name, Fraction], Fraction]] = {}

    def refuse(self, line: int, message: str) -> BadInput:
        return BadInput(f"{self.name}:{line}: {message}")

    def read_token(self, token: str, line: int) -> None:
        if token == "(":
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
        if operator in ("<=", ">=", "<", ">"):
            return self.read_comparison(str(operator), rest, line)
        if operator in ("+", "-", "*"):
            return self.read_arithmetic(str(operator), rest, line)
        shown = operator if isinstance(operator, str) else "a bracket"
        raise self.refuse(line, f"{shown!r} is not allowed here: expected and, or, <=, >=, <, >, +, -, *.")

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
        if len(items) != 2:
            raise self.refuse(line, f"({operator} ...) compares two terms, found {len(items)}.")
        words = (operator, *items) if all(isinstance(item, str) for item in items) else None
        found = self.compared.get(words)
        if found is None:
            left, right = (self.term(item, line) for item in items)
            if operator in (">=", ">"):
                left, right = right, left
            difference = _sum([left, _scale_term(right, Fraction(-1))])
            found = difference.factors, -difference.constant
            if words is not None and len(self.compared) < MOST_COMPARED:
                self.compared[words] = found
        return [[Atom(*found, operator in ("<", ">"), line)]]

    def read_arithmetic(self, operator: str, items: list[Item], line: int) -> Term:
        terms = [self.term(item, line) for item in items]
        if not terms:
            raise self.refuse(line, f"({operator}) has no operands.")
        if operator == "*":
            moving = [term for term in terms if term.factors]
            if len(moving) > 1:
                raise self.refuse(line, "a product of two variables: only linear terms are supported.")
            factor = Fraction(1)
            for term in terms:
                factor *= Fraction(1) if term.factors else term.constant
                self.check_size(Term({}, factor), line)
            return self.check_size(_scale_term(moving[0] if moving else Term({}, Fraction(1)), factor), line)
        if operator == "-":
            terms = (
                [_scale_term(terms[0], Fraction(-1))]
                if len(terms) == 1
                else [terms[0], *(_scale_term(t, Fraction(-1)) for t in terms[1:])]
            )
        return self.check_size(_sum(terms), line)

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
        if isinstance(item, list):
            raise self.refuse(line, "found a comparison where a number or a variable is expected.")
        if VARIABLE.fullmatch(item):
            if _name(item) not in self.declared:
                raise self.refuse(line, f"{item} is not declared. Add (declare-const {item} Real) before it.")
            return Term({_name(item): Fraction(1)}, Fraction(0))
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
        inputs, outputs = self.count("X"), self.count("Y")
        # Asserts with a single alternative are applied once; every choice of the other alternatives then
        # starts from there.
        common = _Alternative(self, [None] * inputs, [None] * inputs, [])
        possible = all(
            common.take(atom) for formula in self.asserted if len(formula) == 1 for atom in formula[0]
        )
        choices = [formula for formula in self.asserted if len(formula) != 1]
        lenient = (
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
                self, list(common.lower), list(common.upper), list(common.rows), lenient=lenient
            )
            if not all(one.take(atom) for atom in atoms):
                continue
            ends += inputs * one.own
            if ends > MOST_BOUNDS:
                raise self.refuse(
                    atoms[-1].line,
                    f"the file has boxes with more than {MOST_BOUNDS} bounds in all. Split it into several.",
                )
            polytopes = found.setdefault(one.box(atoms), []) if one.own or shared is None else shared
            shared = shared if one.own else polytopes
            polytopes.append(tuple(one.rows))
        cases = tuple(Case(*box, tuple(dict.fromkeys(polytopes))) for box, polytopes in found.items())
        return Spec(self.name, inputs, outputs, cases)

    def count(self, kind: str) -> int:
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

    reader: _Reader
    lower: list[IntervalEnd | None]
    upper: list[IntervalEnd | None]
    rows: list[OutputInequality]
    own: bool = False  # it constrains inputs beyond the box that all alternatives share
    lenient: bool = False  # several asserts offer boxes, so some combinations of them may be empty

    def take(self, atom: Atom) -> bool:
        """Add an inequality; return False if the conjunction became infeasible."""
        names = list(atom.factors)
        if not names:
            return atom.bound > 0 or (atom.bound == 0 and not atom.strict)
        if all(kind == "Y" for kind, _ in names):
            row = OutputInequality(
                tuple(sorted((i, f) for (_, i), f in atom.factors.items())), atom.bound, atom.strict
            )
            if abs(row.scaled.bound) > LARGEST:
                terms = " and ".join(f"Y_{i}" for i, _ in row.factors[:3])
                raise self.reader.refuse(
                    atom.line, f"the bound of {terms} is {_size(row.scaled.bound)}, too large for float64."
                )
            self.rows.append(row)
            return True
        if len(names) > 1:
            raise self.reader.refuse(
                atom.line,
                "compares an input with another variable: inputs must lie in a box, so compare X_i with a "
                "number.",
            )
        self.own = True
        left = self.narrow(atom)
        if not left and not self.lenient:
            raise self.reader.refuse(
                atom.line, f"the lower bound of X_{names[0][1]} is above its upper bound."
            )
        return left

    def narrow(self, atom: Atom) -> bool:
        """Add a bound of one input; return False if its interval became empty."""
        (((_, i), factor),) = atom.factors.items()
        end = IntervalEnd(
            atom.bound if factor == 1 else -atom.bound if factor == -1 else atom.bound / factor, atom.strict
        )
        if abs(end.value) > LARGEST:
            raise self.reader.refuse(
                atom.line, f"the bound of X_{i} is {_size(end.value)}, too large for float64."
            )
        if factor > 0:
            self.upper[i] = min(
                (e for e in (self.upper[i], end) if e is not None), key=lambda e: (e.value, not e.strict)
            )
        else:
            self.lower[i] = max(
                (e for e in (self.lower[i], end) if e is not None), key=lambda e: (e.value, e.strict)
            )
        low, high = self.lower[i], self.upper[i]
        return (
            low is None
            or high is None
            or low.value < high.value
            or (low.value == high.value and not (low.strict or high.strict))
        )

    def box(self, atoms: list[Atom]) -> Box:
        for kind, ends in (("lower", self.lower), ("upper", self.upper)):
            if None in ends:
                missing = ends.index(None)
                where = f" in the alternative that ends in line {atoms[-1].line}" if atoms else ""
                line = self.reader.declared["X", missing]
                raise self.reader.refuse(
                    line, f"X_{missing} has no {kind} bound{where}; every input needs both."
                )
        return tuple(e for e in self.lower if e is not None), tuple(e for e in self.upper if e is not None)


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
