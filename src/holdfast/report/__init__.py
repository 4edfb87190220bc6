"""What a person looks at: the table in the terminal, the HTML page, the comparison of runs and the gate.

`table` lives in holdfast.report.table, `compare` in holdfast.report.compare, `gate` in holdfast.report.gate. jinja2, matplotlib and rich
are imported only by what needs them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.store import Store

__all__ = ["write_report"]


def write_report(store: "Store", path: str | Path) -> Path:
    """The run as one self-contained HTML file, as a fragment of a model card (.md) or as JSON (.json); returns the path.

    BadInput for another ending, StoreError if it cannot be written.
    """
    target = Path(path)
    if target.suffix == ".json":
        return store.export(target)
    if target.suffix not in ("", ".html", ".htm", ".md"):
        raise BadInput(f"{target}: unknown ending; use .html for the page, .md for a model card, .json for the records.")
    # here: jinja2 and matplotlib take a second nobody else should wait
    from holdfast.report import card, page
    from holdfast.report.writing import write

    return write((card if target.suffix == ".md" else page).render(store), target)
