"""What a person looks at: the table in the terminal, the HTML page, the comparison of runs and the gate.

`table` lives in holdfast.report.table, `compare` in holdfast.report.compare, `gate` in holdfast.report.gate. jinja2, matplotlib and rich
are imported only by what needs them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.report.page import Place
    from holdfast.store import Store

__all__ = ["write_report"]


def write_report(store: "Store", path: str | Path, place: "Place | None" = None) -> Path:
    """The run as one self-contained HTML file, as a fragment of a model card (.md) or as JSON (.json); returns the path. Where a run has
    more inputs than a page shows, further pages lie beside it: report-2.html, report-3.html, ...

    place: what a page says of where it lies; not said, it is that of the run's folder.
    BadInput for another ending, StoreError if it cannot be written.
    """
    target = Path(path)
    if target.suffix == ".json":
        return store.export(target)
    if target.suffix not in ("", ".html", ".htm", ".md"):
        raise BadInput(
            f"{target}: unknown ending; use .html for the page, .md for a model card, .json for the records."
        )
    # here: jinja2 and matplotlib take a second nobody else should wait
    from holdfast.report import card, page
    from holdfast.report.writing import write

    if target.suffix == ".md":
        return write(card.render(store), target)
    first, *_ = [
        write(document, target if number == 1 else target.with_name(page_name(target, number)))
        for number, document in enumerate(
            page.render_pages(store, lambda number: page_name(target, number), place), 1
        )
    ]
    return first


def page_name(target: Path, number: int) -> str:
    return target.name if number == 1 else f"{target.stem}-{number}{target.suffix}"
