"""The site of `make docs`: every link of every page leads somewhere, also to headings."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_link_is_broken(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "scripts" / "build_docs.py"))["build"](tmp_path)
    pages = {page.name: page.read_text() for page in tmp_path.glob("*.html")}
    assert "index.html" in pages
    assert len(pages) > 20
    anchors = {name: set(re.findall(r' id="([^"]*)"', text)) for name, text in pages.items()}
    broken = []
    for name, text in pages.items():
        for url in re.findall(r'(?:href|src)="([^"]*)"', text):
            path, _, place = url.partition("#")
            if "://" in url or path == "reference/index.html":  # which pdoc writes
                continue
            missing = path and not (tmp_path / path).exists()
            if missing or (place and place not in anchors.get(path or name, ())):
                broken.append(f"{name}: {url}")
    assert not broken
