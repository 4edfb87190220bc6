"""What must hold: one file a property; positive scores are good, ties are failures."""

from holdfast.property.avoid import Avoid
from holdfast.property.base import LinearProperty, Property
from holdfast.property.custom import Custom
from holdfast.property.linear import Linear
from holdfast.property.robustness import Robustness, Targeted

__all__ = ["Avoid", "Custom", "Linear", "LinearProperty", "Property", "Robustness", "Targeted"]
