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
