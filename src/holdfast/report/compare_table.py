"""A comparison as headings and cells, shared by the terminal, the page and Markdown."""

import math
from dataclasses import asdict
from typing import Any

from holdfast.formatting import format_bounds, format_nearest, format_percent, format_range
from holdfast.question_text import describe_question
from holdfast.report import markdown
from holdfast.report.compare import Comparison, Duel, Interval
from holdfast.report.summary import share_text
from holdfast.report.verdict import is_correct
from holdfast.report.wording import RADIUS

MOST_PAIRS = 3  # Pairs of runs with a sentence each; three sentences fill the heading of the page.
Cells = tuple[list[str], list[list[str]]]  # Headings, and rows of as many cells.


def run_table(found: Comparison) -> Cells:
    """Return one row for each run."""
    sense = found.sense
    quantity = sense.quantity
    headings = [
        "run",
        "model",
        *(["right"] if found.labelled else []),
        *(f"certified {sense.claim} {format_nearest(at)}" for at in found.radii),
        f"mean proved {quantity}",
        f"mean {sense.shown} {quantity}",
        "rank by proof",
        "rank by attack",
    ]
    rows = [
        [
            side.name,
            side.model,
            *([format_percent(side.accuracy)] if found.labelled else []),
            *(share_text(t.share) for t in side.tallies),
            *shown,
            *map(
                _rank,
                (side.rank_lower, side.rank_upper) if sense.rises else (side.rank_upper, side.rank_lower),
            ),
        ]
        for side in found.sides
        for shown in [format_bounds(side.mean_lower, side.mean_upper)[:: 1 if sense.rises else -1]]
    ]
    return headings, rows


def pair_table(found: Comparison) -> Cells:
    """Return one row for each pair of runs."""
    headings = [
        "first",
        "second",
        "first wins",
        "ties",
        "second wins",
        "undecided",
        "lower bounds",
        "upper bounds",
        "exact mean difference",
    ]
    rows = [
        [
            duel.first,
            duel.second,
            str(duel.wins),
            str(duel.ties),
            str(duel.losses),
            str(duel.undecided),
            _interval(duel.lower),
            _interval(duel.upper),
            format_range(duel.least, duel.most),
        ]
        for duel in found.duels
    ]
    return headings, rows


def comparison_sentence(found: Comparison) -> str:
    """Answer a comparison in one sentence per pair: 'v2 is more robust than v1 on 4 of 16 inputs, v1 on 1;
    11 are undecided.'

    More than MOST_PAIRS pairs are summed up by the wins and losses of each run. The first line of the page
    and the terminal use it.
    """
    count = len(found.pairs)
    inputs = "input" if count == 1 else "inputs"
    better = _better(found)
    if len(found.duels) <= MOST_PAIRS:
        return " ".join(_pair_sentence(duel, count, inputs, better) for duel in found.duels)
    wins = {side.name: 0 for side in found.sides}
    for duel in found.duels:
        wins[duel.first] += duel.wins
        wins[duel.second] += duel.losses
    undecided = sum(duel.undecided for duel in found.duels)
    ranked = sorted(wins.items(), key=lambda item: -item[1])
    text = ", ".join(f"{name} {won}" for name, won in ranked)
    pairs = len(found.duels) * count
    return (
        f"Proved wins over another run on one of {count} {inputs}: {text}; {undecided} of "
        f"{pairs} comparisons are undecided."
    )


def _better(found: Comparison) -> str:
    if found.sense == RADIUS:
        return "is more robust than"
    return f"has the {'larger' if found.sense.rises else 'smaller'} {found.sense.quantity} than"


def _pair_sentence(duel: Duel, count: int, inputs: str, better: str) -> str:
    (winner, won), (loser, lost) = sorted(
        ((duel.first, duel.wins), (duel.second, duel.losses)), key=lambda item: -item[1]
    )
    rest = [f"{duel.ties} {'is a tie' if duel.ties == 1 else 'are ties'}"] if duel.ties else []
    rest += [f"{duel.undecided} {'is' if duel.undecided == 1 else 'are'} undecided"] if duel.undecided else []
    if not won and not lost:
        verb = better.replace("is ", "to be ", 1).replace("has ", "to have ", 1)
        first = (
            f"Neither {duel.first} nor {duel.second} is shown {verb.removesuffix(' than')} on "
            f"any of {count} {inputs}"
        )
    else:
        first = f"{winner} {better} {loser} on {won} of {count} {inputs}, {loser} on {lost}"
    return "; ".join([first, *rest]) + "."


def explain_numbers(found: Comparison) -> str:
    """Explain the numbers in a few sentences."""
    share = format_nearest(100 * found.confidence)
    what = found.sense.quantity
    better = (
        "proved lower bound lies above the other's witnessed upper bound"
        if found.sense.rises
        else "proved upper bound lies below the other's witnessed lower bound"
    )
    return (
        f"All numbers are over the {len(found.pairs)} inputs that every run answered. A run wins "
        "an input if its "
        f"{better}; if the brackets overlap, the input is undecided. Differences are first minus "
        "second: the mean over "
        f"the inputs where both bounds are finite, with its {share} % interval (Student's t for "
        "inputs drawn at random; "
        f"not a proof). The exact mean difference of the {what} on these very inputs lies in the "
        "range of the last "
        "column, bounded by proofs "
        f"{'below and witnesses above' if found.sense.rises else 'above and witnesses below'}. "
        "Means and differences leave out inputs with an infinite bound in any run, or that a run "
        "had no time to measure. "
        f"Certified shares are of the inputs measured at that {what}."
    )


def _rank(rank: int | None) -> str:
    return "–" if rank is None else str(rank)


def _interval(found: Interval) -> str:
    if math.isinf(found.high):
        return format_nearest(found.mean)
    return f"{format_nearest(found.mean)} [{format_nearest(found.low)}, {format_nearest(found.high)}]"


def as_markdown(found: Comparison) -> str:
    parts = [
        markdown.table(headings, [[markdown.text(cell) for cell in row] for row in rows])
        for headings, rows in (run_table(found), pair_table(found))
    ]
    notes = [
        f"- {markdown.text(f'{run.name}: {describe_question(run.question)}', markdown.SENTENCE)}"
        for run in found.runs
    ]
    notes += [f"- {markdown.text(note)}" for note in found.notes]
    answer = markdown.text(comparison_sentence(found), markdown.SENTENCE)
    return (
        "\n\n".join(["## Comparison", answer, parts[0], parts[1], explain_numbers(found), "\n".join(notes)])
        + "\n"
    )


def as_json(found: Comparison) -> dict[str, Any]:
    """Return the comparison in the format of docs/schema/comparison.schema.json; infinite and unknown
    numbers are null.
    """
    return {
        "format": 1,
        "part": found.runs[0].part.name,
        "goal": found.pairs[0][0].goal,
        "confidence": found.confidence,
        "radii": list(found.radii),
        "inputs": len(found.pairs),
        "runs": [_finite_or_none(asdict(side)) for side in found.sides],
        "duels": [
            {
                **{
                    name: value for name, value in _finite_or_none(asdict(duel)).items() if name != "outcomes"
                },
                "wins": duel.wins,
                "ties": duel.ties,
                "losses": duel.losses,
                "undecided": duel.undecided,
            }
            for duel in found.duels
        ],
        "rows": [
            {
                "input": [row.index for row in pair],
                "output": pair[0].output,
                "right": [is_correct(row) for row in pair],
                "lower": [_finite_or_none(row.bracket.lower.value) for row in pair],
                "upper": [_finite_or_none(row.bracket.upper.value) for row in pair],
                "outcomes": [duel.outcomes[place] for duel in found.duels],
            }
            for place, pair in enumerate(found.pairs)
        ],
        "notes": list(found.notes),
    }


def _finite_or_none(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite_or_none(part) for name, part in value.items()}
    return [_finite_or_none(part) for part in value] if isinstance(value, list | tuple) else value
