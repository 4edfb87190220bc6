"""A proof file in the making: its header, its arrays, and what the checker proves with more arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.certificates.claim import proved_margin, read_claim
from holdfast_check import Rejected
from holdfast_check.proof import Claim
from holdfast_check.steps import Program
from holdfast_check.trees import TreeSum

NO_ARRAYS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class ProofDraft:
    """The contents of a proof file, to which searches add arrays.

    Attributes:
        header: the claim in the checker's format. Searches set the radius or the score that is claimed.
        arrays: the property and the region, and what is known to help the proof.
        program: the network, or the sum of trees, as the checker reads it.
        until: when a search must end, by the monotonic clock in seconds.
    """

    header: dict[str, Any]
    arrays: dict[str, Any]
    program: Program | TreeSum
    until: float

    @property
    def network(self) -> Program:
        """The program of a network; Rejected for trees, of which other proofs are made."""
        if isinstance(self.program, TreeSum):
            raise Rejected("trees are proved by their leaves")
        return self.program

    def read_claim(self, more: Mapping[str, Any] = NO_ARRAYS) -> Claim:
        """Return the claim as the checker reads it from the bytes of the file, with `more` arrays in it."""
        return read_claim(self.header, {**self.arrays, **more}, self.program)

    def proved_margin(self, more: Mapping[str, Any] = NO_ARRAYS) -> float:
        """Return the margin that the checker proves with `more` arrays; above 0 the claim is proved."""
        return proved_margin(self.header, {**self.arrays, **more}, self.program)
