"""The Python examples of README.md and docs/ run as they stand, and links lead somewhere; test_commands.py runs the commands."""

import functools
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

import holdfast as hf

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = [
    (page, block)
    for page in PAGES
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.parametrize(
    ("page", "block"), PYTHON, ids=[f"{page.stem}{i}" for i, (page, _) in enumerate(PYTHON)]
)
def test_python_example_runs(page: Path, block: str, tmp_path: Path) -> None:
    """In a process of its own: a copy of this one, which has torch and its tracer at hand, where copies can compute gradients."""
    if torch.version.cuda is None:
        code, said = forked(block, tmp_path)
    else:
        ran = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, env=environment()
        )
        code, said = ran.returncode, ran.stderr
    assert code == 0, said


@functools.cache
def prepare_tracer() -> None:
    """Trace something, so that no copy of this process has to import and to prepare what torch.export needs."""
    hf.Network.from_torch(torch.nn.Linear(2, 2).eval()).program(torch.zeros(1, 2))


def forked(block: str, folder: Path) -> tuple[int, str]:
    prepare_tracer()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            written = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(written, 1)
            os.dup2(written, 2)
            sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115  not pytest's
            os.chdir(folder)
            os.environ.update(environment())
            sys.path.insert(0, "")
            exec(compile(block, "example", "exec"), {"__name__": "__main__"})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (folder / "said.txt").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def test_no_document_names_the_host_of_a_package_registry() -> None:
    """Where packages come from is the reader's choice; pages name a package, not the host that serves it."""
    hosts = re.compile(r"download\.pytorch\.org|\bpypi\.org|--(?:extra-)?index-url")
    pages = [*PAGES, *sorted((ROOT / "examples").glob("*.md"))]
    assert [page.name for page in pages if hosts.search(page.read_text())] == []
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
