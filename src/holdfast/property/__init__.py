"""Specifications of outputs: one module for each.

A margin is positive iff the specification holds; ties are failures.
"""

from holdfast.property.avoid import Avoid
from holdfast.property.band import Band, Within
from holdfast.property.base import BoundedProperty, LinearProperty, Property
from holdfast.property.confidence import Confidence
from holdfast.property.custom import Custom
from holdfast.property.labels import Labels, Threshold
from holdfast.property.linear import Linear
from holdfast.property.reach import Reach
from holdfast.property.robustness import Robustness, Targeted
from holdfast.property.rule import Rule
from holdfast.property.tie import Tie
from holdfast.property.uncertainty import Uncertainty

__all__ = [
    "Avoid",
    "Band",
    "BoundedProperty",
    "Confidence",
    "Custom",
    "Labels",
    "Linear",
    "LinearProperty",
    "Property",
    "Reach",
    "Robustness",
    "Rule",
    "Targeted",
    "Threshold",
    "Tie",
    "Uncertainty",
    "Within",
]
