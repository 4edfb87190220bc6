"""List the functions with more than MOST parameters: python scripts/long_signatures.py [FOLDER]

Counted are the parameters of every function and method, and the fields of a frozen settings class only once, where
they are declared: self, cls, *args and **kwargs are left out.
"""

import ast
import sys
from pathlib import Path

MOST = 8  # A call with more arguments than this cannot be read without its definition (chosen by hand).


def long_signatures(folder: Path) -> list[tuple[int, str, int, str]]:
    """Return (parameters, file, line, name) of the functions below a folder with more than MOST parameters."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                count = len([name for name in names if name not in ("self", "cls")])
                if count > MOST:
                    found.append((count, str(path), node.lineno, node.name))
    return sorted(found, reverse=True)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src")
    found = long_signatures(folder)
    for count, path, line, name in found:
        print(f"{count:3} {path}:{line} {name}")
    print(f"{len(found)} functions with more than {MOST} parameters")


if __name__ == "__main__":
    main()
