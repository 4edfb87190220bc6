"""The table of a run on the terminal, and below it the sentence that answers its question."""

from rich.console import Console

from holdfast.cli.views.answer_sentence import answer_sentence
from holdfast.cli.views.output import line, paragraph
from holdfast.report.streaming import summary_parts
from holdfast.report.table import table
from holdfast.store import Store


def show_results(store: Store, console: Console, sort: str = "input", at: float | None = None) -> None:
    """Print the table in the given order, and for each part of the question that has one, its sentence."""
    console.print(table(store, fragile_first=sort == "fragility"), highlight=False)
    for part in summary_parts(store)[0]:
        if sentence := answer_sentence(store, part, at):
            paragraph(console, "answer", sentence)


def show_run(store: Store, console: Console, sort: str, at: float | None) -> None:
    """Print a stored run: its question, its table and its answer."""
    from holdfast.question_text import describe_question

    paragraph(console, "question", describe_question(store.question))
    show_results(store, console, sort, at)
    line(console, "next", f"holdfast show {store.folder} --input NUMBER")
