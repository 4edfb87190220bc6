"""An independent checker of the proofs that holdfast writes. It imports numpy and nothing of holdfast;
docs/trust-base.md lists what it trusts.
"""

from __future__ import annotations

from holdfast_check.bundle import check_bundle
from holdfast_check.errors import NoBounds, Rejected
from holdfast_check.limits import time_limit
from holdfast_check.proof import Model, ProofVerdict, check

# The first number is the newest version of the proof format that is read
# (`proof.ROWS_VERSION`); older ones are read too.
__version__ = "2.0.0"

__all__ = ["Model", "NoBounds", "ProofVerdict", "Rejected", "check", "check_bundle", "time_limit"]
