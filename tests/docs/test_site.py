"""The site of `make docs`: every page is in it, every link leads somewhere, and it works without a network."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "build_docs.py")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site without the pages of modules, which take most of the time. A broken link fails the build."""
    for package in ("material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'holdfast[docs]'")
    folder: Path = tmp_path_factory.mktemp("site")
    TOOLS.build(folder, reference=False)
    return folder


def test_no_link_is_broken(site: Path) -> None:
    pages = {
        page.relative_to(site): page.read_text() for page in site.rglob("*.html") if page.name != "404.html"
    }
    assert len(pages) > 40
    anchors = {name: set(re.findall(r' id="([^"]*)"', text)) for name, text in pages.items()}
    broken = []
    for name, text in pages.items():
        for url in re.findall(r'(?:href|src)="([^"]*)"', text):
            path, _, place = url.partition("#")
            if "://" in url or url.startswith(("data:", "javascript:")):
                continue
            there = (site / name).parent / path if path else site / name
            inside = there.resolve().relative_to(site.resolve())
            found = anchors.get(inside, set())
            if not there.exists() or (place and not place.startswith("__") and place not in found):
                broken.append(f"{name}: {url}")
    assert not broken


def test_it_loads_nothing_from_a_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?://[^"]*)"', page.read_text())
        assert not loaded, f"{page.name}: {loaded}"


def test_it_can_be_searched_from_a_file(site: Path) -> None:
    """A browser does not let a page of file:// read other files; the index is a script instead."""
    index = (site / "search" / "search_index.js").read_text()
    for words in ("Load a model", "holdfast radius", "Certify radii"):
        assert words in index


def test_code_is_highlighted_and_can_be_copied(site: Path) -> None:
    home = (site / "index.html").read_text()
    assert "language-python highlight" in home
    assert "content.code.copy" in home


def test_notebooks_are_pages_with_their_outputs(site: Path) -> None:
    for name in ("text", "sensors", "safety", "research"):
        page = (site / "docs" / "notebooks" / f"{name}.html").read_text()
        assert "language-text" in page
        assert (site / "docs" / "notebooks" / f"{name}.ipynb").exists()


def test_every_public_module_has_a_page(tmp_path: Path) -> None:
    names = TOOLS.stage(tmp_path, reference=True)
    assert len(names) == len(set(names)) > 300
    for name in ("holdfast", "holdfast.region.ball", "holdfast_check", "holdfast_check.arithmetic"):
        assert name in names
        assert (tmp_path / "reference" / f"{name}.md").read_text().startswith(f"# {name}\n")
    listed = str(TOOLS.reference_nav(names))
    assert all(f"'reference/{name}.md'" in listed for name in names)


def test_the_reference_shows_every_command_with_every_option() -> None:
    page = TOOLS.commands_page()
    for words in (
        "## holdfast\n",
        "### holdfast radius\n",
        "#### holdfast monitor score\n",
        "--arithmetic",
        "--seed",
    ):
        assert words in page


def test_every_page_is_in_the_menu() -> None:
    """mkdocs checks it too, where it is installed."""
    menu = (ROOT / "mkdocs.yml").read_text()
    added = ("docs/glossary.md", "docs/notation.md")
    for folder in ("docs", "examples", "benchmarks"):
        for page in (ROOT / folder).rglob("*.md"):
            name = page.relative_to(ROOT).as_posix()
            assert name in menu or name in added, f"{name} is not in mkdocs.yml"
