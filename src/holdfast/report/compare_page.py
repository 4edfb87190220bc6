"""A comparison as one HTML file, in the dress of the report."""

from datetime import UTC, datetime

from markupsafe import Markup

from holdfast.report.compare import Comparison
from holdfast.report.compare_table import duels, explained, sides
from holdfast.report.plots import curves
from holdfast.report.question import shown
from holdfast.report.sense import RADIUS
from holdfast.report.summary import at_least, at_most, norm_name
from holdfast.report.template import template
from holdfast.report.verdict import right

MOST_ROWS = 10_000


def render(found: Comparison) -> str:
    columns = found.pairs.columns
    names = [side.name for side in found.sides]
    quantity = found.sense.quantity
    question = found.runs[0].question
    norm = question.asked.norm
    return template("compare.html.j2").render(
        headline=f"{len(names)} runs on the same {len(found.pairs)} inputs: {_asked(found)}?",
        norm="" if norm is None else "replaced words" if norm == "words" else f"{norm_name(norm)} norm",
        names=names,
        quantity=quantity,
        rises=found.sense.rises,
        sides=sides(found),
        duels=duels(found),
        explained=explained(found),
        notes=found.notes,
        curves=Markup(curves.draw(names, columns)),
        rows=[_cells(found, place) for place in range(min(len(found.pairs), MOST_ROWS))],
        left_out=max(0, len(found.pairs) - MOST_ROWS),
        pairs=[f"{duel.first} / {duel.second}" for duel in found.duels],
        runs=[(run.name, shown(run.question), run.provenance) for run in found.runs],
        written=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _asked(found: Comparison) -> str:
    if found.sense == RADIUS:
        return "which network holds longer"
    return f"which network has the {'larger' if found.sense.rises else 'smaller'} {found.sense.quantity}"


def _cells(found: Comparison, place: int) -> tuple[str, list[str], list[str]]:
    """An input's place, its brackets, and who wins each pair."""
    pair = found.pairs[place]
    brackets = [
        f"{at_least(row.bracket.lower.value)} to {at_most(row.bracket.upper.value)}" + ("" if right(row) else ", misclassified")
        for row in pair
    ]
    return pair[0].name, brackets, [_winner(duel.outcomes[place], duel.first, duel.second) for duel in found.duels]


def _winner(outcome: str, first: str, second: str) -> str:
    return {"first": first, "second": second}.get(outcome, outcome)
