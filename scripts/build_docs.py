"""Build the documentation site: python scripts/build_docs.py build/docs

Every page of docs/ and examples/ and the README become one HTML page each, with all pages in a side bar.
Links between them, and to headings, keep working. Other files are copied to the same path as in docs/.
"""

import argparse
import re
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
FIRST = (
    "README.md",
    "docs/evidence.md",
    "docs/trust.md",
    "docs/networks.md",
    "docs/data.md",
    "docs/tables.md",
    "docs/certify.md",
)
STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; padding: 1.5rem; }
body { display: grid; grid-template-columns: 14rem minmax(0, 50rem); gap: 2rem; }
nav { position: sticky; top: 1.5rem; align-self: start; }
nav ul { list-style: none; padding: 0; margin: 0; }
nav li { margin: 0.25rem 0; }
nav [aria-current] { font-weight: 700; }
pre, table { overflow-x: auto; display: block; }
pre { background: color-mix(in srgb, currentColor 8%, transparent); padding: 0.8rem; border-radius: 6px; }
code { font-size: 0.9em; }
table { border-collapse: collapse; }
th, td { border: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
th, td { padding: 0.3rem 0.6rem; vertical-align: top; text-align: left; }
img { max-width: 100%; height: auto; }
@media (max-width: 50rem) {
  body { display: block; padding: 1rem; }
  nav { position: static; margin-bottom: 1.5rem; }
}
"""


def pages() -> list[Path]:
    """All pages, in reading order."""
    every = [
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").glob("*.md")),
        *sorted((ROOT / "benchmarks").rglob("*.md")),
        *sorted(ROOT.glob("*.md")),
    ]
    order = [ROOT / name for name in FIRST]
    return [*order, *(page for page in every if page not in order)]


def target(page: Path) -> str:
    return "index.html" if page.name == "README.md" else f"{page.stem.lower()}.html"


def title(page: Path) -> str:
    found = re.search(r"^# (.*)$", page.read_text(), re.MULTILINE)
    return found[1] if found else page.stem


def anchor(heading: str) -> str:
    """Anchor of a heading, as Markdown renderers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def linked(page: Path, url: str) -> str:
    """Target on the site of a link of the page."""
    path, hash_, place = url.partition("#")
    if "://" in url or not path:
        return url
    there = (page.parent / path).resolve()
    if there in pages():
        return target(there) + hash_ + place
    return str(there.relative_to(ROOT / "docs")) if there.is_relative_to(ROOT / "docs") else url


def html(page: Path) -> str:
    tokens = (markdown := MarkdownIt("commonmark").enable("table")).parse(page.read_text())
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(tokens[place + 1].content))
        for part in token.children or ():
            for name in ("href", "src"):
                if isinstance(url := part.attrGet(name), str):
                    part.attrSet(name, linked(page, url))
    return markdown.renderer.render(tokens, markdown.options, {})


def side(current: Path) -> Iterator[str]:
    for page in pages():
        here = ' aria-current="page"' if page == current else ""
        yield f'<li><a href="{target(page)}"{here}>{escape(title(page))}</a></li>'
    yield '<li><a href="reference/index.html">Reference</a></li>'


def build(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages():
        (folder / target(page)).write_text(
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(title(page))}</title><style>{STYLE}</style></head><body>"
            f"<nav><ul>{''.join(side(page))}</ul></nav><main>{html(page)}</main></body></html>\n"
        )
    for file in (ROOT / "docs").rglob("*"):
        if file.is_file() and file.suffix != ".md":
            copy = folder / file.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    build(parser.parse_args().folder)
