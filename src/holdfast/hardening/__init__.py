"""Certified training: bounds in the loss, the checkpoint chosen by certified accuracy on validation data.

The reported numbers come from the certification engine and from attacks, never from the loss.
"""

from holdfast.hardening.evaluation import RobustnessResult
from holdfast.hardening.recipe import Recipe
from holdfast.hardening.result import Hardened
from holdfast.hardening.training import Epoch

__all__ = ["Epoch", "Hardened", "Recipe", "RobustnessResult"]
