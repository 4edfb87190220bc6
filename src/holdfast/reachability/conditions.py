"""Linear conditions on states, as users write them: "x1 - x4 >= 10 + 1.4 * x5 and 0 <= x2 <= 3".

A condition is a polytope A x <= b. Coefficients are the float64 numbers nearest to what is written; constants
on one side are added up in float64.
"""

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput

Linear = dict[str | None, float]  # Coefficients by state; None: the constant.


@dataclass(frozen=True, eq=False)
class Polytope:
    """All states x with rows . x <= bound; `texts` say each row in the user's words."""

    rows: Tensor  # (r, n)
    bound: Tensor  # (r,)
    texts: tuple[str, ...]

    def excess(self, states: Tensor) -> Tensor:
        """(..., n) -> (..., r): rows . x - bound, positive where a row is violated; without rounding bounds."""
        return states @ self.rows.mT - self.bound


def read_condition(text: str, states: Sequence[str], what: str) -> Polytope:
    """Read comparisons of linear expressions, joined by "and"; BadInput names what cannot be read.

    Args:
        what: the argument or option that holds the text, for errors.
    """
    if not isinstance(text, str):
        raise BadInput(
            f'{what}: expected a text such as "{states[0]} <= 1 and {states[-1]} >= 0", got {text!r:.60}.'
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{what}: {text!r:.80} is no condition ({error.args[0]}).") from None
    rows, bounds, texts = [], [], []
    for part in tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]:
        if not isinstance(part, ast.Compare):
            raise BadInput(
                f'{what}: "{ast.unparse(part):.80}" is no comparison. Write comparisons with <=, >= or ==, '
                'joined by "and".'
            )
        sides = [part.left, *part.comparators]
        for left, sign, right in zip(sides, part.ops, sides[1:], strict=False):
            if not isinstance(sign, ast.LtE | ast.GtE | ast.Eq):
                raise BadInput(f'{what}: "{ast.unparse(part):.80}": use <=, >= or ==.')
            apart = _subtract(_linear(left, states, what), _linear(right, states, what))
            for direction in (1.0, -1.0) if isinstance(sign, ast.Eq) else (1.0,):
                direction = -direction if isinstance(sign, ast.GtE) else direction
                row = [direction * apart.get(name, 0.0) for name in states]
                if not any(row):
                    raise BadInput(f'{what}: "{ast.unparse(part):.80}" says nothing about a state.')
                rows.append(row)
                bounds.append(0.0 - direction * apart.get(None, 0.0))
                texts.append(f"{ast.unparse(left)} {_symbol(sign)} {ast.unparse(right)}")
    return Polytope(
        torch.tensor(rows, dtype=torch.float64), torch.tensor(bounds, dtype=torch.float64), tuple(texts)
    )


def read_start(text: str, states: Sequence[str], what: str) -> tuple[Tensor, Tensor]:
    """Read a box of states, such as "1 <= x1 <= 1.2 and x2 == 0": lower and upper bounds, (n,) each."""
    condition = read_condition(text, states, what)
    lower = torch.full((len(states),), -torch.inf, dtype=torch.float64)
    upper = torch.full((len(states),), torch.inf, dtype=torch.float64)
    for row, bound, said in zip(condition.rows, condition.bound, condition.texts, strict=True):
        (places,) = row.nonzero(as_tuple=True)
        if len(places) > 1 or float(row[places].abs()) != 1:
            raise BadInput(f'{what}: "{said}" is no bound of one state; the start is a box.')
        i = int(places)
        if row[i] > 0:
            upper[i] = torch.minimum(upper[i], bound)
        else:
            lower[i] = torch.maximum(lower[i], 0.0 - bound)
    for i, name in enumerate(states):
        if not (math.isfinite(lower[i]) and math.isfinite(upper[i])):
            raise BadInput(f"{what}: {name} needs a lower and an upper bound (or ==) at the start.")
        if lower[i] > upper[i]:
            raise BadInput(f"{what}: {name} cannot be >= {float(lower[i]):g} and <= {float(upper[i]):g}.")
    return lower, upper


def _symbol(sign: ast.cmpop) -> str:
    return {ast.LtE: "<=", ast.GtE: ">=", ast.Eq: "=="}[type(sign)]


def _linear(tree: ast.expr, states: Sequence[str], what: str) -> Linear:
    """The linear expression of a syntax tree."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float) and math.isfinite(tree.value):
        return {None: float(tree.value)}
    if isinstance(tree, ast.Name):
        if tree.id not in states:
            raise BadInput(f"{what}: there is no state {tree.id!r}; the states are {', '.join(states)}.")
        return {tree.id: 1.0}
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        return _scale(_linear(tree.operand, states, what), -1.0 if isinstance(tree.op, ast.USub) else 1.0)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        left, right = _linear(tree.left, states, what), _linear(tree.right, states, what)
        if isinstance(tree.op, ast.Add):
            return _subtract(left, _scale(right, -1.0))
        if isinstance(tree.op, ast.Sub):
            return _subtract(left, right)
        if isinstance(tree.op, ast.Mult) and left.keys() <= {None}:
            return _scale(right, left.get(None, 0.0))
        if right.keys() <= {None} and (isinstance(tree.op, ast.Mult) or right.get(None)):
            factor = right.get(None, 0.0)
            return _scale(left, factor) if isinstance(tree.op, ast.Mult) else _divide(left, factor)
    raise BadInput(f'{what}: "{ast.unparse(tree):.80}" is not linear in the states {", ".join(states)}.')


def _subtract(one: Linear, other: Linear) -> Linear:
    return {name: one.get(name, 0.0) - other.get(name, 0.0) for name in {**one, **other}}


def _scale(one: Linear, factor: float) -> Linear:
    return {name: factor * value for name, value in one.items()}


def _divide(one: Linear, by: float) -> Linear:
    return {name: value / by for name, value in one.items()}
