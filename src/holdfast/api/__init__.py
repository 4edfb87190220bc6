"""The public functions (`hf.radius`, `hf.worst`, `hf.risk`, ...), the checks of their arguments, and the
results that they return.
"""

from holdfast.api.radius import Bounds
from holdfast.api.risk import Risk

__all__ = ["Bounds", "Risk"]
