"""Planes below and above a function on a box. Slopes are free; intercepts are exact, so every slope is sound.

A relaxation offers its candidates: points of the box that, for given slopes, include every minimiser and every maximiser of
f(v) - slope . v. The smallest and largest value over them are the two intercepts, with slopes chosen well for a small gap.
"""

from holdfast.bounding.relax.abilities import abilities
from holdfast.bounding.relax.base import LinearBounds, Relaxation, planes, value_range
from holdfast.bounding.relax.convex import Exp, Log, Reciprocal, Rsqrt, Sqrt
from holdfast.bounding.relax.gates import SigmoidTanh, SigmoidTimes
from holdfast.bounding.relax.piecewise import Abs, Clip, Elu, Hardswish, LeakyRelu, Relu
from holdfast.bounding.relax.power import Power
from holdfast.bounding.relax.product import Product
from holdfast.bounding.relax.rounding_interval import Unsure
from holdfast.bounding.relax.selfgated import Gelu, GeluTanh, Mish, Silu
from holdfast.bounding.relax.sigmoidal import Atan, Erf, Sigmoid, Tanh
from holdfast.bounding.relax.sine import Cosine, Sine
from holdfast.bounding.relax.softplus import Softplus
from holdfast.bounding.relax.stairs import Ceil, Floor, Round
from holdfast.bounding.relax.step import Sign, Step

__all__ = [
    "Abs",
    "Atan",
    "Ceil",
    "Clip",
    "Cosine",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "GeluTanh",
    "Hardswish",
    "LeakyRelu",
    "LinearBounds",
    "Log",
    "Mish",
    "Power",
    "Product",
    "Reciprocal",
    "Relaxation",
    "Relu",
    "Round",
    "Rsqrt",
    "Sigmoid",
    "SigmoidTanh",
    "SigmoidTimes",
    "Sign",
    "Silu",
    "Sine",
    "Softplus",
    "Sqrt",
    "Step",
    "Tanh",
    "Unsure",
    "abilities",
    "planes",
    "value_range",
]
