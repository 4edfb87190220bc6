"""Planes below and above a function on a box. Slopes are free; intercepts are exact, so every slope is sound.

A relaxation offers its candidates: points of the box that, for given slopes, include every minimiser and every maximiser of
f(v) - slope . v. The smallest and largest value over them are the two intercepts, with slopes chosen well for a small gap.
"""

from holdfast.bounds.relax.base import Planes, Relaxation, planes, value_range
from holdfast.bounds.relax.gates import SigmoidTanh, SigmoidTimes
from holdfast.bounds.relax.piecewise import Elu, LeakyRelu, Relu
from holdfast.bounds.relax.product import Product
from holdfast.bounds.relax.sigmoidal import Sigmoid, Tanh

__all__ = [
    "Elu",
    "LeakyRelu",
    "Planes",
    "Product",
    "Relaxation",
    "Relu",
    "Sigmoid",
    "SigmoidTanh",
    "SigmoidTimes",
    "Tanh",
    "planes",
    "value_range",
]
