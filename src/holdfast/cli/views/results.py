"""The table of a run on the terminal, and below it the sentence that answers its question."""

from rich.console import Console

from holdfast.cli.views.output import line, paragraph
from holdfast.question_text import describe_question
from holdfast.report.answer_sentence import answer_of
from holdfast.report.table import table
from holdfast.store import Store


def show_results(store: Store, console: Console, sort: str = "input", at: float | None = None) -> None:
    """Print the table in the given order, and the sentence that answers the question.

    at: the radius at which the sentence counts inputs; default: `report.answer_sentence.decisive_radius`.
    """
    console.print(table(store, fragile_first=sort == "fragility"), highlight=False)
    paragraph(console, "answer", answer_of(store, at, explain=True))


def show_run(store: Store, console: Console, sort: str, at: float | None) -> None:
    """Print a stored run: its question, its table and its answer."""

    paragraph(console, "question", describe_question(store.question))
    show_results(store, console, sort, at)
    line(console, "next", f"holdfast show {store.folder} --input NUMBER")
