"""holdfast: how far can a trained network be pushed before it lets go?

    net = hf.Network.from_torch(model, domain=(0, 1))
    for b in hf.radius(net, x, y, norm=2):
        print(b.lower.value, "<=", "safe radius", "<=", b.upper.value)

Names are loaded when first used, so that the command line answers before torch is imported.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.api.radius import Bounds, bounds, radius, worst
    from holdfast.api.risk import Risk, risk
    from holdfast.attacks import CLEVER, PGD, CarliniWagner, Corners, Mesh
    from holdfast.certify import Certify, Enumerate, Smoothed, Smoothing, Split, Tighten, smoothed
    from holdfast.coverage.testgen import Tests, testgen
    from holdfast.errors import (
        BadInput,
        Contradiction,
        HoldfastError,
        MissingExtra,
        StoreError,
        UnreadableFile,
        UnsupportedLayer,
    )
    from holdfast.hamming import Branch, Greedy, Grid
    from holdfast.hamming.saliency import saliency
    from holdfast.method import Claims, Method
    from holdfast.monitor import (
        Bins,
        Classes,
        Groups,
        Guard,
        Monitor,
        Mutation,
        Noise,
        Output,
        Own,
        Score,
        Scores,
        Streaming,
        Tolerance,
        Typos,
    )
    from holdfast.network import Network
    from holdfast.problem import Problem
    from holdfast.property import BoundedProperty, Confidence, Custom, Linear, Property, Reach, Robustness, Targeted, Tie, Uncertainty
    from holdfast.region import Ball, Box, Domain, Frames, Patch, Region, Sparse, Words
    from holdfast.result import Bound, Bracket, Evidence, Key, Overall, Record, overall
    from holdfast.solver import Stop, solve
    from holdfast.store import Store
    from holdfast.verification.ranges import Range
    from holdfast.verification.reach import reach
    from holdfast.verification.verify import Verdict, verify

__version__ = "0.1.0"

_HOME = {
    "holdfast.api.radius": ("Bounds", "bounds", "radius", "worst"),
    "holdfast.attacks": ("CLEVER", "CarliniWagner", "Corners", "Mesh", "PGD"),
    "holdfast.certify": ("Certify", "Enumerate", "Smoothed", "Smoothing", "Split", "Tighten", "smoothed"),
    "holdfast.errors": (
        "BadInput", "Contradiction", "HoldfastError", "MissingExtra", "StoreError", "UnreadableFile", "UnsupportedLayer",
    ),
    "holdfast.coverage": ("Tests", "testgen"),
    "holdfast.hamming": ("Branch", "Greedy", "Grid", "saliency"),
    "holdfast.verification": ("Range", "Verdict", "reach", "verify"),
    "holdfast.method": ("Claims", "Method"),
    "holdfast.monitor": (
        "Bins", "Classes", "Groups", "Guard", "Monitor", "Mutation", "Noise", "Output", "Own", "Score", "Scores", "Streaming", "Tolerance",
        "Typos",
    ),
    "holdfast.network": ("Network",),
    "holdfast.problem": ("Problem",),
    "holdfast.property": (
        "BoundedProperty", "Confidence", "Custom", "Linear", "Property", "Reach", "Robustness", "Targeted", "Tie", "Uncertainty",
    ),
    "holdfast.region": ("Ball", "Box", "Domain", "Frames", "Patch", "Region", "Sparse", "Words"),
    "holdfast.result": ("Bound", "Bracket", "Evidence", "Key", "Overall", "Record", "overall"),
    "holdfast.api.risk": ("Risk", "risk"),
    "holdfast.solver": ("Stop", "solve"),
    "holdfast.store": ("Store",),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CLEVER",
    "PGD",
    "BadInput",
    "Ball",
    "Bins",
    "Bound",
    "BoundedProperty",
    "Bounds",
    "Box",
    "Bracket",
    "Branch",
    "CarliniWagner",
    "Certify",
    "Claims",
    "Classes",
    "Confidence",
    "Contradiction",
    "Corners",
    "Custom",
    "Domain",
    "Enumerate",
    "Evidence",
    "Frames",
    "Greedy",
    "Grid",
    "Groups",
    "Guard",
    "HoldfastError",
    "Key",
    "Linear",
    "Mesh",
    "Method",
    "MissingExtra",
    "Monitor",
    "Mutation",
    "Network",
    "Noise",
    "Output",
    "Overall",
    "Own",
    "Patch",
    "Problem",
    "Property",
    "Range",
    "Reach",
    "Record",
    "Region",
    "Risk",
    "Robustness",
    "Score",
    "Scores",
    "Smoothed",
    "Smoothing",
    "Sparse",
    "Split",
    "Stop",
    "Store",
    "StoreError",
    "Streaming",
    "Targeted",
    "Tests",
    "Tie",
    "Tighten",
    "Tolerance",
    "Typos",
    "Uncertainty",
    "UnreadableFile",
    "UnsupportedLayer",
    "Verdict",
    "Words",
    "__version__",
    "bounds",
    "overall",
    "radius",
    "reach",
    "risk",
    "saliency",
    "smoothed",
    "solve",
    "testgen",
    "verify",
    "worst",
]


def __getattr__(name: str) -> object:
    if name in _MODULE:
        value = getattr(importlib.import_module(_MODULE[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
