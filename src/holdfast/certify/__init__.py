"""Room 1: radii and scores that are proved, by bound propagation or by asking every case."""

from holdfast.certify.certify import Arithmetic, Certify
from holdfast.certify.enumerate import Enumerate
from holdfast.certify.split import Split
from holdfast.certify.tighten import Tighten

__all__ = ["Arithmetic", "Certify", "Enumerate", "Split", "Tighten"]
