"""Tables of commands with a page of their own shape: verdicts, ranges, risks, saliency maps, smoothed classes,
coverage.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from markupsafe import Markup

from holdfast.api.risk import estimate_text, risks_of
from holdfast.certify.smoothing import smoothed_of
from holdfast.formatting import format_bounds as rounded_ends
from holdfast.formatting import format_lower, format_nearest, format_range, shorten
from holdfast.report.answer_sentence import output_name
from holdfast.report.class_probabilities import map_image, map_of
from holdfast.report.picture import show
from holdfast.report.plots import intervals, sampled, solved
from holdfast.report.summary import bracket_text, class_name
from holdfast.result import DONE, Bracket, Key, Record
from holdfast.store import Store, StoredInput
from holdfast.verification import verdict

MOST_ROWS = 1000  # Rows of the table, as on a page of inputs.
MOST_NUMBERS = 12  # Numbers of a counterexample in a cell; `holdfast export` writes all.
DIGITS = 6  # Significant digits of ranges; tolerances of `reach` are usually 1e-2 to 1e-4.
LONG_REASON = 200  # Characters of the reason why there is no certificate; longer ones are cut.
ACCEPTED = "accepted"
CERTIFICATE_COLUMN = 8  # The place of the certificate in a row of verdicts.
PICTURE_BYTES = 300_000  # Bytes of pictures of all rows together; later rows have none.
MEANS = {
    "unsat": "proved never to happen",
    "sat": "can happen: the counterexample was replayed",
    "timeout": "not known: the time ran out",
    "unknown": "not known: the methods ended",
    "failed": "not known: the model failed",
    "": "nothing stored: not reached yet, not readable, or no input satisfies the property's preconditions",
}


@dataclass(frozen=True)
class AnswerTable:
    """A table on the page.

    heading, hint: its title and explanation. columns: names, and whether they hold numbers. left_out: rows
    not shown. counts: numbers with their descriptions. plots: a chart as inline SVG, for wide and for
    narrow screens. caption: what the chart shows.
    """

    heading: str
    hint: str
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]
    left_out: int = 0
    counts: Sequence[tuple[int, str]] = ()
    plots: tuple[str, str] | None = None
    caption: str = ""


def answer_table(store: Store) -> AnswerTable | None:
    """Return the table of the command; None if it has none."""
    made = TABLES.get(store.question.command)
    return None if made is None else made(store)


def _by_input(store: Store, *, aside: bool = False) -> Iterator[tuple[int, list[Record]]]:
    records = store.stream_with_artefacts() if aside else store.stream()
    for index, group in groupby(records, key=lambda record: record.key.index):
        yield index, list(group)


def _inputs_by_number(store: Store) -> dict[int, StoredInput]:
    return {stored.index: stored for stored in islice(store.stream_inputs(), MOST_ROWS)}


def _verdicts(store: Store) -> AnswerTable:
    """verify: property, answer, counterexample, time, certificate and hashes of each instance."""
    files = store.question.asked.specification or [
        stored.name.rpartition(" ")[::2] for stored in _inputs_by_number(store).values()
    ]
    found = dict(islice(_by_input(store), MOST_ROWS))
    certificates = store.certificates()
    rows, answers = [], list[str]()
    solved_seconds: dict[str, list[float]] = {"unsat": [], "sat": []}
    for place, (network, specification, *digests) in enumerate(files[:MOST_ROWS]):
        records = found.get(place, [])
        failed = any(record.status in ("failed", "refuted") for record in records)
        judged = verdict(records) if records and not failed else None
        answer = "failed" if failed else judged.answer if judged else ""
        answers.append(answer)
        # A search takes more than zero seconds, so zero means that no time was recorded.
        seconds = sum(record.seconds for record in records) or None
        if answer in solved_seconds and seconds is not None:
            solved_seconds[answer].append(seconds)
        witness = judged.witness if judged else None
        note = "; ".join(dict.fromkeys(record.bracket.note for record in records if record.bracket.note))
        rows.append(
            [
                str(place),
                shorten(specification),
                shorten(network),
                _answer(answer),
                MEANS[answer] + (f" ({shorten(note)})" if note else ""),
                "" if witness is None else _numbers(witness.flatten().tolist()),
                _score(records),
                "–" if seconds is None else format_nearest(seconds),
                *([_certificate(records, certificates) if answer == "unsat" else ""] if certificates else ()),
                Markup().join(Markup("<code>{}</code>").format(d) for d in digests),
            ]
        )
    names = [
        ("#", True),
        ("property", False),
        ("network", False),
        ("answer", False),
        ("that is", False),
        ("counterexample", False),
        ("smallest score", True),
        ("seconds", True),
        *([("certificate", False)] if certificates else ()),
        ("hashes of network and property", False),
    ]
    hint = (
        "unsat: proved in float64, rounding errors included, for all inputs of the property. sat: "
        "the counterexample was "
        "replayed through the network. The smallest score is positive exactly if the described "
        "event cannot happen. "
        "Hashes are SHA-256 of the files as they were read."
    )
    if certificates and "unsat" in answers:
        accepted = sum(row[CERTIFICATE_COLUMN] == ACCEPTED for row in rows)
        hint += (
            f" {accepted} of {answers.count('unsat')} unsat answers {'has' if accepted == 1 else 'have'} an "
            "accepted certificate: holdfast-check accepted the file when the run wrote it."
        )
    plots, caption = _solved_chart(solved_seconds, answers)
    counts = [
        (answers.count(answer), f"{answer or 'without an answer'}: {MEANS[answer]}")
        for answer in MEANS
        if answer in answers
    ]
    return AnswerTable("Verdicts", hint, names, rows, max(0, len(files) - MOST_ROWS), counts, plots, caption)


def _certificate(records: Sequence[Record], results: Mapping[Key, tuple[float | None, str]]) -> str:
    """Say whether the unsat answer has an accepted certificate for each case, else why not."""
    reasons = []
    for record in records:
        claimed, reason = results.get(record.key, (None, "not tried"))
        if claimed is None:
            reasons.append(reason)
        elif claimed < 0:
            reasons.append("the accepted certificate proves too little")
    return f"none: {shorten('; '.join(dict.fromkeys(reasons)), LONG_REASON)}" if reasons else ACCEPTED


def _solved_chart(
    seconds: Mapping[str, Sequence[float]], answers: Sequence[str]
) -> tuple[tuple[str, str] | None, str]:
    """Return the chart of solved instances over time, for wide and narrow screens, and its caption."""
    recorded = sum(map(len, seconds.values()))
    if recorded < solved.FEWEST_SOLVED:
        return None, ""
    undecided = Counter(answer or "without an answer" for answer in answers if answer not in seconds)
    timeless = len(answers) - undecided.total() - recorded
    caption = f"Instances solved within t seconds: {recorded} of {len(answers)}."
    if undecided:
        kinds = ", ".join(f"{count} {answer}" for answer, count in undecided.most_common())
        caption += f" Not solved, and in no line: {undecided.total()} ({kinds})."
    if timeless:
        caption += f" Solved without a recorded time, and in no line: {timeless}."
    wide, narrow = (Markup(solved.draw(seconds, narrow=small)) for small in (False, True))
    return (wide, narrow), caption


def _answer(answer: str) -> Markup:
    colour = {"unsat": "proved", "sat": "witnessed"}.get(answer, "bad")
    return Markup('<b class="{}">{}</b>').format(colour, answer or "–")


def _score(records: Sequence[Record]) -> str:
    ends = [(record.bracket.lower.value, record.bracket.upper.value) for record in records]
    return format_range(min(low for low, _ in ends), min(high for _, high in ends)) if ends else "–"


def _numbers(values: Sequence[float], name: str = "X") -> Markup:
    """Format numbers with their names and all digits."""
    lines = [
        Markup("{}_{} = {!r}<br>").format(name, k, value) for k, value in enumerate(values[:MOST_NUMBERS])
    ]
    more = f"… {len(values)} numbers: holdfast export RUN witnesses.npz" if len(values) > MOST_NUMBERS else ""
    return Markup('<span class="exact">{}</span>').format(Markup().join(lines) + Markup("{}").format(more))


def _ranges(store: Store) -> AnswerTable:
    """reach: the proved and the reached range of each output of each box."""
    rows, drawn = [], list[tuple[str, tuple[Bracket, Bracket]]]()
    named, tolerance = _inputs_by_number(store), store.question.asked.tolerance or 0.0
    for box, records in islice(_by_input(store), MOST_ROWS):
        ends: dict[int, dict[str, Bracket]] = {}
        for record in records:
            ends.setdefault(record.key.frame or 0, {})[record.key.part] = record.bracket
        for output, parts in sorted(ends.items()):
            low, high = parts.get("smallest"), parts.get("largest")
            if low is None or high is None:
                continue
            gap = max(low.gap, high.gap)
            stored = named.get(box)
            which = output_name(store.question, output)
            drawn.append((f"box {box}, output {which}", (low, high)))
            rows.append(
                [
                    str(box),
                    shorten(stored.name) if stored and stored.name != str(box) else "",
                    which,
                    *_outer_and_met(low, high),
                    format_nearest(gap),
                    "yes" if gap <= tolerance else "no",
                ]
            )
    if len({row[0] for row in rows}) == 1:
        drawn = [(label.partition(", ")[2], ends) for label, ends in drawn]
    hint = (
        "For every input in the box, the output stays in the proved range. The limits of the "
        "reached range come from concrete "
        "inputs, replayed through the network. The exact limits lie between the two."
    )
    columns = [
        ("box", True),
        ("name", False),
        ("output", True),
        ("never below", True),
        ("reached: smallest", True),
        ("reached: largest", True),
        ("never above", True),
        ("gap", True),
        (f"known to {tolerance:g}", False),
    ]
    if not any(row[1] for row in rows):
        columns, rows = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]
    names, ends_of = [name for name, _ in drawn], [ends for _, ends in drawn]
    wide, narrow = (Markup(intervals.draw(names, ends_of, narrow=small)) for small in (False, True))
    if len(drawn) > intervals.MOST_LINES:
        hint += f" The chart shows the first {intervals.MOST_LINES} of them."
    return AnswerTable(
        "Ranges", hint, columns, rows[:MOST_ROWS], max(0, len(rows) - MOST_ROWS), [], (wide, narrow)
    )


def _outer_and_met(low: Bracket, high: Bracket) -> list[Markup]:
    """Return the proved minimum, the reached minimum and maximum, and the proved maximum."""
    below, above = _ends(low), _ends(high)
    kinds = ("proved", "witnessed", "witnessed", "proved")
    return [
        Markup('<span class="{}">{}</span>').format(kind, text)
        for kind, text in zip(kinds, (*below, *above), strict=True)
    ]


def _ends(bracket: Bracket) -> tuple[str, str]:
    return rounded_ends(bracket.lower.value, bracket.upper.value, DIGITS)


def _risks(store: Store) -> AnswerTable:
    """risk: worst score, radius, nearest failure and Q of each input."""
    question, named = store.question, _inputs_by_number(store)
    rows, broken, budget = [], 0, PICTURE_BYTES
    for index, records in islice(_by_input(store, aside=True), MOST_ROWS):
        found = risks_of(records)
        if not found:
            continue
        [r], stored = found, named.get(index)
        fails = r.worst.upper.value <= 0
        broken += fails
        example = None if r.example is None else r.example.numpy()
        pictures = (
            None if stored is None or stored.tokens is not None or budget < 0 else show(stored.x, example)
        )
        budget -= len(pictures.input) + len(pictures.witness) if pictures else 0
        rows.append(
            [
                str(index),
                pictures.input if pictures else "",
                class_name(question, stored.label) if stored else "",
                format_nearest(r.score),
                _bracket(r.worst),
                "it fails in the region" if fails else "holds" if r.worst.lower.value > 0 else "not known",
                _bracket(r.radius),
                pictures.witness if pictures else "",
                _bracket(r.metric),
                estimate_text(r) or "–",
            ]
        )
    radius = (
        ""
        if question.asked.radius is None
        else f" The region has radius {shorten(question.asked.radius, 30)}."
    )
    hint = (
        f"The score is positive exactly if the property holds.{radius} Worst score: the smallest "
        "one in the region, from the proved "
        "to the witnessed bound. Radius: how far the region may grow before the score can fail, "
        "from the proved bound to the nearest "
        "failure found, which may lie outside the region. Q: the largest change of the score over "
        "distance, from the witnessed to the "
        "proved bound. s/Q, at most the radius of the region (DeepQuant, Theorem 1), is an "
        "estimate without a guarantee; it is refuted "
        "if the score fails at a smaller distance."
    )
    columns = [
        ("#", True),
        ("input", False),
        ("label", False),
        ("score", True),
        ("worst score", True),
        ("in the region", False),
        ("radius", True),
        ("nearest failure", False),
        ("Q", True),
        ("s/Q", True),
    ]
    return AnswerTable(
        "Risks",
        hint,
        columns,
        rows,
        len(store.answered_inputs()) - len(rows),
        [(broken, f"of {len(rows)} fail in the region")],
    )


def _bracket(bracket: Bracket | None) -> str:
    return "–" if bracket is None else bracket_text(bracket)


def _tests(store: Store) -> AnswerTable:
    """testgen: open, reached and unreached coverage items of each layer."""
    layers: dict[str, list[int]] = {}
    tests: set[int] = set()
    fewest, many = math.inf, 0.0
    named = {stored.index: stored.name for stored in store.stream_inputs(light=True)}
    for index, records in _by_input(store):
        layer = named.get(index, "").rpartition(", neuron ")[0] or "all"
        count = layers.setdefault(layer, [0, 0, 0])
        [end] = [record.bracket.upper for record in records]
        count[0] += 1
        if math.isfinite(end.value) and end.evidence.witness is not None:
            count[1] += 1
            fewest, many = (
                min(fewest, end.value + 1),
                max(many, end.value + 1),
            )  # The bound is the last count that may still hold.
            tests.add(hash(end.evidence.witness.numpy().tobytes()))
        elif records[0].status not in DONE:
            count[2] += 1
    rows = [
        [shorten(layer), str(wanted), str(reached), str(wanted - reached - open_), str(open_)]
        for layer, (wanted, reached, open_) in layers.items()
    ]
    span = format_nearest(many) if fewest == many else f"{format_nearest(fewest)} to {format_nearest(many)}"
    changes = f"; they change {span} unit{'' if span == '1' else 's'} each" if tests else ""
    hint = (
        "A coverage item is a behaviour of a neuron (see the question) that no given input shows. "
        f"{len(tests)} new input{' reaches' if len(tests) == 1 else 's reach'} the "
        f"reached items{changes}. Each was replayed through the network. Items that were not "
        "reached are not proved unreachable. "
        "tests.npz in the folder of the run holds the new inputs that are needed, in a form that "
        "--data reads."
    )
    columns = [
        ("layer", False),
        ("items open before", True),
        ("reached by a new input", True),
        ("not reached", True),
        ("search not finished", True),
    ]
    wanted, reached, unfinished = (sum(count[k] for count in layers.values()) for k in (0, 1, 2))
    some = f" ({unfinished} not searched to the end)" if unfinished else ""
    counts = [
        (len(tests), "new inputs"),
        (reached, f"of {wanted} open items reached{some}"),
    ]
    return AnswerTable("Coverage", hint, columns, rows, 0, counts)


def _maps(store: Store) -> AnswerTable:
    """saliency: one row for each input, with its map, where it is largest and how far one change lowers the
    margin.
    """
    question, named = store.question, _inputs_by_number(store)
    rows, changed, budget = [], 0, PICTURE_BYTES
    for index, records in islice(_by_input(store), MOST_ROWS):
        stored, [record] = named.get(index), records[:1]
        lowest = record.bracket.upper
        changes = lowest.known and lowest.value <= 0
        changed += changes
        drawn = map_of(None if stored is None or budget < 0 else stored.saliency)
        picture = show(stored.x, None).input if stored and stored.tokens is None and budget >= 0 else Markup()
        budget -= len(drawn.png) + len(picture)
        rows.append(
            [
                str(index),
                picture,
                map_image(drawn),
                class_name(question, stored.label) if stored else "",
                drawn.words or "–",
                format_nearest(lowest.value) if lowest.known else "–",
                "yes" if changes else "not found",
            ]
        )
    hint = (
        "The map is darkest where changing one place lowers the margin most, among the changes "
        "that were tried. The margin is the score of "
        "the class minus that of its closest rival: at 0 or below the class changes, and the input "
        "that shows it was replayed through "
        "the network. A place without a colour is not proved to be harmless."
    )
    columns = [
        ("#", True),
        ("input", False),
        ("saliency", False),
        ("label", False),
        ("strongest place", False),
        ("smallest margin found", True),
        ("class changes by one place", False),
    ]
    return AnswerTable(
        "Saliency maps",
        hint,
        columns,
        rows,
        len(store.answered_inputs()) - len(rows),
        [(changed, f"of {len(rows)} change their class when one place changes")] if changed else (),
    )


def _tabulate_smoothing(store: Store) -> AnswerTable:
    """smoothing: the smoothed class of each input, its sampled share and the radius in which it stays."""
    question, named = store.question, _inputs_by_number(store)
    rows, radii, undecided, budget = [], list[float](), 0, PICTURE_BYTES
    for index, records in islice(_by_input(store, aside=True), MOST_ROWS):
        stored, record = named.get(index), records[0]
        found = smoothed_of(record)
        shown = stored is not None and stored.tokens is None and budget >= 0
        picture = show(stored.x, None).input if stored is not None and shown else Markup()
        budget -= len(picture)
        label = class_name(question, stored.label) if stored else ""
        if not found.measured:
            rows.append([str(index), picture, "–", "not measured", label, "–", record.status])
            continue
        radii.append(found.radius.value)
        undecided += found.prediction is None
        rows.append(
            [
                str(index),
                picture,
                Markup('<span class="sampled">{}</span>').format(format_lower(found.radius.value)),
                "no majority" if found.prediction is None else class_name(question, found.prediction),
                label,
                format_lower(found.p_lower),
                record.status,
            ]
        )
    hint = (
        "The smoothed network answers with the most frequent class under the noise. Its share is a lower "
        "confidence bound (Clopper and Pearson); where it exceeds one half, the class stays within "
        "the radius sigma * Phi^-1(share) in the L2 norm (Cohen, Rosenfeld and Kolter 2019). The confidence "
        "holds for each input by itself. Nothing here is a bound of the network without noise."
    )
    columns = [
        ("#", True),
        ("input", False),
        ("radius (sampled)", True),
        ("smoothed class", False),
        ("label", False),
        ("its share, at least", True),
        ("status", False),
    ]
    wide, narrow = (Markup(sampled.draw(radii, narrow=small)) for small in (False, True))
    left_out = len(store.answered_inputs()) - len(rows)
    counts = [(undecided, f"of {len(rows)} have no majority: radius 0")]
    return AnswerTable("Smoothed classes", hint, columns, rows, left_out, counts, (wide, narrow))


TABLES: dict[str, Callable[[Store], AnswerTable]] = {
    "verify": _verdicts,
    "reach": _ranges,
    "risk": _risks,
    "saliency": _maps,
    "smoothing": _tabulate_smoothing,
    "testgen": _tests,
}
