"""Build the documentation site: python scripts/build_docs.py build/docs

mkdocs.yml has the settings and the order of the pages. This script stages the pages in a folder of the same
shape as the repository, so that links between them keep working, and adds what is generated:

    docs/notebooks/*.md   each notebook as a page, with its outputs
    reference/commands.md the help of every command
    reference/*.md        one page for each public module of holdfast and holdfast_check

A broken link or anchor is an error. The site works from file:// and loads nothing from anywhere.
"""

import argparse
import base64
import importlib
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("holdfast", "holdfast_check")
# Parts of holdfast without a page: the command line has pages of its own, and templates are no modules.
LEFT_OUT = ("holdfast.cli", "holdfast.report.templates")
# The theme would load its support for search in files from a server; the page loads ours instead.
REMOTE_WORKER, LOCAL_WORKER = "https://unpkg.com/iframe-worker/shim", "docs/search_worker.js"
COMMANDS = "reference/commands.md"


# ---- notebooks


def notebook_page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and the pictures that the page shows, by their file names."""
    cells = json.loads(notebook.read_text())["cells"]
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for place, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for number, output in enumerate(cell["outputs"]):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{notebook.stem}-{place}-{number}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
            else:
                text = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"```text\n{text.rstrip()}\n```")
    download = (
        f"[Download this notebook]({notebook.name}). Its outputs are those of `scripts/run_notebooks.py`."
    )
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, download, rest.strip(), *parts[1:]]) + "\n", pictures


# ---- reference


def modules() -> Iterator[str]:
    """Every public module with a page, parents before their members."""
    for package in PACKAGES:
        folder = ROOT / "src" / package
        for file in sorted(folder.rglob("*.py"), key=lambda path: path.with_suffix("").parts):
            parts = file.relative_to(ROOT / "src").with_suffix("").parts
            name = ".".join(part for part in parts if part != "__init__")
            private = any(part.startswith("_") for part in name.split("."))
            if not private and not name.startswith(LEFT_OUT):
                yield name


def module_page(name: str) -> str:
    """The page of a module: what mkdocstrings makes of its docstrings. The first page lists `holdfast.__all__`."""
    if name != "holdfast":
        return f"# {name}\n\n::: {name}\n    options:\n      show_root_heading: false\n"
    members = [one for one in importlib.import_module(name).__all__ if not one.startswith("_")]
    return "# holdfast\n\n`import holdfast as hf`: what most users need.\n\n" + "\n\n".join(
        f"::: {name}.{one}\n    options:\n      show_root_toc_entry: true" for one in members
    )


def commands_page() -> str:
    """The help of every command, with all options."""
    import click
    import typer.main

    from holdfast.cli import app
    from holdfast.cli.help_pages import command_help, group_help

    def describe(command: Any, context: Any, level: int) -> Iterator[str]:
        group = hasattr(command, "commands")
        text = group_help(command, context) if group else command_help(command, context, everything=True)
        yield f"{'#' * level} {context.command_path}\n\n```text\n{text.rstrip()}\n```"
        for name, one in getattr(command, "commands", {}).items():
            yield from describe(one, click.Context(one, info_name=name, parent=context), level + 1)

    top = typer.main.get_command(app)
    first, *rest = describe(top, click.Context(top, info_name="holdfast"), 2)
    return "\n\n".join(["# Command line", first, *rest]) + "\n"


def reference_nav(names: list[str]) -> list[Any]:
    """The pages of the reference: commands, packages with their modules, and words."""
    tree: list[Any] = [{"Command line": COMMANDS}, {"holdfast": "reference/holdfast.md"}]
    groups: dict[str, list[Any]] = {}
    for name in names:
        if name != "holdfast":
            first = ".".join(name.split(".")[:2]) if name.startswith("holdfast.") else name.split(".")[0]
            groups.setdefault(first, []).append({name: f"reference/{name}.md"})
    tree += [pages[0] if len(pages) == 1 else {name: pages} for name, pages in groups.items()]
    return [*tree, {"Glossary": "docs/glossary.md"}, {"Notation": "docs/notation.md"}]


# ---- site


def stage(source: Path, *, reference: bool) -> list[str]:
    """Write every page below `source` and return the modules that have one."""
    for pattern in ("*.md", "docs/**/*", "examples/*", "benchmarks/**/*.md"):
        for file in ROOT.glob(pattern):
            if file.is_file() and "__pycache__" not in file.parts:
                copy = source / file.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
    for name in ("CITATION.cff", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        page, pictures = notebook_page(notebook)
        folder = source / "docs" / "notebooks"
        (folder / f"{notebook.stem}.md").write_text(page)
        for name, picture in pictures.items():
            (folder / name).write_bytes(picture)
    (source / "reference").mkdir()
    (source / COMMANDS).write_text(commands_page())
    names = list(modules()) if reference else []
    for name in ["holdfast", *names]:
        page = module_page(name) if reference else f"# {name}\n"
        (source / "reference" / f"{name}.md").write_text(page)
    return names


def build(folder: Path, *, reference: bool = True) -> None:
    """Build the site into a folder; `reference=False` leaves the pages of modules empty (for a quick look)."""
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary)
        names = stage(source, reference=reference)
        config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(source), site_dir=str(folder.resolve()))
        [place] = [one for one in config["nav"] if "Reference" in one]
        place["Reference"] = reference_nav(names)
        config.plugins.on_startup(command="build", dirty=False)
        try:
            build_site(config)
        finally:
            config.plugins.on_shutdown()
    for page in folder.rglob("*.html"):
        up = "../" * (len(page.relative_to(folder).parts) - 1)
        page.write_text(page.read_text().replace(REMOTE_WORKER, f"{up}{LOCAL_WORKER}"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--no-reference", action="store_true", help="Leave the pages of modules empty.")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    logging.basicConfig(
        level=logging.WARNING
    )  # A warning ends the build; without this it would not be shown.
    build(given.folder, reference=not given.no_reference)
