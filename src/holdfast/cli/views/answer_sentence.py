"""The answer of a run as one sentence with units, below its table and on its slide.

    16 of 20 images keep their class under any change of at most 0.05 per pixel; 3 are shown to change; 1 is
    unknown.

The counts are those of `holdfast gate --at`: certified, with a counterexample, and neither.
"""

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal

from holdfast.formatting import exact_text, norm_name
from holdfast.question import Question, Request
from holdfast.question_text import frames_are_words
from holdfast.report.summary import InputRow, QuestionPart
from holdfast.report.verdict import VerdictCounts, tally
from holdfast.store import Store

DIGITS = 2  # Significant digits of the default radius: short enough to read aloud.
COUNTED = ("0", "words")  # Norms whose radius is a whole number of changes.


def answer_sentence(
    store: Store, part: QuestionPart, at: float | None = None, *, explain: bool = True
) -> str:
    """One sentence about the inputs of a run at one radius; empty if the run holds no radius or worst score.

    at: the radius; by default the median certified lower bound, rounded down.
    explain: say how the default radius was chosen.
    """
    question = store.question
    goal = part.rows[0].goal if part.rows and not part.rows[0].part else ""
    if question.command == "verify" or goal not in ("radius", "worst"):
        return ""
    radius = (usual_radius(part.rows, question.asked) if at is None else at) if goal == "radius" else 0.0
    noun = _noun(store, part.rows)
    if radius is None:
        count = _count(len(part.rows), noun)
        return f"No radius is certified for any of {count}, and no counterexample was found."
    asked = question.asked
    if goal == "radius" and asked.norm in COUNTED:
        radius = float(math.floor(radius))  # Between two counts the smaller one is meant.
    counts = tally(part.rows, radius)
    if goal == "worst":
        return _count_phrase(
            counts, part.rows, noun, f"{_property(asked)} {_region(asked, noun)}", "to violate it"
        )
    change = _change(asked, radius, noun)
    sentence = _count_phrase(counts, part.rows, noun, f"{_property_phrase(asked)} {change}", _shown(asked))
    if not explain or at is not None:
        return sentence
    return f"{sentence} ({exact_text(radius)}: {_origin(part.rows)}; --at names another radius.)"


def usual_radius(rows: Sequence[InputRow], asked: Request) -> float | None:
    """The median positive lower bound, rounded down; without one, the median counterexample, rounded up.

    Else None.
    """
    lower = sorted(b for row in rows if 0 < (b := row.bracket.lower.value) < math.inf)
    whole = asked.norm in COUNTED
    if lower:
        median = lower[len(lower) // 2]
        return float(math.floor(median)) if whole else _round_down(median)
    upper = sorted(b for row in rows if 0 < (b := row.bracket.upper.value) < math.inf)
    if upper:
        median = upper[len(upper) // 2]
        # A count's upper bound is the last count that may hold: the counterexample has one change more.
        return float(math.ceil(median)) + 1 if whole else -_round_down(-median)
    return None


def _origin(rows: Sequence[InputRow]) -> str:
    """How `usual_radius` chose the radius."""
    if any(0 < row.bracket.lower.value < math.inf for row in rows):
        return "the median certified radius, rounded down"
    return "the median distance of the counterexamples, rounded up"


def _round_down(value: float) -> float:
    """The largest number of DIGITS significant digits that is at most the value."""
    exact = Decimal(repr(value))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - DIGITS + 1), rounding=ROUND_FLOOR))


def _noun(store: Store, rows: Sequence[InputRow]) -> str:
    """What the inputs are: images, texts, windows, table rows or inputs."""
    question = store.question
    if frames_are_words(question):
        return "text"
    if question.data.columns is not None or question.asked.columns is not None:
        return "row"
    first = next(iter(store.stream_inputs(rows[0].index, rows[0].index)), None) if rows else None
    shape: tuple[int, ...] = first.x.shape if first is not None else ()
    if len(shape) == 3 and shape[0] in (1, 3):
        return "image"
    return "window" if len(shape) == 2 and question.asked.drift else "input"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _count_phrase(counts: VerdictCounts, rows: Sequence[InputRow], noun: str, holds: str, shown: str) -> str:
    """The three counts; `holds` is in the plural, `shown` an infinitive."""
    total = counts.count
    parts = [f"{counts.certified} of {total} {noun}s {holds}"]
    wrong = sum(row.fails_at_once for row in rows)
    if counts.broken:
        already = f" ({wrong} without any change)" if wrong else ""
        parts.append(f"{counts.broken} {'is' if counts.broken == 1 else 'are'} shown {shown}{already}")
    if counts.unknown:
        late = f" ({counts.not_measured} not measured)" if counts.not_measured else ""
        parts.append(f"{counts.unknown} {'is' if counts.unknown == 1 else 'are'} unknown{late}")
    return "; ".join(parts) + "."


def _property_phrase(asked: Request) -> str:
    """What must hold, as a plural verb phrase."""
    if asked.within is not None:
        return f"keep their forecast within {asked.within}"
    if asked.threshold is not None:
        return f"keep every output on its side of {_number(asked.threshold)}"
    if asked.targets is not None:
        return "do not change to the target class"
    return "keep their class"


def _number(value: object) -> str:
    return exact_text(value) if isinstance(value, float) else str(value)


def _shown(asked: Request) -> str:
    if asked.within is not None or asked.threshold is not None:
        return "to leave it"
    return "to change"


def _change(asked: Request, radius: float, noun: str) -> str:
    """The perturbations of at most this radius, with the unit."""
    size = exact_text(radius)
    if asked.norm == "words":
        return f"when any {_count(int(radius), 'word')} or fewer are replaced by substitutes"
    if asked.norm == "0":
        unit = asked.unit or ("pixel" if noun == "image" else "number")
        return f"when any {_count(int(radius), unit)} or fewer change"
    scaled = f" (times share k of {asked.shares})" if asked.shares is not None else ""
    if asked.drift:
        return f"under any drift of at most {size}{scaled} in the {norm_name(asked.norm)} norm"
    return f"under any change of at most {_size(asked, size, noun)}{scaled}{_frames(asked, noun)}"


def _size(asked: Request, size: str, noun: str) -> str:
    if asked.norm == "inf":
        return f"{size} per {'pixel' if noun == 'image' else 'value'}"
    return f"{size} in the {norm_name(asked.norm)} norm"


def _frames(asked: Request, noun: str) -> str:
    unit = "word" if noun == "text" else "frame"
    if asked.frames is None:
        return ""
    return {"all": f" of each {unit}", "each": f" of any single {unit}"}.get(
        asked.frames, f" of each of the {unit}s {asked.frames}"
    )


def _property(asked: Request) -> str:
    if asked.within is not None or asked.threshold is not None or asked.property in (None, "robustness"):
        return _property_phrase(asked)
    return f"satisfy the property {asked.property}"


def _region(asked: Request, noun: str) -> str:
    """The region of a worst score."""
    where = f" within the square {asked.patch}" if asked.patch is not None else ""
    if asked.radius is None:
        return f"under any change{where}"
    scaled = f" (times share k of {asked.shares})" if asked.shares is not None else ""
    kind = "drift" if asked.drift else "change"
    return f"under any {kind} of at most {_size(asked, _number(asked.radius), noun)}{scaled}{where}"


def sentence_of_question(question: Question) -> str:
    """A short name of the model and the data for the foot of a picture."""
    model = question.model.name or "the network"
    data = question.data.name or "the data"
    return f"model {model}, data {data}"
