"""Comparison of runs on the same inputs: wins, differences and undecided inputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from holdfast.errors import BadInput
from holdfast.report.packed_rows import SelectedRows, bounds_of
from holdfast.report.pairing import Pairs, Run, pair_rows, usual_radii
from holdfast.report.question import setting
from holdfast.report.summary import InputRow, is_unbreakable, mean_of
from holdfast.report.verdict import VerdictCounts, is_correct, tally
from holdfast.report.wording import RADIUS, Quantity
from holdfast.result import Bracket

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
Outcome = Literal["first", "second", "tie", "undecided"]


@dataclass(frozen=True)
class Interval:
    """A mean of paired differences, and a confidence interval of its expectation for randomly
    drawn inputs.
    """

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Side:
    """The numbers of one run.

    Means leave out inputs with an infinite or unmeasured bound in any run, so that all means are over the
    same inputs. Rank 1 is best; None without a mean. not_measured: inputs whose search ended before
    anything was proved.
    """

    name: str
    model: str
    accuracy: float
    tallies: tuple[VerdictCounts, ...]
    mean_lower: float
    mean_upper: float
    rank_lower: int | None
    rank_upper: int | None
    closed: int
    open_above: int
    unbreakable: int
    not_measured: int
    seconds: float
    queries: int


@dataclass(frozen=True)
class Duel:
    """Two runs on the same inputs.

    A run wins an input if its proved bound lies beyond the other's witnessed bound.

    lower, upper, accuracy: intervals of first - second. least, most: bounds of the exact mean difference.
    """

    first: str
    second: str
    outcomes: tuple[Outcome, ...]
    lower: Interval
    upper: Interval
    accuracy: Interval
    least: float
    most: float

    @property
    def wins(self) -> int:
        return self.outcomes.count("first")

    @property
    def losses(self) -> int:
        return self.outcomes.count("second")

    @property
    def ties(self) -> int:
        return self.outcomes.count("tie")

    @property
    def undecided(self) -> int:
        return self.outcomes.count("undecided")


@dataclass(frozen=True)
class Comparison:
    """The result of `holdfast compare`. radii: those of the tallies. pairs: the rows of all runs, input by
    input.
    """

    runs: tuple[Run, ...]
    pairs: Pairs
    radii: tuple[float, ...]
    confidence: float
    sides: tuple[Side, ...]
    duels: tuple[Duel, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def sense(self) -> Quantity:
        return self.runs[0].sense

    @property
    def labelled(self) -> bool:
        return all(run.labelled for run in self.runs)

    @property
    def measured_columns(self) -> list[SelectedRows]:
        """The rows of each run, without the inputs that some run had no time to measure."""
        measured = [place for place, pair in enumerate(self.pairs) if all(row.measured for row in pair)]
        return [SelectedRows(column, measured) for column in self.pairs.columns]


def compare(
    runs: Sequence[Run], *, radii: Sequence[float] | None = None, confidence: float = 0.95
) -> Comparison:
    """Compare two or more runs of the same question with at least one common input.

    Raises:
        BadInput: if the runs cannot be compared.
        Contradiction: if bounds of runs of the same network exclude each other.
    """
    if len(runs) < 2:
        raise BadInput("one run has nothing to be compared with: give two or more.")
    if not 0 < confidence < 1:
        raise BadInput(f"confidence {confidence}: must lie between 0 and 1, as in 0.95.")
    pairs = pair_rows(runs)
    at = tuple(radii) if radii is not None else usual_radii(runs[0].question, *pairs.columns)
    columns = pairs.columns
    measured = np.stack([_measured_flags(rows) for rows in columns])
    return Comparison(
        runs=tuple(runs),
        pairs=pairs,
        radii=at,
        confidence=confidence,
        sides=_sides(runs, columns, at, measured),
        duels=tuple(
            _duel(runs[i], columns[i], runs[j], columns[j], measured[i] & measured[j], confidence)
            for i, j in combinations(range(len(runs)), 2)
        ),
        notes=(*_notes(runs, len(pairs)), *_not_measured(runs, measured)),
    )


def _measured_flags(rows: Sequence[InputRow]) -> Flags:
    return np.array([row.measured for row in rows], dtype=np.bool_)


def _not_measured(runs: Sequence[Run], measured: Flags) -> list[str]:
    """Describe the inputs that are left out because a run ended too early."""
    found = [
        f"{run.name}: {int((~known).sum())} of {len(known)} inputs are not measured: the run ended "
        "before anything could be proved of them."
        for run, known in zip(runs, measured, strict=True)
        if not known.all()
    ]
    if found:
        found.append(
            f"means, ranks, differences and curves are over the {int(measured.all(0).sum())} "
            "inputs that every run measured."
        )
    return found


def _sides(
    runs: Sequence[Run], columns: Sequence[Sequence[InputRow]], radii: Sequence[float], measured: Flags
) -> tuple[Side, ...]:
    common = np.asarray(measured.all(0))
    lower, upper = (_common_means(columns, end, common) for end in ("lower", "upper"))
    return tuple(
        Side(
            name=run.name,
            model=run.model,
            accuracy=sum(map(is_correct, rows)) / len(rows) if run.labelled else math.nan,
            tallies=tuple(tally(rows, at) for at in radii),
            mean_lower=lower[place],
            mean_upper=upper[place],
            rank_lower=_rank(lower, place, run.sense),
            rank_upper=_rank(upper, place, run.sense),
            closed=sum(row.bracket.closed for row in rows),
            open_above=sum(run.sense.is_open(row.bracket) for row in rows),
            unbreakable=sum(is_unbreakable(row.bracket) for row in rows),
            not_measured=int((~measured[place]).sum()),
            seconds=sum(row.seconds for row in rows),
            queries=sum(row.queries for row in rows),
        )
        for place, (run, rows) in enumerate(zip(runs, columns, strict=True))
    )


def _ends(rows: Sequence[InputRow], end: str) -> Values:
    return bounds_of(rows)[:, 0 if end == "lower" else 1]


def _common_means(columns: Sequence[Sequence[InputRow]], end: str, measured: Flags) -> list[float]:
    values = np.stack([_ends(rows, end)[measured] for rows in columns])
    values = values[:, np.isfinite(values).all(0)]
    return [mean_of(row) for row in values]


def _rank(means: Sequence[float], place: int, sense: Quantity) -> int | None:
    best = [mean if sense.rises else -mean for mean in means]
    return None if math.isnan(means[place]) else 1 + sum(other > best[place] for other in best)


def _duel(
    one: Run,
    first: Sequence[InputRow],
    two: Run,
    second: Sequence[InputRow],
    measured: Flags,
    confidence: float,
) -> Duel:
    low, high, other_low, other_high = (
        _ends(rows, end) for rows in (first, second) for end in ("lower", "upper")
    )
    least, most = _true_difference(low, high, other_low, other_high)
    return Duel(
        first=one.name,
        second=two.name,
        outcomes=tuple(outcome(a.bracket, b.bracket, one.sense) for a, b in zip(first, second, strict=True)),
        lower=interval(_differences(low[measured], other_low[measured]), confidence),
        upper=interval(_differences(high[measured], other_high[measured]), confidence),
        accuracy=interval(
            np.array(
                [
                    float(is_correct(a)) - is_correct(b)
                    for a, b in zip(first, second, strict=True)
                    if one.labelled
                ]
            ),
            confidence,
        ),
        least=least,
        most=most,
    )


def _true_difference(low: Values, high: Values, other_low: Values, other_high: Values) -> tuple[float, float]:
    """Bound the exact mean difference by all brackets, over the inputs that are breakable in one of the two
    runs.
    """
    some = ~(np.isinf(low) & np.isinf(other_low))
    if not some.any():
        return math.nan, math.nan
    with np.errstate(invalid="ignore"):  # Infinity minus infinity is NaN: this difference is unknown.
        least, most = (low - other_high)[some], (high - other_low)[some]
    return float(np.where(np.isnan(least), -np.inf, least).mean()), float(
        np.where(np.isnan(most), np.inf, most).mean()
    )


def _differences(values: Values, others: Values) -> Values:
    """Return the differences where both values are finite."""
    known = np.isfinite(values) & np.isfinite(others)
    return values[known] - others[known]


def outcome(first: Bracket, second: Bracket, sense: Quantity = RADIUS) -> Outcome:
    """Return which of two brackets is better, tied or undecided."""
    if not sense.rises:
        first, second = first.negate(), second.negate()
    if first.lower.value > second.upper.value:
        return "first"
    if second.lower.value > first.upper.value:
        return "second"
    return "tie" if first.closed and second.closed else "undecided"


def interval(differences: Values, confidence: float) -> Interval:
    """Return Student's t interval of the mean; infinite with fewer than two differences."""
    count = len(differences)
    mean = float(differences.mean()) if count else math.nan
    if count < 2:
        return Interval(mean, -math.inf, math.inf, count)
    reach = float(stdtrit(count - 1, (1 + confidence) / 2) * differences.std(ddof=1) / math.sqrt(count))
    return Interval(mean, mean - reach, mean + reach, count)


def _notes(runs: Sequence[Run], common: int) -> tuple[str, ...]:
    """Describe differences between the runs that a reader must know."""
    notes = []
    for run in runs:
        left_out, open_ = len(run.rows) - common, sum(row.status == "interrupted" for row in run.rows)
        if left_out or run.silent:
            notes.append(
                f"{run.name}: {left_out + run.silent} of {len(run.rows) + run.silent} inputs are "
                "not compared: not all runs answer them."
            )
        if open_:
            notes.append(
                f"{run.name}: {open_} answers are interrupted and may become better; resume the run."
            )
    for name in ("tier", "arithmetic", "methods", "seed", "seconds", "queries", "gap"):
        values = [setting(getattr(run.question.means, name)) for run in runs]
        if len(set(values)) > 1:
            notes.append(
                f"the runs differ in {name}: "
                + ", ".join(f"{run.name} {text}" for run, text in zip(runs, values, strict=True))
            )
    return tuple(notes)
