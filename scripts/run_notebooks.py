"""Run the notebooks of docs/ and store their outputs: python scripts/run_notebooks.py [NAME ...]

The cells of a notebook run in order, in a process of its own and an empty folder. The output of a cell is what
it prints, and the value of its last line: a matplotlib figure as a picture, anything else as text. Notebooks
are files of JSON (nbformat 4), so no other package is needed; Jupyter opens them.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
DPI = 80  # Pixels an inch of a stored figure: readable on the site at a few tens of kilobytes.


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def run_cells(sources: list[str]) -> list[list[dict[str, Any]]]:
    """Run cells in one namespace, and return the outputs of each as nbformat writes them."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_run_cell(source, names) for source in sources]


def _run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    tree, value, said = ast.parse(source), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if said.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(said.getvalue())})
    if value is not None:
        outputs.append({"data": _shown(value), "metadata": {}, "output_type": "display_data"})
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    """A value by its media types."""
    if hasattr(value, "savefig"):
        drawing = io.BytesIO()
        value.savefig(drawing, format="png", dpi=DPI, metadata={"Software": None})
        return {"image/png": base64.b64encode(drawing.getvalue()).decode(), "text/plain": ["a figure"]}
    return {"text/plain": _lines(repr(value))}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def run_in_process(sources: list[str]) -> list[list[dict[str, Any]]]:
    """Run cells in a process of their own and an empty folder. RuntimeError with the message if a cell fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, __file__, "--cells"],
            input=json.dumps(sources), cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip())
    outputs: list[list[dict[str, Any]]] = json.loads(ran.stdout)
    return outputs


def run_notebook(
    path: Path, run: Callable[[list[str]], list[list[dict[str, Any]]]] = run_in_process
) -> dict[str, Any]:
    """Return the notebook with new outputs, of `run` for its cells. RuntimeError if a cell fails."""
    notebook: dict[str, Any] = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    try:
        found = run(["".join(cell["source"]) for cell in cells])
    except RuntimeError as error:
        raise RuntimeError(f"{path.name}: {error}") from error
    for number, (cell, outputs) in enumerate(zip(cells, found, strict=True), 1):
        cell["outputs"], cell["execution_count"] = outputs, number
    return notebook


def write_notebook(path: Path, notebook: dict[str, Any]) -> None:
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="Default: all.")
    parser.add_argument("--cells", action="store_true", help="Run the cells of standard input (a JSON list).")
    given = parser.parse_args()
    if given.cells:
        print(json.dumps(run_cells(json.load(sys.stdin))))
        sys.exit()
    for path in notebooks():
        if not given.names or path.stem in given.names:
            write_notebook(path, run_notebook(path))
            print(path.relative_to(ROOT))
