"""The answer of a command in its own words, as the table that an auditor reads first: verdicts, ranges, risks, tests."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from markupsafe import Markup

from holdfast.api.risk import estimate_text, risks_of
from holdfast.formatting import about, between, short
from holdfast.formatting import ends as rounded_ends
from holdfast.report.class_probabilities import map_image, map_of
from holdfast.report.picture import show
from holdfast.report.plots import intervals
from holdfast.report.summary import bracket_text, class_name
from holdfast.result import DONE, Bracket, Record
from holdfast.store import Store, StoredInput
from holdfast.verification import verdict

MOST_ROWS = 1000
MOST_NUMBERS = 12  # of a counterexample; more are in the export
DIGITS = 6
PICTURE_BYTES = 300_000  # for all rows together; those that come too late go without
MEANS = {
    "unsat": "proved never to happen",
    "sat": "can happen: the counterexample was replayed",
    "timeout": "not known: the time ran out",
    "unknown": "not known: the methods ended",
    "failed": "not known: the model could not be asked",
    "": "nothing stored: not asked yet, not readable, or no input is as the property asks",
}


@dataclass(frozen=True)
class Answered:
    """heading and hint: what it is. columns: their names, and whether they hold numbers. left_out: rows that are not shown."""

    heading: str
    hint: str
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]
    left_out: int = 0
    counts: Sequence[tuple[int, str]] = ()
    plot: str = ""  # inline SVG, as Markup


def answer_of(store: Store) -> Answered | None:
    """None where brackets say it all."""
    made = TABLES.get(store.question.command)
    return None if made is None else made(store)


def _by_input(store: Store, *, aside: bool = False) -> Iterator[tuple[int, list[Record]]]:
    records = store.stream_with_aside() if aside else store.stream()
    for index, group in groupby(records, key=lambda record: record.key.index):
        yield index, list(group)


def _inputs_by_number(store: Store) -> dict[int, StoredInput]:
    return {stored.index: stored for stored in islice(store.stream_inputs(), MOST_ROWS)}


def _verdicts(store: Store) -> Answered:
    """A safety case: property, answer, counterexample, time, hashes."""
    files = store.question.asked.specification or [
        stored.name.rpartition(" ")[::2] for stored in _inputs_by_number(store).values()
    ]
    found = dict(islice(_by_input(store), MOST_ROWS))
    rows, said = [], list[str]()
    for place, (network, specification, *digests) in enumerate(files[:MOST_ROWS]):
        records = found.get(place, [])
        failed = any(record.status in ("failed", "refuted") for record in records)
        judged = verdict(records) if records and not failed else None
        answer = "failed" if failed else judged.answer if judged else ""
        said.append(answer)
        witness = judged.witness if judged else None
        note = "; ".join(dict.fromkeys(record.bracket.note for record in records if record.bracket.note))
        rows.append([
            str(place), short(specification), short(network), _answer(answer), MEANS[answer] + (f" ({short(note)})" if note else ""),
            "" if witness is None else _numbers(witness.flatten().tolist()), _score(records),
            about(sum(record.seconds for record in records)), Markup().join(Markup("<code>{}</code>").format(d) for d in digests),
        ])  # fmt: skip
    names = [("#", True), ("property", False), ("network", False), ("answer", False), ("that is", False), ("counterexample", False),
             ("smallest score", True), ("seconds", True), ("hashes of network and property", False)]  # fmt: skip
    hint = (
        "unsat: proved in float64 with every rounding charged, for all inputs that the property names. sat: the counterexample was "
        "replayed through the network. The smallest score is positive where what the property describes cannot happen. Hashes are "
        "SHA-256 of the files as they were read."
    )
    counts = [
        (said.count(answer), f"{answer or 'without an answer'}: {MEANS[answer]}")
        for answer in MEANS
        if answer in said
    ]
    return Answered("Verdicts", hint, names, rows, max(0, len(files) - MOST_ROWS), counts)


def _answer(answer: str) -> Markup:
    colour = {"unsat": "proved", "sat": "witnessed"}.get(answer, "bad")
    return Markup('<b class="{}">{}</b>').format(colour, answer or "–")


def _score(records: Sequence[Record]) -> str:
    ends = [(record.bracket.lower.value, record.bracket.upper.value) for record in records]
    return between(min(low for low, _ in ends), min(high for _, high in ends)) if ends else "–"


def _numbers(values: Sequence[float], name: str = "X") -> Markup:
    """Every number by its name, in full."""
    lines = [
        Markup("{}_{} = {!r}<br>").format(name, k, value) for k, value in enumerate(values[:MOST_NUMBERS])
    ]
    more = f"… {len(values)} numbers: holdfast export RUN witnesses.npz" if len(values) > MOST_NUMBERS else ""
    return Markup('<span class="exact">{}</span>').format(Markup().join(lines) + Markup("{}").format(more))


def _ranges(store: Store) -> Answered:
    """Box by box and output by output: between which values."""
    rows, drawn = [], list[tuple[str, tuple[Bracket, Bracket]]]()
    named, tolerance = _inputs_by_number(store), store.question.asked.tolerance or 0.0
    closed = 0
    for box, records in islice(_by_input(store), MOST_ROWS):
        ends: dict[int, dict[str, Bracket]] = {}
        for record in records:
            ends.setdefault(record.key.frame or 0, {})[record.key.part] = record.bracket
        for output, parts in sorted(ends.items()):
            low, high = parts.get("smallest"), parts.get("largest")
            if low is None or high is None:
                continue
            gap = max(low.gap, high.gap)
            closed += gap <= tolerance
            stored = named.get(box)
            drawn.append((f"box {box}, output {output}", (low, high)))
            rows.append([
                str(box), short(stored.name) if stored and stored.name != str(box) else "", str(output), *_outer_and_met(low, high),
                about(gap), "yes" if gap <= tolerance else "no",
            ])  # fmt: skip
    hint = (
        "The output never leaves the proved range while the input moves in the box; every value of the met range's ends was reached by an "
        "input, replayed through the network. The truth of each end lies between the two."
    )
    columns = [("box", True), ("name", False), ("output", True), ("never below", True), ("met: smallest", True), ("met: largest", True),
               ("never above", True), ("gap", True), (f"known to {tolerance:g}", False)]  # fmt: skip
    counts = [(closed, f"of {len(rows)} ranges known to {tolerance:g}")]
    if not any(row[1] for row in rows):
        columns, rows = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]
    plot = Markup(intervals.draw([name for name, _ in drawn], [ends for _, ends in drawn]))
    if len(drawn) > intervals.MOST_LINES:
        hint += f" The chart shows the first {intervals.MOST_LINES} of them."
    return Answered("Ranges", hint, columns, rows[:MOST_ROWS], max(0, len(rows) - MOST_ROWS), counts, plot)


def _outer_and_met(low: Bracket, high: Bracket) -> list[Markup]:
    """Proved, met, met, proved."""
    below, above = _ends(low), _ends(high)
    kinds = ("proved", "witnessed", "witnessed", "proved")
    return [
        Markup('<span class="{}">{}</span>').format(kind, text)
        for kind, text in zip(kinds, (*below, *above), strict=True)
    ]


def _ends(bracket: Bracket) -> tuple[str, str]:
    return rounded_ends(bracket.lower.value, bracket.upper.value, DIGITS)


def _risks(store: Store) -> Answered:
    """Input by input: how badly, how far away, how fast."""
    question, named = store.question, _inputs_by_number(store)
    rows, broken, room = [], 0, PICTURE_BYTES
    for index, records in islice(_by_input(store, aside=True), MOST_ROWS):
        found = risks_of(records)
        if not found:
            continue
        [r], stored = found, named.get(index)
        fails = r.worst.upper.value <= 0
        broken += fails
        example = None if r.example is None else r.example.numpy()
        pictures = (
            None if stored is None or stored.tokens is not None or room < 0 else show(stored.x, example)
        )
        room -= len(pictures.input) + len(pictures.witness) if pictures else 0
        rows.append([
            str(index), pictures.input if pictures else "", class_name(question, stored.label) if stored else "", about(r.score),
            _bracket(r.worst), "it fails in the region" if fails else "holds" if r.worst.lower.value > 0 else "not known",
            _bracket(r.radius), pictures.witness if pictures else "", _bracket(r.metric),
            estimate_text(r) or "–",
        ])  # fmt: skip
    radius = (
        ""
        if question.asked.radius is None
        else f" The region is the one asked for, of radius {short(question.asked.radius, 30)}."
    )
    hint = (
        f"The score is positive where all is well.{radius} Worst score: the smallest one in the region, from what is proved to what was "
        "found. Radius: how far the region may grow before the score can fail, from what is proved to the nearest failure that was found, "
        "which may lie outside the region. Q: the largest change of the score over distance, from what was found to what is proved. "
        "s/Q, at most the radius of the region (DeepQuant, Theorem 1), is an estimate without a guarantee; where the score fails nearer it "
        "is refuted."
    )
    columns = [("#", True), ("input", False), ("label", False), ("score", True), ("worst score", True), ("in the region", False),
               ("radius", True), ("nearest failure", False), ("Q", True), ("s/Q", True)]  # fmt: skip
    return Answered(
        "Risks",
        hint,
        columns,
        rows,
        len(store.answered_inputs()) - len(rows),
        [(broken, f"of {len(rows)} fail in the region")],
    )


def _bracket(bracket: Bracket | None) -> str:
    return "–" if bracket is None else bracket_text(bracket)


def _tests(store: Store) -> Answered:
    """Layer by layer: what the given inputs left open, and how much of it tests reach."""
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
            )  # the end is the last count that may still hold
            tests.add(hash(end.evidence.witness.numpy().tobytes()))
        elif records[0].status not in DONE:
            count[2] += 1
    rows = [
        [short(layer), str(wanted), str(reached), str(wanted - reached - open_), str(open_)]
        for layer, (wanted, reached, open_) in layers.items()
    ]
    changes = f"; they change {about(fewest)} to {about(many)} units" if tests else ""
    hint = (
        f"An item is something that no given input made a neuron do, as the question says. {len(tests)} inputs reach what is counted "
        f"as reached{changes}. Each was replayed through the network. That what was not reached cannot be reached is not proved. tests.npz "
        "beside this run holds as many of them as are needed, as holdfast reads data."
    )
    columns = [("layer", False), ("items open before", True), ("reached by a new input", True), ("not reached", True),
               ("search not finished", True)]  # fmt: skip
    wanted, reached, unfinished = (sum(count[k] for count in layers.values()) for k in (0, 1, 2))
    some = f" ({unfinished} not looked for to the end)" if unfinished else ""
    counts = [
        (len(tests), "new inputs that reach something"),
        (reached, f"of {wanted} open items reached{some}"),
    ]
    return Answered("Coverage", hint, columns, rows, 0, counts)


def _maps(store: Store) -> Answered:
    """saliency: one row for each input, with its map, where it is largest and how far one change lowers the margin."""
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
        rows.append([
            str(index), picture, map_image(drawn), class_name(question, stored.label) if stored else "",
            drawn.words or "–", about(lowest.value) if lowest.known else "–", "yes" if changes else "not found",
        ])  # fmt: skip
    hint = (
        "The map is darkest where changing one place lowers the margin most, among the changes that were tried. The margin is the score of "
        "the class minus that of its closest rival: at 0 or below the class changes, and the input that shows it was replayed through "
        "the network. A place without a colour is not proved to be harmless."
    )
    columns = [("#", True), ("input", False), ("saliency", False), ("label", False), ("strongest place", False),
               ("smallest margin found", True), ("class changes by one place", False)]  # fmt: skip
    return Answered(
        "Saliency maps", hint, columns, rows, len(store.answered_inputs()) - len(rows),
        [(changed, f"of {len(rows)} change their class when one place changes")] if changed else (),
    )  # fmt: skip


TABLES: dict[str, Callable[[Store], Answered]] = {
    "verify": _verdicts,
    "reach": _ranges,
    "risk": _risks,
    "saliency": _maps,
    "testgen": _tests,
}
