"""What a document names is there: files and folders, make targets, benchmarks, dotted names of the package."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
FOLDERS = (
    "src",
    "tests",
    "benchmarks",
    "docs",
    "scripts",
)  # a path that begins with one of these is of the repository
PARTS = {
    path.name for path in (ROOT / "src" / "holdfast").iterdir() if (path / "__init__.py").is_file()
}  # of these, of the package
# Arrays of a certificate have names such as "region/choices": they are no paths.
ARRAYS = {
    name
    for path in (ROOT / "src" / "holdfast_check").glob("*.py")
    for name in re.findall(r'"(\w+/\w+)"', path.read_text(encoding="utf-8"))
}
FILES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}


def paths(text: str) -> Iterator[str]:
    """Every path that the text gives from the root of the repository or of the package, as far as a path goes."""
    for found in re.findall(r"(?<![\w./:-])[\w-]+(?:/[\w.*-]+)+/?", text):
        path = found.rstrip(".")
        if path.split("/")[0] in (*FOLDERS, *PARTS) and path not in ARRAYS:
            yield path


def is_there(path: str) -> bool:
    first = path.split("/")[0]
    roots = [ROOT] * (first in FOLDERS) + [ROOT / "src" / "holdfast"] * (first in PARTS)
    return any(any(root.glob(path)) for root in roots)


def names(text: str) -> Iterator[str]:
    """Every file of Python code that is named without a folder, but for those that the text itself shows."""
    shown = re.findall(r"^```\w+ (\w+\.py)$", text, re.MULTILINE)
    yield from (name for name in re.findall(r"(?<![\w./*-])(\w+\.py)\b", text) if name not in shown)


@every_page
def test_every_path_exists(page: Path) -> None:
    text = page.read_text()
    lost = [path for path in paths(text) if not is_there(path)] + [
        name for name in names(text) if name not in FILES
    ]
    assert not lost, f"{page.name} names what is not there: {', '.join(lost)}"


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_path_in_code_exists(part: str) -> None:
    """Docstrings and messages send people to files too."""
    for file in sorted((ROOT / "src" / "holdfast" / part).rglob("*.py")):
        text = file.read_text()
        lost = [path for path in paths(text) if re.search(r"\.(?:py|md|json)$", path) and not is_there(path)]
        assert not lost, f"{file.relative_to(ROOT)} names what is not there: {', '.join(lost)}"


@every_page
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^    |`)make (\w+)", page.read_text(), re.MULTILINE)
    assert set(named) <= targets, f"{page.name}: make {', '.join(set(named) - targets)}"


@every_page
def test_every_benchmark_exists(page: Path) -> None:
    """`python -m benchmarks.ROOM NAME`: a module, and for a room one of its names."""
    for module, name in re.findall(r"python -m (benchmarks[.\w]*)(?: ([a-z]\w*))?", page.read_text()):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"{page.name}: {module}"
        if name and (path / "__main__.py").is_file():
            assert f'"{name}": (' in (path / "__main__.py").read_text(), f"{page.name}: {module} {name}"


@every_page
def test_every_dotted_name_exists(page: Path) -> None:
    """`hf.something`, `holdfast.part.name`: an attribute, or a module."""
    for dotted in set(re.findall(r"\b(?:hf|holdfast)(?:\.[A-Za-z_]\w*)+", page.read_text())):
        parts = ["holdfast", *dotted.split(".")[1:]]
        found: object = importlib.import_module("holdfast")
        for count, part in enumerate(parts[1:], 2):
            if not hasattr(found, part):
                try:
                    found = importlib.import_module(".".join(parts[:count]))
                except ImportError:
                    pytest.fail(f"{page.name}: {dotted} does not exist")
            else:
                found = getattr(found, part)


@pytest.mark.parametrize(
    "path", ["src/holdfast/solver.py", "bounding/relax/", "tests/adversary", "tests/bounding/test_*.py"]
)
def test_what_is_there_is_found(path: str) -> None:
    assert list(paths(f"see `{path}`, or {path}.")) == [path, path]
    assert is_there(path)


@pytest.mark.parametrize(
    "path", ["src/holdfast/engine.py", "bounding/engine.py", "tests/bounds", "benchmarks/nothing"]
)
def test_what_is_lost_is_seen(path: str) -> None:
    assert list(paths(f"see `{path}`.")) == [path]
    assert not is_there(path)
