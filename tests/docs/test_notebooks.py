"""The notebooks of docs/notebooks run, and print what they show; numbers may differ in their digits."""

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from copies import COPIES, run_in_copy

ROOT = Path(__file__).parents[2]
TOOLS = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "run_notebooks.py")))


def texts(notebook: dict[str, Any]) -> list[str]:
    """The words of each output of each cell, without numbers and signs."""
    found = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            text = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
            found.append(" ".join(re.findall(r"[^\W\d_]{3,}", text)))
    return found


def test_there_is_a_notebook_for_each_audience() -> None:
    assert [path.stem for path in TOOLS.notebooks()] == ["research", "safety", "sensors", "text"]


@pytest.mark.parametrize("path", TOOLS.notebooks(), ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    stored = json.loads(path.read_text())
    assert stored["nbformat"] == 4
    assert all("outputs" in cell for cell in stored["cells"] if cell["cell_type"] == "code")
    assert texts(stored), "no outputs are stored: run scripts/run_notebooks.py"
    ran = TOOLS.run_notebook(path, run=in_copy(tmp_path)) if COPIES else TOOLS.run_notebook(path)
    assert texts(ran) == texts(stored)


def in_copy(folder: Path) -> Callable[[list[str]], list[list[dict[str, Any]]]]:
    """A way to run cells: in a copy of this process, in an empty folder."""
    work, outputs = folder / "work", folder / "outputs.json"
    work.mkdir()

    def run(sources: list[str]) -> list[list[dict[str, Any]]]:
        code, _, told = run_in_copy(
            lambda: outputs.write_text(json.dumps(TOOLS.run_cells(sources))), work, {"COLUMNS": "100"}
        )
        assert code == 0, told
        return json.loads(outputs.read_text())

    return run


def test_a_cell_shows_what_it_prints_and_its_last_value() -> None:
    [[printed, value], [], [figure]] = TOOLS.run_cells(
        ["k = 2\nprint(k)\nk + 1", "k = 3", "from matplotlib.figure import Figure\nFigure((1, 1))"]
    )
    assert printed == {"name": "stdout", "output_type": "stream", "text": ["2\n"]}
    assert value["data"] == {"text/plain": ["3"]}
    assert figure["data"]["image/png"].startswith("iVBOR")


def test_a_cell_that_fails_is_an_error(tmp_path: Path) -> None:
    notebook = {"cells": [{"cell_type": "code", "source": ["1 / 0"], "outputs": []}]}
    TOOLS.write_notebook(tmp_path / "wrong.ipynb", notebook)
    with pytest.raises(RuntimeError, match=r"(?s)wrong\.ipynb: .*ZeroDivisionError"):
        TOOLS.run_notebook(tmp_path / "wrong.ipynb")
