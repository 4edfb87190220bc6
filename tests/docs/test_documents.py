"""The Python examples of README.md and docs/ run as they stand, and links lead somewhere; test_commands.py runs the commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = [(page, block) for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]


@pytest.mark.parametrize(("page", "block"), PYTHON, ids=[f"{page.stem}{i}" for i, (page, _) in enumerate(PYTHON)])
def test_python_example_runs(page: Path, block: str, tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
