"""One HTML file that shows a run: it loads nothing from anywhere, and can be mailed, archived and printed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from holdfast.question import Question
from holdfast.report.likely import names_of
from holdfast.report.lines import PICTURE_BYTES, Line, lines_of
from holdfast.report.pairing import usual_radii
from holdfast.report.plots import band, convergence, share, times
from holdfast.report.question import hashes, headline, shown
from holdfast.report.sources import sources
from holdfast.report.standard import properties_of
from holdfast.report.summary import Part, Totals, frame_name, parts_of, rows_of, totals_of
from holdfast.report.template import template
from holdfast.report.verdict import VERDICTS, Tally, spoken, tally
from holdfast.store import Event, Store

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
    ("failed", "the model raised, crashed, hung, answered NaN or had no memory for it, as its note says; resuming tries again"),
    ("refuted", "a proof and a witness excluded each other, or the model changed while it was asked: nothing of it is believed"),
)


@dataclass(frozen=True)
class Section:
    """One part of the question on the page: numbers, plots and a table of their own."""

    part: Part
    place: str  # what keeps its ids apart from those of other parts; nothing for the first
    silent: int
    radii: tuple[float, ...]
    at: float
    tally: Tally
    totals: Totals
    each: bool
    lines: Sequence[Line]
    names: dict[int, str]
    plots: dict[str, Markup]

    @property
    def left_out(self) -> int:
        return len(self.part.rows) - len(self.lines)

    @property
    def without_picture(self) -> int:
        return sum(line.picture_left_out for line in self.lines)

    @property
    def labelled(self) -> bool:
        """Not where the run kept its inputs, and none of them has a class."""
        sources = [row.source for row in self.part.rows]
        return not all(source is not None and source.label is None and source.prediction is None for source in sources)

    @property
    def has_estimates(self) -> bool:
        return any(row.bracket.estimates for row in self.part.rows)


def render(store: Store) -> str:
    """The run as one HTML document."""
    question, records, inputs, history = store.question, store.records(), store.inputs(), store.history()
    rows = rows_of(records, inputs, store.answers())
    parts = parts_of(rows)
    asked = {stored.index for stored in inputs} | {row.index for row in rows}
    thing = frame_name(question)
    sections = [
        _section(
            part, f"-{k}" if k else "", question, [e for e in history if e.key.part == part.name], len(asked - part.answered), len(parts)
        )
        for k, part in enumerate(parts)
    ]
    return template("report.html.j2").render(
        sections=sections,
        thing=thing,
        verify=question.command == "verify",
        said={said: spoken(said, question.command) for said in VERDICTS},
        properties=properties_of(question),
        hashes=hashes(question),
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        vocabulary=len(question.model.vocabulary or ()),
        settings=shown(question),
        headline=headline(question, len(asked)),
        folder=str(store.folder),
        interrupted=len({row.index for row in rows if row.status == "interrupted"}),
        answered=len({row.index for row in rows}),
        asked=len(asked),
        evidence=EVIDENCE,
        sources=sources(records),
        skipped=Counter(reason for record in records for reason in record.skipped).most_common(),
        statuses=[(name, meaning, sum(row.status == name for row in rows)) for name, meaning in STATUSES],
        open_above=sum(section.totals.open_above for section in sections),
        provenance=store.provenance,
    )


def _section(part: Part, place: str, question: Question, history: Sequence[Event], silent: int, parts: int) -> Section:
    rows, sense = part.rows, part.sense
    brackets = [row.bracket for row in rows]
    radii = usual_radii(question, [(row,) for row in rows])
    at = radii[len(radii) // 2] if radii else 0.0
    each = any(row.frames for row in rows)
    times_of = {name: [row.seconds for row in rows if row.status == name] for name, _ in STATUSES}
    plots = {
        "band": band.draw(brackets, sense, name=f"band{place}"),
        "share": share.draw(brackets, sense, name=f"share{place}"),
        "convergence": convergence.draw(history, sense, f"{frame_name(question)}s" if each else "inputs", f"convergence{place}"),
        "times": times.draw(times_of, f"times{place}"),
    }
    return Section(
        part=part,
        place=place,
        silent=silent,
        radii=radii,
        at=at,
        tally=tally(rows, at, silent=silent),
        totals=totals_of(rows),
        each=each,
        lines=lines_of(rows[: MOST_ROWS // parts], question, PICTURE_BYTES // parts),
        names=names_of(rows[: MOST_ROWS // parts], question),
        plots={name: Markup(svg) for name, svg in plots.items()},
    )
