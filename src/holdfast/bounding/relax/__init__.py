"""Linear relaxations of activations: linear bounds a_l . v + b_l <= f(v) <= a_u . v + b_u on a box.

Slopes are free; for each slope the intercept is the exact minimum or maximum of f(v) - slope . v over the box
(up to a charged rounding error), so every slope is sound. A relaxation provides candidates: points of the box
that, for given slopes, include every minimiser and maximiser of f(v) - slope . v.

References: Zhang et al. 2018 (CROWN); Singh et al. 2019 (DeepPoly).
"""

from holdfast.bounding.relax.abilities import abilities
from holdfast.bounding.relax.base import LinearBounds, Relaxation, planes, value_range
from holdfast.bounding.relax.convex import Exp, Log, Reciprocal, Rsqrt, Sqrt
from holdfast.bounding.relax.dynamic_rounding import DynamicRounding
from holdfast.bounding.relax.gates import SigmoidTanh, SigmoidTimes
from holdfast.bounding.relax.piecewise import Abs, Clip, Elu, Hardswish, LeakyRelu, Relu
from holdfast.bounding.relax.power import Power
from holdfast.bounding.relax.product import Product
from holdfast.bounding.relax.relu_difference import ReluDifference
from holdfast.bounding.relax.rounding_interval import IntegerRange, RoundedInput
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
    "DynamicRounding",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "GeluTanh",
    "Hardswish",
    "IntegerRange",
    "LeakyRelu",
    "LinearBounds",
    "Log",
    "Mish",
    "Power",
    "Product",
    "Reciprocal",
    "Relaxation",
    "Relu",
    "ReluDifference",
    "Round",
    "RoundedInput",
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
    "abilities",
    "planes",
    "value_range",
]
