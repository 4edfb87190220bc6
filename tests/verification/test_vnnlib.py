"""VNN-LIB files: every form becomes boxes and polytopes that mean the same, and what cannot be read is told with its line."""

import gzip
import math
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput, UnreadableFile
from holdfast.verification.vnnlib import Spec, parse, read_vnnlib

BOX = "(assert (>= X_0 -1)) (assert (<= X_0 1))"


def spec(body: str, inputs: int = 1, outputs: int = 2) -> Spec:
    declared = [f"(declare-const X_{i} Real)" for i in range(inputs)] + [
        f"(declare-const Y_{i} Real)" for i in range(outputs)
    ]
    return parse("\n".join([*declared, body]))


def meets(found: Spec, x: list[float], y: list[float]) -> bool:
    return any(case.holds(x) and case.is_violated(y) for case in found.cases)


@pytest.mark.parametrize(
    ("body", "inside", "outside"),
    [
        (f"{BOX} (assert (<= Y_0 2))", [([1.0], [2.0, 0.0])], [([1.0], [2.1, 0.0]), ([1.1], [0.0, 0.0])]),
        (f"{BOX} (assert (>= 2 Y_0))", [([-1.0], [2.0, 0.0])], [([0.0], [2.1, 0.0])]),
        (f"{BOX} (assert (< Y_0 2))", [([0.0], [1.9, 0.0])], [([0.0], [2.0, 0.0])]),
        (f"{BOX} (assert (> Y_0 Y_1))", [([0.0], [1.0, 0.9])], [([0.0], [1.0, 1.0])]),
        (f"{BOX} (assert (<= Y_0 Y_1))", [([0.0], [1.0, 1.0])], [([0.0], [1.0, 0.9])]),
        ("(assert (> X_0 0)) (assert (< 3 (- X_0 -4))) (assert (<= X_0 2)) (assert (<= Y_0 0))", [([0.1], [0, 0])], [([0.0], [0, 0])]),
        ("(assert (<= (* -2 X_0) 2)) (assert (<= (* 2 X_0 3) 6)) (assert (<= Y_0 0))", [([-1.0], [0.0, 0.0])], [([1.1], [0.0, 0.0])]),
        (f"{BOX} (assert (>= (+ Y_0 (* 3 Y_1) 1) 0))", [([0.0], [2.0, -1.0])], [([0.0], [1.9, -1.0])]),
        (f"{BOX} (assert (<= (- Y_0) (- Y_1 Y_0 -1)))", [([0.0], [9.0, -1.0])], [([0.0], [0.0, -1.1])]),
        (f"{BOX} (assert (or (<= Y_0 0) (and (<= Y_1 0) (<= Y_0 1))))", [([0.0], [0.0, 9.0]), ([0.0], [1.0, 0.0])], [([0.0], [1.0, 1.0])]),
        (f"{BOX} (assert (and (or (<= Y_0 0) (<= Y_1 0)) (or (>= Y_0 -1) (>= Y_1 9))))", [([0.0], [0.0, 1.0])], [([0.0], [-2.0, 1.0])]),
        (
            "(assert (or (and (<= X_0 1) (>= X_0 0)) (and (<= X_0 5) (>= X_0 4)))) (assert (or (<= Y_0 0) (<= Y_1 0)))",
            [([0.5], [0.0, 1.0]), ([4.5], [1.0, 0.0])],
            [([2.0], [0.0, 0.0]), ([0.5], [1.0, 1.0])],
        ),
        ("(assert (or (and (<= X_0 1) (>= X_0 0) (<= Y_0 0)) (and (<= X_0 5) (>= X_0 4) (<= Y_1 0))))", [([5.0], [1, 0])], [([5], [0, 1])]),
        (f"{BOX} (assert (<= 0 1))", [([0.0], [7.0, 7.0])], [([2.0], [0.0, 0.0])]),
        (f"{BOX} (assert (<= 1 0)) (assert (<= Y_0 1))", [], [([0.0], [0.0, 0.0])]),
        (f"{BOX} ; a comment (assert (<= Y_0 -5))\n (assert (<= Y_0 1e-1)) (set-logic QF)", [([0.0], [0.09, 0.0])], []),
    ],
)  # fmt: skip
def test_what_a_file_means(
    body: str, inside: list[tuple[list[float], list[float]]], outside: list[tuple[list[float], list[float]]]
) -> None:
    found = spec(body)
    assert all(meets(found, x, y) for x, y in inside)
    assert not any(meets(found, x, y) for x, y in outside)


def test_alternatives_with_the_same_box_share_a_case() -> None:
    found = spec(f"{BOX} (assert (or (<= Y_0 0) (<= Y_1 0) (and (<= Y_0 1) (<= Y_1 1))))")
    assert len(found.cases) == 1
    rules = found.rules()
    assert tuple(rules.matrix.shape) == (1, 3, 2, 2)
    score = rules.score(torch.tensor([[0.5, 0.75]], dtype=torch.float64))
    assert float(score) == -0.25  # inside the third polytope only, whose shorter siblings repeat a row
    assert (
        len(
            spec(
                "(assert (or (and (<= X_0 1) (>= X_0 0)) (and (<= X_0 5) (>= X_0 4)))) (assert (<= Y_0 0))"
            ).cases
        )
        == 2
    )


def test_boxes_that_exclude_each_other_leave_what_they_share() -> None:
    pieces = "(or (and (<= X_0 1) (>= X_0 0)) (and (<= X_0 5) (>= X_0 4)))"
    found = spec(f"(assert {pieces}) (assert {pieces}) (assert (<= Y_0 0))")
    assert len(found.cases) == 2
    assert meets(found, [0.5], [0.0, 0.0])
    assert not meets(found, [2.0], [0.0, 0.0])


def test_ends_are_rounded_so_that_nothing_is_left_out() -> None:
    found = spec("(assert (>= X_0 0.1)) (assert (<= X_0 0.3)) (assert (<= Y_0 0.7))")
    lower, upper = found.box()
    assert Fraction(float(lower)) <= Fraction("0.1")
    assert Fraction(float(upper)) >= Fraction("0.3")
    assert -Fraction(float(found.rules().offset)) >= Fraction("0.7")
    exact = spec("(assert (>= X_0 0.5)) (assert (<= X_0 0.75)) (assert (<= Y_0 1))").box()
    assert [float(end) for end in exact] == [0.5, 0.75]


def test_factors_that_float64_cannot_write_become_whole_numbers() -> None:
    found = spec(f"{BOX} (assert (<= (+ (* 0.1 Y_0) (* -0.3 Y_1)) 0.7))")
    assert found.exact
    rules = found.rules()
    assert rules.matrix.flatten().tolist() == [1.0, -3.0]
    assert float(rules.offset) == -7.0
    assert not found.factor_error().any()
    kept = spec(f"{BOX} (assert (<= (+ (* 0.5 Y_0) (* -3 Y_1)) 0.7))").rules().matrix.flatten().tolist()
    assert kept == [0.5, -3.0]  # the score stays in the units of the file where they can be kept
    for huge in ("1e400", "-1e400", "1e-400"):
        scaled = spec(f"{BOX} (assert (<= (* {huge} Y_0) (* {huge} 3)))").rules()
        sign = -1.0 if huge.startswith("-") else 1.0
        assert (scaled.matrix.flatten().tolist(), float(scaled.offset)) == ([sign, 0.0], -3 * sign)


@given(
    st.lists(
        st.tuples(st.integers(1, 10**25), st.integers(-30, 30), st.sampled_from([1, -1])),
        min_size=2,
        max_size=2,
    )
)
def test_what_factors_miss_is_known(parts: list[tuple[int, int, int]]) -> None:
    """Of ratios that float64 cannot write at all: the exact factors, up to a common one, lie as near as `missed` says."""
    written = [f"{sign * digits}e{exponent}" for digits, exponent, sign in parts]
    found = spec(f"{BOX} (assert (<= (+ (* {written[0]} Y_0) (* {written[1]} Y_1)) 0))")
    ((row,),) = found.cases[0].polytopes
    scale = row.scaled.factors[0][1] / row.factors[0][1]
    assert scale > 0
    taken, missed = found.rules().matrix.flatten().tolist(), found.factor_error().flatten().tolist()
    for text, factor, error in zip(written, taken, missed, strict=True):
        assert abs(Fraction(text) * scale - Fraction(factor)) <= Fraction(error)
        assert error <= 2.0**-52
    assert found.exact == (not any(missed))


ODD = ["inf", "nan", "1", "0", "-0.0", "5e-324", "1e400", "1.8e308", "1e"]
WORDS = ["", "-", "+", "--", "0x", "0b", "1_", "1/", "e", "E", ".", "١", "１"]


@given(
    st.one_of(
        st.builds(
            "{}{}.{}e{}".format,
            st.sampled_from(["", "-", "+"]),
            st.integers(0, 10**20),
            st.integers(0, 10**20),
            st.integers(-2000, 2000),
        ),
        st.builds(
            "{}{}".format,
            st.sampled_from(WORDS),
            st.sampled_from(["inf", "nan", "1", "0", "-0.0", "5e-324", "1e400", "1.8e308", "1e"]),
        ),
        st.floats(allow_nan=True, allow_infinity=True).map(repr),
    ),
    st.sampled_from(
        [
            "(<= Y_0 {})",
            "(> Y_0 {})",
            "(<= (* {} Y_0) 1)",
            "(<= (+ (* {} Y_0) Y_1) 1)",
            "(<= X_0 {})",
            "(> (* {} X_0) 1)",
        ]
    ),
)
def test_any_number_is_read_exactly_or_refused_with_its_line(number: str, place: str) -> None:
    told, found = "", None
    try:
        found = spec(f"{BOX}\n(assert {place.format(number)})")
    except BadInput as error:
        told = str(error)
    if found is None:
        assert told.startswith("property:5: ")
        return
    if found.cases:
        (lower, upper), rules = found.box(), found.rules()
        assert bool(
            (lower <= upper).all() and rules.matrix.isfinite().all() and rules.offset.isfinite().all()
        )
        assert found.factor_error().isfinite().all()
        assert found.inside()[0].isfinite().all()
    value = Fraction(number)  # so it is a number, in the digits that everybody reads
    assert number.isascii()
    for case in found.cases if place == "(<= Y_0 {})" else ():
        assert case.is_violated([0.0, 0.0]) == (value >= 0)


def test_ends_between_which_exactly_the_allowed_numbers_lie() -> None:
    found = spec(
        "(assert (>= X_0 0.3)) (assert (< X_0 0.5)) (assert (> X_1 0.5)) (assert (<= X_1 0.7)) (assert (<= Y_0 0))",
        inputs=2,
    )
    (lower,), (upper,) = (end.tolist() for end in found.inside())
    assert lower == [math.nextafter(0.3, 1), math.nextafter(0.5, 1)]  # float64's 0.3 is below three tenths
    assert upper == [math.nextafter(0.5, 0), 0.7]
    (case,) = found.cases
    assert case.holds(lower)
    assert case.holds(upper)
    for i in range(2):
        assert not case.holds([math.nextafter(v, 0) if k == i else v for k, v in enumerate(lower)])
        assert not case.holds([math.nextafter(v, 1) if k == i else v for k, v in enumerate(upper)])
    assert not case.holds([math.nan, 0.6])
    none = spec("(assert (>= X_0 0.1)) (assert (<= X_0 0.1)) (assert (<= Y_0 0))").inside()
    assert float(none[0]) == math.nextafter(float(none[1]), 1)


def test_counterexamples_are_compared_without_rounding() -> None:
    found = spec(f"{BOX} (assert (<= (+ Y_0 Y_1) 0.3))")
    (case,) = found.cases
    assert 0.1 + 0.2 > 0.3  # what float64 makes of it
    assert case.is_violated([0.1, 0.2]) == (Fraction(0.1) + Fraction(0.2) <= Fraction("0.3"))
    tiny = 2.0**-80
    assert case.is_violated([0.25, 0.0])
    assert not spec(f"{BOX} (assert (< Y_0 1))").cases[0].is_violated([1.0, 0.0])
    assert (
        not spec(f"{BOX} (assert (<= (+ Y_0 Y_1) 1))").cases[0].is_violated([1.0, tiny])
    )  # 1 + tiny is 1 in float64


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("(assert (<= X_0 1))", 1, ["X_0 has no lower bound;"]),
        ("(assert (>= X_0 1))\n(assert (or (<= Y_0 1)\n(<= Y_1 1)))", 1, ["X_0 has no upper bound", "ends in line 5"]),
        (f"{BOX}\n(assert (<= Y_7 1))", 5, ["Y_7 is not declared"]),
        (f"{BOX}\n(assert (<= Z_0 1))", 5, ["'Z_0' is neither a number nor a variable"]),
        (f"{BOX}\n(assert (<= 1e9999 Y_0))", 5, ["'1e9999'"]),
        (f"{BOX}\n(assert (<= (* Y_0 {'Y_1 ' * 16}) 1))", 5, ["more than 16 variables are multiplied"]),
        (f"{BOX}\n(assert (!= Y_0 1))", 5, ["'!=' is not allowed here"]),
        (f"{BOX}\n\n(assert (<= Y_0 1)", 6, ["never closed"]),
        (f"{BOX}\n(assert (<= Y_0 1)))", 5, ["closing bracket without an opening one"]),
        ("(assert (>= X_0 1))\n(assert (<= X_0 0.5))", 5, ["lower bound of X_0 is above"]),
        ("(assert (> X_0 1))\n(assert (<= X_0 1))", 5, ["lower bound of X_0 is above"]),
        (f"{BOX}\n(assert (<= Y_0))", 5, ["compares two terms, found 1"]),
        (f"{BOX}\n(assert (= Y_0 1))", 5, ["'=' is not allowed here"]),
        (f"{BOX}\n(assert (and Y_0 (<= Y_1 1)))", 5, ["(and ...) joins comparisons"]),
        (f"{BOX}\n(assert (<= (<= Y_0 1) 1))", 5, ["found a comparison where a number"]),
        (f"{BOX}\n(assert Y_0)", 5, ["expected (assert ...)"]),
        (f"{BOX}\n(declare-const Y_2 Int)", 5, ["expected (declare-const X_0 Real)"]),
        (f"{BOX}\n(declare-const W Real)", 5, ["'W'", "X_0"]),
        (f"{BOX}\n(prove Y_0)", 5, ["'prove' is not a command"]),
        (f"{BOX}\nY_0", 5, ["outside of any bracket"]),
        (f"{BOX}\n(assert (<= (+) Y_0))", 5, ["has no operands"]),
        ("(assert (>= X_0 -1e999))", 4, ["the bound of X_0 is about -1e999", "too large for float64"]),
        (f"{BOX}\n(assert (<= Y_0 1e400))", 5, ["the bound of Y_0 is about 1e400", "too large for float64"]),
        (f"{BOX}\n(assert (<= (* 1e-400 Y_0) Y_1 ))\n(assert (<= (* 1e-400 Y_0) 1))", 6, ["the bound of Y_0 is about 1e400"]),
        (f"{BOX}\n(assert (<= Y_0 {'1' * 500}))", 5, ["is too long", "400 digits"]),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_with_its_line(body: str, line: int, words: list[str]) -> None:
    with pytest.raises(BadInput) as error:
        spec(body)
    message = str(error.value)
    assert message.startswith(f"property:{line}: "), message
    assert all(word in message for word in words), message


def test_variables_are_numbered_without_a_gap() -> None:
    with pytest.raises(BadInput, match="X_1 is not declared"):
        parse("(declare-const X_0 Real) (declare-const X_2 Real) (declare-const Y_0 Real)")
    with pytest.raises(BadInput, match="Y_0 is not declared"):
        parse("(declare-const X_0 Real)")
    with pytest.raises(BadInput, match="X_0 is not declared"):
        parse("")


def test_too_many_alternatives_are_refused_before_they_fill_the_memory() -> None:
    pair = "(assert (or (<= Y_0 0) (<= Y_1 0)))"
    with pytest.raises(BadInput, match="more than 65536 alternatives"):
        spec(f"{BOX} {pair * 40}")


def test_files_packed_plain_and_damaged(tmp_path: Path) -> None:
    text = f"(declare-const X_0 Real) (declare-fun Y_0 () Real) {BOX} (assert (<= Y_0 0))"
    plain, packed, torn, binary = (
        tmp_path / name for name in ("a.vnnlib", "b.vnnlib.gz", "c.vnnlib.gz", "d.vnnlib")
    )
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    torn.write_bytes(gzip.compress(text.encode())[:-12])
    binary.write_bytes(b"\xff\xfe\x00(")
    assert read_vnnlib(plain).cases == read_vnnlib(packed).cases
    for file, words in (
        (torn, "damaged"),
        (binary, "not text"),
        (tmp_path / "none", "no such file"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(UnreadableFile, match=words):
            read_vnnlib(file)
    plain.write_text("(declare-const X_0 Real)\n(assert (<= X_0 1)")
    with pytest.raises(BadInput, match=r"a\.vnnlib:2: "):
        read_vnnlib(plain)


@pytest.mark.parametrize("depth", [20_000])
def test_deep_nesting_needs_no_stack(depth: int) -> None:
    assert meets(spec(f"{BOX} (assert {'(and ' * depth}(<= Y_0 0){')' * depth})"), [0.0], [0.0, 0.0])
    assert meets(spec(f"{BOX} (assert (<= {'(+ ' * depth}Y_0{')' * depth} 0))"), [0.0], [0.0, 0.0])


def test_a_long_file_is_read_in_seconds() -> None:
    count = 25_000
    lines = [f"(declare-const X_{i} Real)" for i in range(count)] + [
        "(declare-const Y_0 Real)",
        "(declare-const Y_1 Real)",
    ]
    lines += [f"(assert (>= X_{i} -0.{i + 1}))\n(assert (<= X_{i} 0.{i + 1}))" for i in range(count)]
    lines += ["(assert (or " + "".join(f"(and (<= Y_0 {i}) (<= Y_1 -{i}))" for i in range(9)) + "))"]
    began = time.process_time()
    found = parse("\n".join(lines))
    assert time.process_time() - began < 30
    assert (found.inputs, len(found.cases), len(found.cases[0].polytopes)) == (count, 1, 9)


Check = Callable[[dict[str, float]], bool]
NUMBERS = st.integers(-4, 4)


def comparisons(names: list[str]) -> st.SearchStrategy[tuple[str, Check]]:
    """A comparison as text, and what it means."""

    def made(parts: tuple[str, str, int, int]) -> tuple[str, Check]:
        operator, name, factor, bound = parts
        meaning: dict[str, Callable[[float, float], bool]] = {
            "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,
        }  # fmt: skip
        return f"({operator} (+ (* {factor} {name}) Y_0) {bound})", lambda v: meaning[operator](
            factor * v[name] + v["Y_0"], bound
        )

    return st.tuples(st.sampled_from(["<=", ">=", "<", ">"]), st.sampled_from(names), NUMBERS, NUMBERS).map(
        made
    )


def joined(inner: st.SearchStrategy[tuple[str, Check]]) -> st.SearchStrategy[tuple[str, Check]]:
    def made(parts: tuple[str, list[tuple[str, Check]]]) -> tuple[str, Check]:
        operator, items = parts
        every = all if operator == "and" else any
        return f"({operator} {' '.join(text for text, _ in items)})", lambda v: every(
            check(v) for _, check in items
        )

    return st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3)).map(made)


@given(
    st.lists(st.recursive(comparisons(["Y_0", "Y_1"]), joined, max_leaves=6), min_size=1, max_size=3),
    st.lists(NUMBERS, min_size=3, max_size=3),
)
def test_any_formula_means_what_it_says(formulas: list[tuple[str, Check]], point: list[int]) -> None:
    found = spec(BOX + " ".join(f"(assert {text})" for text, _ in formulas))
    values = {"X_0": point[0], "Y_0": point[1], "Y_1": point[2]}
    truth = abs(point[0]) <= 1 and all(check(values) for _, check in formulas)
    assert meets(found, [float(point[0])], [float(v) for v in point[1:]]) == truth
    if found.cases and abs(point[0]) <= 1:
        # A strict comparison holds wherever its score is negative, a loose one where it is zero too.
        score = float(found.rules().score(torch.tensor([point[1:]], dtype=torch.float64)))
        assert score <= 0 if truth else score >= 0


def test_a_comparison_that_is_repeated_is_read_the_same_each_time() -> None:
    """Comparisons are kept while a file is read; the operator and the order of its two sides count."""
    declared = "(declare-const X_0 Real)(declare-const Y_0 Real)"
    sides = ("(<= X_0 0.5)", "(< X_0 0.5)", "(>= 0.5 X_0)", "(<= X_0 0.25)", "(<= X_0 0.5)")
    spec = parse(
        declared + f"(assert (or {' '.join(f'(and {side} (>= X_0 -1) (<= Y_0 0.5))' for side in sides)}))"
    )
    found = [(case.upper[0].value, case.upper[0].strict) for case in spec.cases]  # equal boxes are one case
    assert found == [(Fraction(1, 2), False), (Fraction(1, 2), True), (Fraction(1, 4), False)]
    assert {case.lower[0].value for case in spec.cases} == {Fraction(-1)}


@pytest.mark.parametrize(
    "body",
    [
        "(assert (or (and (>= X_0 0.5) (<= X_0 0.75) (<= Y_0 -1e-3)) (and (> X_0 -.5) (<= X_0 +2.) (>= Y_0 3))))",
        "(assert (>= X_0 -1)) (assert (<= X_0 1)) (assert (<= X_0 1)) (assert (or (<= Y_0 0.1) (>= Y_0 4.0)))",
        "(assert (<= X_0 1)) (assert (>= X_0 1)) (assert (< Y_0 0.10))",
        "(assert (<= X_0 0.30)) (assert (< X_0 0.3)) (assert (>= X_0 -0.30)) (assert (>= X_0 -0.4)) (assert (> Y_0 1))",
    ],
)
def test_brackets_in_one_piece_are_read_as_their_tokens(body: str) -> None:
    declared = "(declare-const X_0 Real)(declare-const Y_0 Real)"
    apart = body.replace("X_0 ", "X_0\n")  # No bracket of an input is in one piece.
    one, other = parse(declared + body), parse(declared + apart.replace("Y_0 ", "Y_0\n"))
    assert one.cases == other.cases


@pytest.mark.parametrize(
    "bracket", ["(>= X_0 0.5)", "(<= X_7 1)", "(<= X_0 1e9999)", "(<= X_0 1.2.3)", "(<= X_01 1)"]
)
def test_brackets_in_one_piece_are_refused_as_their_tokens(bracket: str) -> None:
    declared, told = "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n", []
    for text in (bracket, bracket.replace(" ", "  ").replace("X_", "\tX_")):
        body = text if bracket == "(>= X_0 0.5)" else f"(assert {text})"
        with pytest.raises(BadInput) as refused:
            parse(declared + body)
        told.append(str(refused.value).replace("\t", ""))
    assert told[0] == told[1]
