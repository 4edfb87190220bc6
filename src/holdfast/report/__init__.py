"""Views of stored runs: the terminal table, the HTML page, the comparison of runs and the gate.

`table` is in holdfast.report.table, `compare` in holdfast.report.compare, `gate` in holdfast.report.gate,
and the sentence that answers the question of a run in holdfast.report.answer_sentence. jinja2, matplotlib and rich
are imported only by the modules that need them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.report.page import Place
    from holdfast.store import Store

__all__ = ["write_report"]


def write_report(store: "Store", path: str | Path, place: "Place | None" = None) -> Path:
    """Write a run as self-contained HTML, as a model card fragment (.md) or as JSON (.json); return the path.

    A run with more inputs than one page holds gets further pages in the same folder: report-2.html,
    report-3.html, ...

    Args:
        store: the run.
        path: the file to write; its ending chooses the format.
        place: the folder that the page names; default: that of the run.

    Raises:
        BadInput: for another ending.
        StoreError: if the file cannot be written.
    """
    target = Path(path)
    if target.suffix == ".json":
        return store.export(target)
    if target.suffix not in ("", ".html", ".htm", ".md"):
        raise BadInput(
            f"{target}: unknown ending; use .html for the page, .md for a model card, .json for the records."
        )
    # Imported here because jinja2 and matplotlib take about a second.
    from holdfast.report import card, page
    from holdfast.report.writing import write_document

    if target.suffix == ".md":
        return write_document(card.render(store), target)
    first, *_ = [
        write_document(document, target if number == 1 else target.with_name(page_name(target, number)))
        for number, document in enumerate(
            page.render_pages(store, lambda number: page_name(target, number), place), 1
        )
    ]
    return first


def page_name(target: Path, number: int) -> str:
    """Return the file name of page `number`: report.html, report-2.html, ..."""
    return target.name if number == 1 else f"{target.stem}-{number}{target.suffix}"
