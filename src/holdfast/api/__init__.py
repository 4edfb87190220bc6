"""The short forms people type: hf.radius, hf.worst, hf.bounds, hf.risk; and the views that hf.bounds and hf.risk answer with."""

from holdfast.api.radius import Bounds
from holdfast.api.risk import Risk

__all__ = ["Bounds", "Risk"]
