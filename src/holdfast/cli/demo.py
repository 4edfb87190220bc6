"""`holdfast demo`: three networks that read digits, one of them hardened, and one that reads words."""

import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from holdfast.cli.commands.harden import Harden
from holdfast.cli.harden import BANDS, COMPARED, HELD, harden_into
from holdfast.cli.monitor.scores import ShownScores, evidence_words, show_scores
from holdfast.cli.run import begin
from holdfast.cli.views.compare import open_runs
from holdfast.commands.options import ModelOptions
from holdfast.commands.radius import Radius
from holdfast.errors import StoreError
from holdfast.files import read_json
from holdfast.formatting import format_percent
from holdfast.hardening.folder import TOLD, WEIGHTS
from holdfast.question import plain
from holdfast.report import write_report
from holdfast.report.compare import compare as compare_runs
from holdfast.report.index import IndexEntry, comparison_entry, word_scores, write_index
from holdfast.store import FILE, Store
from holdfast.store.lease import FILE as LEASE

NETWORKS = "holdfast.datasets.digits_networks"
DATA = "holdfast.datasets.digits"
QUESTIONS = (
    (
        "cnn",
        "A convolutional network: how far may every pixel move (norm inf)?",
        Radius(
            ModelOptions(f"{NETWORKS}:digits_cnn", domain="0,1"), f"{DATA}:images", limit=20, saliency=True
        ),
    ),
    (
        "lstm",
        "An LSTM that reads rows: how far may all rows move at once, each in norm 2?",
        Radius(
            ModelOptions(f"{NETWORKS}:digits_lstm", domain="0,1"),
            f"{DATA}:rows",
            limit=25,
            norm="2",
            frames="all",
        ),
    ),
    (
        "gru",
        "A GRU that reads rows: which row matters most? Each one alone, in norm 2.",
        Radius(
            ModelOptions(f"{NETWORKS}:digits_gru", domain="0,1"),
            f"{DATA}:rows",
            limit=6,
            norm="2",
            frames="each",
        ),
    ),
)
HARDENED = "hardened"
HARDENED_TITLE = "The same LSTM, hardened: a short training with bounds in the loss, before and after"
WORDS_TITLE = "An LSTM that reads words: on which word does each answer depend?"
HARDEN = Harden(
    ModelOptions(f"{NETWORKS}:digits_lstm", domain="0,1"),
    f"{DATA}:training_rows",
    radius=0.04,
    test=f"{DATA}:rows",
    count=16,
    epochs=25,
)


def demo(folder: Path, console: Console) -> None:
    """Run every question into its own folder in `folder`, and print the path of the index page."""
    began = time.monotonic()
    for name, title, question in QUESTIONS:
        console.rule(Text(title, "bold"))
        run = folder / name
        _clear(run, question)
        begin(question, run, console)
        with Store.read(run) as store:
            write_report(store, run / "report.html")
    console.rule(Text(HARDENED_TITLE, "bold"))
    _clear_hardened(folder / HARDENED)
    with contextlib.suppress(SystemExit):  # Exit code 1: no improvement; the last line says so.
        harden_into(HARDEN, folder / HARDENED, console)
    console.rule(Text(WORDS_TITLE, "bold"))
    shown = show_scores("helpdesk", None, "final", None, None, console)
    console.rule(Text("done", "bold"))
    console.print(
        f"{time.monotonic() - began:.0f} s. Lower bounds are proved; upper bounds have a counterexample that "
        "you can look at."
    )
    index = write_index(
        "Three networks that read digits, one of them hardened, and one that reads words",
        [(title, folder / name) for name, title, _ in QUESTIONS],
        folder / "index.html",
        [*_hardened_entries(folder / HARDENED), words_entry(shown)],
    )
    console.print(f"open this first: {index.resolve()}", soft_wrap=True, highlight=False)
    console.print(
        f"before and after hardening: {(folder / HARDENED / BANDS).resolve()}",
        soft_wrap=True,
        highlight=False,
    )


def _hardened_entries(run: Path) -> list[IndexEntry]:
    """The comparison of the network before and after hardening; none if it was interrupted."""
    if not (run / COMPARED).exists():
        return []
    found = compare_runs(open_runs([run / "before", run / "after"]))
    told = read_json(run / TOLD, "Run the demo again.")
    headline = f"{told['verdict']} Solid: certified at this radius; dotted: not shown to break."
    return [comparison_entry(HARDENED_TITLE, found, headline, f"{run.name}/{COMPARED}")]


def words_entry(shown: Sequence[ShownScores]) -> IndexEntry:
    """The sentences with the score of each word, and in words the weakest of them."""
    sentences, weakest = [], (math.inf, "", "")
    for one in shown:
        words = one.words or ()
        scored = [
            None if math.isnan(score) or not free else score
            for score, free in zip(one.scores.values.tolist(), one.scores.attackable.tolist(), strict=True)
        ]
        sentences.append(word_scores(list(zip(words, scored, strict=True)), one.answer))
        for word, score in zip(words, scored, strict=True):
            if score is not None and score < weakest[0]:
                weakest = (score, word, one.answer)
    score, word, answer = weakest
    return IndexEntry(
        WORDS_TITLE,
        f"The answer that depends most on one word is {answer!r}: replacing {word!r} at random by one of its "
        f"substitutes or itself changes it {format_percent(1 - score)} of the time."
        if sentences and word
        else "No word has a substitute.",
        "Of the test sentences, the one with the lowest score for each answer. The number after a word is the "
        "probability that the final answer stays when that word is replaced at random by one of its substitutes "
        "or itself; darker is less robust, words without a number have no substitutes. Evidence: "
        f"{evidence_words(shown[0].scores.evidence)}. The command 'holdfast monitor score helpdesk' prints the "
        "same.",
        sentences=sentences,
    )


def _clear(run: Path, question: Radius) -> None:
    """Remove the files of an earlier demo, and nothing else."""
    if not (run / FILE).exists():
        return
    with Store.read(run) as store:
        earlier = store.question.options == plain(question.as_json())
    if not earlier:
        raise StoreError(f"{run} holds a run that is not an earlier demo. Choose another folder with --out.")
    _remove(run)


def _clear_hardened(run: Path) -> None:
    """Remove the files of an earlier hardening; one that was interrupted continues."""
    if not (run / WEIGHTS).exists():
        return
    for name in ("before", "after"):
        if (run / name / FILE).exists():
            with Store.read(run / name) as store:
                earlier = store.question.options.get("data") == str(run / HELD)
            if not earlier:
                raise StoreError(
                    f"{run} holds a run that is not an earlier demo. Choose another folder with --out."
                )
            _remove(run / name)
    for path in (
        run / WEIGHTS,
        run / TOLD,
        run / HELD,
        run / COMPARED,
        run / BANDS,
        *run.glob("hardened_????????.py"),
    ):
        path.unlink(missing_ok=True)


def _remove(run: Path) -> None:
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm", LEASE, "report.html"):
        (run / name).unlink(missing_ok=True)
