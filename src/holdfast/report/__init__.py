"""What a person looks at: the table in the terminal and the HTML page.

`table` lives in holdfast.report.table. jinja2, matplotlib and rich are imported only by what needs them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.store import Store

__all__ = ["write_report"]


def write_report(store: "Store", path: str | Path) -> Path:
    """One self-contained HTML file about the run; returns its path. StoreError if it cannot be written."""
    from holdfast.report.page import render, write  # here: jinja2 and matplotlib take a second nobody else should wait

    return write(render(store), Path(path))
