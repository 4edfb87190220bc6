"""Runs that asked the same thing, as one: shards of a large one, or a single run, of which this makes a copy that is consistent also
while it is being written."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path

from holdfast.errors import BadInput, Contradiction, StoreError
from holdfast.network.network import NAME_IT
from holdfast.question import Json, Means, Question, plain
from holdfast.result import Record, Status
from holdfast.store.atomic_write import create_whole
from holdfast.store.database import KEYS
from holdfast.store.rows import in_parts, input_of
from holdfast.store.run import Store, provenance

SHARD = "shard"  # the option of a run that asks about a share of the inputs only
# Of two records that are not closed, the one whose search went further says how it ended.
FURTHEST: tuple[Status, ...] = ("refuted", "finished", "stopped", "interrupted", "failed")


def merge(folders: Sequence[str | Path], new: str | Path) -> Path:
    """A new run with the records of all. StoreError where they did not ask the same with the same means, Contradiction where they exclude
    each other. Where several answer one key, the better ends count."""
    if not folders:
        raise BadInput("nothing to merge: give one run or more.")
    target = Path(new)
    with ExitStack() as stack:
        runs = [stack.enter_context(Store.read(folder)) for folder in folders]
        for run in runs[1:]:
            _alike(runs[0], run)
        question = runs[0].question
        asked = replace(
            question, options={name: value for name, value in question.options.items() if name != SHARD}
        )
        about = {**provenance(), "merged from": [str(folder) for folder in folders]}
        with create_whole(target, asked, runs[0].provenance if len(runs) == 1 else about) as whole:
            for run in runs:
                _add(whole, run)
    return target


def _alike(first: Store, other: Store) -> None:
    mine, yours = first.question, other.question
    if "" in (mine.model.fingerprint, yours.model.fingerprint):
        raise StoreError(
            f"{first.folder} and {other.folder}: what their model reads cannot be hashed, so nobody knows whether it is the same in both. "
            f"Ask anew, and {NAME_IT}."
        )
    for name, one, two in _compare_settings(mine, yours):
        if plain(one) != plain(two):
            raise StoreError(
                f"{first.folder} and {other.folder} are not parts of one run: {name} is {_short(one)} there and {_short(two)} here. Merge "
                f"runs that asked the same with the same means; 'holdfast compare' lays others side by side."
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
    return text if len(text) <= 60 else f"{text[:60]}…"


def _add(whole: Store, run: Store) -> None:
    rows = run.rows_of("input", run.input_columns)
    for some in in_parts(rows, KEYS):
        for row in some:
            input_of(row, light=True)
        with whole.transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO input VALUES (?, ?, ?, ?, ?, ?, ?)", some)
        whole.put_predictions({place: said for place, _, said, *_ in some if said is not None})
    for found in in_parts(run.stream(), KEYS):
        known = whole.load_known([record.key for record in found])
        records = [
            record if record.key not in known else join_records(known[record.key], record, f"{run.folder}")
            for record in run.beside(found)
        ]
        whole.replace(records)
        ends = {r.key: (r.bracket.lower.value, r.bracket.upper.value) for r in found}
        kept = [r.key for r in records if ends[r.key] == (r.bracket.lower.value, r.bracket.upper.value)]
        if answers := run.answers(kept):
            whole.put_answers(answers)
    for table, places in (("history", 7), ("artefact", 5)):
        for some in in_parts(run.rows_of(table), KEYS):
            with whole.transaction() as connection:
                connection.executemany(
                    f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * places)})", some
                )


def join_records(one: Record, two: Record, where: str) -> Record:
    """Two answers to one question. Contradiction where they exclude each other."""
    if (one.question, one.goal) != (two.question, two.goal):
        raise StoreError(
            f"{where}: its record of input {two.key} answers another question than that of the other runs."
        )
    if one == two:
        return one
    if one.status == "failed":  # what it says of itself is that it says nothing
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
        one, bracket=bracket, status=status, means=means, seconds=one.seconds + two.seconds, queries=one.queries + two.queries,
        skipped=tuple(dict.fromkeys((*one.skipped, *two.skipped))), aside={**two.aside, **one.aside},
    )  # fmt: skip
