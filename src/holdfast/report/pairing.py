"""Pairing of runs for a comparison: runs of the same question, matched input by input."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from holdfast.errors import BadInput
from holdfast.formatting import format_lower, format_upper, shorten
from holdfast.question import Question
from holdfast.report.agreement import agree
from holdfast.report.packed_rows import PackedRows, SelectedRows, bounds_of
from holdfast.report.streaming import by_input
from holdfast.report.summary import InputRow, QuestionPart, order_parts, word_name
from holdfast.report.verdict import is_labelled
from holdfast.report.wording import RADIUS, Quantity
from holdfast.store import Store, StoredInput


@dataclass(frozen=True)
class Run:
    """One part of a run, for a comparison.

    inputs: indices of the stored inputs. identities: a hash of the content of each. others: the parts not
    compared.
    """

    name: str
    question: Question
    provenance: Mapping[str, Any]
    part: QuestionPart
    inputs: frozenset[int]
    identities: Mapping[int, bytes]
    others: tuple[QuestionPart, ...] = ()

    @property
    def rows(self) -> Sequence[InputRow]:
        return self.part.rows

    @property
    def sense(self) -> Quantity:
        return self.part.sense

    @cached_property
    def labelled(self) -> bool:
        """Whether the accuracy of the network is known."""
        return self.sense.quantity == "radius" or any(map(is_labelled, self.rows))

    @property
    def model(self) -> str:
        """The name of the model without its folder or module path."""
        return self.question.model.name.rsplit("/", 1)[-1].rsplit(":", 1)[-1]

    @cached_property
    def silent(self) -> int:
        """Number of inputs without any answer."""
        return len(self.inputs - self.part.answered)


def load(store: Store, name: str | None = None, part: str | None = None) -> Run:
    """Load one part of a run: the named one, default: the radius, else the worst score, else the first.

    Raises BadInput if there is no such part.
    """
    called, question = name or store.folder.name or str(store.folder), store.question
    vocabulary = question.model.vocabulary or ()
    rows: dict[str, PackedRows] = {}
    identities: dict[int, bytes] = {}
    for stored, found in by_input(store, light=True, whole_inputs=True):
        if stored is not None:
            identities[stored.index] = content_hash(stored, vocabulary)
        for row in found:
            rows.setdefault(row.part, PackedRows()).append(row, frames=True)
    parts = order_parts(rows)
    chosen = [
        found
        for found in parts
        if part in (None, found.name, found.sense.quantity, *(row.goal for row in found.rows[:1]))
    ]
    if not chosen:
        raise BadInput(
            f"{called}: no part {part}; there is "
            f"{', '.join(found.name or found.sense.quantity for found in parts)}."
        )
    others = tuple(found for found in parts if found is not chosen[0])
    return Run(called, question, store.provenance, chosen[0], frozenset(identities), identities, others)


class Pairs(Sequence[tuple[InputRow, ...]]):
    """Tuples with one row of each run, for every input that all runs answered, built on access.

    columns: the rows of each run.
    """

    def __init__(self, columns: Sequence[SelectedRows]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, place: int) -> tuple[InputRow, ...]: ...

    @overload
    def __getitem__(self, place: slice) -> list[tuple[InputRow, ...]]: ...

    def __getitem__(self, place: int | slice) -> tuple[InputRow, ...] | list[tuple[InputRow, ...]]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        return tuple(column[place] for column in self.columns)


def pair_rows(runs: Sequence[Run]) -> Pairs:
    """Match the rows of runs input by input.

    Raises:
        BadInput: if the runs cannot be compared.
        Contradiction: if bounds of runs of one network exclude each other, in this part of the question or
            another.
    """
    for other in runs[1:]:
        _same_question(runs[0], other)
    pairs = _pairs(runs)
    if not pairs:
        names = ", ".join(run.name for run in runs)
        raise BadInput(
            f"{names}: not one input with its label is in all of them, so there is nothing to "
            "compare. Ask about the same data."
        )
    agree(runs, pairs)
    for part in runs[0].others:
        same = [replace(run, part=found) for run in runs for found in run.others if found.name == part.name]
        if len(same) == len(runs):
            agree(same, _pairs(same))
    return pairs


def _pairs(runs: Sequence[Run]) -> Pairs:
    tables = [_by_identity(run) for run in runs]
    if any(table is None for table in tables):
        tables = [_by_place(run, runs[0]) for run in runs]
    first, *rest = [table for table in tables if table is not None]
    common = [identity for identity in first if all(identity in table for table in rest)]
    return Pairs(
        [
            SelectedRows(run.rows, [table[one] for one in common])
            for run, table in zip(runs, (first, *rest), strict=True)
        ]
    )


def _same_question(first: Run, other: Run) -> None:
    different = first.question.differs(other.question)
    if different is not None:
        name, mine, yours = different
        raise BadInput(
            f"{first.name} and {other.name} asked different questions: {name} is {shorten(mine, 60)} "
            f"there and {shorten(yours, 60)} here. "
            f"Radii can be compared only where the same changes are allowed; ask both the same."
        )
    if first.rows and other.rows and first.sense != other.sense:
        raise BadInput(
            f"{first.name} holds {first.sense.heading}, {other.name} {other.sense.heading}: say --part."
        )


def _by_identity(run: Run) -> dict[bytes, int] | None:
    """Map a hash of each input's content to the index of its row; None if an input was not stored."""
    if any(row.source is None for row in run.rows):
        return None
    seen: Counter[bytes] = Counter()
    found: dict[bytes, int] = {}
    for place, row in enumerate(run.rows):
        digest = run.identities[row.index] + f"{row.output}".encode()
        # Duplicates of an input are matched in their order.
        found[digest + b"/%d" % seen[digest]] = place
        seen[digest] += 1
    return found


def content_hash(stored: StoredInput, vocabulary: Sequence[str] = ()) -> bytes:
    """Hash the numbers or words of an input and its label.

    The shape is left out, so that a network that reads rows and one that reads images share inputs.
    """
    digest = hashlib.sha256(f"{stored.label}".encode())
    if stored.tokens is not None:
        digest.update(
            "\0".join(word_name(token, vocabulary) for token in stored.tokens).encode(
                "utf-8", "surrogatepass"
            )
        )
    else:
        digest.update(np.ascontiguousarray(stored.x, dtype=np.float64).tobytes())
    return digest.digest()


def _by_place(run: Run, first: Run) -> dict[bytes, int]:
    """Map names of inputs to indices of rows, if both runs have the same data fingerprint; else raise
    BadInput.
    """
    mine, theirs = (r.question.data.fingerprint for r in (run, first))
    if mine is None or mine != theirs:
        raise BadInput(
            f"{run.name}: a run without its inputs can only be compared with one on the very same "
            "data, and the fingerprints of the data "
            f"differ or are missing."
        )
    return {row.name.encode(): place for place, row in enumerate(run.rows)}


def distinct_names(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """Return short names if they are distinct, else the longer ones, numbered where these are equal too."""
    chosen = list(names) if len(set(names)) == len(names) else list(longer)
    return [f"{name} ({place + 1})" if chosen.count(name) > 1 else name for place, name in enumerate(chosen)]


def usual_radii(question: Question, *columns: Sequence[InputRow]) -> tuple[float, ...]:
    """Return a few radii at which runs differ: the distinct `quartile_radii`, or (0,) for scores."""
    return tuple(sorted(set(quartile_radii(question, *columns))))


def quartile_radii(question: Question, *columns: Sequence[InputRow]) -> tuple[float, ...]:
    """Return the quartiles of the proved bounds, rounded to two digits towards the certified side.

    Without a proved bound they are those of the witnessed bounds, else of the estimates, else there are
    none. Scores have (0,), counts have (1, 2, 3).
    """
    first = next((rows[0] for rows in columns if len(rows)), None)
    sense = first.sense if first is not None else RADIUS
    if first is not None and first.objective.scored:
        return (0.0,)
    if sense == RADIUS and question.asked.norm in ("0", "words", "edits"):
        return (1.0, 2.0, 3.0)
    ends = np.concatenate([bounds_of(rows) for rows in columns] or [np.zeros((0, 2))])
    ends = ends[:, :: 1 if sense.rises else -1]  # Proved, witnessed.
    for place in range(3):
        found = (
            ends[:, place]
            if place < 2
            else np.array([e.value for rows in columns for row in rows for e in row.bracket.estimates])
        )
        known = found[np.isfinite(found) & ((found > 0) | (not sense.zero))]
        if len(known):
            away = (
                format_lower if sense.rises else format_upper
            )  # At the median, at least half are certified.
            first_quartile, median, third = np.quantile(known, [0.25, 0.5, 0.75]).tolist()
            return (
                float(away(first_quartile, 2)),
                float(away(median, 2)),
                float(away(third, 2)),
            )
    return ()
