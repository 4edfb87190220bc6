"""A run as HTML: one file that loads nothing from anywhere, and can be mailed, archived and printed. Where there are more inputs than a
browser shows at once, further files beside it hold the others."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile

from markupsafe import Markup

from holdfast.question import Question
from holdfast.question_text import describe_question
from holdfast.report.answers import answer_of as own_answer
from holdfast.report.class_probabilities import names_of
from holdfast.report.evidence_sources import sources
from holdfast.report.heat_map import Heat
from holdfast.report.input_table import PICTURE_BYTES, InputLine, heat_of, lines_of
from holdfast.report.pairing import usual_radii
from holdfast.report.plots import band, convergence, share, times
from holdfast.report.question import command_line, hashes, preparation
from holdfast.report.question import shown as shown_of
from holdfast.report.standard import properties_of
from holdfast.report.streaming import by_input, summary_parts
from holdfast.report.summary import (
    ANYTIME,
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
from holdfast.report.verdict import VERDICTS, VerdictCounts, spoken, tally
from holdfast.report.wording import is_apart
from holdfast.result import Record
from holdfast.store import Event, Store

MOST_ROWS = 1000  # of one page, about a megabyte: a browser shows that at once
MOST_MOMENTS = 50_000  # of the history that are drawn
NEAR = 3  # pages before and after this one that it names

EVIDENCE = (
    ("proved", "holds for every point of the region, by bound propagation, enumeration or definition."),
    (
        "witnessed",
        "is shown by a concrete input, which was replayed through the model under test before it was kept.",
    ),
    ("sampled", "holds with the confidence that is named beside it."),
    ("estimated", "comes without any guarantee, stands beside a bracket and never moves one of its ends."),
)
STATUSES = (
    ("closed", "both ends are equal: the truth is known"),
    ("finished", "every method has done all it can, or the gap asked for is reached"),
    ("stopped", "the budget ran out; resuming goes on"),
    ("interrupted", "the run was ended early; resuming takes it up again"),
    (
        "failed",
        "the model raised, crashed, hung, gave no number or had no memory for it, as its note says; resuming tries again",
    ),
    (
        "refuted",
        "a proof and a witness excluded each other, or the model changed while it was asked: nothing of it is believed",
    ),
)


@dataclass(frozen=True)
class Section:
    """One part of the question on the page: numbers, plots and a table of their own."""

    part: QuestionPart
    place: str  # what keeps its ids apart from those of other parts; nothing for the first
    silent: int
    radii: tuple[float, ...]
    at: float
    tally: VerdictCounts
    totals: Totals
    each: bool
    lines: Sequence[InputLine]
    names: dict[int, str]
    plots: dict[str, Markup]

    @cached_property
    def without_picture(self) -> int:
        return sum(line.picture_left_out for line in self.lines)

    @property
    def rows_are(self) -> str:
        return "outputs" if len(self.part.rows) and self.part.rows[0].output is not None else "inputs"

    @cached_property
    def labelled(self) -> bool:
        """Not where the run kept its inputs, and none of them has a class."""
        sources = [row.source for row in self.part.rows]
        return not all(
            source is not None and source.label is None and source.prediction is None for source in sources
        )

    @cached_property
    def seen(self) -> bool:
        """Is there a witness to look at?"""
        return any(line.pictures.witness or line.pictures.change for line in self.lines)

    @cached_property
    def noted(self) -> bool:
        return any(line.note for line in self.lines)

    @cached_property
    def has_estimates(self) -> bool:
        return any(row.bracket.estimates for row in self.part.rows)


@dataclass(frozen=True)
class Pages:
    """Where this page stands among those of a run."""

    number: int
    names: Sequence[str]  # of the files, which lie side by side
    first: int  # the inputs that it shows
    last: int
    inputs: int  # in all

    @property
    def near(self) -> list[tuple[int, str]]:
        """Numbers and names: the first, the last, and those around this one."""
        chosen = {1, len(self.names), *range(self.number - NEAR, self.number + NEAR + 1)}
        return [
            (number, self.names[number - 1]) for number in sorted(chosen) if 1 <= number <= len(self.names)
        ]


@dataclass(frozen=True)
class Place:
    """Where a page lies.

    folder   of the run, as the page speaks of it.
    written  when; nothing where the page must be the same whenever it is written.
    bundled  it is about a bundle, so that the bundle is what is checked.
    signed   the fingerprints of the keys that signed the bundle, as whoever wrote the page has checked.
    """

    folder: str
    written: str
    bundled: bool = False
    signed: tuple[str, ...] = ()


IN_BUNDLE = Place("run", "", bundled=True)


def render(store: Store) -> str:
    """The first page."""
    return next(render_pages(store, lambda number: f"report-{number}.html" if number > 1 else "report.html"))


def render_pages(store: Store, name: Callable[[int], str], place: Place | None = None) -> Iterator[str]:
    """The run as HTML documents, one after another; `name` gives the name of the file of each."""
    at_home = (
        Place(str(store.folder), datetime.now(UTC).isoformat(timespec="seconds")) if place is None else place
    )
    question, answered = store.question, store.answered_inputs()
    together = max(1, int(MOST_ROWS / _rows_each(store, len(answered))))
    places = [answered[k : k + together] for k in range(0, len(answered), together)] or [[]]
    names = [name(number) for number in range(1, len(places) + 1)]
    parts, asked = summary_parts(store, together)
    shown = {part.name: list(part.rows[: _until(part, places[0])]) for part in parts}
    whole = [row for rows in shown.values() for row in rows]
    heat = heat_of(whole, question)
    skipped: Counter[str] = Counter()
    known = sources(_count_records(store, skipped))
    every = -(-store.moments() // MOST_MOMENTS) or 1
    history = store.history(every)
    statuses: Counter[str] = Counter(row.status for part in parts for row in part.rows)
    unanswered = {row.index for part in parts for row in part.rows if row.status in UNANSWERED}
    sections = [
        _section(
            part, f"-{k}" if k else "", question, [e for e in history if e.key.part == part.name and e.key.index not in unanswered],
            len(asked - part.answered),
            _lines(shown[part.name], question, heat, len(parts)),
        )
        for k, part in enumerate(parts)
    ]  # fmt: skip
    common = {
        "thing": frame_name(question),
        "verify": question.command == "verify",
        "said": {said: spoken(said, question.command) for said in VERDICTS},
        "headline": describe_question(question),
        "folder": at_home.folder,
        "evidence": EVIDENCE,
        "anytime": ANYTIME,
        "sources": known,
        "statuses": [(status, meaning, statuses[status]) for status, meaning in STATUSES],
        "answered": len(answered),
        "several": len(parts) > 1,
    }
    yield template("report.html.j2").render(
        **common,
        sections=sections,
        pages=_pages(1, names, places, len(asked)),
        every=every,
        own=own_answer(store),
        command=command_line(question, at_home.folder),
        begun_in=question.begun_in,
        prepared=preparation(question),
        properties=properties_of(question),
        hashes=hashes(question),
        fingerprint=store.fingerprint(),
        place=at_home,
        vocabulary=len(question.model.vocabulary or ()),
        settings=shown_of(question),
        failed=len(unanswered),
        interrupted=len({row.index for part in parts for row in part.rows if row.status == "interrupted"}),
        asked=len(asked),
        skipped=skipped.most_common(),
        open_above=sum(section.totals.open_above for section in sections),
        provenance=store.provenance,
    )
    at = {section.part.name: (section.place, section.at) for section in sections}
    several = len(parts)
    del parts, asked, shown, whole, sections, history  # further pages need none of it
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
    """Of an input: one for each part of the question, or one for each record where every output is asked for."""
    first = next(store.stream(light=True), None)
    if first is not None and is_apart(first.goal, first.key.part):
        return sum(store.counts().values()) / inputs
    return max(1, len(store.parts()))


def _until(part: QuestionPart, inputs: Sequence[int]) -> int:
    """How many of a part's rows are of these inputs, the first ones."""
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
    """A part of a further page: its table alone."""
    none = totals_of(())
    return Section(
        part, place, 0, (), at, tally((), at), none, any(row.frames for row in part.rows), *lines, {}
    )


def _section(
    part: QuestionPart,
    place: str,
    question: Question,
    history: Sequence[Event],
    silent: int,
    lines: tuple[list[InputLine], dict[int, str]],
) -> Section:
    rows, sense = part.rows, part.sense
    brackets = Brackets(rows)
    radii = usual_radii(question, rows)
    at = radii[len(radii) // 2] if radii else 0.0
    each = any(row.frames for row in rows)
    times_of = {name: [row.seconds for row in rows if row.status == name] for name, _ in STATUSES}
    plots = {"times": times.draw(times_of, f"times{place}")}
    if question.command != "verify":  # scores of different properties have no common scale
        things = f"{frame_name(question)}s" if each else "inputs"
        plots |= {
            "band": band.draw(brackets, sense, name=f"band{place}"),
            "share": share.draw(brackets, sense, name=f"share{place}"),
            "convergence": convergence.draw(history, sense, things, f"convergence{place}"),
        }
    drawn = {name: Markup(svg) for name, svg in plots.items()}
    return Section(
        part, place, silent, radii, at, tally(rows, at, silent=silent), totals_of(rows), each, *lines, drawn
    )
