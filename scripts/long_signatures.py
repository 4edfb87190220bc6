"""List the functions with more than MOST parameters: python scripts/long_signatures.py [FOLDER]

Counted are the parameters of every function and method, and the fields of a frozen settings class only once, where
they are declared: self, cls, *args and **kwargs are left out. Functions are listed by who calls them:

- public: users call them by keywords: functions of `holdfast.__all__`, its classes and their methods, wherever they
  are defined, with the functions of the same name that they pass their arguments to;
- command: one parameter for each option of a command (`cli/commands`);
- operator: the parameters are those of an operator of torch or ONNX, in its order (`@handles`, `@operator`);
- internal: all others. Parameters that travel together there should be one value.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOST = 8  # A call with more arguments than this cannot be read without its definition (chosen by hand).
HANDLERS = ("handles", "operator")  # Decorators of functions whose parameters an operator defines.


class LongSignature(NamedTuple):
    """A function with more than MOST parameters."""

    kind: str
    parameters: int
    file: str
    line: int
    name: str


def public_names(folder: Path) -> frozenset[str]:
    """Return the names of `__all__` of the package; none for a folder without the package."""
    package = folder / "holdfast" / "__init__.py"
    if not package.is_file():
        return frozenset()
    for node in ast.parse(package.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def functions(node: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each function with the class that it is a method of, '' for none."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner, child
            yield from functions(child)
        else:
            yield from functions(child, child.name if isinstance(child, ast.ClassDef) else owner)


def kind_of(
    path: Path, owner: str, function: ast.FunctionDef | ast.AsyncFunctionDef, public: frozenset[str]
) -> str:
    """Return who calls a function: see the list above."""
    decorators = {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in function.decorator_list}
    if decorators & set(HANDLERS):
        return "operator"
    if path.parts[-3:-1] == ("cli", "commands"):
        return "command"
    if (owner or function.name) in public and (
        function.name == "__init__" or not function.name.startswith("_")
    ):
        return "public"
    return "internal"


def long_signatures(folder: Path) -> list[LongSignature]:
    """Return the functions below a folder with more than MOST parameters, the longest of each kind first."""
    found, public = [], public_names(folder)
    for path in sorted(folder.rglob("*.py")):
        for owner, node in functions(ast.parse(path.read_text(encoding="utf-8"))):
            given = node.args
            names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            count = len([name for name in names if name not in ("self", "cls")])
            if count > MOST:
                kind = kind_of(path, owner, node, public)
                found.append(LongSignature(kind, count, str(path), node.lineno, node.name))
    return sorted(found, key=lambda one: (one.kind, -one.parameters, one.file, one.line))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src")
    found = long_signatures(folder)
    for one in found:
        print(f"{one.kind:8} {one.parameters:3} {one.file}:{one.line} {one.name}")
    counts = {
        kind: sum(one.kind == kind for one in found) for kind in dict.fromkeys(one.kind for one in found)
    }
    parts = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"{len(found)} functions with more than {MOST} parameters: {parts}")


if __name__ == "__main__":
    main()
