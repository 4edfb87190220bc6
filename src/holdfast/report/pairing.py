"""Which runs may be laid side by side: they asked the same question, and the same inputs are found again in each."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from holdfast.errors import BadInput
from holdfast.question import Question
from holdfast.report.agreement import agree
from holdfast.report.sense import RADIUS, Sense
from holdfast.report.streaming import by_input, without_numbers
from holdfast.report.summary import Part, Row, parts_of, short, word_name
from holdfast.report.verdict import labelled
from holdfast.store import Store, StoredInput


@dataclass(frozen=True)
class Run:
    """A run as it is compared: one part of it. `others` are the parts that are not."""

    name: str
    question: Question
    provenance: Mapping[str, Any]
    part: Part
    inputs: frozenset[int]  # those that were kept
    identities: Mapping[int, str]  # what they hold, as a hash
    others: tuple[Part, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.part.rows

    @property
    def sense(self) -> Sense:
        return self.part.sense

    @property
    def labelled(self) -> bool:
        """Can it be said how often the network is right?"""
        return self.sense.quantity == "radius" or any(map(labelled, self.rows))

    @property
    def model(self) -> str:
        """Its name without the folders or the package it lies in."""
        return self.question.model.name.rsplit("/", 1)[-1].rsplit(":", 1)[-1]

    @property
    def silent(self) -> int:
        """Inputs that have no answer yet."""
        return len(self.inputs - self.part.answered)


def load(store: Store, name: str | None = None, part: str | None = None) -> Run:
    """The named part, or that of the radius, else of the worst score, else the first there is. BadInput where it is not there."""
    called, question = name or store.folder.name or str(store.folder), store.question
    vocabulary, rows = question.model.vocabulary or (), list[Row]()
    identities: dict[int, str] = {}
    for stored, found in by_input(store, light=True, whole_inputs=True):
        if stored is not None:
            identities[stored.index] = identity(stored, vocabulary)
        rows += (row if row.source is None else replace(row, source=without_numbers(row.source)) for row in found)
    parts = parts_of(rows)
    chosen = [found for found in parts if part in (None, found.name, found.sense.quantity, *(row.goal for row in found.rows[:1]))]
    if not chosen:
        raise BadInput(f"{called}: no part {part}; there is {', '.join(found.name or found.sense.quantity for found in parts)}.")
    others = tuple(found for found in parts if found is not chosen[0])
    return Run(called, question, store.provenance, chosen[0], frozenset(identities), identities, others)


def paired(runs: Sequence[Run]) -> list[tuple[Row, ...]]:
    """One tuple for each input that all runs answered, with a row of each; BadInput where they cannot be compared, Contradiction where
    runs of one network exclude each other, in this part of the question or in another."""
    for other in runs[1:]:
        _same_question(runs[0], other)
    pairs = _pairs(runs)
    if not pairs:
        names = ", ".join(run.name for run in runs)
        raise BadInput(f"{names}: not one input with its label is in all of them, so there is nothing to compare. Ask about the same data.")
    agree(runs, pairs)
    for part in runs[0].others:
        same = [replace(run, part=found) for run in runs for found in run.others if found.name == part.name]
        if len(same) == len(runs):
            agree(same, _pairs(same))
    return pairs


def _pairs(runs: Sequence[Run]) -> list[tuple[Row, ...]]:
    tables = [_by_identity(run) for run in runs]
    if any(table is None for table in tables):
        tables = [_by_place(run, runs[0]) for run in runs]
    first, *rest = [table for table in tables if table is not None]
    common = [identity for identity in first if all(identity in table for table in rest)]
    return [tuple(table[identity] for table in (first, *rest)) for identity in common]


def _same_question(first: Run, other: Run) -> None:
    different = first.question.differs(other.question)
    if different is not None:
        name, mine, yours = different
        raise BadInput(
            f"{first.name} and {other.name} asked different questions: {name} is {short(mine, 60)} there and {short(yours, 60)} here. "
            f"Radii can be compared only where the same changes are allowed; ask both the same."
        )
    if first.rows and other.rows and first.sense != other.sense:
        raise BadInput(f"{first.name} holds {first.sense.heading}, {other.name} {other.sense.heading}: say --part.")


def _by_identity(run: Run) -> dict[str, Row] | None:
    """Rows by what their inputs hold; None where a row's input was not kept."""
    if any(row.source is None for row in run.rows):
        return None
    seen: Counter[str] = Counter()
    found: dict[str, Row] = {}
    for row in run.rows:
        digest = f"{run.identities[row.index]}/{row.output}"
        found[f"{digest}/{seen[digest]}"] = row  # an input that stands twice in the data meets its twins in their order
        seen[digest] += 1
    return found


def identity(stored: StoredInput, vocabulary: Sequence[str] = ()) -> str:
    """The numbers, or words, and the label. Not the shape: a network that reads rows and one that reads images share inputs."""
    digest = hashlib.sha256(f"{stored.label}".encode())
    if stored.tokens is not None:
        digest.update("\0".join(word_name(token, vocabulary) for token in stored.tokens).encode("utf-8", "surrogatepass"))
    else:
        digest.update(np.ascontiguousarray(stored.x, dtype=np.float64).tobytes())
    return digest.hexdigest()


def _by_place(run: Run, first: Run) -> dict[str, Row]:
    """Rows by their places in the data, if both runs say that they read the same."""
    mine, theirs = (r.question.data.fingerprint for r in (run, first))
    if mine is None or mine != theirs:
        raise BadInput(
            f"{run.name}: a run without its inputs can only be compared with one on the very same data, and the fingerprints of the data "
            f"differ or are missing."
        )
    return {row.name: row for row in run.rows}


def distinct(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """Short names where they tell runs apart, else the longer ones, numbered where even those are equal."""
    chosen = list(names) if len(set(names)) == len(names) else list(longer)
    return [f"{name} ({place + 1})" if chosen.count(name) > 1 else name for place, name in enumerate(chosen)]


def usual_radii(question: Question, pairs: Sequence[tuple[Row, ...]]) -> tuple[float, ...]:
    """A few numbers at which the runs differ: quartiles of what is proved, else witnessed, else estimated, in two digits. For scores 0."""
    rows = [row for pair in pairs for row in pair]
    sense = rows[0].sense if rows else RADIUS
    if rows and rows[0].goal == "worst":
        return (0.0,)
    if sense == RADIUS and question.asked.norm in ("0", "words"):
        return (1.0, 2.0, 3.0)
    ends = [[sense.proved(row.bracket) for row in rows], [sense.witnessed(row.bracket) for row in rows]]
    for bounds in (*ends, [estimate for row in rows for estimate in row.bracket.estimates]):
        values = [bound.value for bound in bounds]
        known = [value for value in values if math.isfinite(value) and (value > 0 or not sense.zero)]
        if known:
            quartiles = np.quantile(known, [0.25, 0.5, 0.75])
            return tuple(sorted({float(f"{value:.2g}") for value in quartiles.tolist()}))
    return ()
