"""Certification: radii and scores that are proved by bound propagation or by exhaustive enumeration, and
randomised smoothing.
"""

from holdfast.certify.certify import Arithmetic, Certify
from holdfast.certify.enumerate import Enumerate
from holdfast.certify.smoothing import Smoothed, Smoothing, smoothed
from holdfast.certify.split_tier import Split
from holdfast.certify.tight_tier import Tighten
from holdfast.certify.tree_leaves import Leaves

__all__ = [
    "Arithmetic",
    "Certify",
    "Enumerate",
    "Leaves",
    "Smoothed",
    "Smoothing",
    "Split",
    "Tighten",
    "smoothed",
]
