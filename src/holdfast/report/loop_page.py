"""The answer to a question about a loop as one self-contained HTML file."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from holdfast.report.plots import tube
from holdfast.report.template import template
from holdfast.report.writing import write_document

if TYPE_CHECKING:
    from holdfast.api.loop import LoopAnswer

MOST_STEPS = 400  # Rows of the table of bounds: of more periods every second, third, ... is listed.


def write_loop_page(answer: "LoopAnswer", path: Path) -> Path:
    """Write the page; returns its path."""
    return write_document(loop_page(answer), path)


def loop_page(answer: "LoopAnswer") -> str:
    """The HTML document."""
    plots = [tube.draw(answer, i, _limits(answer, i)) for i in range(len(answer.states))]
    every = max(1, -(-answer.steps // MOST_STEPS))
    rows = [] if answer.ends is None else _rows(answer, answer.ends, every)
    return template("loop.html.j2").render(
        answer=answer,
        plots=plots,
        rows=rows,
        every=every,
        labels=[f"{n} [{u}]" if u else n for n, u in zip(answer.states, answer.units, strict=True)],
        starts=[
            (f"{low:.9g}", f"{high:.9g}")
            for low, high in zip(*(end.tolist() for end in answer.start), strict=True)
        ],
        witness=None if answer.witness is None else [repr(value) for value in answer.witness.tolist()],
        ratios=None
        if answer.width_ratio is None
        else [f"{value:.3g}" for value in answer.width_ratio.tolist()],
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _rows(answer: "LoopAnswer", ends: Tensor, every: int) -> list[tuple[str, list[str]]]:
    """The bounds at the beginning of each period: the time, and an interval for each state."""
    return [
        (f"{k * answer.period:g}", [_interval(*pair) for pair in ends[k].tolist()])
        for k in range(0, answer.steps + 1, every)
    ]


def _interval(low: float, high: float) -> str:
    return "not computed" if low != low or high != high else f"{low:.6g} to {high:.6g}"


def _limits(answer: "LoopAnswer", state: int) -> tuple[float | None, float | None]:
    """The bounds that the condition gives for this state alone."""
    low = high = None
    for row, bound in zip(answer.condition.rows, answer.condition.bound.tolist(), strict=True):
        if int((row != 0).sum()) == 1 and float(row[state]) != 0:
            value = bound / float(row[state])
            if float(row[state]) > 0:
                high = value if high is None else min(high, value)
            else:
                low = value if low is None else max(low, value)
    return low, high
