"""A run as one self-contained HTML file, which can be mailed, archived and printed.

Where a run has more inputs than a browser shows at once, further files in the same folder hold the others.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile

from markupsafe import Markup

from holdfast.formatting import shorten
from holdfast.question import Question
from holdfast.question_text import describe_question
from holdfast.report.answer_sentence import COUNTED_NORMS, answer_sentence, decisive_radius
from holdfast.report.answers import answer_table as own_answer
from holdfast.report.claim_list import listed_claims
from holdfast.report.class_probabilities import names_of
from holdfast.report.evidence_sources import sources
from holdfast.report.heat_map import Heat
from holdfast.report.input_table import PICTURE_BYTES, InputLine, heat_of, lines_of
from holdfast.report.page_shape import shape_of
from holdfast.report.plots import band, convergence, share, times
from holdfast.report.population import population_sentence
from holdfast.report.question import command_line, hashes, preparation
from holdfast.report.question import displayed_settings as shown_of
from holdfast.report.standard import properties_of
from holdfast.report.streaming import by_input, summary_parts
from holdfast.report.summary import (
    DEEPTRE_NOTE,
    UNANSWERED,
    Brackets,
    InputRow,
    QuestionPart,
    Totals,
    frame_name,
    parts_of,
    totals_of,
)
from holdfast.report.template import template
from holdfast.report.verdict import VERDICTS, VerdictCounts, tally, verdict_text
from holdfast.report.wording import has_separate_outputs
from holdfast.result import Record
from holdfast.store import Event, Store

MOST_ROWS = 1000  # Rows of one page; with pictures this is about 1 MB of HTML, which a browser shows at once.
# Events of the history that the convergence plot reads; of a longer history a share of the inputs.
MOST_MOMENTS = 50_000
NEAR = 3  # Links to pages before and after this one; 7 links and the two ends fit on one line at 1400 px.

EVIDENCE = (
    (
        "proved",
        "holds for every point of the perturbation set, by bound propagation, enumeration or definition.",
    ),
    (
        "witnessed",
        "is shown by a concrete input, which was replayed through the model under test before it was stored.",
    ),
    ("sampled", "holds with the stated confidence."),
    ("estimated", "has no guarantee; it is listed next to the bounds and never changes one of them."),
)
STATUSES = (
    ("closed", "both bounds are equal: the exact value is known"),
    ("finished", "every method has done all it can, or the requested gap is reached"),
    ("stopped", "the budget ran out; `holdfast resume` continues"),
    ("interrupted", "the run was ended early; `holdfast resume` continues"),
    (
        "failed",
        "the model raised an error, crashed, hung, returned no number or ran out of memory (see the note); "
        "`holdfast resume` tries again",
    ),
    (
        "refuted",
        "a proof and a counterexample contradict each other, or the model changed during the run: "
        "no result is used",
    ),
)


@dataclass(frozen=True)
class Section:
    """One part of the question on the page, with its numbers, plots and table.

    place   suffix of the HTML ids of this part; empty for the first one.
    silent  inputs without any record in this part.
    at      the radius or score at which inputs are counted as certified; at_why says where it comes from,
    and is empty without one.
    each    whether the frames, words or cases of an input were queried one by one.
    """

    part: QuestionPart
    place: str
    silent: int
    at: float
    at_why: str
    tally: VerdictCounts
    totals: Totals
    each: bool
    lines: Sequence[InputLine]
    names: dict[int, str]
    plots: dict[str, Markup]

    @cached_property
    def without_picture(self) -> int:
        return sum(line.picture_left_out for line in self.lines)

    def population(self, command: str) -> str:
        """What the count of certified inputs says about the population; empty where it says nothing."""
        return population_sentence(self.tally.certified, self.tally.count, self.at_why, command)

    @cached_property
    def labelled(self) -> bool:
        """Whether the table has columns for the label and the prediction: not where all inputs are stored
        without a class.
        """
        sources = [row.source for row in self.part.rows]
        return not all(
            source is not None and source.label is None and source.prediction is None for source in sources
        )

    @cached_property
    def as_words(self) -> bool:
        """Whether inputs are shown as words, shaded, and not with a strip of cells."""
        return any(row.source is not None and row.source.tokens is not None for row in self.part.rows)

    @cached_property
    def seen(self) -> bool:
        """Whether the table has a counterexample to show."""
        return any(line.pictures.witness or line.pictures.change for line in self.lines)

    @cached_property
    def noted(self) -> bool:
        return any(line.note for line in self.lines)

    @cached_property
    def has_estimates(self) -> bool:
        return any(row.bracket.estimates for row in self.part.rows)


@dataclass(frozen=True)
class Pages:
    """The place of this page among the pages of a run.

    names        file names of all pages, in one folder.
    first, last  the inputs of this page. inputs: their number on all pages.
    """

    number: int
    names: Sequence[str]
    first: int
    last: int
    inputs: int

    @property
    def near(self) -> list[tuple[int, str]]:
        """(number, file name) of the first page, the last page and the neighbours of this page."""
        chosen = {1, len(self.names), *range(self.number - NEAR, self.number + NEAR + 1)}
        return [
            (number, self.names[number - 1]) for number in sorted(chosen) if 1 <= number <= len(self.names)
        ]


@dataclass(frozen=True)
class Place:
    """Where a page is stored.

    folder   path of the run as the page names it.
    written  time of writing; empty where the page must not depend on it.
    bundled  whether the page is part of a bundle, so that a reader checks the bundle and not the run.
    signed   fingerprints of the keys whose signatures of the bundle were verified before the page was
    written.
    """

    folder: str
    written: str
    bundled: bool = False
    signed: tuple[str, ...] = ()


IN_BUNDLE = Place("run", "", bundled=True)


def render(store: Store) -> str:
    """Return the first page as HTML."""
    return next(render_pages(store, lambda number: f"report-{number}.html" if number > 1 else "report.html"))


def render_pages(store: Store, name: Callable[[int], str], place: Place | None = None) -> Iterator[str]:
    """Yield the pages of a run as HTML documents; `name` maps the number of a page to its file name."""
    location = (
        Place(str(store.folder), datetime.now(UTC).isoformat(timespec="seconds")) if place is None else place
    )
    question, answered = store.question, store.answered_inputs()
    together = max(1, int(MOST_ROWS / _rows_each(store, len(answered))))
    places = [answered[k : k + together] for k in range(0, len(answered), together)] or [[]]
    names = [name(number) for number in range(1, len(places) + 1)]
    parts, known_inputs = summary_parts(store, together)
    shown = {part.name: list(part.rows[: _until(part, places[0])]) for part in parts}
    whole = [row for rows in shown.values() for row in rows]
    heat = heat_of(whole, question)
    skipped: Counter[str] = Counter()
    all_sources = sources(_count_records(store, skipped))
    every = -(-store.count_events() // MOST_MOMENTS) or 1
    history = store.history(every)
    statuses: Counter[str] = Counter(row.status for part in parts for row in part.rows)
    unanswered = {row.index for part in parts for row in part.rows if row.status in UNANSWERED}
    sections = [
        _section(
            part,
            f"-{k}" if k else "",
            question,
            [e for e in history if e.key.part == part.name and e.key.index not in unanswered],
            len(known_inputs - part.answered),
            _lines(shown[part.name], question, heat, len(parts)),
        )
        for k, part in enumerate(parts)
    ]
    shape = shape_of(question)
    common = {
        "thing": frame_name(question),
        "verify": question.command == "verify",
        "asked_command": question.command,
        "shape": shape,
        "title": _title(question),
        "answer": answer_sentence(question, parts, len(known_inputs - parts[0].answered)),
        "verdict_names": {name: verdict_text(name, question.command) for name in VERDICTS},
        "headline": describe_question(question),
        "folder": location.folder,
        "evidence": EVIDENCE,
        "anytime": DEEPTRE_NOTE,
        "sources": all_sources,
        "statuses": [(status, meaning, statuses[status]) for status, meaning in STATUSES],
        "answered": len(answered),
        "several": len(parts) > 1,
        "counted": question.asked.norm in COUNTED_NORMS and shape.means,
    }
    yield template("report.html.j2").render(
        **common,
        sections=sections,
        pages=_pages(1, names, places, len(known_inputs)),
        every=every,
        own=own_answer(store),
        claims=listed_claims(store),
        command=command_line(question, location.folder),
        begun_in=question.begun_in,
        prepared=preparation(question),
        properties=properties_of(question),
        hashes=hashes(question),
        fingerprint=store.fingerprint(),
        place=location,
        vocabulary=len(question.model.vocabulary or ()),
        settings=shown_of(question),
        failed=len(unanswered),
        interrupted=len({row.index for part in parts for row in part.rows if row.status == "interrupted"}),
        asked=len(known_inputs),
        skipped=skipped.most_common(),
        open_above=sum(section.totals.open_above for section in sections),
        provenance=store.provenance,
    )
    at = {section.part.name: (section.place, section.at) for section in sections}
    several = len(parts)
    del (
        parts,
        known_inputs,
        shown,
        whole,
        sections,
        history,
    )  # Further pages need none of these; a run may be large.
    for number, inputs in enumerate(places[1:], 2):
        found = parts_of(row for _, some in by_input(store, inputs[0], inputs[-1]) for row in some)
        further = [
            _table(part, *at[part.name], question, _lines(part.rows, question, heat, several))
            for part in found
        ]
        yield template("inputs_page.html.j2").render(
            **common, sections=further, pages=_pages(number, names, places, len(answered))
        )


def _rows_each(store: Store, inputs: int) -> float:
    """Rows of one input on the page: one for each part of the question, or one for each record where every
    output has a row.
    """
    first = next(store.stream(light=True), None)
    if first is not None and has_separate_outputs(first.goal, first.key.part):
        return sum(store.counts().values()) / inputs
    return max(1, len(store.parts()))


def _until(part: QuestionPart, inputs: Sequence[int]) -> int:
    """Count the rows of a part that belong to these inputs, which are the first ones."""
    return sum(1 for _ in takewhile(lambda row: bool(inputs) and row.index <= inputs[-1], part.rows))


def _pages(number: int, names: Sequence[str], places: Sequence[Sequence[int]], inputs: int) -> Pages:
    place = places[number - 1]
    return Pages(number, names, place[0] if place else 0, place[-1] if place else 0, inputs)


def _count_records(store: Store, skipped: Counter[str]) -> Iterator[Record]:
    for record in store.stream(light=True):
        skipped.update(record.skipped)
        yield record


def _lines(
    rows: Sequence[InputRow], question: Question, heat: Heat, parts: int
) -> tuple[list[InputLine], dict[int, str]]:
    return lines_of(rows, question, heat, PICTURE_BYTES // parts), names_of(rows, question)


def _table(
    part: QuestionPart,
    place: str,
    at: float,
    question: Question,
    lines: tuple[list[InputLine], dict[int, str]],
) -> Section:
    """A part on a further page: only its table."""
    none, each = totals_of(()), any(row.frames for row in part.rows)
    return Section(part, place, 0, at, "", tally((), at), none, each, *lines, {})


def _section(
    part: QuestionPart,
    place: str,
    question: Question,
    history: Sequence[Event],
    silent: int,
    lines: tuple[list[InputLine], dict[int, str]],
) -> Section:
    rows, sense, shape = part.rows, part.sense, shape_of(question)
    brackets = Brackets(rows)
    chosen = decisive_radius(question, rows)
    at, why = chosen if chosen is not None else (0.0, "")
    each = any(row.frames for row in rows)
    things = f"{frame_name(question)}s" if each else shape.rows
    seconds = {name: [row.seconds for row in rows if row.status == name] for name, _ in STATUSES}
    draw: dict[str, Callable[[], str]] = {
        "band": lambda: band.draw(brackets, sense, name=f"band{place}"),
        "share": lambda: share.draw(brackets, sense, name=f"share{place}"),
        "convergence": lambda: convergence.draw(history, sense, things, f"convergence{place}"),
        "times": lambda: times.draw(seconds, f"times{place}"),
    }
    worth = {
        "band": len(rows) != 1,
        "share": len(rows) != 1,
        "convergence": not convergence.is_single_point(history),
        "times": not rows or len({round(row.seconds, 3) for row in rows}) > 1,
    }  # A chart of a single point shows nothing that the table does not; an empty run keeps its empty charts.
    plots = {name: Markup(draw[name]()) for name in shape.plots if worth[name]}
    found = tally(rows, at, silent=silent)
    return Section(part, place, silent, at, why, found, totals_of(rows), each, *lines, plots)


def _title(question: Question) -> str:
    """The title of the browser tab: the model's own name, without its module path or folder, and the
    command.
    """
    name = question.model.name.rsplit("/", 1)[-1].rsplit(":", 1)[-1]
    return ", ".join(part for part in (shorten(name, 60), question.command) if part) or "robustness report"
