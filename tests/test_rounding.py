"""Rounding charges: one function computes them all, every factor suffices, and docs/rounding.md lists them."""

import ast
import functools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from holdfast.derivations import BOX_CORNER, DERIVATIONS, MOST_TERMS, NONNEGATIVE_SUM, Derivation
from holdfast.rounding import TINY, add_rounding_down, centre_and_radius, charge, gamma, round_down, round_up
from holdfast_check import arithmetic
from holdfast_check.arithmetic import ErrorCount

CHECKED = {name: row for name, row in vars(arithmetic).items() if isinstance(row, ErrorCount)}
ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "src" / "holdfast"
CHECKER = ROOT / "src" / "holdfast_check"
CHARGES = {"gamma", "charge", "charge_rate", "round_up", "round_down"}
UNIT = Fraction(1, 2**53)
UNIT_FLOAT32 = Fraction(1, 2**24)
MOST_TERMS_FLOAT32 = 8 * 10**6  # `gamma` refuses longer sums in float32.


def exact_gamma(terms: int, unit: Fraction = UNIT) -> Fraction:
    return terms * unit / (1 - terms * unit)


def covers(derivation: Derivation, terms: int) -> bool:
    """The inequality in the docstring of `Derivation`, in exact arithmetic."""
    executed = derivation.section == "As executed"
    unit = UNIT_FLOAT32 if executed else UNIT
    # The size is summed in float64: fewer than 2^41 terms, or, as executed, as many as float32 sums have.
    lost = exact_gamma(MOST_TERMS_FLOAT32) if executed else Fraction(1, 2**12)
    charged = (
        derivation.factor * exact_gamma(terms + derivation.spare + 4, unit) * (1 - lost) * (1 - 3 * UNIT)
    )
    return charged >= derivation.errors * exact_gamma(terms + derivation.operations, unit)


def rounds_up(derivation: Derivation, terms: int) -> bool:
    """A sum that is too small by the errors is at least the exact one after `round_up`."""
    raised = 1 + derivation.factor * exact_gamma(terms + derivation.spare + 4)
    computed = 1 - derivation.errors * exact_gamma(terms + derivation.operations)
    return raised * computed * (1 - 2 * UNIT) >= 1


def numbers_of_terms(most: int) -> list[int]:
    """Zero, and values up to `most` whose logarithms are spread evenly."""
    return sorted({0, most} | {round(1.7**k) for k in range(53) if 1.7**k <= most})


@pytest.mark.parametrize("name", DERIVATIONS)
def test_every_factor_covers_the_errors_of_its_derivation(name: str) -> None:
    derivation = DERIVATIONS[name]
    executed = derivation.section == "As executed"
    most = MOST_TERMS_FLOAT32 if executed else MOST_TERMS if derivation.factor > derivation.errors else 0
    for terms in numbers_of_terms(most):
        assert covers(derivation, terms), (name, terms)


@pytest.mark.parametrize("name", [name for name, row in DERIVATIONS.items() if row.factor == 1])
def test_a_factor_of_one_is_used_for_a_fixed_number_of_operations(name: str) -> None:
    """There the additional terms cover the errors, which they do not for long float64 sums."""
    if DERIVATIONS[name].section == "As executed":
        return
    for place, names, arguments, keywords in charges():
        if name in names:
            assert (arguments, keywords) == (2, 0), place


@functools.cache
def charges() -> list[tuple[str, set[str], int, int]]:
    """Every call of a function of CHARGES: place, names among its arguments, numbers of arguments and keywords."""
    return [
        (
            f"{path}:{call.lineno}",
            {part.id for part in call.args if isinstance(part, ast.Name)},
            len(call.args),
            len(call.keywords),
        )
        for path in ENGINE.rglob("*.py")
        for call in calls(ast.parse(path.read_text()))
    ]


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CHARGES:
            yield node


def chosen_factors(path: Path) -> list[int]:
    """The lines on which a number multiplies a charge, or a module outside rounding.py computes with gamma."""
    tree = ast.parse(path.read_text())
    found = [call.lineno for call in calls(tree) if call.func.id in {"gamma", "charge_rate"}]  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith((".rounding", ".arithmetic")):
            found += [node.lineno for alias in node.names if alias.name in {"gamma", "charge_rate"}]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            for side, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(side, ast.Constant) and any(True for _ in calls(other)):
                    found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "path",
    [*ENGINE.rglob("*.py"), *CHECKER.rglob("*.py")],
    ids=lambda path: str(path.relative_to(ROOT / "src")),
)
def test_no_module_chooses_a_factor_of_its_own(path: Path) -> None:
    if path not in (ENGINE / "rounding.py", CHECKER / "arithmetic.py"):
        assert chosen_factors(path) == []


def test_the_search_for_chosen_factors_finds_them(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "from holdfast.rounding import charge, gamma\n"
        "slack = 4 * gamma(3) * size\n"
        "slack = 2 * (charge(size, MAP) + 1)\n"
        "slack = charge(size, MAP)\n"
    )
    assert sorted(set(chosen_factors(path))) == [1, 2, 3]


def row_of(section: str, name: str, row: Derivation | ErrorCount, underflow: bool) -> str:
    operations = f"n + {row.operations}" if row.operations else "n"
    gammas = f"{row.factor} gamma(n + {row.spare})" if row.spare else f"{row.factor} gamma(n)"
    charged = gammas + " + TINY" * underflow
    return f"| {section} | `{name}` | {row.what} | {row.errors} x gamma*({operations}) | {charged} |"


def table() -> list[str]:
    """The rows of the table in docs/rounding.md."""
    engine = [row_of(row.section, name, row, row.underflow) for name, row in DERIVATIONS.items()]
    checker = [row_of(f"The checker, `{row.module}`", name, row, True) for name, row in CHECKED.items()]
    return engine + checker


def test_the_documentation_lists_every_derivation_under_a_section_that_exists() -> None:
    lines = (ROOT / "docs" / "rounding.md").read_text().splitlines()
    missing = [row for row in table() if row not in lines]
    assert not missing, "docs/rounding.md lacks these rows:\n" + "\n".join(missing)
    assert sum(line.startswith("|") and " x gamma*(" in line for line in lines) == len(DERIVATIONS) + len(
        CHECKED
    )
    headings = {line.lstrip("# ") for line in lines if line.startswith("#")}
    assert {row.section for row in DERIVATIONS.values()} <= headings
    assert all((CHECKER / f"{row.module}.py").exists() for row in CHECKED.values())


def test_every_derivation_is_mentioned_where_it_is_derived() -> None:
    lines = (ROOT / "docs" / "rounding.md").read_text().splitlines()
    prose = "\n".join(line for line in lines if not line.startswith("|"))
    assert [name for name in DERIVATIONS if f"`{name}`" not in prose] == []


def names_in(package: Path) -> set[str]:
    trees = [ast.parse(path.read_text()) for path in package.rglob("*.py")]
    return {
        node.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def test_every_derivation_is_used() -> None:
    assert DERIVATIONS.keys() <= names_in(ENGINE)
    assert CHECKED.keys() <= names_in(CHECKER)


@pytest.mark.parametrize("name", CHECKED)
def test_every_factor_of_the_checker_covers_the_errors_of_its_derivation(name: str) -> None:
    row = CHECKED[name]
    for terms in numbers_of_terms(row.most_terms):
        lost = exact_gamma(terms + 4) if row.factor == 1 else Fraction(1, 2**12)
        charged = row.factor * exact_gamma(terms + row.spare + 4) * (1 - lost) * (1 - 3 * UNIT)
        assert charged >= row.errors * exact_gamma(terms + row.operations), (name, terms)


# ---- The functions, in exact arithmetic

MAGNITUDES = [5e-324, 2.0**-1022, 1e-300, 1e-160, 1e-17, 1.0, 3e16, 1e90, 1e150, 1e300]


@pytest.mark.parametrize("first", MAGNITUDES)
@pytest.mark.parametrize("second", MAGNITUDES)
def test_sums_of_two_are_rounded_down(first: float, second: float) -> None:
    numbers = torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5
    a, b = numbers[:, 0] * first, numbers[:, 1] * second
    for low, x, y in zip(add_rounding_down(a, b).tolist(), a.tolist(), b.tolist(), strict=True):
        assert Fraction(low) <= Fraction(x) + Fraction(y)


@pytest.mark.parametrize("first", MAGNITUDES)
@pytest.mark.parametrize("second", MAGNITUDES)
def test_centre_and_radius_contain_the_box(first: float, second: float) -> None:
    numbers = torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5
    lower, upper = (numbers * torch.tensor([first, second], dtype=torch.float64)).sort(dim=1).values.unbind(1)
    centre, radius = centre_and_radius(lower, upper)
    for c, r, low, high in zip(centre.tolist(), radius.tolist(), lower.tolist(), upper.tolist(), strict=True):
        # TINY, which the first map or the output adds, covers halves of subnormal numbers.
        assert Fraction(c) - Fraction(r) - Fraction(TINY) <= Fraction(low)
        assert Fraction(high) <= Fraction(c) + Fraction(r) + Fraction(TINY)


@pytest.mark.parametrize("terms", [1, 7, 300, 20000])
@pytest.mark.parametrize("scale", [2.0**-1000, 1e-150, 1.0, 1e150])
def test_charges_cover_sums_that_cancel(terms: int, scale: float) -> None:
    """Products of both signs and of many magnitudes, one of which cancels almost all others."""
    draw = torch.Generator().manual_seed(terms)
    weight = torch.randn(terms, dtype=torch.float64, generator=draw)
    value = torch.randn(terms, dtype=torch.float64, generator=draw) * scale
    value *= 10.0 ** torch.randint(-20, 1, (terms,), generator=draw)
    exact = sum(Fraction(w) * Fraction(v) for w, v in zip(weight.tolist(), value.tolist(), strict=True))
    size = weight.abs() @ value.abs()
    total, top = weight @ value, round_up(size, NONNEGATIVE_SUM, terms)
    missed = charge(size, BOX_CORNER, terms)
    assert abs(Fraction(float(total)) - exact) <= Fraction(float(missed))
    sizes = sum(abs(Fraction(w) * Fraction(v)) for w, v in zip(weight.tolist(), value.tolist(), strict=True))
    assert Fraction(float(round_down(size, NONNEGATIVE_SUM, terms))) - Fraction(TINY) <= sizes
    assert sizes <= Fraction(float(top)) + Fraction(TINY)


def test_gamma_refuses_sums_that_it_cannot_bound() -> None:
    with pytest.raises(AssertionError):
        gamma(2**53)
