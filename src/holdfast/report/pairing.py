"""Which runs may be laid side by side: they asked the same question, and the same inputs are found again in each."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from holdfast.errors import BadInput
from holdfast.formatting import at_least, at_most, short
from holdfast.question import Question
from holdfast.report.agreement import agree
from holdfast.report.packed_rows import Chosen, Packed, ends_of
from holdfast.report.streaming import by_input
from holdfast.report.summary import InputRow, QuestionPart, in_order, word_name
from holdfast.report.verdict import is_labelled
from holdfast.report.wording import RADIUS, Sense
from holdfast.store import Store, StoredInput


@dataclass(frozen=True)
class Run:
    """A run as it is compared: one part of it. `others` are the parts that are not."""

    name: str
    question: Question
    provenance: Mapping[str, Any]
    part: QuestionPart
    inputs: frozenset[int]  # those that were kept
    identities: Mapping[int, bytes]  # what they hold, as a hash
    others: tuple[QuestionPart, ...] = ()

    @property
    def rows(self) -> Sequence[InputRow]:
        return self.part.rows

    @property
    def sense(self) -> Sense:
        return self.part.sense

    @cached_property
    def labelled(self) -> bool:
        """Can it be said how often the network is right?"""
        return self.sense.quantity == "radius" or any(map(is_labelled, self.rows))

    @property
    def model(self) -> str:
        """Its name without the folders or the package it lies in."""
        return self.question.model.name.rsplit("/", 1)[-1].rsplit(":", 1)[-1]

    @cached_property
    def silent(self) -> int:
        """Inputs that have no answer yet."""
        return len(self.inputs - self.part.answered)


def load(store: Store, name: str | None = None, part: str | None = None) -> Run:
    """The named part, or that of the radius, else of the worst score, else the first there is. BadInput where it is not there."""
    called, question = name or store.folder.name or str(store.folder), store.question
    vocabulary = question.model.vocabulary or ()
    rows: dict[str, Packed] = {}
    identities: dict[int, bytes] = {}
    for stored, found in by_input(store, light=True, whole_inputs=True):
        if stored is not None:
            identities[stored.index] = identity(stored, vocabulary)
        for row in found:
            rows.setdefault(row.part, Packed()).append(row, frames=True)
    parts = in_order(rows)
    chosen = [
        found
        for found in parts
        if part in (None, found.name, found.sense.quantity, *(row.goal for row in found.rows[:1]))
    ]
    if not chosen:
        raise BadInput(
            f"{called}: no part {part}; there is {', '.join(found.name or found.sense.quantity for found in parts)}."
        )
    others = tuple(found for found in parts if found is not chosen[0])
    return Run(called, question, store.provenance, chosen[0], frozenset(identities), identities, others)


class Pairs(Sequence[tuple[InputRow, ...]]):
    """One tuple for each input that all runs answered, with a row of each, made when it is asked for. columns: the rows of each run."""

    def __init__(self, columns: Sequence[Chosen]) -> None:
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
    """One tuple for each input that all runs answered, with a row of each; BadInput where they cannot be compared, Contradiction where
    runs of one network exclude each other, in this part of the question or in another."""
    for other in runs[1:]:
        _same_question(runs[0], other)
    pairs = _pairs(runs)
    if not pairs:
        names = ", ".join(run.name for run in runs)
        raise BadInput(
            f"{names}: not one input with its label is in all of them, so there is nothing to compare. Ask about the same data."
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
            Chosen(run.rows, [table[one] for one in common])
            for run, table in zip(runs, (first, *rest), strict=True)
        ]
    )


def _same_question(first: Run, other: Run) -> None:
    different = first.question.differs(other.question)
    if different is not None:
        name, mine, yours = different
        raise BadInput(
            f"{first.name} and {other.name} asked different questions: {name} is {short(mine, 60)} there and {short(yours, 60)} here. "
            f"Radii can be compared only where the same changes are allowed; ask both the same."
        )
    if first.rows and other.rows and first.sense != other.sense:
        raise BadInput(
            f"{first.name} holds {first.sense.heading}, {other.name} {other.sense.heading}: say --part."
        )


def _by_identity(run: Run) -> dict[bytes, int] | None:
    """The places of rows by what their inputs hold; None where a row's input was not kept."""
    if any(row.source is None for row in run.rows):
        return None
    seen: Counter[bytes] = Counter()
    found: dict[bytes, int] = {}
    for place, row in enumerate(run.rows):
        digest = run.identities[row.index] + f"{row.output}".encode()
        found[digest + b"/%d" % seen[digest]] = (
            place  # an input that stands twice in the data meets its twins in their order
        )
        seen[digest] += 1
    return found


def identity(stored: StoredInput, vocabulary: Sequence[str] = ()) -> bytes:
    """The numbers, or words, and the label. Not the shape: a network that reads rows and one that reads images share inputs."""
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
    """The places of rows by their names in the data, if both runs say that they read the same."""
    mine, theirs = (r.question.data.fingerprint for r in (run, first))
    if mine is None or mine != theirs:
        raise BadInput(
            f"{run.name}: a run without its inputs can only be compared with one on the very same data, and the fingerprints of the data "
            f"differ or are missing."
        )
    return {row.name.encode(): place for place, row in enumerate(run.rows)}


def distinct(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """Short names where they tell runs apart, else the longer ones, numbered where even those are equal."""
    chosen = list(names) if len(set(names)) == len(names) else list(longer)
    return [f"{name} ({place + 1})" if chosen.count(name) > 1 else name for place, name in enumerate(chosen)]


def usual_radii(question: Question, *columns: Sequence[InputRow]) -> tuple[float, ...]:
    """A few numbers at which the runs differ: quartiles of what is proved, else witnessed, else estimated, in two digits. For scores 0."""
    first = next((rows[0] for rows in columns if len(rows)), None)
    sense = first.sense if first is not None else RADIUS
    if first is not None and first.goal == "worst":
        return (0.0,)
    if sense == RADIUS and question.asked.norm in ("0", "words"):
        return (1.0, 2.0, 3.0)
    ends = np.concatenate([ends_of(rows) for rows in columns] or [np.zeros((0, 2))])[
        :, :: 1 if sense.rises else -1
    ]  # proved, witnessed
    for place in range(3):
        found = (
            ends[:, place]
            if place < 2
            else np.array([e.value for rows in columns for row in rows for e in row.bracket.estimates])
        )
        known = found[np.isfinite(found) & ((found > 0) | (not sense.zero))]
        if len(known):
            quartiles = np.quantile(known, [0.25, 0.5, 0.75])
            away = at_least if sense.rises else at_most  # so that at the median at least half are certified
            return tuple(sorted({float(away(value, 2)) for value in quartiles.tolist()}))
    return ()
