"""VNN-LIB verification and output range analysis (reachability) by branch and bound."""

from holdfast.verification.branch_and_bound import BranchAndBound
from holdfast.verification.instances import Instance, read_instances, read_key
from holdfast.verification.ranges import Range, range_of, ranges_of
from holdfast.verification.reach import reach
from holdfast.verification.search import Scatter
from holdfast.verification.verify import Verdict, verdict, verify

__all__ = [
    "BranchAndBound",
    "Instance",
    "Range",
    "Scatter",
    "Verdict",
    "range_of",
    "ranges_of",
    "reach",
    "read_instances",
    "read_key",
    "verdict",
    "verify",
]
