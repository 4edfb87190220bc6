"""The Python examples of README.md and docs/ pass mypy, as a user's own script would."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A script may use a name again for something else, and an attribute that is None for other kinds of network.
OPTIONS = (
    "--ignore-missing-imports", "--follow-imports=silent", "--no-strict-optional", "--allow-redefinition-new", "--local-partial-types",
)  # fmt: skip
# What a script does on purpose that its types do not show: (page, code of the error).
KNOWN = {("tables", "arg-type"), ("extending", "arg-type"), ("README", "index")}


def test_examples_pass_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    names: dict[str, str] = {}
    for number, page in enumerate(PAGES):
        for place, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            file = tmp_path / f"page{number}_{place}.py"
            file.write_text(block)
            names[file.name] = page.stem
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", f"--config-file={config}", *OPTIONS, *sorted(names)], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")}, check=False,
    )  # fmt: skip
    assert ran.returncode in (0, 1), ran.stderr
    wrong = []
    for line in ran.stdout.splitlines():
        found = re.match(r"(page\d+_\d+\.py):\d+: error: .*\[([a-z-]+)\]$", line)
        if found and (names[found.group(1)], found.group(2)) not in KNOWN:
            wrong.append(f"{names[found.group(1)]}: {line}")
    assert not wrong, "\n".join(wrong)


def test_the_checker_ships_its_types() -> None:
    assert (ROOT / "src" / "holdfast_check" / "py.typed").is_file()
    assert (ROOT / "src" / "holdfast" / "py.typed").is_file()
