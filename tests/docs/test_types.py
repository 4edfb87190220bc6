"""The Python of README.md, docs/, the notebooks and examples/ passes mypy with its usual settings, as a user's own script would."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The only settings: packages of others without types are not errors, and errors inside of holdfast are not shown
# here (`make lint` checks it, in strict mode).
OPTIONS = ("--ignore-missing-imports", "--disable-error-code=import-untyped", "--follow-imports=silent")


# What mypy knows of torch and holdfast from an earlier run; mypy itself finds what has changed since.
CACHE = ROOT / "build" / "mypy_of_examples"


def programs() -> Iterator[tuple[str, str]]:
    """A name and the text of every program."""
    for page in PAGES:
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
        for place, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            yield f"{name}_{place}", block
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        cells = json.loads(notebook.read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield f"notebook_{notebook.stem}", "\n".join(code)
    for script in sorted((ROOT / "examples").glob("*.py")):
        yield f"example_{script.stem}", script.read_text()


def errors_of(folder: Path, files: dict[str, str]) -> list[str]:
    """The errors of mypy for these programs."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    config = folder / "mypy.ini"
    config.write_text("[mypy]\n")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", f"--config-file={config}", f"--cache-dir={CACHE}", *OPTIONS, *(f"{name}.py" for name in sorted(files))],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(ROOT / "src")}, check=False,
    )  # fmt: skip
    assert ran.returncode in (0, 1), ran.stderr
    return [line for line in ran.stdout.splitlines() if " error: " in line]


def test_examples_pass_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    files = dict(programs())
    assert len(files) > 35
    # A program that cannot pass shows that errors are seen at all.
    found = errors_of(tmp_path, {**files, "wrong": "import holdfast as hf\nhf.Ball(1, 2, norm=3)\n"})
    assert [line for line in found if line.startswith("wrong.py")]
    others = [line for line in found if not line.startswith("wrong.py")]
    assert not others, "\n".join(others)


def test_the_checker_ships_its_types() -> None:
    assert (ROOT / "src" / "holdfast_check" / "py.typed").is_file()
    assert (ROOT / "src" / "holdfast" / "py.typed").is_file()
