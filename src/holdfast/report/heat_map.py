"""Heat maps of radii: one shade for each frame or word."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from holdfast.report.summary import bracket_text, is_unbreakable, ranks_by_lower_bound
from holdfast.result import Bound, Bracket, Record

HEAT_LEVELS = 10  # Shades; neighbours still differ visibly on white (6 % to 87 % opacity in style.css.j2).
MOST_CELLS = (
    120  # Cells of a strip: at 7 px each it is 840 px wide. Longer sequences show the weakest of each group.
)


@dataclass(frozen=True)
class Heat:
    """A scale from radii to shades: h9 is the smallest radius, h0 the largest or an infinite one, 'open' an
    unknown one.

    low and high are the radii of the darkest and the lightest shade. A word has a single shade: of its
    lower bound if `by_lower`, else of its upper bound.
    """

    low: float
    high: float
    by_lower: bool
    thing: str = "frame"

    @staticmethod
    def over(records: Iterable[Record], thing: str = "frame") -> "Heat":
        """Return one scale for all inputs, up to the 95th percentile of the finite bounds."""
        known = list(records)
        values = sorted(
            v for r in known for v in (r.bracket.lower.value, r.bracket.upper.value) if math.isfinite(v)
        )
        scale = values[int(0.95 * (len(values) - 1))] if values else 1.0
        return Heat(0.0, scale, ranks_by_lower_bound(known), thing)

    @staticmethod
    def within(records: Sequence[Record]) -> "Heat":
        """Return the scale of one sentence: from its smallest to its largest radius; probabilities have the
        scale from 0 to 1.
        """
        by_lower = ranks_by_lower_bound(records)
        if records and records[0].goal == "probability":
            return Heat(0.0, 1.0, by_lower, "word")
        ends = [
            v for r in records if math.isfinite(v := (r.bracket.lower if by_lower else r.bracket.upper).value)
        ]
        return Heat(min(ends, default=0.0), max(ends, default=0.0), by_lower, "word")

    def level(self, end: Bound, bracket: Bracket) -> str:
        """Return the CSS class of a bound."""
        value = end.value
        if not (bracket.closed or end.known):  # The default bound of 0 would get the darkest shade.
            return "open"
        if math.isinf(value):
            return "h0" if is_unbreakable(bracket) else "open"
        if self.high > self.low:
            share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        else:
            share = 0.0 if value <= 0 else 1.0  # All are equal: none breaks before another, unless at once.
        return f"h{min(HEAT_LEVELS - 1, int((1 - share) * HEAT_LEVELS))}"

    def word(self, bracket: Bracket) -> Markup:
        """Return the class and title attributes of one word."""
        end = bracket.lower if self.by_lower else bracket.upper
        return Markup(' class="{}" title="{}"').format(self.level(end, bracket), bracket_text(bracket))

    def strip(self, frames: Sequence[Record]) -> Markup:
        """Render two rows of cells, one column for each frame: lower bounds above, upper bounds below."""
        cells = []
        for record in thin_frames(frames):
            lower, upper = (
                self.level(end, record.bracket) for end in (record.bracket.lower, record.bracket.upper)
            )
            title = f"{self.thing} {record.key.frame}: {bracket_text(record.bracket)}"
            cells.append(
                Markup('<u title="{}"><i class="{}"></i><i class="{}"></i></u>').format(title, lower, upper)
            )
        return Markup('<div class="strip">{}</div>').format(Markup().join(cells))


def thin_frames(frames: Sequence[Record]) -> list[Record]:
    """Return at most MOST_CELLS frames: of neighbours that share a cell, the one with the smallest lower
    bound.
    """
    each = math.ceil(len(frames) / MOST_CELLS) or 1
    groups = (frames[k : k + each] for k in range(0, len(frames), each))
    return [
        min(group, key=lambda record: (record.bracket.lower.value, record.bracket.upper.value))
        for group in groups
    ]
