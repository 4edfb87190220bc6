"""Modules of mathematics begin with their statement, its assumptions and a reference; numbers say what they limit."""

import ast
import itertools
import tokenize
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
MATHEMATICS = (
    "holdfast/bounding",
    "holdfast/hamming",
    "holdfast/certify",
    "holdfast/hardening",
    "holdfast_check",
)
# Modules without a statement of their own, by the reason.
WITHOUT_STATEMENT = {
    "tables, values and dispatch: no bound is computed there": (
        "holdfast/bounding/graph/functions.py",
        "holdfast/bounding/graph/fusion.py",
        "holdfast/bounding/graph/graph.py",
        "holdfast/bounding/graph/inplace.py",
        "holdfast/bounding/graph/node.py",
        "holdfast/bounding/graph/operators.py",
        "holdfast/bounding/graph/problem_graph.py",
        "holdfast/bounding/graph/reductions.py",
        "holdfast/bounding/relax/abilities.py",
        "holdfast/bounding/bounder.py",
        "holdfast/bounding/traversal.py",
        "holdfast/certify/phase.py",
        "holdfast/certify/tight_tier.py",
    ),
    "the equations of a cell, which network/cells.py states": (
        "holdfast/bounding/graph/cells/gru.py",
        "holdfast/bounding/graph/cells/lstm.py",
        "holdfast/bounding/graph/cells/rnn.py",
        "holdfast/bounding/graph/cells/unroll.py",
    ),
    "they choose or predict, and any choice is sound": (
        "holdfast/bounding/branching/branching_rule.py",
        "holdfast/bounding/branching/preactivation_score.py",
        "holdfast/bounding/branching/split_score.py",
        "holdfast/bounding/coefficient_training.py",
        "holdfast/bounding/first_bounds.py",
        "holdfast/bounding/influence.py",
        "holdfast/bounding/pass_cost.py",
        "holdfast/bounding/relax/hull.py",
        "holdfast/bounding/unstable_subnetwork.py",
        "holdfast/certify/cost.py",
    ),
    "a test at sample points, not a proof": (
        "holdfast/bounding/graph/equivalence_check.py",
        "holdfast_check/replay.py",
    ),
    "searches: every counterexample is queried": (
        "holdfast/hamming/accumulation.py",
        "holdfast/hamming/directions.py",
        "holdfast/hamming/greedy.py",
        "holdfast/hamming/grid.py",
        "holdfast/hamming/judge_outputs.py",
        "holdfast/hamming/saliency.py",
        "holdfast/hamming/top_sets.py",
    ),
    "training, whose network is measured afterwards": (
        "holdfast/hardening/evaluation.py",
        "holdfast/hardening/examples.py",
        "holdfast/hardening/folder.py",
        "holdfast/hardening/hardened_model.py",
        "holdfast/hardening/initialisation.py",
        "holdfast/hardening/interval_rules.py",
        "holdfast/hardening/recipe.py",
        "holdfast/hardening/result.py",
        "holdfast/hardening/training.py",
    ),
    "readers of files, which refuse everything that they do not know": (
        "holdfast_check/archive.py",
        "holdfast_check/bundle.py",
        "holdfast_check/claim_text.py",
        "holdfast_check/container.py",
        "holdfast_check/errors.py",
        "holdfast_check/graph.py",
        "holdfast_check/limits.py",
        "holdfast_check/onnx_file.py",
        "holdfast_check/operators.py",
        "holdfast_check/proof.py",
        "holdfast_check/protobuf.py",
        "holdfast_check/signatures.py",
    ),
}


def test_every_module_of_mathematics_begins_with_statement_assumptions_and_reference() -> None:
    excused = {name for names in WITHOUT_STATEMENT.values() for name in names}
    lacking, seen = [], set()
    for folder in MATHEMATICS:
        for path in sorted((SOURCE / folder).rglob("*.py")):
            name = path.relative_to(SOURCE).as_posix()
            seen.add(name)
            if path.stem in ("__init__", "__main__") or name in excused:
                continue
            words = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").lower()
            missing = [part for part in ("statement", "assumption", "reference") if part not in words]
            if missing:
                lacking.append(f"{name}: {', '.join(missing)}")
    assert not lacking, "\n".join(lacking)
    assert excused <= seen, f"no such modules: {excused - seen}"


def is_number(node: ast.expr) -> bool:
    """Whether an expression is written with numbers alone."""
    match node:
        case ast.Constant(value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
        case ast.Tuple(elts=elements):
            return bool(elements) and all(map(is_number, elements))
    return False


def unexplained_numbers(path: Path) -> list[str]:
    """The numeric constants of a module without a comment on their lines or in their block, or a docstring below."""
    with path.open("rb") as file:
        comments = {
            token.start[0] for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT
        }
    text = path.read_text(encoding="utf-8")
    lines, body = text.splitlines(), ast.parse(text).body
    found = []
    for statement, after in itertools.zip_longest(body, body[1:]):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        first = statement.lineno
        if not is_number(statement.value):
            continue
        while first > 1 and lines[first - 2].strip():  # The block of lines without a gap above.
            first -= 1
        explained = comments & set(range(first, (statement.end_lineno or first) + 1))
        below = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if not explained and not below:
            found.append(f"{path.relative_to(SOURCE)}:{statement.lineno}: {lines[statement.lineno - 1]}")
    return found


def test_every_numeric_constant_says_what_it_limits() -> None:
    found = [line for path in sorted(SOURCE.rglob("*.py")) for line in unexplained_numbers(path)]
    assert not found, "\n".join(found)
