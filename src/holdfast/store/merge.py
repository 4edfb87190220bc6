"""Merging of runs that answer the same question, such as the shards of a large run.

A merge of a single run is a consistent copy of it, also while it is being written.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path

from holdfast.errors import BadInput, Contradiction, StoreError
from holdfast.network.model_identity import NAME_IT
from holdfast.question import Json, Means, Question, plain
from holdfast.result import Record, Status
from holdfast.store.atomic_write import create_whole
from holdfast.store.database import KEYS
from holdfast.store.provenance import provenance
from holdfast.store.rows import in_batches, input_of
from holdfast.store.run import Store

# Longest value of a setting in an error message, in characters (chosen by hand).
MAX_VALUE_LENGTH = 60

# The option of a run that measures only a part of the inputs.
SHARD = "shard"
# Order of statuses: of two records that are not closed, the merged record gets the status that comes first
# here.
FURTHEST: tuple[Status, ...] = ("refuted", "finished", "stopped", "interrupted", "failed")


def merge(folders: Sequence[str | Path], new: str | Path) -> Path:
    """Write a new run with the records of all runs, and return its folder.

    Of several records of one key, the better bounds are kept.

    Raises:
        StoreError: the runs differ in their question, model, data or settings.
        Contradiction: a certified bound of one run excludes a counterexample of another.
    """
    if not folders:
        raise BadInput("nothing to merge: give one run or more.")
    target = Path(new)
    with ExitStack() as stack:
        runs = [stack.enter_context(Store.read(folder)) for folder in folders]
        for run in runs[1:]:
            _check_mergeable(runs[0], run)
        question = runs[0].question
        merged = replace(
            question, options={name: value for name, value in question.options.items() if name != SHARD}
        )
        about = {**provenance(), "merged from": [str(folder) for folder in folders]}
        with create_whole(target, merged, runs[0].provenance if len(runs) == 1 else about) as whole:
            for run in runs:
                _add(whole, run)
    return target


def _check_mergeable(first: Store, other: Store) -> None:
    """Raise StoreError unless both runs answer the same question about the same model and data with the same
    settings."""
    mine, yours = first.question, other.question
    if "" in (mine.model.fingerprint, yours.model.fingerprint):
        raise StoreError(
            f"{first.folder} and {other.folder}: their model cannot be hashed, so nobody knows whether it "
            f"is the same in both. Run both again, and {NAME_IT}."
        )
    for name, one, two in _compare_settings(mine, yours):
        if plain(one) != plain(two):
            raise StoreError(
                f"{first.folder} and {other.folder} are not parts of one run: {name} is {_short(one)} there "
                f"and {_short(two)} here. Only runs with the same question and settings can be merged; "
                f"'holdfast compare' compares others."
            )


def _compare_settings(mine: Question, yours: Question) -> Iterator[tuple[str, Json, Json]]:
    different = mine.differs(yours)
    if different is not None:
        yield different
    for name in ("fingerprint", "prepared", "vocabulary", "tokenizer"):
        yield f"the model's {name}", getattr(mine.model, name), getattr(yours.model, name)
    yield "the data's fingerprint", mine.data.fingerprint, yours.data.fingerprint
    yield "the question", mine.fingerprint, yours.fingerprint
    for part in fields(Means):
        yield part.name, getattr(mine.means, part.name), getattr(yours.means, part.name)


def _short(value: Json) -> str:
    text = str(plain(value))
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"


def _add(whole: Store, run: Store) -> None:
    """Write the inputs, records, answers, history and artefacts of `run` into `whole`."""
    rows = run.rows_of("input", run.input_columns)
    for some in in_batches(rows, KEYS):
        for row in some:
            input_of(row, light=True)
        with whole.transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO input VALUES (?, ?, ?, ?, ?, ?, ?)", some)
        whole.put_predictions(
            {position: prediction for position, _, prediction, *_ in some if prediction is not None}
        )
    for found in in_batches(run.stream(), KEYS):
        known = whole.load_known([record.key for record in found])
        records = [
            record if record.key not in known else join_records(known[record.key], record, f"{run.folder}")
            for record in run.attach_artefacts(found)
        ]
        whole.replace(records)
        # Answers belong to witnesses, so only those of records whose bounds were taken over unchanged are
        # still valid.
        bounds = {r.key: (r.bracket.lower.value, r.bracket.upper.value) for r in found}
        unchanged = [
            r.key for r in records if bounds[r.key] == (r.bracket.lower.value, r.bracket.upper.value)
        ]
        if answers := run.answers(unchanged):
            whole.put_answers(answers)
    if claims := run.claims():
        whole.put_claims(claims)
    for key, result in run.certificates().items():
        whole.put_certificate(key, *result)
    for table, columns in (("history", 7), ("artefact", 5)):
        for some in in_batches(run.rows_of(table), KEYS):
            with whole.transaction() as connection:
                connection.executemany(
                    f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * columns)})", some
                )


def join_records(one: Record, two: Record, where: str) -> Record:
    """One record with the better bounds of two records of the same key.

    Raises Contradiction if the bounds exclude each other.

    where: names the run of `two` in error messages.
    """
    if (one.question, one.goal) != (two.question, two.goal):
        raise StoreError(
            f"{where}: its record of input {two.key} answers a different question than the other runs."
        )
    if one == two:
        return one
    if one.status == "failed":  # the other record determines note, goal and question
        one, two = two, one
    refuted = [record for record in (one, two) if record.status == "refuted"]
    if refuted:
        return refuted[0]
    try:
        bracket = one.bracket.tighten(lower=two.bracket.lower, upper=two.bracket.upper)
    except Contradiction as error:
        raise Contradiction(f"{where}, input {two.key}: {error}") from error
    for estimate in two.bracket.estimates:
        bracket = bracket if estimate in bracket.estimates else bracket.with_estimate(estimate)
    status: Status = (
        "closed"
        if bracket.closed
        else min((r.status for r in (one, two) if r.status != "closed"), key=FURTHEST.index)
    )
    means = next((r.means for r in (one, two) if r.status == status), one.means)
    return replace(
        one,
        bracket=bracket,
        status=status,
        means=means,
        seconds=one.seconds + two.seconds,
        queries=one.queries + two.queries,
        skipped=tuple(dict.fromkeys((*one.skipped, *two.skipped))),
        aside={**two.aside, **one.aside},
    )
