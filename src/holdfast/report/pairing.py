"""Which runs may be laid side by side: they asked the same question, and the same inputs are found again in each."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import BadInput
from holdfast.question import Question
from holdfast.report.agreement import agree
from holdfast.report.summary import Row, rows_of, short, word_name
from holdfast.store import Store, StoredInput


@dataclass(frozen=True)
class Run:
    """A run as it is compared."""

    name: str
    question: Question
    provenance: Mapping[str, Any]
    rows: tuple[Row, ...]
    inputs: tuple[StoredInput, ...]

    @property
    def scores(self) -> bool:
        """Worst scores, not radii."""
        return self.question.command == "worst"

    @property
    def model(self) -> str:
        """Its name without the folders or the package it lies in."""
        return self.question.model.name.rsplit("/", 1)[-1].rsplit(":", 1)[-1]

    @property
    def silent(self) -> int:
        """Inputs that have no answer yet."""
        return max(0, len(self.inputs) - len(self.rows))


def load(store: Store, name: str | None = None) -> Run:
    inputs = store.inputs()
    rows = rows_of(store.records(), inputs)
    return Run(name or store.folder.name or str(store.folder), store.question, store.provenance, tuple(rows), tuple(inputs))


def paired(runs: Sequence[Run]) -> list[tuple[Row, ...]]:
    """One tuple for each input that all runs answered, with a row of each; BadInput where they cannot be compared, Contradiction where
    runs of one network exclude each other."""
    for other in runs[1:]:
        _same_question(runs[0], other)
    tables = [_by_identity(run) for run in runs]
    if any(table is None for table in tables):
        tables = [_by_place(run, runs[0]) for run in runs]
    first, *rest = [table for table in tables if table is not None]
    common = [identity for identity in first if all(identity in table for table in rest)]
    if not common:
        names = ", ".join(run.name for run in runs)
        raise BadInput(f"{names}: not one input with its label is in all of them, so there is nothing to compare. Ask about the same data.")
    pairs = [tuple(table[identity] for table in (first, *rest)) for identity in common]
    agree(runs, pairs)
    return pairs


def _same_question(first: Run, other: Run) -> None:
    different = first.question.differs(other.question)
    if different is not None:
        name, mine, yours = different
        raise BadInput(
            f"{first.name} and {other.name} asked different questions: {name} is {short(mine, 60)} there and {short(yours, 60)} here. "
            f"Radii can be compared only where the same changes are allowed; ask both the same."
        )


def _by_identity(run: Run) -> dict[str, Row] | None:
    """Rows by what their inputs hold; None where a row's input was not kept."""
    if any(row.source is None for row in run.rows):
        return None
    vocabulary = run.question.model.vocabulary or ()
    seen: Counter[str] = Counter()
    found: dict[str, Row] = {}
    for row in run.rows:
        assert row.source is not None
        digest = identity(row.source, vocabulary)
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
    return {str(row.index): row for row in run.rows}


def distinct(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """Short names where they tell runs apart, else the longer ones, numbered where even those are equal."""
    chosen = list(names) if len(set(names)) == len(names) else list(longer)
    return [f"{name} ({place + 1})" if chosen.count(name) > 1 else name for place, name in enumerate(chosen)]


def usual_radii(question: Question, pairs: Sequence[tuple[Row, ...]]) -> tuple[float, ...]:
    """A few radii at which the runs differ: the quartiles of what is proved, else of what is witnessed, in two digits."""
    if question.command == "worst":
        return (0.0,)
    if question.asked.norm in ("0", "words"):
        return (1.0, 2.0, 3.0)
    rows = [row for pair in pairs for row in pair]
    for ends in ([row.bracket.lower.value for row in rows], [row.bracket.upper.value for row in rows]):
        known = [value for value in ends if 0 < value < math.inf]
        if known:
            quartiles = np.quantile(known, [0.25, 0.5, 0.75])
            return tuple(sorted({float(f"{value:.2g}") for value in quartiles.tolist()}))
    return ()
