"""Room: VNN-LIB verification and output range analysis (reachability), by branch and bound."""

from holdfast.verification.instances import Instance, read_instances, read_key
from holdfast.verification.ranges import Range
from holdfast.verification.reach import reach
from holdfast.verification.verify import Verdict, verify

__all__ = ["Instance", "Range", "Verdict", "reach", "read_instances", "read_key", "verify"]
