"""The proved claims of a run in words and numbers, for every view: each names inputs, ranges, outputs and the
proved number, by the function with which the checker words a certificate."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from holdfast.certificates.stated_claim import claim_of_record
from holdfast.result import Key
from holdfast.store import Store
from holdfast.store.rows import in_batches
from holdfast_check.claim_text import ClaimNumbers

LISTED = 50  # Claims on a page (chosen by hand); a bundle lists all of them.
AT_ONCE = 200  # Records that are read together (chosen by hand).


@dataclass(frozen=True)
class StatedClaim:
    """One proved claim. `name` is that of the input or instance."""

    key: Key
    name: str
    numbers: ClaimNumbers

    @property
    def sentence(self) -> str:
        return self.numbers.sentence()


def iterate_claims(store: Store) -> Iterator[StatedClaim]:
    """Yield the proved claims of a run in its order; runs made by a program or an earlier version store none."""
    question = store.question
    for some in in_batches(store.stream(light=True), AT_ONCE):
        bodies = store.claims([record.key for record in some])
        names = {
            record.key.index: next(
                (one.name for one in store.stream_inputs(record.key.index, record.key.index)), ""
            )
            for record in some
            if record.key in bodies
        }
        for record in some:
            body = bodies.get(record.key)
            numbers = None if body is None else claim_of_record(body, record, question)
            if numbers is not None:
                yield StatedClaim(record.key, names[record.key.index], numbers)


def listed_claims(store: Store) -> tuple[list[StatedClaim], bool]:
    """The first claims of a run, and whether there are more."""
    found = list(islice(iterate_claims(store), LISTED + 1))
    return found[:LISTED], len(found) > LISTED
