"""Room 1: radii and scores that are proved, by bound propagation or by asking every case."""

from holdfast.certify.certify import Certify
from holdfast.certify.enumerate import Enumerate

__all__ = ["Certify", "Enumerate"]
