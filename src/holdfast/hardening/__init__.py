"""Training for proofs: bounds in the loss, the best checkpoint by the engine on validation data, and the numbers by the engine alone."""

from holdfast.hardening.evaluation import Standing
from holdfast.hardening.recipe import Recipe
from holdfast.hardening.result import Hardened
from holdfast.hardening.training import Epoch

__all__ = ["Epoch", "Hardened", "Recipe", "Standing"]
