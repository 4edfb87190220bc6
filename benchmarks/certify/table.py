"""Markdown tables that are printed row by row as results come in, and written to a file."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path


class Table:
    """A table that prints each row at once, and writes a Markdown file and a JSON file of the rows."""

    def __init__(self, columns: Sequence[str], out: Path | None = None, name: str = "table") -> None:
        self.columns, self.rows = list(columns), list[list[object]]()
        self.file = None if out is None else out / name
        self.lines: list[str] = []
        self._line(f"| {' | '.join(self.columns)} |")
        self._line("|" + "---|" * len(self.columns))

    def add(self, *cells: object) -> None:
        self.rows.append(list(cells))
        self._line(f"| {' | '.join(_shown(c) for c in cells)} |")

    def say(self, line: str) -> None:
        """Print and store a remark below the table."""
        self._line(f"\n{line}")

    def _line(self, line: str) -> None:
        print(line, flush=True, file=sys.stdout)
        self.lines.append(line)
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.with_suffix(".md").write_text("\n".join(self.lines) + "\n")
            named = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
            self.file.with_suffix(".json").write_text(json.dumps(named, indent=1, default=str))


def _shown(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) >= 1 else f"{cell:.4f}"
    return "" if cell is None else str(cell)
