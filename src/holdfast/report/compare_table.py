"""A comparison as headings and cells: the terminal, the page and Markdown show the same ones."""

import math
from dataclasses import asdict
from typing import Any

from holdfast.formatting import about, between, ends, percent
from holdfast.question_text import describe_question
from holdfast.report import markdown
from holdfast.report.compare import Comparison, Interval
from holdfast.report.summary import share_text
from holdfast.report.verdict import right

Cells = tuple[list[str], list[list[str]]]  # headings, and rows of as many cells


def sides(found: Comparison) -> Cells:
    """One row for each run."""
    sense = found.sense
    quantity = sense.quantity
    headings = [
        "run",
        "model",
        *(["right"] if found.labelled else []),
        *(f"certified {sense.claim} {about(at)}" for at in found.radii),
        f"mean proved {quantity}",
        f"mean {sense.shown} {quantity}",
        "rank by proof",
        "rank by attack",
    ]
    rows = [
        [
            side.name,
            side.model,
            *([percent(side.accuracy)] if found.labelled else []),
            *(share_text(t.share) for t in side.tallies),
            *shown,
            *map(
                _rank,
                (side.rank_lower, side.rank_upper) if sense.rises else (side.rank_upper, side.rank_lower),
            ),
        ]
        for side in found.sides
        for shown in [ends(side.mean_lower, side.mean_upper)[:: 1 if sense.rises else -1]]
    ]
    return headings, rows


def duels(found: Comparison) -> Cells:
    """One row for each two runs."""
    headings = [
        "first",
        "second",
        "first wins",
        "ties",
        "second wins",
        "undecided",
        "lower ends",
        "upper ends",
        "true mean difference",
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
            between(duel.least, duel.most),
        ]
        for duel in found.duels
    ]
    return headings, rows


def explain_numbers(found: Comparison) -> str:
    """What the numbers mean, in a few sentences."""
    share = about(100 * found.confidence)
    what = found.sense.quantity
    better = (
        "proved lower end lies above the other's witnessed upper end"
        if found.sense.rises
        else "proved upper end lies below the other's witnessed lower end"
    )
    return (
        f"All numbers speak of the {len(found.pairs)} inputs that every run answered. A run wins an input where its {better}; "
        f"where brackets overlap it is undecided. Differences are first minus second: the mean over "
        f"the inputs where both ends are finite, with its {share} % interval (Student's t, inputs taken as drawn at random; a statement "
        f"about such inputs, not a proof). The true mean difference of the {what} on these very inputs lies in the last column's range, by "
        f"proofs {'below and witnesses above' if found.sense.rises else 'above and witnesses below'}. Means and differences leave out "
        f"inputs where an end is infinite in any run, or that a run had no time to measure; shares certified count, of the inputs measured "
        f"at that {what}, the certified ones."
    )


def _rank(rank: int | None) -> str:
    return "–" if rank is None else str(rank)


def _interval(found: Interval) -> str:
    if math.isinf(found.high):
        return about(found.mean)
    return f"{about(found.mean)} [{about(found.low)}, {about(found.high)}]"


def as_markdown(found: Comparison) -> str:
    parts = [
        markdown.table(headings, [[markdown.text(cell) for cell in row] for row in rows])
        for headings, rows in (sides(found), duels(found))
    ]
    notes = [
        f"- {markdown.text(f'{run.name}: {describe_question(run.question)}', markdown.SENTENCE)}"
        for run in found.runs
    ]
    notes += [f"- {markdown.text(note)}" for note in found.notes]
    return "\n\n".join(["## Comparison", parts[0], parts[1], explain_numbers(found), "\n".join(notes)]) + "\n"


def as_json(found: Comparison) -> dict[str, Any]:
    """docs/schema/comparison.schema.json describes it. Infinite and unknown numbers are null."""
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
                "right": [right(row) for row in pair],
                "lower": [_finite_or_none(row.bracket.lower.value) for row in pair],
                "upper": [_finite_or_none(row.bracket.upper.value) for row in pair],
                "outcomes": [duel.outcomes[place] for duel in found.duels],
            }
            for place, pair in enumerate(found.pairs)
        ],
        "notes": list(found.notes),
    }


def _finite_or_none(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite_or_none(part) for name, part in value.items()}
    return [_finite_or_none(part) for part in value] if isinstance(value, list | tuple) else value
