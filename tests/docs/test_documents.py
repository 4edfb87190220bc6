"""The examples of README.md and docs/ run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = [(page, block) for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]


@pytest.mark.parametrize(("page", "block"), PYTHON, ids=[f"{page.stem}{i}" for i, (page, _) in enumerate(PYTHON)])
def test_python_example_runs(page: Path, block: str, tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert ran.returncode == 0, ran.stderr


def test_command_line_example_runs(tmp_path: Path) -> None:
    [block] = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    command = f'"{sys.executable}" -c "from holdfast.cli import main; main()"'
    script = f'set -e\nholdfast() {{ {command} "$@"; }}\n{block}'
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "runs/first/report.html").stat().st_size > 10_000
    assert len((tmp_path / "runs/first/records.csv").read_text().splitlines()) == 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
