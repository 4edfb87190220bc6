"""Room: radii and scores that are proved by bound propagation or by asking every case, and randomised smoothing."""

from holdfast.certify.certify import Arithmetic, Certify
from holdfast.certify.enumerate import Enumerate
from holdfast.certify.leaves import Leaves
from holdfast.certify.smoothing import Smoothed, Smoothing, smoothed
from holdfast.certify.split import Split
from holdfast.certify.tighten import Tighten

__all__ = ["Arithmetic", "Certify", "Enumerate", "Leaves", "Smoothed", "Smoothing", "Split", "Tighten", "smoothed"]
