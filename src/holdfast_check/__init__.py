"""A small, independent checker of holdfast's proofs. It imports numpy and nothing of holdfast; docs/trust-base.md says what it trusts."""

from holdfast_check.errors import Rejected
from holdfast_check.proof import Model, ProofVerdict, check

__all__ = ["Model", "ProofVerdict", "Rejected", "check"]
