"""One HTML file that shows a run: it loads nothing from anywhere, and can be mailed, archived and printed."""

from collections import Counter
from datetime import UTC, datetime

from markupsafe import Markup

from holdfast.report.likely import names_of
from holdfast.report.lines import lines_of
from holdfast.report.pairing import usual_radii
from holdfast.report.plots import band, convergence, share, times
from holdfast.report.question import hashes, headline, shown
from holdfast.report.sources import sources
from holdfast.report.standard import properties_of
from holdfast.report.summary import rows_of, totals_of
from holdfast.report.template import template
from holdfast.report.verdict import tally
from holdfast.store import Store

MOST_ROWS = 10_000

EVIDENCE = (
    ("proved", "holds for every point of the region, by bound propagation, enumeration or definition."),
    ("witnessed", "is shown by a concrete input, which was replayed through the model under test before it was kept."),
    ("sampled", "holds with the confidence that is named beside it."),
    ("estimated", "comes without any guarantee, stands beside a bracket and never moves one of its ends."),
)
STATUSES = (
    ("closed", "both ends are equal: the truth is known"),
    ("finished", "every method has done all it can, or the gap asked for is reached"),
    ("stopped", "the budget ran out; resuming goes on"),
    ("interrupted", "the run was ended early; resuming takes it up again"),
)


def render(store: Store) -> str:
    """The run as one HTML document."""
    question, records, inputs = store.question, store.records(), store.inputs()
    rows = rows_of(records, inputs, store.answers())
    brackets = [row.bracket for row in rows]
    asked = max(len(inputs), len(rows))
    each = any(row.frames for row in rows)
    quantity = "worst score" if question.command == "worst" else "radius"
    lines = lines_of(rows[:MOST_ROWS], question)
    radii = usual_radii(question, [(row,) for row in rows])
    at = radii[len(radii) // 2] if radii else 0.0
    return template("report.html.j2").render(
        at=at,
        tally=tally(rows, at, scores=quantity != "radius", silent=asked - len(rows)),
        properties=properties_of(question),
        hashes=hashes(question),
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        vocabulary=len(question.model.vocabulary or ()),
        settings=shown(question),
        headline=headline(question, asked),
        quantity=quantity,
        each=each,
        folder=str(store.folder),
        asked=asked,
        totals=totals_of(rows),
        lines=lines,
        names=names_of(rows[:MOST_ROWS], question),
        left_out=len(rows) - len(lines),
        without_picture=sum(line.picture_left_out for line in lines),
        has_estimates=any(bracket.estimates for bracket in brackets),
        band=Markup(band.draw(brackets, quantity)),
        share=Markup(share.draw(brackets, quantity)),
        convergence=Markup(convergence.draw(store.history(), quantity, "frames" if each else "inputs")),
        times=Markup(times.draw({name: [row.seconds for row in rows if row.status == name] for name, _ in STATUSES})),
        evidence=EVIDENCE,
        sources=sources(records),
        skipped=Counter(reason for record in records for reason in record.skipped).most_common(),
        statuses=[(name, meaning, sum(row.status == name for row in rows)) for name, meaning in STATUSES],
        provenance=store.provenance,
    )
