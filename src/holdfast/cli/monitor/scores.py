"""Show the scores of a monitor: words coloured by score, and the evaluation of the scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from holdfast.cli.monitor.building import print_notes
from holdfast.cli.views.output import line
from holdfast.commands.reading.monitors import (
    OpenedMonitor,
    SequenceRows,
    load_rows,
    of_texts,
    open_monitor,
    rows_for,
)
from holdfast.errors import BadInput
from holdfast.foreign_text import printable
from holdfast.monitor.evaluate import EXTRAS, Evaluation, Mean, evaluation
from holdfast.monitor.score import Scores, Steps
from holdfast.reading.data import PLAIN
from holdfast.reading.read_settings import ReadSettings
from holdfast.result import DONE, Evidence
from holdfast.store import Store

FILES = (".txt", ".tsv", ".npz")
MOST_FRAMES = 60  # Frames in the table of one sequence: about one screen.
CLOSE = 0.005  # Scores closer than this look the same with two decimals.
# Colours of the words, as sRGB values: the score decides between them (chosen by hand).
RED, YELLOW, GREEN = (215, 60, 50), (210, 160, 30), (60, 160, 75)
KINDS = {
    "proved": "proved by enumeration: every value was run",
    "sampled": "sampled: the interval holds with confidence {confidence:g}",
    "estimated": "estimated by an abstract model: no guarantee",
}


# ---- score


@dataclass(frozen=True)
class ShownScores:
    """One sequence that was shown: its words (or None), their scores, and the answer of the network."""

    words: tuple[str, ...] | None
    scores: Scores
    answer: str


def show_scores(
    folder: str,
    text: str | None,
    k: str,
    limit: int | None,
    device: str | None,
    console: Console,
    how: ReadSettings = PLAIN,
    *,
    trust: bool = False,
) -> list[ShownScores]:
    """Print the scores of each sequence of a text or file; without one, the weakest for each answer.

    Returns what was printed.
    """
    steps = steps_of(k)
    opened = open_monitor(folder, partial(line, console, "note"), device, trust=trust)
    rows = _read_requests(opened, text, limit, console, how)
    now = opened.monitor.score_all(rows.sequences)
    found = now if steps == 0 else opened.monitor.score_all(rows.sequences, steps)
    said = [opened.name_of(int(first.labels[-1])) for first in now]
    shown: list[ShownScores] = []
    for place in range(len(found)) if text is not None else _shakiest(found, said):
        pieces = rows.names[place].split() if rows.pieces is None else rows.pieces[place]
        words = found[place].words
        own = words if words is None or len(pieces) != len(found[place]) else tuple(pieces)
        shown.append(ShownScores(own, found[place], said[place]))
        _show(shown[-1], rows.names[place], opened, console)
    print_notes(opened.monitor.net, console)
    _legend(found[0], console)
    return shown


def _shakiest(found: list[Scores], said: list[str]) -> list[int]:
    """For each answer, the sequence with the lowest score."""
    order = sorted(range(len(found)), key=lambda place: found[place].lowest)
    first = {said[place]: place for place in reversed(order)}
    return sorted(first.values())


def _show(shown: ShownScores, name: str, opened: OpenedMonitor, console: Console) -> None:
    if shown.words is None:
        console.print(_frames(shown.scores, f"{name}: {shown.answer}", opened))
        return
    console.print(_sentence(shown.scores, shown.words, shown.answer), soft_wrap=True)


def steps_of(text: str) -> Steps:
    if text == "final":
        return "final"
    if not text.isdecimal():
        raise BadInput(
            f"k {text!r}: give after how many further elements the answer is compared (0, 1, 2 ...), or "
            "final."
        )
    return int(text)


def _read_requests(
    opened: OpenedMonitor, text: str | None, limit: int | None, console: Console, how: ReadSettings
) -> SequenceRows:
    net = opened.monitor.net
    if text is None:
        line(console, "note", "showing, for each answer, the sentence with the lowest score")
        return rows_for(opened, None, limit, partial(line, console, "note"))
    if text.endswith(FILES) or Path(text).is_file():
        return load_rows(text, opened.monitor.reader, limit, how)
    if net.tokenizer is None:
        raise BadInput(
            f"{net.name} has no words: give a .npz file with its sequences instead of {text[:40]!r}."
        )
    return of_texts([text], opened.monitor.reader)


def _sentence(scores: Scores, words: Sequence[str], said: str) -> Text:
    """The words; those with substitutes are coloured from red to green and followed by their score."""
    line = Text()
    for word, score, free in zip(words, scores.values.tolist(), scores.attackable.tolist(), strict=True):
        style = colour(score) if free else Style(dim=True)
        line.append(printable(word), style)
        if free and not math.isnan(score):
            line.append(f" {_number(score)}", Style(dim=True))
        line.append("  ")
    line.append(f"-> {printable(said)}", "bold")
    line.append(f"\n    {printable(_extremes(scores, words))}", Style(dim=scores.least is None))
    return line


def _extremes(scores: Scores, words: Sequence[str]) -> str:
    if scores.least is None or scores.most is None:
        return "no word here has a substitute"
    low, high = float(scores.values[scores.least]), float(scores.values[scores.most])
    if high - low < CLOSE:
        return f"all words with substitutes score {_number(low)}"
    weak, strong = f"{words[scores.least]} {_number(low)}", f"{words[scores.most]} {_number(high)}"
    told = f"least robust: {weak}; most robust: {strong}"
    return (
        told
        if scores.k != "final"
        else f"{told}; replacing {words[scores.least]} at random changes the answer {1 - low:.0%} of the time"
    )


def _number(score: float) -> str:
    return "none" if math.isnan(score) else f"{score:.2f}"


def colour(score: float) -> Style:
    """Red at 0, yellow at one half, green at 1; bold below one half."""
    if math.isnan(score):
        return Style(dim=True)
    low, high, share = (RED, YELLOW, 2 * score) if score < 0.5 else (YELLOW, GREEN, 2 * score - 1)
    mixed = [round(a + (b - a) * min(1.0, max(0.0, share))) for a, b in zip(low, high, strict=True)]
    return Style(color=Color.from_rgb(*mixed), bold=score < 0.5)


def _frames(scores: Scores, title: str, opened: OpenedMonitor) -> Table:
    table = Table("frame", "score", "interval", "answer", title=Text(printable(title)), title_justify="left")
    for place, score in list(enumerate(scores))[:MOST_FRAMES]:
        label = opened.name_of(score.label) if score.label >= 0 else ""
        interval = f"{_number(score.low)} to {_number(score.high)}"
        table.add_row(
            str(place), Text(_number(score.value), colour(score.value)), interval, Text(printable(label))
        )
    least = f"least robust: frame {scores.least}, most robust: frame {scores.most}"
    table.caption = (
        least
        if len(scores) <= MOST_FRAMES
        else f"{least}; {len(scores) - MOST_FRAMES} more frames are not shown"
    )
    return table


def _legend(scores: Scores, console: Console) -> None:
    after = {0: "the answer at the element", "final": "the final answer"}.get(
        scores.k, f"the answer after {scores.k} more elements"
    )
    line(
        console,
        "score",
        f"probability that {after} stays the same when this element is replaced at random by one of its "
        "mutants or itself",
    )
    line(console, "evidence", evidence_words(scores.evidence))


def evidence_words(evidence: Evidence) -> str:
    kind = KINDS.get(evidence.kind, evidence.kind).format(confidence=evidence.confidence or 0)
    return f"{kind}; {evidence.method} in {evidence.dtype}, where {' and '.join(evidence.assumptions)}"


# ---- evaluate


def show_evaluation(store: Store, asked: int, console: Console) -> None:
    """Print the evaluation; asked: the number of sequences of the run."""
    records = [record for record in store.records() if record.status in DONE]
    if not records:
        line(console, "sequences", f"none of {asked} yet", warns=True)
        return
    found = evaluation(records, {name: store.artefacts(name) for name in EXTRAS})
    line(
        console,
        "sequences",
        f"{found.sequences} with {found.places} elements; {found.attackable} elements in {found.eligible} "
        "sequences can be attacked",
    )
    for part in (_errors(found), _attacks(found), _reliability(found)):
        if part is not None:
            console.print(part, highlight=False)
    if found.sequences < asked:
        line(
            console,
            "not yet",
            f"{asked - found.sequences} of {asked} sequences; continue with: holdfast resume {store.folder}",
            warns=True,
        )


def _errors(found: Evaluation) -> Any:
    if found.errors is None:
        return None
    table = Table("error of scores now, attackable elements", "value", title_justify="left")
    table.add_row("mean squared", f"{found.errors.squared:.5f}")
    table.add_row("mean squared, of the constant mean score", f"{found.errors.constant:.5f}")
    table.add_row("mean absolute", f"{found.errors.absolute:.5f}")
    table.add_row("exact score inside the interval", f"{found.errors.within:.1%}")
    if found.kind == "proved":
        table.caption = "these scores are exact (enumeration), so their error is 0 by definition"
    return table


def _attacks(found: Evaluation) -> Any:
    if found.random is None:
        return None
    share = f"{found.confidence:.0%}"
    table = Table(
        "one element mutated at random, chosen by", f"least robust ({share})", f"most robust ({share})"
    )
    for attack in found.attacks:
        table.add_row(
            "scores now (k = 0)" if attack.k == 0 else "final scores", _mean(attack.least), _mean(attack.most)
        )
    table.add_row("chance (any attackable element)", _mean(found.random), _mean(found.random))
    table.caption = f"how often the final answer changes, over {found.eligible} sequences"
    return table


def _mean(mean: Mean) -> str:
    return f"{mean.value:.1%} [{mean.low:.1%}, {mean.high:.1%}]"


def _reliability(found: Evaluation) -> Any:
    if not found.reliability:
        return None
    table = Table("scores now", "elements", "mean score", "unchanged answers")
    for row in found.reliability:
        name = "1" if row.low == 1 else f"{row.low:g} to {row.high:g}"
        table.add_row(
            name,
            str(row.count),
            f"{row.score:.3f}",
            f"{row.kept:.3f} [{row.kept_low:.3f}, {row.kept_high:.3f}]",
        )
    table.caption = "the model was evaluated at one random mutant of each attackable element"
    return table
