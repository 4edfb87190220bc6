"""The terms of ISO/IEC 24029-2:2023: attributes of a verifier, and properties of a network."""

from dataclasses import dataclass

from holdfast.question import Question
from holdfast.result import Evidence


@dataclass(frozen=True)
class Tags:
    """The five attributes of a verifier; clauses 6.2.1.2 to 6.2.1.5 define the first four."""

    complete: str
    deterministic: str
    box: str
    arithmetic: str
    exact: str

    def __str__(self) -> str:
        return ", ".join((self.complete, self.deterministic, self.box, self.arithmetic, self.exact))


def tags_of(evidence: Evidence) -> Tags:
    """Return the attributes that the method declares."""
    kind = evidence.traits
    executed = evidence.kind != "proved" or kind.runs or evidence.settings.get("arithmetic") == "executed"
    return Tags(
        complete="complete" if kind.complete else "incomplete",
        deterministic="non-deterministic, repeatable by its seed" if kind.seeded else "deterministic",
        box="box not stated" if kind.glass is None else "glass box" if kind.glass else "closed box",
        arithmetic="computer arithmetic" if executed else "real arithmetic",
        exact="exact" if kind.exact else "approximate",
    )


def meaning_of(evidence: Evidence) -> str:
    """Say what the attributes of the method mean for this number, which a reader may take for doubts about it."""
    kind = evidence.traits
    if evidence.kind == "proved":
        told = "It holds for every input of its region."
        if not kind.complete:
            told += " Incomplete: the method may leave other inputs undecided; it did not leave this one."
        if not kind.exact:
            told += " Approximate: the true value may lie beyond the proved bound, on the safe side."
        if kind.seeded:
            told += " Not deterministic: another seed may prove another bound; this one holds with any."
        return told
    if evidence.kind == "witnessed":
        told = "A concrete input shows it."
        if not kind.complete:
            told += " Incomplete: no counterexample from this method would prove nothing."
        if not kind.exact:
            told += " Approximate: a worse input may exist."
        return told
    if evidence.kind == "sampled":
        return "It holds with the stated confidence, and not for every input."
    return "A guess: it bounds nothing."


@dataclass(frozen=True)
class StandardProperty:
    """One of the standard's four properties."""

    name: str
    clause: str
    meaning: str


STABILITY = StandardProperty(
    "stability", "5.3", "how far an input may be perturbed before the answer changes"
)
SENSITIVITY = StandardProperty("sensitivity", "5.4", "how strongly the output changes with the input")
RELEVANCE = StandardProperty("relevance", "5.5", "which parts of an input decide the answer")
REACHABILITY = StandardProperty("reachability", "5.6", "which outputs can be reached from the allowed inputs")
PROPERTIES = {
    "radius": (STABILITY,),
    "worst": (STABILITY, REACHABILITY),
    "verify": (STABILITY, REACHABILITY),
    "reach": (REACHABILITY,),
    "risk": (STABILITY, SENSITIVITY),
    "saliency": (SENSITIVITY, RELEVANCE),
    "testgen": (REACHABILITY,),
    "smoothing": (STABILITY,),
    "monitor": (STABILITY, RELEVANCE),
}


def properties_of(question: Question) -> tuple[StandardProperty, ...]:
    """Return the properties that a run is evidence of."""
    each = (RELEVANCE,) if question.asked.frames == "each" else ()
    return (*PROPERTIES.get(question.command.split(" ")[0], (STABILITY,)), *each)
