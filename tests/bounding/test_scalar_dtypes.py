"""`torch.where` of two plain numbers is float32, whatever it is multiplied by later: a slope of 0.1 would be off by 1e-9."""

import ast
from pathlib import Path

import holdfast

SETTINGS = (
    "negative_slope",
    "below",
    "above",
    "alpha",
    "beta",
)  # of functions: numbers that float32 may not hold


def plain(value: ast.expr) -> bool:
    return (isinstance(value, ast.Attribute) and value.attr in SETTINGS) or number(value) is not None


def number(value: ast.expr) -> float | None:
    try:
        return float(ast.literal_eval(value))
    except (ValueError, TypeError):
        return None


def exact(value: ast.expr) -> bool:
    """A whole number, or a few binary places."""
    known = number(value)
    return known is not None and (known * 2**20).is_integer()


def test_no_bound_is_made_of_two_plain_numbers() -> None:
    found = []
    for folder in ("bounding", "hamming", "certify"):
        for file in (Path(holdfast.__file__).parent / folder).rglob("*.py"):
            for call in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(call, ast.Call)
                    and ast.unparse(call.func) == "torch.where"
                    and len(call.args) == 3
                ):
                    numbers = call.args[1:]
                    if all(plain(n) for n in numbers) and not all(exact(n) for n in numbers):
                        found.append(f"{file.name}:{call.lineno}: {ast.unparse(call)}")
    assert not [line for line in found if not line.startswith("ascent.py")]  # its steps prove nothing
