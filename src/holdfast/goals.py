"""The goals: the quantities that a bracket may bound, and how such a bracket is read.

A goal is given and stored as a word. `objective_of` returns its rules, which all other modules ask instead of
comparing words. Inside a batch every goal is a minimisation: a goal of a maximum is searched as the
minimum of the negative, so the certified bound is always the lower one.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from holdfast.result import Bracket

Goal = Literal["radius", "worst", "largest", "steepness", "probability"]


@dataclass(frozen=True)
class Objective:
    """The rules of one goal.

    Attributes:
        goal: its word.
        nouns: what its brackets bound, in the plural.
        bounds_radius: the region grows until the property fails. Otherwise the region is given.
        scored: the quantity is the score of the property, which fails where the score is not positive.
        needs_distance: the quantity is defined by distances to the input, so the region must be a family.
        maximised: the quantity is a maximum, so it is searched as the minimum of the negative.
        strict: certified at a value means: above it. Otherwise the value itself is included.
        least, most: bounds that hold by definition, in the direction of the search.
    """

    goal: Goal
    nouns: str
    bounds_radius: bool = False
    scored: bool = False
    needs_distance: bool = False
    maximised: bool = False
    strict: bool = False
    least: float = -math.inf
    most: float = math.inf

    @property
    def sign(self) -> float:
        """The factor between values as searched and values as reported."""
        return -1.0 if self.maximised else 1.0

    @property
    def decides_property(self) -> bool:
        """Whether a certified bound above zero proves that the property holds."""
        return self.bounds_radius or self.scored

    def orient(self, bracket: "Bracket") -> "Bracket":
        """Turn a bracket as reported into one as searched, whose certified bound is the lower one, or back."""
        return bracket.negate() if self.maximised else bracket

    def is_certified(self, proved: float, at: float) -> bool:
        """Return whether a certified lower bound proves that the quantity reaches `at`."""
        return proved > at if self.strict else proved >= at

    def is_broken(self, shown: float, at: float) -> bool:
        """Return whether an upper bound by a counterexample shows that the quantity does not reach `at`."""
        return shown <= at if self.strict else shown < at


_OBJECTIVES: dict[Goal, Objective] = {
    one.goal: one
    for one in (
        Objective("radius", "radii", bounds_radius=True, needs_distance=True, least=0.0),
        Objective("worst", "worst scores", scored=True, strict=True),
        Objective("largest", "largest values", maximised=True, strict=True),
        Objective("steepness", "the steepness Q", needs_distance=True, maximised=True, most=0.0),
        Objective("probability", "probabilities"),
    )
}


def objective_of(goal: Goal) -> Objective:
    """Return the rules of a goal."""
    return _OBJECTIVES[goal]
