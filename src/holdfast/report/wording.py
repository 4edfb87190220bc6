"""What a bracket holds, in words, and which way is good. All views take both from the goal of the records, none from the command."""

import math
from dataclasses import dataclass

from holdfast.result import Bound, Bracket, Goal


@dataclass(frozen=True)
class Sense:
    """One kind of number.

    quantity  its name on axes and in sentences. heading: that of its part of a page. claim: what comes before a number where inputs are
              certified: at 0.1, above 0, below 3.
    rises     the larger the better: the lower bound is proved, the upper one witnessed. Where not, it is the other way round.
    shown     how the other end is known. missing: what to say where it is not.
    zero      proved means above zero; where not, that the proved bound is known.
    """

    quantity: str
    heading: str
    claim: str = "at"
    rises: bool = True
    shown: str = "witnessed"
    missing: str = "no witness"
    zero: bool = True

    def proved_bound(self, bracket: Bracket) -> Bound:
        return bracket.lower if self.rises else bracket.upper

    def witnessed_bound(self, bracket: Bracket) -> Bound:
        return bracket.upper if self.rises else bracket.lower

    def is_open(self, bracket: Bracket) -> bool:
        """Nothing was found on the side of the witness, and what is proved does not settle it."""
        end = self.witnessed_bound(bracket)
        return not bracket.closed and (math.isinf(end.value) or not end.known)

    def holds(self, bracket: Bracket) -> bool:
        end = self.proved_bound(bracket).value
        return end > 0 if self.zero else math.isfinite(end)


RADIUS = Sense("radius", "the radius")
SENSES = {  # in the order of a page
    "radius": RADIUS,
    "worst": Sense("worst score", "the worst score", "above"),
    "smallest": Sense("smallest value", "the smallest value", "above", zero=False),
    "largest": Sense("largest value", "the largest value", "below", rises=False, zero=False),
    "steepness": Sense("steepness", "how steep: Q", "at most", rises=False, zero=False),
    "probability": Sense(
        "probability",
        "the probability that the answer stays",
        "at least",
        shown="counted",
        missing="not counted",
    ),
}


def sense_of(goal: Goal, part: str = "") -> Sense:
    """Of the two ends of a range the smaller one is a worst score by another name."""
    return SENSES["smallest" if goal == "worst" and part == "smallest" else goal]


def is_apart(goal: Goal, part: str) -> bool:
    """Is every output a question of its own, so that none is the weakest?"""
    return goal == "largest" or part == "smallest"
