"""An index page of several runs: the answer and the question of each, with a link to its report."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from holdfast.question_text import describe_question
from holdfast.report.answer_sentence import answer_of
from holdfast.report.streaming import summary_parts
from holdfast.report.summary import QuestionPart, Totals, totals_of
from holdfast.report.template import template
from holdfast.report.writing import write_document
from holdfast.store import Store


@dataclass(frozen=True)
class RunEntry:
    """One run of the index. answer: its first sentence. parts: each part with its totals."""

    title: str
    answer: str
    headline: str
    link: str
    parts: Sequence[tuple[QuestionPart, Totals]]


def write_index(title: str, runs: Sequence[tuple[str, Path]], path: Path) -> Path:
    """Write the index page and return its path.

    runs: title and folder of each run. The folders hold report.html and lie below the folder of the page.
    Raises StoreError if the page cannot be written.
    """
    entries = [_entry(name, folder, path.parent) for name, folder in runs]
    return write_document(
        template("index.html.j2").render(
            title=title, entries=entries, written=datetime.now(UTC).isoformat(timespec="seconds")
        ),
        path,
    )


def _entry(title: str, folder: Path, below: Path) -> RunEntry:
    with Store.read(folder) as store:
        parts, _ = summary_parts(store)
        link = (folder / "report.html").relative_to(below).as_posix()
        return RunEntry(
            title,
            answer_of(store),
            describe_question(store.question),
            link,
            [(part, totals_of(part.rows)) for part in parts],
        )
