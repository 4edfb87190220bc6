"""The answer of a run in one sentence with units.

    16 of 20 images keep their class under any change of at most 0.05 per pixel; 3 are shown to change; 1 is
    unknown.

`answer_sentence` is the one place that builds it: for the first line of the page and of the model card, the
title of the slide, the last line of the terminal, and `result.summary()` in Python. There is one function for
each command with an answer of its own kind (SENTENCES); `radius`, `worst` and programs share `_robustness`.
Every sentence counts the same rows as the tables and as `holdfast gate --at`, and names the perturbation set.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np

from holdfast.formatting import (
    capitalise,
    exact_text,
    format_lower,
    format_nearest,
    format_upper,
    norm_name,
    shorten,
)
from holdfast.question import Question, Request
from holdfast.region.columns import Columns
from holdfast.report.columns import channels_of, columns_of
from holdfast.report.pairing import quartile_radii
from holdfast.report.streaming import summary_parts
from holdfast.report.summary import InputRow, QuestionPart
from holdfast.report.verdict import VerdictCounts, is_correct, is_labelled, tally
from holdfast.request import are_levels, edit_budgets
from holdfast.result import DONE
from holdfast.store import Store

NAMED = "the radius of the question"  # Where a radius comes from that the question gives.
UNBOUNDED = "every certified radius is infinite"
COUNTED_NORMS = ("0", "words", "edits")  # Norms whose radius is a whole number of changes.
RADIUS_DIGITS = (
    2  # Significant digits of a radius that the question does not name: short enough to read aloud.
)
# The answer about a single VNN-LIB instance, by its verdict; also what `hf.verify` says.
INSTANCE_ANSWERS = {
    "unsat": "The property holds (unsat): what the instance describes is proved never to happen.",
    "sat": "The property is violated (sat): a counterexample was found and replayed through the network.",
    "unknown": "The property is not decided: neither a proof nor a counterexample was found.",
}
MOST_CHANNELS_NAMED = (
    4  # Channels whose sizes the sentence lists; more would not fit on two lines of the page.
)
MOST_RANGES = 3  # Ranges of outputs in the sentence of `reach`; more would not fit on two lines of the page.


def answer_sentence(
    question: Question, parts: Sequence[QuestionPart], silent: int = 0, at: float | None = None
) -> str:
    """Answer the question of a run in one sentence with units and restrictions.

    Args:
        question: the question of the run.
        parts: all rows of the run, as `streaming.summary_parts(store, 1)` or `summary.parts_of` return
            them. The first input comes
            with its numbers, because their shape says whether inputs are images.
        silent: inputs of the run without any record; they count as unknown.
        at: the radius at which inputs are counted; default: `decisive_radius`. Used where the answer is a
            radius.
    """
    if not any(len(part.rows) for part in parts):
        return "There is no answer yet."
    kind = question.command.split(" ")[0]
    if kind in SENTENCES:
        return SENTENCES[kind](question, parts, silent)
    return _robustness(question, parts, silent, at)


def answer_of(store: Store, at: float | None = None, *, explain: bool = False) -> str:
    """The sentence for a stored run: the same words as the first line of its page.

    explain: say where the radius comes from if the question names none.
    """
    parts, inputs = summary_parts(
        store, 1
    )  # The first input with its numbers: their shape says whether it is an image.
    sentence = answer_sentence(store.question, parts, len(inputs - parts[0].answered), at)
    origin = radius_origin(store.question, parts) if explain and at is None else ""
    return f"{sentence} ({origin}; --at names another radius.)" if origin else sentence


def radius_origin(question: Question, parts: Sequence[QuestionPart]) -> str:
    """The radius of the sentence and where it comes from; empty if the question names it, or if the answer
    is about no radius.
    """
    rows = parts[0].rows
    if not rows or not rows[0].objective.bounds_radius or question.command.split(" ")[0] in SENTENCES:
        return ""
    chosen = decisive_radius(question, rows)
    return (
        "" if chosen is None or chosen[1] in (NAMED, UNBOUNDED) else f"{exact_text(chosen[0])}: {chosen[1]}"
    )


def decisive_radius(question: Question, rows: Sequence[InputRow]) -> tuple[float, str] | None:
    """The radius (score, probability) at which inputs are counted as certified, and where it comes from;
    None without any bound.

    A radius in the question is used as it is. Otherwise it is the median of the certified radii above 0,
    rounded down to RADIUS_DIGITS digits; where nothing is certified, the median distance of the
    counterexamples, rounded up. So at least half of the inputs with such a bound are decided there. It is
    infinite where that is all that is proved.
    """
    if rows and rows[0].objective.scored:
        return 0.0, "the property holds where its score is positive"
    given = question.asked.radius
    about_radius = bool(rows) and rows[0].objective.bounds_radius
    if given is not None and about_radius:
        try:
            return float(given), NAMED
        except ValueError:  # one radius for each feature, which is no single number
            pass
    if about_radius and rows[0].sense.rises:
        found = _median_radius(question, rows)
        if found is not None:
            return found
    radii = quartile_radii(question, rows) if rows and not _is_counted(question, rows) else ()
    if not radii:
        return None
    return radii[len(radii) // 2], "the median of this run in two digits, because the question names none"


def _is_counted(question: Question, rows: Sequence[InputRow]) -> bool:
    """Whether the radius is a whole number of changes."""
    return question.asked.norm in COUNTED_NORMS and rows[0].objective.bounds_radius


def _median_radius(question: Question, rows: Sequence[InputRow]) -> tuple[float, str] | None:
    """The median certified radius rounded down, else the median distance of the counterexamples rounded up,
    each with where it comes from.
    """
    counted = _is_counted(question, rows)
    lower = [bound for row in rows if 0 < (bound := row.bracket.lower.value) < math.inf]
    if lower:
        median = float(np.median(lower))
        radius = math.floor(median) if counted else float(format_lower(median, RADIUS_DIGITS))
        return float(radius), "the median certified radius, rounded down"
    upper = [bound for row in rows if 0 < (bound := row.bracket.upper.value) < math.inf]
    if (
        counted
    ):  # The upper bound of a count is the last count that may hold; its counterexample has one more.
        upper = [
            row.bracket.upper.value + 1
            for row in rows
            if row.bracket.upper.known and row.bracket.upper.value < math.inf and not row.fails_at_once
        ]
    if not upper:
        proved = any(row.bracket.lower.value == math.inf for row in rows)
        return (math.inf, UNBOUNDED) if proved else None
    median = float(np.median(upper))
    radius = math.ceil(median) if counted else float(format_upper(median, RADIUS_DIGITS))
    return float(radius), "the median distance of the counterexamples, rounded up"


def output_name(question: Question, output: int | None) -> str:
    """The name of an output, or its number."""
    names = question.data.classes or ()
    named = output is not None and output < len(names) and names[output] != str(output)
    return shorten(names[output], 30) if named and output is not None else str(output)


def input_noun(question: Question, rows: Sequence[InputRow], count: int) -> str:
    """What one input is: image, text, table row, or input."""
    source = next((row.source for row in rows if row.source is not None), None)
    if question.frames_are_words:
        noun = "text"
    elif columns_of(question) is not None or (
        question.data.columns is not None and (source is None or source.x.ndim == 1)
    ):
        noun = "table row"
    elif source is not None and source.x.ndim == 3 and source.x.shape[0] in (1, 3):
        noun = "image"
    elif source is not None and source.x.ndim == 2 and (question.asked.drift or question.asked.channels):
        noun = "window"
    else:
        noun = "input"
    return noun if count == 1 else f"{noun}s"


def perturbation(question: Question, radius: float | str | None, *, image: bool = False) -> str:
    """The perturbation set as a phrase: 'under any change of at most 0.05 per pixel', with every
    restriction of the question.
    """
    asked = question.asked
    size = exact_text(radius) if isinstance(radius, float | int) else shorten(radius, 30)
    phrase = _change_phrase(question, asked, size, image=image)
    return ", ".join([phrase, *_restrictions(question)])


def _change_phrase(question: Question, asked: Request, size: str, *, image: bool) -> str:
    frame = "word" if question.frames_are_words else "frame"
    any_size = size == "inf"
    if asked.norm == "words" and any_size:
        return "when any number of words are replaced"
    if asked.norm == "words":
        return (
            "when any 1 word is replaced" if size == "1" else f"when any {size} words or fewer are replaced"
        )
    if asked.norm == "edits":
        if any_size:
            return "under all edits that are allowed"
        return "under any 1 edit" if size == "1" else f"under any {size} edits or fewer"
    if asked.norm == "0":
        unit = asked.unit or ("pixel" if image else "number")
        if any_size:
            return f"when any number of {unit}s change"
        return f"when any 1 {unit} changes" if size == "1" else f"when any {size} {unit}s or fewer change"
    if size == "None":
        return "anywhere in the given box" if asked.box is not None else "anywhere in the region"
    per = "per pixel" if image else "per value"
    channels = channels_of(question)
    amount = f"at most {size} {per}"
    if channels is not None and not any_size:
        amount = _amounts(channels, size)
    columns = columns_of(question)
    scaled = columns is not None and any(column.scale != 1 for column in columns.each)
    if asked.drift:
        if channels is not None and not any_size and asked.norm in (None, "inf"):
            return f"under any constant offset of {amount}"
        return f"under any constant offset{'' if any_size else f' of at most {size}'} per feature"
    if any_size:
        change = "any change of any size"
    elif asked.norm in (None, "inf"):
        change = f"any change of {f'at most {size} times its scale in each column' if scaled else amount}"
    else:
        change = f"any change of {norm_name(asked.norm)} size at most {size}"
    frame = "word vector" if frame == "word" else frame
    if scaled and asked.norm not in (None, "inf") and not any_size:
        change += " of changes divided by the scale of their column"
    if asked.frames == "each":
        return f"under {change} in any single {frame}"
    if asked.frames == "all":
        return f"under {change} in every {frame} at once"
    return f"under {change}" + (f" in the {frame}s {shorten(asked.frames, 60)}" if asked.frames else "")


def _amounts(channels: Columns, size: str) -> str:
    """'at most 0.5 °C in temperature and 0.1 m/s in wind', of many channels 'at most 0.5 times its scale in each
    channel'."""
    moving = [channel for channel in channels.each if channel.movable]
    try:
        radius = Decimal(size)
    except InvalidOperation:  # several radii
        radius = Decimal("NaN")
    if len(moving) > MOST_CHANNELS_NAMED or not radius.is_finite():
        return f"at most {size} times its scale in each channel"
    sizes = [radius * Decimal(repr(c.scale)) for c in moving]  # as exact as what is shown
    each = [
        f"{_plain_decimal(size)}{f' {shorten(c.unit, 12)}' if c.unit else ''} in {shorten(c.name, 24)}"
        for c, size in zip(moving, sizes, strict=True)
    ]
    return f"at most {', '.join(each[:-1])}{' and ' if len(each) > 1 else ''}{each[-1]}"


def _plain_decimal(value: Decimal) -> str:
    """'0.46', without zeros at the end; very small and very large numbers with an exponent."""
    value = value.normalize()
    return f"{value:f}" if -6 <= value.adjusted() <= 9 else str(value)


def _restrictions(question: Question) -> list[str]:
    """What else limits the perturbations, each as a short phrase."""
    asked, found = question.asked, list[str]()
    if asked.shares is not None:
        each = "frame" if asked.frames is not None else "feature"
        found.append(f"{each} k by its share in {shorten(asked.shares, 60)}")
    if asked.substitutes is not None:
        found.append("each word only by its listed substitutes")
    if isinstance(asked.edits, Mapping):
        found.append(f"by at most {edit_budgets(asked.edits)}")
    if asked.free is not None:
        found.append("only where the mask allows a change")
    if asked.values is not None:
        found.append(f"changed numbers only to {shorten(asked.values, 30)}")
    if asked.patch is not None:
        found.append(f"only inside the square {shorten(asked.patch, 30)} (top, left, size)")
    columns, channels = columns_of(question), channels_of(question)
    for kind, described in (("columns", columns), ("channels", channels)):
        frozen = [] if described is None else [column.name for column in described.each if column.frozen]
        if frozen:
            found.append(f"with the {kind} {shorten(', '.join(frozen), 60)} fixed")
    if question.means.arithmetic == "executed":
        found.append("outputs as computed in the arithmetic of the network")
    if question.model.domain not in (None, "", "unbounded") and asked.norm not in ("words", "edits", None):
        found.append(f"values staying in {shorten(question.model.domain or '', 40)}")
    return found


def _property_phrase(asked: Request, many: bool) -> str:
    """What an input does that is certified."""
    s, their = ("", "their") if many else ("s", "its")
    if asked.within is not None:
        which = "" if asked.outputs is None else f" (outputs {shorten(asked.outputs, 30)})"
        if asked.quantiles is not None and asked.outputs is not None and are_levels(asked.outputs):
            level = "median" if asked.outputs == "median" else f"level {shorten(asked.outputs, 30)}"
            which = f" (the {level} of the quantiles {shorten(asked.quantiles, 30)})"
        return f"keep{s} {their} forecast within {shorten(asked.within, 30)}{which}"
    if asked.threshold is not None:
        return f"keep{s} every output on its side of {shorten(asked.threshold, 30)}"
    if asked.targets is not None:
        return f"{'are' if many else 'is'} not classified as target {shorten(asked.targets, 30)}"
    if not _is_robustness(asked):
        margin = f" by more than {format_nearest(asked.epsilon)}" if asked.epsilon else ""
        return f"keep{s} the property {shorten(asked.property, 40)}{margin}"
    return f"keep{s} {their} class"


def _counts(question: Question, rows: Sequence[InputRow], found: VerdictCounts, change: str) -> str:
    """'16 of 20 images keep their class under ...; 3 are shown to change; 1 is unknown.'"""
    noun = input_noun(question, rows, found.count)
    text = f"{found.certified} of {found.count} {noun} {_property_phrase(question.asked, found.certified != 1)} {change}"
    wrong = [row for row in rows if row.fails_at_once]
    broken = found.broken - len(wrong)
    clauses = [text]
    if broken:
        clauses.append(f"{broken} {'is' if broken == 1 else 'are'} shown {_failure(question.asked)}")
    if wrong:
        clauses.append(_failing_clause(question.asked, wrong))
    if found.unknown:
        missing = f" ({found.not_measured} of these unfinished)" if found.not_measured else ""
        clauses.append(f"{found.unknown} {'is' if found.unknown == 1 else 'are'} unknown{missing}")
    return "; ".join(clauses) + "."


def _failing_clause(asked: Request, rows: Sequence[InputRow]) -> str:
    """'2 are misclassified without any change', of inputs that fail the property themselves."""
    verb = "is" if len(rows) == 1 else "are"
    plain = asked.within is None and asked.threshold is None and asked.targets is None
    if not plain or not _is_robustness(asked):
        return f"{len(rows)} {verb} failing without any change"
    if all(is_labelled(row) and is_correct(row) for row in rows):
        return f"{len(rows)} {'ties' if len(rows) == 1 else 'tie'} with another class without any change"
    return f"{len(rows)} {verb} misclassified without any change"


def _failure(asked: Request) -> str:
    if asked.within is None and asked.threshold is None and asked.targets is None:
        return "to change" if _is_robustness(asked) else "to lose it"
    return "to fail this"


def _is_robustness(asked: Request) -> bool:
    """Whether the property is that the class stays: by default, by name, or as `hf.Robustness(labels)`."""
    return asked.property is None or asked.property.split(" ")[0] in ("robustness", "Robustness")


def _is_image(rows: Sequence[InputRow]) -> bool:
    source = next((row.source for row in rows if row.source is not None), None)
    return source is not None and source.x.ndim == 3 and source.x.shape[0] in (1, 3)


def _robustness(
    question: Question, parts: Sequence[QuestionPart], silent: int, at: float | None = None
) -> str:
    """radius, worst, and what a program asks: how many inputs are certified, shown to change and unknown."""
    rows = parts[0].rows
    chosen = decisive_radius(question, rows)
    if at is not None and rows[0].objective.bounds_radius:
        # Between two counts of changes the smaller one is meant.
        chosen = (float(math.floor(at)) if _is_counted(question, rows) else at), NAMED
    if chosen is None:
        wrong = [row for row in rows if row.fails_at_once]
        count = len(rows) + silent
        noun = input_noun(question, rows, count)
        if wrong:
            clause = _failing_clause(question.asked, wrong)
            rest = count - len(wrong)
            others = (
                f"; of the other {rest} nothing is certified, and no counterexample was found" if rest else ""
            )
            return f"Of {count} {noun}, {clause}{others}."
        which = f"any of the {count} {noun}" if count > 1 else f"the {noun}"
        return f"No {parts[0].sense.quantity} is certified for {which}, and no counterexample was found."
    radius = question.asked.radius if rows[0].objective.scored else chosen[0]
    found = tally(rows, chosen[0], silent=silent)
    if rows[0].objective.decides_property:
        return _counts(question, rows, found, perturbation(question, radius, image=_is_image(rows)))
    sense = parts[0].sense
    kept = f"{sense.quantity} {sense.claim} {format_nearest(chosen[0])}"
    unknown = f"; {found.unknown} unknown" if found.unknown else ""
    noun = input_noun(question, rows, found.count)
    broken = f"; {found.broken} shown to miss it" if found.broken else ""
    return f"{found.certified} of {found.count} {noun} are proved to have a {kept}{broken}{unknown}."


def _properties(question: Question, parts: Sequence[QuestionPart], silent: int) -> str:
    """verify: how many instances are unsat, sat and undecided."""
    found = tally(parts[0].rows, 0.0, silent=silent)
    if found.count == 1:
        return INSTANCE_ANSWERS["unsat" if found.certified else "sat" if found.broken else "unknown"]
    verb = "holds" if found.certified == 1 else "hold"
    clauses = [f"{found.certified} of {found.count} properties {verb} (unsat, proved)"]
    clauses += [f"{found.broken} violated (sat, with a replayed counterexample)"] if found.broken else []
    clauses += [f"{found.unknown} not decided"] if found.unknown else []
    return "; ".join(clauses) + "."


def _ranges(question: Question, parts: Sequence[QuestionPart], silent: int) -> str:
    """reach: the proved range of every output, or of many outputs how tightly they are known."""
    low = {(row.index, row.output): row for part in parts if part.name == "smallest" for row in part.rows}
    high = {(row.index, row.output): row for part in parts if part.name == "largest" for row in part.rows}
    both = [key for key in low if key in high]
    if not both:
        return "No output has a lower and an upper bound yet."
    boxes = len({index for index, _ in both})
    radius = question.asked.radius
    region = (
        "in the box" if radius is None else perturbation(question, radius, image=_is_image(parts[0].rows))
    )
    if boxes == 1 and len(both) <= MOST_RANGES:
        ranges = [
            f"output {output_name(question, output)} stays between "
            f"{format_lower(low[index, output].bracket.lower.value)} and "
            f"{format_upper(high[index, output].bracket.upper.value)}"
            for index, output in sorted(both, key=str)
        ]
        return f"{capitalise('; '.join(ranges))} {region} (proved)."
    tolerance = question.asked.tolerance or 0.0
    gaps = [max(low[key].bracket.gap, high[key].bracket.gap) for key in both]
    close = sum(gap <= tolerance for gap in gaps)
    proved = sum(
        math.isfinite(low[key].bracket.lower.value) and math.isfinite(high[key].bracket.upper.value)
        for key in both
    )
    boxed = "one box" if boxes == 1 else f"{boxes} boxes"
    return (
        f"{proved} of {len(both)} outputs of {boxed} have a proved range {region}; {close} of the "
        "ranges are known to "
        f"within {format_nearest(tolerance)}, and the largest gap is {format_upper(max(gaps))}."
    )


def _risks(question: Question, parts: Sequence[QuestionPart], silent: int) -> str:
    """risk: how many inputs fail in the region, and how near the nearest failure is."""
    by_name = {part.name: part for part in parts}
    part = by_name.get("worst", parts[0])
    radius = question.asked.radius
    image = _is_image(part.rows)
    region = "in the region" if radius is None else perturbation(question, radius, image=image)
    sentence = _counts(question, part.rows, tally(part.rows, 0.0, silent=silent), region)
    if "radius" in by_name:
        shown = [row.bracket.upper.value for row in by_name["radius"].rows if row.bracket.upper.known]
        if shown:
            sentence = (
                f"{sentence[:-1]}; the nearest failure found lies at distance {format_upper(min(shown))}."
            )
    return sentence


def _saliency(question: Question, parts: Sequence[QuestionPart], silent: int) -> str:
    """saliency: for how many inputs a single change is enough."""
    rows = parts[0].rows
    found, count = tally(rows, 0.0), len(rows) + silent
    unit = question.asked.unit or ("pixel" if _is_image(rows) else "value")
    noun = input_noun(question, rows, count)
    rest = found.certified + found.unknown + silent
    lowest = min((row.bracket.upper.value for row in rows), default=math.inf)
    smallest = f"; the smallest margin found is {format_nearest(lowest)}" if math.isfinite(lowest) else ""
    if not found.broken:
        one = (
            f"No change of one {unit} that was tried changes the class of any of the {count} "
            f"{noun} (not a proof)"
        )
        return f"{one}{smallest}."
    others = f"; for the other {rest} no change that was tried does (not a proof)" if rest else ""
    return (
        f"Changing one {unit} is shown to change the class of {found.broken} of {count} "
        f"{noun}{others}{smallest}."
    )


def _tests(question: Question, parts: Sequence[QuestionPart], silent: int) -> str:
    """testgen: how many open coverage items the new inputs reach."""
    rows = parts[0].rows
    reached = [row for row in rows if row.bracket.upper.known and math.isfinite(row.bracket.upper.value)]
    count = len(rows) + silent
    found = {(row.index, row.output) for row in reached}
    unfinished = silent + sum(row.status not in DONE for row in rows if (row.index, row.output) not in found)
    sizes = [
        row.bracket.upper.value + 1 for row in reached
    ]  # the bound is the last count that may still hold
    changes = ""
    if sizes:
        few, many = format_nearest(min(sizes)), format_nearest(max(sizes))
        span = few if few == many else f"{few} to {many}"
        changes = f" by inputs that change {span} {_units(question, rows, only=span)}"
    missing = count - len(reached)
    rest = f"; {missing} not reached, which does not prove that they cannot be" if missing else ""
    cut = f" ({unfinished} of these not searched to the end)" if unfinished else ""
    return (
        f"{len(reached)} of {count} coverage items that the given inputs leave open are "
        f"reached{changes}{rest}{cut}."
    )


def _units(question: Question, rows: Sequence[InputRow], only: str = "") -> str:
    """What changes, in the plural unless there is only '1'."""
    unit = question.asked.unit or ("pixel" if _is_image(rows) else "unit")
    return unit if only == "1" else f"{unit}s"


def _smoothing(question: Question, parts: Sequence[QuestionPart], silent: int) -> str:
    """smoothing: for how many inputs the smoothed network has a sampled radius above zero, and their
    median.
    """
    rows = parts[0].rows
    values = [max((e.value for e in row.bracket.estimates), default=0.0) for row in rows]
    held = [value for value in values if value > 0]
    count = len(rows) + silent
    noun = input_noun(question, rows, count)
    sure = question.asked.confidence
    text = (
        f"The smoothed network keeps its class within a positive L2 radius for {len(held)} of {count} {noun}"
    )
    text += f" (median of these {format_lower(float(np.median(held)))})" if held else ""
    if question.asked.sigma is not None:
        text += f" under Gaussian noise of width {format_nearest(question.asked.sigma)}"
    return text + f"; sampled{'' if sure is None else f', each with confidence {sure:g}'}, not proved."


def _probability(question: Question, parts: Sequence[QuestionPart], silent: int) -> str:
    """monitor: how likely the class stays when its weakest position changes."""
    rows = [row for row in parts[0].rows if row.bracket.lower.known or row.bracket.upper.known]
    count = len(parts[0].rows) + silent
    noun = input_noun(question, parts[0].rows, count)
    if not rows:
        return (
            f"The probability that the class stays was counted for none of the {count} {noun}; "
            "there are samples only."
        )
    low, high = min(row.bracket.lower.value for row in rows), min(row.bracket.upper.value for row in rows)
    between = format_nearest(low) if low == high else f"between {format_lower(low)} and {format_upper(high)}"
    return (
        f"At its weakest position, the least stable of {len(rows)} {noun} keeps its class with "
        f"probability {between} "
        f"(all mutants counted)" + (f"; {count - len(rows)} not counted." if count > len(rows) else ".")
    )


SENTENCES: dict[str, Callable[[Question, Sequence[QuestionPart], int], str]] = {
    "verify": _properties,
    "reach": _ranges,
    "risk": _risks,
    "saliency": _saliency,
    "testgen": _tests,
    "smoothing": _smoothing,
    "monitor": _probability,
}
