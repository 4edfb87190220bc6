"""Names and directions of the quantities that brackets hold, by the goal of their records."""

import math
from dataclasses import dataclass, replace

from holdfast.result import Bound, Bracket, Goal


@dataclass(frozen=True)
class Quantity:
    """One kind of quantity.

    quantity  its name on axes and in sentences. heading: the heading of its part of a page.
    claim     the preposition of a certified number: at 0.1, above 0, below 3.
    rises     whether larger is better, so that the lower bound is proved and the upper one witnessed; else
    vice versa.
    shown     the evidence of the other bound. missing: the phrase for an unknown one.
    zero      whether proved means above zero; else it means that the proved bound is known.
    found     the input behind the other bound: a counterexample breaks the property, the input of a score need
    not.
    """

    quantity: str
    heading: str
    claim: str = "at"
    rises: bool = True
    shown: str = "witnessed"
    missing: str = "no witness"
    zero: bool = True
    found: str = "counterexample"

    def proved_bound(self, bracket: Bracket) -> Bound:
        return bracket.lower if self.rises else bracket.upper

    def witnessed_bound(self, bracket: Bracket) -> Bound:
        return bracket.upper if self.rises else bracket.lower

    def is_open(self, bracket: Bracket) -> bool:
        """Return whether there is no counterexample and the proof does not settle the value."""
        end = self.witnessed_bound(bracket)
        return not bracket.closed and (math.isinf(end.value) or not end.known)

    def holds(self, bracket: Bracket) -> bool:
        end = self.proved_bound(bracket).value
        return end > 0 if self.zero else math.isfinite(end)


RADIUS = Quantity("radius", "the radius")
QUANTITIES = {  # In the order of a page.
    "radius": RADIUS,
    "worst": Quantity("worst score", "the worst score", "above", found="worst input found"),
    "smallest": Quantity("smallest value", "the smallest value", "above", zero=False, found="input found"),
    "largest": Quantity(
        "largest value", "the largest value", "below", rises=False, zero=False, found="input found"
    ),
    "steepness": Quantity(
        "steepness", "how steep: Q", "at most", rises=False, zero=False, found="input found"
    ),
    "probability": Quantity(
        "probability",
        "the probability that the answer stays",
        "at least",
        shown="counted",
        missing="not counted",
    ),
}


# Headings of the parts of an evaluated monitor (holdfast.monitor.evaluate.PARTS).
PROBABILITY_HEADINGS = {
    "now": "the probability that the answer at the changed place stays",
    "final": "the probability that the final answer stays",
}


def quantity_of(goal: Goal, part: str = "") -> Quantity:
    """Return the sense of a goal; the smallest value of an output is a worst score with another name, and a
    monitor compares two answers.
    """
    found = QUANTITIES["smallest" if goal == "worst" and part == "smallest" else goal]
    if goal == "probability" and part in PROBABILITY_HEADINGS:
        return replace(found, heading=PROBABILITY_HEADINGS[part])
    return found


def has_separate_outputs(goal: Goal, part: str) -> bool:
    """Return whether every output is a separate query, so that there is no weakest one."""
    return goal == "largest" or part == "smallest"
