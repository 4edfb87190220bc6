"""holdfast: certified robustness of trained neural networks, with counterexamples as upper bounds.

    import holdfast as hf

    result = hf.radius(model, x, y, norm=2, domain=(0, 1))  # your module, your tensors
    print(result)  # for each input: certified radius <= true radius <= distance of a counterexample

Everything that most users need is here. Packages hold the rest: hf.attacks.PGD, hf.certify.Certify,
hf.region.Frames, hf.property.Linear, hf.monitor.Groups. Names and packages are imported when they are first
used, so that the command line answers before torch is imported.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast import (
        api as api,
    )
    from holdfast import (
        attacks as attacks,
    )
    from holdfast import (
        certify as certify,
    )
    from holdfast import (
        coverage as coverage,
    )
    from holdfast import (
        edits as edits,
    )
    from holdfast import (
        errors as errors,
    )
    from holdfast import (
        hamming as hamming,
    )
    from holdfast import (
        hardening as hardening,
    )
    from holdfast import (
        lipschitz as lipschitz,
    )
    from holdfast import (
        method as method,
    )
    from holdfast import (
        monitor as monitor,
    )
    from holdfast import (
        property as property,
    )
    from holdfast import (
        region as region,
    )
    from holdfast import (
        result as result,
    )
    from holdfast import (
        verification as verification,
    )
    from holdfast.api.assert_robust import assert_robust
    from holdfast.api.column_effect import column_effect
    from holdfast.api.counterfactuals import counterfactuals
    from holdfast.api.decibels import decibels
    from holdfast.api.edits import Edits
    from holdfast.api.equivalent import equivalent
    from holdfast.api.harden import harden
    from holdfast.api.load import load
    from holdfast.api.loop import Loop
    from holdfast.api.prove import prove
    from holdfast.api.radius import bounds, radius, worst
    from holdfast.api.risk import risk
    from holdfast.api.saliency import saliency
    from holdfast.api.smoothed import smoothed
    from holdfast.api.testgen import testgen
    from holdfast.api.verify import reach, verify
    from holdfast.commands.check import check
    from holdfast.errors import Contradiction, HoldfastError
    from holdfast.method import Method
    from holdfast.monitor import Monitor
    from holdfast.network import Network
    from holdfast.problem import Problem
    from holdfast.property import Robustness, Threshold, Within
    from holdfast.question import Question
    from holdfast.region import Ball, Box, Columns
    from holdfast.report.mlflow_log import log_to_mlflow
    from holdfast.result import Bound, Bracket, Evidence, Record
    from holdfast.solver import Stop, solve
    from holdfast.store import Store

__version__ = "0.1.0"

_HOME = {
    "holdfast.api.assert_robust": ("assert_robust",),
    "holdfast.api.column_effect": ("column_effect",),
    "holdfast.api.counterfactuals": ("counterfactuals",),
    "holdfast.api.equivalent": ("equivalent",),
    "holdfast.api.decibels": ("decibels",),
    "holdfast.api.edits": ("Edits",),
    "holdfast.api.harden": ("harden",),
    "holdfast.api.prove": ("prove",),
    "holdfast.api.radius": ("bounds", "radius", "worst"),
    "holdfast.api.risk": ("risk",),
    "holdfast.api.smoothed": ("smoothed",),
    "holdfast.commands.check": ("check",),
    "holdfast.api.testgen": ("testgen",),
    "holdfast.errors": ("Contradiction", "HoldfastError"),
    "holdfast.api.saliency": ("saliency",),
    "holdfast.method": ("Method",),
    "holdfast.monitor": ("Monitor",),
    "holdfast.network": ("Network",),
    "holdfast.problem": ("Problem",),
    "holdfast.property": ("Robustness", "Threshold", "Within"),
    "holdfast.question": ("Question",),
    "holdfast.api.load": ("load",),
    "holdfast.api.loop": ("Loop",),
    "holdfast.region": ("Ball", "Box", "Columns"),
    "holdfast.report.mlflow_log": ("log_to_mlflow",),
    "holdfast.result": ("Bound", "Bracket", "Evidence", "Record"),
    "holdfast.solver": ("Stop", "solve"),
    "holdfast.store": ("Store",),
    "holdfast.api.verify": ("reach", "verify"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}
_PACKAGES = (
    "api",
    "attacks",
    "certify",
    "coverage",
    "edits",
    "errors",
    "hamming",
    "hardening",
    "lipschitz",
    "method",
    "monitor",
    "property",
    "region",
    "result",
    "verification",
)

__all__ = [
    "Ball",
    "Bound",
    "Box",
    "Bracket",
    "Columns",
    "Contradiction",
    "Edits",
    "Evidence",
    "HoldfastError",
    "Loop",
    "Method",
    "Monitor",
    "Network",
    "Problem",
    "Question",
    "Record",
    "Robustness",
    "Stop",
    "Store",
    "Threshold",
    "Within",
    "__version__",
    "assert_robust",
    "bounds",
    "check",
    "column_effect",
    "counterfactuals",
    "decibels",
    "equivalent",
    "harden",
    "load",
    "log_to_mlflow",
    "prove",
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
    if name in _PACKAGES:
        return importlib.import_module(f"holdfast.{name}")
    if name in _MODULE:
        value = getattr(importlib.import_module(_MODULE[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}{_elsewhere(name)}")


def _elsewhere(name: str) -> str:
    """Where a class of this name is, as the end of a message; empty if no package has it."""
    if not name[:1].isupper():
        return ""
    for package in _PACKAGES:
        if hasattr(importlib.import_module(f"holdfast.{package}"), name):
            return f". It is hf.{package}.{name}."
    return ""


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
