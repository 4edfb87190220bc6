"""What kind of verifier found a number, and which property it speaks of, in the words of ISO/IEC 24029-2:2023."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.result import Evidence


@dataclass(frozen=True)
class Tags:
    """The five attributes, each in words; clauses 6.2.1.2 to 6.2.1.5 name the first four."""

    complete: str
    deterministic: str
    box: str
    arithmetic: str
    exact: str

    def __str__(self) -> str:
        return ", ".join((self.complete, self.deterministic, self.box, self.arithmetic, self.exact))


@dataclass(frozen=True)
class _Kind:
    """What is true of a method whatever it found. The cautious answer is the default."""

    complete: bool = False
    seeded: bool = True
    glass: bool | None = None
    exact: bool = False


METHODS = {
    "definition": _Kind(complete=True, seeded=False, glass=False, exact=True),
    "the input itself": _Kind(complete=True, seeded=False, glass=False, exact=True),
    "Enumerate": _Kind(complete=True, seeded=False, glass=False, exact=True),
    "Certify": _Kind(seeded=False, glass=True),
    "Tighten": _Kind(seeded=False, glass=True),
    "Split": _Kind(seeded=False, glass=True),
    "Branch": _Kind(seeded=False, glass=True),
    "PGD": _Kind(glass=True),
    "CarliniWagner": _Kind(glass=True),
    "CLEVER": _Kind(glass=True),
    "Corners": _Kind(glass=False),
    "Mesh": _Kind(glass=False),
    "Smoothing": _Kind(glass=False),
    "Greedy": _Kind(glass=True),
    "Grid": _Kind(glass=False),
}
RUN_ON_THE_MODEL = ("Enumerate", "the input itself")  # proofs that only ever ran the model itself


def tags_of(evidence: Evidence) -> Tags:
    """Of a method that this table does not know, only what its kind of evidence says for sure."""
    kind = METHODS.get(evidence.method, _Kind())
    executed = evidence.kind != "proved" or evidence.method in RUN_ON_THE_MODEL or evidence.settings.get("arithmetic") == "executed"
    return Tags(
        complete="complete" if kind.complete else "incomplete",
        deterministic="non-deterministic, repeatable by its seed" if kind.seeded else "deterministic",
        box="box not stated" if kind.glass is None else "glass box" if kind.glass else "closed box",
        arithmetic="computer arithmetic" if executed else "real arithmetic",
        exact="exact" if kind.exact else "approximate",
    )


@dataclass(frozen=True)
class Property:
    """One of the standard's four properties."""

    name: str
    clause: str
    meaning: str


STABILITY = Property("stability", "5.3", "how far an input may change before the answer does")
SENSITIVITY = Property("sensitivity", "5.4", "how strongly the output changes with the input")
RELEVANCE = Property("relevance", "5.5", "which parts of an input decide the answer")
REACHABILITY = Property("reachability", "5.6", "which outputs can be reached from the allowed inputs")


def properties_of(question: Mapping[str, Any]) -> tuple[Property, ...]:
    """What a run's numbers are evidence of."""
    command = question.get("command", "radius")
    if command == "worst":
        return STABILITY, REACHABILITY
    if command == "radius":
        return (STABILITY, RELEVANCE) if question.get("frames") == "each" else (STABILITY,)
    return (SENSITIVITY,)
