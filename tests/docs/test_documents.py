"""The Python examples of README.md and docs/ run as they stand, and links lead somewhere; test_commands.py runs the commands."""

import re
from pathlib import Path

import pytest

from copies import run_code

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LONGEST_PARAGRAPH = 120  # Words: a reader keeps no longer one in mind (chosen by hand).
PYTHON = [
    (page, block)
    for page in PAGES
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.parametrize(
    ("page", "block"), PYTHON, ids=[f"{page.stem}{i}" for i, (page, _) in enumerate(PYTHON)]
)
def test_python_example_runs(page: Path, block: str, tmp_path: Path) -> None:
    """In a folder of its own, and in a copy of this process or a new one (copies.py)."""
    code, _, told = run_code(block, tmp_path)
    assert code == 0, told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_document_names_the_host_of_a_package_registry() -> None:
    """Where packages come from is the reader's choice; pages name a package, not the host that serves it."""
    hosts = re.compile(r"download\.pytorch\.org|\bpypi\.org|--(?:extra-)?index-url")
    pages = [*PAGES, *sorted((ROOT / "examples").glob("*.md"))]
    assert [page.name for page in pages if hosts.search(page.read_text())] == []
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_no_paragraph_has_more_than_120_words() -> None:
    """Items of a list count one by one; tables, pictures and code are not text.

    CHANGELOG.md describes earlier versions in the words of their time.
    """
    pages = [
        *(page for page in PAGES if page.name != "CHANGELOG.md"),
        *sorted((ROOT / "benchmarks").rglob("*.md")),
    ]
    long = []
    for page in pages:
        text = re.sub(r"```.*?```", "\n\n", page.read_text(), flags=re.DOTALL)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
            lines = [line for line in paragraph.splitlines() if not line.lstrip().startswith(("|", "<"))]
            words = " ".join(lines).split()
            if len(words) > LONGEST_PARAGRAPH:
                long.append(f"{page.relative_to(ROOT)}: {len(words)} words: {' '.join(words[:8])} ...")
    assert not long, "\n".join(long)
