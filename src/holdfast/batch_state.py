"""The state of one batch of questions while it is solved: brackets, failures, and what they are as records.

A bracket [lower, upper] of a row holds the true answer: `lower` comes from proofs, `upper` from replayed
counterexamples. Inside a batch every goal is a minimisation; goals that ask for a maximum are negated
(`Problem.lowest`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import BadInput, Contradiction, HoldfastError
from holdfast.formatting import format_lower
from holdfast.goals import objective_of
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.result import (
    Bound,
    Bracket,
    Goal,
    Record,
    Status,
    trivial_bound,
)


@dataclass(frozen=True)
class Stop:
    """When to stop, whichever comes first. Default: when no method can improve anything.

    seconds   for the whole call, divided fairly among the batches.
    each      seconds for each input; a batch of n inputs has n times as many, so that inputs share what
              others leave.
    queries   network evaluations for each input.
    gap       stop a row when upper - lower <= gap.
    sign      stop a row when the sign of its number is known; one case <= 0 settles all cases of the same
              input.
    began     when the call began, on the monotonic clock. Default: when its search begins. A function sets it
              when it is called, so that its checks of the model count.
    """

    seconds: float | None = None
    queries: int | None = None
    gap: float = 0.0
    sign: bool = False
    each: float | None = None
    began: float | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        limits: dict[str, Any] = {
            "seconds": self.seconds,
            "each": self.each,
            "queries": self.queries,
            "gap": self.gap,
        }
        for name, value in limits.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
                raise BadInput(f"stop: {name} must be a number, got {value!r:.60}.")
            if value is not None and not float(value) >= 0:
                raise BadInput(f"stop: {name} must not be negative, got {value}.")

    def begin(self) -> "Stop":
        """Return the same limits for a call that begins now."""
        return replace(self, began=time.monotonic())

    def remaining_seconds(self) -> float | None:
        """Return the seconds left, at least 0; None: no limit."""
        if self.seconds is None or self.began is None:
            return self.seconds
        return max(0.0, self.seconds - (time.monotonic() - self.began))


@dataclass
class Work:
    """The state of one batch: its brackets, failures, and which methods have finished which rows."""

    problem: Problem  # as a minimisation (`Problem.lowest`)
    goals: tuple[Goal, ...]  # the original goal of each row
    brackets: list[Bracket]
    skipped: tuple[str, ...] = ()
    fallbacks: dict[int, tuple[str, ...]] = field(
        default_factory=dict
    )  # row -> descriptions of stages that a method had to leave out
    twin: Network | None = None
    digests: tuple[str, ...] = ()  # hash of the question of each row
    means: str = ""
    aside: dict[str, Tensor] = field(default_factory=dict)  # (batch, ...)
    answers: Tensor | None = None  # the model's first outputs at the inputs
    faults: dict[int, HoldfastError] = field(
        default_factory=dict
    )  # row -> contradiction; its bounds are withdrawn
    failed: dict[int, str] = field(default_factory=dict)  # row -> why it cannot be answered
    unfit: dict[str, str | None] = field(
        default_factory=dict
    )  # method name -> why it does not apply; None: it applies
    able: frozenset[str] = frozenset()  # names of the applicable methods
    done: dict[str, Tensor] = field(
        default_factory=dict
    )  # method name -> (batch,) bool: rows that the method has finished
    began: float = field(default_factory=time.monotonic)
    evaluation_seconds: float = 0.0  # of the batch's inputs, once
    queries: int = 0
    met: dict[int, Bound] = field(
        default_factory=dict
    )  # row -> lowest value of the network itself that some judge does not confirm
    told: list[Bracket | None] = field(init=False)  # the brackets that were reported last
    ends: Tensor = field(
        init=False
    )  # (2, batch) float64: the bounds of all brackets; `set_bracket` keeps them up to date

    def __post_init__(self) -> None:
        self.told = [None] * len(self.brackets)
        self.ends = (
            torch.tensor([(b.lower.value, b.upper.value) for b in self.brackets], dtype=torch.float64)
            .reshape(-1, 2)
            .T
        )

    def set_bracket(self, row: int, bracket: Bracket) -> None:
        self.brackets[row] = bracket
        self.ends.numpy()[:, row] = bracket.lower.value, bracket.upper.value

    def improved_records(self) -> list[Record]:
        """Records of the rows whose bracket has improved since the last report."""
        rows = [
            row
            for row, (bracket, reported) in enumerate(zip(self.brackets, self.told, strict=True))
            if bracket is not reported
        ]
        self.told = list(self.brackets)
        return self.records("interrupted", rows) if rows else []

    def records(self, status: Status, rows: Sequence[int] | None = None) -> list[Record]:
        """Records of these rows (default: all)."""
        share = len(self.problem)
        seconds, queries = (time.monotonic() - self.began) / share, self.queries // share
        digests, left = self.digests or ("",) * share, self._finished_rows().tolist()
        aside = {  # rows without a value hold NaN only
            name: [
                value if known else None
                for value, known in zip(v, (~v.isnan()).reshape(share, -1).any(1).tolist(), strict=True)
            ]
            for name, v in self.aside.items()
        }
        records = []
        for row in range(share) if rows is None else rows:
            bracket = self._annotated_bracket(row)
            records.append(
                Record(
                    self.problem.keys[row],
                    objective_of(self.goals[row]).orient(bracket),
                    self._status(row, status, left[row]),
                    seconds,
                    queries,
                    self.skipped,
                    digests[row],
                    self.means,
                    self.goals[row],
                    {name: value for name, values in aside.items() if (value := values[row]) is not None},
                )
            )
        return records

    def _annotated_bracket(self, row: int) -> Bracket:
        """The bracket; if it is open, its note lists the stages that a method had to leave out."""
        bracket = self.brackets[row]
        if bracket.closed or row not in self.fallbacks or row in self.faults or row in self.failed:
            return bracket
        return replace(bracket, note="; ".join(filter(None, (bracket.note, *self.fallbacks[row]))))

    def store_extra(self, name: str, rows: Tensor, values: Tensor) -> None:
        if name not in self.aside:
            self.aside[name] = values.new_full((len(self.problem), *values.shape[1:]), torch.nan)
        self.aside[name][rows] = values.to(self.aside[name])

    def unsettled_rows(self, stop: Stop) -> Tensor:
        """The rows whose bracket is still open under `stop`."""
        lower, upper = self.ends.unbind()
        open_rows: Tensor = (lower != upper) & (upper - lower > stop.gap) & ~self._finished_rows()
        open_rows[[*self.faults, *self.failed]] = False
        if stop.sign:
            index = torch.tensor([key.index for key in self.problem.keys])
            open_rows &= ~(lower > 0) & ~torch.isin(index, index[upper <= 0])
        return open_rows.nonzero().flatten()

    def _status(self, row: int, status: Status, left: bool) -> Status:
        if row in self.failed:
            return "failed"
        return (
            "refuted"
            if row in self.faults
            else "closed"
            if self.brackets[row].closed
            else "finished"
            if left
            else status
        )

    def _finished_rows(self) -> Tensor:
        """(batch,) bool: True if every applicable method has finished the row."""
        none = torch.zeros(len(self.problem), dtype=torch.bool)
        return torch.stack([self.done.get(name, none) for name in self.able] or [none]).all(0)

    def tighten(
        self, row: int, *, lower: Bound | None = None, upper: Bound | None = None, note: str | None = None
    ) -> None:
        """Improve the bounds of one row. If they then cross, one of them is wrong: the row's bounds are
        withdrawn.
        """
        if row in self.faults or row in self.failed:
            return
        try:
            better = self.brackets[row].tighten(lower=lower, upper=upper)
            # No proof may exceed a value that the network itself takes, even if a judge does not confirm it.
            better.tighten(upper=self.met.get(row))
            if better is not self.brackets[row] or note is not None:
                self.set_bracket(row, better if note is None else replace(better, note=note))
        except Contradiction as error:
            self._withdraw(row, Contradiction(f"input {self.problem.keys[row]}: {error}"))

    def refute(self, row: int, why: str) -> None:
        """Withdraw the bounds of a row because the model is not the function that was proved."""
        message = (
            f"input {self.problem.keys[row]}: {self.problem.network.name} {why}, so it keeps state between "
            "calls, draws "
            "random numbers or depends on its arithmetic, and nothing about it can be proved. Remove "
            "that, or fix its state."
        )
        self._withdraw(row, BadInput(message))

    def refute_reading(self, row: int, point: Sequence[float]) -> None:
        """Withdraw the bounds of a row: the estimator violates the property inside the proved region."""
        shown = f"{', '.join(f'{number:g}' for number in point[:12])}{' ...' if len(point) > 12 else ''}"
        message = (
            f"input {self.problem.keys[row]}: proved up to {format_lower(self.brackets[row].lower.value)}, but "
            f"{self.problem.network.name} "
            f"itself breaks the property within that, at the row ({shown}). So it differs from what was "
            "read of it, and nothing about it "
            f"can be proved: give its function instead, hf.Network.from_callable(function), and report this."
        )
        self._withdraw(row, Contradiction(message))

    def _withdraw(self, row: int, error: HoldfastError) -> None:
        self.faults[row] = error
        self.set_bracket(row, replace(trivial_brackets(self.problem)[row], note=str(error)))


def trivial_brackets(problem: Problem) -> list[Bracket]:
    """The trivial brackets that hold by definition, such as 0 <= radius."""
    objective = problem.objective
    return [Bracket(trivial_bound(objective.least), trivial_bound(objective.most))] * len(problem)
