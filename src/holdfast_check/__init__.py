"""An independent checker of the proofs that holdfast writes. It imports numpy and nothing of holdfast;
docs/trust-base.md lists what it trusts.
"""

from holdfast_check.errors import NoBounds, Rejected
from holdfast_check.proof import Model, ProofVerdict, check

__all__ = ["Model", "NoBounds", "ProofVerdict", "Rejected", "check"]
